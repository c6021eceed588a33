-- Outages by provider, and payments that operators look for.

-- Who could have paid at another provider is not excused by one that was down. What was written down before was taken for
-- everybody, and stays so.
alter table outages rename to outages_before;

create table outages (
    -- The provider that took no payments; empty when nobody could pay anywhere.
    provider text not null,
    from_at integer not null,
    until_at integer not null,
    constraint outages_once primary key (provider, from_at, until_at),
    constraint outages_forward check (from_at < until_at)
) without rowid;

insert into outages select '', from_at, until_at from outages_before;

drop table outages_before;

-- Money that goes back is rare, and operators ask for it by its state, the newest first: each entry ends with the number.
-- Payments that become paid orders are not in it, nor what became of nothing; of those a page is found at once.
create index payments_going_back on payments (state) where reason is not null;

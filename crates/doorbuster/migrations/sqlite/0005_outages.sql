-- When paying was impossible: who could not pay in time because of us gets no strike.

-- One row: the last sign of life of whoever closes unpaid orders.
create table sign_of_life (
    only_row integer primary key check (only_row = 1),
    alive_at integer not null
);

-- Kept for as long as an unpaid order may look back on them.
create table outages (
    from_at integer not null,
    until_at integer not null,
    constraint outages_once primary key (from_at, until_at),
    constraint outages_forward check (from_at < until_at)
) without rowid;

-- Payments that are closed here and must be closed at their providers, too.

-- When its provider is asked next to take no money for it any more; nothing once it takes none, or is not asked any more.
alter table payments add column close_try_at integer;

-- How often it was asked in vain.
alter table payments add column close_tries integer not null default 0
    constraint payments_close_tries_count check (close_tries >= 0);

-- By provider, since one that is down must not hold up the others. What money came for is no longer among them.
create index payments_to_close on payments (provider, close_try_at)
    where state = 'closed' and close_try_at is not null;

-- What was closed on the last day may still be open there: until now nobody wrote down whether it is.
update payments set close_try_at = ended_at
    where state = 'closed' and pay_url is not null
        and ended_at > (select max(ended_at) from payments) - 86400000;

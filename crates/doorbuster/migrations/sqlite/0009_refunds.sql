-- Refunds that end, and begin again under another number.

-- How many numbers are used up. A provider that has ended a refund for good says the same for ever under its number, so the
-- next one is asked for under `refund_key`, a hyphen and this. A number is kept while its refund may still happen.
alter table payments add column refund_round integer not null default 0
    constraint payments_rounds_count check (refund_round >= 0);

-- The provider's name of the refund under the present number; nothing before it told one.
alter table payments add column refund_ref text;

-- Since when the provider is being asked, how often in a row it gave no usable answer, and when it was told that this takes
-- too long. `attempts` is counted from the same beginning.
alter table payments add column refunding_since integer;

alter table payments add column failures integer not null default 0;

alter table payments add column slow_told_at integer;

-- Refunds that are under way have at least waited since their money came.
update payments set refunding_since = coalesce(captured_at, started_at) where state = 'refunding';

-- What was told of a sale's window and of an offer's shelf, so that each turn is told once, also by a process that was
-- down when it came.

-- The last phase of the window that an event told of.
alter table sales add column told_phase text not null default 'upcoming'
    constraint sales_told_phase_known check (told_phase in ('upcoming', 'open', 'closed'));

-- What happened before this version is not told.
update sales set told_phase = case
    when state = 'ended' or closes_at <= unixepoch('subsec') * 1000 then 'closed'
    when opens_at <= unixepoch('subsec') * 1000 then 'open'
    else 'upcoming' end
where state <> 'draft';

-- Windows that will still turn; asked for every second.
create index sales_turning on sales (sale_no) where told_phase <> 'closed' and state in ('published', 'paused');

-- Whether the last event about the offer's shelf said that it is sold out.
alter table offers add column sold_out integer not null default 0
    constraint offers_sold_out_is_yes_or_no check (sold_out in (0, 1));

update offers set sold_out = 1 where stock > 0 and stock = live_units;

-- Strikes that may count, by their time: what a start loads. They come in the order of time, so the index is appended to.
create index strikes_counting on strikes (struck_at) where lifted_at is null;

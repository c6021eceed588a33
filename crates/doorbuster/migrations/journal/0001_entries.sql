-- The journal: claims that were answered and are not yet known to be in the ledger.

-- One row: which ledger this journal belongs to.
create table identity (
    only_row integer primary key check (only_row = 1),
    incarnation blob not null
);

-- Claims by the page: every row is as long as a page holds, and is written over once the ledger has its claims. So a
-- commit changes the pages of its own claims and no other. Numbers are given by the writer and never used again.
create table entries (
    slot integer primary key,
    first_seq integer not null,
    last_seq integer not null,
    claims blob not null,
    constraint entries_in_order check (first_seq > 0 and first_seq <= last_seq)
);

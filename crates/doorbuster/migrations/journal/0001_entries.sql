-- The journal: claims that were answered and are not yet known to be in the ledger.

-- One row: which ledger this journal belongs to.
create table identity (
    only_row integer primary key check (only_row = 1),
    incarnation blob not null
);

-- One row per commit, with all claims of that commit: an append is one insert, whatever the batch.
-- Numbers are given by the writer and never used again, also after pruning.
create table entries (
    last_seq integer primary key,
    first_seq integer not null,
    claims blob not null,
    constraint entries_in_order check (first_seq > 0 and first_seq <= last_seq)
);

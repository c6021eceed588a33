-- Audits that were made, so that one can show afterwards that a sale was clean. The newest are kept.
create table audits (
    -- Grows with every audit and never comes again: lists go on from it.
    audit_no integer primary key autoincrement,
    audit_id blob not null,
    ended_at integer not null,
    clean integer not null,
    -- What each finding is about, as a JSON list: what was red already is not told again.
    known text not null,
    -- The audit as its operator sees it, in JSON.
    report text not null,
    constraint audits_id_unique unique (audit_id)
);

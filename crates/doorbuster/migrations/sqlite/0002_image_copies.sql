-- Our copies of the offers' images, by where they came from.
create table image_copies (
    source text primary key,
    -- The copy's file in the data folder; none before the first one was made.
    name text,
    -- Why the last try failed.
    problem text,
    tried_at integer not null
) without rowid;

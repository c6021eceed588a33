-- Who is told about events, and what of it could not be told yet.

create table webhooks (
    -- Deliveries name their webhook by number: a number must not come again when a webhook is deleted.
    webhook_no integer primary key autoincrement,
    webhook_id blob not null,
    url text not null,
    -- Types of events as a JSON list; an empty list means all.
    types text not null,
    disabled integer not null,
    secret blob not null,
    -- The secret before the last change also signs, until then.
    previous_secret blob,
    previous_secret_until integer,
    -- Every event up to this one is delivered, not wanted, or in deliveries.
    cursor integer not null,
    created_at integer not null,
    constraint webhooks_id_unique unique (webhook_id),
    constraint webhooks_cursor_counts check (cursor >= 0),
    constraint webhooks_secrets_end check ((previous_secret is null) = (previous_secret_until is null))
);

-- Events behind a webhook's cursor that it does not have. What is delivered has no row.
create table deliveries (
    webhook_no integer not null references webhooks (webhook_no) on delete cascade,
    event_no integer not null,
    -- Events of one track are delivered in their order: those of one order, else those of one sale.
    track integer not null,
    state text not null,
    attempts integer not null,
    -- Since when it waits: the time to give up counts from here.
    since integer not null,
    -- When it is tried again. None: an earlier event of its track waits, or it is parked.
    due_at integer,
    problem text,
    constraint deliveries_once primary key (webhook_no, event_no),
    constraint deliveries_state_known check (state in ('waiting', 'parked')),
    constraint deliveries_parked_rest check (state = 'waiting' or due_at is null)
) without rowid;

create index deliveries_due on deliveries (webhook_no, due_at) where due_at is not null;

create index deliveries_by_track on deliveries (webhook_no, track, event_no) where state = 'waiting';

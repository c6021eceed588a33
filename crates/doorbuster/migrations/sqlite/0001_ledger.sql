-- The ledger: the only truth. Instants are milliseconds since 1970; ids are 16 bytes; money is in minor units.

-- One row: who this ledger is, and how far its clerk has read the journal.
create table identity (
    only_row integer primary key check (only_row = 1),
    incarnation blob not null,
    cursor integer not null,
    constraint identity_cursor_counts check (cursor >= 0)
);

create table sales (
    -- Events name their sale and offer by number: a number must not come again when a draft is thrown away.
    sale_no integer primary key autoincrement,
    sale_id blob not null,
    state text not null,
    title text not null,
    opens_at integer not null,
    closes_at integer not null,
    pay_within_s integer not null,
    challenge text not null,
    registration text not null,
    registration_opens_at integer,
    registration_closes_at integer,
    publish_at integer,
    rehearsal integer not null,
    created_at integer not null,
    constraint sales_id_unique unique (sale_id),
    constraint sales_state_known check (state in ('draft', 'published', 'paused', 'ended')),
    constraint sales_window_forward check (opens_at < closes_at)
);

-- Drafts that publish themselves; asked for every second.
create index sales_due on sales (publish_at) where state = 'draft' and publish_at is not null;

create table offers (
    offer_no integer primary key autoincrement,
    offer_id blob not null,
    sale_no integer not null references sales (sale_no) on delete cascade,
    position integer not null,
    name text not null,
    description text,
    image text,
    list_amount integer,
    price_amount integer not null,
    currency text not null,
    stock integer not null,
    max_per_order integer not null,
    -- Units of orders that hold units; moved by the same transactions that move the orders.
    live_units integer not null default 0,
    -- The part of live_units that is paid for.
    paid_units integer not null default 0,
    -- Raised by every transaction that changes stock or live units.
    change_no integer not null default 0,
    constraint offers_id_unique unique (offer_id),
    constraint offers_never_oversold check (live_units <= stock),
    constraint offers_units_count check (live_units >= 0 and paid_units >= 0 and paid_units <= live_units),
    constraint offers_price_positive check (price_amount >= 0)
);

create index offers_by_sale on offers (sale_no, position);

-- Orders are numbered by the journal, so that a batch appends to the table.
create table orders (
    order_no integer primary key,
    order_id blob not null,
    offer_no integer not null references offers (offer_no),
    buyer text not null,
    quantity integer not null,
    state text not null,
    reason text,
    -- Grows by one with every change of the order; its events carry it.
    seq integer not null,
    holds_units integer not null,
    -- 0 while the order is live, its own number afterwards: one unique key keeps one live order per buyer and
    -- offer, and finds all orders of a buyer.
    slot integer not null,
    created_at integer not null,
    recorded_at integer not null,
    pay_by integer,
    paid_at integer,
    closed_at integer,
    pass_expires_at integer not null,
    constraint orders_id_unique unique (order_id),
    constraint orders_one_live_per_buyer unique (buyer, offer_no, slot),
    constraint orders_quantity_positive check (quantity > 0),
    constraint orders_slot_is_live check ((holds_units = 1) = (slot = 0))
);

-- Unpaid orders by deadline: when units may come back.
create index orders_due on orders (pay_by) where state = 'awaiting_payment';

-- Facts, committed together with what they tell about.
create table events (
    -- Grows with every event and is never used again: whoever drops old events keeps the newest.
    event_no integer primary key,
    type text not null,
    at integer not null,
    sale_no integer,
    offer_no integer,
    order_no integer,
    -- The order's seq, without gaps.
    seq integer,
    data text not null
);

-- Stock changes by the operator: a repeat of the same change_id returns the first result.
create table stock_changes (
    offer_no integer not null references offers (offer_no) on delete cascade,
    change_id text not null,
    change integer not null,
    stock_after integer not null,
    changed_at integer not null,
    constraint stock_changes_once primary key (offer_no, change_id)
) without rowid;

create table registrations (
    sale_no integer not null references sales (sale_no) on delete cascade,
    buyer text not null,
    registered_at integer not null,
    constraint registrations_once primary key (sale_no, buyer)
) without rowid;

create index registrations_by_buyer on registrations (buyer);

create table blocks (
    buyer text not null,
    until_at integer not null,
    note text,
    created_at integer not null,
    constraint blocks_once primary key (buyer)
) without rowid;

-- Answers to the operator's POSTs, by Idempotency-Key.
create table answers (
    idempotency_key text not null,
    -- Digest of method, path and body: the same key with another request is a conflict.
    request_digest blob not null,
    status integer not null,
    body text not null,
    answered_at integer not null,
    constraint answers_once primary key (idempotency_key)
) without rowid;

create index answers_by_age on answers (answered_at);

-- Money: payments, what providers told of them, and the strikes of those who did not pay.

-- Which payment pays, or paid, the order; nothing before it is paid.
alter table orders add column payment_id blob;

alter table orders add column refunded_at integer;

-- Each row is one capture of money at one provider, or the beginning of one. Its number is the order in which payments
-- were written down, in which they are also decided.
create table payments (
    payment_no integer primary key autoincrement,
    payment_id blob not null,
    -- By id and not by number: a provider may tell of money before the order is recorded. Nothing when it names no
    -- payment and no order of ours.
    order_id blob,
    provider text not null,
    -- Our name of the payment as the provider knows it: the id of the payment that was started. A second capture under
    -- the same name has a row, and an id, of its own.
    reference text not null,
    -- The provider's name of the capture; nothing before there is one.
    capture_id text,
    state text not null,
    -- Why the money goes back.
    reason text,
    -- What was asked for; from the capture on, what was taken.
    amount integer not null,
    currency text not null,
    -- The provider's name of the payment, and where its buyer pays.
    provider_ref text,
    pay_url text,
    started_at integer not null,
    captured_at integer,
    -- When it was closed or refunded.
    ended_at integer,
    -- The same for every time the provider is asked to return the money, so that it is returned once.
    refund_key text not null,
    -- Whether the units of a refunded order go back on sale; otherwise the stock is lowered by them.
    restock integer not null default 1,
    -- How often the provider was asked to return the money, when it is asked next, and what it said last.
    attempts integer not null default 0,
    next_try_at integer,
    problem text,
    constraint payments_id_unique unique (payment_id),
    constraint payments_refund_key_unique unique (refund_key),
    constraint payments_state_known check (state in
        ('started', 'closed', 'captured', 'applied', 'refund_due', 'refunding', 'refunded', 'refund_failed')),
    constraint payments_captures_have_names check ((state in ('started', 'closed')) = (capture_id is null)),
    constraint payments_refunds_have_reasons check
        ((state in ('refund_due', 'refunding', 'refunded', 'refund_failed')) = (reason is not null)),
    constraint payments_refunds_are_tried check
        ((state in ('refund_due', 'refunding')) = (next_try_at is not null)),
    constraint payments_pay_an_order check
        (order_id is not null or (state not in ('started', 'applied') and reason is not 'requested')),
    constraint payments_amount_counts check (amount >= 0)
);

-- What makes a capture the same capture, however many events tell of it.
create unique index payments_one_per_capture on payments (provider, capture_id) where capture_id is not null;

-- A buyer pays an order in one place at a time.
create unique index payments_one_open_per_order on payments (order_id) where state = 'started';

-- An order is paid once: by the money that is applied, or was until the shop refunded it.
create unique index payments_one_pays_the_order on payments (order_id) where state = 'applied' or reason = 'requested';

create index payments_by_order on payments (order_id, payment_no);

create index payments_by_reference on payments (provider, reference);

-- Money that is here and not decided; a worker asks for it again and again.
create index payments_undecided on payments (payment_no) where state = 'captured';

-- Money that must go back, by when its provider is asked next.
create index payments_to_refund on payments (next_try_at) where next_try_at is not null;

-- The inbox: notifications that were taken. It is written in the transaction that does what they say.
create table notices (
    provider text not null,
    event_id text not null,
    -- The payment it told of.
    payment_no integer not null references payments (payment_no),
    taken_at integer not null,
    constraint notices_once primary key (provider, event_id)
) without rowid;

-- Marks against buyers who won and did not pay. None is ever deleted: a lifted one stays as history.
create table strikes (
    strike_no integer primary key autoincrement,
    buyer text not null,
    -- The order that was not paid; nothing when the operator gave the strike.
    order_no integer references orders (order_no),
    struck_at integer not null,
    note text,
    lifted_at integer,
    -- Who lifted it: the operator, or the late money that revived the order.
    lifted_by text,
    constraint strikes_lifted_by_somebody check ((lifted_at is null) = (lifted_by is null)),
    constraint strikes_lifter_known check (lifted_by in ('operator', 'late_money'))
);

-- One order strikes once.
create unique index strikes_one_per_order on strikes (order_no) where order_no is not null;

-- A buyer's other strikes are found by the buyer's orders: an index by buyer over all of them would be written at random
-- places for every order that times out, and many may do so at once.
create index strikes_by_operator on strikes (buyer) where order_no is null;

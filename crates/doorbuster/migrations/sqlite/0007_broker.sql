-- Receivers that are no address (a broker), why a receiver was disabled, and what it lost to the age of events.

alter table webhooks add column kind text not null default 'webhook'
    constraint webhooks_kind_known check (kind in ('webhook', 'broker'));

-- There is one setting for a broker, so there is one.
create unique index webhooks_one_broker on webhooks (kind) where kind = 'broker';

-- Why we disabled it. None when an operator did.
alter table webhooks add column disabled_reason text;

-- Events that became too old before this receiver had them.
alter table webhooks add column dropped integer not null default 0
    constraint webhooks_dropped_counts check (dropped >= 0);

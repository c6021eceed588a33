-- Secrets of webhooks that also sign for a while after a change, since when a webhook is enabled, and a way to what is
-- parked.

create table webhook_secrets (
    webhook_no integer not null references webhooks (webhook_no) on delete cascade,
    secret blob not null,
    -- It signs beside the newer ones until then.
    until_at integer not null
);

create index webhook_secrets_by_webhook on webhook_secrets (webhook_no, until_at);

insert into webhook_secrets (webhook_no, secret, until_at)
    select webhook_no, previous_secret, previous_secret_until from webhooks where previous_secret is not null;

-- From here on webhook_secrets has them.
update webhooks set previous_secret = null, previous_secret_until = null;

-- When it was enabled last. The time to give up counts from here at the earliest. 0: it was never disabled.
alter table webhooks add column enabled_at integer not null default 0;

-- Few are parked among many that wait.
create index deliveries_parked on deliveries (webhook_no, event_no) where state = 'parked';

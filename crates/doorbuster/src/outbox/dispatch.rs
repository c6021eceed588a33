//! The couriers' desk: one courier per receiver, told what is new; old events dropped. Owns who works; does not know
//! what is delivered.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Client;
use rules::id::{WebhookId, timed};
use rules::wire::ReceiverKind;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::courier::{Courier, Tick};
use super::endpoint::wants;
use super::patience::GRACE_MS;
use super::rabbit::RabbitSink;
use super::sink;
use crate::app::App;
use crate::clock::Clock;
use crate::config::Settings;
use crate::ledger::sqlite::Webhook;
use crate::ledger::{LedgerResult, SqliteLedger};
use crate::telemetry::metrics::Delivery;

/// How often is looked for new events: about the longest that one waits before it is sent.
const TICK: Duration = Duration::from_millis(100);

/// Every so many ticks the metrics of the webhooks are set.
const TICKS_PER_STANDING: u32 = 50;

/// How often is looked whether old events are to be dropped.
const DROPPING_LOOK: Duration = Duration::from_secs(1);

/// Between two rounds of dropping, in milliseconds.
const DROPPING_PAUSE_MS: u64 = 60_000;

/// Most drops in a round; each is bounded by itself.
const DROPS_IN_A_ROW: u32 = 100;

/// What requests and couriers share.
#[derive(Debug)]
pub struct Dispatch {
    client: Client,
    broker: Option<Arc<RabbitSink>>,
    changed: Notify,
}

/// A courier at work.
#[derive(Debug)]
struct Post {
    webhook: watch::Sender<Arc<Webhook>>,
    stop: CancellationToken,
}

impl Dispatch {
    pub fn new(settings: &Settings) -> anyhow::Result<Self> {
        let broker = match settings.broker.url.as_str() {
            "" => None,
            _ => Some(Arc::new(RabbitSink::new(&settings.broker)?)),
        };
        Ok(Self { client: sink::client(&settings.webhooks)?, broker, changed: Notify::new() })
    }

    /// The broker of the settings.
    #[must_use]
    pub fn broker(&self) -> Option<&Arc<RabbitSink>> {
        self.broker.as_ref()
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// To be called after a webhook was made, changed, deleted or asked to be delivered to again.
    pub fn changed(&self) {
        self.changed.notify_one();
    }
}

/// Gives the broker of the settings its place in the ledger. To be called before anything happens that it should be
/// told of.
pub async fn keep_broker(settings: &Settings, ledger: &SqliteLedger, clock: &Clock) -> LedgerResult<()> {
    let broker = &settings.broker;
    let kept = Some(&broker.url).filter(|url| !url.as_str().is_empty());
    let kept = kept.map(|url| (url.to_string(), broker.types.clone()));
    let now = clock.now();
    ledger.keep_broker(kept, WebhookId(timed(now, rand::random())), now).await
}

/// Works until the process ends. The couriers end by themselves then.
pub async fn run(app: Arc<App>) {
    let shutdown = app.shutdown.clone();
    if let Some(broker) = app.dispatch.broker.clone() {
        app.tasks.spawn(greet(broker, shutdown.clone()));
    }
    let dropper = Arc::clone(&app);
    app.tasks.spawn(async move {
        let shutdown = dropper.shutdown.clone();
        shutdown.run_until_cancelled(keep_dropping(&dropper)).await;
    });
    shutdown.run_until_cancelled(keep_posts(&app)).await;
}

/// Who set a wrong password should not have to wait for the first event to read so.
async fn greet(broker: Arc<RabbitSink>, shutdown: CancellationToken) {
    if let Some(Err(trouble)) = shutdown.run_until_cancelled(broker.greet()).await {
        tracing::warn!(problem = %trouble.problem, "there is no connection to the broker yet; events wait for it");
    }
}

async fn keep_posts(app: &Arc<App>) {
    let mut posts = HashMap::new();
    let (ticks, _) = watch::channel(Tick::default());
    let mut timer = tokio::time::interval(TICK);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut stale = true;
    loop {
        if stale || posts.values().any(|post: &Post| post.webhook.is_closed()) {
            stale = fill_posts(app, &mut posts, &ticks).await.is_err();
        }
        tokio::select! {
            // Who was told that a secret is new may rely on it: changes go before events.
            biased;
            () = app.dispatch.changed.notified() => stale = true,
            _ = timer.tick() => tick(app, &posts, &ticks).await,
        }
    }
}

/// A courier for every webhook, and none for others. Those that work are told how their webhook is now.
async fn fill_posts(
    app: &Arc<App>,
    posts: &mut HashMap<WebhookId, Post>,
    ticks: &watch::Sender<Tick>,
) -> LedgerResult<()> {
    let webhooks = app.ledger.webhooks().await.inspect_err(|error| {
        tracing::warn!(%error, "the webhooks could not be read; trying again");
    })?;
    posts.retain(|id, post| {
        let stays = webhooks.iter().any(|webhook| webhook.id == *id) && !post.webhook.is_closed();
        if !stays {
            post.stop.cancel();
        }
        stays
    });
    for webhook in webhooks.into_iter().map(Arc::new) {
        match posts.get(&webhook.id) {
            Some(post) => drop(post.webhook.send_replace(webhook)),
            None => drop(posts.insert(webhook.id, start(app, webhook, ticks.subscribe()))),
        }
    }
    Ok(())
}

fn start(app: &Arc<App>, webhook: Arc<Webhook>, ticks: watch::Receiver<Tick>) -> Post {
    let stop = app.shutdown.child_token();
    let (send, receive) = watch::channel(webhook);
    let courier = Courier::new(Arc::clone(app), receive, ticks, stop.clone());
    app.tasks.spawn(courier.run());
    Post { webhook: send, stop }
}

async fn tick(app: &Arc<App>, posts: &HashMap<WebhookId, Post>, ticks: &watch::Sender<Tick>) {
    let Tick { newest, count } = *ticks.borrow();
    let count = count.wrapping_add(1);
    // Without webhooks nobody needs to look.
    let looked = if posts.is_empty() { Ok(newest) } else { app.ledger.newest_event().await };
    match looked {
        Ok(newest) => drop(ticks.send_replace(Tick { newest, count })),
        Err(error) => tracing::warn!(%error, "new events could not be looked for; trying again"),
    }
    if count % TICKS_PER_STANDING == 1
        && let Err(error) = show_standings(app, posts).await
    {
        tracing::warn!(%error, "the webhooks could not be looked after; trying again");
    }
}

async fn show_standings(app: &App, posts: &HashMap<WebhookId, Post>) -> LedgerResult<()> {
    let (mut waiting, mut parked, mut disabled, mut lag_ms, mut broker_lag_ms) = (0_u64, 0_u64, 0_u64, 0, 0);
    for post in posts.values() {
        let webhook = Arc::clone(&post.webhook.borrow());
        let standing = app.ledger.webhook_standing(webhook.no).await?;
        waiting = waiting.saturating_add(standing.waiting);
        parked = parked.saturating_add(standing.parked);
        if webhook.disabled {
            disabled = disabled.saturating_add(1);
            continue;
        }
        let lag = standing.oldest.map_or(0, |oldest| oldest.ms_until(app.clock.now()));
        match webhook.kind {
            ReceiverKind::Webhook => lag_ms = lag.max(lag_ms),
            ReceiverKind::Broker => broker_lag_ms = lag,
        }
    }
    let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    app.metrics.deliveries_waiting.set(gauge(waiting));
    app.metrics.deliveries_parked.set(gauge(parked));
    app.metrics.deliveries_lag_seconds.set(gauge(lag_ms / 1_000));
    app.metrics.webhooks_disabled.set(gauge(disabled));
    app.metrics.broker_lag_seconds.set(gauge(broker_lag_ms / 1_000));
    let connected = app.dispatch.broker.as_ref().is_some_and(|broker| broker.is_connected());
    app.metrics.broker_connected.set(i64::from(connected));
    Ok(())
}

/// Drops old events now and then. Not at once after a start: what became old while nobody ran was not tried.
async fn keep_dropping(app: &App) {
    let (mut since, mut wait_ms) = (app.clock.now(), GRACE_MS);
    let mut timer = tokio::time::interval(DROPPING_LOOK);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        if since.ms_until(app.clock.now()) < wait_ms {
            continue;
        }
        (since, wait_ms) = (app.clock.now(), DROPPING_PAUSE_MS);
        if let Err(error) = drop_old_events(app).await {
            tracing::warn!(%error, "old events could not be dropped; trying again");
        }
    }
}

/// `webhooks.keep_hours` is never shorter than `webhooks.retry_hours`: whatever is dropped was delivered, given up, or
/// could not be delivered for all that time. The last is a loss, and told as one.
async fn drop_old_events(app: &App) -> LedgerResult<()> {
    let kept_ms = i64::from(app.settings.webhooks.keep_hours) * 3_600_000;
    let mut is_loss = false;
    for _ in 0..DROPS_IN_A_ROW {
        let now = app.clock.now();
        let dropped = app.ledger.drop_old_events(now.plus_ms(-kept_ms), now, wants).await?;
        for (webhook_id, events) in dropped.lost {
            is_loss = true;
            app.metrics.deliveries.add(Delivery::Dropped, events);
            tracing::error!(%webhook_id, events, "events became too old before their receiver had them");
        }
        if dropped.events == 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
    if is_loss {
        // What stood behind a dropped event is due now.
        app.dispatch.changed();
    }
    Ok(())
}

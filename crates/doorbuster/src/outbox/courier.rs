//! One receiver's worker: takes what it lacks, sends it, writes down what became of it. Owns one receiver's pace; knows
//! no other receiver, so that none can slow another down, and not what a receiver is: that is the sink's part.
//!
//! At least once: an event counts as delivered after the receiver said so and the ledger has it. Dying in between
//! sends it again, with the same id.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rules::wire::ReceiverKind;
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::endpoint::wants;
use super::patience::{Breaker, GRACE_MS, Room, wait_ms};
use super::sink::{Sink, Trouble, WebhookSink};
use super::window::{Next, WINDOW_MAX, Window, attempts_of, since_of};
use crate::app::App;
use crate::crash;
use crate::ledger::sqlite::{Outgoing, Webhook};
use crate::telemetry::metrics::Delivery;

/// Most events read at once.
const READ_MAX: usize = 256;

/// Deliveries that wait and are looked at in one go for whether they are still wanted.
const SIFTED_MAX: u32 = 1_000;

/// Reads in one go while nothing is found that the receiver wants.
const READS_IN_A_ROW: u32 = 16;

/// The ledger is told after so many deliveries at the latest.
const NEWS_MAX: usize = 512;

/// Every so many ticks the cursor is written, even if it only passed what the receiver does not want.
const TICKS_PER_CURSOR: u32 = 10;

/// How the dispatcher reaches its couriers: the newest event's number and a count that grows with every tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    pub newest: u64,
    pub count: u32,
}

#[derive(Debug)]
pub struct Courier {
    pub app: Arc<App>,
    /// Changes when the operator changes it; also touched when there may be something to do.
    pub webhook: watch::Receiver<Arc<Webhook>>,
    pub ticks: watch::Receiver<Tick>,
    pub stop: CancellationToken,
    work: Work,
}

#[derive(Debug)]
struct Work {
    window: Window,
    breaker: Breaker,
    /// How often it was replaced by a new one.
    breakers: u32,
    sink: Arc<Sink>,
    /// As the webhook was when the sink was made.
    url: String,
    was_disabled: bool,
    under_way: JoinSet<Result<(), Trouble>>,
    /// What is under way, by which sink and under which breaker: the webhook may change meanwhile.
    sent: HashMap<Id, (Outgoing, Arc<Sink>, u32)>,
    /// When the next delivery that waits in the ledger is due.
    next_due: Option<rules::time::UnixMs>,
    /// Whether to look into the ledger in any case.
    look: bool,
    /// As the webhook had them when what waits was last sifted by them.
    types: Vec<String>,
    /// Deliveries up to this event are sifted; `None` once all are.
    sifted_to: Option<u64>,
    began_at: rules::time::UnixMs,
    is_open: bool,
    /// The receiver said that it is gone: at this address, in these words.
    gone: Option<(String, String)>,
}

/// The webhook was deleted.
struct Gone;

impl Courier {
    #[must_use]
    pub fn new(
        app: Arc<App>,
        webhook: watch::Receiver<Arc<Webhook>>,
        ticks: watch::Receiver<Tick>,
        stop: CancellationToken,
    ) -> Self {
        let current = Arc::clone(&webhook.borrow());
        let sink = Arc::new(sink(&app, &current));
        let work = Work {
            window: Window::new(current.no, current.cursor),
            breaker: sink.breaker(),
            breakers: 0,
            sink,
            url: current.url.clone(),
            was_disabled: current.disabled,
            under_way: JoinSet::new(),
            sent: HashMap::new(),
            next_due: None,
            look: true,
            types: current.types.clone(),
            // The types of a broker may have changed while nobody ran.
            sifted_to: Some(0),
            began_at: app.clock.now(),
            is_open: false,
            gone: None,
        };
        Self { app, webhook, ticks, stop, work }
    }

    /// Works until it is stopped or its webhook is deleted. When it is stopped, what is under way may end.
    pub async fn run(mut self) {
        let _gone = self.work_on().await;
        self.end().await;
        self.show_open(false);
    }

    async fn work_on(&mut self) -> Result<(), Gone> {
        loop {
            if self.work.window.news() >= NEWS_MAX || self.work.under_way.is_empty() {
                self.write().await?;
            }
            self.sift().await;
            self.take().await?;
            self.begin();
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(()),
                Some(done) = self.work.under_way.join_next_with_id() => self.note(done),
                changed = self.webhook.changed() => {
                    changed.map_err(|_| Gone)?;
                    self.change_over().await?;
                }
                changed = self.ticks.changed() => {
                    changed.map_err(|_| Gone)?;
                    self.tick().await?;
                }
            }
            while let Some(done) = self.work.under_way.try_join_next_with_id() {
                self.note(done);
            }
            self.disable_if_gone().await;
        }
    }

    /// The operator changed this webhook, or another one. Who mended an address wants to see it work, not to wait for
    /// the rest of its rest.
    async fn change_over(&mut self) -> Result<(), Gone> {
        let webhook = Arc::clone(&self.webhook.borrow_and_update());
        if webhook.url != self.work.url || (self.work.was_disabled && !webhook.disabled) {
            self.work.breaker = self.work.sink.breaker();
            self.work.breakers = self.work.breakers.wrapping_add(1);
            self.show_open(false);
        }
        (self.work.url, self.work.was_disabled) = (webhook.url.clone(), webhook.disabled);
        if webhook.types != self.work.types {
            (self.work.types, self.work.sifted_to) = (webhook.types.clone(), Some(0));
        }
        self.work.sink = Arc::new(sink(&self.app, &webhook));
        // In any case: that is how a cursor is noticed that was set back for a replay.
        self.write_down().await?;
        self.work.look = true;
        Ok(())
    }

    /// By Standard Webhooks: who answers 410 Gone is not asked again until an operator says so.
    async fn disable_if_gone(&mut self) {
        let Some((url, problem)) = self.work.gone.take() else { return };
        let webhook = Arc::clone(&self.webhook.borrow());
        match self.app.ledger.disable_webhook(webhook.no, url.clone(), problem.clone()).await {
            Ok(true) => {
                tracing::error!(
                    webhook_id = %webhook.id, %problem,
                    "a webhook is disabled: its receiver is gone; events wait until it is enabled again"
                );
                self.app.dispatch.changed();
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, webhook_id = %webhook.id, "a webhook could not be disabled; trying again");
                self.work.gone = Some((url, problem));
            }
        }
    }

    async fn tick(&mut self) -> Result<(), Gone> {
        let count = self.ticks.borrow_and_update().count;
        let window = &self.work.window;
        if window.has_news() || (count.is_multiple_of(TICKS_PER_CURSOR) && window.has_moved()) {
            self.write_down().await?;
        }
        Ok(())
    }

    /// Tells the ledger what became of deliveries, if anything did.
    async fn write(&mut self) -> Result<(), Gone> {
        if self.work.window.has_news() { self.write_down().await.map(|_| ()) } else { Ok(()) }
    }

    /// `false`: the ledger could not be written; the news stay in hand.
    async fn write_down(&mut self) -> Result<bool, Gone> {
        let settlement = self.work.window.settlement();
        match self.app.ledger.settle_deliveries(settlement, self.app.clock.now()).await {
            Ok(Some(cursor)) => {
                self.work.window.written(cursor);
                // What failed is due some day, and what stood behind a delivery may be due now.
                self.work.look = true;
                Ok(true)
            }
            Ok(None) => Err(Gone),
            Err(error) => {
                tracing::warn!(%error, "deliveries could not be written down; trying again");
                Ok(false)
            }
        }
    }

    /// Lets go of deliveries that wait and are no longer wanted, some at a time: what stands behind them need not wait
    /// until they are due.
    async fn sift(&mut self) {
        let Some(after) = self.work.sifted_to else { return };
        let (webhook_no, types) = (self.webhook.borrow().no, self.work.types.clone());
        let wanted = move |kind: &str| wants(&types, kind);
        match self.app.ledger.unwanted_deliveries(webhook_no, after, SIFTED_MAX, wanted).await {
            Ok(unwanted) => {
                self.work.sifted_to = unwanted.read_to;
                self.work.window.forget(unwanted.deliveries);
            }
            Err(error) => {
                tracing::warn!(%error, webhook_no, "what waits could not be looked through; trying again");
            }
        }
    }

    /// Takes what the receiver lacks, if there is room for it and reason to look. The ledger must know all news first,
    /// or it would give again what was just delivered.
    async fn take(&mut self) -> Result<(), Gone> {
        for _ in 0..READS_IN_A_ROW {
            let now = self.app.clock.now();
            let newest = self.ticks.borrow().newest;
            let fresh = newest > self.work.window.read_to();
            let due = self.work.next_due.is_some_and(|due| due <= now);
            let disabled = self.webhook.borrow().disabled;
            if disabled || self.work.window.room() <= WINDOW_MAX / 2 || !(fresh || due || self.work.look) {
                return Ok(());
            }
            if self.work.window.has_news() && !self.write_down().await? {
                return Ok(());
            }
            if !self.read(now).await || self.work.window.room() < WINDOW_MAX {
                return Ok(());
            }
        }
        Ok(())
    }

    /// `false`: the ledger could not be read.
    async fn read(&mut self, now: rules::time::UnixMs) -> bool {
        let webhook = Arc::clone(&self.webhook.borrow());
        let limit = u32::try_from(READ_MAX.min(self.work.window.room())).unwrap_or(0);
        let types = webhook.types.clone();
        let wanted = move |kind: &str| wants(&types, kind);
        let after = self.work.window.read_to();
        match self.app.ledger.take_deliveries(webhook.no, after, limit, now, wanted).await {
            Ok(taken) => {
                self.work.next_due = taken.next_due;
                self.work.look = false;
                self.work.window.add(taken);
                true
            }
            Err(error) => {
                tracing::warn!(%error, webhook_id = %webhook.id, "events could not be read; trying again");
                self.work.look = true;
                false
            }
        }
    }

    /// Sends as much as the receiver may have at once.
    fn begin(&mut self) {
        if self.webhook.borrow().disabled {
            return;
        }
        let most = self.work.sink.in_flight(&self.app.settings);
        loop {
            let work = &mut self.work;
            let delivery = match work.breaker.room(self.app.clock.now(), work.under_way.len(), most) {
                Room::None => return,
                Room::Places(_) => work.window.first_ready(),
                Room::Probe => {
                    let probe = work.window.probe();
                    if probe.is_some() {
                        work.breaker.probe();
                    }
                    probe
                }
            };
            let Some(delivery) = delivery else { return };
            let (sink, event) = (Arc::clone(&work.sink), delivery.event.clone());
            let span = tracing::debug_span!("delivery", event_id = %event.id);
            let task = work.under_way.spawn(async move { sink.send(&event).await }.instrument(span));
            work.sent.insert(task.id(), (delivery, Arc::clone(&work.sink), work.breakers));
        }
    }

    fn note(&mut self, done: Result<(Id, Result<(), Trouble>), JoinError>) {
        let (id, outcome) =
            done.unwrap_or_else(|error| (error.id(), Err(Trouble::new("the delivery was interrupted"))));
        let Some((delivery, sink, breaker)) = self.work.sent.remove(&id) else { return };
        // What was sent before the operator mended it says nothing about the receiver as it is now.
        let tells = breaker == self.work.breakers;
        match outcome {
            Ok(()) => {
                crash::point("courier.sent");
                self.count(Delivery::Delivered);
                if tells {
                    self.work.breaker.delivered();
                }
                self.work.window.delivered(delivery.track);
            }
            Err(trouble) => {
                if trouble.is_gone && Arc::ptr_eq(&sink, &self.work.sink) {
                    self.work.gone = Some((self.work.url.clone(), trouble.problem.clone()));
                }
                if tells {
                    self.work.breaker.failed(self.app.clock.now(), rand::random());
                }
                self.note_failure(&delivery, trouble);
            }
        }
        self.show_open(self.work.breaker.is_open());
    }

    fn note_failure(&mut self, delivery: &Outgoing, trouble: Trouble) {
        let now = self.app.clock.now();
        self.count(Delivery::Failed);
        let waited = Duration::from_millis(since_of(delivery, now).ms_until(now));
        let patience = Duration::from_secs(u64::from(self.app.settings.webhooks.retry_hours) * 3_600);
        let attempts = attempts_of(delivery).saturating_add(1);
        let (event_id, problem) = (delivery.event.id, trouble.problem);
        let webhook_id = self.webhook.borrow().id;
        let next = if waited >= patience && self.work.began_at.ms_until(now) >= GRACE_MS {
            self.count(Delivery::Parked);
            tracing::error!(%webhook_id, %event_id, attempts, %problem, "an event is parked: its webhook did not take it");
            Next::Park
        } else {
            let asked = trouble.retry_after.map_or(0, |after| u64::try_from(after.as_millis()).unwrap_or(0));
            let wait = wait_ms(attempts, rand::random()).max(asked);
            tracing::warn!(%webhook_id, %event_id, attempts, %problem, "a delivery failed; it is tried again");
            Next::Again { due_at: now.plus_ms(i64::try_from(wait).unwrap_or(i64::MAX)) }
        };
        self.work.window.failed(delivery.track, now, next, problem);
    }

    fn count(&self, outcome: Delivery) {
        let metrics = &self.app.metrics;
        match self.webhook.borrow().kind {
            ReceiverKind::Webhook => metrics.deliveries.inc(outcome),
            ReceiverKind::Broker => metrics.broker_deliveries.inc(outcome),
        }
    }

    /// Says once that a receiver is left alone, and once that it is back.
    fn show_open(&mut self, open: bool) {
        if open == self.work.is_open {
            return;
        }
        self.work.is_open = open;
        let webhook_id = self.webhook.borrow().id;
        if open {
            self.app.metrics.webhooks_resting.inc();
            tracing::warn!(%webhook_id, "a webhook keeps failing: it is left alone for a while");
        } else {
            self.app.metrics.webhooks_resting.dec();
            tracing::info!(%webhook_id, "a webhook is no longer left alone");
        }
    }

    /// What is under way may end, for half of the time that the process has; the rest is sent again after a restart.
    async fn end(&mut self) {
        let patience = Duration::from_secs(self.app.settings.drain_s.into()) / 2;
        let deadline = tokio::time::Instant::from_std(self.app.clock.instant()) + patience;
        while let Ok(Some(done)) =
            tokio::time::timeout_at(deadline, self.work.under_way.join_next_with_id()).await
        {
            self.note(done);
        }
        if self.work.window.has_news() || self.work.window.has_moved() {
            let _gone = self.write_down().await;
        }
    }
}

fn sink(app: &App, webhook: &Webhook) -> Sink {
    if webhook.kind == ReceiverKind::Broker {
        return app.dispatch.broker().map_or(Sink::NoBroker, |broker| Sink::Rabbit(Arc::clone(broker)));
    }
    let private_addresses = app.settings.webhooks.private_addresses;
    Sink::Webhook(WebhookSink::new(app.dispatch.client(), app.clock.clone(), webhook, private_addresses))
}

//! The sweeper: closes unpaid orders at their deadline, so that their units are for the next buyer. A timer wakes it for
//! the next order that is due; a look once per second stands behind the timer. Owns when; what closing means is decided
//! by `rules::deadline` and written down by the ledger.
//!
//! Whatever it does is one commit and then the gate's part of it, and it ends only between the two of one order and the
//! next. A process that dies in between rebuilds its gate from the ledger.

mod aside;
mod asking;
mod captures;
mod outages;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rules::id::OrderId;
use rules::time::UnixMs;
use tracing::Instrument as _;

use self::aside::Aside;
use crate::app::App;
use crate::crash;
use crate::ledger::money::Released;
use crate::ledger::{LedgerError, LedgerResult};
use crate::telemetry::metrics::f64_of;

pub use captures::Captures;
pub use outages::Outages;

/// The longest nap: how late an order may be that was recorded with a nearer deadline than the timer knew.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// First and longest wait after the ledger could not be written.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Fewest orders in one closing transaction, however slow the disk is; fewer only to go round one that fails.
const BATCH_MIN: u32 = 64;

/// Works until the process is asked to end. The orders that are due by then wait for the next start.
pub async fn run(app: Arc<App>) {
    let shutdown = app.shutdown.clone();
    if shutdown.run_until_cancelled(outages::begin(&app)).await.is_none() {
        return;
    }
    tokio::join!(close_at_deadlines(&app), asking::ask_at_deadlines(&app), captures::settle_waiting(&app));
    outages::end(&app).await;
}

/// Closes orders that nobody is paying, to the second.
async fn close_at_deadlines(app: &App) {
    let mut closer = Closer { pace: Pace::new(app), aside: Aside::default() };
    let mut alive = outages::Heartbeat::default();
    let mut retry = RETRY_FIRST;
    while !app.shutdown.is_cancelled() {
        let now = app.clock.now();
        let nap = match closer.close_batch(app, now).instrument(tracing::debug_span!("sweep")).await {
            // There may be more of them: whoever waits for the ledger's writer has had a turn.
            Ok(true) => Duration::ZERO,
            Ok(false) => {
                retry = RETRY_FIRST;
                let nap = nap_after(app, now).await;
                alive.beat(app, nap.is_some()).await;
                nap.unwrap_or(look_every(app))
            }
            Err(error) if closer.go_round(app, now, &error).await => Duration::ZERO,
            Err(error) => trouble(app, &error, &mut retry),
        };
        rest(app, nap).await;
    }
}

struct Closer {
    pace: Pace,
    /// The numbers of orders that cannot be closed because of what is written about them or their offer.
    aside: Aside<u64>,
}

impl Closer {
    /// Closes a batch and lets the gate have its units. Whether there may be more.
    async fn close_batch(&mut self, app: &App, now: UnixMs) -> LedgerResult<bool> {
        let began = app.clock.instant();
        self.aside.let_go(now);
        let (limit, excuses) = (self.pace.orders, app.excuses(now));
        let batch = app.ledger.close_due(now, limit, excuses, self.aside.all()).await?;
        if batch.closed.is_empty() {
            return Ok(false);
        }
        crash::point("sweeper.closed");
        app.note_strikes(&batch.closed);
        for released in &batch.closed {
            app.give_back(released);
        }
        note_lag(app, batch.closed.first(), now);
        app.metrics.sweeper_batch_orders.observe(f64_of(batch.closed.len()));
        self.pace.adapt(batch.is_full, began);
        Ok(batch.is_full)
    }

    /// One order that cannot be closed because of what is written must not hold up the others: the batches get smaller
    /// until it is alone, and then it is set aside. Whether that is so and it goes on at once.
    async fn go_round(&mut self, app: &App, now: UnixMs, error: &LedgerError) -> bool {
        if !error.is_of_the_content() {
            return false;
        }
        if self.pace.orders > 1 {
            self.pace.orders /= 2;
            return true;
        }
        // Should another one have become the first meanwhile, it comes a little later.
        let Ok(Some((no, order))) = app.ledger.first_due(now, self.aside.all()).await else { return false };
        note_set_aside(app, order, error);
        self.aside.put(no, now)
    }
}

/// An alarm: somebody must look at it. The auditor says what is wrong, and may mend it.
fn note_set_aside(app: &App, order: Option<OrderId>, error: &LedgerError) {
    let order = order.map(|order| order.to_string());
    tracing::error!(order_id = order, %error, "an unpaid order cannot be closed because of what is written about it; it is set aside and tried again in a minute: run `doorbuster audit`");
    app.metrics.set_aside.inc();
}

fn note_lag(app: &App, oldest: Option<&Released>, now: UnixMs) {
    if let Some(pay_by) = oldest.and_then(|released| released.order.pay_by) {
        app.metrics.sweeper_lag_seconds.observe(Duration::from_millis(pay_by.ms_until(now)).as_secs_f64());
    }
}

/// How many orders one transaction closes: as many as keep the ledger's writer about as long as a batch of the clerk.
#[derive(Debug)]
struct Pace {
    orders: u32,
    most: u32,
    time: Duration,
}

impl Pace {
    fn new(app: &App) -> Self {
        let most = u32::try_from(app.settings.clerk.batch).unwrap_or(u32::MAX).max(1);
        let time = Duration::from_millis(app.settings.clerk.batch_ms.into());
        Self { orders: most.min(BATCH_MIN * 4), most, time }
    }

    fn adapt(&mut self, was_full: bool, began: Instant) {
        let took = began.elapsed();
        let orders = if self.orders < BATCH_MIN {
            // It went round something; that is over.
            self.orders.saturating_mul(2)
        } else if took > self.time * 2 {
            (self.orders / 2).max(BATCH_MIN)
        } else if was_full && took < self.time {
            self.orders.saturating_mul(2)
        } else {
            self.orders
        };
        self.orders = orders.min(self.most);
    }
}

/// How long there is nothing to do, if anything is ever: until the first deadline after `now`, at most until the next look.
async fn nap_after(app: &App, now: UnixMs) -> Option<Duration> {
    match app.ledger.next_deadline(now).await {
        Ok(next) => {
            let nap = |next| Duration::from_millis(app.clock.now().ms_until(next));
            next.map(|next| nap(next).min(look_every(app)))
        }
        Err(error) => {
            tracing::warn!(%error, "the next deadline could not be looked for; trying again");
            Some(LOOK_EVERY)
        }
    }
}

fn look_every(app: &App) -> Duration {
    app.settings.sweeper_look.unwrap_or(LOOK_EVERY)
}

/// Says what is wrong and answers how long to wait. Who cannot close orders cannot take payments either.
fn trouble(app: &App, error: &LedgerError, retry: &mut Duration) -> Duration {
    tracing::warn!(%error, "unpaid orders could not be closed; trying again");
    if !error.is_of_the_content() {
        app.outages.began(app.clock.now());
    }
    let wait = *retry;
    *retry = (wait * 2).min(RETRY_MAX);
    wait
}

async fn rest(app: &App, nap: Duration) {
    // Also without a nap the others have a turn.
    tokio::task::yield_now().await;
    let _ = tokio::time::timeout(nap, app.shutdown.cancelled()).await;
}

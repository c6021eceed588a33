//! Money that is here and not decided: it came before its order was recorded, or after the deadline when nobody could
//! say whether there is a unit. It is looked at again when the clerk has recorded more, and once per second. Decides
//! nothing itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rules::id::PaymentId;
use rules::payment::Revival;
use rules::time::UnixMs;
use tokio::sync::Notify;

use super::aside::Aside;
use crate::app::App;
use crate::crash;
use crate::ledger::LedgerResult;
use crate::ledger::money::{Absent, Decided, Payment, Settled};

/// How often is looked for undecided money, besides when there is known to be some.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// After a batch of the clerk, so long at least until the next look: under load there are many.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Payments read at a time.
const PAGE: u32 = 200;

/// What requests, the clerk and this worker share.
#[derive(Debug, Default)]
pub struct Captures {
    wake: Notify,
    /// Told by the clerk after every batch.
    pub(crate) recorded: Arc<Notify>,
    looks: AtomicU64,
}

impl Captures {
    /// To be called when money stays undecided that may be decided soon.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// How often all of it was looked at since the start.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Acquire)
    }
}

pub(super) async fn settle_waiting(app: &Arc<App>) {
    let mut aside = Aside::default();
    while !app.shutdown.is_cancelled() {
        // Before looking: what is recorded meanwhile counts for the next look.
        let recorded = app.captures.recorded.notified();
        let some_wait = settle_all(app, &mut aside).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "undecided money could not be looked after; trying again");
            false
        });
        app.captures.looks.fetch_add(1, Ordering::AcqRel);
        tokio::select! {
            () = recorded, if some_wait => tokio::time::sleep(LOOK_AGAIN_AFTER).await,
            () = app.captures.wake.notified() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = app.shutdown.cancelled() => {}
        }
    }
}

/// Looks at all undecided money once, in the order in which it came. Whether some of it waits for the clerk. Money that
/// cannot be decided because of what is written about it is set aside; without the ledger all of it waits.
async fn settle_all(app: &Arc<App>, aside: &mut Aside<PaymentId>) -> LedgerResult<bool> {
    let (mut after, mut some_wait) = (0, false);
    aside.let_go(app.clock.now());
    loop {
        let drained_at = drained_at(app);
        let page = app.ledger.waiting_captures(after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(some_wait) };
        after = last.no;
        for payment in page.iter().filter(|payment| !aside.has(payment.id)).collect::<Vec<_>>() {
            match settle_one(app, payment, drained_at).await {
                Ok(waits) => some_wait |= waits,
                Err(error) if error.is_of_the_content() => {
                    tracing::error!(payment_id = %payment.id, %error, "captured money cannot be decided because of what is written about it; it is set aside and tried again in a minute: run `doorbuster audit`");
                    app.metrics.set_aside.inc();
                    aside.put(payment.id, app.clock.now());
                }
                Err(error) => return Err(error),
            }
        }
        if app.shutdown.is_cancelled() {
            return Ok(false);
        }
    }
}

/// When the queue was empty, if it is: whatever had been granted before that is recorded.
fn drained_at(app: &App) -> Option<UnixMs> {
    let now = app.clock.now();
    (app.gate.memory.room().taken() == 0).then_some(now)
}

/// Whether it waits on.
async fn settle_one(app: &Arc<App>, payment: &Payment, drained_at: Option<UnixMs>) -> LedgerResult<bool> {
    let captured_at = payment.captured_at.unwrap_or(payment.started_at);
    let absent = match drained_at {
        Some(drained_at) if captured_at < drained_at => Absent::WillNotCome,
        Some(_) | None => Absent::MayCome,
    };
    let Decided { this, before } = app.ledger.settle_capture(payment.id, absent, app.clock.now()).await?;
    crash::point("captures.settled");
    for settled in before {
        app.follow_settled(settled).await;
    }
    match this {
        Settled::Wait => Ok(true),
        Settled::ReviveNeeded { payment, order } => Ok(app.revive(&order, payment).await == Revival::Wait),
        decided @ (Settled::Applied { .. }
        | Settled::RefundDue { .. }
        | Settled::Duplicate
        | Settled::NotFound) => {
            app.follow_settled(decided).await;
            Ok(false)
        }
    }
}

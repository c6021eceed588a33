//! The worker that returns money: takes what is due from the ledger, asks each provider, and writes down what came of
//! it. Owns patience and its end; what a refund does to an order is decided in the ledger.
//!
//! Before a provider is asked, that is written down: whoever dies in between asks again, with the same key.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use parking_lot::Mutex;
use rules::id::PaymentId;
use tokio::sync::Notify;

use super::port::RefundAnswer;
use crate::app::App;
use crate::crash;
use crate::ledger::LedgerResult;
use crate::ledger::money::Payment;
use crate::telemetry::metrics::MoneyOutcome;

/// How often is looked for refunds that are due, besides when one is known to be.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Refunds taken at a time, and asked for at once.
const BATCH: u32 = 64;
const AT_ONCE: usize = 8;

/// The first wait for a further attempt, in milliseconds, and the longest; each is twice the one before.
pub const WAIT_FIRST_MS: i64 = 5_000;
pub const WAIT_MAX_MS: i64 = 3_600_000;

/// Attempts in a row without a usable answer after which somebody must look: about three quarters of an hour.
pub const ATTEMPTS_MAX: u32 = 10;

/// Refunds whose failures in a row are remembered; beyond that a failure counts as the first.
const REMEMBERED_MAX: usize = 10_000;

/// What requests and the worker share.
#[derive(Debug, Default)]
pub struct Refunds {
    due: Notify,
    /// Failures in a row. A restart forgets them, which only means more patience.
    failures: Mutex<HashMap<PaymentId, u32>>,
}

impl Refunds {
    /// To be called after money became due to go back.
    pub fn wake(&self) {
        self.due.notify_one();
    }

    /// Counts a failure and answers how many there were in a row.
    fn failed(&self, payment: PaymentId) -> u32 {
        let mut failures = self.failures.lock();
        if failures.len() >= REMEMBERED_MAX && !failures.contains_key(&payment) {
            return 1;
        }
        let count = failures.entry(payment).or_default();
        *count = count.saturating_add(1);
        *count
    }

    fn forget(&self, payment: PaymentId) {
        self.failures.lock().remove(&payment);
    }
}

/// Works until the process ends.
pub async fn run(app: Arc<App>) {
    let shutdown = app.shutdown.clone();
    shutdown.run_until_cancelled(work(&app)).await;
}

async fn work(app: &Arc<App>) {
    loop {
        match return_what_is_due(app).await {
            // A full batch: there may be more.
            Ok(true) => continue,
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "refunds could not be looked after; trying again"),
        }
        // Either way it is time to look again.
        let _ = tokio::time::timeout(LOOK_EVERY, app.refunds.due.notified()).await;
    }
}

/// Whether there may be more.
async fn return_what_is_due(app: &Arc<App>) -> LedgerResult<bool> {
    let due = app.ledger.refunds_due(app.clock.now(), BATCH).await?;
    let is_full = u32::try_from(due.len()).unwrap_or(u32::MAX) == BATCH;
    futures_util::stream::iter(due)
        .for_each_concurrent(AT_ONCE, async |payment| {
            let id = payment.id;
            if let Err(error) = return_one(app, payment).await {
                tracing::warn!(payment_id = %id, %error, "a refund could not be written down; trying again");
            }
        })
        .await;
    Ok(is_full)
}

async fn return_one(app: &Arc<App>, due: Payment) -> LedgerResult<()> {
    let now = app.clock.now();
    let next_try_at = now.plus_ms(wait_ms(due.attempts));
    let Some(payment) = app.ledger.refund_begun(due.id, next_try_at, now).await? else { return Ok(()) };
    crash::point("till.refund_begun");
    let answer = app.port.refund(&payment).await;
    crash::point("till.refund_asked");
    let now = app.clock.now();
    let end = match answer {
        RefundAnswer::Done => app.ledger.refund_done(payment.id, now).await?,
        RefundAnswer::Failed(problem) => app.ledger.refund_failed(payment.id, problem, now).await?,
        RefundAnswer::Pending => {
            app.refunds.forget(payment.id);
            return Ok(());
        }
        RefundAnswer::NotNow(problem) => {
            app.metrics.money.inc(MoneyOutcome::RefundRetried);
            let failures = app.refunds.failed(payment.id);
            tracing::warn!(payment_id = %payment.id, failures, problem, "a provider did not return money yet");
            if failures < ATTEMPTS_MAX {
                return Ok(());
            }
            app.ledger.refund_failed(payment.id, problem, now).await?
        }
    };
    app.refunds.forget(payment.id);
    app.follow_refund(end).await;
    Ok(())
}

/// How long after the attempt beyond so many others the next one is.
fn wait_ms(attempts_before: u32) -> i64 {
    let factor = 1_i64.checked_shl(attempts_before).filter(|factor| *factor > 0).unwrap_or(i64::MAX);
    WAIT_FIRST_MS.saturating_mul(factor).min(WAIT_MAX_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_an_hour_and_never_overflow() {
        assert_eq!([0, 1, 2, 7].map(wait_ms), [5_000, 10_000, 20_000, 640_000]);
        assert_eq!([10, 30, 62, 63, 64, u32::MAX].map(wait_ms), [WAIT_MAX_MS; 6]);
    }

    #[test]
    fn failures_in_a_row_are_counted_for_a_bounded_number_of_refunds() {
        let refunds = Refunds::default();
        assert_eq!([1, 1, 1].map(|id| refunds.failed(PaymentId(id))), [1, 2, 3]);
        refunds.forget(PaymentId(1));
        assert_eq!(refunds.failed(PaymentId(1)), 1);
        for id in 0..u128::try_from(REMEMBERED_MAX).unwrap() + 100 {
            refunds.failed(PaymentId(id));
        }
        assert_eq!(refunds.failures.lock().len(), REMEMBERED_MAX);
    }
}

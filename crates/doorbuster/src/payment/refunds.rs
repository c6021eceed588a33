//! The worker that returns money: takes what is due from the ledger, asks each provider, and writes down what came of
//! it. Owns patience and its end; what a refund does to an order is decided in the ledger.
//!
//! Before a provider is asked, that is written down: whoever dies in between asks again, under the same number.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use tokio::sync::Notify;

use super::port::{Name, RefundAnswer};
use crate::app::App;
use crate::crash;
use crate::ledger::LedgerResult;
use crate::ledger::money::{Payment, RefundEnd};
use crate::telemetry::metrics::MoneyOutcome;

/// How often is looked for refunds that are due, besides when one is known to be.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Refunds of one provider taken at a time, and asked for at once.
pub const BATCH: u32 = 64;
const AT_ONCE: usize = 8;

/// The first wait for a further attempt, in milliseconds, and the longest; each is twice the one before.
pub const WAIT_FIRST_MS: i64 = 5_000;
pub const WAIT_MAX_MS: i64 = 3_600_000;

/// Attempts in a row without a usable answer after which somebody must look: about three quarters of an hour.
pub const ATTEMPTS_MAX: u32 = 10;

/// What requests and the worker share.
#[derive(Debug, Default)]
pub struct Refunds {
    /// One for each of [`Name::ALL`].
    due: [Notify; Name::ALL.len()],
}

impl Refunds {
    /// To be called after money became due to go back.
    pub fn wake(&self) {
        self.due.iter().for_each(Notify::notify_one);
    }
}

/// Works until the process ends. Each provider has a lane of its own, so that one that is silent holds up no other.
pub async fn run(app: Arc<App>) {
    let shutdown = app.shutdown.clone();
    let lanes = Name::ALL.into_iter().zip(&app.refunds.due);
    let lanes = join_all(lanes.map(|(name, due)| work(&app, name, due)));
    shutdown.run_until_cancelled(lanes).await;
}

async fn work(app: &Arc<App>, name: Name, due: &Notify) {
    loop {
        match return_what_is_due(app, name).await {
            Ok(true) => continue,
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "refunds could not be looked after; trying again"),
        }
        // Either way it is time to look again.
        let _ = tokio::time::timeout(LOOK_EVERY, due.notified()).await;
    }
}

/// Asks one provider for one batch of refunds that are due. Answers whether to go on at once: the batch was full, and all
/// of it is written down. What is not stays due, and would be taken again and again while the disk is full.
pub async fn return_what_is_due(app: &Arc<App>, name: Name) -> LedgerResult<bool> {
    let due = app.ledger.refunds_due(name.as_str(), app.clock.now(), BATCH).await?;
    let is_full = u32::try_from(due.len()).unwrap_or(u32::MAX) == BATCH;
    let problems: Vec<_> = futures_util::stream::iter(due)
        .map(|payment| async move { return_one(app, payment).await.err() })
        .buffer_unordered(AT_ONCE)
        .filter_map(std::future::ready)
        .collect()
        .await;
    if let Some(error) = problems.first() {
        tracing::warn!(count = problems.len(), %error, "refunds could not be written down; trying again");
    }
    Ok(is_full && problems.is_empty())
}

async fn return_one(app: &Arc<App>, due: Payment) -> LedgerResult<()> {
    let now = app.clock.now();
    let next_try_at = now.plus_ms(wait_ms(due.attempts));
    let Some(payment) = app.ledger.refund_begun(due.id, next_try_at, now).await? else { return Ok(()) };
    crash::point("till.refund_begun");
    let answer = if payment.is_back_elsewhere() {
        tracing::info!(payment_id = %payment.id, "the money went back without us before: its provider is not asked");
        RefundAnswer::Done
    } else {
        app.port.refund(&payment).await
    };
    crash::point("till.refund_asked");
    match write_down(app, &payment, answer).await? {
        Some(end) => app.follow_refund(end).await,
        None => tell_if_slow(app, &payment).await?,
    }
    Ok(())
}

/// How the refund ended, if it has.
async fn write_down(
    app: &Arc<App>,
    payment: &Payment,
    answer: RefundAnswer,
) -> LedgerResult<Option<RefundEnd>> {
    let (id, now) = (payment.id, app.clock.now());
    match answer {
        RefundAnswer::Done => app.ledger.refund_done(id, now).await.map(Some),
        RefundAnswer::Failed(failure) => app.ledger.refund_failed(id, failure, now).await.map(Some),
        RefundAnswer::Pending { refund_ref } => {
            app.ledger.refund_pending(id, payment.refund_number(), refund_ref).await?;
            Ok(None)
        }
        RefundAnswer::NotNow(failure) => {
            app.metrics.money.inc(MoneyOutcome::RefundRetried);
            let (before, problem) = (payment.failures, failure.problem.as_str());
            tracing::warn!(payment_id = %id, before, problem, "a provider did not return money yet");
            app.ledger.refund_put_off(id, failure, ATTEMPTS_MAX, now).await
        }
    }
}

/// A provider that is at it for days, and says so each time, is an alarm like one that fails.
async fn tell_if_slow(app: &Arc<App>, payment: &Payment) -> LedgerResult<()> {
    let now = app.clock.now();
    if payment.is_slow(now) && app.ledger.tell_slow_refund(payment.id, now).await? {
        let (provider, refund) = (payment.provider.as_str(), payment.refund_number());
        tracing::error!(payment_id = %payment.id, provider, refund, "money is on its way back for too long: somebody must look at it");
        app.metrics.money.inc(MoneyOutcome::RefundSlow);
    }
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
}

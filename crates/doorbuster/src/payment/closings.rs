//! The worker that closes payments at their providers once they are closed here: their orders were cancelled, have timed
//! out, or are paid elsewhere. Takes what is due from the ledger, asks each provider, and writes down what came of it. Owns
//! patience and its end; what money that is found there does is decided in the ledger, as for a callback.
//!
//! Whoever closes a payment writes down in the same transaction that its provider is to be asked. A process that dies in
//! between asks after its next start, and one that dies before the answer is written down asks again, which is harmless.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use rules::time::UnixMs;
use tokio::sync::Notify;

use super::port::{Heard, Name, Shut};
use super::providers::CallError;
use crate::app::App;
use crate::crash;
use crate::ledger::LedgerResult;
use crate::ledger::money::{ClosingEnd, ClosingNote, Payment, ToClose};
use crate::telemetry::metrics::MoneyOutcome;

/// How often is looked for payments that are due, besides when one is known to be.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The wait after the ledger could not be read or written: nobody is to be asked over and over while its disk is full.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Payments of one provider taken at a time, and asked about at once. One that is down takes 15 seconds for each.
const BATCH: u32 = 256;
const AT_ONCE: usize = 256;

/// The first wait for a further try, in milliseconds, and the longest; each is twice the one before.
const WAIT_FIRST_MS: i64 = 1_000;
const WAIT_MAX_MS: i64 = 3_600_000;

/// Tries after which somebody must look: about a day.
pub const TRIES_MAX: u32 = 36;

/// How long after the deadline an address to pay at may still be good, in milliseconds: the provider's clock is not ours.
const ADDRESS_GRACE_MS: i64 = 60_000;

/// What requests and the worker share.
#[derive(Debug, Default)]
pub struct Closings {
    /// One for each of [`Name::ALL`].
    due: [Notify; Name::ALL.len()],
}

impl Closings {
    /// To be called after a payment was closed here. Forgetting it only means waiting for the next look.
    pub fn wake_for(&self, payment: Option<&Payment>) {
        let name = payment.and_then(|payment| Name::parse(&payment.provider));
        let lanes = Name::ALL.into_iter().zip(&self.due);
        lanes.filter(|(lane, _)| Some(*lane) == name).for_each(|(_, due)| due.notify_one());
    }
}

/// Works until the process ends. Each provider has a lane of its own, so that one that is down holds up no other.
pub async fn run(app: Arc<App>) {
    let shutdown = app.shutdown.clone();
    let lanes = Name::ALL.into_iter().zip(&app.closings.due);
    let lanes = join_all(lanes.map(|(name, due)| work(&app, name, due)));
    shutdown.run_until_cancelled(lanes).await;
}

async fn work(app: &Arc<App>, name: Name, due: &Notify) {
    loop {
        let wait = match close_what_is_due(app, name).await {
            Ok(true) => continue,
            Ok(false) => LOOK_EVERY,
            Err(error) => {
                tracing::warn!(%error, "payments to be closed at their providers could not be looked after; trying again");
                tokio::time::sleep(RETRY_AFTER).await;
                continue;
            }
        };
        // Either way it is time to look again.
        let _ = tokio::time::timeout(wait, due.notified()).await;
    }
}

/// Asks about one batch of payments that are due. Answers whether to go on at once, because it was full.
async fn close_what_is_due(app: &Arc<App>, name: Name) -> LedgerResult<bool> {
    let due = app.ledger.closings_due(name.as_str(), app.clock.now(), BATCH).await?;
    if due.is_empty() {
        return Ok(false);
    }
    let is_full = u32::try_from(due.len()).unwrap_or(u32::MAX) == BATCH;
    let asked: Vec<Closed> = futures_util::stream::iter(due)
        .map(|due| close_one(app, due))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    crash::point("closings.asked");
    app.ledger.note_closings(asked.iter().map(|closed| closed.note.clone()).collect()).await?;
    asked.iter().for_each(|closed| tell_if_given_up(app, closed));
    Ok(is_full)
}

/// A payment whose provider was asked, and what is to be written down of it.
struct Closed {
    payment: Payment,
    note: ClosingNote,
}

async fn close_one(app: &Arc<App>, due: ToClose) -> Closed {
    crash::point("closings.asking");
    let end = match try_to_close(app, &due).await {
        Ok(()) => ClosingEnd::Done,
        Err(not_yet) => {
            let (provider, before, problem) = (due.payment.provider.as_str(), due.tries, &not_yet.problem);
            tracing::info!(payment_id = %due.payment.id, provider, before, problem, "a payment is not closed at its provider yet");
            after(due.tries.saturating_add(1), not_yet, app)
        }
    };
    Closed { note: ClosingNote { payment_no: due.payment.no, end }, payment: due.payment }
}

/// Why there is more to be done about a payment.
struct NotYet {
    problem: String,
    /// When to ask again, where that is known better than by patience.
    at: Option<UnixMs>,
}

impl From<String> for NotYet {
    fn from(problem: String) -> Self {
        Self { problem, at: None }
    }
}

/// Whether there is nothing more to be done, or why there is. Money that is found there does not depend on a callback.
async fn try_to_close(app: &Arc<App>, due: &ToClose) -> Result<(), NotYet> {
    let (payment, asked_at) = (&due.payment, app.clock.now());
    let told = match app.port.shut(payment).await {
        Ok(Shut::Shut) => return Ok(()),
        Ok(Shut::Paid(told)) => told,
        Ok(Shut::OnItsWay) => {
            return Err("its buyer is done there, and the money has not come yet".to_owned().into());
        }
        Ok(Shut::NotThereYet) => return not_there_yet(due, asked_at),
        // Nobody was ever sent there.
        Err(CallError::Impossible(_)) if payment.pay_url.is_none() => return Ok(()),
        Err(error) => return Err(error.to_string().into()),
    };
    tracing::info!(payment_id = %payment.id, "a payment was to be closed and had been paid");
    let settled = app.settle(Heard::Notice(*told)).await;
    settled.map(drop).map_err(|error| format!("its money could not be written down: {error}").into())
}

/// A provider that hears of a payment from its buyer cannot close it before. While the address is good, the buyer may
/// still go there and pay; only who is not there after that never was.
fn not_there_yet(due: &ToClose, asked_at: UnixMs) -> Result<(), NotYet> {
    // Without an address nobody was sent there.
    let (Some(_), Some(pay_by)) = (&due.payment.pay_url, due.pay_by) else { return Ok(()) };
    let last = pay_by.plus_ms(ADDRESS_GRACE_MS);
    if last <= asked_at {
        return Ok(());
    }
    let soon = asked_at.plus_ms(wait_ms(due.tries.saturating_add(1)));
    let at = if pay_by <= asked_at { last } else { soon.min(last) };
    Err(NotYet { problem: "its buyer has not been there, and may still go there".to_owned(), at: Some(at) })
}

fn after(tries: u32, NotYet { problem, at }: NotYet, app: &App) -> ClosingEnd {
    if tries >= TRIES_MAX {
        return ClosingEnd::GivenUp { problem: format!("it could not be closed at its provider: {problem}") };
    }
    ClosingEnd::Again { at: at.unwrap_or_else(|| app.clock.now().plus_ms(wait_ms(tries))) }
}

/// How long after so many vain tries the next one is.
fn wait_ms(tries: u32) -> i64 {
    let factor = 1_i64.checked_shl(tries.saturating_sub(1)).filter(|factor| *factor > 0).unwrap_or(i64::MAX);
    WAIT_FIRST_MS.saturating_mul(factor).min(WAIT_MAX_MS)
}

fn tell_if_given_up(app: &App, Closed { payment, note }: &Closed) {
    if let ClosingEnd::GivenUp { problem } = &note.end {
        let provider = payment.provider.as_str();
        tracing::error!(payment_id = %payment.id, provider, problem, "a payment may still be open at its provider: somebody must look at it there");
        app.metrics.money.inc(MoneyOutcome::NotClosed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_an_hour_and_all_of_them_are_about_a_day() {
        assert_eq!([1, 2, 3, 12].map(wait_ms), [1_000, 2_000, 4_000, 2_048_000]);
        assert_eq!([13, 64, 65, u32::MAX].map(wait_ms), [WAIT_MAX_MS; 4]);
        let hours = (1..TRIES_MAX).map(wait_ms).sum::<i64>() / 3_600_000;
        assert_eq!(hours, 24);
    }
}

//! The clerk: turns batches of claims into orders, one transaction per batch, at the ledger's own pace.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rules::order::Reason;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{LedgerError, Record, Recorded, SqliteLedger};
use crate::clock::{Clock, millis};
use crate::crash;
use crate::gate::{MemoryGate, Release, Returned, Roster};
use crate::outbox::Hub;
use crate::queue::{Claim, JournalHandle, Journaled, Unrecorded};
use crate::telemetry::metrics::{Metrics, MoneyOutcome, OrderOutcome, f64_of};

/// First and longest wait after the ledger could not be written.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Under load the clerk rests so often between two batches, and for so long each time: the buyers have their answer, and
/// orders that are recorded together share the pages they touch.
const RESTS_UNDER_LOAD: u32 = 6;
const REST_UNDER_LOAD: Duration = Duration::from_millis(5);

/// A batch of so many claims is load.
const LOAD_CLAIMS: usize = 16;

/// Smallest batch the clerk shrinks to when the disk is slow.
const BATCH_MIN: usize = 64;

#[derive(Debug)]
pub struct Clerk {
    pub ledger: SqliteLedger,
    pub gate: Arc<MemoryGate>,
    pub journal: JournalHandle,
    pub unrecorded: Arc<Unrecorded>,
    pub hub: Arc<Hub>,
    pub roster: Arc<Roster>,
    pub clock: Clock,
    pub metrics: Arc<Metrics>,
    /// Told after every batch: who waits for an order may look again.
    pub progress: Arc<Notify>,
    /// Most claims in one transaction.
    pub batch: usize,
    /// How long one transaction may keep the ledger's writer from others.
    pub batch_time: Duration,
}

/// Why the clerk stopped.
#[derive(Debug)]
pub enum ClerkEnd {
    /// The journal's thread is gone and everything it handed over is recorded.
    Done,
    /// The ledger cannot be trusted any more.
    Failed(LedgerError),
}

impl Clerk {
    /// Works until the journal ends. `hurry` cuts short the waits after a failure: what is not recorded then stays in
    /// the journal for the next start.
    pub async fn run(self, mut claims: mpsc::Receiver<Vec<Journaled>>, hurry: CancellationToken) -> ClerkEnd {
        let mut waiting = VecDeque::new();
        let mut size = self.batch;
        loop {
            if !wait_for_claims(&mut claims, &mut waiting, size).await {
                return ClerkEnd::Done;
            }
            let mut batch: Vec<_> = waiting.drain(..size.min(waiting.len())).collect();
            crash::point("clerk.recording");
            let began = self.clock.instant();
            match self.record(&batch, &hurry).await {
                Ok(Some(records)) => {
                    // What gave way to somebody comes first in the next batch.
                    let left = batch.split_off(records.len());
                    left.into_iter().rev().for_each(|journaled| waiting.push_front(journaled));
                    self.settle(&batch, &records);
                }
                Ok(None) => return ClerkEnd::Done,
                Err(error) => return ClerkEnd::Failed(error),
            }
            let took = began.elapsed();
            size = self.next_size(size, batch.len(), took);
            if batch.len() >= LOAD_CLAIMS && waiting.is_empty() {
                rest(&claims, &hurry).await;
            }
        }
    }

    /// Grows while batches are quick, shrinks when they keep the writer too long.
    fn next_size(&self, size: usize, recorded: usize, took: Duration) -> usize {
        let full = recorded >= size;
        let size = if took > self.batch_time * 2 {
            size / 2
        } else if full && took < self.batch_time {
            size * 2
        } else {
            size
        };
        size.clamp(BATCH_MIN.min(self.batch), self.batch)
    }

    /// Records the batch, however long the ledger is unavailable. `None` when told to hurry.
    async fn record(
        &self,
        batch: &[Journaled],
        hurry: &CancellationToken,
    ) -> Result<Option<Vec<Record>>, LedgerError> {
        let mut wait = RETRY_FIRST;
        loop {
            let began = self.clock.instant();
            let span = tracing::debug_span!("clerk_batch", claims = batch.len());
            let claims =
                batch.iter().map(|journaled| (journaled.seq, Arc::clone(&journaled.claim))).collect();
            match self.ledger.record_orders(claims, self.clock.now()).instrument(span).await {
                Ok(records) => {
                    let elapsed = began.elapsed();
                    self.metrics.clerk_batch_claims.observe(f64_of(records.len()));
                    self.metrics.clerk_commit_seconds.observe(elapsed.as_secs_f64());
                    tracing::debug!(claims = records.len(), elapsed_ms = millis(elapsed), "claims recorded");
                    return Ok(Some(records));
                }
                Err(LedgerError::Unavailable(reason)) => {
                    tracing::warn!(%reason, claims = batch.len(), "orders could not be recorded; trying again");
                }
                Err(error) => return Err(error),
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => wait = (wait * 2).min(RETRY_MAX),
                () = hurry.cancelled() => return Ok(None),
            }
        }
    }

    fn settle(&self, batch: &[Journaled], records: &[Record]) {
        crash::point("clerk.recorded");
        let now = self.clock.now();
        let last = batch.last().map_or(0, |journaled| journaled.seq);
        for (journaled, record) in batch.iter().zip(records) {
            let claim = &journaled.claim;
            if let Recorded::Refused(reason) = record.outcome {
                // On one machine the gate and the ledger cannot disagree; if they do, people must know.
                tracing::error!(order_id = %claim.order, reason = reason.as_str(), "defect: the ledger refused a claim");
                self.metrics.ledger_refusals.inc();
            }
            if let Recorded::NotRevived { refund: Some(reason) } = record.outcome {
                tracing::error!(order_id = %claim.order, reason = reason.as_str(), "defect: the ledger refused late money");
                self.metrics.ledger_refusals.inc();
                self.metrics.money.inc(MoneyOutcome::RefundDue);
            }
            if let (Recorded::Revived, Some(order)) = (record.outcome, &record.order) {
                self.roster.lift_for(order, now);
                self.metrics.money.inc(MoneyOutcome::Applied);
            }
            self.metrics.orders.inc(outcome_of(record.outcome));
            if gives_back(record) {
                self.give_back(claim, record);
            }
            self.unrecorded.remove(claim.order);
            if let Some(order) = &record.order
                && self.hub.has_anyone()
            {
                self.hub.publish(&claim.buyer, &Arc::new(order.view()));
            }
        }
        if let Some(oldest) = batch.first() {
            let lag = Duration::from_millis(oldest.claim.claimed_at.ms_until(now));
            self.metrics.clerk_lag_seconds.observe(lag.as_secs_f64());
        }
        self.journal.recorded_up_to(last);
        self.progress.notify_waiters();
    }

    /// The gate gets back what it granted for this claim, and nothing that an earlier or a later one holds.
    fn give_back(&self, claim: &Claim, record: &Record) {
        let Some(offer) = self.gate.offer(claim.offer) else { return };
        let seq = match &record.order {
            Some(order) => order.seq,
            // No order stands for it: the number that its verdict would have had.
            None => claim.revives.map_or(1, |revive| revive.closing_seq).saturating_add(1),
        };
        let release = Release { buyer: claim.buyer.as_str(), order: claim.order, seq, restock: true };
        if self.gate.release(&offer, &release) == Returned::Before {
            tracing::debug!(order_id = %claim.order, seq, "the gate had nothing to take back");
        }
    }
}

/// Takes what the journal has handed over, at least one claim and not many more than `enough`. `false` when there will
/// never be another.
async fn wait_for_claims(
    claims: &mut mpsc::Receiver<Vec<Journaled>>,
    waiting: &mut VecDeque<Journaled>,
    enough: usize,
) -> bool {
    while waiting.is_empty() {
        let Some(more) = claims.recv().await else { return false };
        waiting.extend(more);
    }
    while waiting.len() < enough {
        let Ok(more) = claims.try_recv() else { break };
        waiting.extend(more);
    }
    true
}

/// Rests, unless nobody buys any more or the end has come: then speed counts more than thrift.
async fn rest(claims: &mpsc::Receiver<Vec<Journaled>>, hurry: &CancellationToken) {
    for _ in 0..RESTS_UNDER_LOAD {
        let before = claims.len();
        let hurries = tokio::time::timeout(REST_UNDER_LOAD, hurry.cancelled()).await.is_ok();
        if hurries || claims.len() == before {
            return;
        }
    }
}

/// Whether the gate gets back what it granted.
fn gives_back(record: &Record) -> bool {
    match record.outcome {
        Recorded::Refused(_) | Recorded::RepeatEnded | Recorded::NotRevived { .. } => true,
        // Whoever claimed for late money looked at an order that has moved on since. If that order lives, the units are
        // its own; if it has ended, they are nobody's.
        Recorded::RevivalRepeat => record.order.as_ref().is_some_and(|order| !order.status.holds_units),
        Recorded::Recorded | Recorded::RepeatLive | Recorded::Revived => false,
    }
}

fn outcome_of(recorded: Recorded) -> OrderOutcome {
    match recorded {
        Recorded::Recorded => OrderOutcome::Recorded,
        Recorded::RepeatLive | Recorded::RevivalRepeat => OrderOutcome::RepeatLive,
        Recorded::Revived => OrderOutcome::Revived,
        Recorded::NotRevived { .. } => OrderOutcome::NotRevived,
        Recorded::RepeatEnded => OrderOutcome::RepeatEnded,
        Recorded::Refused(reason) => match reason {
            Reason::OtherLive => OrderOutcome::OtherLive,
            Reason::IdClash => OrderOutcome::IdClash,
            Reason::NoStock => OrderOutcome::NoStock,
            Reason::StaleEpoch => OrderOutcome::StaleEpoch,
            Reason::Timeout | Reason::Cancelled | Reason::Internal => OrderOutcome::Internal,
        },
    }
}

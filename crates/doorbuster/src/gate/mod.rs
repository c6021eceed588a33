//! The gate: who gets a unit. It decides atomically, owns no truth, and can be rebuilt from ledger and journal.

pub mod memory;

pub mod room;

pub mod roster;

mod sync;

mod table;

#[cfg(test)]
mod table_tests;

use std::sync::Arc;

use rules::admission::Verdict;
use rules::buyer::BuyerId;
use rules::time::UnixMs;

use crate::queue::{Claim, JournalHandle, Unrecorded};

pub use memory::{Decision, Grant, MemoryGate, OfferGate, Outcome, Seed, SeedOrder, Try};
pub use room::{Permit, Room};
pub use roster::Roster;

/// How often one request may find a pending grant of its own buyer before it is told to come back.
const PENDING_ROUNDS_MAX: u32 = 8;

/// The gate together with the queue behind it: an answer from here is durable.
#[derive(Clone, Debug)]
pub struct Gate {
    pub memory: Arc<MemoryGate>,
    pub journal: JournalHandle,
    pub unrecorded: Arc<Unrecorded>,
}

/// What a buyer is told.
#[derive(Debug)]
pub enum Claimed {
    /// Granted, and it survives a power cut.
    Queued(Arc<Claim>),
    /// Refused, or the same request again.
    Answer(Verdict),
    /// Nobody knows whether it is durable: the same pass must be repeated.
    Unsure,
}

impl Gate {
    /// Tries to take the units for the buyer. Answers once the decision is durable.
    ///
    /// A repeat with the same order id returns the first answer and takes nothing. When the caller goes away in the
    /// middle, the grant is committed or rolled back all the same.
    pub async fn claim(&self, offer: &Arc<OfferGate>, attempt: &Try<'_>, now: UnixMs) -> Claimed {
        for _ in 0..PENDING_ROUNDS_MAX {
            match self.memory.claim(offer, attempt, now) {
                Decision::Answer(verdict) => return Claimed::Answer(verdict),
                Decision::Granted(grant) => return self.make_durable(grant, attempt, now).await,
                Decision::Wait(pending) => match pending.await {
                    Ok(Outcome::Committed | Outcome::RolledBack) => {}
                    Ok(Outcome::Unsure) | Err(_) => return Claimed::Unsure,
                },
            }
        }
        Claimed::Answer(Verdict::Busy)
    }

    async fn make_durable(&self, grant: Grant, attempt: &Try<'_>, now: UnixMs) -> Claimed {
        let Ok(buyer) = BuyerId::parse(attempt.buyer) else {
            // A pass is only ever signed for a valid buyer; without one there is nothing to write down.
            self.memory.roll_back(&grant);
            return Claimed::Answer(Verdict::Busy);
        };
        let claim = Arc::new(Claim {
            order: attempt.order,
            offer: grant.offer.offer,
            buyer,
            quantity: attempt.quantity,
            claimed_at: now,
            pass_expires_at: attempt.pass_expires_at,
        });
        self.unrecorded.insert(&claim);
        // No await until the journal has it: from then on its thread commits or rolls back, whoever hangs up.
        let outcome = match self.journal.append(grant, Arc::clone(&claim)) {
            Ok(outcome) => outcome,
            Err(grant) => {
                self.unrecorded.remove(claim.order);
                self.memory.roll_back(&grant);
                return Claimed::Answer(Verdict::Busy);
            }
        };
        match outcome.await {
            Outcome::Committed => Claimed::Queued(claim),
            Outcome::RolledBack => Claimed::Answer(Verdict::Busy),
            Outcome::Unsure => Claimed::Unsure,
        }
    }
}

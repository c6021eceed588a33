//! The gate: who gets a unit. It decides atomically, owns no truth, and can be rebuilt from ledger and journal.

pub mod memory;

pub mod room;

pub mod roster;

mod sync;

mod table;

#[cfg(test)]
mod table_tests;

#[cfg(test)]
mod lock_tests;

use std::sync::Arc;

use rules::admission::Verdict;
use rules::buyer::BuyerId;
use rules::id::OrderId;
use rules::time::UnixMs;
use tokio::sync::oneshot;

use crate::crash;
use crate::queue::reply::Reply;
use crate::queue::{Claim, JournalHandle, Revive, Unrecorded};

pub use memory::{
    Decision, Grant, Held, MemoryGate, OfferBooks, OfferGate, Outcome, Release, Returned, Seed, SeedOrder,
    SetRight, Try, Weight,
};
pub use room::{Permit, Room};
pub use roster::Roster;
pub use table::Key;

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

/// How a try began.
#[derive(Debug)]
pub enum Begun {
    /// Decided at once.
    Answer(Verdict),
    /// Granted, and on its way to the disk.
    Committing { claim: Arc<Claim>, reply: Reply },
    /// The answer hangs on a grant of this buyer that is not durable yet. Ask again when it is.
    Pending(oneshot::Receiver<Outcome>),
}

impl Gate {
    /// Has the memory fetched that a try of the buyer with this key will need, and does not wait for it: it is nearly
    /// always cold, and what is left to do before the try takes about as long.
    #[inline]
    pub fn fetch(&self, offer: &OfferGate, key: Key, order: OrderId) {
        self.memory.fetch(key);
        // Where nothing is left, no claim will need a place.
        if offer.free() > 0 {
            self.unrecorded.fetch(order);
        }
    }

    /// Tries to take the units for the buyer with this key, without waiting for anything. From a grant on, it is
    /// committed or rolled back whatever becomes of the caller.
    pub fn begin(&self, key: Key, offer: &Arc<OfferGate>, attempt: &Try<'_>, now: UnixMs) -> Begun {
        match self.memory.claim_by(key, offer, attempt, now) {
            Decision::Answer(verdict) => Begun::Answer(verdict),
            Decision::Granted(grant) => self.hand_over_try(grant, attempt, now),
            Decision::Wait(pending) => Begun::Pending(pending),
        }
    }

    /// Tries to take the units for the buyer. Answers once the decision is durable.
    ///
    /// A repeat with the same order id returns the first answer and takes nothing. When the caller goes away in the
    /// middle, the grant is committed or rolled back all the same.
    pub async fn claim(&self, offer: &Arc<OfferGate>, attempt: &Try<'_>, now: UnixMs) -> Claimed {
        let key = self.memory.key(offer, attempt.buyer);
        for _ in 0..PENDING_ROUNDS_MAX {
            if let Some(claimed) = self.begin(key, offer, attempt, now).outcome().await {
                return claimed;
            }
        }
        Claimed::Answer(Verdict::Busy)
    }

    /// Looks for units for late money, by a claim that goes the way of all claims. Answers once that is durable; the
    /// order is paid when the ledger has recorded it.
    ///
    /// A repeat of the same claim takes nothing. When the caller goes away in the middle, the grant is committed or
    /// rolled back all the same.
    pub async fn revive(&self, offer: &Arc<OfferGate>, claim: Claim, revive: Revive) -> Claimed {
        let claim = Arc::new(Claim { revives: Some(revive), ..claim });
        let attempt = Try {
            buyer: claim.buyer.as_str(),
            order: claim.order,
            quantity: claim.quantity,
            pass_expires_at: claim.pass_expires_at,
        };
        for _ in 0..PENDING_ROUNDS_MAX {
            let begun = match self.memory.revive(offer, &attempt, revive.closing_seq, claim.claimed_at) {
                Decision::Answer(verdict) => Begun::Answer(verdict),
                Decision::Granted(grant) => {
                    crash::point("gate.revived");
                    self.hand_over(grant, Arc::clone(&claim))
                }
                Decision::Wait(pending) => Begun::Pending(pending),
            };
            if let Some(claimed) = begun.outcome().await {
                return claimed;
            }
        }
        Claimed::Answer(Verdict::Busy)
    }

    fn hand_over_try(&self, grant: Grant, attempt: &Try<'_>, now: UnixMs) -> Begun {
        let Ok(buyer) = BuyerId::parse(attempt.buyer) else {
            // A pass is only ever signed for a valid buyer; without one there is nothing to write down.
            self.memory.roll_back(&grant);
            return Begun::Answer(Verdict::Busy);
        };
        let claim = Arc::new(Claim {
            order: attempt.order,
            offer: grant.offer.offer,
            buyer,
            quantity: attempt.quantity,
            claimed_at: now,
            pass_expires_at: attempt.pass_expires_at,
            revives: None,
        });
        self.hand_over(grant, claim)
    }

    fn hand_over(&self, grant: Grant, claim: Arc<Claim>) -> Begun {
        self.unrecorded.insert(&claim);
        match self.journal.append(grant, Arc::clone(&claim)) {
            Ok(reply) => Begun::Committing { claim, reply },
            Err(grant) => {
                self.unrecorded.remove(claim.order);
                self.memory.roll_back(&grant);
                Begun::Answer(Verdict::Busy)
            }
        }
    }
}

impl Begun {
    /// How it ends. `None`: what it hung on is decided, ask again.
    async fn outcome(self) -> Option<Claimed> {
        match self {
            Self::Answer(verdict) => Some(Claimed::Answer(verdict)),
            Self::Committing { claim, reply } => Some(Claimed::of(reply.await, claim)),
            Self::Pending(pending) => match pending.await {
                Ok(Outcome::Committed | Outcome::RolledBack) => None,
                Ok(Outcome::Unsure) | Err(_) => Some(Claimed::Unsure),
            },
        }
    }
}

impl Claimed {
    /// What a grant's outcome tells its buyer.
    #[must_use]
    pub fn of(outcome: Outcome, claim: Arc<Claim>) -> Self {
        match outcome {
            Outcome::Committed => Self::Queued(claim),
            Outcome::RolledBack => Self::Answer(Verdict::Busy),
            Outcome::Unsure => Self::Unsure,
        }
    }
}

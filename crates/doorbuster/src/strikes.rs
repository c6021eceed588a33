//! Strikes and blocks, with the ledger and the roster kept in step: the ledger commits, then the roster hears of it. What
//! a strike means is decided by `rules::strike`. Knows no HTTP and no timers.

use std::sync::Arc;

use rules::buyer::BuyerId;
use rules::time::UnixMs;

use crate::app::App;
use crate::gate::Roster;
use crate::ledger::money::{Mark, Released, StrikeOf, StrikeRow};
use crate::ledger::{Block, KeyedAnswer, LedgerResult, Order, SqliteLedger};

impl App {
    /// To be called after a close, before the closed orders' units go back to the gate: whoever did not pay has a
    /// strike, and perhaps gets no more passes. Orders without a strike are passed over; again is harmless.
    pub fn note_strikes(&self, closed: &[Released]) {
        for released in closed.iter().filter(|released| released.struck) {
            let Released { order, .. } = released;
            let at = order.closed_at.unwrap_or_else(|| self.clock.now());
            self.roster.strike(&Mark { buyer: order.buyer.as_str(), of: StrikeOf::Order(order.no), at });
        }
    }

    /// To be called after late money found its unit: the order's strike is lifted. Again is harmless.
    pub fn note_revival(&self, order: &Order) {
        self.roster.lift_for(order, self.clock.now());
    }

    /// Refuses passes to a buyer until a time.
    pub async fn block(self: &Arc<Self>, block: Block) -> LedgerResult<()> {
        let app = Arc::clone(self);
        self.to_the_end(async move {
            app.ledger.block(block.clone(), app.clock.now()).await?;
            app.roster.block(&block.buyer, block.until);
            Ok(())
        })
        .await
    }

    /// Lets a buyer in again: ends a block by hand, and lifts all strikes if they block. `false` when nothing blocked.
    pub async fn unblock(self: &Arc<Self>, buyer: BuyerId) -> LedgerResult<bool> {
        let app = Arc::clone(self);
        self.to_the_end(async move {
            let now = app.clock.now();
            let let_in = app.ledger.let_in(buyer.clone(), app.roster.policy(), now).await?;
            if let_in.unblocked {
                app.roster.unblock(&buyer);
            }
            for of in &let_in.lifted {
                app.roster.lift(buyer.as_str(), *of, now);
            }
            Ok(let_in.unblocked || !let_in.lifted.is_empty())
        })
        .await
    }

    /// Gives a buyer a strike by the operator's hand; `answer` is remembered in the same commit.
    pub async fn add_strike(
        self: &Arc<Self>,
        buyer: BuyerId,
        note: Option<String>,
        answer: impl FnOnce(&StrikeRow) -> Option<KeyedAnswer> + Send + 'static,
    ) -> LedgerResult<StrikeRow> {
        let app = Arc::clone(self);
        self.to_the_end(async move {
            let row = app.ledger.add_strike(buyer, note, app.clock.now(), answer).await?;
            let of = StrikeOf::Operator(row.no);
            app.roster.strike(&Mark { buyer: row.buyer.as_str(), of, at: row.strike.at });
            Ok(row)
        })
        .await
    }

    /// Lifts one strike by the operator's hand; `false` when none of that number counts.
    pub async fn lift_strike(self: &Arc<Self>, buyer: BuyerId, no: u64) -> LedgerResult<bool> {
        let app = Arc::clone(self);
        self.to_the_end(async move {
            let now = app.clock.now();
            let lifted = app.ledger.lift_strike(buyer.clone(), no, now).await?;
            if let Some(of) = lifted {
                app.roster.lift(buyer.as_str(), of, now);
            }
            Ok(lifted.is_some())
        })
        .await
    }
}

impl Roster {
    /// Late money lifts the strike of the order that it revived.
    pub fn lift_for(&self, order: &Order, now: UnixMs) {
        self.lift(order.buyer.as_str(), StrikeOf::Order(order.no), now);
    }
}

/// Loads what decides about passes, at start. Nobody is served before that.
pub async fn load(ledger: &SqliteLedger, roster: &Arc<Roster>, now: UnixMs) -> LedgerResult<()> {
    for block in ledger.blocks(now).await? {
        roster.block(&block.buyer, block.until);
    }
    let into = Arc::clone(roster);
    ledger.strikes_since(roster.policy().matters_since(now), move |mark| into.strike(mark)).await
}

//! Mending what an audit found, by verbs that look again before they act: twice is harmless, and so is whatever happened
//! since the audit looked. What is not proven safe is left to a person.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rules::audit::Mending;
use rules::id::{OfferId, OrderId, PaymentId};
use rules::payment::{Revival, State as PaymentState};

use crate::app::App;
use crate::gate::{Release, SeedOrder};
use crate::ledger::audit::{Doubt, Recounted, Remedy, Still};
use crate::ledger::money::{Absent, Decided, Settled};
use crate::ledger::{Changed, LedgerResult};

/// How long a repair waits for an empty queue.
const DRAINED_WITHIN: Duration = Duration::from_secs(3);
const DRAINED_EVERY: Duration = Duration::from_millis(20);

/// Whoever mends, on a running server.
#[derive(Clone, Copy, Debug)]
pub struct Mender<'a>(pub &'a Arc<App>);

impl Mender<'_> {
    /// Mends what can be mended; answers the keys of what is right now. Orders come before units: an order that the gate
    /// learns of, or forgets, moves its units with it.
    pub async fn mend_all(self, doubts: &[Doubt]) -> HashSet<String> {
        let mut mended = HashSet::new();
        let is_level = |doubt: &&Doubt| doubt.kind.mending() == Mending::Level;
        for doubt in doubts.iter().filter(|doubt| !is_level(doubt)).chain(doubts.iter().filter(is_level)) {
            match self.mend(&doubt.remedy).await {
                Ok(true) => {
                    tracing::warn!(kind = %doubt.kind, about = doubt.about, "an audit mended this");
                    mended.insert(doubt.key());
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(kind = %doubt.kind, about = doubt.about, %error, "an audit could not mend this");
                }
            }
        }
        mended
    }

    /// `true` when it is right now, whoever made it so.
    async fn mend(self, remedy: &Remedy) -> LedgerResult<bool> {
        let now = self.0.clock.now();
        match remedy {
            Remedy::None => Ok(false),
            Remedy::Recount(offer) => Ok(self.0.ledger.recount(*offer, now).await? == Recounted::Right),
            Remedy::Level(offer) => self.level(*offer).await,
            Remedy::Release { offer, order, .. } => self.release_ended(*offer, *order).await,
            Remedy::Forget { offer, order } => self.forget(*offer, *order).await,
            Remedy::Seed { offer, order } => self.seed_live(*offer, *order).await,
            Remedy::Preheat(sale) => Ok(matches!(self.0.preheat_sale(*sale).await?, Changed::Done(_))),
            Remedy::Settle(payment) => self.decide(*payment).await,
            Remedy::Lift { buyer, strike } => {
                self.0.lift_strike(buyer.clone(), *strike).await?;
                Ok(true)
            }
            Remedy::HoldBack(webhook) => {
                self.0.ledger.hold_back_webhook(*webhook).await?;
                self.0.dispatch.changed();
                Ok(true)
            }
            Remedy::Drop(webhook) => {
                self.0.ledger.drop_deliveries_without_event(*webhook).await?;
                Ok(true)
            }
        }
    }

    /// The gate's units become what the ledger's stock and the held orders leave, while both stand still.
    async fn level(self, offer: OfferId) -> LedgerResult<bool> {
        let _turn = self.0.operator_turn.lock().await;
        let gate = Arc::clone(&self.0.gate.memory);
        self.0
            .ledger
            .stand_still(vec![offer], move |stock, leaving| {
                let (Some(known), Some(stock)) = (gate.offer(offer), stock.get(&offer)) else { return false };
                gate.level(&known, *stock, &leaving);
                gate.weigh(&[&known], &leaving).first().is_some_and(|weight| weight.lacks(*stock) == 0)
            })
            .await
    }

    /// Releases an order that has ended, unless late money is looking for a unit for it: that money is in the ledger
    /// before it asks the gate, and the ledger stands still.
    async fn release_ended(self, offer: OfferId, order: OrderId) -> LedgerResult<bool> {
        let _turn = self.0.operator_turn.lock().await;
        let gate = Arc::clone(&self.0.gate.memory);
        self.0
            .ledger
            .with_order_still(order, move |still| {
                let (Some(still), Some(offer)) = (still.filter(is_over), gate.offer(offer)) else {
                    return false;
                };
                let buyer = still.order.buyer.as_str();
                let left =
                    still.payments.iter().any(|payment| payment.status.is_the_orders() && !payment.restock);
                let release = Release { buyer, order, seq: still.order.seq, restock: !left };
                gate.release(&offer, &release);
                gate.live_order(&offer, buyer) != Some(order)
            })
            .await
    }

    /// Tells the gate of a live order, and takes its units from the free ones if they are among them.
    async fn seed_live(self, offer: OfferId, order: OrderId) -> LedgerResult<bool> {
        let _turn = self.0.operator_turn.lock().await;
        let gate = Arc::clone(&self.0.gate.memory);
        self.0
            .ledger
            .with_order_still(order, move |still| {
                let live = still.filter(|still| still.order.status.holds_units);
                let (Some(Still { order, stock, leaving, .. }), Some(offer)) = (live, gate.offer(offer))
                else {
                    return false;
                };
                let buyer = order.buyer.as_str();
                match gate.live_order(&offer, buyer) {
                    Some(known) => return known == order.id,
                    None => gate.seed_order(
                        &offer,
                        &SeedOrder {
                            buyer,
                            order: order.id,
                            quantity: order.quantity,
                            pass_expires_at: order.pass_expires_at,
                            live: true,
                        },
                    ),
                }
                gate.level(&offer, stock, &leaving);
                true
            })
            .await
    }

    /// Frees the units of a claim that nobody will record. Only with an empty queue: then the journal holds nothing
    /// either that a restart would bring back.
    async fn forget(self, offer: OfferId, order: OrderId) -> LedgerResult<bool> {
        let began = self.0.clock.instant();
        while self.0.gate.memory.room().taken() > 0 {
            if began.elapsed() > DRAINED_WITHIN {
                return Ok(false);
            }
            tokio::time::sleep(DRAINED_EVERY).await;
        }
        let _turn = self.0.operator_turn.lock().await;
        let gate = self.0.gate.clone();
        self.0
            .ledger
            .with_order_still(order, move |still| {
                let nobodys = still.is_none()
                    && gate.unrecorded.get(order).is_none()
                    && gate.memory.room().taken() == 0;
                let Some(offer) = gate.memory.offer(offer).filter(|_| nobodys) else { return false };
                gate.memory.forget(&offer, order);
                true
            })
            .await
    }

    /// Decides a capture with what is known by now, as its worker would. One whose order may still come is left to wait.
    async fn decide(self, payment: PaymentId) -> LedgerResult<bool> {
        let Decided { this, before } =
            self.0.ledger.settle_capture(payment, Absent::MayCome, self.0.clock.now()).await?;
        for settled in before {
            self.0.follow_settled(settled).await;
        }
        match this {
            Settled::Wait | Settled::NotFound => Ok(false),
            Settled::ReviveNeeded { payment, order } => {
                Ok(self.0.revive(&order, payment).await != Revival::Wait)
            }
            decided @ (Settled::Applied { .. } | Settled::RefundDue { .. } | Settled::Duplicate) => {
                self.0.follow_settled(decided).await;
                Ok(true)
            }
        }
    }
}

/// Whether an order has let go of its units for good, as far as anybody knows.
fn is_over(still: &Still) -> bool {
    let undecided = still.payments.iter().any(|payment| payment.status.state == PaymentState::Captured);
    !still.order.status.holds_units && !undecided
}

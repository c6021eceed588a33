//! Mending what an audit found, by verbs that look again before they act: twice is harmless, and so is whatever happened
//! since the audit looked. What is not proven safe is left to a person.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rules::id::{OfferId, OrderId, PaymentId};
use rules::payment::{Revival, State as PaymentState};

use super::cut::Proven;
use crate::app::App;
use crate::gate::{OfferBooks, Release, SeedOrder};
use crate::ledger::audit::{Doubt, OfferStill, Recounted, Remedy, Still};
use crate::ledger::money::{Absent, Decided, Settled};
use crate::ledger::{Changed, LedgerResult, Order};

/// How long a repair waits for an empty queue, for everything that needs one together.
const DRAINED_WITHIN: Duration = Duration::from_secs(3);
const DRAINED_EVERY: Duration = Duration::from_millis(20);

/// Whoever mends, on a running server.
#[derive(Clone, Copy, Debug)]
pub struct Mender<'a>(pub &'a Arc<App>);

/// What a repair did.
#[derive(Clone, Debug, Default)]
pub struct Mended {
    /// The keys of what is right now.
    pub keys: HashSet<String>,
    /// The longest that everything stood still for it.
    pub held_up: Duration,
}

impl Mended {
    fn note(&mut self, doubt: &Doubt) {
        tracing::warn!(kind = %doubt.kind, about = doubt.about, "an audit mended this");
        self.keys.insert(doubt.key());
    }
}

/// What is to be done at the gate about one offer.
#[derive(Debug, Default)]
struct AtGate<'a> {
    /// Live orders that the gate has lost, proven.
    lost: Vec<(OrderId, &'a Doubt)>,
    /// Its units do not add up.
    units: Option<&'a Doubt>,
}

impl Mender<'_> {
    /// Mends what can be mended. Orders come before units: an order that the gate forgets moves its units with it. What
    /// the gate is told of one offer, and its units, are one step.
    pub async fn mend_all(self, proven: &Proven) -> Mended {
        let mut mended = Mended::default();
        let mut at_gate: BTreeMap<u128, (OfferId, AtGate<'_>)> = BTreeMap::new();
        let drained_until = self.0.clock.instant() + DRAINED_WITHIN;
        for doubt in &proven.doubts {
            match doubt.remedy {
                Remedy::Seed { offer, order } => {
                    let (_, at_gate) = at_gate.entry(offer.0).or_insert_with(|| (offer, AtGate::default()));
                    at_gate.lost.push((order, doubt));
                }
                Remedy::Level(offer) => {
                    let (_, at_gate) = at_gate.entry(offer.0).or_insert_with(|| (offer, AtGate::default()));
                    at_gate.units = Some(doubt);
                }
                _ => match self.mend(&doubt.remedy, drained_until).await {
                    Ok(true) => mended.note(doubt),
                    Ok(false) => {}
                    Err(error) => {
                        tracing::error!(kind = %doubt.kind, about = doubt.about, %error, "an audit could not mend this");
                    }
                },
            }
        }
        for (offer, at_gate) in at_gate.into_values() {
            if let Err(error) = self.set_right(offer, at_gate, proven, &mut mended).await {
                tracing::error!(offer_id = %offer, %error, "an audit could not set the gate right");
            }
        }
        mended
    }

    /// `true` when it is right now, whoever made it so.
    async fn mend(self, remedy: &Remedy, drained_until: Instant) -> LedgerResult<bool> {
        let now = self.0.clock.now();
        match remedy {
            // The latter two of an offer are one step; see `set_right`.
            Remedy::None | Remedy::Seed { .. } | Remedy::Level(_) => Ok(false),
            Remedy::Recount(offer) => Ok(self.0.ledger.recount(*offer, now).await? == Recounted::Right),
            Remedy::Release { offer, order, .. } => self.release_ended(*offer, *order).await,
            Remedy::Forget { offer, order } => self.forget(*offer, *order, drained_until).await,
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
                self.0.ledger.drop_deliveries_without_event(*webhook, now).await?;
                // What stood behind them is due now.
                self.0.dispatch.changed();
                Ok(true)
            }
        }
    }

    /// Tells the gate of the offer's lost orders, and makes its free units what is left, while both stand still.
    ///
    /// Units become free only if the last cut doubted them, and never those of a live order that the gate does not know,
    /// whether or not that is proven: the ledger would refuse whoever got them.
    async fn set_right(
        self,
        offer: OfferId,
        at_gate: AtGate<'_>,
        proven: &Proven,
        mended: &mut Mended,
    ) -> LedgerResult<()> {
        let lost: HashSet<OrderId> = at_gate.lost.iter().map(|(order, _)| *order).collect();
        let unseen = proven.unseen.get(&offer).cloned().unwrap_or_default();
        let may_free = at_gate.units.is_some() && !proven.more_unseen;
        let _turn = self.0.operator_turn.lock().await;
        let (gate, clock) = (Arc::clone(&self.0.gate.memory), self.0.clock.clone());
        let done = self.0.ledger.with_offer_still(offer, unseen, move |still| {
            let (OfferStill { stock, live_units, live, leaving }, known) = (still?, gate.offer(offer)?);
            let (lost, doubtful): (Vec<&Order>, Vec<&Order>) =
                live.iter().partition(|order| lost.contains(&order.id));
            let seeds: Vec<SeedOrder<'_>> = lost.into_iter().map(seed_of).collect();
            let doubtful: Vec<SeedOrder<'_>> = doubtful.into_iter().map(seed_of).collect();
            let (live, leaving) = (live_units, &leaving);
            let books = OfferBooks { stock, live, lost: &seeds, doubtful: &doubtful, leaving, may_free };
            let began = clock.instant();
            let right = gate.set_right(&known, &books);
            let held_up = began.elapsed();
            let told = seeds.iter().zip(right.known).filter(|(_, known)| *known);
            let told: HashSet<OrderId> = told.map(|(seed, _)| seed.order).collect();
            Some((told, right.weight.lacks(stock) == 0, held_up))
        });
        let Some((told, adds_up, held_up)) = done.await? else { return Ok(()) };
        self.0.metrics.audit_gate_hold_seconds.observe(held_up.as_secs_f64());
        mended.held_up = mended.held_up.max(held_up);
        let told = at_gate.lost.into_iter().filter(|(order, _)| told.contains(order));
        let units = at_gate.units.filter(|_| adds_up);
        told.map(|(_, doubt)| doubt).chain(units).for_each(|doubt| mended.note(doubt));
        Ok(())
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

    /// Frees the units of a claim that nobody will record. Only with an empty queue: then the journal holds nothing
    /// either that a restart would bring back.
    async fn forget(self, offer: OfferId, order: OrderId, drained_until: Instant) -> LedgerResult<bool> {
        while self.0.gate.memory.room().taken() > 0 {
            if self.0.clock.instant() > drained_until {
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

fn seed_of(order: &Order) -> SeedOrder<'_> {
    SeedOrder {
        buyer: order.buyer.as_str(),
        order: order.id,
        quantity: order.quantity,
        pass_expires_at: order.pass_expires_at,
        live: true,
    }
}

/// Whether an order has let go of its units for good, as far as anybody knows.
fn is_over(still: &Still) -> bool {
    let undecided = still.payments.iter().any(|payment| payment.status.state == PaymentState::Captured);
    !still.order.status.holds_units && !undecided
}

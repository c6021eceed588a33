//! One cut: the gate piece by piece, then the queue, then one snapshot of the ledger, compared by order ids.
//!
//! The order matters. A durable claim that the gate holds is in the queue when that is looked at, or was recorded before
//! that, and then the ledger, which is read last, has it. So an order that none of them knows is nobody's. What is seen
//! the other way round (recorded since, ended since) is on its way, and a second cut does not see it again.
//!
//! Nothing stops for it: a try waits for the piece of the gate that its buyer is in, while that is copied.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rules::audit::Kind;
use rules::buyer::BuyerId;
use rules::id::{IdMap, OfferId, OrderId};
use rules::order::Reason;
use rules::payment::State as PaymentState;
use rules::time::UnixMs;

use crate::app::App;
use crate::catalogue::is_public;
use crate::gate::{Held, OfferGate, Weight};
use crate::ledger::audit::{Doubt, LedgerLook, OfferLook, OrderLook, Overdue, Patience, Remedy, Scope};
use crate::ledger::{LedgerError, LedgerResult};

/// What one comparison shows.
#[derive(Clone, Debug, Default)]
pub struct Cut {
    pub doubts: Vec<Doubt>,
    /// Orders that were looked at.
    pub orders: u64,
    /// The longest that a piece of the gate was locked for it.
    pub held_up: Duration,
}

/// An offer as the gate showed it.
#[derive(Debug)]
struct GateOffer {
    gate: Arc<OfferGate>,
    weight: Weight,
    change_no: u64,
}

/// What the gate holds, while the ledger's orders are held against it.
#[derive(Debug)]
struct Compared {
    held: IdMap<OrderId, Held>,
    offers: IdMap<OfferId, GateOffer>,
    doubts: Vec<Doubt>,
}

impl Cut {
    /// Takes a cut of everything in the scope.
    pub async fn take(app: &Arc<App>, scope: Scope) -> LedgerResult<Self> {
        let now = app.clock.now();
        let looking = Arc::clone(app);
        let gate = tokio::task::spawn_blocking(move || look_at_gate(&looking));
        let (compared, held_up) =
            gate.await.map_err(|_| LedgerError::Unavailable("the gate was not looked at".into()))?;
        app.metrics.audit_gate_hold_seconds.observe(held_up.as_secs_f64());
        let mut on_their_way: IdMap<OrderId, (OfferId, UnixMs)> = IdMap::default();
        app.gate.unrecorded.visit(|claim| {
            on_their_way.insert(claim.order, (claim.offer, claim.claimed_at));
        });
        let overdue = Overdue::at(now, app.auditor.started_at, patience(app));
        let (look, mut compared) = app.ledger.look(scope, Some(overdue), compared, Compared::see).await?;
        compared.see_the_rest(&look, &on_their_way);
        compared.see_offers(&look);
        let waiting = stuck(app, &look, &on_their_way, now);
        let mut doubts = look.doubts;
        doubts.extend(waiting);
        doubts.append(&mut compared.doubts);
        Ok(Self { doubts, orders: look.orders, held_up })
    }
}

fn patience(app: &App) -> Patience {
    let settings = &app.settings.audit;
    Patience { unpaid_s: settings.unpaid_s, captured_s: settings.captured_s, refund_s: settings.refund_s }
}

/// Copies what the gate holds, piece by piece; answers the longest time that one of them took.
fn look_at_gate(app: &App) -> (Compared, Duration) {
    let (mut all, mut longest) = (Vec::new(), Duration::ZERO);
    for piece in 0..app.gate.memory.pieces() {
        let began = app.clock.instant();
        app.gate.memory.held_in(piece, &mut all);
        longest = longest.max(began.elapsed());
    }
    let mut units: HashMap<u32, u64> = HashMap::new();
    for held in &all {
        *units.entry(held.offer_no).or_default() += u64::from(held.quantity);
    }
    let seen = |gate: Arc<OfferGate>| {
        let held = units.get(&gate.number()).copied().unwrap_or(0);
        let weight = Weight { free: gate.free(), held };
        (gate.offer, GateOffer { change_no: gate.change_no(), weight, gate })
    };
    let offers = app.gate.memory.offers().into_iter().map(seen).collect();
    let held = all.into_iter().map(|held| (held.order, held)).collect();
    (Compared { held, offers, doubts: Vec::new() }, longest)
}

impl Compared {
    /// Holds one order of the ledger against the gate.
    fn see(&mut self, order: &OrderLook<'_>) {
        let held = self.held.remove(&order.id);
        let Some(offer) = self.offers.get(&order.offer) else { return };
        let doubt =
            |kind, units| Doubt::new(kind, Some(order.offer), i64::from(units)).about("order_id", order.id);
        match held {
            Some(held) if order.status.holds_units && held.quantity != order.quantity => {
                let doubt = doubt(Kind::GateQuantity, order.quantity).with("in_the_gate", held.quantity);
                self.doubts.push(doubt.with("in_the_ledger", order.quantity));
            }
            Some(_) if order.status.holds_units => {}
            // On its way to the disk: late money that looks for a unit.
            Some(Held { durable: false, .. }) => {}
            Some(held) => {
                let Ok(buyer) = BuyerId::parse(order.buyer) else { return };
                let doubt = doubt(Kind::GateEndedOrder, held.quantity)
                    .about("seq", order.seq)
                    .with("state", order.status.state.as_str())
                    .with("reason", order.status.reason.map_or("none", Reason::as_str));
                let (offer, order) = (order.offer, order.id);
                self.doubts.push(doubt.mended_by(Remedy::Release { offer, buyer, order }));
            }
            None if order.status.holds_units => {
                let remedy = Remedy::Seed { offer: offer.gate.offer, order: order.id };
                let doubt = doubt(Kind::GateMissingOrder, order.quantity).about("seq", order.seq);
                let doubt = doubt.with("buyer", order.buyer);
                self.doubts.push(doubt.mended_by(remedy));
            }
            None => {}
        }
    }

    /// What the gate holds and the ledger does not have.
    fn see_the_rest(&mut self, look: &LedgerLook, on_their_way: &IdMap<OrderId, (OfferId, UnixMs)>) {
        let in_scope: HashSet<OfferId> = look.offers.iter().map(|offer| offer.counters.offer).collect();
        let numbers: HashMap<u32, OfferId> =
            self.offers.values().map(|offer| (offer.gate.number(), offer.gate.offer)).collect();
        for (order, held) in &self.held {
            let Some(offer) = numbers.get(&held.offer_no).copied().filter(|offer| in_scope.contains(offer))
            else {
                continue;
            };
            if held.durable && !on_their_way.contains_key(order) {
                let doubt = Doubt::new(Kind::GateUnknownOrder, Some(offer), i64::from(held.quantity));
                let remedy = Remedy::Forget { offer, order: *order };
                self.doubts.push(doubt.about("order_id", order).mended_by(remedy));
            }
        }
    }

    /// The offers' numbers. Gate and ledger are read at different instants here: what differs is weighed exactly before
    /// anybody hears of it.
    fn see_offers(&mut self, look: &LedgerLook) {
        for OfferLook { sale, sale_state, counters } in &look.offers {
            let doubt = |kind, units| Doubt::new(kind, Some(counters.offer), units);
            let Some(offer) = self.offers.get(&counters.offer) else {
                if is_public(*sale_state) {
                    let doubt = doubt(Kind::GateUnknownOffer, i64::from(counters.stock));
                    self.doubts.push(doubt.with("sale_id", sale).mended_by(Remedy::Preheat(*sale)));
                }
                continue;
            };
            if offer.change_no > counters.change_no {
                let doubt = doubt(Kind::GateChangeNo, 0).with("in_the_gate", offer.change_no);
                self.doubts.push(doubt.with("in_the_ledger", counters.change_no));
            }
            let lacks = offer.weight.lacks(counters.stock);
            if lacks != 0 {
                let doubt = doubt(Kind::GateUnits, lacks).with("stock", counters.stock);
                let doubt = doubt.with("free", offer.weight.free).with("held", offer.weight.held);
                self.doubts.push(doubt.mended_by(Remedy::Level(counters.offer)));
            }
        }
    }
}

/// Claims that have waited too long. One from before the start waits since the start.
fn stuck(
    app: &App,
    look: &LedgerLook,
    on_their_way: &IdMap<OrderId, (OfferId, UnixMs)>,
    now: UnixMs,
) -> Vec<Doubt> {
    let in_scope: HashSet<OfferId> = look.offers.iter().map(|offer| offer.counters.offer).collect();
    let most_ms = u64::from(app.settings.audit.queued_s) * 1_000;
    let late = |claimed_at: UnixMs| claimed_at.max(app.auditor.started_at).ms_until(now) > most_ms;
    let stuck = on_their_way.iter().filter(|(_, (offer, at))| late(*at) && in_scope.contains(offer));
    let doubt = |(order, (offer, at)): (&OrderId, &(OfferId, UnixMs))| {
        let units = app.gate.unrecorded.get(*order).map(|claim| i64::from(claim.quantity));
        // Recorded by now: it was late, and is no longer stuck.
        Some(
            Doubt::new(Kind::ClaimStuck, Some(*offer), units?)
                .about("order_id", order)
                .with("claimed_at", at),
        )
    };
    stuck.filter_map(doubt).collect()
}

/// Of what two cuts agree on, what is really so: units are weighed while everything stands still, and an order for
/// which late money is looking for a unit is held rightly.
pub async fn sure(app: &App, doubts: Vec<Doubt>) -> LedgerResult<Vec<Doubt>> {
    let units = |doubt: &Doubt| if doubt.kind == Kind::GateUnits { doubt.offer } else { None };
    let doubted: Vec<OfferId> = doubts.iter().filter_map(units).collect();
    let weighed = if doubted.is_empty() { HashMap::new() } else { weigh(app, doubted).await? };
    let mut sure = Vec::with_capacity(doubts.len());
    for mut doubt in doubts {
        if let (Kind::GateEndedOrder, Remedy::Release { order, .. }) = (doubt.kind, &doubt.remedy)
            && revives(app, *order).await?
        {
            continue;
        }
        if doubt.kind == Kind::GateUnits {
            let found = doubt.offer.and_then(|offer| weighed.get(&offer));
            let Some((stock, weight)) = found.filter(|(stock, weight)| weight.lacks(*stock) != 0) else {
                continue;
            };
            doubt.units = weight.lacks(*stock);
            doubt = doubt.with("stock", stock).with("free", weight.free).with("held", weight.held);
        }
        sure.push(doubt);
    }
    Ok(sure)
}

async fn revives(app: &App, order: OrderId) -> LedgerResult<bool> {
    let payments = app.ledger.payments_of(order).await?;
    Ok(payments.iter().any(|payment| payment.status.state == PaymentState::Captured))
}

/// The offers' stock in the ledger and units at the gate, at one instant: no stock changes, the ledger's writer
/// stands still, and tries that may be granted wait a moment.
async fn weigh(app: &App, offers: Vec<OfferId>) -> LedgerResult<HashMap<OfferId, (u32, Weight)>> {
    let _turn = app.operator_turn.lock().await;
    let (gate, clock, metrics) = (Arc::clone(&app.gate.memory), app.clock.clone(), Arc::clone(&app.metrics));
    app.ledger
        .stand_still(offers, move |stock, leaving| {
            let known: Vec<(u32, Arc<OfferGate>)> =
                stock.iter().filter_map(|(offer, stock)| Some((*stock, gate.offer(*offer)?))).collect();
            let gates: Vec<&OfferGate> = known.iter().map(|(_, offer)| &**offer).collect();
            let began = clock.instant();
            let weights = gate.weigh(&gates, &leaving);
            metrics.audit_gate_hold_seconds.observe(began.elapsed().as_secs_f64());
            known.iter().zip(weights).map(|((stock, gate), weight)| (gate.offer, (*stock, weight))).collect()
        })
        .await
}

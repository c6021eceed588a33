//! One cut: the gate piece by piece, then the queue, then one snapshot of the ledger, compared by order ids.
//!
//! The order matters. A durable claim that the gate holds is in the queue when that is looked at, or was recorded before
//! that, and then the ledger, which is read last, has it. So an order that none of them knows is nobody's. What is seen
//! the other way round (recorded since, ended since) is on its way, and a second cut does not see it again.
//!
//! Nothing stops for a cut: a try waits for the piece of the gate that its buyer is in, while that is copied. Only when two
//! cuts doubt an offer's units is the whole gate weighed at one instant.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rules::audit::{Cuts, Kind};
use rules::id::{IdMap, OfferId, OrderId};
use rules::order::Reason;
use rules::payment::State as PaymentState;
use rules::time::UnixMs;

use crate::app::App;
use crate::catalogue::is_public;
use crate::gate::{Held, OfferGate, Weight};
use crate::ledger::audit::{
    Doubt, Doubts, LedgerLook, OfferLook, OrderLook, OrderSeen, Overdue, Patience, Remedy, Scope,
};
use crate::ledger::{LedgerError, LedgerResult};

/// What one comparison shows.
#[derive(Clone, Debug, Default)]
pub struct Cut {
    pub doubts: Doubts,
    /// Orders that were looked at.
    pub orders: u64,
    /// Offers that were looked at.
    pub offers: Vec<OfferId>,
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
    doubts: Doubts,
}

/// What cuts prove.
#[derive(Clone, Debug, Default)]
pub struct Proven {
    pub doubts: Vec<Doubt>,
    /// How many more there are of a kind, whose doubts were too many to keep.
    pub beyond: BTreeMap<Kind, u64>,
    /// Live orders that the last cut did not see at the gate, whether or not that is proven, by their offer.
    pub unseen: HashMap<OfferId, Vec<OrderId>>,
    /// There are more of those, of any offer, or there may be: an order that cannot be read may be live.
    pub more_unseen: bool,
    /// How long everything stood still to be sure.
    pub held_up: Duration,
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
        let offers = look.offers.iter().map(|offer| offer.counters.offer).collect();
        let mut doubts = look.doubts;
        doubts.extend(waiting);
        doubts.append(compared.doubts);
        Ok(Self { doubts, orders: look.orders, offers, held_up })
    }

    /// Whether a second cut must show what the first one doubts.
    #[must_use]
    pub fn needs_another(&self) -> bool {
        self.doubts.kept().iter().any(|doubt| doubt.kind.cuts() == Cuts::Two)
    }
}

/// What one cut proves that left nothing for another one.
#[must_use]
pub fn alone(cut: Doubts) -> Proven {
    confirm(&Doubts::default(), cut)
}

/// What two cuts prove: what one snapshot shows, in either of them; of the rest, what is the same in both.
#[must_use]
pub fn confirm(first: &Doubts, second: Doubts) -> Proven {
    let before: HashSet<String> = first.kept().iter().map(Doubt::key).collect();
    let now: HashSet<String> = second.kept().iter().map(Doubt::key).collect();
    let by_one = |kind: Kind| kind.cuts() == Cuts::One;
    let gone = first.kept().iter().filter(|doubt| by_one(doubt.kind) && !now.contains(&doubt.key()));
    let mut proven = Proven { doubts: gone.cloned().collect(), ..Proven::default() };
    for kind in Kind::ALL.iter().copied() {
        let beyond = second.beyond(kind);
        proven.beyond.insert(kind, if by_one(kind) { beyond } else { beyond.min(first.beyond(kind)) });
    }
    let is_unreadable = |doubt: &Doubt| doubt.kind == Kind::UnreadableRow;
    proven.more_unseen = second.beyond(Kind::GateMissingOrder) > 0 || second.kept().iter().any(is_unreadable);
    for doubt in second.into_kept() {
        if let Remedy::Seed { offer, order } = doubt.remedy {
            proven.unseen.entry(offer).or_default().push(order);
        }
        if by_one(doubt.kind) || before.contains(&doubt.key()) {
            proven.doubts.push(doubt);
        }
    }
    proven
}

impl Proven {
    /// Findings that were not kept. Of a kind of which nothing is proven, what was not kept is nothing either.
    #[must_use]
    pub fn more(&self) -> u64 {
        let found: HashSet<Kind> = self.doubts.iter().map(|doubt| doubt.kind).collect();
        self.beyond.iter().filter(|(kind, _)| found.contains(kind)).map(|(_, more)| more).sum()
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
    let known = app.gate.memory.offers();
    let mut units = vec![0_u64; known.len()];
    for held in &all {
        if let Some(units) = place(held.offer_no).and_then(|place| units.get_mut(place)) {
            *units += u64::from(held.quantity);
        }
    }
    let seen = |gate: Arc<OfferGate>| {
        let held = place(gate.number()).and_then(|place| units.get(place)).copied().unwrap_or(0);
        let weight = Weight { free: gate.free(), held };
        (gate.offer, GateOffer { change_no: gate.change_no(), weight, gate })
    };
    let offers = known.into_iter().map(seen).collect();
    let held = all.into_iter().map(|held| (held.order, held)).collect();
    (Compared { held, offers, doubts: Doubts::default() }, longest)
}

/// The gate numbers its offers from 0 on.
fn place(offer_no: u32) -> Option<usize> {
    usize::try_from(offer_no).ok()
}

impl Compared {
    /// Holds one order of the ledger against the gate. Of one that cannot be read nobody knows whether it is held rightly.
    fn see(&mut self, order: &OrderSeen<'_>) {
        match order {
            OrderSeen::Read(order) => self.compare(order),
            OrderSeen::Unreadable(order) => {
                self.held.remove(order);
            }
        }
    }

    fn compare(&mut self, order: &OrderLook<'_>) {
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
                let doubt = doubt(Kind::GateEndedOrder, held.quantity)
                    .about("seq", order.seq)
                    .with("state", order.status.state.as_str())
                    .with("reason", order.status.reason.map_or("none", Reason::as_str));
                let remedy = Remedy::Release { offer: order.offer, order: order.id, seq: order.seq };
                self.doubts.push(doubt.mended_by(remedy));
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
        let mut rest: Vec<(OrderId, Held)> = self.held.iter().map(|(order, held)| (*order, *held)).collect();
        // Always in the same order: of very many, two cuts must keep the same ones.
        rest.sort_unstable_by_key(|(order, _)| order.0);
        for (order, held) in rest {
            let Some(offer) = numbers.get(&held.offer_no).copied().filter(|offer| in_scope.contains(offer))
            else {
                continue;
            };
            if held.durable && !on_their_way.contains_key(&order) {
                let doubt = Doubt::new(Kind::GateUnknownOrder, Some(offer), i64::from(held.quantity));
                let remedy = Remedy::Forget { offer, order };
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
/// which late money is looking for a unit, or has found one, is held rightly.
pub async fn sure(app: &App, mut proven: Proven) -> LedgerResult<Proven> {
    let units = |doubt: &Doubt| if doubt.kind == Kind::GateUnits { doubt.offer } else { None };
    let doubted: Vec<OfferId> = proven.doubts.iter().filter_map(units).collect();
    let mut weighed = HashMap::new();
    if !doubted.is_empty() {
        (weighed, proven.held_up) = weigh(app, doubted).await?;
        app.metrics.audit_gate_hold_seconds.observe(proven.held_up.as_secs_f64());
    }
    let mut sure = Vec::with_capacity(proven.doubts.len());
    for mut doubt in proven.doubts {
        if let Remedy::Release { order, seq, .. } = doubt.remedy {
            match has_moved_on(app, order, seq).await {
                Ok(true) => continue,
                Ok(false) => {}
                // It, or money for it, cannot be read: a person must look, and the other findings are told all the same.
                Err(error) if error.is_of_the_content() => {}
                Err(error) => return Err(error),
            }
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
    proven.doubts = sure;
    Ok(proven)
}

/// Whether late money is looking for a unit for the order, or something has happened to it since it was seen. The money
/// is asked first: a revival that is recorded in between has raised the order's `seq`.
async fn has_moved_on(app: &App, order: OrderId, seq: u32) -> LedgerResult<bool> {
    let payments = app.ledger.payments_of(order).await?;
    if payments.iter().any(|payment| payment.status.state == PaymentState::Captured) {
        return Ok(true);
    }
    Ok(app.ledger.order(order).await?.is_none_or(|order| order.seq != seq))
}

/// The offers' stock in the ledger and units at the gate, at one instant, and how long that took: no stock changes, the
/// ledger's writer stands still, and tries that may be granted wait.
async fn weigh(app: &App, offers: Vec<OfferId>) -> LedgerResult<(HashMap<OfferId, (u32, Weight)>, Duration)> {
    let _turn = app.operator_turn.lock().await;
    let (gate, clock) = (Arc::clone(&app.gate.memory), app.clock.clone());
    app.ledger
        .stand_still(offers, move |stock, leaving| {
            let known: Vec<(u32, Arc<OfferGate>)> =
                stock.iter().filter_map(|(offer, stock)| Some((*stock, gate.offer(*offer)?))).collect();
            let gates: Vec<&OfferGate> = known.iter().map(|(_, offer)| &**offer).collect();
            let began = clock.instant();
            let weights = gate.weigh(&gates, &leaving);
            let held_up = began.elapsed();
            let weighed = known.iter().zip(weights);
            let weighed = weighed.map(|((stock, gate), weight)| (gate.offer, (*stock, weight))).collect();
            (weighed, held_up)
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubt(kind: Kind, order: u128, seq: u32) -> Doubt {
        Doubt::new(kind, Some(OfferId(1)), 1).about("order_id", OrderId(order)).about("seq", seq)
    }

    fn doubts(all: impl IntoIterator<Item = Doubt>) -> Doubts {
        let mut doubts = Doubts::default();
        doubts.extend(all);
        doubts
    }

    #[test]
    fn what_is_on_its_way_is_no_finding_and_what_one_snapshot_shows_is() {
        let stuck = doubt(Kind::GateEndedOrder, 1, 3);
        let first = [stuck.clone(), doubt(Kind::GateEndedOrder, 2, 3), doubt(Kind::LiveCounter, 9, 1)];
        let second = [
            stuck.clone(),
            // The same order, but it has ended once more since: something else is on its way.
            doubt(Kind::GateEndedOrder, 2, 5),
            doubt(Kind::GateMissingOrder, 3, 2),
            doubt(Kind::EventGap, 4, 2),
        ];
        let proven = confirm(&doubts(first), doubts(second)).doubts;
        let kinds: Vec<Kind> = proven.iter().map(|doubt| doubt.kind).collect();
        assert_eq!(kinds, [Kind::LiveCounter, Kind::GateEndedOrder, Kind::EventGap]);
        assert_eq!(proven[1].about, stuck.about);
    }

    /// A repair must know of every live order that the gate may have lost, also of one that changed between the cuts.
    #[test]
    fn an_order_that_the_last_cut_did_not_see_at_the_gate_is_remembered_though_it_is_not_proven() {
        let missing = |seq| {
            let remedy = Remedy::Seed { offer: OfferId(1), order: OrderId(3) };
            doubt(Kind::GateMissingOrder, 3, seq).mended_by(remedy)
        };
        let proven = confirm(&doubts([missing(2)]), doubts([missing(3)]));
        assert_eq!(proven.doubts, []);
        assert_eq!(proven.unseen, HashMap::from([(OfferId(1), vec![OrderId(3)])]));
        assert!(!proven.more_unseen);
        let many = (0..2_000).map(|order| doubt(Kind::GateMissingOrder, order, 2));
        assert!(alone(doubts(many)).more_unseen);
    }

    #[test]
    fn what_was_too_much_to_keep_counts_only_beside_something_proven() {
        let many = |seq| doubts((0..3_000).map(|order| doubt(Kind::GateEndedOrder, order, seq)));
        assert_eq!(confirm(&many(3), many(3)).more(), 2_000);
        assert_eq!(confirm(&many(3), many(4)).more(), 0, "all of them are on their way");
        let snapshot = doubts((0..3_000).map(|order| doubt(Kind::UnpaidOverdue, order, 2)));
        assert_eq!(alone(snapshot).more(), 2_000);
    }
}

//! The contract of every gate. An implementation joins by implementing [`GateUnderTest`] and calling [`contract!`].

use std::collections::BTreeMap;
use std::sync::Arc;

use doorbuster::gate::{Decision, MemoryGate, OfferGate, Release, Returned, Seed, SeedOrder, Try};
use proptest::prelude::*;
use rules::admission::{Model, Verdict};
use rules::id::{OfferId, OrderId};
use rules::sale::{SaleState, Window};
use rules::time::UnixMs;

/// What a gate must be able to do, with every grant made durable at once.
trait GateUnderTest {
    fn seeded(stock: u32, window: Window) -> Self;
    fn claim(&self, buyer: &str, order: u128, quantity: u32, now: UnixMs) -> Verdict;
    /// The order has ended by its fact number `seq`. Whether its units are free now.
    fn release(&self, buyer: &str, order: u128, seq: u32) -> bool;
    /// The order has ended, and its units do not come back.
    fn forget(&self, buyer: &str, order: u128, seq: u32) -> bool;
    fn revive(&self, buyer: &str, order: u128, quantity: u32, closing_seq: u32) -> Verdict;
    fn raise(&self, units: u32, change_no: u64) -> bool;
    fn lower(&self, units: u32) -> bool;
    fn set_state(&self, state: SaleState);
    fn free(&self) -> u32;
}

struct Memory {
    gate: MemoryGate,
    offer: Arc<OfferGate>,
    window: Window,
}

impl Memory {
    fn durable(&self, decision: Decision) -> Verdict {
        match decision {
            Decision::Granted(grant) => {
                self.gate.commit(&grant);
                Verdict::Granted
            }
            Decision::Answer(verdict) => verdict,
            Decision::Wait(_) => panic!("no grant is pending"),
        }
    }
}

impl GateUnderTest for Memory {
    fn seeded(stock: u32, window: Window) -> Self {
        let gate = MemoryGate::new(1_000, (3, 4));
        let seed = Seed { offer: OfferId(1), state: SaleState::Published, window, free: stock, change_no: 0 };
        let offer = gate.seed(&seed).unwrap();
        Self { gate, offer, window }
    }

    fn claim(&self, buyer: &str, order: u128, quantity: u32, now: UnixMs) -> Verdict {
        let attempt = Try { buyer, order: OrderId(order), quantity, pass_expires_at: UnixMs(i64::MAX) };
        self.durable(self.gate.claim(&self.offer, &attempt, now))
    }

    fn release(&self, buyer: &str, order: u128, seq: u32) -> bool {
        let release = Release { buyer, order: OrderId(order), seq, restock: true };
        matches!(self.gate.release(&self.offer, &release), Returned::Free { .. })
    }

    fn forget(&self, buyer: &str, order: u128, seq: u32) -> bool {
        let release = Release { buyer, order: OrderId(order), seq, restock: false };
        self.gate.release(&self.offer, &release) == Returned::Forgotten
    }

    fn revive(&self, buyer: &str, order: u128, quantity: u32, closing_seq: u32) -> Verdict {
        let attempt = Try { buyer, order: OrderId(order), quantity, pass_expires_at: UnixMs(i64::MAX) };
        self.durable(self.gate.revive(&self.offer, &attempt, closing_seq, OPEN))
    }

    fn raise(&self, units: u32, change_no: u64) -> bool {
        self.gate.raise(&self.offer, units, change_no)
    }

    fn lower(&self, units: u32) -> bool {
        self.gate.surrender(&self.offer, units).is_ok()
    }

    fn set_state(&self, state: SaleState) {
        self.gate.set_doors(&[Arc::clone(&self.offer)], state, self.window);
    }

    fn free(&self) -> u32 {
        self.offer.free()
    }
}

const WINDOW: Window = Window { opens_at: UnixMs(10), closes_at: UnixMs(20) };
const OPEN: UnixMs = UnixMs(15);

fn a_repeat_takes_nothing<G: GateUnderTest>() {
    let gate = G::seeded(5, WINDOW);
    assert_eq!(gate.claim("ann", 1, 2, OPEN), Verdict::Granted);
    assert_eq!(gate.claim("ann", 1, 2, OPEN), Verdict::Repeat);
    assert_eq!(gate.claim("ann", 1, 3, OPEN), Verdict::PassReused);
    assert_eq!(gate.claim("ann", 2, 1, OPEN), Verdict::AlreadyOrdered { order: OrderId(1) });
    assert_eq!(gate.free(), 3);
}

fn the_window_is_the_servers<G: GateUnderTest>() {
    let gate = G::seeded(5, WINDOW);
    assert_eq!(gate.claim("ann", 1, 1, UnixMs(9)), Verdict::NotOpen { opens_in_ms: 1 });
    assert_eq!(gate.claim("ann", 1, 1, UnixMs(20)), Verdict::Ended);
    gate.set_state(SaleState::Paused);
    assert_eq!(gate.claim("ann", 1, 1, OPEN), Verdict::Paused);
    gate.set_state(SaleState::Published);
    assert_eq!(gate.claim("ann", 1, 1, OPEN), Verdict::Granted);
    gate.set_state(SaleState::Ended);
    assert_eq!(gate.claim("ann", 1, 1, OPEN), Verdict::Repeat);
    assert_eq!(gate.claim("bob", 2, 1, OPEN), Verdict::Ended);
    assert_eq!(gate.free(), 4);
}

fn sold_out_clears_when_a_unit_comes_back<G: GateUnderTest>() {
    let gate = G::seeded(2, WINDOW);
    assert_eq!(gate.claim("ann", 1, 2, OPEN), Verdict::Granted);
    assert_eq!(gate.claim("bob", 2, 1, OPEN), Verdict::SoldOut);
    assert!(gate.release("ann", 1, 3));
    assert!(!gate.release("ann", 1, 3));
    assert_eq!(gate.claim("ann", 1, 2, OPEN), Verdict::Spent);
    assert_eq!(gate.claim("bob", 2, 1, OPEN), Verdict::Granted);
    assert_eq!(gate.claim("cyd", 3, 2, OPEN), Verdict::NotEnough { available: 1 });
    assert_eq!(gate.claim("ann", 4, 1, OPEN), Verdict::Granted);
    assert_eq!(gate.claim("ann", 1, 2, OPEN), Verdict::Spent);
}

fn a_late_release_of_an_earlier_order_changes_nothing<G: GateUnderTest>() {
    let gate = G::seeded(3, WINDOW);
    gate.claim("ann", 1, 1, OPEN);
    gate.release("ann", 1, 3);
    gate.claim("ann", 2, 1, OPEN);
    assert!(!gate.release("ann", 1, 3));
    assert!(!gate.release("bob", 2, 3));
    assert_eq!(gate.free(), 2);
}

fn stock_changes_count_once<G: GateUnderTest>() {
    let gate = G::seeded(1, WINDOW);
    assert!(gate.raise(2, 7));
    assert!(!gate.raise(2, 7));
    assert!(!gate.raise(2, 6));
    assert_eq!(gate.free(), 3);
    assert!(!gate.lower(4));
    assert!(gate.lower(3));
    assert_eq!(gate.claim("ann", 1, 1, OPEN), Verdict::SoldOut);
}

/// The classic way to sell what is not there: two refills, each right when it was made, with a sale in between.
fn two_refills_with_a_sale_in_between_count_once<G: GateUnderTest>() {
    let gate = G::seeded(1, WINDOW);
    assert_eq!(gate.claim("ann", 1, 1, OPEN), Verdict::Granted);
    assert!(gate.release("ann", 1, 3));
    assert_eq!(gate.claim("bob", 2, 1, OPEN), Verdict::Granted);
    assert!(!gate.release("ann", 1, 3), "the same release again");
    assert_eq!(gate.claim("cyd", 3, 1, OPEN), Verdict::SoldOut);
    assert!(gate.raise(1, 7));
    assert_eq!(gate.claim("cyd", 3, 1, OPEN), Verdict::Granted);
    assert!(!gate.raise(1, 7), "the same raise again");
    assert_eq!((gate.claim("dan", 4, 1, OPEN), gate.free()), (Verdict::SoldOut, 0));
}

fn units_that_left_the_stock_do_not_come_back<G: GateUnderTest>() {
    let gate = G::seeded(2, WINDOW);
    assert_eq!(gate.claim("ann", 1, 2, OPEN), Verdict::Granted);
    assert!(gate.forget("ann", 1, 5));
    assert!(!gate.release("ann", 1, 5), "nor when the same end is told otherwise");
    assert_eq!(gate.claim("ann", 1, 2, OPEN), Verdict::Spent);
    assert_eq!((gate.claim("ann", 2, 1, OPEN), gate.free()), (Verdict::SoldOut, 0));
    assert!(gate.raise(1, 9));
    assert_eq!(gate.claim("ann", 2, 1, OPEN), Verdict::Granted, "the gate has forgotten the first order");
}

fn late_money_takes_units_whatever_the_door_and_the_pass_say<G: GateUnderTest>() {
    let gate = G::seeded(2, WINDOW);
    gate.claim("ann", 1, 2, OPEN);
    assert!(gate.release("ann", 1, 3));
    gate.set_state(SaleState::Ended);
    assert_eq!(gate.claim("ann", 1, 2, OPEN), Verdict::Spent);
    assert_eq!(gate.revive("ann", 1, 2, 3), Verdict::Granted);
    assert_eq!((gate.revive("ann", 1, 2, 3), gate.free()), (Verdict::Repeat, 0));
    assert_eq!(gate.claim("ann", 1, 2, OPEN), Verdict::Repeat, "its pass names a live order again");
    assert!(!gate.release("ann", 1, 3), "the closing before the revival was counted");
    assert!(gate.release("ann", 1, 6), "the refund after it was not");
    assert_eq!((gate.claim("ann", 1, 2, OPEN), gate.free()), (Verdict::Spent, 2));
}

fn late_money_is_refused_by_a_dry_gate_and_by_another_live_order<G: GateUnderTest>() {
    let gate = G::seeded(2, WINDOW);
    gate.claim("ann", 1, 2, OPEN);
    gate.release("ann", 1, 3);
    gate.claim("bob", 2, 1, OPEN);
    assert_eq!(gate.revive("ann", 1, 2, 3), Verdict::NotEnough { available: 1 });
    gate.claim("ann", 3, 1, OPEN);
    assert_eq!(gate.revive("ann", 1, 2, 3), Verdict::AlreadyOrdered { order: OrderId(3) });
    gate.release("ann", 3, 3);
    gate.claim("cyd", 4, 1, OPEN);
    assert_eq!((gate.revive("ann", 1, 2, 3), gate.free()), (Verdict::SoldOut, 0));
    assert_eq!(gate.claim("ann", 1, 2, OPEN), Verdict::Spent);
}

/// The money is faster than the release of the closing: the units are let go of once and taken once.
fn late_money_before_the_release_of_its_closing_brings_it_along<G: GateUnderTest>() {
    let gate = G::seeded(1, WINDOW);
    gate.claim("ann", 1, 1, OPEN);
    assert_eq!((gate.revive("ann", 1, 1, 3), gate.free()), (Verdict::Granted, 0));
    assert!(!gate.release("ann", 1, 3), "it arrives, and was counted");
    assert_eq!((gate.claim("bob", 2, 1, OPEN), gate.free()), (Verdict::SoldOut, 0));
}

/// Orders as a ledger would number them, with releases that arrive in any order and more than once.
#[derive(Default)]
struct Numbered {
    stock: u32,
    /// (buyer, order) -> seq, units, whether it holds them.
    orders: BTreeMap<(u8, u8), (u32, u32, bool)>,
    /// Releases on their way: order, seq, units that come back, whether they arrived.
    releases: Vec<((u8, u8), u32, u32, bool)>,
}

impl Numbered {
    /// Units that the gate may give away: neither held nor on their way back.
    fn free(&self) -> u32 {
        let held: u32 = self.orders.values().filter(|order| order.2).map(|order| order.1).sum();
        let returning: u32 = self.releases.iter().filter(|release| !release.3).map(|release| release.2).sum();
        self.stock - held - returning
    }

    fn end(&mut self, key: (u8, u8), restock: bool) {
        let Some(order) = self.orders.get_mut(&key).filter(|order| order.2) else { return };
        (order.0, order.2) = (order.0 + 1, false);
        let back = if restock { order.1 } else { 0 };
        self.stock -= order.1 - back;
        self.releases.push((key, order.0, back, false));
    }
}

#[derive(Clone, Debug)]
enum Turn {
    Claim { buyer: u8, order: u8, quantity: u32 },
    End { buyer: u8, order: u8, restock: bool },
    Arrive(usize),
    Revive { buyer: u8, order: u8 },
}

fn turn() -> impl Strategy<Value = Turn> {
    let (buyer, order) = (0_u8..3, 0_u8..3);
    prop_oneof![
        4 => (buyer.clone(), order.clone(), 1_u32..3)
            .prop_map(|(buyer, order, quantity)| Turn::Claim { buyer, order, quantity }),
        3 => (buyer.clone(), order.clone(), prop::bool::weighted(0.8))
            .prop_map(|(buyer, order, restock)| Turn::End { buyer, order, restock }),
        4 => any::<prop::sample::Index>().prop_map(|index| Turn::Arrive(index.index(64))),
        3 => (buyer, order).prop_map(|(buyer, order)| Turn::Revive { buyer, order }),
    ]
}

fn releases_count_once_however_they_arrive<G: GateUnderTest>(turns: &[Turn]) {
    let stock = 4;
    let gate = G::seeded(stock, WINDOW);
    let mut ledger = Numbered { stock, ..Numbered::default() };
    let name = |buyer: u8| format!("buyer {buyer}");
    let id = |(buyer, order): (u8, u8)| u128::from(buyer) * 100 + u128::from(order);
    for turn in turns {
        match *turn {
            Turn::Claim { buyer, order, quantity } => {
                let key = (buyer, order);
                if gate.claim(&name(buyer), id(key), quantity, OPEN) == Verdict::Granted {
                    assert!(!ledger.orders.contains_key(&key), "a spent pass: {turn:?}");
                    ledger.orders.insert(key, (2, quantity, true));
                }
            }
            Turn::End { buyer, order, restock } => ledger.end((buyer, order), restock),
            Turn::Arrive(index) => {
                let count = ledger.releases.len().max(1);
                if let Some((key, seq, back, arrived)) = ledger.releases.get_mut(index % count) {
                    let (buyer, order) = (name(key.0), id(*key));
                    let counted = match *back {
                        0 => gate.forget(&buyer, order, *seq),
                        _ => gate.release(&buyer, order, *seq),
                    };
                    assert_eq!(counted, !*arrived, "{turn:?}");
                    *arrived = true;
                }
            }
            Turn::Revive { buyer, order } => {
                let key = (buyer, order);
                // Only what timed out is revived: its last release gives units back.
                let last = ledger.releases.iter_mut().rev().find(|release| release.0 == key);
                let ended = ledger.orders.get_mut(&key).filter(|order| !order.2);
                if let (Some(last), Some(order)) = (last.filter(|release| release.2 > 0), ended) {
                    last.3 = true;
                    if gate.revive(&name(buyer), id(key), order.1, order.0) == Verdict::Granted {
                        (order.0, order.2) = (order.0 + 1, true);
                    }
                }
            }
        }
        assert_eq!(gate.free(), ledger.free(), "after {turn:?}");
        let live = ledger.orders.iter().filter(|(_, order)| order.2).map(|(key, _)| key.0);
        let live: Vec<u8> = live.collect();
        assert!(live.windows(2).all(|pair| pair[0] != pair[1]), "two live orders of one buyer");
    }
}

fn it_agrees_with_the_model<G: GateUnderTest>(steps: &[Step]) {
    let gate = G::seeded(4, WINDOW);
    let mut model = Model::default();
    model.seed(OfferId(1), WINDOW, 4);
    let mut change_no = 0;
    // Every fact about any order is later than those before it.
    for (seq, step) in (3_u32..).zip(steps) {
        match *step {
            Step::Claim { buyer, order, quantity, now } => {
                // An order id belongs to one buyer: it is minted with the buyer's pass.
                let (name, order) = (format!("buyer {buyer}"), u128::from(buyer) * 100 + u128::from(order));
                let now = UnixMs(now);
                let expected = model.claim(OfferId(1), &name, OrderId(order), quantity, now);
                assert_eq!(gate.claim(&name, order, quantity, now), expected, "{step:?}");
            }
            Step::Release { buyer, order } => {
                let (name, order) = (format!("buyer {buyer}"), u128::from(buyer) * 100 + u128::from(order));
                model.release(OfferId(1), &name, OrderId(order));
                gate.release(&name, order, seq);
            }
            Step::Revive { buyer, order, quantity } => {
                let (name, order) = (format!("buyer {buyer}"), u128::from(buyer) * 100 + u128::from(order));
                // Its closing has reached the gate.
                model.release(OfferId(1), &name, OrderId(order));
                gate.release(&name, order, seq);
                let expected = model.revive(OfferId(1), &name, OrderId(order), quantity);
                assert_eq!(gate.revive(&name, order, quantity, seq), expected, "{step:?}");
            }
            Step::Raise(units) => {
                change_no += 1;
                model.raise(OfferId(1), units);
                assert!(gate.raise(units, change_no));
            }
            Step::Lower(units) => assert_eq!(gate.lower(units), model.lower(OfferId(1), units)),
            Step::State(state) => {
                model.set_state(OfferId(1), state);
                gate.set_state(state);
            }
        }
        assert_eq!(gate.free(), model.free(OfferId(1)), "after {step:?}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Claim { buyer: u8, order: u8, quantity: u32, now: i64 },
    Release { buyer: u8, order: u8 },
    Revive { buyer: u8, order: u8, quantity: u32 },
    Raise(u32),
    Lower(u32),
    State(SaleState),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u8..5, 0_u8..3, 1_u32..4, 8_i64..22)
            .prop_map(|(buyer, order, quantity, now)| Step::Claim { buyer, order, quantity, now }),
        3 => (0_u8..5, 0_u8..3).prop_map(|(buyer, order)| Step::Release { buyer, order }),
        2 => (0_u8..5, 0_u8..3, 1_u32..4)
            .prop_map(|(buyer, order, quantity)| Step::Revive { buyer, order, quantity }),
        1 => (1_u32..4).prop_map(Step::Raise),
        1 => (1_u32..4).prop_map(Step::Lower),
        1 => prop_oneof![Just(SaleState::Published), Just(SaleState::Paused), Just(SaleState::Ended)]
            .prop_map(Step::State),
    ]
}

macro_rules! contract {
    ($module:ident, $gate:ty) => {
        mod $module {
            use super::*;

            #[test]
            fn a_repeat_takes_nothing() {
                super::a_repeat_takes_nothing::<$gate>();
            }

            #[test]
            fn the_window_is_the_servers() {
                super::the_window_is_the_servers::<$gate>();
            }

            #[test]
            fn sold_out_clears_when_a_unit_comes_back() {
                super::sold_out_clears_when_a_unit_comes_back::<$gate>();
            }

            #[test]
            fn a_late_release_of_an_earlier_order_changes_nothing() {
                super::a_late_release_of_an_earlier_order_changes_nothing::<$gate>();
            }

            #[test]
            fn stock_changes_count_once() {
                super::stock_changes_count_once::<$gate>();
            }

            #[test]
            fn two_refills_with_a_sale_in_between_count_once() {
                super::two_refills_with_a_sale_in_between_count_once::<$gate>();
            }

            #[test]
            fn units_that_left_the_stock_do_not_come_back() {
                super::units_that_left_the_stock_do_not_come_back::<$gate>();
            }

            #[test]
            fn late_money_takes_units_whatever_the_door_and_the_pass_say() {
                super::late_money_takes_units_whatever_the_door_and_the_pass_say::<$gate>();
            }

            #[test]
            fn late_money_is_refused_by_a_dry_gate_and_by_another_live_order() {
                super::late_money_is_refused_by_a_dry_gate_and_by_another_live_order::<$gate>();
            }

            #[test]
            fn late_money_before_the_release_of_its_closing_brings_it_along() {
                super::late_money_before_the_release_of_its_closing_brings_it_along::<$gate>();
            }

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(512))]

                #[test]
                fn it_agrees_with_the_model(steps in prop::collection::vec(step(), 0..60)) {
                    super::it_agrees_with_the_model::<$gate>(&steps);
                }

                #[test]
                fn releases_count_once_however_they_arrive(turns in prop::collection::vec(turn(), 0..80)) {
                    super::releases_count_once_however_they_arrive::<$gate>(&turns);
                }
            }
        }
    };
}

contract!(memory, Memory);

#[test]
fn the_permit_comes_before_the_unit() {
    let gate = MemoryGate::new(1, (3, 4));
    let seed = Seed { offer: OfferId(1), state: SaleState::Published, window: WINDOW, free: 1, change_no: 0 };
    let offer = gate.seed(&seed).unwrap();
    let attempt =
        |buyer, order| Try { buyer, order: OrderId(order), quantity: 1, pass_expires_at: UnixMs(99) };
    let _full = gate.room().reserve().unwrap();
    assert!(matches!(gate.claim(&offer, &attempt("ann", 1), OPEN), Decision::Answer(Verdict::Busy)));
    assert_eq!(offer.free(), 1, "a full queue must not take a unit, not even for a moment");
}

#[test]
fn an_answer_that_hangs_on_a_pending_grant_waits_for_it() {
    let gate = MemoryGate::new(10, (3, 4));
    let seed = Seed { offer: OfferId(1), state: SaleState::Published, window: WINDOW, free: 1, change_no: 0 };
    let offer = gate.seed(&seed).unwrap();
    let attempt =
        |order| Try { buyer: "ann", order: OrderId(order), quantity: 1, pass_expires_at: UnixMs(99) };
    let Decision::Granted(grant) = gate.claim(&offer, &attempt(1), OPEN) else { panic!("not granted") };
    let Decision::Wait(mut repeat) = gate.claim(&offer, &attempt(1), OPEN) else { panic!("must wait") };
    let Decision::Wait(mut other) = gate.claim(&offer, &attempt(2), OPEN) else { panic!("must wait") };
    assert!(repeat.try_recv().is_err(), "nobody is told before the commit");
    gate.commit(&grant);
    assert_eq!(repeat.try_recv(), Ok(doorbuster::gate::Outcome::Committed));
    assert_eq!(other.try_recv(), Ok(doorbuster::gate::Outcome::Committed));
}

#[test]
fn spent_passes_are_forgotten_only_after_they_expire() {
    let gate = Memory::seeded(5, WINDOW);
    let attempt = |order, expires| Try {
        buyer: "ann",
        order: OrderId(order),
        quantity: 1,
        pass_expires_at: UnixMs(expires),
    };
    for order in 1..=3 {
        let Decision::Granted(grant) = gate.gate.claim(&gate.offer, &attempt(order, 50_000), OPEN) else {
            panic!("not granted")
        };
        gate.gate.commit(&grant);
        assert!(gate.release("ann", order, 3));
    }
    // A minute longer: a try that came in time may be held up for so long.
    gate.gate.forget_expired(UnixMs(110_000));
    for order in 1..=3 {
        let decision = gate.gate.claim(&gate.offer, &attempt(order, 50_000), OPEN);
        assert!(matches!(decision, Decision::Answer(Verdict::Spent)), "{order}: {decision:?}");
    }
    gate.gate.forget_expired(UnixMs(112_000));
    assert!(matches!(gate.gate.claim(&gate.offer, &attempt(1, 50_000), OPEN), Decision::Granted(_)));
}

#[test]
fn a_spent_pass_is_known_as_long_as_it_lasts_also_behind_a_later_order_whose_pass_is_shorter() {
    const LONG: UnixMs = UnixMs(900_000);
    const SHORT: UnixMs = UnixMs(50_000);
    let attempt =
        |order, pass_expires_at| Try { buyer: "ann", order: OrderId(order), quantity: 1, pass_expires_at };
    let bought = || {
        let gate = Memory::seeded(1, WINDOW);
        for (order, expiry) in [(1, LONG), (2, SHORT)] {
            let Decision::Granted(grant) = gate.gate.claim(&gate.offer, &attempt(order, expiry), OPEN) else {
                panic!("not granted")
            };
            gate.gate.commit(&grant);
            assert!(gate.release("ann", order, 3));
        }
        gate
    };
    let loaded = |live: u128| {
        move || {
            let gate = Memory::seeded(1, WINDOW);
            for (order, pass_expires_at) in [(1, LONG), (2, SHORT)] {
                let buyer = "ann";
                let order = SeedOrder {
                    buyer,
                    order: OrderId(order),
                    quantity: 1,
                    pass_expires_at,
                    live: order == live,
                };
                gate.gate.seed_order(&gate.offer, &order);
            }
            gate.release("ann", live, 3);
            gate
        }
    };
    let undone = || {
        let gate = bought();
        let Decision::Granted(grant) = gate.gate.claim(&gate.offer, &attempt(3, SHORT), OPEN) else {
            panic!("not granted")
        };
        gate.gate.roll_back(&grant);
        gate
    };
    let loaded_again = || {
        let gate = loaded(0)();
        let order =
            SeedOrder { buyer: "ann", order: OrderId(2), quantity: 1, pass_expires_at: SHORT, live: true };
        gate.gate.seed_order(&gate.offer, &order);
        assert!(gate.release("ann", 2, 3));
        gate
    };
    let pasts: [&dyn Fn() -> Memory; 6] =
        [&bought, &loaded(0), &loaded(1), &loaded(2), &loaded_again, &undone];
    for (number, past) in pasts.iter().enumerate() {
        let gate = past();
        gate.gate.forget_expired(UnixMs(200_000));
        gate.set_state(SaleState::Ended);
        assert_eq!(gate.claim("ann", 1, 1, OPEN), Verdict::Spent, "{number}");
        gate.gate.forget_expired(UnixMs(1_000_000));
        assert_eq!(gate.claim("ann", 1, 1, OPEN), Verdict::Ended, "{number}");
    }
}

#[test]
fn a_revival_that_is_rolled_back_leaves_the_pass_spent_and_the_unit_free() {
    let gate = Memory::seeded(1, WINDOW);
    gate.claim("ann", 1, 1, OPEN);
    gate.release("ann", 1, 3);
    let attempt = Try { buyer: "ann", order: OrderId(1), quantity: 1, pass_expires_at: UnixMs(99_000) };
    let Decision::Granted(grant) = gate.gate.revive(&gate.offer, &attempt, 3, OPEN) else {
        panic!("not granted")
    };
    let Decision::Wait(mut again) = gate.gate.revive(&gate.offer, &attempt, 3, OPEN) else {
        panic!("must wait")
    };
    gate.gate.roll_back(&grant);
    drop(grant);
    assert_eq!(again.try_recv(), Ok(doorbuster::gate::Outcome::RolledBack));
    assert_eq!((gate.free(), gate.gate.room().taken()), (1, 0));
    assert_eq!(gate.claim("ann", 1, 1, OPEN), Verdict::Spent);
    assert_eq!(gate.revive("ann", 1, 1, 3), Verdict::Granted, "late money may ask again");
}

#[test]
fn a_release_that_the_gate_began_with_is_told_apart() {
    let gate = MemoryGate::new(1, (3, 4));
    let seed = Seed { offer: OfferId(1), state: SaleState::Published, window: WINDOW, free: 1, change_no: 7 };
    let offer = gate.seed(&seed).unwrap();
    assert!(offer.began_with(7) && !offer.began_with(8));
}

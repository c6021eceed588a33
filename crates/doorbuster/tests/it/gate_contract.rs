//! The contract of every gate. An implementation joins by implementing [`GateUnderTest`] and calling [`contract!`].

use std::sync::Arc;

use doorbuster::gate::{Decision, MemoryGate, OfferGate, Seed, Try};
use proptest::prelude::*;
use rules::admission::{Model, Verdict};
use rules::id::{OfferId, OrderId};
use rules::sale::{SaleState, Window};
use rules::time::UnixMs;

/// What a gate must be able to do, with every grant made durable at once.
trait GateUnderTest {
    fn seeded(stock: u32, window: Window) -> Self;
    fn claim(&self, buyer: &str, order: u128, quantity: u32, now: UnixMs) -> Verdict;
    fn release(&self, buyer: &str, order: u128) -> bool;
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

impl GateUnderTest for Memory {
    fn seeded(stock: u32, window: Window) -> Self {
        let gate = MemoryGate::new(1_000, (3, 4));
        let seed = Seed { offer: OfferId(1), state: SaleState::Published, window, free: stock, change_no: 0 };
        let offer = gate.seed(&seed).unwrap();
        Self { gate, offer, window }
    }

    fn claim(&self, buyer: &str, order: u128, quantity: u32, now: UnixMs) -> Verdict {
        let attempt = Try { buyer, order: OrderId(order), quantity, pass_expires_at: UnixMs(i64::MAX) };
        match self.gate.claim(&self.offer, &attempt, now) {
            Decision::Granted(grant) => {
                self.gate.commit(&grant);
                Verdict::Granted
            }
            Decision::Answer(verdict) => verdict,
            Decision::Wait(_) => panic!("no grant is pending"),
        }
    }

    fn release(&self, buyer: &str, order: u128) -> bool {
        self.gate.release(&self.offer, buyer, OrderId(order))
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
    assert!(gate.release("ann", 1));
    assert!(!gate.release("ann", 1));
    assert_eq!(gate.claim("ann", 1, 2, OPEN), Verdict::Spent);
    assert_eq!(gate.claim("bob", 2, 1, OPEN), Verdict::Granted);
    assert_eq!(gate.claim("cyd", 3, 2, OPEN), Verdict::NotEnough { available: 1 });
    assert_eq!(gate.claim("ann", 4, 1, OPEN), Verdict::Granted);
    assert_eq!(gate.claim("ann", 1, 2, OPEN), Verdict::Spent);
}

fn a_late_release_of_an_earlier_order_changes_nothing<G: GateUnderTest>() {
    let gate = G::seeded(3, WINDOW);
    gate.claim("ann", 1, 1, OPEN);
    gate.release("ann", 1);
    gate.claim("ann", 2, 1, OPEN);
    assert!(!gate.release("ann", 1));
    assert!(!gate.release("bob", 2));
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

fn it_agrees_with_the_model<G: GateUnderTest>(steps: &[Step]) {
    let gate = G::seeded(4, WINDOW);
    let mut model = Model::default();
    model.seed(OfferId(1), WINDOW, 4);
    let mut change_no = 0;
    for step in steps {
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
                gate.release(&name, order);
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
    Raise(u32),
    Lower(u32),
    State(SaleState),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u8..5, 0_u8..3, 1_u32..4, 8_i64..22)
            .prop_map(|(buyer, order, quantity, now)| Step::Claim { buyer, order, quantity, now }),
        3 => (0_u8..5, 0_u8..3).prop_map(|(buyer, order)| Step::Release { buyer, order }),
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

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(512))]

                #[test]
                fn it_agrees_with_the_model(steps in prop::collection::vec(step(), 0..60)) {
                    super::it_agrees_with_the_model::<$gate>(&steps);
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
        gate.gate.release(&gate.offer, "ann", OrderId(order));
    }
    gate.gate.forget_expired(UnixMs(50_000));
    for order in 1..=3 {
        let decision = gate.gate.claim(&gate.offer, &attempt(order, 50_000), OPEN);
        assert!(matches!(decision, Decision::Answer(Verdict::Spent)), "{order}: {decision:?}");
    }
    gate.gate.forget_expired(UnixMs(52_000));
    assert!(matches!(gate.gate.claim(&gate.offer, &attempt(1, 50_000), OPEN), Decision::Granted(_)));
}

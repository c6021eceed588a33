//! The gate's own source, compiled against primitives whose every step the scheduler decides: thousands of ways in
//! which threads can meet, instead of the few that happen.

mod sync;

#[path = "../../../src/gate/table.rs"]
mod table;

#[path = "../../../src/gate/room.rs"]
#[expect(dead_code, reason = "the room is used whole by the product, in part here")]
mod room;

#[path = "../../../src/gate/memory.rs"]
#[expect(dead_code, reason = "the gate is used whole by the product, in part here")]
mod memory;

use std::sync::Arc;

use memory::{Decision, MemoryGate, OfferGate, Seed, Try};
use rules::admission::Verdict;
use rules::id::{OfferId, OrderId};
use rules::sale::{SaleState, Window};
use rules::time::UnixMs;

/// Schedules per scenario: enough to meet every pair of steps many times, within a second or two.
const SCHEDULES: usize = 3_000;

const WINDOW: Window = Window { opens_at: UnixMs(0), closes_at: UnixMs(1_000_000) };
const NOW: UnixMs = UnixMs(5);

fn explore(scenario: impl Fn() + Send + Sync + 'static) {
    let scenario = Arc::new(scenario);
    let random = Arc::clone(&scenario);
    shuttle::check_random(move || random(), SCHEDULES);
    shuttle::check_pct(move || scenario(), SCHEDULES, 3);
}

fn gate(stock: u32) -> (Arc<MemoryGate>, Arc<OfferGate>) {
    // Every buyer in this gate meets every other: the keys are fixed and so are the shards.
    let gate = Arc::new(MemoryGate::new(16, (1, 2)));
    let seed =
        Seed { offer: OfferId(1), state: SaleState::Published, window: WINDOW, free: stock, change_no: 0 };
    let offer = gate.seed(&seed).unwrap();
    (gate, offer)
}

fn attempt(buyer: &str, order: u128) -> Try<'_> {
    Try { buyer, order: OrderId(order), quantity: 1, pass_expires_at: UnixMs(100_000) }
}

/// Claims and makes it durable, as gate and journal do together. `None`: told to wait for a pending grant.
fn claim(gate: &MemoryGate, offer: &Arc<OfferGate>, buyer: &str, order: u128) -> Option<Verdict> {
    match gate.claim(offer, &attempt(buyer, order), NOW) {
        Decision::Granted(grant) => {
            gate.commit(&grant);
            Some(Verdict::Granted)
        }
        Decision::Answer(verdict) => Some(verdict),
        Decision::Wait(_) => None,
    }
}

fn claim_until_answered(gate: &MemoryGate, offer: &Arc<OfferGate>, buyer: &str, order: u128) -> Verdict {
    loop {
        if let Some(verdict) = claim(gate, offer, buyer, order) {
            return verdict;
        }
        shuttle::thread::yield_now();
    }
}

#[test]
fn stock_is_given_away_exactly_once_in_every_interleaving() {
    explore(|| {
        let (gate, offer) = gate(2);
        let threads: Vec<_> = ["ann", "bob", "cyd"]
            .into_iter()
            .zip(1..)
            .map(|(buyer, order)| {
                let (gate, offer) = (Arc::clone(&gate), Arc::clone(&offer));
                shuttle::thread::spawn(move || claim_until_answered(&gate, &offer, buyer, order))
            })
            .collect();
        let verdicts: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let granted = verdicts.iter().filter(|verdict| **verdict == Verdict::Granted).count();
        assert_eq!((granted, offer.free()), (2, 0), "{verdicts:?}");
    });
}

#[test]
fn a_double_click_on_the_last_unit_is_never_told_sold_out() {
    explore(|| {
        let (gate, offer) = gate(1);
        let clicks: Vec<_> = [1, 2]
            .map(|order| {
                let (gate, offer) = (Arc::clone(&gate), Arc::clone(&offer));
                shuttle::thread::spawn(move || claim_until_answered(&gate, &offer, "ann", order))
            })
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        let granted = clicks.iter().filter(|verdict| **verdict == Verdict::Granted).count();
        let repeated =
            clicks.iter().filter(|verdict| matches!(verdict, Verdict::AlreadyOrdered { .. })).count();
        assert_eq!((granted, repeated, offer.free()), (1, 1, 0), "{clicks:?}");
    });
}

#[test]
fn a_released_unit_is_neither_lost_nor_doubled() {
    explore(|| {
        let (gate, offer) = gate(1);
        assert_eq!(claim(&gate, &offer, "ann", 1), Some(Verdict::Granted));
        let release = || {
            let (gate, offer) = (Arc::clone(&gate), Arc::clone(&offer));
            shuttle::thread::spawn(move || gate.release(&offer, "ann", OrderId(1)))
        };
        let (first, second) = (release(), release());
        let bob = {
            let (gate, offer) = (Arc::clone(&gate), Arc::clone(&offer));
            shuttle::thread::spawn(move || claim_until_answered(&gate, &offer, "bob", 2))
        };
        let released = [first.join().unwrap(), second.join().unwrap()];
        assert_eq!(released.iter().filter(|released| **released).count(), 1);
        let held = u32::from(bob.join().unwrap() == Verdict::Granted);
        assert_eq!(offer.free() + held, 1);
    });
}

#[test]
fn after_a_pause_returns_nobody_is_granted() {
    explore(|| {
        let (gate, offer) = gate(2);
        let buyer = {
            let (gate, offer) = (Arc::clone(&gate), Arc::clone(&offer));
            shuttle::thread::spawn(move || {
                claim_until_answered(&gate, &offer, "ann", 1);
                claim_until_answered(&gate, &offer, "bob", 2);
            })
        };
        gate.set_doors(&[Arc::clone(&offer)], SaleState::Paused, WINDOW);
        let left = offer.free();
        buyer.join().unwrap();
        assert_eq!(offer.free(), left);
    });
}

#[test]
fn a_rolled_back_grant_leaves_nothing_behind() {
    explore(|| {
        let (gate, offer) = gate(1);
        let Decision::Granted(grant) = gate.claim(&offer, &attempt("ann", 1), NOW) else {
            panic!("not granted")
        };
        let again = {
            let (gate, offer) = (Arc::clone(&gate), Arc::clone(&offer));
            shuttle::thread::spawn(move || claim_until_answered(&gate, &offer, "ann", 1))
        };
        gate.roll_back(&grant);
        drop(grant);
        assert_eq!(again.join().unwrap(), Verdict::Granted);
        assert_eq!((offer.free(), gate.room().taken()), (0, 0));
    });
}

#[test]
fn a_growing_table_hides_nobody() {
    explore(|| {
        let table = Arc::new(table::Table::new());
        let key = |n: u64| table::Key { high: n << 56, low: n };
        let entry = table::Entry {
            mark: table::Mark::Live,
            order: 1,
            quantity: 1,
            offer_no: 0,
            pass_expires_at_s: 0,
        };
        for n in 0..12 {
            table.set(key(n), &entry, |_| true);
        }
        let reader = {
            let table = Arc::clone(&table);
            shuttle::thread::spawn(move || (0..12).all(|n| table.contains(key(n))))
        };
        for n in 12..20 {
            table.set(key(n), &entry, |_| true);
        }
        assert!(reader.join().unwrap());
        assert!((0..20).all(|n| table.contains(key(n))));
    });
}

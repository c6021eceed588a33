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

use memory::{Decision, MemoryGate, OfferGate, Release, Returned, Seed, Try};
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

/// Ann's order 1 has ended by its fact number `seq`. Whether its unit is free now.
fn release(gate: &MemoryGate, offer: &OfferGate, seq: u32) -> bool {
    let release = Release { buyer: "ann", order: OrderId(1), seq, restock: true };
    matches!(gate.release(offer, &release), Returned::Free { .. })
}

/// Late money for ann's order 1, which closed by its third fact. Whether it has the unit.
fn revive(gate: &MemoryGate, offer: &Arc<OfferGate>) -> bool {
    loop {
        match gate.revive(offer, &attempt("ann", 1), 3, NOW) {
            Decision::Granted(grant) => {
                gate.commit(&grant);
                return true;
            }
            Decision::Answer(verdict) => return verdict == Verdict::Repeat,
            Decision::Wait(_) => shuttle::thread::yield_now(),
        }
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
        let releasing = || {
            let (gate, offer) = (Arc::clone(&gate), Arc::clone(&offer));
            shuttle::thread::spawn(move || release(&gate, &offer, 3))
        };
        let (first, second) = (releasing(), releasing());
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
fn two_refills_with_a_sale_in_between_never_lift_the_gate_above_the_stock() {
    explore(|| {
        let (gate, offer) = gate(1);
        assert_eq!(claim(&gate, &offer, "ann", 1), Some(Verdict::Granted));
        let refill = |change_no: u64| {
            let (gate, offer) = (Arc::clone(&gate), Arc::clone(&offer));
            shuttle::thread::spawn(move || {
                let raised = gate.raise(&offer, 1, change_no);
                (release(&gate, &offer, 3), raised)
            })
        };
        // The same release and the same raise, told twice.
        let refills = [refill(7), refill(7)];
        let buyers: Vec<_> = [("bob", 2), ("cyd", 3), ("dan", 4)]
            .into_iter()
            .map(|(buyer, order)| {
                let (gate, offer) = (Arc::clone(&gate), Arc::clone(&offer));
                shuttle::thread::spawn(move || claim_until_answered(&gate, &offer, buyer, order))
            })
            .collect();
        let told: Vec<_> = refills.into_iter().map(|refill| refill.join().unwrap()).collect();
        assert_eq!(told.iter().filter(|(released, _)| *released).count(), 1, "{told:?}");
        assert_eq!(told.iter().filter(|(_, raised)| *raised).count(), 1, "{told:?}");
        let verdicts: Vec<_> = buyers.into_iter().map(|buyer| buyer.join().unwrap()).collect();
        let held = verdicts.iter().filter(|verdict| **verdict == Verdict::Granted).count();
        assert_eq!(offer.free() + u32::try_from(held).unwrap(), 2, "{verdicts:?}");
    });
}

#[test]
fn late_money_a_late_release_and_the_next_buyer_share_one_unit() {
    explore(|| {
        let (gate, offer) = gate(1);
        assert_eq!(claim(&gate, &offer, "ann", 1), Some(Verdict::Granted));
        let spawn = |work: fn(&MemoryGate, &Arc<OfferGate>) -> bool| {
            let (gate, offer) = (Arc::clone(&gate), Arc::clone(&offer));
            shuttle::thread::spawn(move || work(&gate, &offer))
        };
        // The ledger has closed ann's order: its release is on its way, twice, and so is money for it, twice.
        let releases = [(); 2].map(|()| spawn(|gate, offer| release(gate, offer, 3)));
        let money = [(); 2].map(|()| spawn(revive));
        let bob = spawn(|gate, offer| claim_until_answered(gate, offer, "bob", 2) == Verdict::Granted);
        for release in releases {
            release.join().unwrap();
        }
        let revived = money.map(|money| money.join().unwrap()).contains(&true);
        let held = u32::from(revived) + u32::from(bob.join().unwrap());
        assert_eq!(offer.free() + held, 1, "revived: {revived}");
        assert!(revived || held == 1, "the unit went to nobody who asked for it");
        assert_eq!(release(&gate, &offer, 6), revived, "what was revived can be refunded, once");
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

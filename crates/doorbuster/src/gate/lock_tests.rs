//! What the gate says while every lock that a grant may wait for is held. Beside the gate and not inside, as the tests of
//! its table are.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rules::admission::Verdict;
use rules::id::{OfferId, OrderId};
use rules::sale::{SaleState, Window};
use rules::time::UnixMs;

use super::memory::{Decision, MemoryGate, OfferGate, Seed, Try};

/// Generous: the machine may do other work for a while.
const SOON: Duration = Duration::from_secs(60);

/// Long enough that whoever waits for no lock would have answered; a slow machine makes the test easier, not wrong.
const A_WHILE: Duration = Duration::from_millis(50);

const WINDOW: Window = Window { opens_at: UnixMs(1_000), closes_at: UnixMs(2_000) };
const OPEN: UnixMs = UnixMs(1_500);

fn gate(state: SaleState, free: u32) -> (Arc<MemoryGate>, Arc<OfferGate>) {
    let gate = Arc::new(MemoryGate::new(16, (1, 2)));
    let seed = Seed { offer: OfferId(1), state, window: WINDOW, free, change_no: 0 };
    let offer = gate.seed(&seed).unwrap();
    (gate, offer)
}

/// A try of somebody of whom the gate knows nothing, on a thread of its own, while all locks are held; then they are let
/// go, so that a failure is told and does not hang.
fn while_all_is_locked(
    (gate, offer): (Arc<MemoryGate>, Arc<OfferGate>),
    now: UnixMs,
    patience: Duration,
) -> Result<Decision, RecvTimeoutError> {
    let locks = gate.hold_every_lock();
    let (say, said) = mpsc::channel();
    let trying = Arc::clone(&gate);
    let thread = std::thread::spawn(move || {
        let attempt =
            Try { buyer: "nobody", order: OrderId(7), quantity: 1, pass_expires_at: UnixMs(100_000) };
        let _heard = say.send(trying.claim(&offer, &attempt, now));
    });
    let decision = said.recv_timeout(patience);
    drop(locks);
    thread.join().unwrap();
    decision
}

#[test]
fn who_can_get_nothing_is_told_so_without_a_lock() {
    for (what, gate, now, expected) in [
        ("dry", gate(SaleState::Published, 0), OPEN, Verdict::SoldOut),
        ("paused", gate(SaleState::Paused, 5), OPEN, Verdict::Paused),
        ("not open", gate(SaleState::Published, 5), UnixMs(999), Verdict::NotOpen { opens_in_ms: 1 }),
        ("over", gate(SaleState::Published, 5), UnixMs(2_000), Verdict::Ended),
    ] {
        match while_all_is_locked(gate, now, SOON) {
            Ok(Decision::Answer(verdict)) => assert_eq!(verdict, expected, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn who_may_get_something_waits_for_the_lock() {
    let decision = while_all_is_locked(gate(SaleState::Published, 5), OPEN, A_WHILE);
    assert!(matches!(decision, Err(RecvTimeoutError::Timeout)), "the locks that are held are the right ones");
}

//! The protocol is right, and each way of getting it wrong is found out.

mod mistake;
mod model;
mod promises;

use stateright::{Checker as _, Expectation, HasDiscoveries, Model as _};

use mistake::Mistake;
use model::{CaptureOf, Protocol};
use promises::*;

const THREADS: usize = 2;

/// One unit, two buyers who want it, and the first one's money, which may come at any time.
fn one_unit() -> Protocol {
    Protocol {
        stock: 1,
        buyers: vec![0, 1],
        captures: vec![CaptureOf { order: 0, whole_amount: true }],
        events_per_capture: 1,
        payments_are_started: false,
        buyers_cancel: false,
        operator_refunds: false,
        sale_ends: false,
        crashes: 1,
        redeliveries: 0,
        refund_refusals: 0,
        slow_workers: 0,
        mistake: None,
    }
}

/// All states, all promises, and each of these seen at least once.
fn holds(protocol: Protocol, seen: &[&'static str]) {
    let checker = protocol.checker().threads(THREADS).spawn_bfs().join();
    let found = checker.discoveries();
    for property in checker.model().properties() {
        if let (Expectation::Always, Some(path)) = (&property.expectation, found.get(property.name)) {
            panic!("broken: {}\n{:#?}", property.name, path.clone().into_actions());
        }
    }
    println!("{} states, {} of them different", checker.state_count(), checker.unique_state_count());
    for name in seen {
        assert!(found.contains_key(name), "never seen: {name}");
    }
}

/// The checker finds a way in which this mistake, and nothing but the mistake, breaks each of these promises.
fn is_refuted(protocol: &Protocol, mistake: Mistake, promises: &[&'static str]) {
    holds(protocol.clone(), &[]);
    let until = HasDiscoveries::AllOf(promises.iter().copied().collect());
    let checker = protocol.with(mistake).checker().threads(THREADS).finish_when(until).spawn_bfs().join();
    for promise in promises {
        let path =
            checker.discovery(promise).unwrap_or_else(|| panic!("{mistake:?} does not break: {promise}"));
        println!("{mistake:?} breaks: {promise}\n{:#?}", path.into_actions());
    }
}

fn capture_of(order: usize) -> CaptureOf {
    CaptureOf { order, whole_amount: true }
}

#[test]
fn one_unit_and_a_buyer_who_tries_twice() {
    let protocol = Protocol {
        buyers: vec![0, 0, 1],
        events_per_capture: 2,
        buyers_cancel: true,
        operator_refunds: true,
        ..one_unit()
    };
    let seen =
        [REVIVED, RESOLD, OTHER_LIVE, SECOND_RELEASE, BEFORE_RECORDED, CANCELLED_AND_PAID, CRASH_KEPT_CLAIM];
    holds(protocol, &seen);
}

#[test]
fn two_captures_of_one_order() {
    let captures = vec![capture_of(0), capture_of(0)];
    let protocol = Protocol { captures, buyers_cancel: true, operator_refunds: true, ..one_unit() };
    let seen = [REVIVED, RESOLD, SECOND_CAPTURE, SECOND_RELEASE, CANCELLED_AND_PAID, REFUSED_IN_VAIN];
    holds(protocol, &seen);
}

#[test]
fn a_payment_that_was_started_and_refunds_that_are_refused() {
    let captures = vec![CaptureOf { order: 0, whole_amount: false }, capture_of(0)];
    let protocol = Protocol { captures, payments_are_started: true, refund_refusals: 1, ..one_unit() };
    holds(protocol, &[REVIVED, RESOLD, WRONG_AMOUNT, CLOSED_PAYMENT_CAPTURED, REFUND_RETRIED]);
}

#[test]
fn two_units_two_buyers_and_money_of_both() {
    let captures = vec![capture_of(0), capture_of(2)];
    let protocol =
        Protocol { stock: 2, buyers: vec![0, 0, 1], captures, buyers_cancel: true, crashes: 2, ..one_unit() };
    holds(protocol, &[REVIVED, OTHER_LIVE, BEFORE_RECORDED, CANCELLED_AND_PAID, CRASH_KEPT_CLAIM]);
}

#[test]
fn claims_that_are_delivered_again_and_two_crashes() {
    let protocol =
        Protocol { crashes: 2, redeliveries: 2, buyers_cancel: true, operator_refunds: true, ..one_unit() };
    holds(protocol, &[REVIVED, RESOLD, SECOND_RELEASE, CRASH_KEPT_CLAIM]);
}

#[test]
fn the_sale_ends_and_the_ledger_decides_alone() {
    let protocol = Protocol { buyers: vec![0, 0, 1], sale_ends: true, buyers_cancel: true, ..one_unit() };
    holds(protocol, &[REVIVED, OTHER_LIVE, BY_THE_LEDGER, AFTER_THE_SALE]);
}

#[test]
fn a_worker_looks_at_late_money_and_asks_the_gate_much_later() {
    let protocol = Protocol { operator_refunds: true, slow_workers: 1, ..one_unit() };
    holds(protocol, &[REVIVED, RESOLD, SECOND_RELEASE, ASKED_TOO_LATE]);
}

#[test]
fn two_captures_and_workers_who_ask_the_gate_late() {
    let captures = vec![capture_of(0), capture_of(0)];
    holds(Protocol { captures, slow_workers: 2, ..one_unit() }, &[REVIVED, SECOND_CAPTURE, ASKED_TOO_LATE]);
}

#[test]
fn a_release_must_not_let_go_of_what_came_after_it() {
    let protocol = one_unit();
    is_refuted(&protocol, Mistake::EarlierReleaseCounts, &[UNITS_ADD_UP, NEVER_OVERSOLD]);
}

#[test]
fn a_revival_that_comes_too_late_must_give_its_unit_back() {
    let protocol = Protocol { operator_refunds: true, slow_workers: 1, ..one_unit() };
    is_refuted(&protocol, Mistake::TooLateLooksRecorded, &[UNITS_ADD_UP, REST_IS_CLEAN]);
}

#[test]
fn a_revival_must_go_through_the_gate() {
    let protocol = one_unit();
    is_refuted(&protocol, Mistake::ReviveWithoutGate, &[NEVER_OVERSOLD, UNITS_ADD_UP, LEDGER_AGREES]);
}

#[test]
fn a_revival_must_wait_for_the_release() {
    let protocol = one_unit();
    is_refuted(&protocol, Mistake::ReviveBeforeRelease, &[NEVER_OVERSOLD, UNITS_ADD_UP]);
}

#[test]
fn the_ledger_must_wait_for_the_queue() {
    let protocol = Protocol { sale_ends: true, ..one_unit() };
    is_refuted(&protocol, Mistake::LedgerDecidesTooEarly, &[NEVER_OVERSOLD, LEDGER_AGREES]);
}

#[test]
fn a_revival_for_nothing_must_give_its_unit_back() {
    let protocol = one_unit();
    is_refuted(&protocol, Mistake::DecidedMoneyLooksRecorded, &[UNITS_ADD_UP, REST_IS_CLEAN]);
}

#[test]
fn a_spent_pass_must_not_hide_another_live_order() {
    let protocol = Protocol { stock: 2, buyers: vec![0, 0], ..one_unit() };
    is_refuted(&protocol, Mistake::SpentPassHidesOtherOrder, &[ONE_LIVE_ORDER, LEDGER_AGREES]);
}

#[test]
fn a_rebuilt_gate_must_know_its_releases() {
    let protocol = one_unit();
    is_refuted(&protocol, Mistake::ReleaseAgainAfterCrash, &[RELEASED_ONCE, NEVER_OVERSOLD]);
}

#[test]
fn an_order_must_be_able_to_release_twice() {
    let protocol = Protocol { operator_refunds: true, ..one_unit() };
    is_refuted(&protocol, Mistake::ReleaseOncePerOrder, &[UNITS_ADD_UP, REST_IS_CLEAN]);
}

#[test]
fn a_repeated_claim_must_not_release() {
    let protocol = Protocol { redeliveries: 1, ..one_unit() };
    is_refuted(&protocol, Mistake::ReleaseOnRedelivery, &[UNITS_ADD_UP, NEVER_OVERSOLD]);
}

#[test]
fn a_rebuild_must_count_the_journal() {
    let protocol = one_unit();
    is_refuted(&protocol, Mistake::RebuildWithoutJournal, &[NEVER_OVERSOLD, LEDGER_AGREES]);
}

#[test]
fn a_rebuild_must_know_spent_passes() {
    let protocol = one_unit();
    is_refuted(&protocol, Mistake::RebuildWithoutSpentPasses, &[SPENT_STAYS_SPENT]);
}

#[test]
fn settling_must_tell_cancelled_from_late() {
    let protocol = Protocol { buyers_cancel: true, ..one_unit() };
    is_refuted(&protocol, Mistake::SettleIgnoresCancelled, &[LEDGER_AGREES, REST_IS_CLEAN]);
}

#[test]
fn a_second_capture_must_go_back() {
    let protocol = Protocol { captures: vec![capture_of(0), capture_of(0)], ..one_unit() };
    is_refuted(&protocol, Mistake::ApplySecondCapture, &[MONEY_FITS_ORDERS]);
}

#[test]
fn a_timeout_must_look_for_captures() {
    let protocol = one_unit();
    is_refuted(&protocol, Mistake::TimeoutIgnoresCapture, &[IN_TIME_IS_IN_TIME]);
}

#[test]
fn a_cancel_must_look_for_captures() {
    let protocol = Protocol { buyers_cancel: true, ..one_unit() };
    is_refuted(&protocol, Mistake::CancelIgnoresCapture, &[IN_TIME_IS_IN_TIME]);
}

#[test]
fn a_capture_must_be_known_by_its_own_id() {
    let protocol = Protocol { events_per_capture: 2, ..one_unit() };
    is_refuted(&protocol, Mistake::DedupeByEvent, &[MONEY_ENDS_ONCE, REST_IS_CLEAN]);
}

#[test]
fn a_refund_must_be_asked_for_with_one_key() {
    let protocol = one_unit();
    is_refuted(&protocol, Mistake::RefundWithFreshKey, &[MONEY_ENDS_ONCE, REST_IS_CLEAN]);
}

#[test]
fn a_refund_must_return_its_units() {
    let protocol = Protocol { operator_refunds: true, ..one_unit() };
    is_refuted(&protocol, Mistake::RefundStrandsUnits, &[UNITS_ADD_UP, REST_IS_CLEAN]);
}

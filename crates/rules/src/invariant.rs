//! The promises as checks over plain numbers. The auditor judges orders and money by `fits` and `check_money`. Books and
//! live orders it compares row by row while it reads, with more evidence than a sum has; `check_books` and
//! `check_one_live_order` say the same about a whole ledger at rest, for tests and the model of the protocol.

use std::collections::BTreeMap;

use crate::buyer::BuyerId;
use crate::id::{OfferId, OrderId};
use crate::order;
use crate::payment;

/// An offer's books at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Books {
    pub offer: OfferId,
    pub stock: u32,
    /// Units the gate would still give away.
    pub free: u32,
    /// Units queued or awaiting payment.
    pub held: u32,
    /// Units paid for.
    pub sold: u32,
    /// Units given back in the ledger, not yet in the gate.
    pub returning: u32,
    /// The counter the ledger keeps of live units.
    pub live_counter: u32,
    /// Live units as summed over the ledger's orders.
    pub live_units: u32,
}

/// One order as the invariants see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveOrder {
    pub order: OrderId,
    pub offer: OfferId,
    pub buyer: BuyerId,
}

/// An order and its money as the invariants see them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderMoney {
    pub order: OrderId,
    pub state: order::State,
    pub payments: Vec<payment::Status>,
}

/// A promise that does not hold, with its evidence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("oversold: offer {offer} has {live} live units of a stock of {stock}")]
    Oversold { offer: OfferId, live: u32, stock: u32 },
    #[error("counter: offer {offer} counts {counter} live units, its orders hold {live}")]
    Counter { offer: OfferId, counter: u32, live: u32 },
    #[error("units: offer {offer}: free + held + sold + returning = {sum}, its stock is {stock}")]
    Units { offer: OfferId, sum: u64, stock: u32 },
    #[error("one live order: a buyer of offer {offer} has both {first} and {second}")]
    OneLiveOrder { offer: OfferId, first: OrderId, second: OrderId },
    #[error("money: order {order} is {}, and {found} of its payments fit that instead of {due}", .state.as_str())]
    Money { order: OrderId, state: order::State, found: usize, due: usize },
}

/// Promises 1 and 2 for an offer at a quiet moment.
#[must_use]
pub fn check_books(books: &Books) -> Vec<Violation> {
    let Books { offer, stock, free, held, sold, returning, live_counter, live_units } = *books;
    let mut violations = Vec::new();
    if live_units > stock {
        violations.push(Violation::Oversold { offer, live: live_units, stock });
    }
    if live_counter != live_units {
        violations.push(Violation::Counter { offer, counter: live_counter, live: live_units });
    }
    let sum = u64::from(free) + u64::from(held) + u64::from(sold) + u64::from(returning);
    if sum != u64::from(stock) {
        violations.push(Violation::Units { offer, sum, stock });
    }
    violations
}

/// Promise 3 over all live orders.
#[must_use]
pub fn check_one_live_order(orders: &[LiveOrder]) -> Vec<Violation> {
    let mut first: BTreeMap<(OfferId, &BuyerId), OrderId> = BTreeMap::new();
    let mut violations = Vec::new();
    for LiveOrder { order, offer, buyer } in orders {
        if let Some(earlier) = first.insert((*offer, buyer), *order) {
            violations.push(Violation::OneLiveOrder { offer: *offer, first: earlier, second: *order });
        }
    }
    violations
}

/// Whether an order may look like this: what [`order::next`] leaves behind, and nothing else. It holds units until it has
/// ended, and an order that closed or was refused says why.
#[must_use]
pub fn fits(status: order::Status) -> bool {
    use order::Reason::{Cancelled, IdClash, Internal, NoStock, OtherLive, StaleEpoch, Timeout};
    use order::State::{AwaitingPayment, Closed, Paid, Queued, RefundFailed, Refunded, Refunding, Refused};
    match (status.state, status.reason) {
        (Queued | AwaitingPayment | Paid | Refunding | RefundFailed, None) => status.holds_units,
        (Refunded, None) | (Closed, Some(Timeout | Cancelled)) => !status.holds_units,
        (Refused, Some(NoStock | OtherLive | IdClash | StaleEpoch | Internal)) => !status.holds_units,
        _ => false,
    }
}

/// Promise 6 for one order: a paid order has exactly one applied payment, a refund of it exactly one that is as far,
/// and an order that was never paid has none. A refunded order stays so when its provider fails after all: its payment
/// goes back once more.
#[must_use]
pub fn check_money(money: &OrderMoney) -> Option<Violation> {
    use payment::State::{Applied, RefundDue, RefundFailed, Refunded, Refunding};
    let OrderMoney { order, state, payments } = money;
    let fitting: &[payment::State] = match state {
        order::State::Queued
        | order::State::AwaitingPayment
        | order::State::Closed
        | order::State::Refused => &[],
        order::State::Paid => &[Applied],
        order::State::Refunding => &[RefundDue, Refunding],
        order::State::Refunded => &[Refunded, RefundFailed, Refunding],
        order::State::RefundFailed => &[RefundFailed],
    };
    let its_own = || payments.iter().filter(|payment| payment.is_the_orders());
    let found = its_own().filter(|payment| fitting.contains(&payment.state)).count();
    let due = usize::from(!fitting.is_empty());
    let clean = found == due && its_own().count() == due;
    (!clean).then_some(Violation::Money { order: *order, state: *state, found, due })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean() -> Books {
        Books {
            offer: OfferId(1),
            stock: 10,
            free: 3,
            held: 4,
            sold: 2,
            returning: 1,
            live_counter: 6,
            live_units: 6,
        }
    }

    #[test]
    fn clean_books_pass() {
        assert_eq!(check_books(&clean()), []);
    }

    #[test]
    fn each_violation_is_found() {
        let oversold = Books { live_units: 11, live_counter: 11, ..clean() };
        assert!(matches!(check_books(&oversold)[..], [Violation::Oversold { .. }]));
        let counter = Books { live_counter: 5, ..clean() };
        assert!(matches!(check_books(&counter)[..], [Violation::Counter { .. }]));
        for stranded in [Books { free: 2, ..clean() }, Books { free: u32::MAX, ..clean() }] {
            assert!(matches!(check_books(&stranded)[..], [Violation::Units { .. }]));
        }
        let buyer = BuyerId::parse("ann").unwrap();
        let live = |order| LiveOrder { order: OrderId(order), offer: OfferId(1), buyer: buyer.clone() };
        assert_eq!(check_one_live_order(&[live(1)]), []);
        assert_eq!(check_one_live_order(&[live(1), live(2)]).len(), 1);
    }

    #[test]
    fn an_order_fits_exactly_when_its_life_can_lead_there() {
        let mut reached = vec![order::Status::QUEUED];
        let mut at = 0;
        while let Some(status) = reached.get(at).copied() {
            let refusals = [order::Reason::NoStock, order::Reason::OtherLive, order::Reason::IdClash];
            let more = [order::Reason::StaleEpoch, order::Reason::Internal];
            let refusals = refusals.into_iter().chain(more).map(order::Event::Refused);
            for event in order::Event::ALL.into_iter().chain(refusals) {
                reached.extend(order::next(status, event).ok().filter(|after| !reached.contains(after)));
            }
            at += 1;
        }
        let reasons = order::Reason::ALL.into_iter().map(Some).chain([None]);
        for (state, reason) in
            order::State::ALL.into_iter().flat_map(|s| reasons.clone().map(move |r| (s, r)))
        {
            for holds_units in [true, false] {
                let status = order::Status { state, reason, holds_units };
                assert_eq!(fits(status), reached.contains(&status), "{status:?}");
            }
        }
    }

    #[test]
    fn money_fits_its_order() {
        use payment::{RefundReason, State, Status};
        let applied = Status { state: State::Applied, reason: None };
        let requested = |state| Status { state, reason: Some(RefundReason::Requested) };
        let late = Status { state: State::Refunded, reason: Some(RefundReason::NoUnitLeft) };
        let check = |state, payments: &[Status]| {
            check_money(&OrderMoney { order: OrderId(1), state, payments: payments.to_vec() })
        };
        let clean: [(order::State, &[Status]); 9] = [
            (order::State::AwaitingPayment, &[Status::STARTED, late]),
            (order::State::Paid, &[late, applied, Status::CAPTURED]),
            (order::State::Refunding, &[requested(State::RefundDue)]),
            (order::State::Refunding, &[requested(State::Refunding)]),
            (order::State::Refunded, &[requested(State::Refunded), late]),
            (order::State::Refunded, &[requested(State::RefundFailed)]),
            (order::State::Refunded, &[requested(State::Refunding)]),
            (order::State::RefundFailed, &[requested(State::RefundFailed)]),
            (order::State::Closed, &[late]),
        ];
        for (state, payments) in clean {
            assert_eq!(check(state, payments), None);
        }
        let wrong: [(order::State, &[Status]); 7] = [
            (order::State::Paid, &[]),
            (order::State::Paid, &[late]),
            (order::State::Paid, &[applied, applied]),
            (order::State::Paid, &[applied, requested(State::Refunded)]),
            (order::State::AwaitingPayment, &[applied]),
            (order::State::Closed, &[requested(State::Refunded)]),
            (order::State::Refunded, &[requested(State::RefundDue)]),
        ];
        for (state, payments) in wrong {
            assert!(check(state, payments).is_some(), "{state:?} {payments:?}");
        }
    }
}

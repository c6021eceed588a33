//! What every ledger does with the claims of late money, when they come out of the queue.

use std::sync::Arc;

use doorbuster::ledger::money::QueueIsDrained;
use doorbuster::queue::{Claim, Revive};
use rules::id::PaymentId;
use rules::order::State;
use rules::payment::{RefundReason, State as PaymentState};

use super::deadlines::{PAY_BY, sweep};
use super::payments::{by_payment, captured, start, take};
use super::{Books, NOW, Recorded, assert_books_fit, buyer, claim, kinds, live_units, order, record, sqlite};

const PAYMENT: PaymentId = PaymentId(101);

/// An order of ann's that timed out, and the money for it that came too late.
async fn late(books: &Books) {
    record(books, vec![claim(1, 11, "ann", 2)]).await;
    start(books, 11, "ann", "sandbox", 101).await;
    books.ledger.close_payment(PAYMENT, NOW).await.unwrap();
    sweep(books, PAY_BY).await;
    take(books, captured("late", "cap", by_payment(101), 299_800, 9), PAY_BY).await;
}

fn revive(seq: u64) -> (u64, Arc<Claim>) {
    let (seq, claim) = claim(seq, 11, "ann", 2);
    let revives = Some(Revive { payment: PAYMENT, closing_seq: 3 });
    (seq, Arc::new(Claim { revives, ..(*claim).clone() }))
}

async fn state(books: &Books) -> (PaymentState, Option<RefundReason>) {
    let status = books.ledger.payment(PAYMENT).await.unwrap().unwrap().status;
    (status.state, status.reason)
}

async fn a_claim_of_late_money_pays_its_order_once(books: Books) {
    late(&books).await;
    let outcomes = record(&books, vec![claim(2, 12, "bob", 1), revive(3)]).await;
    assert_eq!(outcomes, [Recorded::Recorded, Recorded::Revived]);
    let revived = order(&books, 11).await;
    assert_eq!((revived.status.state, revived.seq, revived.payment), (State::Paid, 4, Some(PAYMENT)));
    assert_eq!((live_units(&books).await, state(&books).await), (3, (PaymentState::Applied, None)));
    let strikes = books.ledger.strikes_of(buyer("ann"), 10).await.unwrap();
    assert_eq!(strikes[0].strike.lifted_at, Some(NOW));
    assert_eq!(record(&books, vec![revive(3)]).await, [Recorded::RevivalRepeat]);
    assert_eq!((live_units(&books).await, books.ledger.cursor().await.unwrap()), (3, 3));
    assert_books_fit(&books).await;
}

async fn a_revival_that_finds_no_unit_gives_the_money_back(books: Books) {
    late(&books).await;
    let outcomes = record(&books, vec![claim(2, 12, "bob", 2), revive(3)]).await;
    let refund = Some(RefundReason::NoUnitLeft);
    assert_eq!(outcomes, [Recorded::Recorded, Recorded::NotRevived { refund }]);
    assert_eq!(state(&books).await, (PaymentState::RefundDue, refund));
    let closed = order(&books, 11).await;
    assert_eq!((closed.status.state, closed.seq), (State::Closed, 4), "its release has a number of its own");
    assert_eq!(record(&books, vec![revive(3)]).await, [Recorded::RevivalRepeat]);
    assert!(kinds(&books).contains(&"order.not_revived".to_owned()));
    assert_books_fit(&books).await;
}

async fn a_revival_beside_another_live_order_gives_the_money_back(books: Books) {
    late(&books).await;
    let outcomes = record(&books, vec![claim(2, 12, "ann", 1), revive(3)]).await;
    let refund = Some(RefundReason::OtherLive);
    assert_eq!(outcomes, [Recorded::Recorded, Recorded::NotRevived { refund }]);
    assert_eq!((live_units(&books).await, state(&books).await), (1, (PaymentState::RefundDue, refund)));
    assert_books_fit(&books).await;
}

async fn a_revival_whose_money_was_decided_meanwhile_gives_its_units_back(books: Books) {
    late(&books).await;
    books.ledger.refund_late(PAYMENT, RefundReason::NoUnitLeft, PAY_BY).await.unwrap();
    assert_eq!(record(&books, vec![revive(2)]).await, [Recorded::NotRevived { refund: None }]);
    assert_eq!((live_units(&books).await, order(&books, 11).await.seq), (0, 4));
    assert_books_fit(&books).await;
}

/// The sale ends while a claim is in the queue, and somebody lets the ledger decide too early: still paid once.
async fn a_revival_after_the_ledger_revived_alone_is_a_repeat(books: Books) {
    late(&books).await;
    books.ledger.revive_alone(PAYMENT, QueueIsDrained, PAY_BY).await.unwrap();
    assert_eq!(record(&books, vec![revive(2)]).await, [Recorded::RevivalRepeat]);
    assert_eq!(live_units(&books).await, 2);
    assert_books_fit(&books).await;
}

contract!(
    sqlite_ledger,
    sqlite,
    a_claim_of_late_money_pays_its_order_once(3),
    a_revival_that_finds_no_unit_gives_the_money_back(3),
    a_revival_beside_another_live_order_gives_the_money_back(10),
    a_revival_whose_money_was_decided_meanwhile_gives_its_units_back(2),
    a_revival_after_the_ledger_revived_alone_is_a_repeat(2),
);

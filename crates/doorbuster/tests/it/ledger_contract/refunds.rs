//! What every ledger does with money on its way back.

use doorbuster::ledger::StockChanged;
use doorbuster::ledger::money::{Notice, Payment, RefundAsked, RefundEnd, Taken, Told};
use rules::id::{OrderId, PaymentId};
use rules::order::State;
use rules::payment::{CaptureKey, RefundReason, State as PaymentState};

use super::deadlines::PAY_BY;
use super::payments::{by_payment, captured, start, take};
use super::{Books, NOW, OFFER, SALE, assert_books_fit, buyer, claim, kinds, order, record, sqlite};

const PAYMENT: PaymentId = PaymentId(101);

/// Ann's order of two units, paid.
async fn paid(books: &Books) {
    record(books, vec![claim(1, 11, "ann", 2)]).await;
    start(books, 11, "ann", "sandbox", 101).await;
    take(books, captured("evt", "cap", by_payment(101), 299_800, 9), NOW).await;
    assert_eq!(order(books, 11).await.status.state, State::Paid);
}

async fn ask(books: &Books, restock: bool) -> RefundAsked {
    books.ledger.refund_order(OrderId(11), restock, NOW).await.unwrap()
}

async fn due(books: &Books) -> Vec<Payment> {
    books.ledger.refunds_due(NOW, 10).await.unwrap()
}

fn ended(taken: Taken) -> RefundEnd {
    match taken {
        Taken::Refund(end) => *end,
        other => panic!("{other:?}"),
    }
}

async fn units(books: &Books) -> (u32, u32, u32) {
    let counters = books.ledger.counters(SALE).await.unwrap()[0];
    (counters.stock, counters.live_units, counters.paid_units)
}

async fn a_refunded_order_gives_its_units_back_when_the_money_is_back(books: Books) {
    paid(&books).await;
    let RefundAsked::Begun { order: asked, payment } = ask(&books, true).await else { panic!() };
    assert_eq!((asked.status.state, asked.seq, payment), (State::Refunding, 4, PAYMENT));
    assert!(matches!(ask(&books, false).await, RefundAsked::Before(_)));
    assert_eq!(units(&books).await, (10, 2, 2), "until the money is back the units are sold");
    assert_eq!(due(&books).await.len(), 1);
    let begun = books.ledger.refund_begun(PAYMENT, NOW.plus_s(60), NOW).await.unwrap().unwrap();
    assert_eq!((begun.status.state, begun.attempts), (PaymentState::Refunding, 1));
    assert_eq!(begun.status.reason, Some(RefundReason::Requested));
    let RefundEnd::Done { payment, released: Some(released) } =
        books.ledger.refund_done(PAYMENT, NOW.plus_s(5)).await.unwrap()
    else {
        panic!()
    };
    assert_eq!((payment.status.state, payment.ended_at), (PaymentState::Refunded, Some(NOW.plus_s(5))));
    assert_eq!((released.order.seq, released.order.quantity, released.restock), (5, 2, true));
    assert_eq!(units(&books).await, (10, 0, 0));
    let refunded = order(&books, 11).await;
    assert_eq!((refunded.status.state, refunded.refunded_at), (State::Refunded, Some(NOW.plus_s(5))));
    assert_eq!(refunded.payment, Some(PAYMENT));
    let again = books.ledger.refund_done(PAYMENT, NOW).await.unwrap();
    assert!(matches!(again, RefundEnd::Before(_)), "{again:?}");
    assert_eq!(units(&books).await, (10, 0, 0));
    assert_eq!(kinds(&books), ["order.recorded", "order.paid", "order.refunding", "order.refunded"]);
    assert_eq!(due(&books).await, []);
    assert_books_fit(&books).await;
}

async fn a_refund_without_restock_lowers_the_stock(books: Books) {
    paid(&books).await;
    ask(&books, false).await;
    books.ledger.refund_begun(PAYMENT, NOW.plus_s(60), NOW).await.unwrap();
    assert_eq!(units(&books).await, (10, 2, 2));
    let end = books.ledger.refund_done(PAYMENT, NOW).await.unwrap();
    let RefundEnd::Done { released: Some(released), .. } = end else { panic!("{end:?}") };
    assert!(!released.restock, "the gate gets nothing back");
    assert_eq!(units(&books).await, (8, 0, 0));
    assert!(kinds(&books).contains(&"offer.stock_changed".to_owned()));
    let lower = books.ledger.change_stock(OFFER, -8, "all".into(), NOW).await.unwrap();
    assert!(matches!(lower, StockChanged::Done { stock: 0, .. }), "{lower:?}");
    assert_books_fit(&books).await;
}

async fn a_refused_refund_keeps_the_units_and_can_be_tried_again(books: Books) {
    paid(&books).await;
    ask(&books, true).await;
    let key = due(&books).await[0].refund_key.clone();
    books.ledger.refund_begun(PAYMENT, NOW.plus_s(60), NOW).await.unwrap();
    let fail = || books.ledger.refund_failed(PAYMENT, "the account is closed".into(), NOW);
    let RefundEnd::Failed { payment, order: Some(failed) } = fail().await.unwrap() else { panic!() };
    assert_eq!(
        (failed.status.state, payment.problem.as_deref()),
        (State::RefundFailed, Some("the account is closed"))
    );
    assert!(matches!(fail().await.unwrap(), RefundEnd::Before(_)));
    assert_eq!((due(&books).await, units(&books).await), (Vec::new(), (10, 2, 2)));
    let done_late = books.ledger.refund_done(PAYMENT, NOW).await.unwrap();
    assert!(matches!(done_late, RefundEnd::Unasked(_)), "somebody must look: {done_late:?}");
    let RefundAsked::Begun { order: again, .. } = ask(&books, false).await else { panic!() };
    assert_eq!((again.status.state, again.seq), (State::Refunding, 6));
    let due = due(&books).await;
    assert_eq!(
        (due.len(), &due[0].refund_key, due[0].restock),
        (1, &key, false),
        "the same key, the new choice"
    );
    assert_eq!(due[0].status.state, PaymentState::Refunding);
    books.ledger.refund_failed(PAYMENT, "again".into(), NOW).await.unwrap();
    let retried = books.ledger.retry_refund(PAYMENT, NOW).await.unwrap().unwrap();
    assert_eq!((retried.status.state, retried.refund_key), (PaymentState::Refunding, key));
    assert_eq!(books.ledger.retry_refund(PAYMENT, NOW).await.unwrap(), None);
    books.ledger.refund_done(PAYMENT, NOW).await.unwrap();
    assert_eq!(units(&books).await, (8, 0, 0));
    assert_books_fit(&books).await;
}

async fn a_refund_is_asked_for_again_when_no_word_came(books: Books) {
    paid(&books).await;
    assert_eq!(books.ledger.refund_begun(PAYMENT, NOW, NOW).await.unwrap(), None, "nobody wants a refund");
    ask(&books, true).await;
    let begin = |next: u32| books.ledger.refund_begun(PAYMENT, NOW.plus_s(next), NOW);
    let first = begin(10).await.unwrap().unwrap();
    assert_eq!(due(&books).await, []);
    let again = books.ledger.refunds_due(NOW.plus_s(10), 10).await.unwrap();
    assert_eq!(again, std::slice::from_ref(&first));
    let second = begin(30).await.unwrap().unwrap();
    assert_eq!((second.attempts, second.refund_key), (2, first.refund_key));
    books.ledger.refund_done(PAYMENT, NOW).await.unwrap();
    assert_eq!(begin(60).await.unwrap(), None);
    assert_eq!(books.ledger.refund_begun(PaymentId(9), NOW, NOW).await.unwrap(), None);
    assert!(matches!(books.ledger.refund_done(PaymentId(9), NOW).await.unwrap(), RefundEnd::NotFound));
}

async fn only_paid_orders_are_refunded(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1)]).await;
    assert!(matches!(ask(&books, true).await, RefundAsked::NotRefundable(State::AwaitingPayment)));
    books.ledger.cancel_order(OrderId(11), buyer("ann"), NOW).await.unwrap();
    assert!(matches!(ask(&books, true).await, RefundAsked::NotRefundable(State::Closed)));
    let unknown = books.ledger.refund_order(OrderId(99), true, NOW).await.unwrap();
    assert!(matches!(unknown, RefundAsked::NotFound));
    assert_eq!(due(&books).await, []);
}

async fn money_that_never_paid_goes_back_without_touching_the_order(books: Books) {
    paid(&books).await;
    take(&books, captured("evt 2", "cap 2", by_payment(101), 299_800, 102), NOW).await;
    let second = PaymentId(102);
    assert_eq!(due(&books).await.iter().map(|payment| payment.id).collect::<Vec<_>>(), [second]);
    let keys: Vec<String> =
        books.ledger.payments_of(OrderId(11)).await.unwrap().into_iter().map(|p| p.refund_key).collect();
    assert_ne!(keys[0], keys[1], "each capture has its own refund");
    books.ledger.refund_begun(second, NOW.plus_s(60), NOW).await.unwrap();
    let failed = books.ledger.refund_failed(second, "no".into(), NOW).await.unwrap();
    assert!(matches!(failed, RefundEnd::Failed { order: None, .. }), "{failed:?}");
    books.ledger.retry_refund(second, NOW).await.unwrap().unwrap();
    let done = books.ledger.refund_done(second, NOW).await.unwrap();
    assert!(matches!(done, RefundEnd::Done { released: None, .. }), "{done:?}");
    assert_eq!((order(&books, 11).await.seq, units(&books).await), (3, (10, 2, 2)));
    let told =
        ["order.recorded", "order.paid", "payment.refund_due", "payment.refund_failed", "payment.refunded"];
    assert_eq!(kinds(&books), told);
    assert_books_fit(&books).await;
}

async fn the_providers_own_word_ends_a_refund(books: Books) {
    paid(&books).await;
    let key = CaptureKey::new("sandbox", "cap").unwrap();
    let refunded = |event: &str| Notice { event_id: event.into(), told: Told::Refunded { key: key.clone() } };
    let early = ended(take(&books, refunded("r 1"), NOW).await);
    assert!(matches!(early, RefundEnd::Unasked(_)), "refunded in the provider's console: {early:?}");
    assert_eq!(order(&books, 11).await.status.state, State::Paid);
    ask(&books, true).await;
    books.ledger.refund_begun(PAYMENT, NOW.plus_s(60), NOW).await.unwrap();
    let failed = Told::RefundFailed { key: key.clone(), problem: "no".into() };
    let failed = ended(take(&books, Notice { event_id: "r 2".into(), told: failed }, NOW).await);
    assert!(matches!(failed, RefundEnd::Failed { order: Some(_), .. }), "{failed:?}");
    ask(&books, true).await;
    let done = ended(take(&books, refunded("r 3"), PAY_BY).await);
    assert!(matches!(done, RefundEnd::Done { released: Some(_), .. }), "{done:?}");
    assert!(matches!(take(&books, refunded("r 3"), PAY_BY).await, Taken::Duplicate));
    assert!(matches!(ended(take(&books, refunded("r 4"), PAY_BY).await), RefundEnd::Before(_)));
    assert_eq!(units(&books).await, (10, 0, 0));
    assert_books_fit(&books).await;
}

contract!(
    sqlite_ledger,
    sqlite,
    a_refunded_order_gives_its_units_back_when_the_money_is_back(10),
    a_refund_without_restock_lowers_the_stock(10),
    a_refused_refund_keeps_the_units_and_can_be_tried_again(10),
    a_refund_is_asked_for_again_when_no_word_came(10),
    only_paid_orders_are_refunded(10),
    money_that_never_paid_goes_back_without_touching_the_order(10),
    the_providers_own_word_ends_a_refund(10),
);

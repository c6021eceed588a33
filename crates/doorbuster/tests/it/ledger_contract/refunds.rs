//! What every ledger does with money on its way back.

use doorbuster::ledger::StockChanged;
use doorbuster::ledger::money::{
    Notice, Payment, RefundAsked, RefundEnd, RefundFailure, RefundOf, Taken, Told,
};
use rules::id::{OrderId, PaymentId};
use rules::order::State;
use rules::payment::{CaptureKey, REFUND_SLOW_MS, RefundReason, State as PaymentState};

use super::deadlines::PAY_BY;
use super::payments::{by_payment, captured, money, start, take};
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
    books.ledger.refunds_due("sandbox", NOW, 10).await.unwrap()
}

/// The present refund of a payment fails: for good, or perhaps not.
pub(super) async fn fail(books: &Books, id: PaymentId, problem: &str, is_final: bool) -> RefundEnd {
    let number = books.ledger.payment(id).await.unwrap().map(|payment| payment.refund_number());
    let failure = RefundFailure { number, problem: problem.into(), is_final };
    books.ledger.refund_failed(id, failure, NOW).await.unwrap()
}

/// A provider tells that money is back, or that it is not, by the refund of this number.
fn told(event: &str, number: Option<&str>, failure: Option<bool>) -> Notice {
    let key = CaptureKey::new("sandbox", "cap").unwrap();
    let (payment, number) = (Some(PAYMENT.to_string()), number.map(str::to_owned));
    let told = match failure {
        None => Told::Refunded { key, payment, number, amount: money(299_800, "CNY") },
        Some(is_final) => {
            let failure = RefundFailure { number, problem: "no".into(), is_final };
            Told::RefundFailed { key, payment, failure }
        }
    };
    Notice { event_id: event.into(), told }
}

/// A provider tells that so much went back by a refund that is none of ours.
pub(super) fn back_elsewhere(event: &str, capture: &str, amount: i64) -> Notice {
    let key = CaptureKey::new("sandbox", capture).unwrap();
    let told = Told::Refunded { key, payment: None, number: None, amount: money(amount, "CNY") };
    Notice { event_id: event.into(), told }
}

async fn payment(books: &Books) -> Payment {
    books.ledger.payment(PAYMENT).await.unwrap().unwrap()
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
    let number = due(&books).await[0].refund_number();
    books.ledger.refund_begun(PAYMENT, NOW.plus_s(60), NOW).await.unwrap();
    let fail = async || fail(&books, PAYMENT, "the account is closed", false).await;
    let RefundEnd::Failed { payment, order: Some(failed) } = fail().await else { panic!() };
    assert_eq!(
        (failed.status.state, payment.problem.as_deref()),
        (State::RefundFailed, Some("the account is closed"))
    );
    assert!(matches!(fail().await, RefundEnd::Before(_)));
    assert_eq!((due(&books).await, units(&books).await), (Vec::new(), (10, 2, 2)));
    let RefundAsked::Begun { order: again, .. } = ask(&books, false).await else { panic!() };
    assert_eq!((again.status.state, again.seq), (State::Refunding, 6));
    let due = due(&books).await;
    assert_eq!(
        (due.len(), due[0].refund_number(), due[0].restock),
        (1, number.clone(), false),
        "it may still have happened: the same number, the new choice"
    );
    assert_eq!((due[0].status.state, due[0].attempts), (PaymentState::Refunding, 0));
    super::refunds::fail(&books, PAYMENT, "closed", true).await;
    let retried = books.ledger.retry_refund(PAYMENT, NOW).await.unwrap().unwrap();
    assert_eq!(retried.status.state, PaymentState::Refunding);
    assert_eq!(retried.refund_number(), format!("{number}-1"), "that one never happens any more");
    assert_eq!(retried.refund_of(Some(&number)), RefundOf::Earlier);
    for nobodys in
        [None, Some("x"), Some(""), Some("-1"), Some(&*format!("{number}-2")), Some(&*format!("{number}-01"))]
    {
        assert_eq!(retried.refund_of(nobodys), RefundOf::Nobody, "{nobodys:?}");
    }
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
    let again = books.ledger.refunds_due("sandbox", NOW.plus_s(10), 10).await.unwrap();
    assert_eq!(again, std::slice::from_ref(&first));
    let second = begin(30).await.unwrap().unwrap();
    assert_eq!((second.attempts, second.refund_number()), (2, first.refund_number()));
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
    let failed = fail(&books, second, "no", true).await;
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
    let refunded = |event: &str| told(event, None, None);
    let early = ended(take(&books, refunded("r 1"), NOW).await);
    assert!(matches!(early, RefundEnd::Unasked(_)), "refunded in the provider's console: {early:?}");
    assert_eq!(order(&books, 11).await.status.state, State::Paid);
    ask(&books, true).await;
    books.ledger.refund_begun(PAYMENT, NOW.plus_s(60), NOW).await.unwrap();
    let by_hand = ended(take(&books, told("r 0", None, Some(true)), NOW).await);
    assert!(matches!(by_hand, RefundEnd::Unasked(_)), "none of ours failed: {by_hand:?}");
    let done = ended(take(&books, refunded("r 3"), PAY_BY).await);
    assert!(matches!(done, RefundEnd::Done { released: Some(_), .. }), "{done:?}");
    assert!(matches!(take(&books, refunded("r 3"), PAY_BY).await, Taken::Duplicate));
    assert!(matches!(ended(take(&books, refunded("r 4"), PAY_BY).await), RefundEnd::Before(_)));
    assert_eq!(units(&books).await, (10, 0, 0));
    assert_books_fit(&books).await;
}

async fn what_goes_back_elsewhere_is_written_down_and_told(books: Books) {
    paid(&books).await;
    let tell = async |event: &str, amount| take(&books, back_elsewhere(event, "cap", amount), NOW).await;
    for (event, amount, grows) in [("p 1", 100, true), ("p 2", 100, false), ("p 3", 299_800, true)] {
        let end = ended(tell(event, amount).await);
        assert_eq!(matches!(end, RefundEnd::Unasked(_)), grows, "{event}: {end:?}");
        assert_eq!(payment(&books).await.back_elsewhere, Some(amount));
    }
    assert!(matches!(tell("p 1", 100).await, Taken::Duplicate));
    let (row, its) = (payment(&books).await, order(&books, 11).await);
    assert!(row.is_back_elsewhere() && row.status.state == PaymentState::Applied, "{row:?}");
    assert_eq!((its.status.state, its.seq, units(&books).await), (State::Paid, 3, (10, 2, 2)));
    let told = ["payment.refunded_elsewhere"; 2];
    assert_eq!(kinds(&books).split_off(2), told, "once for each sum");
    let data: serde_json::Value = serde_json::from_str(&books.events().pop().unwrap().data).unwrap();
    assert_eq!((&data["refunded"]["amount"], &data["reason"]), (&299_800.into(), &serde_json::Value::Null));

    // Whoever refunds the order then need not ask the provider; unless that refund failed after all.
    ask(&books, true).await;
    assert!(due(&books).await[0].is_back_elsewhere());
    take(&books, told_failed("p 4"), NOW).await;
    assert!(!due(&books).await[0].is_back_elsewhere());
    assert_books_fit(&books).await;
}

/// A refund that is none of ours failed.
fn told_failed(event: &str) -> Notice {
    told(event, None, Some(true))
}

async fn money_that_is_due_to_go_back_and_went_is_refunded(books: Books) {
    paid(&books).await;
    take(&books, captured("evt 2", "cap 2", by_payment(101), 299_800, 102), NOW).await;
    let part = ended(take(&books, back_elsewhere("p 1", "cap 2", 100), NOW).await);
    assert!(matches!(part, RefundEnd::Unasked(_)), "{part:?}");
    assert_eq!(due(&books).await.len(), 1, "a part is not all of it");
    let done = ended(take(&books, back_elsewhere("p 2", "cap 2", 299_800), NOW).await);
    assert!(matches!(done, RefundEnd::Done { released: None, .. }), "{done:?}");
    assert_eq!(due(&books).await, []);
    ask(&books, true).await;
    let done = ended(take(&books, back_elsewhere("p 3", "cap", 299_800), NOW).await);
    assert!(matches!(done, RefundEnd::Done { released: Some(_), .. }), "{done:?}");
    assert_eq!((order(&books, 11).await.status.state, units(&books).await), (State::Refunded, (10, 0, 0)));
    let last = kinds(&books).split_off(3);
    assert_eq!(last, ["payment.refunded_elsewhere", "payment.refunded", "order.refunding", "order.refunded"]);
    assert_books_fit(&books).await;
}

async fn what_a_provider_says_after_it_gave_up_counts(books: Books) {
    paid(&books).await;
    ask(&books, false).await;
    let number = payment(&books).await.refund_number();
    books.ledger.refund_begun(PAYMENT, NOW.plus_s(60), NOW).await.unwrap();
    let abnormal = ended(take(&books, told("r 1", Some(&number), Some(false)), NOW).await);
    assert!(matches!(abnormal, RefundEnd::Failed { order: Some(_), .. }), "{abnormal:?}");
    let sum = ended(take(&books, told("r 2", None, None), NOW).await);
    assert!(matches!(sum, RefundEnd::Unasked(_)), "it may be an old word: {sum:?}");
    let done = ended(take(&books, told("r 3", Some(&number), None), NOW).await);
    let RefundEnd::Done { released: Some(released), .. } = done else { panic!("{done:?}") };
    assert!(!released.restock, "as the operator chose");
    assert_eq!((order(&books, 11).await.status.state, units(&books).await), (State::Refunded, (8, 0, 0)));
    let late = ended(take(&books, told("r 4", Some(&number), Some(false)), NOW).await);
    assert!(matches!(late, RefundEnd::Before(_)), "what may yet succeed undoes nothing: {late:?}");
    assert_eq!(payment(&books).await.status.state, PaymentState::Refunded);
    assert_books_fit(&books).await;
}

async fn a_refund_that_fails_after_it_was_done_is_tried_again_beside_its_order(books: Books) {
    paid(&books).await;
    ask(&books, true).await;
    let number = payment(&books).await.refund_number();
    books.ledger.refund_begun(PAYMENT, NOW.plus_s(60), NOW).await.unwrap();
    books.ledger.refund_done(PAYMENT, NOW).await.unwrap();
    let failed = ended(take(&books, told("r 1", Some(&number), Some(true)), NOW).await);
    assert!(matches!(failed, RefundEnd::Failed { order: None, .. }), "{failed:?}");
    let (row, its) = (payment(&books).await, order(&books, 11).await);
    assert_eq!((row.status.state, row.ended_at), (PaymentState::RefundFailed, None));
    assert_eq!((its.status.state, its.seq, units(&books).await), (State::Refunded, 5, (10, 0, 0)));
    assert_books_fit(&books).await;
    let again = ended(take(&books, told("r 2", Some(&number), Some(true)), NOW).await);
    assert!(matches!(again, RefundEnd::Before(_)), "told by several events: {again:?}");
    let stale = ended(take(&books, told("r 3", Some(&number), None), NOW).await);
    assert!(matches!(stale, RefundEnd::Unasked(_)), "that was before it failed: {stale:?}");
    let RefundAsked::Begun { order: same, .. } = ask(&books, false).await else { panic!() };
    assert_eq!((same.status.state, same.seq), (State::Refunded, 5));
    assert_eq!(due(&books).await[0].refund_number(), format!("{number}-1"));
    let sum = ended(take(&books, told("r 4", None, None), NOW).await);
    assert!(matches!(sum, RefundEnd::Before(_)), "it may tell of the first: {sum:?}");
    let done = books.ledger.refund_done(PAYMENT, NOW).await.unwrap();
    assert!(matches!(done, RefundEnd::Done { released: None, .. }), "{done:?}");
    assert_eq!((order(&books, 11).await.seq, units(&books).await), (5, (10, 0, 0)));
    let last = kinds(&books).split_off(4);
    assert_eq!(last, ["payment.refund_failed", "payment.refunded"]);
    assert_books_fit(&books).await;
}

async fn failures_in_a_row_are_kept_and_end_a_refund(books: Books) {
    paid(&books).await;
    ask(&books, true).await;
    books.ledger.refund_begun(PAYMENT, NOW, NOW).await.unwrap();
    let put_off = async |number: String, is_final: bool| {
        let failure = RefundFailure { number: Some(number), problem: "not now".into(), is_final };
        books.ledger.refund_put_off(PAYMENT, failure, 2, NOW).await.unwrap()
    };
    let first = payment(&books).await.refund_number();
    assert!(put_off(first.clone(), false).await.is_none());
    books.ledger.refund_pending(PAYMENT, first.clone(), Some("re 1".into())).await.unwrap();
    let row = payment(&books).await;
    assert_eq!((row.failures, row.refund_ref.as_deref()), (0, Some("re 1")), "an answer ends the row");
    assert!(put_off(first.clone(), true).await.is_none());
    let row = payment(&books).await;
    assert_eq!((row.failures, row.refund_ref.as_deref()), (1, None), "the next one has no name yet");
    let second = row.refund_number();
    assert_ne!(first, second);
    books.ledger.refund_pending(PAYMENT, first.clone(), Some("re 1".into())).await.unwrap();
    assert!(put_off(first, false).await.is_none());
    assert_eq!(payment(&books).await, row, "the answer of an earlier one came late");
    let end = put_off(second.clone(), false).await;
    assert!(matches!(end, Some(RefundEnd::Failed { order: Some(_), .. })), "{end:?}");
    assert_eq!(payment(&books).await.problem.as_deref(), Some("not now"));
    assert!(put_off(second.clone(), false).await.is_none(), "it is over");
    fail(&books, PAYMENT, "closed", true).await;
    let row = books.ledger.retry_refund(PAYMENT, NOW).await.unwrap().unwrap();
    assert_ne!(row.refund_number(), second, "what is told of its end afterwards counts too");
    assert_eq!((row.attempts, row.failures), (0, 0));
}

async fn a_slow_refund_is_told_once_until_it_begins_again(books: Books) {
    paid(&books).await;
    ask(&books, true).await;
    let slow = NOW.plus_ms(REFUND_SLOW_MS);
    let tell = async |now| books.ledger.tell_slow_refund(PAYMENT, now).await.unwrap();
    assert!(!tell(slow).await, "nobody was asked yet");
    books.ledger.refund_begun(PAYMENT, slow.plus_s(60), NOW).await.unwrap();
    books.ledger.refund_begun(PAYMENT, slow.plus_s(60), NOW.plus_s(60)).await.unwrap();
    assert!(!tell(slow.plus_ms(-1)).await);
    assert_eq!([tell(slow).await, tell(slow.plus_s(60)).await], [true, false]);
    fail(&books, PAYMENT, "closed", true).await;
    assert!(!tell(slow.plus_s(120)).await);
    books.ledger.retry_refund(PAYMENT, slow).await.unwrap();
    assert!(!tell(slow.plus_s(120)).await);
    assert!(tell(slow.plus_ms(REFUND_SLOW_MS)).await);
    assert_eq!(kinds(&books).iter().filter(|kind| *kind == "payment.refund_slow").count(), 2);
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
    what_goes_back_elsewhere_is_written_down_and_told(10),
    money_that_is_due_to_go_back_and_went_is_refunded(10),
    what_a_provider_says_after_it_gave_up_counts(10),
    a_refund_that_fails_after_it_was_done_is_tried_again_beside_its_order(10),
    failures_in_a_row_are_kept_and_end_a_refund(10),
    a_slow_refund_is_told_once_until_it_begins_again(10),
);

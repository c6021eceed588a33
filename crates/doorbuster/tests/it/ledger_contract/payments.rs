//! What every ledger does with payments and with the money that comes of them.

use doorbuster::ledger::Cancelled;
use doorbuster::ledger::money::{
    Absent, ClosingEnd, ClosingNote, Decided, Names, NewPayment, Notice, Payment, PaymentClosed,
    PaymentStarted, QueueIsDrained, Settled, Taken, Told,
};
use rules::id::{OrderId, PaymentId};
use rules::money::Money;
use rules::order::{Reason, State};
use rules::payment::{Capture, CaptureKey, RefundReason, State as PaymentState, takings};
use rules::time::UnixMs;

use super::deadlines::{PAY_BY, sweep};
use super::{Books, NOW, Recorded, assert_books_fit, buyer, claim, kinds, live_units, order, record, sqlite};

const PRICE: i64 = 149_900;

pub(super) fn money(amount: i64, currency: &str) -> Money {
    Money { amount, currency: currency.parse().unwrap() }
}

pub(super) async fn begin(
    books: &Books,
    id: u128,
    name: &str,
    provider: &str,
    payment: u128,
) -> PaymentStarted {
    let wanted = NewPayment {
        id: PaymentId(payment),
        order: OrderId(id),
        buyer: buyer(name),
        provider: provider.to_owned(),
    };
    books.ledger.start_payment(wanted, NOW).await.unwrap()
}

pub(super) async fn start(books: &Books, id: u128, name: &str, provider: &str, payment: u128) -> Payment {
    match begin(books, id, name, provider, payment).await {
        PaymentStarted::New { payment, .. } => payment,
        other => panic!("{other:?}"),
    }
}

pub(super) fn by_payment(payment: u128) -> Names {
    Names::Payment(PaymentId(payment).to_string())
}

pub(super) fn by_order(order: u128) -> Names {
    Names::Order(OrderId(order))
}

pub(super) fn captured(event: &str, capture: &str, names: Names, amount: i64, fresh: u128) -> Notice {
    let key = CaptureKey::new("sandbox", capture).unwrap();
    let capture = Capture { key, money: money(amount, "CNY") };
    Notice { event_id: event.to_owned(), told: Told::Captured { capture, names, fresh: PaymentId(fresh) } }
}

pub(super) async fn take(books: &Books, notice: Notice, now: UnixMs) -> Taken {
    books.ledger.take_notice(notice, now).await.unwrap()
}

/// What became of a capture, in short.
fn short(settled: &Settled) -> String {
    match settled {
        Settled::Applied { order, .. } => format!("applied to {}", order.id.0),
        Settled::RefundDue { reason, .. } => reason.as_str().to_owned(),
        Settled::ReviveNeeded { order, .. } => format!("revive {} at {}", order.id.0, order.seq),
        Settled::Duplicate => "duplicate".to_owned(),
        Settled::Wait => "wait".to_owned(),
        Settled::NotFound => "not found".to_owned(),
    }
}

async fn told(books: &Books, notice: Notice, now: UnixMs) -> String {
    match take(books, notice, now).await {
        Taken::Capture(decided) => short(&decided.this),
        Taken::Duplicate => "delivered before".to_owned(),
        other => panic!("{other:?}"),
    }
}

async fn a_payment_is_started_once_per_provider(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 2)]).await;
    let first = start(&books, 11, "ann", "sandbox", 101).await;
    assert_eq!(
        (first.money, first.reference.as_str()),
        (money(2 * PRICE, "CNY"), &*PaymentId(101).to_string())
    );
    let again = begin(&books, 11, "ann", "sandbox", 102).await;
    assert!(matches!(&again, PaymentStarted::Open(open) if *open == first), "{again:?}");
    let elsewhere = begin(&books, 11, "ann", "stripe", 103).await;
    let PaymentStarted::New { payment, instead_of: Some(closed) } = elsewhere else {
        panic!("{elsewhere:?}")
    };
    assert_eq!((payment.id.0, closed.id.0, closed.status.state), (103, 101, PaymentState::Closed));
    assert!(matches!(begin(&books, 11, "bob", "stripe", 104).await, PaymentStarted::NotFound));
    assert!(matches!(begin(&books, 12, "ann", "stripe", 105).await, PaymentStarted::NotFound));
    let late =
        NewPayment { id: PaymentId(106), order: OrderId(11), buyer: buyer("ann"), provider: "stripe".into() };
    let late = books.ledger.start_payment(late, PAY_BY).await.unwrap();
    assert!(matches!(late, PaymentStarted::NotPayable(State::AwaitingPayment)), "{late:?}");
    assert_eq!(books.ledger.payments_of(OrderId(11)).await.unwrap().len(), 2);
}

async fn the_providers_first_answer_stays(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1)]).await;
    start(&books, 11, "ann", "sandbox", 101).await;
    let note = |url: &str| books.ledger.note_started(PaymentId(101), Some("ref".into()), url.to_owned());
    let noted = note("https://pay.example/1").await.unwrap().unwrap();
    assert_eq!(
        (noted.pay_url.as_deref(), noted.provider_ref.as_deref()),
        (Some("https://pay.example/1"), Some("ref"))
    );
    assert_eq!(note("https://pay.example/2").await.unwrap().unwrap(), noted);
    assert_eq!(books.ledger.payment(PaymentId(101)).await.unwrap().unwrap(), noted);
    let unknown = books.ledger.note_started(PaymentId(9), None, "x".into()).await.unwrap();
    assert_eq!(unknown, None);
}

async fn a_closed_payment_still_takes_the_money_that_comes(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1)]).await;
    start(&books, 11, "ann", "sandbox", 101).await;
    let close = || books.ledger.close_payment(PaymentId(101), NOW);
    assert!(matches!(close().await.unwrap(), PaymentClosed::Closed(_)));
    assert!(matches!(close().await.unwrap(), PaymentClosed::Before(_)));
    assert!(matches!(books.ledger.close_payment(PaymentId(9), NOW).await.unwrap(), PaymentClosed::NotFound));
    start(&books, 11, "ann", "stripe", 102).await;
    let taken = take(&books, captured("evt", "cap", by_payment(101), PRICE, 9), NOW).await;
    let Taken::Capture(Decided { this: Settled::Applied { order, closed: Some(other) }, .. }) = taken else {
        panic!("{taken:?}")
    };
    assert_eq!((order.payment, other.id), (Some(PaymentId(101)), PaymentId(102)), "the other one is closed");
    assert!(matches!(close().await.unwrap(), PaymentClosed::Captured(_)));
    assert_books_fit(&books).await;
}

async fn money_in_time_pays_the_order_once(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 2)]).await;
    start(&books, 11, "ann", "sandbox", 101).await;
    let notice = |event: &str| captured(event, "cap", by_payment(101), 2 * PRICE, 9);
    assert_eq!(told(&books, notice("evt 1"), NOW.plus_s(7)).await, "applied to 11");
    assert_eq!(told(&books, notice("evt 1"), NOW.plus_s(8)).await, "delivered before");
    assert_eq!(told(&books, notice("evt 2"), NOW.plus_s(9)).await, "duplicate");
    let paid = order(&books, 11).await;
    assert_eq!((paid.status.state, paid.seq, paid.paid_at), (State::Paid, 3, Some(NOW.plus_s(7))));
    let counters = books.ledger.counters(super::SALE).await.unwrap()[0];
    assert_eq!((counters.live_units, counters.paid_units), (2, 2));
    assert_eq!(kinds(&books), ["order.recorded", "order.paid"]);
    assert_eq!(sweep(&books, PAY_BY).await, [], "a paid order does not time out");
    assert!(matches!(
        begin(&books, 11, "ann", "sandbox", 102).await,
        PaymentStarted::NotPayable(State::Paid)
    ));
    assert_books_fit(&books).await;
}

/// Event ids only tell deliveries apart: money that is told under the id of other money is still money.
async fn a_known_event_id_swallows_no_other_capture(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1), claim(2, 12, "bob", 1)]).await;
    start(&books, 11, "ann", "sandbox", 101).await;
    start(&books, 12, "bob", "sandbox", 102).await;
    let first = || captured("evt", "cap 1", by_payment(101), PRICE, 201);
    let second = || captured("evt", "cap 2", by_payment(102), PRICE, 202);
    assert_eq!(told(&books, first(), NOW).await, "applied to 11");
    assert_eq!(told(&books, second(), NOW).await, "applied to 12");
    assert_eq!(told(&books, captured("evt", "cap 3", by_payment(102), 7, 203), NOW).await, "amount_mismatch");
    assert_eq!(told(&books, first(), NOW).await, "delivered before");
    assert_eq!(told(&books, second(), NOW).await, "duplicate", "again, and nothing is taken twice");
    // The first amount of a capture stands, under whatever event another is told.
    for event in ["evt", "evt 2"] {
        let other_amount = captured(event, "cap 1", by_payment(101), PRICE + 1, 204);
        assert_ne!(told(&books, other_amount, NOW).await, "amount_mismatch");
    }
    let refund = |capture: &str| {
        let key = CaptureKey::new("sandbox", capture).unwrap();
        Notice {
            event_id: "evt".to_owned(),
            told: Told::Refunded { key, payment: None, number: None, amount: money(7, "CNY") },
        }
    };
    assert!(matches!(take(&books, refund("cap 3"), NOW).await, Taken::Refund(_)), "its money is back");
    let payments = books.ledger.payments_of(OrderId(12)).await.unwrap();
    assert_eq!(payments.iter().map(|payment| payment.money.amount).collect::<Vec<_>>(), [PRICE, 7]);
    assert_books_fit(&books).await;
}

async fn wrong_money_goes_back_and_right_money_still_pays(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1)]).await;
    start(&books, 11, "ann", "sandbox", 101).await;
    let notice = |n: u32, amount| {
        captured(&format!("evt {n}"), &format!("cap {n}"), by_payment(101), amount, 200 + u128::from(n))
    };
    assert_eq!(told(&books, notice(1, PRICE - 1), NOW).await, "amount_mismatch");
    let mut euros = notice(2, PRICE);
    if let Told::Captured { capture, .. } = &mut euros.told {
        capture.money = money(PRICE, "EUR");
    }
    assert_eq!(told(&books, euros, NOW).await, "currency_mismatch");
    assert_eq!(told(&books, notice(3, PRICE), NOW).await, "applied to 11");
    assert_eq!(told(&books, notice(4, PRICE), NOW).await, "second_capture");
    let payments = books.ledger.payments_of(OrderId(11)).await.unwrap();
    let ids: Vec<u128> = payments.iter().map(|payment| payment.id.0).collect();
    assert_eq!(ids, [101, 202, 203, 204], "the first capture takes the payment that was started");
    assert!(payments.iter().all(|payment| payment.reference == PaymentId(101).to_string()));
    assert_eq!(payments[0].money, money(PRICE - 1, "CNY"));
    let sums =
        takings("CNY".parse().unwrap(), payments.iter().map(|payment| (payment.status.state, payment.money)));
    assert_eq!((sums.kept, sums.owed, sums.undecided), (PRICE.into(), (2 * PRICE - 1).into(), 0));
    let due: Vec<String> =
        books.events().into_iter().filter(|e| e.kind == "payment.refund_due").map(|e| e.data).collect();
    assert_eq!(due.len(), 3);
    assert!(due[0].contains(r#""reason":"amount_mismatch""#), "{}", due[0]);
    assert_books_fit(&books).await;
}

async fn money_for_an_order_that_will_not_be_goes_back(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1), claim(2, 12, "bob", 1)]).await;
    start(&books, 11, "ann", "sandbox", 101).await;
    let cancelled = books.ledger.cancel_order(OrderId(11), buyer("ann"), NOW).await.unwrap();
    assert!(matches!(cancelled, Cancelled::Closed { .. }));
    let payment = books.ledger.payment(PaymentId(101)).await.unwrap().unwrap();
    assert_eq!(payment.status.state, PaymentState::Closed, "cancelling closes what was open");
    assert_eq!(
        told(&books, captured("evt 1", "cap 1", by_payment(101), PRICE, 9), NOW).await,
        "order_cancelled"
    );
    assert_eq!(order(&books, 12).await.status.reason, Some(Reason::NoStock));
    assert_eq!(told(&books, captured("evt 2", "cap 2", by_order(12), PRICE, 8), NOW).await, "order_refused");
    assert_eq!(live_units(&books).await, 0);
    assert_books_fit(&books).await;
}

async fn money_may_come_before_its_order(books: Books) {
    let wrong = captured("evt 1", "cap 1", by_order(11), PRICE - 1, 201);
    let right = captured("evt 2", "cap 2", by_order(11), PRICE, 202);
    assert_eq!(told(&books, wrong, NOW).await, "wait");
    assert_eq!(told(&books, right.clone(), NOW).await, "wait");
    assert_eq!(told(&books, right, NOW).await, "delivered before");
    let waiting = books.ledger.waiting_captures(0, 10).await.unwrap();
    assert_eq!(waiting.iter().map(|payment| payment.id.0).collect::<Vec<_>>(), [201, 202]);
    assert_eq!(books.ledger.waiting_captures(waiting[0].no, 10).await.unwrap(), waiting[1..]);
    record(&books, vec![claim(1, 11, "ann", 1)]).await;
    assert!(matches!(begin(&books, 11, "ann", "sandbox", 101).await, PaymentStarted::NotYet));
    let settle = |id| books.ledger.settle_capture(PaymentId(id), Absent::MayCome, NOW);
    let Decided { this, before } = settle(202).await.unwrap();
    assert_eq!(short(&this), "applied to 11");
    let before: Vec<String> = before.iter().map(short).collect();
    assert_eq!(before, ["amount_mismatch"], "whoever is told follows this one, too");
    let again = settle(201).await.unwrap();
    assert_eq!((short(&again.this), again.before.len()), ("duplicate".to_owned(), 0));
    let first = books.ledger.payment(PaymentId(201)).await.unwrap().unwrap();
    assert_eq!(first.status.reason, Some(RefundReason::AmountMismatch));
    assert_eq!(books.ledger.waiting_captures(0, 10).await.unwrap(), []);
    assert_eq!(short(&settle(999).await.unwrap().this), "not found");
    assert_books_fit(&books).await;
}

async fn money_for_nothing_we_know_goes_back(books: Books) {
    assert_eq!(told(&books, captured("evt 1", "cap 1", by_order(77), PRICE, 201), NOW).await, "wait");
    assert_eq!(told(&books, captured("evt 2", "cap 2", by_payment(66), PRICE, 202), NOW).await, "wait");
    for id in [201, 202] {
        let settle = |absent| books.ledger.settle_capture(PaymentId(id), absent, NOW);
        assert_eq!(short(&settle(Absent::MayCome).await.unwrap().this), "wait");
        assert_eq!(short(&settle(Absent::WillNotCome).await.unwrap().this), "order_unknown");
        assert_eq!(short(&settle(Absent::WillNotCome).await.unwrap().this), "duplicate");
    }
    let due = books.ledger.refunds_due("sandbox", NOW, 10).await.unwrap();
    assert_eq!(due.iter().map(|payment| payment.order).collect::<Vec<_>>(), [Some(OrderId(77)), None]);
    let back = |payment: Option<u128>| Told::Refunded {
        key: CaptureKey::new("sandbox", "cap 3").unwrap(),
        payment: payment.map(|id| PaymentId(id).to_string()),
        number: None,
        amount: money(PRICE, "CNY"),
    };
    for nobodys in [None, Some(88)] {
        let told = take(&books, Notice { event_id: "evt 3".into(), told: back(nobodys) }, NOW).await;
        assert!(matches!(told, Taken::UnknownCapture), "{told:?}");
    }
    record(&books, vec![claim(1, 11, "ann", 1)]).await;
    start(&books, 11, "ann", "sandbox", 101).await;
    for _ in 0..2 {
        let early = take(&books, Notice { event_id: "evt 3".into(), told: back(Some(101)) }, NOW).await;
        assert!(matches!(early, Taken::TooEarly), "its money must be told first: {early:?}");
    }
}

/// An order of ann's that timed out, and money for it a minute later.
async fn late_money(books: &Books) {
    record(books, vec![claim(1, 11, "ann", 1)]).await;
    start(books, 11, "ann", "sandbox", 101).await;
    books.ledger.close_payment(PaymentId(101), NOW).await.unwrap();
    assert_eq!(sweep(books, PAY_BY).await, [(11, 3)]);
    let notice = captured("late", "cap", by_payment(101), PRICE, 9);
    assert_eq!(told(books, notice, PAY_BY.plus_s(60)).await, "revive 11 at 3");
}

const LATER: UnixMs = UnixMs(PAY_BY.0 + 120_000);

async fn late_money_waits_for_a_unit_and_only_the_first_of_it(books: Books) {
    late_money(&books).await;
    let waiting = books.ledger.waiting_captures(0, 10).await.unwrap();
    assert_eq!((waiting.len(), waiting[0].id, waiting[0].order), (1, PaymentId(101), Some(OrderId(11))));
    let again = books.ledger.settle_capture(PaymentId(101), Absent::MayCome, LATER).await.unwrap();
    assert_eq!(short(&again.this), "revive 11 at 3", "asking again is harmless");
    assert_eq!(
        told(&books, captured("late 2", "cap 2", by_payment(101), PRICE, 202), LATER).await,
        "second_capture"
    );
    let refuse = || books.ledger.refund_late(PaymentId(101), RefundReason::NoUnitLeft, LATER);
    assert_eq!(short(&refuse().await.unwrap()), "no_unit_left");
    assert_eq!(short(&refuse().await.unwrap()), "duplicate");
    assert_eq!(order(&books, 11).await.seq, 3, "the order is as it was");
    assert_books_fit(&books).await;
}

async fn after_the_sale_the_ledger_revives_alone(books: Books) {
    late_money(&books).await;
    let strikes = || books.ledger.strikes_of(buyer("ann"), 10);
    assert_eq!(strikes().await.unwrap()[0].strike.lifted_at, None);
    let revive = || books.ledger.revive_alone(PaymentId(101), QueueIsDrained, LATER);
    assert_eq!(short(&revive().await.unwrap().this), "applied to 11");
    let revived = order(&books, 11).await;
    assert_eq!((revived.status.state, revived.status.reason, revived.seq), (State::Paid, None, 4));
    assert_eq!(
        (revived.paid_at, revived.closed_at, revived.payment),
        (Some(LATER), None, Some(PaymentId(101)))
    );
    assert_eq!(live_units(&books).await, 1);
    assert_eq!(strikes().await.unwrap()[0].strike.lifted_at, Some(LATER), "who paid late has paid");
    assert_eq!(short(&revive().await.unwrap().this), "duplicate");
    assert_eq!(live_units(&books).await, 1);
    let paid = books.events().into_iter().find(|event| event.kind == "order.paid").unwrap();
    let data: serde_json::Value = serde_json::from_str(&paid.data).unwrap();
    assert_eq!(data["late"], true, "whoever ships what is paid ships it, too: {data}");
    assert_eq!(data["payment_id"], PaymentId(101).to_string());
    assert_books_fit(&books).await;
}

async fn late_money_that_finds_no_unit_goes_back(books: Books) {
    late_money(&books).await;
    assert_eq!(record(&books, vec![claim(2, 12, "bob", 1)]).await, [Recorded::Recorded]);
    let revived = books.ledger.revive_alone(PaymentId(101), QueueIsDrained, LATER).await.unwrap();
    assert_eq!(short(&revived.this), "sale_ended");
    assert_eq!(order(&books, 11).await.status.reason, Some(Reason::Timeout));
    assert_books_fit(&books).await;
}

async fn late_money_does_not_give_a_buyer_a_second_live_order(books: Books) {
    late_money(&books).await;
    assert_eq!(record(&books, vec![claim(2, 12, "ann", 1)]).await, [Recorded::Recorded]);
    let revived = books.ledger.revive_alone(PaymentId(101), QueueIsDrained, LATER).await.unwrap();
    assert_eq!(short(&revived.this), "other_live");
    assert_eq!(live_units(&books).await, 1);
    assert_books_fit(&books).await;
}

/// Whatever comes first, twice or last: each capture ends once, and the order is paid at most once.
async fn every_order_of_events_ends_with_the_same_money(books: Books) {
    let mut rounds = 0_u64;
    permute(&mut [0_u8, 1, 2, 3, 4], 0, &mut |_| rounds += 1);
    let mut orders = Vec::new();
    permute(&mut [0_u8, 1, 2, 3, 4], 0, &mut |steps| orders.push(steps.to_vec()));
    for (round, steps) in orders.into_iter().enumerate() {
        let id = 1_000 + round as u128;
        let name = format!("buyer {round}");
        for step in steps.into_iter().flat_map(|step| [step, step]) {
            let notice = |event: u8, capture: u8, fresh: u128| {
                let event = format!("evt {round} {event}");
                captured(&event, &format!("cap {round} {capture}"), by_order(id), PRICE, id * 10 + fresh)
            };
            match step {
                0 => drop(record(&books, vec![claim(round as u64 + 1, id, &name, 1)]).await),
                1 => drop(take(&books, notice(1, 1, 1), NOW).await),
                2 => drop(take(&books, notice(2, 1, 2), NOW).await),
                3 => drop(take(&books, notice(3, 2, 3), NOW).await),
                _ => drop(sweep(&books, PAY_BY).await),
            }
        }
        for waiting in books.ledger.waiting_captures(0, 10).await.unwrap() {
            books.ledger.revive_alone(waiting.id, QueueIsDrained, LATER).await.unwrap();
        }
        let order = order(&books, id).await;
        let payments = books.ledger.payments_of(OrderId(id)).await.unwrap();
        let mut ends: Vec<PaymentState> = payments.iter().map(|payment| payment.status.state).collect();
        ends.sort();
        assert_eq!(order.status.state, State::Paid, "round {round}");
        assert_eq!(ends, [PaymentState::Applied, PaymentState::RefundDue], "round {round}");
    }
    assert_eq!(u64::from(live_units(&books).await), rounds);
    assert_books_fit(&books).await;
}

fn permute(steps: &mut [u8], from: usize, visit: &mut dyn FnMut(&[u8])) {
    if from == steps.len() {
        visit(steps);
    }
    for other in from..steps.len() {
        steps.swap(from, other);
        permute(steps, from + 1, visit);
        steps.swap(from, other);
    }
}

/// The last line: whatever the code above it does, the tables refuse it.
async fn the_tables_refuse_what_must_not_be(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1), claim(2, 12, "bob", 1)]).await;
    start(&books, 11, "ann", "sandbox", 101).await;
    take(&books, captured("evt 1", "cap 1", by_payment(101), PRICE, 9), NOW).await;
    take(&books, captured("evt 2", "cap 2", by_payment(101), PRICE, 102), NOW).await;
    start(&books, 12, "bob", "sandbox", 103).await;
    let refused = |sql: &str| books.assert_refused(sql);
    // A second applied capture of one order, also beside one that the shop refunds.
    let second =
        "update payments set state = 'applied', reason = null, next_try_at = null where capture_id = 'cap 2'";
    refused(second);
    books.plant(
        "update payments set state = 'refund_due', reason = 'requested', next_try_at = 0 where capture_id = 'cap 1'",
    );
    refused(second);
    let columns =
        "payment_id, order_id, provider, reference, state, amount, currency, started_at, refund_key";
    // A second open payment of one order.
    refused(&format!(
        "insert into payments ({columns}) select x'01', order_id, 'stripe', 'x', state, 1, 'CNY', 1, 'k'
                      from payments where state = 'started'"
    ));
    // The same capture twice, money without a name, and money that goes back for no reason.
    refused(&format!(
        "insert into payments ({columns}, capture_id) values (x'02', null, 'sandbox', 'x', 'captured', 1, 'CNY', 1, 'k', 'cap 1')"
    ));
    refused("update payments set state = 'captured' where state = 'started'");
    refused("update payments set reason = null where capture_id = 'cap 2'");
    refused("update payments set next_try_at = null where capture_id = 'cap 2'");
    refused("update payments set state = 'lost' where capture_id = 'cap 2'");
    // Two refunds under one key, and one notification taken twice.
    refused("update payments set refund_key = (select min(refund_key) from payments)");
    refused("insert into notices select * from notices");
    refused("update offers set paid_units = live_units + 1");
}

contract!(
    sqlite_ledger,
    sqlite,
    a_payment_is_started_once_per_provider(10),
    the_providers_first_answer_stays(10),
    a_closed_payment_still_takes_the_money_that_comes(10),
    money_in_time_pays_the_order_once(10),
    a_known_event_id_swallows_no_other_capture(10),
    wrong_money_goes_back_and_right_money_still_pays(10),
    money_for_an_order_that_will_not_be_goes_back(1),
    money_may_come_before_its_order(10),
    money_for_nothing_we_know_goes_back(10),
    late_money_waits_for_a_unit_and_only_the_first_of_it(1),
    after_the_sale_the_ledger_revives_alone(1),
    late_money_that_finds_no_unit_goes_back(1),
    late_money_does_not_give_a_buyer_a_second_live_order(5),
    every_order_of_events_ends_with_the_same_money(1_000),
    the_tables_refuse_what_must_not_be(10),
);

async fn to_close(books: &Books, provider: &'static str, now: UnixMs) -> Vec<(u64, PaymentId, u32)> {
    let due = books.ledger.closings_due(provider, now, 10).await.unwrap();
    due.into_iter().map(|due| (due.payment.no, due.payment.id, due.tries)).collect()
}

async fn noted(books: &Books, payment_no: u64, end: ClosingEnd) {
    books.ledger.note_closings(vec![ClosingNote { payment_no, end }]).await.unwrap();
}

#[tokio::test]
async fn what_is_closed_here_is_to_be_closed_at_its_provider_until_that_is_done_or_given_up() {
    let (books, forever) = (sqlite(5).await, UnixMs(i64::MAX));
    record(&books, vec![claim(1, 11, "ann", 1)]).await;
    let payment = start(&books, 11, "ann", "stripe", 101).await;
    assert_eq!(to_close(&books, "stripe", forever).await, [], "it is open here, too");
    books.ledger.cancel_order(OrderId(11), buyer("ann"), NOW).await.unwrap();
    assert_eq!(to_close(&books, "stripe", NOW).await, [(payment.no, payment.id, 0)]);
    assert_eq!(to_close(&books, "sandbox", forever).await, [], "another provider");

    let later = NOW.plus_s(5);
    noted(&books, payment.no, ClosingEnd::Again { at: later }).await;
    assert_eq!(to_close(&books, "stripe", later.plus_ms(-1)).await, []);
    assert_eq!(to_close(&books, "stripe", later).await, [(payment.no, payment.id, 1)]);
    noted(&books, payment.no, ClosingEnd::GivenUp { problem: "nobody is there".to_owned() }).await;
    assert_eq!(to_close(&books, "stripe", forever).await, []);
    let problem = books.ledger.payment(payment.id).await.unwrap().unwrap().problem;
    assert_eq!(problem.as_deref(), Some("nobody is there"));

    // A provider that hears of it only after it was closed here has it open.
    books.ledger.note_started(payment.id, Some("cs_1".into()), "https://pay.example".into()).await.unwrap();
    assert_eq!(to_close(&books, "stripe", NOW).await, [(payment.no, payment.id, 0)]);
    noted(&books, payment.no, ClosingEnd::Done).await;
    assert_eq!(to_close(&books, "stripe", forever).await, []);
    books.ledger.note_started(payment.id, None, "https://elsewhere.example".into()).await.unwrap();
    assert_eq!(to_close(&books, "stripe", forever).await, [], "the first answer stays");
    assert_books_fit(&books).await;
}

#[tokio::test]
async fn what_money_came_for_needs_no_closing_at_its_provider() {
    let (books, forever) = (sqlite(5).await, UnixMs(i64::MAX));
    record(&books, vec![claim(1, 11, "ann", 1)]).await;
    let first = start(&books, 11, "ann", "sandbox", 101).await;
    let second = start(&books, 11, "ann", "stripe", 102).await;
    assert_eq!(to_close(&books, "sandbox", forever).await, [(first.no, first.id, 0)]);
    take(&books, captured("evt", "cap", by_payment(101), PRICE, 9), NOW).await;
    assert_eq!(to_close(&books, "sandbox", forever).await, []);
    // The answer to a question that was asked before changes nothing.
    noted(&books, first.no, ClosingEnd::GivenUp { problem: "too late".to_owned() }).await;
    let paid = books.ledger.payment(first.id).await.unwrap().unwrap();
    assert_eq!((paid.status.state, paid.problem), (PaymentState::Applied, None));
    assert_eq!(to_close(&books, "stripe", NOW).await, [(second.no, second.id, 0)], "the other is closed");
    assert_books_fit(&books).await;
}

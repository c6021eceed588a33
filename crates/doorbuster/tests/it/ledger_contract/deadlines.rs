//! What every ledger does with unpaid orders when their time is over.

use doorbuster::ledger::Cancelled;
use doorbuster::ledger::money::{Decided, Lapsed, Settled, Taken};
use rules::deadline::{Answer, Asked, CALLBACK_AWAITED_FOR_MS, Due, Excuses, Outage, Span};
use rules::id::{OrderId, PaymentId};
use rules::order::{Reason, State};
use rules::payment::State as PaymentState;
use rules::strike::{Cause, Strike};
use rules::time::UnixMs;

use super::payments::{captured, start, take};
use super::{Books, NOW, OFFER, assert_books_fit, buyer, claim, kinds, live_units, order, record, sqlite};

/// When orders recorded at [`NOW`] must be paid.
pub(super) const PAY_BY: UnixMs = UnixMs(NOW.0 + 900_000);

/// Closes whatever is due, as the sweeper does.
pub(super) async fn sweep(books: &Books, now: UnixMs) -> Vec<(u128, u32)> {
    let batch = books.ledger.close_due(now, 100, Excuses::default(), Vec::new()).await.unwrap();
    batch.closed.iter().map(|closed| (closed.order.id.0, closed.order.seq)).collect()
}

async fn strikes(books: &Books, name: &str) -> Vec<Strike> {
    let rows = books.ledger.strikes_of(buyer(name), 10).await.unwrap();
    rows.into_iter().map(|row| row.strike).collect()
}

async fn an_unpaid_order_closes_at_its_deadline_and_not_before(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 2), claim(2, 12, "bob", 1)]).await;
    assert_eq!(sweep(&books, UnixMs(PAY_BY.0 - 1)).await, []);
    let batch = books.ledger.close_due(PAY_BY, 100, Excuses::default(), Vec::new()).await.unwrap();
    let [ann, bob] = &batch.closed[..] else { panic!("{batch:?}") };
    assert_eq!((ann.order.id, ann.order.seq, ann.order.quantity), (OrderId(11), 3, 2));
    assert_eq!((&ann.order.buyer, ann.order.offer, ann.restock), (&buyer("ann"), OFFER, true));
    assert_eq!((bob.order.id, bob.change_no), (OrderId(12), ann.change_no));
    let kept = order(&books, 11).await;
    assert_eq!(kept, ann.order, "what is told is what is kept");
    assert_eq!((kept.status.state, kept.status.reason), (State::Closed, Some(Reason::Timeout)));
    assert_eq!((kept.closed_at, live_units(&books).await), (Some(PAY_BY), 0));
    let cause = Cause::Unpaid(OrderId(11));
    assert_eq!(strikes(&books, "ann").await, [Strike { cause, at: PAY_BY, lifted_at: None }]);
    let told = [
        ["order.recorded", "order.recorded", "offer.sold_out"].as_slice(),
        &["order.closed", "order.closed", "offer.restocked", "buyer.struck", "buyer.struck"],
    ];
    assert_eq!(kinds(&books), told.concat());
    assert_eq!(sweep(&books, PAY_BY).await, [], "a closed order is told of once");
    let again = record(&books, vec![claim(3, 13, "ann", 3)]).await;
    assert_eq!(again, [super::Recorded::Recorded], "the units are to be had again");
    assert_books_fit(&books).await;
}

async fn many_are_closed_batch_by_batch_and_the_earliest_first(books: Books) {
    for seq in 1..=5_u64 {
        let (no, claim) = claim(seq, 10 + u128::from(seq), &format!("buyer {seq}"), 1);
        // The later in the journal, the earlier its deadline.
        books
            .ledger
            .record_orders(vec![(no, claim)], UnixMs(NOW.0 - i64::try_from(seq).unwrap()))
            .await
            .unwrap();
    }
    let mut closed = Vec::new();
    let mut full = Vec::new();
    loop {
        let batch = books.ledger.close_due(PAY_BY, 2, Excuses::default(), Vec::new()).await.unwrap();
        closed.extend(batch.closed.iter().map(|closed| closed.order.id.0));
        full.push(batch.is_full);
        if !batch.is_full {
            break;
        }
    }
    assert_eq!(closed, [15, 14, 13, 12, 11]);
    assert_eq!(full, [true, true, false]);
    assert_books_fit(&books).await;
}

async fn an_order_that_somebody_pays_waits_for_the_providers_word(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1), claim(2, 12, "bob", 1)]).await;
    start(&books, 11, "ann", "sandbox", 101).await;
    assert_eq!(sweep(&books, PAY_BY).await, [(12, 3)]);
    assert_eq!(books.ledger.overdue(UnixMs(PAY_BY.0 - 1), None, 10).await.unwrap(), []);
    let overdue = books.ledger.overdue(PAY_BY, None, 10).await.unwrap();
    assert_eq!((overdue.len(), overdue[0].order.id, overdue[0].payment.id.0), (1, OrderId(11), 101));
    let close = |asked, now| books.ledger.close_asked(OrderId(11), asked, Excuses::default(), now);
    let not_now = |lapsed: Lapsed| match lapsed {
        Lapsed::NotNow(due) => due,
        other => panic!("{other:?}"),
    };
    assert_eq!(not_now(close(Asked::NotYet, PAY_BY).await.unwrap()), Due::Ask);
    let since = Asked::Since(PAY_BY);
    assert_eq!(
        not_now(close(since, PAY_BY.plus_ms(4_999)).await.unwrap()),
        Due::NotBefore(PAY_BY.plus_ms(5_000))
    );
    let paid = Asked::Answered { answer: Answer::Paid, at: PAY_BY };
    assert!(matches!(not_now(close(paid, PAY_BY.plus_s(60)).await.unwrap()), Due::NotBefore(_)));
    let waited_for = PAY_BY.plus_ms(CALLBACK_AWAITED_FOR_MS);
    assert_eq!(not_now(close(paid, waited_for).await.unwrap()), Due::TakeAnswer, "it is never closed");
    let Lapsed::Closed { released, payment } = close(since, PAY_BY.plus_s(5)).await.unwrap() else {
        panic!()
    };
    assert_eq!((released.order.id, released.order.seq), (OrderId(11), 3));
    assert_eq!(payment.unwrap().status.state, PaymentState::Closed);
    let again = close(since, PAY_BY.plus_s(6)).await.unwrap();
    assert!(matches!(again, Lapsed::NotUnpaid(State::Closed)), "{again:?}");
    assert!(matches!(
        books.ledger.close_asked(OrderId(99), since, Excuses::default(), PAY_BY).await.unwrap(),
        Lapsed::NotFound
    ));
    assert_eq!(strikes(&books, "ann").await.len(), 1);
    assert_eq!(live_units(&books).await, 0);
    assert_books_fit(&books).await;
}

async fn an_order_with_undecided_money_is_never_closed(books: Books) {
    // The money comes before the order: it is written down, and it is decided after the order is recorded.
    let notice = captured("evt 1", "cap 1", super::payments::by_order(11), 149_900, 101);
    let taken = take(&books, notice, NOW).await;
    assert!(matches!(taken, Taken::Capture(Decided { this: Settled::Wait, .. })), "{taken:?}");
    record(&books, vec![claim(1, 11, "ann", 1)]).await;
    assert_eq!(sweep(&books, PAY_BY.plus_s(60)).await, []);
    let not_paid = Asked::Answered { answer: Answer::NotPaid, at: PAY_BY };
    let asked = books.ledger.close_asked(OrderId(11), not_paid, Excuses::default(), PAY_BY).await.unwrap();
    assert!(matches!(asked, Lapsed::NotNow(Due::Settle)), "{asked:?}");
    let cancelled = books.ledger.cancel_order(OrderId(11), buyer("ann"), NOW).await.unwrap();
    assert!(matches!(cancelled, Cancelled::MoneyIsHere), "{cancelled:?}");
    assert_eq!(order(&books, 11).await.status.state, State::AwaitingPayment);
    assert_books_fit(&books).await;
}

async fn who_could_not_pay_gets_no_strike(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1)]).await;
    let later = NOW.plus_s(600);
    books.ledger.record_orders(vec![claim(2, 12, "bob", 1)], later).await.unwrap();
    start(&books, 12, "bob", "sandbox", 102).await;
    // A tenth of 900 s and one millisecond more, of which the second order saw nothing.
    let span = Span { from: NOW.plus_s(10), until: NOW.plus_s(100).plus_ms(1) };
    let excuses = Excuses::of([Outage::everywhere(span)], ["sandbox"]);
    let closed =
        books.ledger.close_due(later.plus_s(900), 10, excuses.clone(), Vec::new()).await.unwrap().closed;
    assert_eq!(closed.len(), 1);
    let not_paid = Asked::Answered { answer: Answer::NotPaid, at: later };
    books.ledger.close_asked(OrderId(12), not_paid, excuses, later.plus_s(900)).await.unwrap();
    assert_eq!((strikes(&books, "ann").await.len(), strikes(&books, "bob").await.len()), (0, 1));
    assert_books_fit(&books).await;
}

/// One of two providers is down: whoever went there last is excused, be it open still or closed, and nobody else.
async fn who_went_to_a_provider_that_was_down_gets_no_strike(books: Books) {
    let names = ["ann", "bob", "cyd", "dan", "eve"];
    let claims = names.iter().zip(1_u64..).map(|(name, no)| claim(no, 10 + u128::from(no), name, 1));
    record(&books, claims.collect()).await;
    start(&books, 12, "bob", "stripe", 102).await;
    start(&books, 13, "cyd", "alipay", 103).await;
    start(&books, 14, "dan", "stripe", 104).await;
    start(&books, 14, "dan", "alipay", 105).await;
    start(&books, 15, "eve", "stripe", 106).await;
    books.ledger.close_payment(PaymentId(106), NOW).await.unwrap();
    let span = Span { from: NOW, until: NOW.plus_s(300) };
    let down = Outage { provider: Some("stripe".to_owned()), span };
    let excuses = Excuses::of([down], ["stripe", "alipay"]);
    let closed = books.ledger.close_due(PAY_BY, 10, excuses.clone(), Vec::new()).await.unwrap().closed;
    let closed: Vec<(u128, bool)> = closed.iter().map(|one| (one.order.id.0, one.struck)).collect();
    assert_eq!(closed, [(11, true), (15, false)]);
    let not_paid = Asked::Answered { answer: Answer::NotPaid, at: PAY_BY };
    for (no, struck) in [(12, false), (13, true), (14, true)] {
        let lapsed = books.ledger.close_asked(OrderId(no), not_paid, excuses.clone(), PAY_BY).await.unwrap();
        let Lapsed::Closed { released, .. } = lapsed else { panic!("{lapsed:?}") };
        assert_eq!(released.struck, struck, "{no}");
    }
    assert_books_fit(&books).await;
}

async fn the_next_deadline_is_known(books: Books) {
    assert_eq!(books.ledger.next_deadline(NOW).await.unwrap(), None);
    record(&books, vec![claim(1, 11, "ann", 1)]).await;
    books.ledger.record_orders(vec![claim(2, 12, "bob", 1)], NOW.plus_s(5)).await.unwrap();
    assert_eq!(books.ledger.next_deadline(NOW).await.unwrap(), Some(PAY_BY));
    start(&books, 11, "ann", "sandbox", 101).await;
    assert_eq!(books.ledger.next_deadline(NOW).await.unwrap(), Some(PAY_BY), "also while somebody pays");
    assert_eq!(books.ledger.next_deadline(PAY_BY).await.unwrap(), Some(PAY_BY.plus_s(5)));
    sweep(&books, PAY_BY.plus_s(5)).await;
    assert_eq!(books.ledger.next_deadline(PAY_BY).await.unwrap(), None);
}

/// One order that cannot be closed fails its batch, and can be left out.
async fn an_order_that_cannot_be_closed_can_be_set_aside(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 2), claim(2, 12, "bob", 1)]).await;
    books.plant("update offers set live_units = 1");
    let close =
        |limit, aside: &[u64]| books.ledger.close_due(PAY_BY, limit, Excuses::default(), aside.to_vec());
    let error = close(10, &[]).await.unwrap_err();
    assert!(error.is_of_the_content(), "{error}");
    assert!(close(1, &[]).await.is_err());
    assert_eq!(books.ledger.first_due(PAY_BY, Vec::new()).await.unwrap(), Some((1, Some(OrderId(11)))));
    let closed = close(10, &[1]).await.unwrap().closed;
    assert_eq!(closed.iter().map(|one| one.order.id.0).collect::<Vec<_>>(), [12]);
    assert_eq!(books.ledger.first_due(PAY_BY, vec![1]).await.unwrap(), None);
    books.plant("update offers set live_units = 2");
    assert_eq!(sweep(&books, PAY_BY).await, [(11, 3)]);
    assert_books_fit(&books).await;
}

/// A strike that is there already, counting or lifted, does not keep its order open, and is not told of again.
async fn one_order_strikes_once_whoever_wrote_the_strike(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1), claim(2, 12, "bob", 1), claim(3, 13, "cyd", 1)]).await;
    books.plant(
        "insert into strikes (buyer, order_no, struck_at) values ('ann', 1, 5);
         insert into strikes (buyer, order_no, struck_at, lifted_at, lifted_by) values ('bob', 2, 5, 6, 'operator');",
    );
    let batch = books.ledger.close_due(PAY_BY, 10, Excuses::default(), Vec::new()).await.unwrap();
    assert_eq!(batch.closed.iter().map(|one| one.struck).collect::<Vec<_>>(), [false, false, true]);
    let told = kinds(&books).into_iter().filter(|kind| kind == "buyer.struck").count();
    assert_eq!(told, 1);
    for (name, lifted_at) in [("ann", None), ("bob", Some(UnixMs(6))), ("cyd", None)] {
        let strikes = strikes(&books, name).await;
        assert_eq!((strikes.len(), strikes[0].lifted_at), (1, lifted_at), "{name}");
    }
    assert_books_fit(&books).await;
}

/// An outage that lasts is written down again and again, and is one.
async fn an_outage_that_lasts_is_one_outage(books: Books) {
    let outage = |provider: Option<&str>, until| {
        let span = Span { from: NOW, until: NOW.plus_s(until) };
        Outage { provider: provider.map(str::to_owned), span }
    };
    assert_eq!(books.ledger.note_start(NOW).await.unwrap(), []);
    for until in [5, 10, 10, 7] {
        let both = vec![outage(None, until), outage(Some("stripe"), until.min(8))];
        books.ledger.note_alive(NOW.plus_s(10), both).await.unwrap();
    }
    let away = Outage::everywhere(Span { from: NOW.plus_s(10), until: NOW.plus_s(20) });
    let known = [outage(None, 10), outage(Some("stripe"), 8), away];
    assert_eq!(books.ledger.note_start(NOW.plus_s(20)).await.unwrap(), known);
}

/// Pay, cancel and deadline at the same instant, in every order: one wins, and the others are told so.
async fn of_paying_cancelling_and_timing_out_one_wins(books: Books) {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for (round, steps) in orders.into_iter().enumerate() {
        let id = 100 + round as u128;
        let name = format!("buyer {round}");
        record(&books, vec![claim(round as u64 + 1, id, &name, 1)]).await;
        for step in steps {
            match step {
                0 => {
                    let event = format!("evt {round}");
                    let capture = format!("cap {round}");
                    let names = super::payments::by_order(id);
                    take(&books, captured(&event, &capture, names, 149_900, 1_000 + id), PAY_BY).await;
                }
                1 => {
                    books.ledger.cancel_order(OrderId(id), buyer(&name), PAY_BY).await.unwrap();
                }
                _ => {
                    sweep(&books, PAY_BY).await;
                }
            }
        }
        let order = order(&books, id).await;
        let expected = match steps[0] {
            0 => (State::Paid, None),
            1 => (State::Closed, Some(Reason::Cancelled)),
            _ => (State::Closed, Some(Reason::Timeout)),
        };
        assert_eq!((order.status.state, order.status.reason, order.seq), (expected.0, expected.1, 3));
    }
    assert_books_fit(&books).await;
}

/// How fast it goes is measured by `cargo xtask bench --only timeouts`, with five times as many.
const DUE_AT_ONCE: u64 = 20_000;
const DUE_PER_BATCH: u32 = 2_000;

async fn very_many_due_at_once_are_closed_in_full_batches(books: Books) {
    for first in (1..=DUE_AT_ONCE).step_by(2_000) {
        let batch = (first..first + 2_000).map(|seq| {
            // Ids and buyers as random as real ones are for the indexes.
            let mixed = u128::from(seq).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            claim(seq, mixed, &format!("{:016x}", mixed >> 64), 1)
        });
        record(&books, batch.collect()).await;
    }
    let mut sizes = Vec::new();
    loop {
        let batch =
            books.ledger.close_due(PAY_BY, DUE_PER_BATCH, Excuses::default(), Vec::new()).await.unwrap();
        sizes.push(batch.closed.len() as u64);
        if !batch.is_full {
            break;
        }
    }
    let full = u64::from(DUE_PER_BATCH);
    let batches = usize::try_from(DUE_AT_ONCE / full).unwrap();
    assert_eq!(sizes, [vec![full; batches], vec![0]].concat());
    assert_eq!(live_units(&books).await, 0);
}

contract!(
    sqlite_ledger,
    sqlite,
    an_unpaid_order_closes_at_its_deadline_and_not_before(3),
    many_are_closed_batch_by_batch_and_the_earliest_first(10),
    an_order_that_somebody_pays_waits_for_the_providers_word(10),
    an_order_with_undecided_money_is_never_closed(10),
    who_could_not_pay_gets_no_strike(10),
    who_went_to_a_provider_that_was_down_gets_no_strike(10),
    the_next_deadline_is_known(10),
    an_order_that_cannot_be_closed_can_be_set_aside(10),
    one_order_strikes_once_whoever_wrote_the_strike(10),
    an_outage_that_lasts_is_one_outage(10),
    of_paying_cancelling_and_timing_out_one_wins(10),
    very_many_due_at_once_are_closed_in_full_batches(20_000),
);

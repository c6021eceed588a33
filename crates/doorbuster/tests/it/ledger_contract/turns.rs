//! What every ledger tells of windows and shelves: each turn once and in its order, whoever notices it, and however late.

use doorbuster::ledger::Changed;
use rules::id::{OfferId, OrderId, PaymentId, SaleId};
use rules::sale::{Sale, SaleAction, Window};
use rules::time::UnixMs;

use super::deadlines::{PAY_BY, sweep};
use super::payments::{by_payment, captured, start, take};
use super::{Books, NOW, OFFER, Recorded, SALE, assert_books_fit, buyer, claim, record, sale, sqlite};

const LATER: SaleId = SaleId(5);
const OPENS: UnixMs = UnixMs(NOW.0 + 10_000);
const CLOSES: UnixMs = UnixMs(NOW.0 + 20_000);

/// A second sale, with a window ahead; published now.
async fn later(books: &Books) {
    let mut later = Sale { id: LATER, window: Window { opens_at: OPENS, closes_at: CLOSES }, ..sale(3) };
    later.offers[0].id = OfferId(6);
    books.ledger.create_sale(later, None, NOW).await.unwrap();
    act(books, SaleAction::Publish, NOW).await;
}

async fn act(books: &Books, action: SaleAction, now: UnixMs) {
    let changed = books.ledger.act_on_sale(LATER, action, now).await.unwrap();
    assert!(matches!(changed, Changed::Done(_)), "{changed:?}");
}

async fn close_later(books: &Books, closes_at: UnixMs, now: UnixMs) {
    let change = move |mut sale: Sale| {
        sale.window.closes_at = closes_at;
        Changed::Done(sale)
    };
    books.ledger.update_sale(LATER, None, now, change).await.unwrap();
}

/// What was told of the second sale since it was published.
fn told(books: &Books) -> Vec<String> {
    let kinds = books.events().into_iter().map(|event| event.kind).filter(|kind| kind.starts_with("sale."));
    kinds.skip(5).collect()
}

async fn a_window_is_told_once_when_it_opens_and_once_when_it_closes(books: Books) {
    later(&books).await;
    assert_eq!(books.ledger.next_turn().await.unwrap(), Some(OPENS));
    assert_eq!(books.ledger.tell_turns(UnixMs(OPENS.0 - 1)).await.unwrap(), 0);
    let mut tellers = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let ledger = books.ledger.clone();
        tellers.spawn(async move { ledger.tell_turns(OPENS).await.unwrap() });
    }
    assert_eq!(tellers.join_all().await.into_iter().sum::<usize>(), 1);
    assert_eq!(
        (told(&books), books.ledger.next_turn().await.unwrap()),
        (vec!["sale.opened".into()], Some(CLOSES))
    );
    let data: serde_json::Value = serde_json::from_str(&books.events().pop().unwrap().data).unwrap();
    assert_eq!(data, serde_json::json!({"opens_at": OPENS, "closes_at": CLOSES}));
    assert_eq!(books.ledger.tell_turns(UnixMs(CLOSES.0 - 1)).await.unwrap(), 0);
    assert_eq!(books.ledger.tell_turns(CLOSES).await.unwrap(), 1);
    assert_eq!(books.ledger.tell_turns(CLOSES.plus_s(60)).await.unwrap(), 0);
    assert_eq!(told(&books), ["sale.opened", "sale.closed"]);
    let of_the_first = UnixMs(NOW.0 + 1_000_000);
    assert_eq!(books.ledger.next_turn().await.unwrap(), Some(of_the_first), "the other sale goes on");
}

/// Nobody was there when it opened, nor when it closed.
async fn what_came_while_nobody_was_there_is_told_afterwards(books: Books) {
    later(&books).await;
    let books = books.reopened();
    assert_eq!(
        books.ledger.tell_turns(CLOSES.plus_s(3_600)).await.unwrap(),
        3,
        "and the first sale's closing"
    );
    assert_eq!(told(&books), ["sale.opened", "sale.closed", "sale.closed"]);
    assert_eq!(
        (
            books.ledger.tell_turns(CLOSES.plus_s(3_600)).await.unwrap(),
            books.ledger.next_turn().await.unwrap()
        ),
        (0, None)
    );
}

async fn an_end_by_the_operator_closes_and_opens_nothing(books: Books) {
    later(&books).await;
    act(&books, SaleAction::End, NOW).await;
    assert_eq!(books.ledger.tell_turns(OPENS).await.unwrap(), 0);
    assert_eq!(told(&books), ["sale.ended", "sale.closed"]);
}

/// The window opened, nobody has told of it yet, and the operator ends the sale: both are told, in their order.
async fn an_end_tells_first_what_the_clock_did(books: Books) {
    later(&books).await;
    act(&books, SaleAction::Pause, OPENS).await;
    act(&books, SaleAction::Resume, OPENS).await;
    act(&books, SaleAction::End, OPENS.plus_s(1)).await;
    assert_eq!(told(&books), ["sale.opened", "sale.paused", "sale.resumed", "sale.ended", "sale.closed"]);
    assert_eq!(books.ledger.tell_turns(CLOSES).await.unwrap(), 0);
}

async fn a_later_end_opens_a_closed_window_again(books: Books) {
    later(&books).await;
    close_later(&books, CLOSES.plus_s(5), CLOSES.plus_s(1)).await;
    assert_eq!(told(&books), ["sale.opened", "sale.closed", "sale.changed", "sale.opened"]);
    assert_eq!(books.ledger.next_turn().await.unwrap(), Some(CLOSES.plus_s(5)));
    assert_eq!(books.ledger.tell_turns(CLOSES.plus_s(5)).await.unwrap(), 1);
    assert_eq!(books.ledger.tell_turns(CLOSES.plus_s(5)).await.unwrap(), 0);
}

async fn a_sale_published_after_its_window_never_opens(books: Books) {
    let mut late = Sale { id: LATER, window: Window { opens_at: OPENS, closes_at: CLOSES }, ..sale(3) };
    late.offers[0].id = OfferId(6);
    books.ledger.create_sale(late, None, NOW).await.unwrap();
    assert_eq!(books.ledger.tell_turns(CLOSES).await.unwrap(), 0, "a draft has no window");
    act(&books, SaleAction::Publish, CLOSES).await;
    assert_eq!(told(&books), ["sale.closed"]);
}

/// The first order may be faster than whoever tells of the opening.
async fn nobody_hears_of_an_order_before_its_sale_is_open(books: Books) {
    later(&books).await;
    let (no, first) = claim(1, 11, "ann", 1);
    let first = doorbuster::queue::Claim { offer: OfferId(6), ..(*first).clone() };
    books.ledger.record_orders(vec![(no, first.into())], OPENS).await.unwrap();
    assert_eq!(books.ledger.tell_turns(OPENS).await.unwrap(), 0);
    let kinds: Vec<String> = books.events().into_iter().map(|event| event.kind).collect();
    assert_eq!(kinds[kinds.len() - 2..], ["sale.opened", "order.recorded"]);
}

/// What was told of the offer's shelf, with the units that were free then.
fn shelf(books: &Books) -> Vec<String> {
    let of_shelf = |kind: &str| matches!(kind, "offer.sold_out" | "offer.restocked");
    let told = books.events().into_iter().filter(|event| of_shelf(&event.kind));
    told.map(|event| {
        let data: serde_json::Value = serde_json::from_str(&event.data).unwrap();
        format!("{} {} of {}", event.kind.trim_start_matches("offer."), data["free"], data["stock"])
    })
    .collect()
}

async fn an_offer_is_told_sold_out_and_restocked_in_turn(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1)]).await;
    assert_eq!(shelf(&books), [""; 0]);
    record(&books, vec![claim(2, 12, "bob", 1), claim(3, 13, "cyd", 1)]).await;
    assert_eq!(shelf(&books), ["sold_out 0 of 3"]);
    let refused = record(&books, vec![claim(4, 14, "dan", 1)]).await;
    assert!(matches!(refused[0], Recorded::Refused(_)));
    books.ledger.cancel_order(OrderId(11), buyer("ann"), NOW).await.unwrap();
    books.ledger.cancel_order(OrderId(12), buyer("bob"), NOW).await.unwrap();
    assert_eq!(shelf(&books), ["sold_out 0 of 3", "restocked 1 of 3"], "the second one is no news");
    books.ledger.change_stock(OFFER, -2, "fewer".into(), NOW).await.unwrap();
    books.ledger.change_stock(OFFER, -2, "fewer".into(), NOW).await.unwrap();
    books.ledger.change_stock(OFFER, 7, "more".into(), NOW).await.unwrap();
    record(&books, vec![claim(5, 15, "eve", 5), claim(6, 16, "fay", 2)]).await;
    sweep(&books, PAY_BY).await;
    let all =
        ["sold_out 0 of 3", "restocked 1 of 3", "sold_out 0 of 1", "restocked 7 of 8", "sold_out 0 of 8"];
    assert_eq!(shelf(&books)[..5], all);
    assert_eq!(shelf(&books)[5..], ["restocked 8 of 8"], "once for a whole batch");
    assert_books_fit(&books).await;
}

async fn a_refund_restocks_or_leaves_the_shelf_empty(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1), claim(2, 12, "bob", 1)]).await;
    for (order, name, payment, restock) in [(11, "ann", 101, false), (12, "bob", 102, true)] {
        start(&books, order, name, "sandbox", payment).await;
        let (event, capture) = (format!("evt {order}"), format!("cap {order}"));
        take(&books, captured(&event, &capture, by_payment(payment), 149_900, 9), NOW).await;
        books.ledger.refund_order(OrderId(order), restock, NOW).await.unwrap();
        books.ledger.refund_begun(PaymentId(payment), NOW.plus_s(60), NOW).await.unwrap();
        books.ledger.refund_done(PaymentId(payment), NOW).await.unwrap();
    }
    assert_eq!(shelf(&books), ["sold_out 0 of 2", "restocked 1 of 1"]);
}

async fn a_drafts_stock_is_on_no_shelf(books: Books) {
    let mut draft = Sale { id: LATER, ..sale(3) };
    draft.offers[0].id = OfferId(6);
    books.ledger.create_sale(draft, None, NOW).await.unwrap();
    books.ledger.change_stock(OfferId(6), -3, "none".into(), NOW).await.unwrap();
    books.ledger.change_stock(OfferId(6), 3, "again".into(), NOW).await.unwrap();
    assert_eq!(shelf(&books), [""; 0]);
}

/// Long random lives of an offer: the two kinds of event alternate, and the last one says what the counters say.
async fn whatever_happens_the_shelf_is_told_in_turn(books: Books) {
    let mut random = 7_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut orders: Vec<(u128, String)> = Vec::new();
    for step in 1..=400_u64 {
        match next(4) {
            0 | 1 => {
                let (id, name) = (1_000 + u128::from(step), format!("buyer {step}"));
                let quantity = u32::try_from(1 + next(2)).unwrap();
                let outcome = record(&books, vec![claim(step, id, &name, quantity)]).await;
                orders.extend((outcome == [Recorded::Recorded]).then_some((id, name)));
            }
            2 if !orders.is_empty() => {
                let (id, name) = orders.swap_remove(usize::try_from(next(orders.len() as u64)).unwrap());
                books.ledger.cancel_order(OrderId(id), buyer(&name), NOW).await.unwrap();
            }
            _ => {
                let change = i64::try_from(next(7)).unwrap() - 3;
                books.ledger.change_stock(OFFER, change, format!("change {step}"), NOW).await.unwrap();
            }
        }
        let counters = books.ledger.counters(SALE).await.unwrap()[0];
        let told = shelf(&books);
        let is_sold_out = told.last().is_some_and(|last| last.starts_with("sold_out"));
        assert_eq!(is_sold_out, counters.stock == counters.live_units, "step {step}: {counters:?} {told:?}");
    }
    let told = shelf(&books);
    assert!(told.len() > 20, "{told:?}");
    for (index, one) in told.iter().enumerate() {
        assert!(one.starts_with(if index % 2 == 0 { "sold_out" } else { "restocked" }), "{told:?}");
    }
    assert_books_fit(&books).await;
}

contract!(
    sqlite_ledger,
    sqlite,
    a_window_is_told_once_when_it_opens_and_once_when_it_closes(3),
    what_came_while_nobody_was_there_is_told_afterwards(3),
    an_end_by_the_operator_closes_and_opens_nothing(3),
    an_end_tells_first_what_the_clock_did(3),
    a_later_end_opens_a_closed_window_again(3),
    a_sale_published_after_its_window_never_opens(3),
    nobody_hears_of_an_order_before_its_sale_is_open(3),
    an_offer_is_told_sold_out_and_restocked_in_turn(3),
    a_refund_restocks_or_leaves_the_shelf_empty(2),
    a_drafts_stock_is_on_no_shelf(3),
    whatever_happens_the_shelf_is_told_in_turn(5),
);

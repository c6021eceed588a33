//! The contract of every ledger: what all of them must do, whatever database keeps the tables.
//!
//! There is one ledger so far, so [`Books`] holds it by its own type, and there is no port. What differs between databases
//! is in `books.rs`: how a ledger is opened, and how one looks past it; the tests say the rest by the ledger's own calls and
//! in SQL that they hand to [`Books`]. Another database joins with a type of ledger that has the same calls, with its own
//! [`Books`], and with a list of its own in each [`contract!`]; words of SQLite in planted SQL (`iif`, a trigger, `x'01'`) need
//! a twin there. `upgrade.rs` is about the files of earlier versions and is SQLite's alone.

use std::sync::Arc;

use doorbuster::ledger::{Cancelled, Changed, Order, OrderSearch, Recorded, StockChanged};
use doorbuster::queue::Claim;
use rules::buyer::BuyerId;
use rules::id::{OfferId, OrderId, SaleId};
use rules::invariant::{OrderMoney, check_money};
use rules::money::Money;
use rules::order::{Reason, State};
use rules::sale::{ChallengeKind, Offer, RegistrationKind, Sale, SaleAction, SaleState, Window};
use rules::time::UnixMs;
use tokio_util::sync::CancellationToken;

macro_rules! contract {
    ($module:ident, $books:ident, $($name:ident($stock:literal)),+ $(,)?) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name(super::$books($stock).await).await;
                }
            )+
        }
    };
}

/// A ledger, and the ways past it.
mod books;

/// Deadlines: who closes, when, and what comes back.
mod deadlines;

/// Batches over very many offers.
mod many_offers;

/// Payments and captured money.
mod payments;

/// Late money whose unit was found by the gate.
mod revivals;

/// Money on its way back.
mod refunds;

/// Marks against those who did not pay.
mod strikes;

/// Windows that open and close, and shelves that are empty and full again: each told once.
mod turns;

/// Events as their readers page through them, and the document that describes them.
mod told;

/// Receivers of events: what waits for them, and what was given up.
mod receivers;

/// A ledger of an earlier version: SQLite's own.
mod upgrade;

use books::{Books, Event};

const NOW: UnixMs = UnixMs(1_800_000_000_000);
const SALE: SaleId = SaleId(1);
const OFFER: OfferId = OfferId(2);

/// A ledger with one published sale of one offer.
async fn sqlite(stock: u32) -> Books {
    Books::with(sale(stock)).await
}

fn sale(stock: u32) -> Sale {
    Sale {
        id: SALE,
        state: SaleState::Draft,
        title: "1499 night".into(),
        window: Window { opens_at: UnixMs(NOW.0 - 1_000), closes_at: UnixMs(NOW.0 + 1_000_000) },
        pay_within_s: 900,
        challenge: ChallengeKind::None,
        registration: RegistrationKind::None,
        registration_opens_at: None,
        registration_closes_at: None,
        publish_at: None,
        rehearsal: false,
        offers: vec![Offer {
            id: OFFER,
            name: "Feitian 53".into(),
            description: None,
            image: None,
            list_price: None,
            price: Money { amount: 149_900, currency: "CNY".parse().unwrap() },
            stock,
            max_per_order: 5,
        }],
    }
}

fn buyer(name: &str) -> BuyerId {
    BuyerId::parse(name).unwrap()
}

fn claim(seq: u64, order: u128, name: &str, quantity: u32) -> (u64, Arc<Claim>) {
    let claim = Claim {
        order: OrderId(order),
        offer: OFFER,
        buyer: buyer(name),
        quantity,
        claimed_at: NOW,
        pass_expires_at: NOW.plus_s(300),
        revives: None,
    };
    (seq, Arc::new(claim))
}

async fn record(books: &Books, batch: Vec<(u64, Arc<Claim>)>) -> Vec<Recorded> {
    let records = books.ledger.record_orders(batch, NOW).await.unwrap();
    records.into_iter().map(|record| record.outcome).collect()
}

async fn live_units(books: &Books) -> u32 {
    books.ledger.counters(SALE).await.unwrap()[0].live_units
}

/// What must hold after every test: counters count what the orders hold, each order's facts are numbered without
/// gaps, and each order has the money that its state says.
async fn assert_books_fit(books: &Books) {
    let counters = books.ledger.counters(SALE).await.unwrap()[0];
    let search = OrderSearch { sale: Some(SALE), limit: 2_000, ..OrderSearch::default() };
    let orders = books.ledger.search_orders(search).await.unwrap().orders;
    let sum = |counts: &dyn Fn(&Order) -> bool| -> u32 {
        orders.iter().filter(|order| counts(order)).map(|order| order.quantity).sum()
    };
    let paid =
        |order: &Order| matches!(order.status.state, State::Paid | State::Refunding | State::RefundFailed);
    assert_eq!(counters.live_units, sum(&|order| order.status.holds_units));
    assert_eq!(counters.paid_units, sum(&paid));
    for order in orders {
        let told: Vec<u32> = books.events().into_iter().filter_map(|event| event.of(order.no)).collect();
        assert_eq!(told, (2..=order.seq).collect::<Vec<_>>(), "{order:?}");
        let payments = books.ledger.payments_of(order.id).await.unwrap();
        let payments = payments.into_iter().map(|payment| payment.status).collect();
        let money = OrderMoney { order: order.id, state: order.status.state, payments };
        assert_eq!(check_money(&money), None);
    }
}

async fn a_long_batch_gives_way_to_those_who_wait_and_goes_on_after_them(books: Books) {
    const ORDERS: u32 = 400;
    /// Whether somebody waits while a batch is recorded is up to the threads, so that one batch may be lucky.
    const ROUNDS: u32 = 5;
    let until = CancellationToken::new();
    let settles = {
        let (ledger, until) = (books.ledger.clone(), until.clone());
        tokio::spawn(async move {
            while !until.is_cancelled() {
                let nobody = ledger.cancel_order(OrderId(1), buyer("nobody"), NOW).await.unwrap();
                assert!(matches!(nobody, Cancelled::NotFound));
            }
        })
    };
    let (mut rounds, mut gave_way) = (0, false);
    while !gave_way && rounds < ROUNDS {
        let mut left: Vec<_> = (rounds * ORDERS + 1..=(rounds + 1) * ORDERS)
            .map(|number| claim(number.into(), 1_000 + u128::from(number), &format!("buyer-{number}"), 1))
            .collect();
        let mut batches = 0;
        while !left.is_empty() {
            let recorded = record(&books, left.clone()).await;
            assert!(recorded.iter().all(|outcome| *outcome == Recorded::Recorded));
            assert!(!recorded.is_empty() && recorded.len() <= left.len());
            let last = left[recorded.len() - 1].0;
            assert_eq!(books.ledger.cursor().await.unwrap(), last, "the cursor stands where the batch ended");
            left.drain(..recorded.len());
            batches += 1;
        }
        gave_way = batches > 1;
        rounds += 1;
    }
    until.cancel();
    settles.await.unwrap();
    assert!(gave_way, "nobody was given way to");
    assert_eq!(live_units(&books).await, rounds * ORDERS);
    assert_books_fit(&books).await;
}

fn kinds(books: &Books) -> Vec<String> {
    let of_buyers = |event: &Event| !event.kind.starts_with("sale.");
    books.events().into_iter().filter(of_buyers).map(|event| event.kind).collect()
}

async fn order(books: &Books, id: u128) -> Order {
    books.ledger.order(OrderId(id)).await.unwrap().unwrap()
}

async fn a_batch_becomes_orders_and_moves_the_cursor(books: Books) {
    let outcomes = record(&books, vec![claim(1, 11, "zoe", 2), claim(2, 12, "ann", 1)]).await;
    assert_eq!(outcomes, [Recorded::Recorded, Recorded::Recorded]);
    assert_eq!((books.ledger.cursor().await.unwrap(), live_units(&books).await), (2, 3));
    let order = books.ledger.order(OrderId(11)).await.unwrap().unwrap();
    assert_eq!(
        (order.status.state, order.quantity, order.pay_by),
        (State::AwaitingPayment, 2, Some(NOW.plus_s(900)))
    );
    assert_eq!(order.view().total.amount, 299_800);
}

async fn a_repeat_is_told_apart_and_counted_once(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1), claim(2, 12, "bob", 1)]).await;
    books.ledger.cancel_order(OrderId(12), buyer("bob"), NOW).await.unwrap();
    let again =
        record(&books, vec![claim(1, 11, "ann", 1), claim(2, 12, "bob", 1), claim(3, 13, "cyd", 1)]).await;
    assert_eq!(again, [Recorded::RepeatLive, Recorded::RepeatEnded, Recorded::Recorded]);
    assert_eq!(live_units(&books).await, 2);
}

async fn the_guard_refuses_what_the_gate_should_not_have_granted(books: Books) {
    let outcomes = record(
        &books,
        vec![claim(1, 11, "ann", 2), claim(2, 12, "bob", 2), claim(3, 13, "cyd", 1), claim(4, 14, "dan", 1)],
    )
    .await;
    let no_stock = Recorded::Refused(Reason::NoStock);
    assert_eq!(outcomes, [Recorded::Recorded, no_stock, Recorded::Recorded, no_stock]);
    assert_eq!(live_units(&books).await, 3);
    let refused = books.ledger.order(OrderId(12)).await.unwrap().unwrap();
    assert_eq!((refused.status.state, refused.status.reason), (State::Refused, Some(Reason::NoStock)));
}

async fn a_claim_in_the_way_of_another_leaves_a_long_batch_as_it_is(books: Books) {
    const CLAIMS: u64 = 100;
    record(&books, vec![claim(1, 11, "late", 1)]).await;
    let mut batch: Vec<_> =
        (2..=CLAIMS).map(|seq| claim(seq, 100 + u128::from(seq), &format!("buyer-{seq}"), 2)).collect();
    batch[40] = claim(42, 142, "late", 2);
    let expected = |outcome, other| {
        let mut all = vec![outcome; batch.len()];
        all[40] = other;
        all
    };
    let refused = Recorded::Refused(Reason::OtherLive);
    assert_eq!(record(&books, batch.clone()).await, expected(Recorded::Recorded, refused));
    assert_eq!(live_units(&books).await, 1 + 98 * 2);
    assert_eq!(record(&books, batch.clone()).await, expected(Recorded::RepeatLive, Recorded::RepeatEnded));
    assert_eq!(live_units(&books).await, 1 + 98 * 2, "a repeat takes nothing");
    assert_books_fit(&books).await;
}

async fn a_buyer_has_one_live_order(books: Books) {
    let outcomes = record(&books, vec![claim(1, 11, "ann", 1), claim(2, 12, "ann", 1)]).await;
    assert_eq!(outcomes, [Recorded::Recorded, Recorded::Refused(Reason::OtherLive)]);
    let clash = record(&books, vec![claim(3, 11, "bob", 1)]).await;
    assert_eq!(clash, [Recorded::Refused(Reason::IdClash)]);
    assert_eq!(live_units(&books).await, 1);
    books.ledger.cancel_order(OrderId(11), buyer("ann"), NOW).await.unwrap();
    assert_eq!(record(&books, vec![claim(4, 14, "ann", 1)]).await, [Recorded::Recorded]);
}

async fn a_cancel_closes_once_and_only_for_its_buyer(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 2)]).await;
    let cancel = |name: &str| books.ledger.cancel_order(OrderId(11), buyer(name), NOW);
    assert!(matches!(cancel("bob").await.unwrap(), Cancelled::NotFound));
    assert!(
        matches!(cancel("ann").await.unwrap(), Cancelled::Closed { released, .. } if released.order.seq == 3)
    );
    assert!(matches!(cancel("ann").await.unwrap(), Cancelled::Before(order) if order.seq == 3));
    assert_eq!(live_units(&books).await, 0);
}

async fn stock_changes_are_remembered_by_their_id(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 2)]).await;
    let change = |units, id: &str| books.ledger.change_stock(OFFER, units, id.into(), NOW);
    let first = change(5, "a").await.unwrap();
    assert!(matches!(first, StockChanged::Done { stock: 8, before: false, .. }), "{first:?}");
    assert!(matches!(change(5, "a").await.unwrap(), StockChanged::Done { stock: 8, before: true, .. }));
    assert_eq!(change(6, "a").await.unwrap(), StockChanged::OtherChange);
    assert_eq!(change(-7, "b").await.unwrap(), StockChanged::BelowLive { live: 2 });
    assert!(matches!(change(-6, "c").await.unwrap(), StockChanged::Done { stock: 2, .. }));
    assert_eq!(change(i64::MAX, "d").await.unwrap(), StockChanged::TooMuch);
}

async fn states_follow_the_table(books: Books) {
    let act = |action| books.ledger.act_on_sale(SALE, action, NOW);
    assert!(
        matches!(act(SaleAction::Pause).await.unwrap(), Changed::Done(sale) if sale.state == SaleState::Paused)
    );
    assert!(matches!(act(SaleAction::Publish).await.unwrap(), Changed::WrongState));
    assert!(matches!(act(SaleAction::End).await.unwrap(), Changed::Done(_)));
    assert!(matches!(act(SaleAction::Resume).await.unwrap(), Changed::WrongState));
    assert!(matches!(books.ledger.delete_sale(SALE).await.unwrap(), Changed::WrongState));
    let unknown = books.ledger.act_on_sale(SaleId(99), SaleAction::End, NOW).await.unwrap();
    assert!(matches!(unknown, Changed::NotFound));
}

fn refused_sale(number: u128) -> Sale {
    let mut sale = Sale { id: SaleId(1_000 + number), ..sale(1) };
    sale.offers[0].id = OfferId(1_000 + number);
    sale.offers[0].price.amount = -1;
    sale
}

/// Changes that wait together may share a commit; each of them is still all or nothing.
async fn a_change_that_fails_does_not_disturb_those_beside_it(books: Books) {
    let mut changes = tokio::task::JoinSet::new();
    for number in 0..200 {
        let ledger = books.ledger.clone();
        changes.spawn(async move {
            if number % 2 == 0 {
                ledger.register(SALE, buyer(&format!("buyer {number}")), NOW).await.is_ok()
            } else {
                // Its offer is refused after the sale itself was written.
                ledger.create_sale(refused_sale(number), None, NOW).await.is_ok()
            }
        });
    }
    let done = changes.join_all().await.into_iter().filter(|done| *done).count();
    assert_eq!(done, 100);
    let (registered, more) = books.ledger.registration_page(SALE, None, 200).await.unwrap();
    assert_eq!((registered.len(), more), (100, false));
    assert_eq!(books.ledger.sales().await.unwrap().len(), 1);
}

async fn orders_are_found_page_by_page(books: Books) {
    for seq in 1..=3 {
        record(&books, vec![claim(seq, 10 + u128::from(seq), &format!("buyer {seq}"), 1)]).await;
    }
    let mut found = Vec::new();
    let mut before = None;
    loop {
        let search = OrderSearch { sale: Some(SALE), before, limit: 2, ..OrderSearch::default() };
        let page = books.ledger.search_orders(search).await.unwrap();
        found.extend(page.orders.iter().map(|order| order.id.0));
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(found, [13, 12, 11]);
    let of_one = books.ledger.orders_of(buyer("buyer 2"), None, 10).await.unwrap();
    assert_eq!(of_one.orders.len(), 1);
}

async fn what_the_gate_must_remember_is_told(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1), claim(2, 12, "bob", 2)]).await;
    books.ledger.cancel_order(OrderId(12), buyer("bob"), NOW).await.unwrap();
    let remembered = |now| {
        let seen: Arc<std::sync::Mutex<Vec<(u128, bool)>>> = Arc::default();
        let into = Arc::clone(&seen);
        let visit = books
            .ledger
            .remembered_orders(now, move |order| into.lock().unwrap().push((order.order.0, order.live)));
        async move {
            visit.await.unwrap();
            seen.lock().unwrap().clone()
        }
    };
    assert_eq!(remembered(NOW).await, [(11, true), (12, false)]);
    assert_eq!(remembered(NOW.plus_s(301)).await, [(11, true)]);
}

contract!(
    sqlite_ledger,
    sqlite,
    a_batch_becomes_orders_and_moves_the_cursor(10),
    a_long_batch_gives_way_to_those_who_wait_and_goes_on_after_them(2_000),
    a_repeat_is_told_apart_and_counted_once(10),
    the_guard_refuses_what_the_gate_should_not_have_granted(3),
    a_claim_in_the_way_of_another_leaves_a_long_batch_as_it_is(300),
    a_buyer_has_one_live_order(10),
    a_cancel_closes_once_and_only_for_its_buyer(10),
    stock_changes_are_remembered_by_their_id(3),
    states_follow_the_table(1),
    a_change_that_fails_does_not_disturb_those_beside_it(1),
    orders_are_found_page_by_page(10),
    what_the_gate_must_remember_is_told(10),
);

//! Batches over very many offers: every counter moves by what was recorded of its offer, and what is wrong with one offer
//! is as wrong as in a batch of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use doorbuster::ledger::{Counters, LedgerError};
use doorbuster::queue::Claim;
use rules::id::OfferId;
use rules::order::Reason;
use rules::sale::{Offer, Sale};

use super::{Books, NOW, Recorded, SALE, claim, kinds, record, sale};

/// More than there are orders in one statement, and no multiple of it.
const OFFERS: u64 = 77;

/// One sale of very many offers with so many units each.
async fn sqlite(stock: u32) -> Books {
    let one = sale(stock);
    let numbered = |number| Offer { id: offer(number), ..one.offers[0].clone() };
    let offers = (0..OFFERS).map(numbered).collect();
    Books::with(Sale { offers, ..one }).await
}

/// Their ids are in no order, as those that were made within one millisecond.
fn offer(number: u64) -> OfferId {
    OfferId(u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) + 1)
}

fn claim_of(offer: OfferId, seq: u64, quantity: u32) -> (u64, Arc<Claim>) {
    let (seq, claim) = claim(seq, 1_000 + u128::from(seq), &format!("buyer-{seq}"), quantity);
    (seq, Arc::new(Claim { offer, ..(*claim).clone() }))
}

/// One claim for each offer, the last one first.
fn one_each(first_seq: u64, quantity: u32) -> Vec<(u64, Arc<Claim>)> {
    let numbers = (0..OFFERS).rev();
    numbers.zip(first_seq..).map(|(number, seq)| claim_of(offer(number), seq, quantity)).collect()
}

async fn counters(books: &Books) -> Vec<Counters> {
    books.ledger.counters(SALE).await.unwrap()
}

fn count(kinds: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    kinds.iter().for_each(|kind| *counts.entry(kind.as_str()).or_default() += 1);
    counts
}

async fn a_batch_over_very_many_offers_moves_each_counter_once(books: Books) {
    let before = counters(&books).await;
    let mut batch = one_each(1, 1);
    batch.extend(one_each(OFFERS + 1, 2));
    batch.push(claim_of(offer(5), 2 * OFFERS + 1, 1));
    let outcomes = record(&books, batch.clone()).await;
    assert_eq!(outcomes, vec![Recorded::Recorded; batch.len()]);
    let after = counters(&books).await;
    for (number, (before, after)) in before.iter().zip(&after).enumerate() {
        let units = if number == 5 { 4 } else { 3 };
        assert_eq!((after.live_units, after.change_no), (units, before.change_no + 1), "{number}: {after:?}");
    }
    let told = kinds(&books);
    let (orders, rest) = told.split_at(batch.len());
    assert!(orders.iter().all(|kind| kind == "order.recorded"), "{orders:?}");
    assert_eq!(rest, ["offer.sold_out"], "of the one that nothing is left of, after its orders");
    assert_eq!(record(&books, batch.clone()).await, vec![Recorded::RepeatLive; batch.len()]);
    assert_eq!(counters(&books).await, after, "a repeat moves nothing");
    assert_eq!(kinds(&books), told, "and tells nothing");
}

async fn very_many_offers_that_are_sold_out_by_one_batch_are_told_once_each(books: Books) {
    record(&books, one_each(1, 2)).await;
    let told = kinds(&books);
    let expected = [("offer.sold_out", 77), ("order.recorded", 77)];
    assert_eq!(count(&told), BTreeMap::from(expected));
    assert_eq!(record(&books, one_each(100, 1)).await, vec![Recorded::Refused(Reason::NoStock); 77]);
    let expected = [("offer.sold_out", 77), ("order.recorded", 77), ("order.refused", 77)];
    assert_eq!(count(&kinds(&books)), BTreeMap::from(expected));
}

/// Whoever was told "sold out" last is told that there are units, whoever moves the counter next.
async fn an_offer_that_is_wrongly_told_sold_out_is_set_right_by_the_next_batch(books: Books) {
    books.plant("update offers set sold_out = 1 where position = 7");
    record(&books, one_each(1, 1)).await;
    let told = kinds(&books);
    assert_eq!(count(&told), BTreeMap::from([("offer.restocked", 1), ("order.recorded", 77)]));
    let last = books.events().pop().unwrap();
    assert_eq!((last.kind.as_str(), last.data.as_str()), ("offer.restocked", r#"{"stock":4,"free":3}"#));
}

async fn an_offer_that_does_not_exist_leaves_the_others_as_they_are(books: Books) {
    let mut batch = one_each(1, 1);
    batch[40] = claim_of(OfferId(404), 41, 1);
    let records = books.ledger.record_orders(batch, NOW).await.unwrap();
    for (place, record) in records.iter().enumerate() {
        let expected = if place == 40 { Recorded::Refused(Reason::Internal) } else { Recorded::Recorded };
        assert_eq!((record.outcome, record.order.is_some()), (expected, place != 40), "{place}");
    }
    let live: u32 = counters(&books).await.iter().map(|counters| counters.live_units).sum();
    assert_eq!((live, records.len(), books.ledger.cursor().await.unwrap()), (76, 77, 77));
    assert_eq!(count(&kinds(&books)), BTreeMap::from([("order.recorded", 76)]));
}

/// Nothing but a damaged file can bring it about: here somebody takes the units away while the batch is recorded.
async fn one_offer_that_would_be_oversold_undoes_the_whole_batch(books: Books) {
    let thief = "create trigger thief after insert on orders
        when new.offer_no = (select offer_no from offers where position = 40)
        begin update offers set stock = live_units where offer_no = new.offer_no; end";
    books.plant(thief);
    let before = counters(&books).await;
    let refused = books.ledger.record_orders(one_each(1, 1), NOW).await;
    let Err(LedgerError::Failed(error)) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("would be oversold by this batch"), "{error}");
    assert_eq!((counters(&books).await, books.ledger.cursor().await.unwrap()), (before, 0));
    assert_eq!(kinds(&books), [""; 0]);
    books.plant("drop trigger thief");
    assert_eq!(record(&books, one_each(1, 1)).await, vec![Recorded::Recorded; 77], "again is harmless");
}

/// What is upcoming is told open before its first order, once for all of its offers.
async fn a_sale_of_very_many_offers_is_told_open_once(books: Books) {
    books.plant("delete from events; update sales set told_phase = 'upcoming'");
    record(&books, one_each(1, 1)).await;
    let told: Vec<String> = books.events().into_iter().map(|event| event.kind).collect();
    assert_eq!(told[0], "sale.opened");
    assert_eq!(count(&told), BTreeMap::from([("order.recorded", 77), ("sale.opened", 1)]));
}

contract!(
    sqlite_ledger,
    sqlite,
    a_batch_over_very_many_offers_moves_each_counter_once(4),
    very_many_offers_that_are_sold_out_by_one_batch_are_told_once_each(2),
    an_offer_that_is_wrongly_told_sold_out_is_set_right_by_the_next_batch(4),
    an_offer_that_does_not_exist_leaves_the_others_as_they_are(4),
    one_offer_that_would_be_oversold_undoes_the_whole_batch(4),
    a_sale_of_very_many_offers_is_told_open_once(4),
);

//! Events as their readers see them: page by page, and as docs/events.md describes them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use doorbuster::ledger::audit::{KeptAudit, ToldFinding};
use doorbuster::ledger::money::{Absent, QueueIsDrained};
use doorbuster::ledger::{Block, Changed};
use doorbuster::outbox::endpoint::TYPES;
use doorbuster::outbox::trial;
use doorbuster::queue::{Claim, Revive};
use rules::audit::Kind;
use rules::id::{AuditId, EventId, OrderId, PaymentId};
use rules::payment::{REFUND_SLOW_MS, RefundReason};
use rules::sale::{Sale, SaleAction};
use rules::strike::Policy;
use rules::wire::AuditFinding;
use serde_json::Value;

use super::deadlines::{PAY_BY, sweep};
use super::payments::{by_payment, captured, start, take};
use super::{Books, NOW, OFFER, Recorded, SALE, buyer, claim, record, sqlite};

async fn page(books: &Books, after: u64, limit: u32, kind: &'static str) -> (Vec<String>, u64, bool) {
    let wants = move |of: &str| kind.is_empty() || of == kind;
    let page = books.ledger.event_page(after, limit, wants).await.unwrap();
    (page.events.into_iter().map(|event| event.kind).collect(), page.read_to, page.more)
}

async fn readers_page_through_all_events_and_miss_none(books: Books) {
    assert_eq!(page(&books, 0, 2, "").await, (vec!["sale.created".into(), "sale.published".into()], 2, true));
    assert_eq!(page(&books, 2, 2, "").await, (vec!["sale.opened".into()], 3, false));
    assert_eq!(page(&books, 3, 2, "").await, (vec![], 3, false));
    record(&books, vec![claim(1, 11, "ann", 1)]).await;
    assert_eq!(
        page(&books, 3, 2, "sale.created").await,
        (vec![], 4, false),
        "what is not wanted is passed over"
    );
    assert_eq!(page(&books, 0, 9, "order.recorded").await, (vec!["order.recorded".into()], 4, false));
    let last = books.ledger.last_events(2, |_| true).await.unwrap();
    assert_eq!(
        (last.events[0].kind.as_str(), last.events[1].kind.as_str()),
        ("sale.opened", "order.recorded")
    );
    assert_eq!((last.read_to, last.events[1].id), (4, EventId::numbered(&[7; 16], 4)));
    let of_sales = books.ledger.last_events(1, |kind| kind.starts_with("sale.")).await.unwrap();
    assert_eq!((of_sales.events[0].kind.as_str(), of_sales.read_to), ("sale.opened", 4));
    assert_eq!(books.ledger.place_of(NOW).await.unwrap(), 0);
    assert_eq!(books.ledger.place_of(NOW.plus_ms(1)).await.unwrap(), 4, "nothing is that new");
}

async fn readers_are_not_told_of_rehearsals(books: Books) {
    books.plant("update sales set rehearsal = 1");
    assert_eq!(page(&books, 0, 9, "").await, (vec![], 3, false), "and need not look at them again");
    assert_eq!(books.ledger.last_events(9, |_| true).await.unwrap().events, []);
}

/// Others wait behind a read: none may walk over all that a rehearsal left.
async fn a_long_rehearsal_is_passed_over_in_pieces(books: Books) {
    books.plant("update sales set rehearsal = 1");
    books.plant_events(25_000, "(select sale_no from sales)", "1");
    books.plant_events(1, "null", "1");
    assert_eq!(page(&books, 0, 9, "").await, (vec![], 10_000, true));
    assert_eq!(page(&books, 10_000, 9, "").await, (vec![], 20_000, true));
    assert_eq!(page(&books, 20_000, 9, "").await, (vec!["test".into()], 25_004, false));
    books.plant_events(10_000, "(select sale_no from sales)", "1");
    assert_eq!(
        books.ledger.last_events(9, |_| true).await.unwrap().events,
        [],
        "it looks back a bounded way"
    );
}

/// Times grow with the numbers, but not strictly: who waits for the writer was timed before.
async fn a_time_is_found_among_many_events(books: Books) {
    let at = format!("{} + i * 100 - iif(i % 7 = 0, 3000, 0)", NOW.0);
    books.plant_events(5_000, "null", &at);
    for kept_from in [0, 1_000] {
        books.plant(&format!("delete from events where event_no <= {kept_from}"));
        for step in 0..=530 {
            let since = NOW.plus_ms(step * 977);
            let sql = "select coalesce(min(event_no) - 1, (select max(event_no) from events)) from events";
            let [expected] = books.numbers(&format!("{sql} where at >= {}", since.0));
            assert_eq!(i64::try_from(books.ledger.place_of(since).await.unwrap()), Ok(expected), "{since}");
        }
    }
}

contract!(
    sqlite_ledger,
    sqlite,
    readers_page_through_all_events_and_miss_none(3),
    readers_are_not_told_of_rehearsals(3),
    a_long_rehearsal_is_passed_over_in_pieces(3),
    a_time_is_found_among_many_events(3),
);

/// What a receiver branches on: which ids are there, and which facts.
type Shape = (Vec<bool>, Vec<String>);

fn shape(event: &Value) -> Shape {
    let fields: Vec<&String> = event.as_object().unwrap().keys().collect();
    let envelope: BTreeSet<&str> =
        ["id", "type", "at", "sale_id", "offer_id", "order_id", "seq", "data"].into_iter().collect();
    assert_eq!(fields.iter().map(|field| field.as_str()).collect::<BTreeSet<_>>(), envelope, "{event}");
    let there = ["sale_id", "offer_id", "order_id", "seq"].map(|field| !event[field].is_null());
    let mut facts: Vec<String> = event["data"].as_object().unwrap().keys().cloned().collect();
    facts.sort_unstable();
    (there.to_vec(), facts)
}

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The examples of docs/events.md by type.
fn documented() -> BTreeMap<String, Vec<Value>> {
    let text = std::fs::read_to_string(root().join("docs/events.md")).unwrap();
    let mut types = BTreeMap::new();
    for chapter in text.split("\n### `").skip(1) {
        let (kind, rest) = chapter.split_once('`').unwrap();
        let examples: Vec<Value> = rest
            .split("```json")
            .skip(1)
            .map(|example| serde_json::from_str(example.split("```").next().unwrap()).unwrap())
            .collect();
        assert!(!examples.is_empty(), "{kind} has no example");
        assert!(examples.iter().all(|example| example["type"] == kind), "{kind}");
        assert!(types.insert(kind.to_owned(), examples).is_none(), "{kind} is described twice");
    }
    types
}

/// Late money for an order that timed out.
async fn late(books: &Books, seq: u64, order: u128, name: &str, payment: u128) {
    record(books, vec![claim(seq, order, name, 1)]).await;
    start(books, order, name, "sandbox", payment).await;
    books.ledger.close_payment(PaymentId(payment), NOW).await.unwrap();
    sweep(books, PAY_BY).await;
    let (event, capture) = (format!("evt {payment}"), format!("cap {payment}"));
    take(books, captured(&event, &capture, by_payment(payment), 149_900, 9), PAY_BY).await;
}

async fn everything_that_happens_to_orders_and_money(books: &Books) {
    record(books, vec![claim(1, 11, "ann", 1), claim(2, 12, "bob", 1), claim(3, 13, "cyd", 5)]).await;
    books.ledger.cancel_order(OrderId(12), buyer("bob"), NOW).await.unwrap();
    start(books, 11, "ann", "sandbox", 101).await;
    take(books, captured("evt 101", "cap 101", by_payment(101), 149_900, 9), NOW).await;
    let refund = async |payment, fails: bool| {
        books.ledger.refund_begun(PaymentId(payment), NOW.plus_s(60), NOW).await.unwrap();
        if fails {
            super::refunds::fail(books, PaymentId(payment), "no", true).await;
        } else {
            books.ledger.refund_done(PaymentId(payment), NOW).await.unwrap();
        }
    };
    for fails in [true, false] {
        books.ledger.refund_order(OrderId(11), false, NOW).await.unwrap();
        refund(101, fails).await;
    }
    late(books, 4, 14, "dan", 104).await;
    books.ledger.revive_alone(PaymentId(104), QueueIsDrained, PAY_BY).await.unwrap();
    take(books, super::refunds::back_elsewhere("part", "cap 104", 50_000), PAY_BY).await;
    late(books, 5, 15, "eve", 105).await;
    books.ledger.refund_late(PaymentId(105), RefundReason::NoUnitLeft, PAY_BY).await.unwrap();
    let (seq, again) = claim(6, 15, "eve", 1);
    let revives = Some(Revive { payment: PaymentId(105), closing_seq: 3 });
    let outcome = record(books, vec![(seq, Arc::new(Claim { revives, ..(*again).clone() }))]).await;
    assert_eq!(outcome, [Recorded::NotRevived { refund: None }]);
    refund(105, true).await;
    books.ledger.retry_refund(PaymentId(105), NOW).await.unwrap();
    books.ledger.tell_slow_refund(PaymentId(105), NOW.plus_ms(REFUND_SLOW_MS)).await.unwrap();
    refund(105, false).await;
    take(books, captured("evt 109", "cap 109", by_payment(109), 149_900, 109), NOW).await;
    books.ledger.settle_capture(PaymentId(109), Absent::WillNotCome, NOW).await.unwrap();
}

async fn everything_that_happens_to_sales_and_buyers(books: &Books) {
    let by_hand =
        books.ledger.add_strike(buyer("ann"), Some("sold it on".into()), NOW, |_| None).await.unwrap();
    books.ledger.lift_strike(buyer("ann"), by_hand.no, NOW).await.unwrap();
    let block = Block { buyer: buyer("ann"), until: NOW.plus_s(60), note: Some("bot".into()) };
    books.ledger.block(block, NOW).await.unwrap();
    books
        .ledger
        .let_in(buyer("ann"), Policy { limit: 3, window_days: 30, block_hours: 72 }, NOW)
        .await
        .unwrap();
    let free = {
        let counters = books.ledger.counters(SALE).await.unwrap()[0];
        i64::from(counters.stock - counters.live_units)
    };
    books.ledger.change_stock(OFFER, -free, "none left".into(), NOW).await.unwrap();
    books.ledger.change_stock(OFFER, 3, "more".into(), NOW).await.unwrap();
    books.ledger.update_sale(SALE, None, NOW, |sale: Sale| Changed::Done(sale)).await.unwrap();
    let finding = AuditFinding {
        kind: Kind::GateUnits,
        offer_id: Some(OFFER),
        units: 2,
        detail: Kind::GateUnits.means().to_owned(),
        evidence: BTreeMap::new(),
        repaired: false,
        todo: Some(Kind::GateUnits.todo().to_owned()),
    };
    let audit = KeptAudit {
        id: AuditId(1),
        ended_at: NOW,
        clean: false,
        known: vec!["gate_units".to_owned()],
        report: "{}".to_owned(),
        told: vec![ToldFinding::of(AuditId(1), &finding)],
    };
    books.ledger.keep_audit(audit).await.unwrap();
    for action in [SaleAction::Pause, SaleAction::Resume, SaleAction::End] {
        books.ledger.act_on_sale(SALE, action, NOW).await.unwrap();
    }
}

#[tokio::test]
async fn the_document_shows_every_event_as_it_is() {
    let books = sqlite(4).await;
    everything_that_happens_to_orders_and_money(&books).await;
    everything_that_happens_to_sales_and_buyers(&books).await;
    let documented = documented();
    let mut met: BTreeMap<String, BTreeSet<Shape>> = BTreeMap::new();
    for event in books.ledger.event_page(0, 1_000, |_| true).await.unwrap().events {
        let event = serde_json::to_value(&event).unwrap();
        let kind = event["type"].as_str().unwrap().to_owned();
        met.entry(kind).or_default().insert(shape(&event));
    }
    for (kind, shapes) in &met {
        let examples = documented.get(kind).unwrap_or_else(|| panic!("{kind} is not in docs/events.md"));
        let shown: BTreeSet<Shape> = examples.iter().map(shape).collect();
        assert_eq!(*shapes, shown, "{kind}: what happened, and what docs/events.md shows");
    }
    let not_met: Vec<&String> =
        documented.keys().filter(|kind| !met.contains_key(*kind) && *kind != trial::KIND).collect();
    assert_eq!(not_met, [""; 0], "described, and never met here");
}

/// Words in quotes that look like a type, in the sources that write events.
fn written_types() -> BTreeSet<String> {
    let kinds = ["order", "payment", "sale", "offer", "buyer", "audit", "webhook"];
    let word =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let is_type =
        |text: &str| text.split_once('.').is_some_and(|(kind, what)| kinds.contains(&kind) && word(what));
    let mut found = BTreeSet::new();
    let mut folders =
        vec![root().join("crates/doorbuster/src/ledger"), root().join("crates/doorbuster/src/outbox")];
    let mut files = vec![root().join("crates/rules/src/order.rs"), root().join("crates/rules/src/sale.rs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        // What tests of these files say is not written anywhere.
        let code = text.split("#[cfg(test)]").next().unwrap();
        found.extend(code.split(['"', '\'']).filter(|text| is_type(text)).map(str::to_owned));
    }
    found
}

#[test]
fn every_type_that_is_written_is_in_the_document() {
    let documented = documented();
    let written = written_types();
    assert!(written.len() > 20, "{written:?}");
    let missing: Vec<&String> = written.iter().filter(|kind| !documented.contains_key(*kind)).collect();
    assert_eq!(missing, [""; 0], "describe them in docs/events.md, with an example");
    let known: BTreeSet<String> = TYPES.iter().map(|&kind| kind.to_owned()).collect();
    assert_eq!(known, documented.into_keys().collect(), "what receivers may name, and what there is");
}

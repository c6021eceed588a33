//! One data folder with a past (bought, cancelled, lapsed, paid, refunded), and in copies of it one discrepancy each,
//! written into the closed files.

use std::path::Path;

use doorbuster::auditor::folder;
use doorbuster::clock::Clock;
use doorbuster::ledger::SqliteLedger;
use doorbuster::ledger::money::{RefundAsked, RefundEnd};
use doorbuster::queue::{Claim, claim::Entries};
use rules::audit::{Kind, Mending};
use rules::deadline::Excuses;
use rules::id::{OfferId, OrderId};
use rules::time::UnixMs;
use rules::wire::{AuditRequest, AuditView};
use rusqlite::Connection;
use serde_json::json;
use tempfile::TempDir;

use super::{bought, buyer, findings, pay};
use crate::app::{TestApp, settings};

const LEDGER: &str = "doorbuster.db";
const JOURNAL: &str = "journal.db";

/// A folder with a past, and its offer.
struct Past {
    folder: TempDir,
    offer: String,
}

async fn past() -> Past {
    let app = TestApp::start().await;
    let sale = app.open_sale(15).await;
    let offer = sale.offer().to_owned();
    let hook = json!({"url": "https://shop.example/hooks", "disabled": true});
    app.operate("POST", "/admin/v1/webhooks", Some(&hook), 201).await;
    let more = json!({"change": 5, "change_id": "c"});
    app.operate("POST", &format!("/admin/v1/offers/{offer}/stock"), Some(&more), 200).await;
    // Ann cancels and buys again; Dan lets it lapse; Bob pays; Eve is refunded, Fay is being refunded, and Gil's units leave
    // the shelf.
    bought(&app, &offer, "dan", 1).await;
    for name in ["ann", "cyd"] {
        let order = bought(&app, &offer, name, 1).await;
        app.app.cancel(order, &buyer(name)).await.unwrap();
    }
    bought(&app, &offer, "ann", 1).await;
    let bob = bought(&app, &offer, "bob", 2).await;
    let mut refunds = Vec::new();
    for (name, restock) in [("eve", true), ("fay", true), ("gil", false)] {
        refunds.push((bought(&app, &offer, name, 1).await, name, restock));
    }
    let zoe = bought(&app, &offer, "zoe", 1).await;
    app.app.cancel(zoe, &buyer("zoe")).await.unwrap();
    let now = app.app.clock.now();
    let folder = app.stop().await;
    // Without a server: its workers would go on with what is half done here.
    let ledger = SqliteLedger::open(&folder.path().join(LEDGER), None, [0; 16]).unwrap();
    let lapsed = ledger.close_due(now.plus_s(1_000), 1, Excuses::default(), Vec::new()).await.unwrap();
    assert_eq!(lapsed.closed[0].order.buyer, buyer("dan"));
    pay(&ledger, bob, "bob", 2, now).await;
    for (order, name, restock) in refunds {
        let payment = pay(&ledger, order, name, 1, now).await;
        let asked = ledger.refund_order(order, restock, now).await.unwrap();
        assert!(matches!(asked, RefundAsked::Begun { .. }), "{asked:?}");
        if name != "fay" {
            ledger.refund_begun(payment, now.plus_s(60), now).await.unwrap();
            let end = ledger.refund_done(payment, now).await.unwrap();
            assert!(matches!(end, RefundEnd::Done { .. }), "{end:?}");
        }
    }
    ledger.close();
    Past { folder, offer }
}

fn copy_of(past: &Past) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    // What the last server wrote may still stand in the logs beside the files.
    for name in [LEDGER, JOURNAL].into_iter().flat_map(|name| [name.to_owned(), format!("{name}-wal")]) {
        let from = past.folder.path().join(&name);
        if from.exists() {
            std::fs::copy(from, copy.path().join(&name)).unwrap();
        }
    }
    copy
}

async fn look(folder: &Path, repair: bool) -> AuditView {
    let request = AuditRequest { repair, ..AuditRequest::default() };
    folder::audit(&settings(folder, &[]), request, &Clock::system()).await.unwrap()
}

fn in_file(folder: &Path, name: &str, sql: &str) {
    let file = Connection::open(folder.join(name)).unwrap();
    file.execute_batch("pragma ignore_check_constraints = on; pragma foreign_keys = off;").unwrap();
    file.execute_batch(sql).unwrap_or_else(|error| panic!("{error}: {sql}"));
}

fn add_claim(folder: &Path, offer: &str, quantity: u32) {
    let claim = Claim {
        order: OrderId(77),
        offer: offer.parse().unwrap(),
        buyer: buyer("max"),
        quantity,
        claimed_at: UnixMs(1_800_000_000_000),
        pass_expires_at: UnixMs(1_800_000_300_000),
        revives: None,
    };
    let mut entries = Entries::default();
    entries.fill([claim].iter()).unwrap();
    let bytes: Vec<u8> = entries.iter().flat_map(|(bytes, _)| bytes.to_vec()).collect();
    let file = Connection::open(folder.join(JOURNAL)).unwrap();
    file.execute(
        "insert into entries (last_seq, first_seq, claims) select max(last_seq) + 1, max(last_seq) + 1, ?1 from entries",
        [bytes],
    )
    .unwrap();
}

/// Where a discrepancy is planted, what it is, whether it names the offer, and how many units it is about.
struct Plant {
    kind: Kind,
    file: &'static str,
    sql: &'static str,
    of_offer: bool,
    units: i64,
}

const fn plant(kind: Kind, units: i64, sql: &'static str) -> Plant {
    Plant { kind, file: LEDGER, sql, of_offer: true, units }
}

const fn plant_elsewhere(kind: Kind, file: &'static str, sql: &'static str) -> Plant {
    Plant { kind, file, sql, of_offer: false, units: 0 }
}

/// The past leaves a stock of 19, of which Ann holds 1, Bob 2 and Fay 1.
const PLANTS: &[Plant] = &[
    plant(
        Kind::Oversold,
        5,
        "update orders set quantity = 21 where buyer = 'ann' and slot = 0; update offers set live_units = 24;",
    ),
    plant(Kind::LiveCounter, -1, "update offers set live_units = live_units + 1;"),
    plant(Kind::LiveCounter, 4, "update offers set live_units = 0, paid_units = 0;
        update orders set state = 'awaiting_payment', payment_id = null where state in ('paid', 'refunding');
        delete from notices; delete from payments where state in ('applied', 'refund_due');"),
    plant(Kind::PaidCounter, 1, "update offers set paid_units = paid_units - 1;"),
    plant(Kind::PaidCounter, -1, "update offers set paid_units = paid_units + 1;"),
    plant(
        Kind::OneLiveOrder,
        1,
        "update orders set state = 'awaiting_payment', reason = null, holds_units = 1
         where buyer = 'ann' and state = 'closed'; update offers set live_units = live_units + 1;",
    ),
    plant(Kind::OrderState, 1, "update orders set reason = null where buyer = 'cyd';"),
    plant(Kind::OrderState, 1, "update orders set reason = 'no_stock' where buyer = 'cyd';"),
    plant(
        Kind::OrderState,
        1,
        "update orders set holds_units = 1 where buyer = 'eve'; update offers set live_units = live_units + 1;",
    ),
    plant(Kind::UnreadableRow, 2, "update orders set state = 'lent' where buyer = 'bob';"),
    plant(Kind::UnreadableRow, 1, "update orders set state = 'lent' where buyer = 'dan';"),
    plant(Kind::UnreadableRow, 1, "update orders set reason = 'a whim' where buyer = 'cyd';"),
    plant(
        Kind::UnreadableRow,
        2,
        "update payments set state = 'lent' where order_id = (select order_id from orders where buyer = 'bob');",
    ),
    plant(
        Kind::UnreadableRow,
        1,
        "update payments set reason = 'a whim' where order_id = (select order_id from orders where buyer = 'eve');",
    ),
    plant_elsewhere(Kind::UnreadableRow, LEDGER, "update sales set state = 'lent';"),
    plant_elsewhere(Kind::UnreadableRow, LEDGER, "update webhooks set cursor = 'a while ago';"),
    plant(
        Kind::EventGap,
        2,
        "delete from events where seq = 2 and order_no = (select order_no from orders where buyer = 'bob');",
    ),
    plant(
        Kind::EventGap,
        2,
        "insert into events (type, at, sale_no, offer_no, order_no, seq, data)
         select type, at, sale_no, offer_no, order_no, seq, data from events where seq = 2
         and order_no = (select order_no from orders where buyer = 'bob');",
    ),
    plant(Kind::EventGap, 2, "update orders set seq = seq + 1 where buyer = 'bob';"),
    // Gil's refund lowered the stock, or should have.
    plant(Kind::StockUntold, -1, "update offers set stock = stock + 1;"),
    plant(Kind::StockUntold, 2, "update offers set stock = stock - 2;"),
    plant(
        Kind::PaidWithoutPayment,
        2,
        "delete from notices; delete from payments where order_id = (select order_id from orders where buyer = 'bob');",
    ),
    plant(
        Kind::PaymentWithoutOrder,
        2,
        "update orders set state = 'awaiting_payment' where buyer = 'bob'; update offers set paid_units = paid_units - 2;",
    ),
    plant(
        Kind::PaidTwice,
        2,
        "drop index payments_one_pays_the_order;
         insert into payments (payment_id, order_id, provider, reference, capture_id, state, amount, currency,
             started_at, captured_at, refund_key)
         select x'00112233445566778899aabbccddeeff', order_id, provider, 'again', 'again', state, amount, currency,
             started_at, captured_at, 'again' from payments
         where order_id = (select order_id from orders where buyer = 'bob');",
    ),
    plant(
        Kind::MoneyDisagrees,
        1,
        "update payments set state = 'refund_due', next_try_at = 9000000000000000
         where order_id = (select order_id from orders where buyer = 'eve');",
    ),
    plant(Kind::MoneyDisagrees, 2, "update orders set payment_id = null where buyer = 'bob';"),
    plant(
        Kind::WrongAmount,
        2,
        "update payments set amount = amount - 1 where order_id = (select order_id from orders where buyer = 'bob');",
    ),
    plant(
        Kind::WrongAmount,
        2,
        "update payments set currency = 'JPY' where order_id = (select order_id from orders where buyer = 'bob');",
    ),
    plant(
        Kind::RefundedElsewhere,
        2,
        "update payments set back_elsewhere = amount where order_id = (select order_id from orders where buyer = 'bob');",
    ),
    plant(
        Kind::StrikeWithoutLapse,
        2,
        "insert into strikes (buyer, order_no, struck_at) select buyer, order_no, recorded_at from orders
         where buyer = 'bob';",
    ),
    plant_elsewhere(Kind::WebhookCursor, LEDGER, "update webhooks set cursor = 1000000;"),
    plant_elsewhere(
        Kind::DeliveryWithoutEvent,
        LEDGER,
        "insert into deliveries (webhook_no, event_no, track, state, attempts, since)
         select webhook_no, 1000000, 1, 'parked', 1, 1 from webhooks;",
    ),
    plant_elsewhere(Kind::CursorBehind, LEDGER, "update identity set cursor = cursor - 1;"),
    plant_elsewhere(Kind::JournalShort, LEDGER, "update identity set cursor = cursor + 1;"),
    plant_elsewhere(Kind::JournalForeign, JOURNAL, "update identity set incarnation = x'00';"),
    plant(
        Kind::ClaimWithoutOrder,
        1,
        "delete from events where order_no = (select order_no from orders where buyer = 'zoe');
         delete from orders where buyer = 'zoe';",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_discrepancy_in_the_files_is_found_and_mended_or_named() {
    let past = past().await;
    let clean = copy_of(&past);
    assert_eq!(findings(&look(clean.path(), false).await), [], "the past itself is clean");
    for plant in PLANTS {
        let folder = copy_of(&past);
        in_file(folder.path(), plant.file, plant.sql);
        check(folder.path(), plant, &past.offer).await;
    }
    for (offer, quantity) in [(past.offer.clone(), 16), (OfferId(5).to_string(), 1)] {
        let folder = copy_of(&past);
        add_claim(folder.path(), &offer, quantity);
        let plant = plant(Kind::ClaimUnrecordable, quantity.into(), "a claim in the journal");
        check(folder.path(), &plant, &offer).await;
    }
    let folder = copy_of(&past);
    add_claim(folder.path(), &past.offer, 15);
    assert_eq!(findings(&look(folder.path(), false).await), [], "a claim on its way is no finding");
}

async fn check(folder: &Path, plant: &Plant, offer: &str) {
    let expected = [(plant.kind, plant.of_offer.then(|| offer.to_owned()), plant.units)];
    let found = look(folder, false).await;
    assert_eq!(findings(&found), expected, "{}\n{:#?}", plant.sql, found.findings);
    assert!(!found.findings[0].repaired && found.findings[0].todo.is_some());
    let mends = plant.kind.mending() != Mending::Person;
    let repaired = look(folder, true).await;
    assert_eq!(findings(&repaired), expected, "{}", plant.sql);
    assert_eq!(repaired.findings[0].repaired, mends, "{}", plant.sql);
    assert_eq!(repaired.findings[0].todo.is_none(), mends);
    let after = look(folder, true).await;
    assert_eq!(findings(&after), if mends { &[] } else { &expected[..] }, "{}", plant.sql);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_is_not_mended_into_an_oversale() {
    let past = past().await;
    let folder = copy_of(&past);
    in_file(folder.path(), LEDGER, "update orders set quantity = 21 where buyer = 'ann' and slot = 0;");
    let repaired = look(folder.path(), true).await;
    let kinds: Vec<Kind> = repaired.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [Kind::Oversold, Kind::LiveCounter]);
    assert!(repaired.findings.iter().all(|finding| !finding.repaired));
}

/// A newer version, or a hand, wrote words that this one does not know: it says where, and finds the rest.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_cannot_be_read_hide_no_other_finding() {
    let past = past().await;
    let folder = copy_of(&past);
    in_file(
        folder.path(),
        LEDGER,
        "update orders set state = 'lent' where buyer = 'dan';
         update payments set state = 'lent' where order_id = (select order_id from orders where buyer = 'eve');
         update orders set reason = null where buyer = 'cyd';
         update orders set payment_id = null where buyer = 'bob';
         delete from events where seq = 2 and order_no = (select order_no from orders where buyer = 'gil');
         update offers set live_units = live_units + 1;
         update webhooks set cursor = 1000000;",
    );
    let view = look(folder.path(), true).await;
    let mut found: Vec<(Kind, bool)> =
        view.findings.iter().map(|finding| (finding.kind, finding.repaired)).collect();
    found.sort_unstable();
    let expected = [
        (Kind::LiveCounter, true),
        (Kind::OrderState, false),
        (Kind::UnreadableRow, false),
        (Kind::UnreadableRow, false),
        (Kind::EventGap, false),
        (Kind::MoneyDisagrees, false),
        (Kind::WebhookCursor, true),
    ];
    assert_eq!(found, expected, "{:#?}", view.findings);
    let unreadable = view.findings.iter().filter(|finding| finding.kind == Kind::UnreadableRow);
    let told: Vec<_> = unreadable
        .map(|finding| ["table", "column", "value"].map(|name| finding.evidence[name].as_str()))
        .collect();
    assert_eq!(told, [["orders", "state", "lent"], ["payments", "state", "lent"]]);
}

/// Events are kept for a while only: an order from before that is not blamed for lacking some.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_were_dropped_by_age_are_no_gap() {
    let past = past().await;
    let folder = copy_of(&past);
    in_file(
        folder.path(),
        LEDGER,
        "delete from events where event_no <= (select max(event_no) from events where seq = 2 and order_no =
             (select order_no from orders where buyer = 'bob'));",
    );
    assert_eq!(findings(&look(folder.path(), false).await), []);
    in_file(
        folder.path(),
        LEDGER,
        "delete from events where seq = 2 and order_no = (select order_no from orders where buyer = 'gil');",
    );
    let kinds: Vec<Kind> = look(folder.path(), false).await.findings.iter().map(|found| found.kind).collect();
    assert_eq!(kinds, [Kind::EventGap]);
}

//! A ledger that an earlier version wrote is brought up to date and goes on. Its orders keep their deadlines.

use doorbuster::ledger::SqliteLedger;
use doorbuster::ledger::money::{Decided, Settled, Taken};
use rules::deadline::{Outage, Span};
use rules::id::OrderId;
use rules::order::{Reason, State};

use super::deadlines::{PAY_BY, sweep};
use super::payments::{by_payment, captured, start, take};
use super::{Books, NOW, OFFER, SALE, assert_books_fit, claim, live_units, order, record};

/// The tables as versions 1 to 12 made them.
const TABLES: [&str; 12] = [
    include_str!("../../../migrations/sqlite/0001_ledger.sql"),
    include_str!("../../../migrations/sqlite/0002_image_copies.sql"),
    include_str!("../../../migrations/sqlite/0003_money.sql"),
    include_str!("../../../migrations/sqlite/0004_webhooks.sql"),
    include_str!("../../../migrations/sqlite/0005_outages.sql"),
    include_str!("../../../migrations/sqlite/0006_marks.sql"),
    include_str!("../../../migrations/sqlite/0007_broker.sql"),
    include_str!("../../../migrations/sqlite/0008_audits.sql"),
    include_str!("../../../migrations/sqlite/0009_refunds.sql"),
    include_str!("../../../migrations/sqlite/0010_receivers.sql"),
    include_str!("../../../migrations/sqlite/0011_closings.sql"),
    include_str!("../../../migrations/sqlite/0012_returns.sql"),
];

fn empty_ledger_of(version: usize, path: &std::path::Path) -> rusqlite::Connection {
    let file = rusqlite::Connection::open(path).unwrap();
    for tables in &TABLES[..version] {
        file.execute_batch(tables).unwrap();
    }
    file.pragma_update(None, "user_version", i64::try_from(version).unwrap()).unwrap();
    file
}

fn ledger_of_version_two(path: &std::path::Path) {
    let file = empty_ledger_of(2, path);
    file.execute("insert into identity values (1, ?1, 3)", [[7_u8; 16].as_slice()]).unwrap();
    file.execute(
        "insert into sales values (1, ?1, 'published', 'old', ?2 - 1000, ?2 + 1000000, 900, 'none', 'none', null, null,
             null, 0, ?2)",
        rusqlite::params![SALE.to_bytes(), NOW.0],
    )
    .unwrap();
    file.execute(
        "insert into offers values (1, ?1, 1, 0, 'old', null, null, null, 149900, 'CNY', 10, 5, 3, 0, 3)",
        [OFFER.to_bytes()],
    )
    .unwrap();
    let orders = [(1_i64, 11_u128, "ann", "awaiting_payment", 1), (2, 12, "bob", "awaiting_payment", 1)];
    for (no, id, name, state, holds) in orders {
        file.execute(
            "insert into orders values (?1, ?2, 1, ?3, ?4, ?5, null, 2, ?6, 0, ?7, ?7, ?8, null, null, ?7)",
            rusqlite::params![no, OrderId(id).to_bytes(), name, no, state, holds, NOW.0, PAY_BY.0],
        )
        .unwrap();
        file.execute(
            "insert into events (type, at, sale_no, offer_no, order_no, seq, data)
             values ('order.recorded', ?1, 1, 1, ?2, 2, '{}')",
            rusqlite::params![NOW.0, no],
        )
        .unwrap();
    }
}

#[tokio::test]
async fn an_older_ledger_goes_on_with_its_orders() {
    let folder = tempfile::tempdir().unwrap();
    let path = Books::file_in(folder.path());
    ledger_of_version_two(&path);
    let ledger = SqliteLedger::open(&path, None, [1; 16]).unwrap();
    assert_eq!(ledger.incarnation(), &[7; 16], "it is the same ledger");
    ledger.close();
    let books = Books::in_folder(folder);
    let ann = order(&books, 11).await;
    assert_eq!((ann.status.state, ann.payment, ann.refunded_at), (State::AwaitingPayment, None, None));
    start(&books, 11, "ann", "sandbox", 101).await;
    let paid = take(&books, captured("evt", "cap", by_payment(101), 149_900, 9), NOW).await;
    assert!(matches!(paid, Taken::Capture(Decided { this: Settled::Applied { .. }, .. })), "{paid:?}");
    assert_eq!(sweep(&books, PAY_BY).await, [(12, 3)]);
    assert_eq!(order(&books, 12).await.status.reason, Some(Reason::Timeout));
    assert_eq!(live_units(&books).await, 1);
    record(&books, vec![claim(4, 14, "bob", 1)]).await;
    assert_books_fit(&books).await;
}

/// Before version 13 nobody wrote down whose outage it was.
#[tokio::test]
async fn what_kept_everybody_from_paying_still_does_after_an_upgrade() {
    let folder = tempfile::tempdir().unwrap();
    let path = Books::file_in(folder.path());
    let file = empty_ledger_of(12, &path);
    let spans = [-60_000, -30_000].map(|until| (NOW.plus_ms(-90_000), NOW.plus_ms(until)));
    for (from, until) in spans {
        file.execute("insert into outages values (?1, ?2)", [from.0, until.0]).unwrap();
    }
    drop(file);
    let books = Books::in_folder(folder);
    let everywhere = |(from, until)| Outage::everywhere(Span { from, until });
    assert_eq!(books.ledger.note_start(NOW).await.unwrap(), spans.map(everywhere));
}

#[tokio::test]
async fn bringing_a_ledger_up_to_date_again_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = Books::file_in(folder.path());
    ledger_of_version_two(&path);
    let tables = |path: &std::path::Path| -> Vec<String> {
        let file = rusqlite::Connection::open(path).unwrap();
        let mut statement =
            file.prepare("select sql from sqlite_schema where sql is not null order by name").unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    };
    SqliteLedger::open(&path, None, [1; 16]).unwrap().close();
    let upgraded = tables(&path);
    SqliteLedger::open(&path, None, [1; 16]).unwrap().close();
    assert_eq!(tables(&path), upgraded);
    let fresh = folder.path().join("fresh.db");
    SqliteLedger::open(&fresh, None, [1; 16]).unwrap().close();
    assert_eq!(tables(&fresh), upgraded, "upgraded and new ledgers have the same tables");
}

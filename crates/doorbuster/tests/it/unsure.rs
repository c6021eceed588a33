//! A server whose disk fails or is full, or whose queue is, as its buyers see it over HTTP.

use serde_json::{Value, json};
use testkit::disk::{Disk, Fault, Kind, OperationKind, PowerCut};

use crate::app::{PATIENCE, TestApp, TestSale, assert_code, eventually};
use crate::buyer_orders::second_hand;

/// A server whose next sync of the journal goes wrong, and its sale of three units, one of them sold.
pub async fn about_to_fail(disk: &Disk, kind: Kind) -> (TestApp, TestSale, String) {
    let app = TestApp::on_disk(tempfile::tempdir().unwrap(), disk).await;
    let sale = app.open_sale(3).await;
    let ann = app.buyer("ann");
    let pass = ann.mint(sale.offer());
    ann.buy_with(sale.offer(), &pass, 1, 202).await;
    app.settled().await;
    disk.plan(Fault::at(1, kind).on(OperationKind::Sync).of_file("journal.db-wal"));
    (app, sale, pass)
}

/// The try that meets the failing sync: the pass, and what its buyer was told.
pub async fn meet(app: &TestApp, sale: &TestSale) -> (String, Value) {
    let bob = app.buyer("bob");
    let given = bob.pass(sale.offer()).await;
    let pass = given["pass"].as_str().unwrap().to_owned();
    let url = app.url(&format!("/api/v1/offers/{}/orders", sale.offer()));
    let (status, headers, problem) =
        app.send(app.client.post(url).json(&json!({"pass": pass, "quantity": 1}))).await;
    assert_eq!((status, &problem["order_id"]), (503, &given["order_id"]), "{problem}");
    assert!(headers.contains_key("retry-after"));
    (pass, problem)
}

async fn a_failed_sync(kind: Kind, power_cut: bool) {
    let disk = Disk::powersafe();
    let (app, sale, anns_pass) = about_to_fail(&disk, kind).await;
    let (bobs_pass, problem) = meet(&app, &sale).await;
    assert_code(&problem, "unsure");
    let (reason, folder) = app.fail().await;
    assert!(format!("{reason:#}").contains("can no longer be trusted"), "{reason:#}");
    assert!(disk.fired());

    let disk = if power_cut { disk.power_cut(PowerCut::DropUnsynced) } else { disk };
    let app = TestApp::on_disk(folder, &disk).await;
    for (name, pass) in [("ann", &anns_pass), ("bob", &bobs_pass)] {
        let url = app.url(&format!("/api/v1/offers/{}/orders", sale.offer()));
        let request = app.client.post(url).header("prefer", "wait=20");
        let (status, _, order) = app.send(request.json(&json!({"pass": pass, "quantity": 1}))).await;
        assert!(matches!(status, 200 | 201), "{name}: {status} {order}");
        assert_eq!(order["state"], "awaiting_payment", "{name}");
        if name == "bob" {
            assert_eq!(order["id"], problem["order_id"], "the same pass is the same order");
        }
    }
    app.settled().await;
    let units = &app.stats(&sale).await["offers"][0];
    assert_eq!((&units["free"], &units["held"]), (&json!(1), &json!(2)), "{units}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_whose_sync_failed_is_told_unsure_and_finds_the_order_after_a_restart() {
    a_failed_sync(Kind::Eio, false).await;
    a_failed_sync(Kind::ErrorAfterSuccess, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_whose_sync_failed_before_a_power_cut_takes_the_unit_with_the_same_pass() {
    a_failed_sync(Kind::Eio, true).await;
    a_failed_sync(Kind::ErrorAfterSuccess, true).await;
}

/// The try of a buyer who is told `busy`: nothing happened, and the same pass may come again.
async fn told_busy(app: &TestApp, sale: &TestSale, pass: &str) {
    let free = async || app.stats(sale).await["offers"][0]["free"].clone();
    let before = free().await;
    let url = app.url(&format!("/api/v1/offers/{}/orders", sale.offer()));
    let (status, headers, problem) =
        app.send(app.client.post(url).json(&json!({"pass": pass, "quantity": 1}))).await;
    assert_eq!(status, 503, "{problem}");
    assert_code(&problem, "busy");
    assert!(headers.contains_key("retry-after"));
    assert_eq!(free().await, before, "no unit is taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_busy_to_buyers_until_there_is_space_again() {
    let disk = Disk::new();
    let app = TestApp::on_disk(tempfile::tempdir().unwrap(), &disk).await;
    let sale = app.open_sale(3).await;
    disk.plan(Fault::at(1, Kind::Enospc).on(OperationKind::Write).of_file("journal.db-wal"));
    let ann = app.buyer("ann");
    let pass = ann.mint(sale.offer());
    for _ in 0..2 {
        told_busy(&app, &sale, &pass).await;
    }
    assert!(disk.fired());
    // Each time it is tried whether there is space.
    for _ in 0..20 {
        assert_code(&app.operate("GET", "/readyz", None, 503).await, "not_ready");
    }
    disk.free_space();
    // Also while nobody tries to buy.
    let is_ready = async || app.send(app.client.get(app.url("/readyz"))).await.0 == 200;
    let asked = tokio::time::timeout(PATIENCE, async { while !is_ready().await {} });
    asked.await.expect("with space again it is ready again");
    ann.buy_with(sale.offer(), &pass, 1, 202).await;
    app.settled().await;
    let stats = app.stats(&sale).await;
    let units = &stats["offers"][0];
    assert_eq!((&units["free"], &units["held"], &stats["funnel"]["busy"]), (&json!(2), &json!(1), &json!(2)));
    app.stop().await;
}

/// A small commit fits where a large one does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_with_little_space_is_not_ready_and_unready_in_turn() {
    let disk = Disk::new();
    let app = TestApp::on_disk(tempfile::tempdir().unwrap(), &disk).await;
    let sale = app.open_sale(3).await;
    let ann = app.buyer("ann");
    disk.say_free_bytes(64 << 10);
    let look = async || app.send(app.client.get(app.url("/readyz"))).await.0;
    assert_eq!(look().await, 200, "nothing has failed yet");
    disk.plan(Fault::at(1, Kind::EnospcOnce).on(OperationKind::Write).of_file("journal.db-wal"));
    let pass = ann.mint(sale.offer());
    told_busy(&app, &sale, &pass).await;
    assert!(disk.fired());
    for _ in 0..20 {
        assert_eq!(look().await, 503);
    }
    // Buyers are served as well as it goes.
    ann.buy_with(sale.offer(), &pass, 1, 202).await;
    app.settled().await;
    for _ in 0..20 {
        assert_eq!(look().await, 503);
    }
    disk.say_free_bytes(64 << 20);
    eventually("with space again it is ready again", async || look().await == 200).await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_busy_to_buyers_until_there_is_room_again() {
    let app = TestApp::with(&["queue.capacity=1", "queue.batch=1"]).await;
    let sale = app.open_sale(3).await;
    let (ann, bob) = (app.buyer("ann"), app.buyer("bob"));
    let hand = second_hand(&app);
    hand.execute_batch("begin immediate").unwrap();
    ann.buy_with(sale.offer(), &ann.mint(sale.offer()), 1, 202).await;
    let pass = bob.mint(sale.offer());
    told_busy(&app, &sale, &pass).await;
    hand.execute_batch("rollback").unwrap();
    app.settled().await;
    bob.buy_with(sale.offer(), &pass, 1, 202).await;
    app.settled().await;
    let units = &app.stats(&sale).await["offers"][0];
    assert_eq!((&units["free"], &units["held"]), (&json!(1), &json!(2)), "{units}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_stays_as_short_as_what_the_ledger_is_behind() {
    const ORDERS: u32 = 200;
    let app = TestApp::start().await;
    let sale = app.open_sale(ORDERS).await;
    for number in 0..ORDERS {
        app.buyer(&format!("buyer {number}")).buy(sale.offer(), 1, 202).await;
        app.settled().await;
    }
    let folder = app.stop().await;
    let journal = rusqlite::Connection::open(folder.path().join("journal.db")).unwrap();
    let (rows, last): (u32, u32) = journal
        .query_row("select count(*), max(last_seq) from entries", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    assert_eq!(last, ORDERS);
    assert!(rows <= 5, "each is written over one that the ledger has, but there are {rows}");
}

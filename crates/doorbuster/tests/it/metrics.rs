//! What `/metrics` tells of the way from a try to its order: gathered commits, bounded batches, a queue that grows while
//! the ledger stands still.

use std::time::Duration;

use crate::app::{TestApp, TestSale, eventually};
use crate::buyer_orders::second_hand;

const BUYERS: usize = 200;
const BATCH: usize = 16;

/// The page as a scraper gets it.
async fn page(app: &TestApp) -> String {
    app.client.get(app.url("/metrics")).send().await.unwrap().text().await.unwrap()
}

/// The value of one series, by its name and labels.
fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("doorbuster_{series} ")));
    line.unwrap_or_else(|| panic!("no {series} in\n{page}")).parse().unwrap()
}

/// Tries until the buyer is in. A buyer who is told `busy` comes again with the same pass, and nothing is counted twice.
async fn buy(app: &TestApp, sale: &TestSale, number: usize) {
    let buyer = app.buyer(&format!("buyer {number}"));
    let body = serde_json::json!({"pass": buyer.mint(sale.offer()), "quantity": 1});
    let url = app.url(&format!("/api/v1/offers/{}/orders", sale.offer()));
    loop {
        let (status, _, answer) = app.send(app.client.post(&url).json(&body)).await;
        match status {
            202 => return,
            503 => tokio::time::sleep(Duration::from_millis(20)).await,
            _ => panic!("{status} {answer}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tries_that_come_together_share_commits_of_bounded_batches() {
    let app = TestApp::with(&["queue.batch=16"]).await;
    let sale = app.open_sale(BUYERS as u32).await;
    // While somebody else holds the journal's file, the tries gather.
    let journal = rusqlite::Connection::open(app.app.settings.data_dir.join("journal.db")).unwrap();
    journal.busy_timeout(Duration::from_secs(10)).unwrap();
    journal.execute_batch("begin immediate").unwrap();
    let all = futures_util::future::join_all((0..BUYERS).map(|number| buy(&app, &sale, number)));
    let let_go = async {
        eventually("half of them wait", async || app.app.gate.memory.room().taken() >= BUYERS / 2).await;
        journal.execute_batch("rollback").unwrap();
    };
    tokio::join!(all, let_go);
    app.settled().await;

    let page = page(&app).await;
    let (buyers, value) = (BUYERS as f64, |series: &str| value(&page, series));
    assert_eq!(value("tries_total{verdict=\"granted\"}"), buyers);
    assert_eq!(value("orders_total{outcome=\"recorded\"}"), buyers);
    let commits = value("journal_batch_claims_count");
    assert_eq!(value("journal_batch_claims_sum"), buyers, "each claim is in one commit");
    assert!(commits < buyers, "{commits} commits for {buyers} claims");
    let bounded = format!("journal_batch_claims_bucket{{le=\"{BATCH}.0\"}}");
    assert_eq!(value(&bounded), commits, "no commit carries more than queue.batch");
    assert!(value("journal_batch_claims_bucket{le=\"8.0\"}") < commits, "some carry many");
    assert_eq!(value("journal_commit_seconds_count"), commits);
    assert_eq!(value("clerk_batch_claims_sum"), buyers);
    let batches = value("clerk_batch_claims_count");
    assert!(batches > 0.0);
    for times in ["clerk_commit_seconds", "clerk_lag_seconds"] {
        assert_eq!(value(&format!("{times}_count")), batches, "{times}");
        assert!(value(&format!("{times}_sum")) > 0.0, "{times}");
    }
    assert_eq!(value("ledger_refusals_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_is_seen_to_grow_while_the_ledger_is_held() {
    let app = TestApp::start().await;
    let sale = app.open_sale(5).await;
    let hand = second_hand(&app);
    hand.execute_batch("begin immediate").unwrap();
    for number in 0..5 {
        buy(&app, &sale, number).await;
    }
    let depth = async || value(&page(&app).await, "queue_depth");
    eventually("five claims wait", async || depth().await == 5.0).await;
    assert_eq!(value(&page(&app).await, "orders_total{outcome=\"recorded\"}"), 0.0);
    hand.execute_batch("rollback").unwrap();
    eventually("the queue is empty", async || depth().await == 0.0).await;
    assert_eq!(value(&page(&app).await, "orders_total{outcome=\"recorded\"}"), 5.0);
}

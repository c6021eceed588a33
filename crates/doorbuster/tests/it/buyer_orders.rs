//! Orders after the try: reading, waiting, listing, cancelling.

use std::time::Duration;

use serde_json::{Value, json};

use crate::app::{TestApp, TestBuyer, assert_code, draft, eventually};

fn id(order: &Value) -> String {
    order["id"].as_str().unwrap().to_owned()
}

/// Another hand on the ledger's file; while it holds a transaction, nothing is recorded.
pub fn second_hand(app: &TestApp) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(app.app.ledger.path()).unwrap();
    connection.busy_timeout(Duration::from_secs(10)).unwrap();
    connection
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_ends_when_the_order_changes() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(3)).await;
    let ann = app.buyer("ann");
    let order = ann.order(&id(&ann.buy(sale.offer(), 1, 202).await)).await;
    assert_eq!((&order["state"], &order["seq"]), (&json!("awaiting_payment"), &json!(2)));
    let path = format!("/api/v1/orders/{}", id(&order));
    let before = std::time::Instant::now();
    assert_eq!(ann.call("GET", &format!("{path}?wait=20&after=1"), None, 200).await, order);
    assert_eq!(ann.call("GET", &format!("{path}?wait=20"), None, 200).await, order);
    assert_eq!(ann.call("GET", &path, None, 200).await, order);
    assert!(before.elapsed() < Duration::from_secs(10), "an order that is beyond `after` is not waited for");
    let (waiting, poll_path) = (ann.token.clone(), format!("{path}?wait=20&after=2"));
    let request = app.client.get(app.url(&poll_path)).bearer_auth(waiting);
    let poll = tokio::spawn(async move { request.send().await.unwrap().json::<Value>().await.unwrap() });
    ann.call("POST", &format!("{path}/cancel"), None, 200).await;
    let changed = tokio::time::timeout(Duration::from_secs(10), poll).await.unwrap().unwrap();
    assert_eq!((&changed["state"], &changed["seq"]), (&json!("closed"), &json!(3)));
    assert_eq!(ann.call("GET", &format!("{path}?wait=1&after=3"), None, 200).await, changed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_no_number_is_refused_by_name() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(3)).await;
    let ann = app.buyer("ann");
    let path = format!("/api/v1/orders/{}", id(&ann.buy(sale.offer(), 1, 202).await));
    for (query, field) in
        [("wait=x", "wait"), ("wait=-1", "wait"), ("wait=", "wait"), ("wait=1&after=1.5", "after")]
    {
        let problem = ann.call("GET", &format!("{path}?{query}"), None, 422).await;
        assert_code(&problem, "invalid_request");
        assert_eq!(problem["field"], field, "{query}");
    }
    ann.call("GET", &format!("{path}?wait=99999&after=0"), None, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_too_many_wait_the_answer_comes_at_once() {
    let app = TestApp::with(&["limits.waiters=0"]).await;
    let sale = app.publish(draft(3)).await;
    let ann = app.buyer("ann");
    let order = id(&ann.buy(sale.offer(), 1, 202).await);
    app.settled().await;
    let before = std::time::Instant::now();
    let seen = ann.call("GET", &format!("/api/v1/orders/{order}?wait=30&after=2"), None, 200).await;
    assert_eq!(seen["seq"], 2);
    assert!(before.elapsed() < Duration::from_secs(10));
}

#[tokio::test(flavor = "multi_thread")]
async fn not_yours_and_not_there_look_the_same() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(3)).await;
    let order = id(&app.buyer("ann").buy(sale.offer(), 1, 202).await);
    let unused = app.buyer("bob").pass(sale.offer()).await;
    let bob = app.buyer("bob");
    for order in [order.as_str(), unused["order_id"].as_str().unwrap()] {
        let seen = bob.call("GET", &format!("/api/v1/orders/{order}?wait=20"), None, 404).await;
        assert_code(&seen, "not_found");
        assert_code(
            &bob.call("POST", &format!("/api/v1/orders/{order}/cancel"), None, 404).await,
            "not_found",
        );
    }
    assert_eq!(bob.call("GET", "/api/v1/orders", None, 200).await["items"], json!([]));
    for (method, path) in [
        ("GET", "/api/v1/orders".to_owned()),
        ("GET", format!("/api/v1/orders/{order}")),
        ("POST", format!("/api/v1/orders/{order}/cancel")),
    ] {
        assert_code(&app.call(method, &path, None, None, 401).await, "unauthorized");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_are_listed_newest_first_in_pages() {
    let app = TestApp::start().await;
    let ann = app.buyer("ann");
    let mut bought = Vec::new();
    for _ in 0..5 {
        let sale = app.publish(draft(1)).await;
        bought.insert(0, id(&ann.buy(sale.offer(), 1, 202).await));
        app.settled().await;
    }
    assert_eq!(listed(&ann, 2).await, bought);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_unit_is_for_the_next_buyer_at_once() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(1)).await;
    let (ann, bob) = (app.buyer("ann"), app.buyer("bob"));
    let order = id(&ann.buy(sale.offer(), 1, 202).await);
    assert_code(&bob.buy(sale.offer(), 1, 409).await, "sold_out");
    app.settled().await;
    let path = format!("/api/v1/orders/{order}/cancel");
    let closed = ann.call("POST", &path, None, 200).await;
    assert_eq!((&closed["state"], &closed["reason"]), (&json!("closed"), &json!("cancelled")));
    assert_eq!(ann.call("POST", &path, None, 200).await, closed);
    bob.buy(sale.offer(), 1, 202).await;
    assert_code(&ann.buy(sale.offer(), 1, 409).await, "sold_out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paid_order_cannot_be_cancelled() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(1)).await;
    let ann = app.buyer("ann");
    let order = id(&ann.buy(sale.offer(), 1, 202).await);
    app.settled().await;
    let changed = second_hand(&app).execute("update orders set state = 'paid', paid_at = 1", []).unwrap();
    assert_eq!(changed, 1);
    let problem = ann.call("POST", &format!("/api/v1/orders/{order}/cancel"), None, 409).await;
    assert_code(&problem, "not_cancellable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_order_is_seen_and_listed_but_not_yet_cancelled() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(3)).await;
    let ann = app.buyer("ann");
    let hand = second_hand(&app);
    hand.execute_batch("begin immediate").unwrap();
    let queued = ann.buy(sale.offer(), 1, 202).await;
    let path = format!("/api/v1/orders/{}", id(&queued));
    assert_eq!(ann.call("GET", &path, None, 200).await, queued);
    let page = ann.call("GET", "/api/v1/orders", None, 200).await;
    assert_eq!(page, json!({"items": [queued], "next_cursor": null}));
    let first = ann.call("GET", "/api/v1/orders?limit=1", None, 200).await;
    assert_eq!(first["items"], json!([queued]));
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = ann.call("GET", &format!("/api/v1/orders?limit=1&cursor={cursor}"), None, 200).await;
    assert_eq!(rest, json!({"items": [], "next_cursor": null}));
    let cancel = app.client.post(app.url(&format!("{path}/cancel"))).bearer_auth(&ann.token);
    let (status, headers, problem) = app.send(cancel).await;
    assert_eq!(status, 409);
    assert_code(&problem, "not_yet");
    assert!(headers.contains_key("retry-after"));
    hand.execute_batch("rollback").unwrap();
    let recorded = ann.order(&id(&queued)).await;
    assert_eq!(recorded["state"], "awaiting_payment");
    assert_eq!(ann.call("GET", "/api/v1/orders", None, 200).await["items"], json!([recorded]));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_disk_works_on_a_grant_its_order_is_not_yet_paid_or_cancelled() {
    let app = TestApp::with(&["payment.sandbox=true", "limits.wait_s=3"]).await;
    let sale = app.publish(draft(1)).await;
    let ann = app.buyer("ann");
    let pass = ann.pass(sale.offer()).await;
    let path = format!("/api/v1/orders/{}", pass["order_id"].as_str().unwrap());
    let journal = rusqlite::Connection::open(app.app.ledger.path().with_file_name("journal.db")).unwrap();
    journal.execute_batch("begin immediate").unwrap();
    let body = json!({"pass": pass["pass"], "quantity": 1});
    let buy = format!("/api/v1/offers/{}/orders", sale.offer());
    let (bought, ()) = tokio::join!(app.call("POST", &buy, None, Some(&body), 202), async {
        eventually("the grant is on its way", async || app.app.gate.memory.room().taken() == 1).await;
        let provider = json!({"provider": "sandbox"});
        let (cancel, payment) = (format!("{path}/cancel"), format!("{path}/payment"));
        let (cancelled, paid) = tokio::join!(
            ann.call("POST", &cancel, None, 409),
            ann.call("POST", &payment, Some(&provider), 409)
        );
        assert_code(&cancelled, "not_yet");
        assert_code(&paid, "not_yet");
        journal.execute_batch("rollback").unwrap();
    });
    assert_eq!(bought["id"], pass["order_id"]);
    assert_eq!(ann.order(&id(&bought)).await["state"], "awaiting_payment");
}

/// All orders of the buyer, page by page.
async fn listed(buyer: &TestBuyer<'_>, limit: u32) -> Vec<String> {
    let mut listed = Vec::new();
    let mut path = format!("/api/v1/orders?limit={limit}");
    loop {
        let page = buyer.call("GET", &path, None, 200).await;
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= limit as usize, "{page}");
        listed.extend(items.iter().map(id));
        let Some(cursor) = page["next_cursor"].as_str() else { return listed };
        path = format!("/api/v1/orders?limit={limit}&cursor={cursor}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_order_is_left_out_of_the_pages_while_some_are_queued() {
    let app = TestApp::start().await;
    let ann = app.buyer("ann");
    let mut bought = Vec::new();
    for _ in 0..2 {
        bought.insert(0, id(&ann.buy(app.publish(draft(1)).await.offer(), 1, 202).await));
        app.settled().await;
    }
    let sales = [app.publish(draft(1)).await, app.publish(draft(1)).await, app.publish(draft(1)).await];
    let hand = second_hand(&app);
    hand.execute_batch("begin immediate").unwrap();
    let mut queued = Vec::new();
    for sale in &sales {
        queued.push(id(&ann.buy(sale.offer(), 1, 202).await));
    }
    // By their ids, newest first; those of one millisecond are in any order.
    queued.sort_unstable_by(|one, other| other.cmp(one));
    let all = [queued.clone(), bought].concat();
    for limit in 1..=6 {
        assert_eq!(listed(&ann, limit).await, all, "limit {limit}");
    }
    let first = ann.call("GET", "/api/v1/orders?limit=1", None, 200).await;
    hand.execute_batch("rollback").unwrap();
    app.settled().await;
    // What was recorded between two pages comes with the recorded ones.
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = ann.call("GET", &format!("/api/v1/orders?cursor={cursor}"), None, 200).await;
    let rest: Vec<String> = rest["items"].as_array().unwrap().iter().map(id).collect();
    assert!(all[1..].iter().all(|order| rest.contains(order)), "{rest:?}");
    for cursor in ["queued-", "queued-7", "x", "-1"] {
        let refused = ann.call("GET", &format!("/api/v1/orders?cursor={cursor}"), None, 422).await;
        assert_eq!(refused["field"], "cursor");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_away_answers_its_long_polls() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(1)).await;
    let ann = app.buyer("ann");
    let order = ann.order(&id(&ann.buy(sale.offer(), 1, 202).await)).await;
    let url = app.url(&format!("/api/v1/orders/{}?wait=30&after=2", id(&order)));
    let request = app.client.get(url).bearer_auth(&ann.token);
    let poll = tokio::spawn(async move { request.send().await.unwrap().json::<Value>().await.unwrap() });
    let waiting = || app.app.in_flight.used(doorbuster::edge::limits::Class::Waiter);
    eventually("the poll waits", async || waiting() == 1).await;
    app.stop().await;
    assert_eq!(poll.await.unwrap(), order);
}

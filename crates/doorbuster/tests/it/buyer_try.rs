//! The try, with good and bad passes and bodies.

use std::time::Duration;

use doorbuster::edge::limits::{Class, EXPIRED_PASSES_MAX};
use rules::sale::SaleAction;
use serde_json::{Value, json};

use crate::app::{
    TestApp, TestSale, assert_code, draft, draft_between, refused_as_too_fast, with_manual_clock,
};
use crate::buyer_orders::second_hand;

fn path(sale: &TestSale) -> String {
    format!("/api/v1/offers/{}/orders", sale.offer())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_pass_is_the_same_order() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(9)).await;
    let ann = app.buyer("ann");
    let pass = ann.pass(sale.offer()).await;
    let first = ann.buy_with(sale.offer(), text(&pass["pass"]), 2, 202).await;
    assert_eq!(first["id"], pass["order_id"]);
    app.settled().await;
    let again = ann.buy_with(sale.offer(), text(&pass["pass"]), 2, 200).await;
    assert_eq!((&again["id"], &again["state"]), (&first["id"], &json!("awaiting_payment")));
    let problem = ann.buy_with(sale.offer(), text(&pass["pass"]), 1, 409).await;
    assert_code(&problem, "pass_reused");
    let other = ann.pass(sale.offer()).await;
    let problem = ann.buy_with(sale.offer(), text(&other["pass"]), 1, 409).await;
    assert_code(&problem, "already_ordered");
    assert_eq!(problem["order_id"], first["id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pass_whose_order_has_ended_is_spent_also_after_a_restart() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(9)).await;
    let ann = app.buyer("ann");
    let pass = ann.pass(sale.offer()).await;
    let order = ann.buy_with(sale.offer(), text(&pass["pass"]), 1, 202).await;
    app.settled().await;
    ann.call("POST", &format!("/api/v1/orders/{}/cancel", text(&order["id"])), None, 200).await;
    let spent = ann.buy_with(sale.offer(), text(&pass["pass"]), 1, 200).await;
    assert_eq!((&spent["id"], &spent["state"]), (&order["id"], &json!("closed")));
    let app = TestApp::on(app.stop().await, doorbuster::clock::Clock::system(), &[]).await;
    let spent = app.buyer("ann").buy_with(sale.offer(), text(&pass["pass"]), 1, 200).await;
    assert_eq!((&spent["id"], &spent["reason"]), (&order["id"], &json!("cancelled")));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_pass_of_this_offer_is_refused() {
    let app = TestApp::start().await;
    let (sale, other) = (app.publish(draft(9)).await, app.publish(draft(9)).await);
    let ann = app.buyer("ann");
    let of_other = ann.pass(other.offer()).await;
    let good = ann.mint(sale.offer());
    let flipped = format!("{}{}", if good.starts_with('A') { 'B' } else { 'A' }, &good[1..]);
    let long = "A".repeat(2_000);
    for pass in [text(&of_other["pass"]), &flipped, &good[..good.len() - 4], "", "garbled!", &long] {
        assert_code(&ann.buy_with(sale.offer(), pass, 1, 403).await, "pass_invalid");
    }
    let body = json!({"pass": good, "quantity": 1});
    let unknown = "/api/v1/offers/01k9zq3v8g7m4x2r5w6t0n1pbc/orders";
    assert_code(&app.call("POST", unknown, None, Some(&body), 404).await, "not_found");
    assert_code(
        &app.call("POST", "/api/v1/offers/nonsense/orders", None, Some(&body), 404).await,
        "not_found",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pass_is_looked_at_before_the_quantity() {
    let app = TestApp::start().await;
    let (sale, other) = (app.publish(draft(9)).await, app.publish(draft(9)).await);
    let (good, of_other) = (app.buyer("ann").mint(sale.offer()), app.buyer("ann").mint(other.offer()));
    let unknown = "/api/v1/offers/01k9zq3v8g7m4x2r5w6t0n1pbc/orders";
    for (path, pass, status, code) in [
        (path(&sale).as_str(), "garbled", 403, "pass_invalid"),
        (path(&sale).as_str(), &of_other, 403, "pass_invalid"),
        (path(&sale).as_str(), &good, 422, "invalid_request"),
        (unknown, &good, 404, "not_found"),
    ] {
        for quantity in [json!(null), json!("1"), json!(-1)] {
            let body = json!({"pass": pass, "quantity": quantity});
            assert_code(&app.call("POST", path, None, Some(&body), status).await, code);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_expired_passes_are_looked_up_at_once() {
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = app.publish(draft(9)).await;
    let (ann, bob) = (app.buyer("ann"), app.buyer("bob"));
    let expired = ann.mint(sale.offer());
    clock.advance(Duration::from_millis(300_001));
    let looked_up: Vec<_> =
        (0..EXPIRED_PASSES_MAX).map(|_| app.app.in_flight.enter(Class::Expired)).collect();
    assert!(looked_up.iter().all(Result::is_ok));
    assert_code(&ann.buy_with(sale.offer(), &expired, 1, 503).await, "busy");
    bob.buy_with(sale.offer(), &bob.mint(sale.offer()), 1, 202).await;
    drop(looked_up);
    assert_code(&ann.buy_with(sale.offer(), &expired, 1, 403).await, "pass_expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_pass_shows_its_order_if_there_is_one() {
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = app.publish(draft(9)).await;
    let (ann, bob) = (app.buyer("ann"), app.buyer("bob"));
    let (used, unused) = (ann.pass(sale.offer()).await, bob.pass(sale.offer()).await);
    let order = ann.buy_with(sale.offer(), text(&used["pass"]), 1, 202).await;
    app.settled().await;
    clock.advance(Duration::from_millis(300_001));
    let seen = ann.buy_with(sale.offer(), text(&used["pass"]), 1, 200).await;
    assert_eq!(seen["id"], order["id"]);
    assert_code(&bob.buy_with(sale.offer(), text(&unused["pass"]), 1, 403).await, "pass_expired");
    for quantity in [json!(0), json!(1_000_000), json!(null), json!("1")] {
        let body = |pass: &Value| json!({"pass": pass, "quantity": quantity});
        let seen = app.call("POST", &path(&sale), None, Some(&body(&used["pass"])), 200).await;
        assert_eq!(seen["id"], order["id"], "{quantity}");
        let refused = app.call("POST", &path(&sale), None, Some(&body(&unused["pass"])), 403).await;
        assert_code(&refused, "pass_expired");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_early_and_nobody_is_late() {
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = app.publish(draft_between(10, 30, 9)).await;
    let ann = app.buyer("ann");
    let pass = ann.pass(sale.offer()).await;
    let problem = ann.buy_with(sale.offer(), text(&pass["pass"]), 1, 425).await;
    assert_code(&problem, "not_open");
    let left_ms = problem["retry_after_ms"].as_u64().unwrap();
    // The draft's clock runs a little ahead of the server's, which stands still.
    assert!((5_000..=60_000).contains(&left_ms), "{left_ms}");
    clock.advance(Duration::from_millis(left_ms - 1));
    let problem = ann.buy_with(sale.offer(), text(&pass["pass"]), 1, 425).await;
    assert_eq!(problem["retry_after_ms"], 1);
    clock.advance(Duration::from_millis(1));
    ann.buy_with(sale.offer(), text(&pass["pass"]), 1, 202).await;
    let late = app.buyer("bob").pass(sale.offer()).await;
    clock.advance(Duration::from_secs(20));
    assert_code(&app.buyer("bob").buy_with(sale.offer(), text(&late["pass"]), 1, 410).await, "ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_prefers_to_wait_gets_the_recorded_order() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(9)).await;
    let body = json!({"pass": app.buyer("ann").mint(sale.offer()), "quantity": 1});
    let request = app.client.post(app.url(&path(&sale))).header("prefer", "wait=20").json(&body);
    let (status, headers, order) = app.send(request).await;
    assert_eq!((status, &order["state"]), (201, &json!("awaiting_payment")));
    let location = format!("/api/v1/orders/{}?offer={}", text(&order["id"]), sale.offer());
    assert_eq!(headers["location"], location);
    let seen = app.buyer("ann").call("GET", &location, None, 200).await;
    assert_eq!(seen, order);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_wait_is_over_is_told_queued() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(9)).await;
    let hand = second_hand(&app);
    hand.execute_batch("begin immediate").unwrap();
    let body = json!({"pass": app.buyer("ann").mint(sale.offer()), "quantity": 1});
    let request = || app.client.post(app.url(&path(&sale))).header("prefer", "wait=1").json(&body);
    for what in ["the first try", "a repeat"] {
        let before = std::time::Instant::now();
        let (status, headers, order) = app.send(request()).await;
        assert_eq!((status, &order["state"]), (202, &json!("queued")), "{what}: {order}");
        assert!(before.elapsed() >= Duration::from_secs(1), "the seconds are waited for");
        let location = format!("/api/v1/orders/{}?offer={}", text(&order["id"]), sale.offer());
        assert_eq!(headers["location"], location);
    }
    hand.execute_batch("rollback").unwrap();
    app.settled().await;
    let (status, _, order) = app.send(request()).await;
    assert_eq!((status, &order["state"]), (201, &json!("awaiting_payment")));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_gone_is_gone_and_too_much_is_told() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(3)).await;
    app.buyer("ann").buy(sale.offer(), 2, 202).await;
    let problem = app.buyer("bob").buy(sale.offer(), 2, 409).await;
    assert_code(&problem, "not_enough");
    assert_eq!(problem["available"], 1);
    app.buyer("bob").buy(sale.offer(), 1, 202).await;
    assert_code(&app.buyer("eve").buy(sale.offer(), 1, 409).await, "sold_out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_not_as_it_must_be_is_told_why() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(9)).await;
    let pass = app.buyer("ann").mint(sale.offer());
    let post = |kind: &str, body: String| {
        app.send(app.client.post(app.url(&path(&sale))).header("content-type", kind).body(body))
    };
    let long = "x".repeat(20_000);
    for quantity in ["null", "1.5", "\"1\"", "0", "6", "-1"] {
        let (status, _, problem) =
            post("application/json", format!(r#"{{"pass":"{pass}","quantity":{quantity}}}"#)).await;
        assert_eq!(status, 422, "{quantity}: {problem}");
        assert_code(&problem, "invalid_request");
        assert_eq!(problem["field"], "quantity", "{quantity}: {problem}");
    }
    for (body, field) in [
        (format!(r#"{{"pass":"{pass}"}}"#), "quantity"),
        (r#"{"quantity":1}"#.to_owned(), "pass"),
        (r#"{"pass":null,"quantity":1}"#.to_owned(), "pass"),
        ("{}".to_owned(), "pass"),
    ] {
        let (status, _, problem) = post("application/json", body.clone()).await;
        assert_eq!(status, 422, "{body}: {problem}");
        assert_code(&problem, "invalid_request");
        assert_eq!(problem["field"], field, "{body}: {problem}");
    }
    for (kind, body, status, code) in [
        ("application/json", format!(r#"{{"pass":"{pass}","quantity":1,"more":1}}"#), 422, "invalid_request"),
        ("application/json", "[]".to_owned(), 422, "invalid_request"),
        ("application/json", format!(r#"["{pass}",1]"#), 422, "invalid_request"),
        ("application/json", format!(" \n[\"{pass}\",1]"), 422, "invalid_request"),
        ("application/json", format!(r#"["{pass}"]"#), 422, "invalid_request"),
        ("application/json", format!(r#"{{"pass":"{pass}","quantity":1e999}}"#), 422, "invalid_request"),
        ("application/json", "pass=1".to_owned(), 400, "malformed"),
        ("application/json", format!(r#"{{"pass":"{pass}","#), 400, "malformed"),
        ("application/json", String::new(), 400, "malformed"),
        ("text/plain", format!(r#"{{"pass":"{pass}","quantity":1}}"#), 415, "unsupported_media_type"),
        ("application/json", format!(r#"{{"pass":"{long}","quantity":1}}"#), 413, "too_large"),
    ] {
        let (found, headers, problem) = post(kind, body.clone()).await;
        assert_eq!(found, status, "{body}: {problem}");
        assert_code(&problem, code);
        assert_eq!(headers["content-type"], "application/problem+json");
    }
    let sent = post("application/json; charset=utf-8", format!(r#"{{"pass":"{pass}","quantity":5}}"#)).await;
    assert_eq!(sent.0, 202, "nothing of the above took a unit: {}", sent.2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_who_hammers_is_told_to_slow_down() {
    let app = TestApp::with(&["limits.per_buyer_per_s=1", "limits.per_buyer_burst=1"]).await;
    let sale = app.publish(draft(9)).await;
    let ann = app.buyer("ann");
    ann.buy_with(sale.offer(), &ann.mint(sale.offer()), 1, 202).await;
    let attempt =
        |pass: String| app.client.post(app.url(&path(&sale))).json(&json!({"pass": pass, "quantity": 1}));
    let (_, problem) = refused_as_too_fast(async || app.send(attempt(ann.mint(sale.offer()))).await).await;
    assert!(problem["retry_after_ms"].as_u64().unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sale_refuses_tries_until_it_goes_on() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(9)).await;
    let ann = app.buyer("ann");
    let pass = ann.mint(sale.offer());
    app.act(&sale, SaleAction::Pause).await;
    assert_code(&ann.buy_with(sale.offer(), &pass, 1, 409).await, "paused");
    app.act(&sale, SaleAction::Resume).await;
    ann.buy_with(sale.offer(), &pass, 1, 202).await;
}

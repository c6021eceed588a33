//! Buyers who win and do not pay: what they are told, when they are blocked, and what operators do about it.

use std::time::Duration;

use doorbuster::clock::Clock;
use doorbuster::ledger::money::{Names, NewPayment, Notice, PaymentStarted, Told};
use rules::buyer::BuyerId;
use rules::id::{OrderId, PaymentId};
use rules::money::Money;
use rules::payment::{Capture, CaptureKey};
use serde_json::{Value, json};

use crate::app::{TestApp, TestSale, assert_code, draft, eventually, with_manual_clock};

/// Seconds to pay in these tests' sales.
const PAY_WITHIN_S: u32 = 60;

/// A sale with several offers, so that nobody meets an earlier order of their own.
async fn night(app: &TestApp) -> TestSale {
    let mut night = draft(50);
    night["pay_within_s"] = json!(PAY_WITHIN_S);
    let offer = night["offers"][0].clone();
    night["offers"] = json!([offer, offer, offer, offer, offer]);
    app.publish(night).await
}

fn id(name: &str) -> BuyerId {
    BuyerId::parse(name).unwrap()
}

fn strikes(app: &TestApp, name: &str) -> u32 {
    app.app.roster.standing(&id(name), app.app.clock.now()).strikes
}

/// Wins an order and lets it lapse.
async fn lapse(app: &TestApp, clock: &Clock, name: &str, offer: &str) -> String {
    let before = strikes(app, name);
    let order = app.buyer(name).buy(offer, 1, 202).await["id"].as_str().unwrap().to_owned();
    app.buyer(name).order(&order).await;
    clock.advance(Duration::from_secs(PAY_WITHIN_S.into()));
    eventually("the strike is known", async || strikes(app, name) > before).await;
    order
}

async fn me(app: &TestApp, name: &str) -> Value {
    app.buyer(name).call("GET", "/api/v1/me", None, 200).await
}

async fn try_pass(app: &TestApp, name: &str, offer: &str, status: u16) -> Value {
    app.buyer(name).call("POST", &format!("/api/v1/offers/{offer}/pass"), Some(&json!({})), status).await
}

#[tokio::test(flavor = "multi_thread")]
async fn three_lapsed_orders_block_and_the_buyer_is_warned_before() {
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = night(&app).await;
    assert_eq!(app.buyer("ann").pass(sale.offer()).await["notice"], Value::Null, "nothing to say");
    lapse(&app, &clock, "ann", &sale.offers[0]).await;
    lapse(&app, &clock, "ann", &sale.offers[1]).await;
    let seen = me(&app, "ann").await;
    assert_eq!((&seen["strikes"], &seen["strikes_limit"]), (&json!(2), &json!(3)));
    let notice = seen["notice"].as_str().unwrap();
    assert!(notice.starts_with("You left 2 orders unpaid. After 1 more"), "{notice}");
    assert_eq!(app.buyer("ann").pass(&sale.offers[2]).await["notice"], notice, "also with the pass");
    lapse(&app, &clock, "ann", &sale.offers[2]).await;
    let refused = try_pass(&app, "ann", &sale.offers[3], 403).await;
    assert_code(&refused, "blocked");
    let until = json!(clock.now().plus_s(72 * 3_600));
    assert_eq!((&refused["until"], &me(&app, "ann").await["blocked_until"]), (&until, &until));
    try_pass(&app, "bob", &sale.offers[3], 200).await;
    clock.advance(Duration::from_secs(72 * 3_600));
    assert_eq!(me(&app, "ann").await["blocked_until"], Value::Null, "the block ends by itself");
    assert_eq!(me(&app, "ann").await["strikes"], 3, "the strikes count on");
    clock.advance(Duration::from_secs(27 * 86_400));
    let seen = me(&app, "ann").await;
    assert_eq!((&seen["strikes"], &seen["notice"]), (&json!(0), &Value::Null), "and decay");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_in_time_is_no_strike() {
    let (app, clock) = with_manual_clock(&["strikes.limit=1"]).await;
    let sale = night(&app).await;
    let ann = app.buyer("ann");
    let order = ann.buy(sale.offer(), 1, 202).await["id"].as_str().unwrap().to_owned();
    ann.order(&order).await;
    ann.call("POST", &format!("/api/v1/orders/{order}/cancel"), None, 200).await;
    lapse(&app, &clock, "bob", &sale.offers[1]).await;
    assert_eq!((strikes(&app, "ann"), strikes(&app, "bob")), (0, 1));
    try_pass(&app, "ann", &sale.offers[2], 200).await;
    assert_code(&try_pass(&app, "bob", &sale.offers[2], 403).await, "blocked");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_limit_of_zero_nobody_is_blocked() {
    let (app, clock) = with_manual_clock(&["strikes.limit=0"]).await;
    let sale = night(&app).await;
    for offer in &sale.offers[..4] {
        lapse(&app, &clock, "ann", offer).await;
    }
    assert_eq!(app.buyer("ann").pass(&sale.offers[4]).await["notice"], Value::Null);
    assert_eq!(me(&app, "ann").await["strikes"], 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_remembers_strikes_and_blocks() {
    let (app, clock) = with_manual_clock(&["strikes.limit=2"]).await;
    let sale = night(&app).await;
    lapse(&app, &clock, "ann", &sale.offers[0]).await;
    lapse(&app, &clock, "ann", &sale.offers[1]).await;
    lapse(&app, &clock, "bob", &sale.offers[1]).await;
    for name in ["ann", "cyd", "dan"] {
        app.operate("POST", &format!("/admin/v1/blocks/{name}/strikes"), Some(&json!({})), 201).await;
    }
    app.operate("DELETE", "/admin/v1/blocks/dan/strikes/6", None, 204).await;
    let before = me(&app, "ann").await;
    let app = TestApp::on(app.stop().await, clock.clone(), &["strikes.limit=2"]).await;
    assert_eq!(me(&app, "ann").await, before);
    assert_code(&try_pass(&app, "ann", &sale.offers[2], 403).await, "blocked");
    assert_eq!(["bob", "cyd", "dan"].map(|name| strikes(&app, name)), [1, 1, 0]);
    assert_eq!(app.app.roster.marked(), 3, "only what matters is in memory");
    clock.advance(Duration::from_secs(34 * 86_400));
    let app = TestApp::on(app.stop().await, clock, &["strikes.limit=2"]).await;
    assert_eq!(app.app.roster.marked(), 0, "what no longer matters is not loaded");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_gives_and_lifts_strikes() {
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = night(&app).await;
    let path = "/admin/v1/blocks/ann";
    app.operate("GET", path, None, 404).await;
    let order = lapse(&app, &clock, "ann", sale.offer()).await;
    clock.advance(Duration::from_secs(1));
    let give = format!("{path}/strikes");
    let given = app.operate("POST", &give, Some(&json!({"note": "sold it on"})), 201).await;
    let seen = app.operate("GET", path, None, 200).await;
    assert_eq!((&seen["strikes"], &seen["until"], &seen["history"][0]), (&json!(2), &Value::Null, &given));
    let unpaid = &seen["history"][1];
    assert_eq!((&unpaid["cause"], &unpaid["order_id"]), (&json!("unpaid"), &json!(order)));
    assert_eq!((&given["cause"], &given["note"]), (&json!("operator"), &json!("sold it on")));
    app.operate("DELETE", path, None, 404).await;
    assert_eq!(strikes(&app, "ann"), 2, "what does not block is not lifted by the way");
    app.operate("POST", &give, Some(&json!({})), 201).await;
    let until = json!(clock.now().plus_s(72 * 3_600));
    assert_eq!(app.operate("GET", path, None, 200).await["until"], until);
    let listed = app.operate("GET", "/admin/v1/blocks", None, 200).await;
    let expected = json!({"buyer": "ann", "until": until, "note": null, "strikes": 3, "strikes_limit": 3});
    assert_eq!(listed["items"], json!([expected]));
    assert_code(&try_pass(&app, "ann", &sale.offers[1], 403).await, "blocked");

    let no = given["no"].as_u64().unwrap();
    app.operate("DELETE", &format!("/admin/v1/blocks/bob/strikes/{no}"), None, 404).await;
    app.operate("DELETE", &format!("{give}/{no}"), None, 204).await;
    app.operate("DELETE", &format!("{give}/{no}"), None, 404).await;
    app.operate("DELETE", &format!("{give}/x"), None, 404).await;
    try_pass(&app, "ann", &sale.offers[1], 200).await;
    app.operate("POST", &give, Some(&json!({})), 201).await;
    let by_hand = json!({"until": clock.now().plus_s(60), "note": "wait"});
    let both = app.operate("PUT", path, Some(&by_hand), 200).await;
    assert_eq!((&both["until"], &both["by_hand_until"]), (&until, &by_hand["until"]), "the later end wins");
    app.operate("DELETE", path, None, 204).await;
    try_pass(&app, "ann", &sale.offers[1], 200).await;
    let seen = app.operate("GET", path, None, 200).await;
    assert_eq!((&seen["strikes"], &seen["note"]), (&json!(0), &Value::Null));
    let history = seen["history"].as_array().unwrap();
    assert_eq!(history.len(), 4, "nothing is forgotten: {seen}");
    assert!(
        history.iter().all(|strike| strike["lifted_by"] == "operator" && strike["lifted_at"].is_string())
    );
    for (body, field) in [(json!({"note": "x".repeat(1_001)}), "note"), (json!({"strikes": 3}), "strikes")] {
        let problem = app.operate("POST", &give, Some(&body), 422).await;
        assert!(problem["detail"].as_str().unwrap().contains(field), "{problem}");
    }
    let long = format!("/admin/v1/blocks/{}/strikes", "x".repeat(129));
    assert_eq!(app.operate("POST", &long, Some(&json!({})), 422).await["field"], "buyer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_gives_one_strike() {
    let app = TestApp::start().await;
    let ask = async || {
        let request = app.client.post(app.url("/admin/v1/blocks/ann/strikes"));
        let request = request.bearer_auth(crate::app::ADMIN_KEY).header("idempotency-key", "k1");
        app.send(request.json(&json!({"note": "once"}))).await
    };
    let (first, again) = (ask().await, ask().await);
    assert_eq!((first.0, &first.2), (201, &again.2));
    assert_eq!(strikes(&app, "ann"), 1);
}

/// Late money that finds a unit lifts the strike of its order, and the block that it caused.
#[tokio::test(flavor = "multi_thread")]
async fn a_revived_order_lifts_its_strike() {
    let (app, clock) = with_manual_clock(&["strikes.limit=1"]).await;
    let sale = night(&app).await;
    let ann = app.buyer("ann");
    let order = ann.buy(sale.offer(), 1, 202).await["id"].as_str().unwrap().to_owned();
    ann.order(&order).await;
    let (ledger, payment) = (&app.app.ledger, PaymentId(101));
    let wanted = NewPayment {
        id: payment,
        order: order.parse().unwrap(),
        buyer: id("ann"),
        provider: "stripe".into(),
    };
    let begun = ledger.start_payment(wanted, clock.now()).await.unwrap();
    assert!(matches!(begun, PaymentStarted::New { .. }), "{begun:?}");
    ledger.close_payment(payment, clock.now()).await.unwrap();
    clock.advance(Duration::from_secs(PAY_WITHIN_S.into()));
    eventually("it lapses", async || strikes(&app, "ann") == 1).await;
    assert_code(&try_pass(&app, "ann", &sale.offers[1], 403).await, "blocked");
    let capture = Capture {
        key: CaptureKey::new("stripe", "cap").unwrap(),
        money: Money { amount: 149_900, currency: "CNY".parse().unwrap() },
    };
    let told = Told::Captured { capture, names: Names::Payment(payment.to_string()), fresh: PaymentId(102) };
    ledger.take_notice(Notice { event_id: "evt".into(), told }, clock.now()).await.unwrap();
    app.app.captures.wake();
    eventually("the strike is lifted", async || strikes(&app, "ann") == 0).await;
    let paid = ledger.order(order.parse::<OrderId>().unwrap()).await.unwrap().unwrap();
    assert_eq!(paid.status.state, rules::order::State::Paid);
    try_pass(&app, "ann", &sale.offers[1], 200).await;
    let seen = app.operate("GET", "/admin/v1/blocks/ann", None, 200).await;
    assert_eq!(seen["history"][0]["lifted_by"], "late_money");
}

/// Whoever goes to a provider and does not pay there is struck as well, once the provider was asked.
#[tokio::test(flavor = "multi_thread")]
async fn who_begins_to_pay_and_does_not_is_struck() {
    let (app, clock) = with_manual_clock(&["strikes.limit=1", "demo=true"]).await;
    let sale = night(&app).await;
    let ann = app.buyer("ann");
    let order = ann.buy(sale.offer(), 1, 202).await["id"].as_str().unwrap().to_owned();
    ann.order(&order).await;
    let pay = format!("/api/v1/orders/{order}/payment");
    ann.call("POST", &pay, Some(&json!({"provider": "sandbox"})), 200).await;
    clock.advance(Duration::from_secs(PAY_WITHIN_S.into()));
    eventually("it lapses", async || strikes(&app, "ann") == 1).await;
    assert_code(&try_pass(&app, "ann", &sale.offers[1], 403).await, "blocked");
    let struck = app.operate("GET", "/admin/v1/events?types=buyer.struck", None, 200).await;
    assert_eq!((&struck["items"][0]["order_id"], &struck["items"][0]["seq"]), (&json!(order), &Value::Null));
}

/// Many lapse in the same second: all are known at once, and passes are given meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_lapses_at_once_is_blocked_at_once() {
    let (app, clock) = with_manual_clock(&["strikes.limit=1"]).await;
    let mut crowd = draft(400);
    crowd["pay_within_s"] = json!(PAY_WITHIN_S);
    let sale = app.publish(crowd).await;
    for number in 0..400 {
        let buyer = app.buyer(&format!("buyer-{number}"));
        buyer.buy_with(sale.offer(), &buyer.mint(sale.offer()), 1, 202).await;
    }
    app.settled().await;
    clock.advance(Duration::from_secs(PAY_WITHIN_S.into()));
    eventually("all are struck", async || app.app.roster.marked() == 400).await;
    let listed = app.operate("GET", "/admin/v1/blocks?limit=200", None, 200).await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 200);
    let more = format!("/admin/v1/blocks?limit=200&cursor={}", listed["next_cursor"].as_str().unwrap());
    let rest = app.operate("GET", &more, None, 200).await;
    assert_eq!((rest["items"].as_array().unwrap().len(), &rest["next_cursor"]), (200, &Value::Null));
    assert_code(&try_pass(&app, "buyer-77", sale.offer(), 403).await, "blocked");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_text_in_the_path_or_in_a_note_is_refused_by_its_name() {
    let app = TestApp::start().await;
    let until = json!({"until": "2100-01-01T00:00:00Z"});
    for (method, path, body) in
        [("PUT", "/admin/v1/blocks/%ff", &until), ("POST", "/admin/v1/blocks/%ff/strikes", &json!({}))]
    {
        let problem = app.operate(method, path, Some(body), 422).await;
        assert_code(&problem, "invalid_request");
        assert_eq!(problem["field"], "buyer", "{method} {path}");
    }
    let problem =
        app.operate("POST", "/admin/v1/blocks/ann/strikes", Some(&json!({"note": "a\0b"})), 422).await;
    assert_eq!(problem["field"], "note");
    assert_eq!(problem["detail"], "note must not contain the character U+0000");
}

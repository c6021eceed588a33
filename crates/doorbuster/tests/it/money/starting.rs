//! `POST /api/v1/orders/{id}/payment`: once, again, elsewhere, too early, too late, and with a provider that fails.

use doorbuster::edge::limits::Class;
use serde_json::json;

use super::*;
use crate::app::assert_code;

async fn with_stripe(stand_in: &StandIn) -> (TestApp, TestSale) {
    let settings = stand_in.settings();
    let mut overrides: Vec<&str> = settings.iter().map(String::as_str).collect();
    overrides.push(SANDBOX);
    let app = TestApp::with(&overrides).await;
    let sale = app.open_sale(5).await;
    (app, sale)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_call_answers_the_open_payment_and_another_provider_closes_it() {
    let stripe = StandIn::willing().await;
    let (app, sale) = with_stripe(&stripe).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let first = start(&ann, &id, "stripe", 200).await;
    assert_eq!(first["pay_url"], "https://checkout.stripe.com/c/pay/1");
    assert_eq!(start(&ann, &id, "stripe", 200).await, first, "the same payment");
    assert_eq!(stripe.asked("/sessions").len(), 1, "its provider was asked once");
    let asked = &stripe.asked("/sessions")[0];
    assert_eq!(asked.method, Method::POST);
    assert!(asked.body.contains(&format!("client_reference_id={}", first["payment_id"].as_str().unwrap())));
    assert!(asked.body.contains("unit_amount%5D=149900"), "{}", asked.body);
    assert!(asked.body.contains("success_url=https%3A%2F%2Fsale.shop.example%2Forders%2F"), "{}", asked.body);

    let elsewhere = start(&ann, &id, "sandbox", 200).await;
    assert_ne!(elsewhere["payment_id"], first["payment_id"]);
    assert!(elsewhere["pay_url"].as_str().unwrap().starts_with("https://sale.shop.example/sandbox/pay/"));
    eventually("the first is closed at Stripe", async || stripe.asked("/cs_test_1/expire").len() == 1).await;
    assert_eq!(states(&app, &id).await, [plain("closed"), plain("started")]);

    // Money for the closed one comes all the same: it pays, and the other is closed.
    let closed = first["payment_id"].as_str().unwrap();
    assert_eq!(StandIn::tells_of_capture(&app, "evt_1", closed, "pi_1").await, 200);
    assert_eq!(becomes(&ann, &id, "paid").await["payment_id"], first["payment_id"]);
    assert_eq!(states(&app, &id).await, [plain("applied"), plain("closed")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_down_loses_nothing() {
    let stripe = StandIn::open(|_| (503, json!({"error": {"type": "api_error"}}))).await;
    let (app, sale) = with_stripe(&stripe).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let path = format!("/api/v1/orders/{id}/payment");
    for _ in 0..2 {
        let request = app.client.post(app.url(&path)).bearer_auth(&ann.token);
        let (status, headers, problem) = app.send(request.json(&json!({"provider": "stripe"}))).await;
        assert_eq!(status, 503, "{problem}");
        assert_code(&problem, "provider_unavailable");
        assert!(headers.contains_key("retry-after"));
    }
    assert_eq!(states(&app, &id).await, [plain("started")]);
    stripe.becomes(willing);
    let started = start(&ann, &id, "stripe", 200).await;
    let keys: Vec<_> =
        stripe.asked("/sessions").iter().map(|asked| asked.headers["idempotency-key"].clone()).collect();
    assert!(keys.iter().all(|key| *key == keys[0]), "Stripe knows them for the same payment: {keys:?}");
    assert_eq!(payments(&app, &id).await[0]["id"], started["payment_id"]);
    assert_eq!(states(&app, &id).await, [plain("started")]);
    let outages = app.app.port.outages(app.app.clock.now());
    assert_eq!(outages.len(), 1, "who could not pay in that time gets no strike");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_refuses_leaves_the_choice_of_another() {
    let no = json!({"error": {"type": "invalid_request_error", "code": "amount_too_large", "message": "no"}});
    let stripe = StandIn::open(move |_| (400, no.clone())).await;
    let (app, sale) = with_stripe(&stripe).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    assert_code(&start(&ann, &id, "stripe", 502).await, "provider_refused");
    start(&ann, &id, "sandbox", 200).await;
    assert_eq!(states(&app, &id).await, [plain("closed"), plain("started")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_cannot_pay_is_told_why() {
    let (app, sale) = shop(3).await;
    let (ann, bob) = (app.buyer("ann"), app.buyer("bob"));
    let id = won(&ann, &sale).await;
    assert_code(&start(&bob, &id, "sandbox", 404).await, "not_found");
    assert_code(&start(&ann, "01k9zq3v8g7m4x2r5w6t0n1pbc", "sandbox", 404).await, "not_found");
    let unknown = start(&ann, &id, "cowries", 422).await;
    assert_code(&unknown, "invalid_request");
    assert_eq!(unknown["field"], "provider");
    assert!(unknown["detail"].as_str().unwrap().contains("sandbox"), "{unknown}");
    start(&ann, &id, "stripe", 422).await;
    let path = format!("/api/v1/orders/{id}/payment");
    assert_code(&ann.call("POST", &path, Some(&json!({})), 422).await, "invalid_request");
    let nobody = app.call("POST", &path, None, Some(&json!({"provider": "sandbox"})), 401).await;
    assert_code(&nobody, "unauthorized");

    let payment = payment(&ann, &id).await;
    act(&app, &payment, &json!({"outcome": "paid"}), 200).await;
    assert_code(&start(&ann, &id, "sandbox", 409).await, "not_payable");
    let cancelled = won(&bob, &sale).await;
    bob.call("POST", &format!("/api/v1/orders/{cancelled}/cancel"), None, 200).await;
    assert_code(&start(&bob, &cancelled, "sandbox", 409).await, "not_payable");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_order_is_queued_paying_waits_and_then_says_not_yet() {
    let (app, sale) = shop(3).await;
    let ann = app.buyer("ann");
    let hand = rusqlite::Connection::open(app.app.ledger.path()).unwrap();
    hand.execute_batch("begin immediate").unwrap();
    let id = ann.buy(sale.offer(), 1, 202).await["id"].as_str().unwrap().to_owned();
    let request = app.client.post(app.url(&format!("/api/v1/orders/{id}/payment"))).bearer_auth(&ann.token);
    let (status, headers, problem) = app.send(request.json(&json!({"provider": "sandbox"}))).await;
    assert_eq!(status, 409, "{problem}");
    assert_code(&problem, "not_yet");
    assert!(headers.contains_key("retry-after"));
    hand.execute_batch("rollback").unwrap();
    ann.order(&id).await;
    start(&ann, &id, "sandbox", 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_at_once_are_one_payment() {
    let (app, sale) = shop(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let all = futures_util::future::join_all((0..20).map(|_| start(&ann, &id, "sandbox", 200))).await;
    assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
    assert_eq!(states(&app, &id).await, [plain("started")]);
}

/// A provider that takes every connection and never says a word.
async fn silent() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((socket, _)) = listener.accept().await {
            kept.push(socket);
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_never_answers_keeps_nobody_else_out() {
    let provider = StandIn { address: silent().await, ..StandIn::willing().await };
    let settings = provider.settings();
    let mut overrides: Vec<&str> = settings.iter().map(String::as_str).collect();
    overrides.extend([SANDBOX, "limits.reserve=4"]);
    let app = TestApp::with(&overrides).await;
    let sale = app.open_sale(9).await;
    let (ann, bob) = (app.buyer("ann"), app.buyer("bob"));
    let (paid, cancelled) = (won(&ann, &sale).await, won(&bob, &sale).await);
    let payment = payment(&ann, &paid).await;

    let mut waiting = Vec::new();
    for number in 0..4 {
        let buyer = app.buyer(&format!("payer-{number}"));
        let id = won(&buyer, &sale).await;
        let request = app.client.post(app.url(&format!("/api/v1/orders/{id}/payment")));
        let request = request.bearer_auth(&buyer.token).json(&json!({"provider": "stripe"}));
        waiting.push(tokio::spawn(request.send()));
    }
    eventually("all four wait", async || app.app.in_flight.used(Class::Payment) == 4).await;
    assert_code(&start(&bob, &cancelled, "stripe", 503).await, "busy");
    // Who hangs up is still being served by the provider.
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    for _ in 0..3 {
        assert_code(&start(&bob, &cancelled, "stripe", 503).await, "busy");
        for path in ["/healthz", "/readyz", "/metrics"] {
            app.call("GET", path, None, None, 200).await;
        }
    }
    app.operate("GET", "/admin/v1/sales", None, 200).await;
    app.operate("POST", &format!("/admin/v1/sales/{}/pause", sale.id), None, 200).await;
    bob.call("POST", &format!("/api/v1/orders/{cancelled}/cancel"), None, 200).await;
    let forge = Forge::of(&app);
    assert_eq!(forge.send(&app, &forge.paid(&payment, "event-1", "capture-1")).await, 200);
    becomes(&ann, &paid, "paid").await;
    // When the provider's time is over, there is room again.
    eventually("there is room", async || app.app.in_flight.used(Class::Payment) == 0).await;
}

//! `POST /api/v1/orders/{id}/payment`: once, again, elsewhere, too early, too late, and with a provider that fails.

use std::time::Duration;

use doorbuster::clock::Clock;
use doorbuster::edge::limits::Class;
use doorbuster::telemetry::metrics::Inquiry;
use rules::buyer::BuyerId;
use rules::payment::PAYMENTS_PER_ORDER_MAX;
use serde_json::json;

use super::formats::{open_with, sale_of, vectors};
use super::*;
use crate::app::{assert_code, draft, with_manual_clock};

async fn with_stripe(stand_in: &StandIn) -> (TestApp, TestSale) {
    let settings = stand_in.settings();
    let mut overrides: Vec<&str> = settings.iter().map(String::as_str).collect();
    overrides.push(SANDBOX);
    let app = TestApp::with(&overrides).await;
    // With a public address the sandbox serves rehearsals alone.
    let mut rehearsal = draft(5);
    rehearsal["rehearsal"] = json!(true);
    let sale = app.publish(rehearsal).await;
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
async fn a_shop_names_the_page_that_buyers_come_back_to() {
    let stripe = StandIn::willing().await;
    let mut settings = stripe.settings();
    settings.push("payment.return_url=https://shop.example/my-orders?id={order}&from=pay".to_owned());
    let app = TestApp::with(&settings.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let sale = app.open_sale(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    start(&ann, &id, "stripe", 200).await;
    let body = &stripe.asked("/sessions")[0].body;
    let sent: HashMap<String, String> = form_urlencoded::parse(body.as_bytes()).into_owned().collect();
    let page = format!("https://shop.example/my-orders?id={id}&from=pay");
    assert_eq!((&sent["success_url"], &sent["cancel_url"]), (&page, &page));
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
    let name = format!("client_reference_id={}", started["payment_id"].as_str().unwrap());
    let asked = stripe.asked("/sessions");
    assert!(asked.len() == 3 && asked.iter().all(|asked| asked.body.contains(&name)), "the same: {asked:?}");
    assert_eq!(payments(&app, &id).await[0]["id"], started["payment_id"]);
    assert_eq!(states(&app, &id).await, [plain("started")]);
    let outages = app.app.port.outages(app.app.clock.now());
    assert_eq!(outages.len(), 1, "who could not pay in that time gets no strike");
}

/// Who could not get to a provider is excused, also when the server has started anew since.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_does_not_forget_that_nobody_could_pay() {
    let stripe = StandIn::open(|_| (503, json!({"error": {"type": "api_error"}}))).await;
    let settings = stripe.settings();
    let overrides: Vec<&str> = settings.iter().map(String::as_str).collect();
    let (app, clock) = with_manual_clock(&overrides).await;
    let sale = app.open_sale(5).await;
    let id = won(&app.buyer("ann"), &sale).await;
    let other = won(&app.buyer("bob"), &sale).await;
    assert_code(&start(&app.buyer("ann"), &id, "stripe", 503).await, "provider_unavailable");
    // More than a tenth of the time to pay.
    clock.advance(Duration::from_secs(100));
    let file = rusqlite::Connection::open(app.app.ledger.path()).unwrap();
    let longest = || -> Option<i64> {
        file.query_row("select max(until_at - from_at) from outages", [], |row| row.get(0)).unwrap()
    };
    eventually("it is written down while it lasts", async || longest() == Some(100_000)).await;
    drop(file);
    clock.advance(Duration::from_secs(1));
    let app = TestApp::on(app.stop().await, clock.clone(), &overrides).await;
    assert!(app.app.port.outages(clock.now()).is_empty(), "it is known from the ledger alone");
    clock.advance(Duration::from_secs(799));
    eventually("the provider is given up", async || app.app.metrics.inquiries.get(Inquiry::None) == 1).await;
    clock.advance(Duration::from_secs(5));
    for (name, id) in [("ann", &id), ("bob", &other)] {
        assert_eq!(becomes(&app.buyer(name), id, "closed").await["reason"], "timeout");
        let strikes = app.app.ledger.strikes_of(BuyerId::parse(name).unwrap(), 5).await.unwrap();
        assert_eq!(strikes, [], "nobody could pay for a ninth of the time");
    }
}

/// Stripe is down, and Alipay could have been chosen: a payment there needs no answer to be started.
#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_down_excuses_only_those_who_went_there() {
    let (stripe, vectors) =
        (StandIn::open(|_| (503, json!({"error": {"type": "api_error"}}))).await, vectors());
    let mut settings = vec![format!("payment.stripe.url=http://{}", stripe.address)];
    settings.extend(["alipay", "wechat"].map(|name| format!("payment.{name}.url={NOWHERE}")));
    let app = open_with(&vectors, &settings).await;
    let (sale, clock) = (sale_of(&app, &vectors).await, &app.app.clock);
    let mut orders = Vec::new();
    for (name, provider, struck) in
        [("ann", Some(("stripe", 503)), 0), ("bob", None, 1), ("cyd", Some(("alipay", 200)), 1)]
    {
        let buyer = app.buyer(name);
        let id = won(&buyer, &sale).await;
        if let Some((provider, status)) = provider {
            start(&buyer, &id, provider, status).await;
        }
        orders.push((name, id, struck));
    }
    clock.advance(Duration::from_secs(900));
    eventually("both are given up", async || app.app.metrics.inquiries.get(Inquiry::None) == 2).await;
    clock.advance(Duration::from_secs(5));
    for (name, id, struck) in orders {
        assert_eq!(becomes(&app.buyer(name), &id, "closed").await["reason"], "timeout");
        let strikes = app.app.ledger.strikes_of(BuyerId::parse(name).unwrap(), 5).await.unwrap();
        assert_eq!(strikes.len(), struck, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_has_only_so_many_payments() {
    let stripe = StandIn::willing().await;
    let (app, sale) = with_stripe(&stripe).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    for round in 0..PAYMENTS_PER_ORDER_MAX {
        start(&ann, &id, ["sandbox", "stripe"][round % 2], 200).await;
    }
    let problem = start(&ann, &id, "sandbox", 409).await;
    assert_code(&problem, "not_payable");
    assert!(problem["detail"].as_str().unwrap().contains("20 payments"), "{problem}");
    start(&ann, &id, "stripe", 200).await;
    let states = states(&app, &id).await;
    assert_eq!((states.len(), states.last()), (PAYMENTS_PER_ORDER_MAX, Some(&plain("started"))));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_stripe_has_kept_bars_the_payment_only_for_seconds() {
    let stripe = StandIn::open(|_| (500, json!({"error": {"type": "api_error"}}))).await;
    let settings = stripe.settings();
    let overrides: Vec<&str> = settings.iter().map(String::as_str).collect();
    // The beginning of a slot in which the same is the same request.
    let now_s = jiff::Timestamp::now().as_second() / 10 * 10;
    let clock = Clock::manual(UnixMs(now_s * 1_000));
    let app = TestApp::on(tempfile::tempdir().unwrap(), clock.clone(), &overrides).await;
    let sale = app.open_sale(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    assert_code(&start(&ann, &id, "stripe", 503).await, "provider_unavailable");
    stripe.becomes(willing);
    start(&ann, &id, "stripe", 503).await;
    clock.advance(Duration::from_secs(10));
    start(&ann, &id, "stripe", 200).await;
    let keys: Vec<_> = stripe.asked("/sessions").iter().map(Asked::idempotency_key).collect();
    assert!(keys.len() == 3 && keys[0] == keys[1] && keys[1] != keys[2], "{keys:?}");
    assert_eq!(states(&app, &id).await, [plain("started")]);
    let session = &stripe.asked("/sessions")[2].body;
    let expires_at = format!("expires_at={}&", now_s + 10 + 31 * 60);
    assert!(session.contains(&expires_at), "31 minutes later: {session}");
    assert!(session.contains(&format!("doorbuster_shop%5D={}", shop_of(&app))), "{session}");
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
pub(super) async fn silent() -> SocketAddr {
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
    let mut rehearsal = draft(9);
    rehearsal["rehearsal"] = json!(true);
    let sale = app.publish(rehearsal).await;
    let (ann, bob) = (app.buyer("ann"), app.buyer("bob"));
    let (paid, cancelled) = (won(&ann, &sale).await, won(&bob, &sale).await);
    let payment = payment(&ann, &paid).await;

    // All have won before the first one pays: a provider is waited for a few seconds only.
    let mut winners = Vec::new();
    for number in 0..4 {
        let buyer = app.buyer(&format!("payer-{number}"));
        let id = won(&buyer, &sale).await;
        winners.push((buyer, id));
    }
    let mut waiting = Vec::new();
    for (buyer, id) in winners {
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
        for path in ["/healthz", "/readyz"] {
            app.call("GET", path, None, None, 200).await;
        }
        app.operate("GET", "/metrics", None, 200).await;
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

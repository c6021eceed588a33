//! The sandbox: what it can be told, where it serves, and its page.

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use doorbuster::app::Server;
use doorbuster::clock::Clock;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::app::{ADMIN_KEY, assert_code, draft, settings};

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_payment_closes_and_the_order_can_still_be_paid() {
    let (app, sale) = shop(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let first = payment(&ann, &id).await;
    let acted = act(&app, &first, &json!({"outcome": "failed", "times": 3}), 200).await;
    assert_eq!(acted["answers"], json!([200, 200, 200]));
    assert_eq!(states(&app, &id).await, [plain("closed")]);
    assert_eq!(order(&ann, &id).await["state"], "awaiting_payment");
    let second = payment(&ann, &id).await;
    assert_ne!(first, second);
    act(&app, &second, &json!({"outcome": "paid"}), 200).await;
    becomes(&ann, &id, "paid").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn told_many_times_it_is_one_payment_and_to_pay_again_is_another() {
    let (app, sale) = shop(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    let acted = act(&app, &payment, &json!({"outcome": "paid", "times": 5, "delay_ms": 0}), 200).await;
    assert_eq!(acted["answers"], json!([200, 200, 200, 200, 200]));
    assert_eq!(states(&app, &id).await, [plain("applied")]);
    act(&app, &payment, &json!({"outcome": "paid"}), 200).await;
    eventually("the second is back", async || {
        states(&app, &id).await == [plain("applied"), back("second_capture")]
    })
    .await;
    assert_eq!(order(&ann, &id).await["state"], "paid");
    let seen = app.call("GET", &format!("/sandbox/payments/{payment}"), None, None, 200).await;
    assert_eq!(
        (seen["order_state"].as_str(), seen["payment_state"].as_str()),
        (Some("paid"), Some("applied"))
    );
    assert_eq!(seen["captures"].as_array().unwrap().len(), 2);
    assert_eq!(seen["happenings"].as_array().unwrap().len(), 6);
    assert_eq!(seen["amount"], json!({"amount": PRICE, "currency": "CNY"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_callback_comes_later() {
    let (app, sale) = shop(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    let acted = act(&app, &payment, &json!({"outcome": "paid", "delay_ms": 400}), 202).await;
    assert_eq!(acted["answers"], json!([]));
    assert_eq!(order(&ann, &id).await["state"], "awaiting_payment");
    becomes(&ann, &id, "paid").await;
    let seen = app.call("GET", &format!("/sandbox/payments/{payment}"), None, None, 200).await;
    let deliveries: Vec<_> =
        seen["happenings"].as_array().unwrap().iter().map(|one| one["delivery"].as_u64().unwrap()).collect();
    assert_eq!(deliveries, [0, 1]);
}

/// An end of the process does not wait for the delays of a pretended provider.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_delay_holds_nobody_up_and_a_restart_goes_on_with_the_numbers() {
    let (app, sale) = shop(2).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let first = payment(&ann, &id).await;
    act(&app, &first, &json!({"outcome": "failed"}), 200).await;
    let payment = payment(&ann, &id).await;
    act(&app, &payment, &json!({"outcome": "paid"}), 200).await;
    act(&app, &payment, &json!({"outcome": "paid", "delay_ms": 3_600_000}), 202).await;
    let stopping = tokio::time::timeout(Duration::from_secs(20), app.stop());
    let folder = stopping.await.expect("the end waits for a delay");
    let app = TestApp::on(folder, Clock::system(), &[SANDBOX]).await;
    let ann = app.buyer("ann");
    act(&app, &payment, &json!({"outcome": "paid"}), 200).await;
    eventually("it is a second capture, not the first again", async || {
        states(&app, &id).await == [plain("closed"), plain("applied"), back("second_capture")]
    })
    .await;
    assert_eq!(order(&ann, &id).await["state"], "paid");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_is_told_is_bounded() {
    let (app, sale) = shop(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    for (field, value) in [
        ("times", json!(0)),
        ("times", json!(101)),
        ("times", json!(-1)),
        ("delay_ms", json!(3_600_001)),
        ("delay_ms", json!(1.5)),
        ("outcome", json!("maybe")),
    ] {
        let mut body = json!({"outcome": "paid"});
        body[field] = value;
        let problem = act(&app, &payment, &body, 422).await;
        assert_code(&problem, "invalid_request");
        assert_eq!(problem["field"], field, "{problem}");
    }
    assert_code(
        &act(&app, "01k9zq3v8g7m4x2r5w6t0n1pbc", &json!({"outcome": "paid"}), 404).await,
        "not_found",
    );
    assert_eq!(states(&app, &id).await, [plain("started")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_it_is_off_there_is_nothing() {
    let app = TestApp::start().await;
    let sale = app.open_sale(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    assert_code(&start(&ann, &id, "sandbox", 422).await, "invalid_request");
    for path in ["/sandbox/payments/01k9zq3v8g7m4x2r5w6t0n1pbc", "/sandbox/pay/01k9zq3v8g7m4x2r5w6t0n1pbc"] {
        app.call("GET", path, None, None, 404).await;
    }
    let forge = Forge::of(&app);
    assert_eq!(forge.send(&app, &forge.paid(AN_ID, "a", "one")).await, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_payment_is_a_page_for_people_and_a_problem_for_programs() {
    let (app, _) = shop(1).await;
    for id in [AN_ID, "no-id"] {
        let path = format!("/sandbox/pay/{id}");
        assert_code(&app.call("GET", &path, None, None, 404).await, "not_found");
        let asked =
            app.client.get(app.url(&path)).header("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
        let page = asked.send().await.unwrap();
        assert_eq!(page.status(), 404);
        assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
        assert!(page.text().await.unwrap().contains("There is no such payment here."));
    }
}

const AN_ID: &str = "01k9zq3v8g7m4x2r5w6t0n1pbc";

/// A loopback listener behind a proxy on the same machine is open to everybody.
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_proxy_it_serves_rehearsals_alone() {
    for (setting, status) in [
        ("public_url=https://sale.shop.example", 422),
        ("limits.trusted_proxies=127.0.0.1/32", 422),
        ("public_url=http://localhost:8080", 200),
    ] {
        let app = TestApp::with(&[SANDBOX, setting]).await;
        let ann = app.buyer("ann");
        for (rehearsal, status) in [(false, status), (true, 200)] {
            let mut draft = draft(1);
            draft["rehearsal"] = json!(rehearsal);
            let sale = app.publish(draft).await;
            let id = won(&ann, &sale).await;
            let answer = start(&ann, &id, "sandbox", status).await;
            if let Some(payment) = answer["payment_id"].as_str() {
                act(&app, payment, &json!({"outcome": "paid"}), 200).await;
            } else {
                assert_eq!(answer["field"], "provider", "{setting}");
                let detail = answer["detail"].as_str().unwrap();
                assert!(detail.contains("serves rehearsals only"), "{setting}: {detail}");
                assert!(detail.contains("there is no provider for this order"), "{setting}: {detail}");
                let unknown = start(&ann, &id, "cowries", 422).await;
                assert!(!unknown["detail"].as_str().unwrap().contains("sandbox"), "{setting}: {unknown}");
            }
        }
    }
}

/// Outside a demo, and where others can reach it, it serves rehearsals alone.
#[tokio::test(flavor = "multi_thread")]
async fn on_a_public_listener_it_serves_rehearsals_alone() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let shutdown = CancellationToken::new();
    let settings = settings(folder.path(), &[SANDBOX]);
    let server = Server::start(settings, Clock::system(), listener, None, shutdown.clone()).await.unwrap();
    let app = Arc::clone(&server.app);
    let running = tokio::spawn(server.until_the_end());
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let call = async |path: &str, token: &str, body: Value| {
        let request = client.post(format!("http://127.0.0.1:{port}{path}")).bearer_auth(token);
        let response = request.header("prefer", "wait=20").json(&body).send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    let token = crate::app::token_of("ann", &app.clock);
    for (rehearsal, status) in [(false, 422), (true, 200)] {
        let mut draft = draft(1);
        draft["rehearsal"] = json!(rehearsal);
        let (_, sale) = call("/admin/v1/sales", ADMIN_KEY, draft).await;
        let publish = format!("/admin/v1/sales/{}/publish", sale["id"].as_str().unwrap());
        assert_eq!(call(&publish, ADMIN_KEY, json!({})).await.0, 200);
        let offer = sale["offers"][0]["id"].as_str().unwrap();
        let (_, pass) = call(&format!("/api/v1/offers/{offer}/pass"), &token, json!({})).await;
        let order = json!({"pass": pass["pass"], "quantity": 1});
        let (made, order) = call(&format!("/api/v1/offers/{offer}/orders"), &token, order).await;
        assert_eq!(made, 201, "{order}");
        let path = format!("/api/v1/orders/{}/payment", order["id"].as_str().unwrap());
        let (found, answer) = call(&path, &token, json!({"provider": "sandbox"})).await;
        assert_eq!(found, status, "{answer}");
        if let Some(payment) = answer["payment_id"].as_str() {
            let (found, acted) =
                call(&format!("/sandbox/payments/{payment}"), "", json!({"outcome": "paid"})).await;
            assert_eq!((found, &acted["answers"]), (200, &json!([200])));
        }
    }
    shutdown.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn its_page_runs_its_own_script_and_nothing_else() {
    let (app, sale) = shop(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let given = start(&ann, &id, "sandbox", 200).await;
    let response = app.client.get(given["pay_url"].as_str().unwrap()).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
    assert_eq!(response.headers()["cache-control"], "no-store");
    let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
    let page = response.text().await.unwrap();
    for element in ["style", "script"] {
        let (_, rest) = page.split_once(&format!("<{element}>")).unwrap();
        let (inside, _) = rest.split_once(&format!("</{element}>")).unwrap();
        let hash = STANDARD.encode(digest(&SHA256, inside.as_bytes()));
        assert!(policy.contains(&format!("{element}-src 'sha256-{hash}'")), "{policy}");
    }
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert!(!page.contains("http://") && !page.contains("https://"), "it asks for nothing elsewhere");
    for text in ["id=\"pay\"", "id=\"fail\"", "id=\"late\"", "id=\"twice\"", "theme-dark"] {
        assert!(page.contains(text), "{text}");
    }
}

//! Challenges and passes.

use std::time::Duration;

use altcha::{SolveChallengeOptions, solve_challenge};
use doorbuster::clock::Clock;
use doorbuster::ledger::Block;
use doorbuster::telemetry::metrics::{ChallengeOutcome, PassOutcome};
use rules::buyer::BuyerId;
use rules::sale::SaleAction;
use rules::time::UnixMs;
use serde_json::{Value, json};

use crate::app::{
    PASS_SECRET, PATIENCE, TestApp, TestBuyer, assert_code, draft, draft_between, refused_as_too_fast,
    with_manual_clock,
};

fn pass_path(offer: &str) -> String {
    format!("/api/v1/offers/{offer}/pass")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_pass_carries_a_new_order_and_says_when_it_ends() {
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = app.publish(draft_between(5, 3_600, 1)).await;
    let ann = app.buyer("ann");
    let (first, second) = (ann.pass(sale.offer()).await, ann.pass(sale.offer()).await);
    assert_ne!(first["order_id"], second["order_id"]);
    let seen = app.call("GET", &format!("/api/v1/sales/{}", sale.id), None, None, 200).await;
    let opens_at = UnixMs::parse(seen["opens_at"].as_str().unwrap()).unwrap();
    assert_eq!(first["expires_at"], json!(opens_at.plus_s(300)));
    clock.advance(Duration::from_secs(40));
    assert_eq!(ann.pass(sale.offer()).await["expires_at"], json!(clock.now().plus_s(300)));
    assert_eq!(app.app.metrics.passes.get(PassOutcome::Issued), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn passes_are_given_from_the_lead_until_the_end() {
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = app.publish(draft_between(100, 200, 1)).await;
    let ann = app.buyer("ann");
    let request = app.client.post(app.url(&pass_path(sale.offer()))).bearer_auth(&ann.token).json(&json!({}));
    let (status, headers, problem) = app.send(request).await;
    assert_eq!(status, 425);
    assert_code(&problem, "not_open");
    let left_ms = problem["retry_after_ms"].as_u64().unwrap();
    // The draft's clock runs a little ahead of the server's, which stands still.
    assert!((65_000..=130_000).contains(&left_ms), "{left_ms}");
    assert_eq!(headers["retry-after"], left_ms.div_ceil(1_000).to_string());
    clock.advance(Duration::from_millis(left_ms - 1));
    ann.call("POST", &pass_path(sale.offer()), Some(&json!({})), 425).await;
    clock.advance(Duration::from_millis(1));
    ann.pass(sale.offer()).await;
    clock.advance(Duration::from_secs(131));
    assert_code(&ann.call("POST", &pass_path(sale.offer()), Some(&json!({})), 410).await, "ended");
    let challenge = format!("/api/v1/offers/{}/challenge", sale.offer());
    assert_code(&ann.call("POST", &challenge, None, 410).await, "ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sale_gives_passes_and_an_ended_one_does_not() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(1)).await;
    let ann = app.buyer("ann");
    app.act(&sale, SaleAction::Pause).await;
    let pass = ann.pass(sale.offer()).await;
    let problem = ann.buy_with(sale.offer(), pass["pass"].as_str().unwrap(), 1, 409).await;
    assert_code(&problem, "paused");
    app.act(&sale, SaleAction::Resume).await;
    ann.buy_with(sale.offer(), pass["pass"].as_str().unwrap(), 1, 202).await;
    app.act(&sale, SaleAction::End).await;
    assert_code(&ann.call("POST", &pass_path(sale.offer()), Some(&json!({})), 410).await, "ended");
    let late = app.buyer("bob").mint(sale.offer());
    assert_code(&app.buyer("bob").buy_with(sale.offer(), &late, 1, 410).await, "ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_blocked_and_unregistered_buyers_get_no_pass() {
    // The registration ends with the opening, which must not come while this is under way.
    let (app, _clock) = with_manual_clock(&[]).await;
    let mut draft = draft_between(10, 3_600, 1);
    draft["registration"] = json!("required");
    let sale = app.publish(draft).await;
    let path = pass_path(sale.offer());
    assert_code(&app.call("POST", &path, None, Some(&json!({})), 401).await, "unauthorized");
    let ann = app.buyer("ann");
    assert_code(&ann.call("POST", &path, Some(&json!({})), 403).await, "not_registered");
    let until = app.app.clock.now().plus_s(60);
    let block = Block { buyer: BuyerId::parse("ann").unwrap(), until, note: None };
    app.app.block(block).await.unwrap();
    let problem = ann.call("POST", &path, Some(&json!({})), 403).await;
    assert_code(&problem, "blocked");
    assert_eq!(problem["until"], json!(until));
    app.app.unblock(BuyerId::parse("ann").unwrap()).await.unwrap();
    ann.call("POST", &format!("/api/v1/sales/{}/registration", sale.id), None, 201).await;
    ann.pass(sale.offer()).await;
    for outcome in [PassOutcome::Unauthorized, PassOutcome::NotRegistered, PassOutcome::Blocked] {
        assert_eq!(app.app.metrics.passes.get(outcome), 1, "{outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_of_work_opens_the_way_once() {
    let app = TestApp::with(&["challenge.pow_cost=2", "challenge.pow_tries=20"]).await;
    let mut draft = draft(1);
    draft["challenge"] = json!("pow");
    let sale = app.publish(draft).await;
    let (ann, path) = (app.buyer("ann"), pass_path(sale.offer()));
    assert_code(&ann.call("POST", &path, Some(&json!({})), 403).await, "challenge_failed");
    let given = ann.call("POST", &format!("/api/v1/offers/{}/challenge", sale.offer()), None, 200).await;
    assert_eq!(given["kind"], "pow");
    let challenge: altcha::Challenge = serde_json::from_value(given.clone()).unwrap();
    let solution = solve_challenge(SolveChallengeOptions::new(&challenge)).unwrap().unwrap();
    let body = json!({"solution": {"challenge": given, "solution": solution}});
    assert_code(&app.buyer("eve").call("POST", &path, Some(&body), 403).await, "challenge_failed");
    let pass = ann.call("POST", &path, Some(&body), 200).await;
    assert_code(&ann.call("POST", &path, Some(&body), 403).await, "challenge_failed");
    ann.buy_with(sale.offer(), pass["pass"].as_str().unwrap(), 1, 202).await;
    let challenges = &app.app.metrics.challenges;
    let counted = [ChallengeOutcome::Issued, ChallengeOutcome::Solved, ChallengeOutcome::Failed];
    assert_eq!(counted.map(|outcome| challenges.get(outcome)), [1, 1, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_that_was_read_opens_the_way_once_and_for_its_buyer_and_offer_alone() {
    let app = TestApp::start().await;
    let mut draft = draft(1);
    draft["challenge"] = json!("picture");
    let mut second = draft["offers"][0].clone();
    second["name"] = json!("Feitian 43");
    draft["offers"].as_array_mut().unwrap().push(second);
    let sale = app.publish(draft).await;
    let (ann, offer) = (app.buyer("ann"), sale.offer());
    let given = a_picture(&ann, offer).await;
    assert_eq!(given["kind"], "picture");
    assert!(given["image"].as_str().unwrap().starts_with("data:image/png;base64,"));
    let token = given["token"].as_str().unwrap();
    let read = app.app.challenges.answer_of("ann", offer, token).unwrap();
    let answer = |answer: &str| json!({"solution": {"token": token, "answer": answer}});
    let refused = async |buyer: &TestBuyer<'_>, offer: &str, body: &Value| {
        assert_code(&buyer.call("POST", &pass_path(offer), Some(body), 403).await, "challenge_failed");
    };
    refused(&ann, offer, &answer("no picture says this")).await;
    refused(&app.buyer("eve"), offer, &answer(&read)).await;
    refused(&ann, &sale.offers[1], &answer(&read)).await;
    let pass = ann.call("POST", &pass_path(offer), Some(&answer(&read.to_uppercase())), 200).await;
    refused(&ann, offer, &answer(&read)).await;
    ann.buy_with(offer, pass["pass"].as_str().unwrap(), 1, 202).await;
    let challenges = &app.app.metrics.challenges;
    let counted = [ChallengeOutcome::Issued, ChallengeOutcome::Solved, ChallengeOutcome::Failed];
    assert_eq!(counted.map(|outcome| challenges.get(outcome)), [1, 1, 4]);
}

async fn a_picture(buyer: &TestBuyer<'_>, offer: &str) -> Value {
    let app = buyer.app;
    let path = format!("/api/v1/offers/{offer}/challenge");
    // While no picture is drawn yet, the answer is "busy".
    let begun = std::time::Instant::now();
    while begun.elapsed() < PATIENCE {
        let request = app.client.post(app.url(&path)).bearer_auth(&buyer.token);
        let (status, headers, body) = app.send(request).await;
        if status == 200 {
            return body;
        }
        assert_eq!(status, 503);
        assert_code(&body, "busy");
        assert!(headers.contains_key("retry-after"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no picture within {PATIENCE:?}");
}

/// What was answered is remembered in memory: after a restart a challenge of before opens nothing, answered or not, and a
/// new one is given. A change of the secret is a restart like any other.
#[tokio::test(flavor = "multi_thread")]
async fn no_challenge_outlives_a_restart() {
    let easy = ["challenge.pow_cost=2", "challenge.pow_tries=20"];
    let mut app = TestApp::with(&easy).await;
    let mut draft = draft(9);
    draft["challenge"] = json!("pow");
    let sale = app.publish(draft).await;
    let previous = format!("pass.previous_secret={PASS_SECRET}");
    let new = "pass.secret=another-pass-secret-0123456789abcdef0123456789";
    for changed in [&[][..], &[new, &previous], &[new]] {
        let solved = async |app: &TestApp| {
            let ask = format!("/api/v1/offers/{}/challenge", sale.offer());
            let given = app.buyer("ann").call("POST", &ask, None, 200).await;
            let challenge: altcha::Challenge = serde_json::from_value(given.clone()).unwrap();
            let solution = solve_challenge(SolveChallengeOptions::new(&challenge)).unwrap().unwrap();
            json!({"solution": {"challenge": given, "solution": solution}})
        };
        let (used, unused) = (solved(&app).await, solved(&app).await);
        let path = pass_path(sale.offer());
        app.buyer("ann").call("POST", &path, Some(&used), 200).await;
        app = TestApp::on(app.stop().await, Clock::system(), &[&easy[..], changed].concat()).await;
        for before in [&used, &unused] {
            let refused = app.buyer("ann").call("POST", &path, Some(before), 403).await;
            assert_code(&refused, "challenge_failed");
        }
        app.buyer("ann").call("POST", &path, Some(&solved(&app).await), 200).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_without_a_challenge_says_so() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(1)).await;
    let path = format!("/api/v1/offers/{}/challenge", sale.offer());
    assert_eq!(app.buyer("ann").call("POST", &path, None, 200).await, json!({"kind": "none"}));
    assert_code(&app.call("POST", &path, None, None, 401).await, "unauthorized");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_too_often_is_told_when_to_come_back() {
    let app = TestApp::with(&["limits.per_buyer_per_s=1", "limits.per_buyer_burst=1"]).await;
    let mut draft = draft_between(600, 3_600, 1);
    draft["registration"] = json!("required");
    let sale = app.publish(draft).await;
    for (name, path) in [
        ("ann", pass_path(sale.offer())),
        ("bob", format!("/api/v1/offers/{}/challenge", sale.offer())),
        ("eve", format!("/api/v1/sales/{}/registration", sale.id)),
        ("joe", "/api/v1/orders/01k9zq3v8g7m4x2r5w6t0n1pbc/payment".to_owned()),
    ] {
        let buyer = app.buyer(name);
        let ask = || app.send(app.client.post(app.url(&path)).bearer_auth(&buyer.token));
        assert_ne!(ask().await.0, 429);
        let (headers, problem) = refused_as_too_fast(async || ask().await).await;
        assert!((1..=1_000).contains(&problem["retry_after_ms"].as_u64().unwrap()));
        assert_eq!(headers["retry-after"], "1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_request_for_a_pass_must_be_readable() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(1)).await;
    let ann = app.buyer("ann");
    let post = || app.client.post(app.url(&pass_path(sale.offer()))).bearer_auth(&ann.token);
    assert_eq!(app.send(post()).await.0, 200, "a sale without a challenge needs no body");
    for kind in ["application/json", "text/plain"] {
        let empty = post().header("content-type", kind).header("content-length", "0");
        assert_eq!(app.send(empty).await.0, 200, "whatever kind of nothing it is: {kind}");
    }
    for (kind, body, status, code) in [
        ("application/json", "{", 400, "malformed"),
        ("application/json", "{\"solutions\": 1}", 422, "invalid_request"),
        ("application/json", "[]", 422, "invalid_request"),
        ("text/plain", "{}", 415, "unsupported_media_type"),
    ] {
        let (found, _, problem) = app.send(post().header("content-type", kind).body(body)).await;
        assert_eq!(found, status, "{body}: {problem}");
        assert_code(&problem, code);
    }
    let large = json!({"solution": "x".repeat(20_000)});
    assert_code(&ann.call("POST", &pass_path(sale.offer()), Some(&large), 413).await, "too_large");
}

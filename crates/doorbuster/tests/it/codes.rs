//! Every refusal code and every status of the contract, each met once over HTTP. The list is complete by construction:
//! a new code does not compile before somebody says how to provoke it or why nobody can yet.

use std::collections::BTreeSet;
use std::time::Duration;

use rules::wire::Code;
use serde_json::{Value, json};
use testkit::disk::{Disk, Kind};

use crate::app::{
    ADMIN_KEY, PASS_SECRET, TestApp, TestSale, assert_code, draft, draft_between, refused_as_too_fast,
    with_manual_clock,
};
use crate::{money, unsure};

/// How a code is met.
struct Met(u16, Value);

async fn told(app: &TestApp, request: reqwest::RequestBuilder) -> Met {
    let (status, _, body) = app.send(request).await;
    Met(status, body)
}

fn post(app: &TestApp, path: &str, token: &str, body: &Value) -> reqwest::RequestBuilder {
    app.client.post(app.url(path)).bearer_auth(token).json(body)
}

/// A try of a buyer with a fresh pass.
fn attempt(app: &TestApp, sale: &TestSale, name: &str, quantity: u32) -> reqwest::RequestBuilder {
    let pass = app.buyer(name).mint(sale.offer());
    let path = format!("/api/v1/offers/{}/orders", sale.offer());
    app.client.post(app.url(&path)).json(&json!({"pass": pass, "quantity": quantity}))
}

/// A request for a pass of this sale.
fn pass(app: &TestApp, sale: &TestSale) -> reqwest::RequestBuilder {
    post(app, &format!("/api/v1/offers/{}/pass", sale.offer()), &app.buyer("ann").token, &json!({}))
}

/// What operators do to a sale: publish, pause, resume, end.
fn act(app: &TestApp, sale: &str, action: &str) -> reqwest::RequestBuilder {
    post(app, &format!("/admin/v1/sales/{sale}/{action}"), ADMIN_KEY, &json!({}))
}

fn with(mut draft: Value, field: &str, value: Value) -> Value {
    draft[field] = value;
    draft
}

/// Provokes a code, each on a server of its own.
#[expect(clippy::too_many_lines, reason = "one line or two per code")]
async fn provoke(code: Code) -> Met {
    let app = TestApp::start().await;
    let open = app.open_sale(2).await;
    let ann = app.buyer("ann");
    let url = |path: &str| app.url(path);
    match code {
        Code::SignatureInvalid => {
            let app = TestApp::with(&["payment.sandbox=true"]).await;
            told(&app, post(&app, "/api/v1/payments/sandbox/callback", "", &json!({}))).await
        }
        Code::NotificationStale | Code::WrongMerchant => {
            let app = TestApp::with(&["payment.sandbox=true"]).await;
            let here = *app.app.ledger.incarnation();
            let (shop, late_ms) = if code == Code::WrongMerchant { ([7; 16], 0) } else { (here, 301_000) };
            let forge = money::Forge::with(PASS_SECRET.as_bytes(), &shop);
            let letter = forge.paid("01k9zq3v8g7m4x2r5w6t0n1pbc", "a", "b");
            let (status, problem) = forge.send_at(&app, &letter, app.app.clock.now().plus_ms(-late_ms)).await;
            Met(status, problem)
        }
        Code::NotPayable => {
            let app = TestApp::with(&["payment.sandbox=true"]).await;
            let sale = app.open_sale(1).await;
            let order = app.buyer("ann").buy(sale.offer(), 1, 202).await;
            app.settled().await;
            assert_eq!(app.send(cancel(&app, &order)).await.0, 200);
            told(&app, pay(&app, &order, "sandbox")).await
        }
        Code::NotRefundable => {
            let order = ann.buy(open.offer(), 1, 202).await;
            app.settled().await;
            let path = format!("/admin/v1/orders/{}/refund", order["id"].as_str().unwrap());
            told(&app, post(&app, &path, ADMIN_KEY, &json!({}))).await
        }
        Code::ProviderUnavailable | Code::ProviderRefused => {
            let status = if code == Code::ProviderRefused { 400 } else { 503 };
            let stand_in = money::StandIn::open(move |_| (status, json!({}))).await;
            let settings = stand_in.settings();
            let app = TestApp::with(&settings.iter().map(String::as_str).collect::<Vec<_>>()).await;
            let sale = app.open_sale(1).await;
            let order = app.buyer("ann").buy(sale.offer(), 1, 202).await;
            app.settled().await;
            told(&app, pay(&app, &order, "stripe")).await
        }
        Code::NotReady => {
            let hand = rusqlite::Connection::open(app.app.ledger.path()).unwrap();
            hand.execute_batch("alter table identity rename to elsewhere").unwrap();
            let (status, headers, problem) = app.send(app.client.get(url("/readyz"))).await;
            assert_eq!(headers["retry-after"], "1");
            Met(status, problem)
        }
        Code::Malformed => {
            let request = app.client.post(url("/admin/v1/sales")).bearer_auth(ADMIN_KEY);
            told(&app, request.header("content-type", "application/json").body("{")).await
        }
        Code::Unauthorized => told(&app, app.client.get(url("/api/v1/me"))).await,
        Code::NotRegistered => {
            let sale = app.publish(with(draft(1), "registration", json!("required"))).await;
            told(&app, pass(&app, &sale)).await
        }
        Code::Blocked => {
            let until = json!({"until": app.app.clock.now().plus_s(60)});
            app.operate("PUT", "/admin/v1/blocks/ann", Some(&until), 200).await;
            told(&app, pass(&app, &open)).await
        }
        Code::ChallengeFailed => {
            let sale = app.publish(with(draft(1), "challenge", json!("pow"))).await;
            told(&app, pass(&app, &sale)).await
        }
        Code::PassInvalid => {
            let body = json!({"pass": "garbled", "quantity": 1});
            told(&app, post(&app, &format!("/api/v1/offers/{}/orders", open.offer()), "", &body)).await
        }
        Code::PassExpired => {
            let (app, clock) = with_manual_clock(&[]).await;
            let sale = app.open_sale(1).await;
            let request = attempt(&app, &sale, "ann", 1);
            clock.advance(Duration::from_secs(301));
            told(&app, request).await
        }
        Code::ForeignOrigin => {
            let request = app.client.get(url("/api/v1/events")).header("origin", "https://evil.example");
            told(&app, request).await
        }
        Code::NotFound => told(&app, app.client.get(url("/api/v1/sales/nonsense"))).await,
        Code::MethodNotAllowed => told(&app, app.client.put(url("/api/v1/time"))).await,
        Code::SoldOut => {
            ann.buy(open.offer(), 2, 202).await;
            told(&app, attempt(&app, &open, "bob", 1)).await
        }
        Code::NotEnough => told(&app, attempt(&app, &open, "bob", 3)).await,
        Code::AlreadyOrdered => {
            ann.buy(open.offer(), 1, 202).await;
            told(&app, attempt(&app, &open, "ann", 1)).await
        }
        Code::Paused => {
            app.send(act(&app, &open.id, "pause")).await;
            told(&app, attempt(&app, &open, "ann", 1)).await
        }
        Code::PassReused => {
            let pass = ann.mint(open.offer());
            ann.buy_with(open.offer(), &pass, 1, 202).await;
            let body = json!({"pass": pass, "quantity": 2});
            told(&app, post(&app, &format!("/api/v1/offers/{}/orders", open.offer()), "", &body)).await
        }
        Code::NotCancellable => {
            let order = ann.buy(open.offer(), 1, 202).await;
            app.settled().await;
            let paid = "update orders set state = 'paid', paid_at = 1";
            rusqlite::Connection::open(app.app.ledger.path()).unwrap().execute(paid, []).unwrap();
            told(&app, cancel(&app, &order)).await
        }
        Code::NotYet => {
            let hand = rusqlite::Connection::open(app.app.ledger.path()).unwrap();
            hand.execute_batch("begin immediate").unwrap();
            let order = ann.buy(open.offer(), 1, 202).await;
            told(&app, cancel(&app, &order)).await
        }
        Code::RegistrationClosed => {
            let path = format!("/api/v1/sales/{}/registration", open.id);
            told(&app, post(&app, &path, &ann.token, &json!({}))).await
        }
        Code::StockBelowLive => {
            let path = format!("/admin/v1/offers/{}/stock", open.offer());
            told(&app, post(&app, &path, ADMIN_KEY, &json!({"change": -3, "change_id": "a"}))).await
        }
        Code::NotEditable => {
            let request = app.client.patch(url(&format!("/admin/v1/sales/{}", open.id)));
            told(&app, request.bearer_auth(ADMIN_KEY).json(&json!({"pay_within_s": 1}))).await
        }
        Code::WrongState => {
            app.send(act(&app, &open.id, "end")).await;
            told(&app, act(&app, &open.id, "resume")).await
        }
        Code::KeyReused => {
            let keyed = |stock| {
                let request = post(&app, "/admin/v1/sales", ADMIN_KEY, &draft(stock));
                request.header("idempotency-key", "same")
            };
            assert_eq!(app.send(keyed(1)).await.0, 201);
            told(&app, keyed(2)).await
        }
        Code::Ended => {
            app.send(act(&app, &open.id, "end")).await;
            told(&app, attempt(&app, &open, "ann", 1)).await
        }
        Code::TooLarge => {
            let body = json!({"pass": "x".repeat(20_000), "quantity": 1});
            told(&app, post(&app, &format!("/api/v1/offers/{}/orders", open.offer()), "", &body)).await
        }
        Code::UnsupportedMediaType => {
            let request = app.client.post(url("/admin/v1/sales")).bearer_auth(ADMIN_KEY);
            told(&app, request.header("content-type", "text/plain").body("{}")).await
        }
        Code::InvalidRequest => told(&app, attempt(&app, &open, "ann", 0)).await,
        Code::NotOpen => {
            let sale = app.publish(draft_between(600, 3_600, 1)).await;
            told(&app, attempt(&app, &sale, "ann", 1)).await
        }
        Code::TooFast => {
            let app = TestApp::with(&["limits.per_buyer_per_s=1", "limits.per_buyer_burst=1"]).await;
            let sale = app.open_sale(5).await;
            assert_eq!(app.send(attempt(&app, &sale, "ann", 1)).await.0, 202);
            let again = async || app.send(attempt(&app, &sale, "ann", 1)).await;
            Met(429, refused_as_too_fast(again).await.1)
        }
        Code::Internal => {
            // A ledger that somebody else has broken.
            let hand = rusqlite::Connection::open(app.app.ledger.path()).unwrap();
            hand.execute_batch("alter table blocks rename to elsewhere").unwrap();
            told(&app, app.client.get(url("/admin/v1/blocks")).bearer_auth(ADMIN_KEY)).await
        }
        Code::Busy => {
            let app = TestApp::with(&["limits.sockets=0"]).await;
            let request = app.client.get(app.url("/api/v1/events")).bearer_auth(&app.buyer("ann").token);
            told(&app, request.header("accept", "text/event-stream")).await
        }
        Code::Unsure => {
            let disk = Disk::powersafe();
            let (app, sale, _) = unsure::about_to_fail(&disk, Kind::Eio).await;
            let (_, problem) = unsure::meet(&app, &sale).await;
            app.fail().await;
            Met(503, problem)
        }
    }
}

fn pay(app: &TestApp, order: &Value, provider: &str) -> reqwest::RequestBuilder {
    let path = format!("/api/v1/orders/{}/payment", order["id"].as_str().unwrap());
    post(app, &path, &app.buyer("ann").token, &json!({"provider": provider}))
}

fn cancel(app: &TestApp, order: &Value) -> reqwest::RequestBuilder {
    let path = format!("/api/v1/orders/{}/cancel", order["id"].as_str().unwrap());
    post(app, &path, &app.buyer("ann").token, &json!({}))
}

/// What the document says a call may answer: statuses, and the text beside each.
fn documented() -> Vec<(u16, String)> {
    let document = serde_json::to_value(doorbuster::edge::openapi::document()).unwrap();
    let calls = document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap());
    let answers = calls.flat_map(|(_, call)| call["responses"].as_object().unwrap());
    let answers =
        answers.map(|(status, answer)| (status.parse().unwrap(), answer["description"].to_string()));
    answers.collect()
}

fn is_documented(code: Code) -> bool {
    let mark = format!("`{}`: ", code.as_str());
    documented().iter().any(|(status, text)| *status == code.status() && text.contains(&mark))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_code_can_be_met_with_its_status() {
    for code in Code::ALL {
        let Met(status, problem) = provoke(*code).await;
        assert_eq!(status, code.status(), "{code:?}: {problem}");
        assert_code(&problem, code.as_str());
        // The router says the one of any path, and probes are told the other, so no call lists them.
        let unlisted = matches!(code, Code::MethodNotAllowed | Code::NotReady);
        assert_eq!(is_documented(*code), !unlisted, "{code:?} and the document");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_status_of_the_document_can_be_met() {
    let app = TestApp::start().await;
    let sale = app.open_sale(2).await;
    let ann = app.buyer("ann");
    let mut met: BTreeSet<u16> = Code::ALL.iter().map(|code| code.status()).collect();
    let shown = app.client.get(app.url("/api/v1/sales")).send().await.unwrap();
    let known = app.client.get(app.url("/api/v1/sales")).header("if-none-match", &shown.headers()["etag"]);
    let socket = app.client.get(app.url("/api/v1/events")).header("connection", "upgrade");
    let socket = socket.header("upgrade", "websocket").header("sec-websocket-version", "13");
    let waiting = attempt(&app, &sale, "bob", 1).header("prefer", "wait=20");
    let block = json!({"until": app.app.clock.now().plus_s(60)});
    app.operate("PUT", "/admin/v1/blocks/eve", Some(&block), 200).await;
    for (request, status) in [
        (app.client.get(app.url("/api/v1/me")).bearer_auth(&ann.token), 200),
        (waiting, 201),
        (attempt(&app, &sale, "ann", 1), 202),
        (app.client.delete(app.url("/admin/v1/blocks/eve")).bearer_auth(ADMIN_KEY), 204),
        (known, 304),
        (socket.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="), 101),
    ] {
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), status);
        met.insert(status);
    }
    let documented: BTreeSet<u16> = documented().into_iter().map(|(status, _)| status).collect();
    assert_eq!(documented.difference(&met).collect::<Vec<_>>(), Vec::<&u16>::new());
}

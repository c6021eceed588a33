//! Money over HTTP, against a real server: paying, callbacks, the sandbox, refunds. Whatever is asserted was read from the
//! public calls of buyers and operators.

/// What a verified, or forged, notification does.
mod captures;

/// The three real formats through the callback, with the vectors of their SDKs.
mod formats;

/// Alipay and WeChat Pay from the start of a payment to its return, with what was recorded of their answers.
mod recorded;

/// Shuffled and repeated notifications.
mod shuffle;

/// The way to a provider, and a provider that fails.
mod starting;

/// The provider that only pretends, and its page.
mod sandbox;

/// Its page in a real browser.
mod page;

/// Money on its way back.
mod refunds;

/// Processes that die between two steps.
mod crash;

/// The command line.
mod cli;

/// Half of the buyers do not pay.
mod storm;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use doorbuster::payment::sandbox::{Letter, Outcome, Sandbox};
use http::{HeaderMap, Method, StatusCode, Uri};
use parking_lot::Mutex;
use rules::time::UnixMs;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::app::{PASS_SECRET, TestApp, TestBuyer, TestSale, eventually};

pub const SANDBOX: &str = "payment.sandbox=true";
pub const PRICE: i64 = 149_900;

/// Nobody listens there: whoever is asked there does not answer.
const NOWHERE: &str = "http://127.0.0.1:9";

/// A server with the sandbox, and an open sale.
pub async fn shop(stock: u32) -> (TestApp, TestSale) {
    let app = TestApp::with(&[SANDBOX]).await;
    let sale = app.open_sale(stock).await;
    (app, sale)
}

/// The id of a recorded order of one unit.
pub async fn won(buyer: &TestBuyer<'_>, sale: &TestSale) -> String {
    let id = buyer.buy(sale.offer(), 1, 202).await["id"].as_str().unwrap().to_owned();
    assert_eq!(buyer.order(&id).await["state"], "awaiting_payment");
    id
}

pub async fn start(buyer: &TestBuyer<'_>, order: &str, provider: &str, status: u16) -> Value {
    let path = format!("/api/v1/orders/{order}/payment");
    buyer.call("POST", &path, Some(&json!({"provider": provider})), status).await
}

/// A payment at the sandbox: its id.
pub async fn payment(buyer: &TestBuyer<'_>, order: &str) -> String {
    start(buyer, order, "sandbox", 200).await["payment_id"].as_str().unwrap().to_owned()
}

/// Tells the sandbox what its buyer does.
pub async fn act(app: &TestApp, payment: &str, act: &Value, status: u16) -> Value {
    app.call("POST", &format!("/sandbox/payments/{payment}"), None, Some(act), status).await
}

/// The order, as its buyer is told.
pub async fn order(buyer: &TestBuyer<'_>, id: &str) -> Value {
    buyer.call("GET", &format!("/api/v1/orders/{id}"), None, 200).await
}

/// Waits until the order is in this state.
pub async fn becomes(buyer: &TestBuyer<'_>, id: &str, state: &str) -> Value {
    eventually(&format!("{id} is {state}"), async || order(buyer, id).await["state"] == state).await;
    order(buyer, id).await
}

/// The payments of an order, the oldest first, as the operator sees them.
pub async fn payments(app: &TestApp, order: &str) -> Vec<Value> {
    let page = app.operate("GET", &format!("/admin/v1/payments?order={order}"), None, 200).await;
    let mut items = page["items"].as_array().unwrap().clone();
    items.reverse();
    items
}

/// State and reason of each.
pub async fn states(app: &TestApp, order: &str) -> Vec<(String, Option<String>)> {
    let of = |payment: Value| {
        (payment["state"].as_str().unwrap().to_owned(), payment["reason"].as_str().map(str::to_owned))
    };
    payments(app, order).await.into_iter().map(of).collect()
}

pub fn plain(state: &str) -> (String, Option<String>) {
    (state.to_owned(), None)
}

pub fn back(reason: &str) -> (String, Option<String>) {
    ("refunded".to_owned(), Some(reason.to_owned()))
}

/// The offer's units: stock, free, held, sold.
pub async fn units(app: &TestApp, sale: &TestSale) -> [u64; 4] {
    let stats = app.stats(sale).await;
    ["stock", "free", "held", "sold"].map(|name| stats["offers"][0][name].as_u64().unwrap())
}

/// A second sandbox with the same key, for letters that ours would not write.
pub struct Forge {
    sandbox: Sandbox,
}

impl Forge {
    pub fn of(app: &TestApp) -> Self {
        Self::with(PASS_SECRET.as_bytes(), app.app.ledger.incarnation())
    }

    pub fn with(secret: &[u8], shop: &[u8; 16]) -> Self {
        Self { sandbox: Sandbox::new(secret, shop).unwrap() }
    }

    /// A letter of a capture, as ours would write it.
    pub fn paid(&self, payment: &str, event: &str, capture: &str) -> Letter {
        Letter {
            id: event.to_owned(),
            outcome: Outcome::Paid,
            shop: self.sandbox.shop().to_owned(),
            payment_id: payment.to_owned(),
            capture_id: capture.to_owned(),
            amount: rules::money::Money { amount: PRICE, currency: "CNY".parse().unwrap() },
            at: UnixMs(1_700_000_000_000),
        }
    }

    /// Sends it, signed at this moment.
    pub async fn send_at(&self, app: &TestApp, letter: &Letter, at: UnixMs) -> (u16, Value) {
        let (headers, body) = self.sandbox.seal(letter, at);
        deliver(app, "sandbox", headers, body).await
    }

    pub async fn send(&self, app: &TestApp, letter: &Letter) -> u16 {
        self.send_at(app, letter, app.app.clock.now()).await.0
    }

    pub fn seal(&self, letter: &Letter, at: UnixMs) -> (HeaderMap, Bytes) {
        self.sandbox.seal(letter, at)
    }
}

/// Sends bytes to a provider's callback; answers status and JSON.
pub async fn deliver(
    app: &TestApp,
    provider: &str,
    headers: HeaderMap,
    body: impl Into<reqwest::Body>,
) -> (u16, Value) {
    let request = app.client.post(app.url(&format!("/api/v1/payments/{provider}/callback")));
    let (status, _, body) = app.send(request.headers(headers).body(body)).await;
    (status, body)
}

/// One request to a stand-in.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: String,
}

impl Asked {
    pub fn idempotency_key(&self) -> Option<String> {
        self.headers.get("idempotency-key").map(|key| key.to_str().unwrap().to_owned())
    }
}

type Mood = Box<dyn FnMut(&Asked) -> (u16, Value) + Send>;

/// The body that came with an idempotency key, and what was answered.
type Kept = (String, (u16, Value));

/// Stands in for Stripe on loopback. As Stripe does, it repeats its first answer to an idempotency key, also a refusal or
/// an error 500, whatever its mood is by then. It keeps nothing of what comes before a request is executed.
#[derive(Clone)]
pub struct StandIn {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    mood: Arc<Mutex<Mood>>,
    kept: Arc<Mutex<HashMap<String, Kept>>>,
}

/// Answers that are given before a request is executed: who asks is not known, the same is under way, too many, or nobody
/// is there to execute it.
const NOT_EXECUTED: [u16; 4] = [401, 409, 429, 503];

/// The signing secret of the stand-in's notifications.
pub const STRIPE_SECRET: &str = "whsec_only_in_these_tests_0123456789abcdef";

impl StandIn {
    pub async fn open(mood: impl FnMut(&Asked) -> (u16, Value) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mood: Mood = Box::new(mood);
        let mood = Arc::new(Mutex::new(mood));
        let stand_in = Self { address, asked: Arc::default(), mood, kept: Arc::default() };
        let router = axum::Router::new().fallback(answer).with_state(stand_in.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        stand_in
    }

    /// Does what it is asked.
    pub async fn willing() -> Self {
        Self::open(willing).await
    }

    pub fn becomes(&self, mood: impl FnMut(&Asked) -> (u16, Value) + Send + 'static) {
        *self.mood.lock() = Box::new(mood);
    }

    /// A day has passed since every key came.
    pub fn forgets_keys(&self) {
        self.kept.lock().clear();
    }

    fn answer(&self, asked: &Asked) -> (u16, Value) {
        let Some(key) = asked.idempotency_key() else { return (self.mood.lock())(asked) };
        let mut kept = self.kept.lock();
        match kept.get(&key) {
            Some((body, answer)) if *body == asked.body => return answer.clone(),
            Some(_) => {
                return (400, json!({"error": {"type": "idempotency_error", "message": "other values"}}));
            }
            None => {}
        }
        let answer = (self.mood.lock())(asked);
        if !NOT_EXECUTED.contains(&answer.0) {
            kept.insert(key, (asked.body.clone(), answer.clone()));
        }
        answer
    }

    /// What was asked of it, by the end of the path.
    pub fn asked(&self, path_end: &str) -> Vec<Asked> {
        self.asked.lock().iter().filter(|asked| asked.path.ends_with(path_end)).cloned().collect()
    }

    /// Settings that make it our Stripe.
    pub fn settings(&self) -> Vec<String> {
        vec![
            format!("payment.stripe.url=http://{}", self.address),
            "payment.stripe.secret_key=sk_test_only_in_these_tests".to_owned(),
            format!("payment.stripe.webhook_secrets={STRIPE_SECRET}"),
            "public_url=https://sale.shop.example".to_owned(),
        ]
    }

    /// A signed event about this object.
    pub fn event(id: &str, kind: &str, object: &Value, now: UnixMs) -> (HeaderMap, String) {
        let event = json!({
            "id": id, "type": kind, "created": now.0 / 1_000, "livemode": false, "data": {"object": object},
        });
        let (body, time) = (event.to_string(), now.0 / 1_000);
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, STRIPE_SECRET.as_bytes());
        let tag = aws_lc_rs::hmac::sign(&key, format!("{time}.{body}").as_bytes());
        let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut headers = HeaderMap::new();
        headers.insert("stripe-signature", format!("t={time},v1={hex}").parse().unwrap());
        (headers, body)
    }

    /// Stripe tells that a payment was captured.
    pub async fn tells_of_capture(app: &TestApp, event: &str, payment: &str, capture: &str) -> u16 {
        let object = json!({
            "id": capture, "amount_received": PRICE, "currency": "cny", "status": "succeeded",
            "metadata": {"doorbuster_shop": shop_of(app), "doorbuster_payment": payment},
        });
        Self::tells(app, event, "payment_intent.succeeded", &object).await
    }

    /// Stripe tells something, signed at this moment.
    pub async fn tells(app: &TestApp, event: &str, kind: &str, object: &Value) -> u16 {
        let (headers, body) = Self::event(event, kind, object, app.app.clock.now());
        deliver(app, "stripe", headers, body).await.0
    }
}

/// The shop as Stripe is told it.
pub fn shop_of(app: &TestApp) -> String {
    app.app.ledger.incarnation().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Starts sessions, lets them expire, and returns money at once.
pub fn willing(asked: &Asked) -> (u16, Value) {
    let path = asked.path.as_str();
    match path {
        "/v1/checkout/sessions" => {
            (200, json!({"id": "cs_test_1", "status": "open", "url": "https://checkout.stripe.com/c/pay/1"}))
        }
        "/v1/refunds" => (200, refund("succeeded")),
        _ if path.ends_with("/expire") => (200, json!({"id": "cs_test_1", "status": "expired"})),
        _ if path.starts_with("/v1/refunds/") => (200, refund("succeeded")),
        _ => (404, json!({"error": {"type": "invalid_request_error", "message": path}})),
    }
}

pub fn refund(status: &str) -> Value {
    json!({"id": "re_1", "amount": PRICE, "currency": "cny", "status": status, "payment_intent": "pi_1"})
}

async fn answer(
    State(stand_in): State<StandIn>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: String,
) -> Response {
    let asked = Asked { method, path: uri.path().to_owned(), headers, body };
    let (status, body) = stand_in.answer(&asked);
    stand_in.asked.lock().push(asked);
    (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response()
}

//! Events on their way to the shop: real receivers on real sockets, with the receivers' own check of signatures.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use doorbuster::clock::Clock;
use doorbuster::ledger::sqlite::{Dropped, WEBHOOKS_MAX};
use doorbuster::outbox::endpoint::wants;
use doorbuster::telemetry::metrics::Delivery;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::app::{TestApp, TestSale, assert_code, draft, draft_between, eventually, with_manual_clock};
use crate::receiver::{Books, Outcome};

pub const INSIDE: &str = "webhooks.private_addresses=true";

/// A long time: the tests that turn the clock must not lose events to it.
pub const KEEP: &str = "webhooks.keep_hours=87600";

/// One request, as it came.
#[derive(Clone, Debug)]
pub struct Got {
    headers: HeaderMap,
    bytes: Bytes,
    pub body: Value,
    /// Whether it was taken.
    taken: bool,
}

impl Got {
    pub fn id(&self) -> &str {
        self.headers["webhook-id"].to_str().unwrap()
    }

    fn event(&self) -> &Value {
        &self.body["data"]
    }

    /// The order it is about, and which change of it.
    pub fn order(&self) -> Option<(String, u64)> {
        let event = self.event();
        Some((event["order_id"].as_str()?.to_owned(), event["seq"].as_u64()?))
    }

    /// As the standard says, written here anew: `id.timestamp.body`, HMAC-SHA256, any of the signatures.
    fn is_signed_with(&self, secret: &str) -> bool {
        let secret = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let text = |name: &str| self.headers[name].to_str().unwrap();
        let signed = [self.id().as_bytes(), text("webhook-timestamp").as_bytes(), &self.bytes].join(&b'.');
        text("webhook-signature").split(' ').any(|one| {
            let signature = STANDARD.decode(one.strip_prefix("v1,").unwrap()).unwrap();
            hmac::verify(&key, &signed, &signature).is_ok()
        })
    }
}

/// What a receiver does with a request.
#[derive(Clone, Debug)]
enum Reply {
    Status(u16),
    Elsewhere(String),
    /// Not now; after so many seconds.
    Later(u16, u64),
    /// It never answers.
    Silence,
}

type Mood = Box<dyn FnMut(&Got) -> Reply + Send>;

/// Somebody's server.
#[derive(Clone)]
pub struct Receiver {
    address: SocketAddr,
    got: Arc<Mutex<Vec<Got>>>,
    mood: Arc<Mutex<Mood>>,
}

impl Receiver {
    async fn open(mood: impl FnMut(&Got) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            got: Arc::default(),
            mood: Arc::new(Mutex::new(Box::new(mood))),
        };
        let router = axum::Router::new().fallback(answer).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        receiver
    }

    /// Takes everything.
    pub async fn willing() -> Self {
        Self::open(|_| Reply::Status(204)).await
    }

    fn becomes(&self, mood: impl FnMut(&Got) -> Reply + Send + 'static) {
        *self.mood.lock() = Box::new(mood);
    }

    pub fn url(&self) -> String {
        format!("http://{}/hooks", self.address)
    }

    /// All that came, in order.
    pub fn asked(&self) -> Vec<Got> {
        self.got.lock().clone()
    }

    /// The types of all that came, in order.
    pub fn types(&self) -> Vec<String> {
        self.asked().iter().map(|got| got.event()["type"].as_str().unwrap().to_owned()).collect()
    }

    /// What it took, in order, each event once: a receiver knows repeats by their id.
    pub fn taken(&self) -> Vec<Got> {
        let mut seen = BTreeSet::new();
        self.asked().into_iter().filter(|got| got.taken && seen.insert(got.id().to_owned())).collect()
    }

    pub fn count(&self, kind: &str) -> usize {
        self.taken().iter().filter(|got| got.event()["type"] == kind).count()
    }
}

async fn answer(State(receiver): State<Receiver>, headers: HeaderMap, bytes: Bytes) -> Response {
    let body = serde_json::from_slice(&bytes).unwrap_or_default();
    let mut got = Got { headers, bytes, body, taken: false };
    let reply = (receiver.mood.lock())(&got);
    got.taken = matches!(reply, Reply::Status(200..300));
    receiver.got.lock().push(got);
    match reply {
        Reply::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Reply::Later(status, seconds) => {
            (StatusCode::from_u16(status).unwrap(), [("retry-after", seconds.to_string())]).into_response()
        }
        Reply::Elsewhere(url) => (StatusCode::TEMPORARY_REDIRECT, [("location", url)]).into_response(),
        Reply::Silence => std::future::pending().await,
    }
}

/// Makes a webhook; its JSON, secret included.
pub async fn hook(app: &TestApp, url: &str) -> Value {
    app.operate("POST", "/admin/v1/webhooks", Some(&json!({"url": url})), 201).await
}

fn path(hook: &Value) -> String {
    format!("/admin/v1/webhooks/{}", hook["id"].as_str().unwrap())
}

async fn look(app: &TestApp, hook: &Value) -> Value {
    app.operate("GET", &path(hook), None, 200).await
}

/// So many buyers buy and cancel: two events each.
pub async fn buy_and_cancel(app: &TestApp, sale: &TestSale, buyers: std::ops::Range<u32>) {
    for number in buyers {
        let buyer = app.buyer(&format!("buyer-{number}"));
        let order = buyer.buy(sale.offer(), 1, 202).await;
        let id = order["id"].as_str().unwrap();
        buyer.order(id).await;
        buyer.call("POST", &format!("/api/v1/orders/{id}/cancel"), Some(&json!({})), 200).await;
    }
}

/// That the events of each order were taken in their order, from `order.recorded` to `order.closed`.
pub fn assert_in_order(receiver: &Receiver, orders: usize) {
    let mut seqs: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (order, seq) in receiver.taken().iter().filter_map(Got::order) {
        seqs.entry(order).or_default().push(seq);
    }
    assert_eq!(seqs.len(), orders);
    for (order, seqs) in seqs {
        assert_eq!(seqs, [2, 3], "{order}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_arrives_signed_and_each_order_in_its_order() {
    let app = TestApp::with(&[INSIDE]).await;
    let receiver = Receiver::willing().await;
    let hook = hook(&app, &receiver.url()).await;
    let secret = hook["secret"].as_str().unwrap();
    let sale = app.open_sale(50).await;
    buy_and_cancel(&app, &sale, 0..20).await;
    eventually("all events are there", async || receiver.count("order.closed") == 20).await;
    assert_in_order(&receiver, 20);
    assert_eq!((receiver.count("sale.created"), receiver.count("sale.published")), (1, 1));
    for got in receiver.taken() {
        assert!(got.is_signed_with(secret), "{got:?}");
        assert!(!got.is_signed_with("whsec_AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA="));
        let event = got.event();
        assert_eq!(event["id"], got.id());
        assert_eq!((&event["type"], &event["at"]), (&got.body["type"], &got.body["timestamp"]));
        assert_eq!(event["sale_id"], sale.id.as_str());
        let sent: i64 = got.headers["webhook-timestamp"].to_str().unwrap().parse().unwrap();
        assert!((sent - app.app.clock.now().0 / 1_000).abs() < 300);
    }
    let taken = receiver.taken();
    let closed = taken.iter().find(|got| got.event()["type"] == "order.closed").unwrap().event();
    assert_eq!(closed["offer_id"], sale.offer());
    assert_eq!(closed["data"]["state"], "closed");
    assert_eq!(closed["data"]["reason"], "cancelled");
    assert!(closed["data"]["buyer"].as_str().unwrap().starts_with("buyer-"), "{closed}");
    assert_eq!(closed["data"]["quantity"], 1);
    assert_eq!(closed["data"]["total"], json!({"amount": 149_900, "currency": "CNY"}));
    eventually("all is written down", async || look(&app, &hook).await["behind_since"].is_null()).await;
    assert_eq!(app.app.metrics.deliveries.get(Delivery::Failed), 0);
    assert!(app.app.metrics.deliveries.get(Delivery::Delivered) >= 42);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_fails_now_and_then_gets_everything_and_each_order_in_its_order() {
    let (app, clock) = with_manual_clock(&[INSIDE, KEEP]).await;
    let mut tried: HashMap<String, u32> = HashMap::new();
    let receiver = Receiver::open(move |got| {
        let times = tried.entry(got.id().to_owned()).or_default();
        *times += 1;
        // Every third event fails twice, and every one of these in its own way.
        let bad = got.order().is_some_and(|(order, seq)| (u64::from(order.as_bytes()[20]) + seq) % 3 == 0);
        Reply::Status(if bad && *times < 3 { [500, 404, 429][*times as usize % 3] } else { 200 })
    })
    .await;
    let hook = hook(&app, &receiver.url()).await;
    let sale = app.open_sale(50).await;
    buy_and_cancel(&app, &sale, 0..20).await;
    eventually("all events are there", async || {
        clock.advance(Duration::from_secs(10));
        receiver.count("order.closed") == 20
    })
    .await;
    assert_in_order(&receiver, 20);
    assert!(app.app.metrics.deliveries.get(Delivery::Failed) > 0);
    eventually("nothing waits", async || {
        let seen = look(&app, &hook).await;
        seen["waiting"] == 0 && seen["parked"] == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_receiver_and_a_silent_one_hurt_no_other() {
    // The silent one is waited for until this is over: who is given up makes room for the next.
    let app = TestApp::with(&[INSIDE, "webhooks.timeout_s=60"]).await;
    let silent = Receiver::open(|_| Reply::Silence).await;
    hook(&app, &silent.url()).await;
    // No port that was free a moment ago: somebody else may be given it.
    let dead = hook(&app, "http://127.0.0.1:1/").await;
    let mut live = Vec::new();
    for _ in 0..48 {
        let receiver = Receiver::willing().await;
        hook(&app, &receiver.url()).await;
        live.push(receiver);
    }
    let sale = app.open_sale(50).await;
    buy_and_cancel(&app, &sale, 0..10).await;
    eventually("the live ones have all", async || live.iter().all(|live| live.count("order.closed") == 10))
        .await;
    live.iter().for_each(|live| assert_in_order(live, 10));
    assert!(silent.taken().is_empty());
    assert!(silent.asked().len() <= 10, "no more than so many at once");
    eventually("the dead one is told to the operator", async || {
        look(&app, &dead).await["last_problem"].is_string()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_loses_nothing_and_keeps_the_order() {
    let (app, clock) = with_manual_clock(&[INSIDE, KEEP]).await;
    let receiver = Receiver::open(|_| Reply::Status(500)).await;
    let hook = hook(&app, &receiver.url()).await;
    let sale = app.open_sale(50).await;
    buy_and_cancel(&app, &sale, 0..5).await;
    eventually("it was asked", async || !receiver.asked().is_empty()).await;
    let app = TestApp::on(app.stop().await, clock.clone(), &[INSIDE, KEEP]).await;
    buy_and_cancel(&app, &sale, 5..10).await;
    assert!(receiver.taken().is_empty());
    receiver.becomes(|_| Reply::Status(200));
    eventually("all events are there", async || {
        clock.advance(Duration::from_secs(60));
        receiver.count("order.closed") == 10
    })
    .await;
    assert_in_order(&receiver, 10);
    let of_orders = || receiver.asked().iter().filter(|got| got.order().is_some()).count();
    let before = of_orders();
    eventually("nothing waits", async || look(&app, &hook).await["behind_since"].is_null()).await;
    let app = TestApp::on(app.stop().await, clock, &[INSIDE, KEEP]).await;
    buy_and_cancel(&app, &sale, 10..11).await;
    eventually("only what is new comes", async || receiver.count("order.closed") == 11).await;
    assert_eq!(of_orders(), before + 2, "what was delivered before is not sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_taken_in_its_time_is_parked_and_a_replay_brings_it() {
    let (app, clock) = with_manual_clock(&[INSIDE, KEEP]).await;
    let receiver = Receiver::open(|got| Reply::Status(if got.order().is_some() { 503 } else { 200 })).await;
    let hook = hook(&app, &receiver.url()).await;
    let sale = app.open_sale(50).await;
    buy_and_cancel(&app, &sale, 0..1).await;
    // First in small steps: a clock that runs ahead of the attempts leaves time for a few of them only.
    eventually("it was tried again and again", async || {
        clock.advance(Duration::from_secs(60));
        receiver.asked().iter().filter(|got| got.order().is_some()).count() > 3
    })
    .await;
    eventually("both events are parked", async || {
        clock.advance(Duration::from_secs(1_800));
        look(&app, &hook).await["parked"] == 2
    })
    .await;
    assert_eq!(app.app.metrics.deliveries.get(Delivery::Parked), 2);
    assert_eq!(look(&app, &hook).await["waiting"], 0);
    let parked = app.operate("GET", &format!("{}/parked?limit=1", path(&hook)), None, 200).await;
    assert_eq!(parked["items"][0]["type"], "order.recorded");
    assert!(parked["items"][0]["attempts"].as_u64().unwrap() > 3, "{parked}");
    assert!(parked["items"][0]["problem"].as_str().unwrap().contains("503"), "{parked}");
    let cursor = parked["next_cursor"].as_str().unwrap();
    let parked = app.operate("GET", &format!("{}/parked?cursor={cursor}", path(&hook)), None, 200).await;
    assert_eq!((&parked["items"][0]["type"], &parked["next_cursor"]), (&json!("order.closed"), &Value::Null));

    receiver.becomes(|_| Reply::Status(200));
    let replayed = app.operate("POST", &format!("{}/replay", path(&hook)), Some(&json!({})), 200).await;
    assert_eq!(replayed, json!({"webhook_id": hook["id"], "events": 2}));
    eventually("both arrive", async || {
        clock.advance(Duration::from_secs(60));
        receiver.count("order.closed") == 1
    })
    .await;
    assert_in_order(&receiver, 1);
    eventually("nothing is parked", async || look(&app, &hook).await["parked"] == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_since_a_time_repeats_everything_from_then_on_under_the_same_ids() {
    let (app, clock) = with_manual_clock(&[INSIDE, KEEP]).await;
    let receiver = Receiver::willing().await;
    let hook = hook(&app, &receiver.url()).await;
    let sale = app.open_sale(50).await;
    buy_and_cancel(&app, &sale, 0..3).await;
    clock.advance(Duration::from_secs(10));
    let since = clock.now();
    buy_and_cancel(&app, &sale, 3..6).await;
    eventually("all events are there", async || {
        receiver.count("order.closed") == 6 && look(&app, &hook).await["behind_since"].is_null()
    })
    .await;
    let first = receiver.asked().len();
    let replay = json!({"since": since});
    let replayed = app.operate("POST", &format!("{}/replay", path(&hook)), Some(&replay), 200).await;
    assert_eq!(replayed["events"], 6);
    eventually("six events come again", async || receiver.asked().len() == first + 6).await;
    let asked = receiver.asked();
    let ids = |gots: &[Got]| gots.iter().map(|got| got.id().to_owned()).collect::<BTreeSet<_>>();
    // Ids sort as the events happened.
    let latest: BTreeSet<_> = ids(&asked[..first]).into_iter().rev().take(6).collect();
    assert_eq!(ids(&asked[first..]), latest);
    assert_eq!(receiver.taken().len(), first, "nothing that a receiver would take for new");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_secret_signs_beside_the_old_one_for_a_day() {
    let (app, clock) = with_manual_clock(&[INSIDE, KEEP]).await;
    let receiver = Receiver::willing().await;
    let hook = hook(&app, &receiver.url()).await;
    let changed = app.operate("POST", &format!("{}/secret", path(&hook)), None, 200).await;
    let (old, new) = (hook["secret"].as_str().unwrap(), changed["secret"].as_str().unwrap());
    assert_ne!(old, new);
    assert_eq!(changed["previous_secret_until"], json!(clock.now().plus_s(86_400)));
    app.open_sale(1).await;
    eventually("it is told", async || receiver.count("sale.published") == 1).await;
    // The change may reach the courier after the first event; the last one certainly comes after it.
    clock.advance(Duration::from_secs(86_399));
    app.open_sale(1).await;
    eventually("it is told", async || receiver.count("sale.published") == 2).await;
    let last = receiver.taken().pop().unwrap();
    assert!(last.is_signed_with(old) && last.is_signed_with(new));
    clock.advance(Duration::from_secs(1));
    app.open_sale(1).await;
    eventually("it is told", async || receiver.count("sale.published") == 3).await;
    let last = receiver.taken().pop().unwrap();
    assert!(!last.is_signed_with(old) && last.is_signed_with(new));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_secret_signs_for_its_day_however_often_it_is_changed() {
    let (app, clock) = with_manual_clock(&[INSIDE, KEEP]).await;
    let receiver = Receiver::willing().await;
    let hook = hook(&app, &receiver.url()).await;
    let change = async |status| app.operate("POST", &format!("{}/secret", path(&hook)), None, status).await;
    let test = async || {
        app.operate("POST", &format!("{}/test", path(&hook)), None, 200).await;
        receiver.asked().pop().unwrap()
    };
    let secret = |shown: &Value| shown["secret"].as_str().unwrap().to_owned();
    let mut secrets = vec![secret(&hook)];
    for _ in 0..10 {
        secrets.push(secret(&change(200).await));
        clock.advance(Duration::from_secs(3_600));
    }
    let got = test().await;
    assert!(secrets.iter().all(|secret| got.is_signed_with(secret)));
    let refused = change(422).await;
    assert!(refused["detail"].as_str().unwrap().contains("As many secrets"), "{refused}");
    clock.advance(Duration::from_secs(14 * 3_600));
    let got = test().await;
    assert!(!got.is_signed_with(&secrets[0]), "its day is over");
    assert!(secrets[1..].iter().all(|secret| got.is_signed_with(secret)));
    let changed = change(200).await;
    assert_eq!(changed["previous_secret_until"], json!(clock.now().plus_s(86_400)));
    secrets.push(secret(&changed));
    let got = test().await;
    assert!(secrets[1..].iter().all(|secret| got.is_signed_with(secret)));
}

/// A receiver that never takes this type: what it does want must not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn who_no_longer_wants_a_type_does_not_wait_behind_it() {
    let (app, clock) = with_manual_clock(&[INSIDE, KEEP]).await;
    let refused = |got: &Got| got.event()["type"] == "order.recorded";
    let receiver = Receiver::open(move |got| Reply::Status(if refused(got) { 500 } else { 200 })).await;
    let hook = hook(&app, &receiver.url()).await;
    let sale = app.open_sale(50).await;
    buy_and_cancel(&app, &sale, 0..3).await;
    let asked = || receiver.asked().iter().filter(|got| refused(got)).count();
    eventually("each was tried", async || asked() == 3).await;
    eventually("they wait", async || look(&app, &hook).await["waiting"] == 6).await;
    assert_eq!(receiver.count("order.closed"), 0);
    let before = asked();
    // The clock stands still: nothing is due.
    let narrower = json!({"types": ["order.closed", "sale.*"]});
    app.operate("PATCH", &path(&hook), Some(&narrower), 200).await;
    eventually("the others go on", async || receiver.count("order.closed") == 3).await;
    eventually("nothing waits", async || look(&app, &hook).await["waiting"] == 0).await;
    assert_eq!(asked(), before, "and what is not wanted is not sent");

    // What was parked before the types changed, and is woken after it.
    app.operate("PATCH", &path(&hook), Some(&json!({"types": []})), 200).await;
    buy_and_cancel(&app, &sale, 3..4).await;
    eventually("one is parked", async || {
        clock.advance(Duration::from_secs(1_800));
        look(&app, &hook).await["parked"] == 1
    })
    .await;
    app.operate("PATCH", &path(&hook), Some(&narrower), 200).await;
    let before = asked();
    app.operate("POST", &format!("{}/replay", path(&hook)), Some(&json!({})), 200).await;
    eventually("nothing is parked and nothing waits", async || {
        let seen = look(&app, &hook).await;
        seen["parked"] == 0 && seen["waiting"] == 0
    })
    .await;
    assert_eq!(asked(), before);
    assert_eq!(look(&app, &hook).await["dropped"], 0, "nothing that was wanted is lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_sends_us_elsewhere_is_a_failure() {
    let app = TestApp::with(&[INSIDE]).await;
    let other = Receiver::willing().await;
    let url = other.url();
    let receiver = Receiver::open(move |_| Reply::Elsewhere(url.clone())).await;
    let hook = hook(&app, &receiver.url()).await;
    app.open_sale(1).await;
    eventually("it is told to the operator", async || {
        look(&app, &hook).await["last_problem"].as_str().is_some_and(|problem| problem.contains("307"))
    })
    .await;
    assert!(other.asked().is_empty());
}

/// A busy receiver says when to come again: that is kept to, up to an hour.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_asks_for_time_gets_it_up_to_an_hour() {
    for status in [429, 503] {
        let (app, clock) = with_manual_clock(&[INSIDE, KEEP]).await;
        let mut held_up: Option<String> = None;
        let receiver = Receiver::open(move |got| match (&held_up, got.order()) {
            (None, Some(_)) => {
                held_up = Some(got.id().to_owned());
                Reply::Later(status, 7_200)
            }
            _ => Reply::Status(204),
        })
        .await;
        hook(&app, &receiver.url()).await;
        let sale = app.publish(draft_between(-60, 86_400, 50)).await;
        buy_and_cancel(&app, &sale, 0..1).await;
        let refused = || receiver.asked().iter().filter(|got| !got.taken).cloned().collect::<Vec<_>>();
        eventually("it is asked for time", async || refused().len() == 1).await;
        let event = refused()[0].id().to_owned();
        let asked = || receiver.asked().iter().filter(|got| got.id() == event).count();
        eventually("that is written down", async || app.app.metrics.deliveries.get(Delivery::Failed) == 1)
            .await;
        clock.advance(Duration::from_millis(3_599_999));
        buy_and_cancel(&app, &sale, 1..2).await;
        eventually("what is not in its way is delivered", async || receiver.count("order.closed") == 1).await;
        assert_eq!(asked(), 1, "{status}: a moment too early");
        clock.advance(Duration::from_millis(1));
        eventually("it is asked again", async || asked() == 2).await;
        eventually("and what stood behind it comes", async || receiver.count("order.closed") == 2).await;
        assert_in_order(&receiver, 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_only_so_many_webhooks() {
    let app = TestApp::with(&[INSIDE]).await;
    let draft = json!({"url": "http://127.0.0.1:9/", "disabled": true});
    let mut first = None;
    for _ in 0..WEBHOOKS_MAX {
        let made = app.operate("POST", "/admin/v1/webhooks", Some(&draft), 201).await;
        first.get_or_insert(made);
    }
    let problem = app.operate("POST", "/admin/v1/webhooks", Some(&draft), 422).await;
    assert_code(&problem, "invalid_request");
    assert!(problem["detail"].as_str().unwrap().contains("100 webhooks already; delete one"), "{problem}");
    let listed = app.operate("GET", "/admin/v1/webhooks", None, 200).await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 100);
    app.operate("DELETE", &path(&first.unwrap()), None, 204).await;
    app.operate("POST", "/admin/v1/webhooks", Some(&draft), 201).await;
    app.operate("POST", "/admin/v1/webhooks", Some(&draft), 422).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_can_make_us_call_the_services_beside_us() {
    let (app, clock) = with_manual_clock(&[INSIDE, KEEP]).await;
    let receiver = Receiver::open(|_| Reply::Status(500)).await;
    let secure = receiver.url().replace("http:", "https:");
    let by_name = secure.replace("127.0.0.1", "localhost");
    let hooks = [hook(&app, &secure).await, hook(&app, &by_name).await];
    let app = TestApp::on(app.stop().await, clock, &[KEEP]).await;
    app.open_sale(1).await;
    for hook in &hooks {
        eventually("it is refused", async || {
            let seen = look(&app, hook).await;
            seen["last_problem"].as_str().is_some_and(|problem| problem.contains("public address"))
        })
        .await;
    }
    assert!(receiver.asked().is_empty());
    let odd = json!({"url": "https://hooks.\nshop.example/\ta\u{1b}[2Jb", "disabled": true});
    let made = app.operate("POST", "/admin/v1/webhooks", Some(&odd), 201).await;
    assert_eq!(made["url"], "https://hooks.shop.example/a%1B[2Jb", "as it is asked for");
    let other = json!({"url": "https://shop.example\r\n/"});
    let changed = app.operate("PATCH", &path(&made), Some(&other), 200).await;
    assert_eq!(changed["url"], "https://shop.example/");
    app.operate("DELETE", &path(&made), None, 204).await;
    for url in ["https://127.0.0.1/", "https://0x7f.1/", "https://[::ffff:10.0.0.1]/", "http://shop.example/"]
    {
        let problem = app.operate("POST", "/admin/v1/webhooks", Some(&json!({"url": url})), 422).await;
        assert_code(&problem, "invalid_request");
        assert_eq!(problem["field"], "url");
        app.operate("PATCH", &path(&hooks[0]), Some(&json!({"url": url})), 422).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_made_seen_changed_and_deleted() {
    let app = TestApp::with(&[INSIDE]).await;
    let receiver = Receiver::willing().await;
    let wanted = json!({"url": receiver.url(), "types": ["order.closed", "sale.*"], "disabled": true});
    let hook = app.operate("POST", "/admin/v1/webhooks", Some(&wanted), 201).await;
    assert!(hook["secret"].as_str().unwrap().starts_with("whsec_"));
    let seen = look(&app, &hook).await;
    assert_eq!(seen["secret"], Value::Null, "shown once");
    for (name, value) in wanted.as_object().unwrap() {
        assert_eq!(seen[name], *value);
    }
    let list = app.operate("GET", "/admin/v1/webhooks", None, 200).await;
    assert_eq!(list, json!({"items": [seen], "next_cursor": null}));
    for bad in [json!(["order"]), json!(["order.Paid"]), json!(["*"])] {
        let problem = app.operate("PATCH", &path(&hook), Some(&json!({"types": bad})), 422).await;
        assert_eq!(problem["field"], "types");
    }

    let sale = app.open_sale(5).await;
    buy_and_cancel(&app, &sale, 0..2).await;
    eventually("events wait", async || look(&app, &hook).await["behind_since"].is_string()).await;
    assert!(receiver.asked().is_empty(), "it is disabled");
    let changed = app.operate("PATCH", &path(&hook), Some(&json!({"disabled": false})), 200).await;
    assert_eq!((&changed["disabled"], &changed["types"]), (&json!(false), &wanted["types"]));
    eventually("they come", async || receiver.count("order.closed") == 2).await;
    eventually("nothing waits", async || look(&app, &hook).await["behind_since"].is_null()).await;
    assert_eq!((receiver.count("sale.published"), receiver.count("order.recorded")), (1, 0));

    app.operate("DELETE", &path(&hook), None, 204).await;
    for (method, path) in
        [("GET", path(&hook)), ("DELETE", path(&hook)), ("GET", format!("{}/parked", path(&hook)))]
    {
        assert_code(&app.operate(method, &path, None, 404).await, "not_found");
    }
    let gone = format!("{}/replay", path(&hook));
    app.operate("POST", &gone, Some(&json!({})), 404).await;
    let (before, second) = (receiver.asked().len(), Receiver::willing().await);
    crate::webhooks::hook(&app, &second.url()).await;
    buy_and_cancel(&app, &sale, 2..3).await;
    eventually("the second one is told", async || second.count("order.closed") == 1).await;
    assert_eq!(receiver.asked().len(), before, "the first one is told no more");
    assert_eq!(second.count("sale.created"), 0, "of what was before it, it is not told");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_makes_one_webhook() {
    let app = TestApp::with(&[INSIDE]).await;
    let make = || {
        let request = app.client.post(app.url("/admin/v1/webhooks")).bearer_auth(crate::app::ADMIN_KEY);
        request.header("idempotency-key", "k1").json(&json!({"url": "http://127.0.0.1:9/"}))
    };
    let (first, second) = (app.send(make()).await, app.send(make()).await);
    assert_eq!((first.0, &first.2), (201, &second.2));
    let list = app.operate("GET", "/admin/v1/webhooks", None, 200).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn rehearsals_tell_nobody() {
    let app = TestApp::with(&[INSIDE]).await;
    let receiver = Receiver::willing().await;
    hook(&app, &receiver.url()).await;
    let mut rehearsal = draft(5);
    rehearsal["rehearsal"] = json!(true);
    let rehearsed = app.publish(rehearsal).await;
    buy_and_cancel(&app, &rehearsed, 0..2).await;
    let sale = app.open_sale(5).await;
    buy_and_cancel(&app, &sale, 2..3).await;
    eventually("the real one is told", async || receiver.count("order.closed") == 1).await;
    for got in receiver.asked() {
        assert_eq!(got.event()["sale_id"], sale.id.as_str());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_on_from_the_last_event_misses_none_while_others_are_written() {
    let app = TestApp::start().await;
    let sale = app.open_sale(500).await;
    let writing = async {
        futures_util::future::join_all((0..8).map(|part| {
            let (app, sale) = (&app, &sale);
            async move { buy_and_cancel(app, sale, part * 20..part * 20 + 20).await }
        }))
        .await;
    };
    let reading = async {
        let (mut last, mut read) = (0, Vec::new());
        while read.len() < 323 {
            for event in app.app.ledger.events_after(last, 7).await.unwrap() {
                assert_eq!(event.no, last + 1, "no gap");
                last = event.no;
                read.push(event);
            }
            tokio::task::yield_now().await;
        }
        read
    };
    let (read, ()) = tokio::join!(reading, writing);
    let mut seqs: HashMap<String, Vec<u32>> = HashMap::new();
    for event in read.iter().filter(|event| event.order_id.is_some()) {
        seqs.entry(event.order_id.unwrap().to_string()).or_default().push(event.seq.unwrap());
    }
    assert_eq!(seqs.len(), 160);
    assert!(seqs.values().all(|seqs| *seqs == [2, 3]));
}

#[tokio::test(flavor = "multi_thread")]
async fn old_events_are_dropped_but_never_the_newest() {
    let (app, clock) = with_manual_clock(&[INSIDE, KEEP]).await;
    let hook = hook(&app, "http://127.0.0.1:9/").await;
    app.open_sale(1).await;
    eventually("they wait", async || look(&app, &hook).await["waiting"] == 3).await;
    let ledger = &app.app.ledger;
    let newest = ledger.newest_event().await.unwrap();
    let drop_before = async |before| ledger.drop_old_events(before, clock.now(), wants).await.unwrap();
    assert_eq!(drop_before(clock.now()).await, Dropped::default(), "not older than now");
    let lost = vec![(hook["id"].as_str().unwrap().parse().unwrap(), 2)];
    assert_eq!(drop_before(clock.now().plus_ms(1)).await, Dropped { events: 2, lost });
    assert_eq!(ledger.newest_event().await.unwrap(), newest);
    let left = ledger.events_after(0, 10).await.unwrap();
    assert_eq!(left.iter().map(|event| event.no).collect::<Vec<_>>(), [newest]);
    let seen = look(&app, &hook).await;
    assert_eq!((&seen["waiting"], &seen["dropped"]), (&json!(1), &json!(2)), "what is dropped waits no more");
    app.open_sale(1).await;
    assert_eq!(ledger.newest_event().await.unwrap(), newest + 3, "numbers do not come again");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_became_too_old_for_a_receiver_are_counted_and_told() {
    const DAY_S: i64 = 86_400;
    let (app, clock) = with_manual_clock(&[INSIDE]).await;
    let receiver = Receiver::willing().await;
    let make = async |types: &[&str], disabled: bool| {
        let wanted = json!({"url": receiver.url(), "types": types, "disabled": disabled});
        app.operate("POST", "/admin/v1/webhooks", Some(&wanted), 201).await
    };
    let late = make(&["order.*", "sale.created", "sale.published"], true).await;
    let late_for_few = make(&["order.closed"], true).await;
    let late_for_none = make(&["audit.*"], true).await;
    let prompt = make(&["order.*"], false).await;
    let mut rehearsal = draft_between(-60, 30 * DAY_S, 5);
    rehearsal["rehearsal"] = json!(true);
    app.publish(rehearsal).await;
    let sale = app.publish(draft_between(-60, 30 * DAY_S, 5)).await;
    buy_and_cancel(&app, &sale, 0..3).await;
    eventually("the prompt one has all", async || {
        receiver.count("order.closed") == 3 && look(&app, &prompt).await["behind_since"].is_null()
    })
    .await;
    let folder = app.stop().await;
    clock.advance(Duration::from_secs(169 * 3_600));
    let app = TestApp::on(folder, clock.clone(), &[INSIDE]).await;
    // Not too old, and the newest event stays in any case.
    buy_and_cancel(&app, &sale, 3..4).await;
    eventually("the prompt one has all", async || receiver.count("order.closed") == 4).await;
    assert_eq!(look(&app, &late).await["dropped"], 0, "a start does not begin with dropping");
    clock.advance(Duration::from_secs(3_600));
    eventually("the old ones are dropped", async || look(&app, &late).await["dropped"] == 8).await;
    let dropped = async |hook: &Value| look(&app, hook).await["dropped"].clone();
    let others = [dropped(&late_for_few).await, dropped(&late_for_none).await, dropped(&prompt).await];
    assert_eq!(others, [3, 0, 0].map(Value::from));
    // Counted once they are gone.
    eventually("they are counted", async || app.app.metrics.deliveries.get(Delivery::Dropped) == 11).await;
    app.operate("PATCH", &path(&late), Some(&json!({"disabled": false})), 200).await;
    eventually("what is left arrives", async || look(&app, &late).await["behind_since"].is_null()).await;
}

/// The shop was away for longer than events are kept.
#[tokio::test(flavor = "multi_thread")]
async fn what_became_old_while_nobody_was_there_is_tried_before_it_is_given_up_or_dropped() {
    const DAY_S: i64 = 86_400;
    let (app, clock) = with_manual_clock(&[INSIDE]).await;
    let receiver = Receiver::open(|_| Reply::Status(500)).await;
    let wanted = json!({"url": receiver.url(), "types": ["order.*"]});
    let hook = app.operate("POST", "/admin/v1/webhooks", Some(&wanted), 201).await;
    let sale = app.publish(draft_between(-60, 30 * DAY_S, 5)).await;
    buy_and_cancel(&app, &sale, 0..2).await;
    eventually("they wait", async || look(&app, &hook).await["waiting"] == 4).await;
    let folder = app.stop().await;
    clock.advance(Duration::from_secs(169 * 3_600));
    let app = TestApp::on(folder, clock.clone(), &[INSIDE]).await;
    // The newest event would stay in any case.
    buy_and_cancel(&app, &sale, 2..3).await;
    let before = receiver.asked().len();
    clock.advance(Duration::from_secs(60));
    eventually("it is tried, and that is not the end", async || receiver.asked().len() > before).await;
    receiver.becomes(|_| Reply::Status(200));
    eventually("everything arrives", async || {
        clock.advance(Duration::from_secs(10));
        receiver.count("order.closed") == 3
    })
    .await;
    assert_in_order(&receiver, 3);
    eventually("nothing waits", async || look(&app, &hook).await["behind_since"].is_null()).await;
    clock.advance(Duration::from_secs(3_600));
    let oldest = async || app.app.ledger.events_after(0, 1).await.unwrap()[0].no;
    eventually("what is old is dropped", async || oldest().await > 1).await;
    assert_eq!(look(&app, &hook).await["dropped"], 0);
    let counted = |outcome| app.app.metrics.deliveries.get(outcome);
    assert_eq!([counted(Delivery::Dropped), counted(Delivery::Parked)], [0, 0]);
}

/// It was disabled for longer than anything is tried.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_enabled_again_has_all_the_time_anew() {
    let (app, clock) = with_manual_clock(&[INSIDE, KEEP]).await;
    let receiver = Receiver::open(|_| Reply::Status(500)).await;
    let wanted = json!({"url": receiver.url(), "types": ["order.*"]});
    let hook = app.operate("POST", "/admin/v1/webhooks", Some(&wanted), 201).await;
    let sale = app.open_sale(5).await;
    buy_and_cancel(&app, &sale, 0..1).await;
    eventually("they wait", async || look(&app, &hook).await["waiting"] == 2).await;
    app.operate("PATCH", &path(&hook), Some(&json!({"disabled": true})), 200).await;
    clock.advance(Duration::from_secs(73 * 3_600));
    let before = receiver.asked().len();
    app.operate("PATCH", &path(&hook), Some(&json!({"disabled": false})), 200).await;
    eventually("it is tried", async || receiver.asked().len() > before).await;
    receiver.becomes(|_| Reply::Status(200));
    eventually("everything arrives", async || {
        clock.advance(Duration::from_secs(10));
        receiver.count("order.closed") == 1
    })
    .await;
    assert_in_order(&receiver, 1);
    assert_eq!(app.app.metrics.deliveries.get(Delivery::Parked), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stood_behind_a_dropped_event_goes_on() {
    let (app, clock) = with_manual_clock(&[INSIDE, KEEP]).await;
    let receiver = Receiver::open(|_| Reply::Status(500)).await;
    let wanted = json!({"url": receiver.url(), "types": ["order.*"]});
    let hook = app.operate("POST", "/admin/v1/webhooks", Some(&wanted), 201).await;
    let sale = app.open_sale(5).await;
    let buyer = app.buyer("ann");
    let order = buyer.buy(sale.offer(), 1, 202).await;
    let id = order["id"].as_str().unwrap();
    buyer.order(id).await;
    eventually("it waits", async || look(&app, &hook).await["waiting"] == 1).await;
    clock.advance(Duration::from_secs(1));
    let then = clock.now();
    buyer.call("POST", &format!("/api/v1/orders/{id}/cancel"), Some(&json!({})), 200).await;
    eventually("both wait", async || look(&app, &hook).await["waiting"] == 2).await;
    let dropped = app.app.ledger.drop_old_events(then, clock.now(), wants).await.unwrap();
    assert_eq!(dropped.lost, [(hook["id"].as_str().unwrap().parse().unwrap(), 1)]);
    receiver.becomes(|_| Reply::Status(200));
    eventually("the last one arrives", async || {
        clock.advance(Duration::from_secs(60));
        receiver.count("order.closed") == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stood_behind_a_delivery_that_an_audit_dropped_goes_on() {
    let (app, clock) = with_manual_clock(&[INSIDE, KEEP, "audit.every_s=0"]).await;
    let receiver = Receiver::open(|_| Reply::Status(500)).await;
    let wanted = json!({"url": receiver.url(), "types": ["order.*"]});
    let hook = app.operate("POST", "/admin/v1/webhooks", Some(&wanted), 201).await;
    let sale = app.open_sale(5).await;
    let buyer = app.buyer("ann");
    let order = buyer.buy(sale.offer(), 1, 202).await;
    let id = order["id"].as_str().unwrap();
    buyer.order(id).await;
    eventually("it waits", async || look(&app, &hook).await["waiting"] == 1).await;
    buyer.call("POST", &format!("/api/v1/orders/{id}/cancel"), Some(&json!({})), 200).await;
    eventually("both wait", async || look(&app, &hook).await["waiting"] == 2).await;
    let file = rusqlite::Connection::open(app.app.settings.ledger_path()).unwrap();
    file.execute("delete from events where type = 'order.recorded'", []).unwrap();
    drop(file);
    receiver.becomes(|_| Reply::Status(200));
    let report = app.audited(&json!({"repair": true})).await;
    let findings = report["findings"].as_array().unwrap();
    let dropped = findings.iter().find(|finding| finding["kind"] == "delivery_without_event").unwrap();
    assert_eq!(dropped["repaired"], true, "{report}");
    eventually("the last one arrives", async || {
        clock.advance(Duration::from_secs(60));
        receiver.count("order.closed") == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_gone_is_disabled_with_the_reason_until_somebody_enables_it() {
    let (app, clock) = with_manual_clock(&[INSIDE, KEEP]).await;
    let receiver = Receiver::open(|_| Reply::Status(410)).await;
    let hook = hook(&app, &receiver.url()).await;
    let sale = app.open_sale(5).await;
    eventually("it is disabled", async || look(&app, &hook).await["disabled"] == true).await;
    let seen = look(&app, &hook).await;
    assert!(seen["disabled_reason"].as_str().unwrap().contains("410 Gone"), "{seen}");
    buy_and_cancel(&app, &sale, 0..2).await;
    clock.advance(Duration::from_secs(3_600));
    let asked = receiver.asked().len();
    receiver.becomes(|_| Reply::Status(200));
    let enabled = app.operate("PATCH", &path(&hook), Some(&json!({"disabled": false})), 200).await;
    assert_eq!((&enabled["disabled"], &enabled["disabled_reason"]), (&json!(false), &Value::Null));
    eventually("everything arrives", async || {
        clock.advance(Duration::from_secs(10));
        receiver.count("order.closed") == 2 && receiver.count("sale.created") == 1
    })
    .await;
    assert!(asked <= 3, "it was asked {asked} times while it was gone");
    assert_in_order(&receiver, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_was_mended_is_tried_at_once() {
    let (app, _clock) = with_manual_clock(&[INSIDE, KEEP]).await;
    let (broken, mended) = (Receiver::open(|_| Reply::Status(500)).await, Receiver::willing().await);
    let hook = hook(&app, &broken.url()).await;
    let sale = app.open_sale(50).await;
    buy_and_cancel(&app, &sale, 0..10).await;
    eventually("it is left alone", async || app.app.metrics.webhooks_resting.get() == 1).await;
    app.operate("PATCH", &path(&hook), Some(&json!({"url": mended.url()})), 200).await;
    // The clock stands still: nothing that failed is due, but what is new goes out.
    buy_and_cancel(&app, &sale, 10..12).await;
    eventually("new ones arrive", async || mended.count("order.closed") >= 2).await;
    eventually("it is not left alone", async || app.app.metrics.webhooks_resting.get() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_still_under_way_to_the_old_address_says_nothing_about_the_new_one() {
    let (app, _clock) = with_manual_clock(&[INSIDE, KEEP, "webhooks.timeout_s=3"]).await;
    let (silent, mended) = (Receiver::open(|_| Reply::Silence).await, Receiver::willing().await);
    let wanted = json!({"url": silent.url(), "types": ["order.*"], "disabled": true});
    let hook = app.operate("POST", "/admin/v1/webhooks", Some(&wanted), 201).await;
    let sale = app.open_sale(50).await;
    buy_and_cancel(&app, &sale, 0..8).await;
    app.operate("PATCH", &path(&hook), Some(&json!({"disabled": false})), 200).await;
    eventually("all are under way", async || silent.asked().len() == 8).await;
    app.operate("PATCH", &path(&hook), Some(&json!({"url": mended.url()})), 200).await;
    eventually("all have failed", async || app.app.metrics.deliveries.get(Delivery::Failed) == 8).await;
    // The clock stands still: a rest would never end.
    buy_and_cancel(&app, &sale, 8..10).await;
    eventually("new ones arrive", async || mended.count("order.closed") == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_is_delivered_many_at_once_and_no_more_than_allowed() {
    let app = TestApp::with(&[INSIDE, "webhooks.in_flight=4"]).await;
    let receiver = Receiver::willing().await;
    let wanted = json!({"url": receiver.url(), "disabled": true});
    let hook = app.operate("POST", "/admin/v1/webhooks", Some(&wanted), 201).await;
    let sale = app.open_sale(500).await;
    futures_util::future::join_all((0..8).map(|part| {
        let (app, sale) = (&app, &sale);
        async move { buy_and_cancel(app, sale, part * 40..part * 40 + 40).await }
    }))
    .await;
    receiver.becomes(|_| Reply::Silence);
    app.operate("PATCH", &path(&hook), Some(&json!({"disabled": false})), 200).await;
    eventually("four are under way", async || receiver.asked().len() == 4).await;
    let orders: BTreeSet<_> =
        receiver.asked().iter().map(|got| got.event()["order_id"].to_string()).collect();
    assert!(orders.len() >= 3, "of different orders, and one of the sale: {orders:?}");
    receiver.becomes(|_| Reply::Status(200));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_left_alone_is_asked_again_and_then_gets_all() {
    let (app, clock) = with_manual_clock(&[INSIDE, KEEP]).await;
    let receiver = Receiver::open(|_| Reply::Status(500)).await;
    hook(&app, &receiver.url()).await;
    let sale = app.open_sale(50).await;
    buy_and_cancel(&app, &sale, 0..20).await;
    eventually("it is left alone", async || app.app.metrics.webhooks_resting.get() == 1).await;
    buy_and_cancel(&app, &sale, 20..22).await;
    let asked = receiver.asked().len();
    assert!(asked <= 5 + 10, "the failures that open it and what was under way then, but {asked}");
    receiver.becomes(|_| Reply::Status(200));
    eventually("all events are there", async || {
        clock.advance(Duration::from_secs(60));
        receiver.count("order.closed") == 22
    })
    .await;
    assert_in_order(&receiver, 22);
    assert_eq!(app.app.metrics.webhooks_resting.get(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_receiver_takes_each_event_once_and_believes_nobody_else() {
    let app = TestApp::with(&[INSIDE]).await;
    let folder = tempfile::tempdir().unwrap();
    // In between stands one who hears all, to forward it changed, and twice.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let inner = format!("http://{}/hooks", listener.local_addr().unwrap());
    let outer = Receiver::open(|_| Reply::Status(200)).await;
    let hook = hook(&app, &outer.url()).await;
    let secret = hook["secret"].as_str().unwrap();
    let books = Arc::new(Books::open(&folder.path().join("points.db"), &[secret]).unwrap());
    let router = crate::receiver::router(Arc::clone(&books));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let sale = app.open_sale(50).await;
    buy_and_cancel(&app, &sale, 0..3).await;
    eventually("all events are there", async || outer.count("order.closed") == 3).await;
    let forward = async |got: &Got, bytes: Bytes| {
        let mut request = app.client.post(&inner).body(bytes);
        for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            request = request.header(name, got.headers[name].clone());
        }
        request.send().await.unwrap().status().as_u16()
    };
    let heard = outer.taken();
    for got in &heard {
        let changed = String::from_utf8(got.bytes.to_vec()).unwrap().replacen("buyer", "BUYER", 1);
        if changed.as_bytes() != got.bytes {
            assert_eq!(forward(got, changed.into()).await, 401, "a changed byte is not believed");
        }
        for _ in 0..2 {
            assert_eq!(forward(got, got.bytes.clone()).await, 204);
        }
    }
    for number in 0..3 {
        let messages = books.messages(&format!("buyer-{number}")).unwrap();
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(messages[0].ends_with("is yours. Please pay it in time."), "{messages:?}");
    }
    let got = heard.last().unwrap();
    let sent_s: i64 = got.headers["webhook-timestamp"].to_str().unwrap().parse().unwrap();
    let outcome = |now_s| books.take(&got.headers, &got.bytes, now_s).unwrap();
    assert_eq!([outcome(sent_s + 300), outcome(sent_s + 301)], [Outcome::Repeat, Outcome::NotBelieved]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_delivery_says_whether_it_arrives_and_leaves_nothing() {
    let app = TestApp::with(&[INSIDE]).await;
    let receiver = Receiver::willing().await;
    let picky = json!({"url": receiver.url(), "types": ["order.paid"], "disabled": true});
    let hook = app.operate("POST", "/admin/v1/webhooks", Some(&picky), 201).await;
    let test = format!("{}/test", path(&hook));
    let tested = app.operate("POST", &test, None, 200).await;
    assert_eq!((&tested["delivered"], &tested["problem"]), (&json!(true), &Value::Null));
    let got = receiver.asked().remove(0);
    assert!(got.is_signed_with(hook["secret"].as_str().unwrap()));
    assert_eq!((got.id(), &got.event()["id"]), (tested["event_id"].as_str().unwrap(), &tested["event_id"]));
    assert_eq!(
        (&got.body["type"], &got.event()["data"]),
        (&json!("webhook.test"), &json!({"webhook_id": hook["id"]}))
    );
    receiver.becomes(|_| Reply::Status(500));
    let tested = app.operate("POST", &test, None, 200).await;
    assert_eq!(tested["delivered"], false);
    assert!(tested["problem"].as_str().unwrap().contains("500"), "{tested}");
    assert_eq!(receiver.asked().len(), 2, "sent once, whatever comes of it");
    let seen = look(&app, &hook).await;
    assert_eq!(
        (&seen["waiting"], &seen["parked"], &seen["last_problem"]),
        (&json!(0), &json!(0), &Value::Null)
    );
    let events = app.operate("GET", "/admin/v1/events", None, 200).await;
    assert_eq!(events["items"], json!([]), "it is no fact");
    app.operate("DELETE", &path(&hook), None, 204).await;
    app.operate("POST", &test, None, 404).await;
}

/// Nobody in between: as a shop would run it.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_receiver_stands_behind_a_real_server() {
    let app = TestApp::with(&[INSIDE]).await;
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hook = hook(&app, &format!("http://{}/hooks", listener.local_addr().unwrap())).await;
    let secret = hook["secret"].as_str().unwrap();
    let books = Arc::new(Books::open(&folder.path().join("points.db"), &[secret]).unwrap());
    let router = crate::receiver::router(Arc::clone(&books));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let sale = app.open_sale(50).await;
    buy_and_cancel(&app, &sale, 0..5).await;
    let messages = |number: u32| books.messages(&format!("buyer-{number}")).unwrap();
    eventually("everybody has a message", async || (0..5).all(|number| !messages(number).is_empty())).await;
    eventually("nothing waits", async || look(&app, &hook).await["behind_since"].is_null()).await;
    // The same again: receivers know repeats.
    let replay = json!({"since": "2020-01-01T00:00:00Z"});
    app.operate("POST", &format!("{}/replay", path(&hook)), Some(&replay), 200).await;
    let delivered = || app.app.metrics.deliveries.get(Delivery::Delivered);
    eventually("all came twice", async || delivered() >= 2 * (2 + 2 * 5)).await;
    for number in 0..5 {
        assert_eq!(messages(number).len(), 1);
    }
    assert_eq!(app.app.metrics.deliveries.get(Delivery::Failed), 0);
}

#[test]
fn the_example_receiver_gives_points_once_and_takes_them_back() {
    let folder = tempfile::tempdir().unwrap();
    let secret = doorbuster::outbox::signature::Secret::random();
    let books = Books::open(&folder.path().join("points.db"), &[&secret.reveal()]).unwrap();
    let deliver = |id: &str, kind: &str, reason: &str| {
        let facts =
            json!({"buyer": "ann", "total": {"amount": 149_900, "currency": "CNY"}, "reason": reason});
        let body = json!({"data": {"type": kind, "order_id": "o1", "data": facts}}).to_string();
        let mut headers = HeaderMap::new();
        let signature = doorbuster::outbox::signature::sign([&secret], id, 1_000, body.as_bytes());
        for (name, value) in
            [("webhook-id", id), ("webhook-timestamp", "1000"), ("webhook-signature", &signature)]
        {
            headers.insert(http::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
        }
        books.take(&headers, body.as_bytes(), 1_100).unwrap()
    };
    assert_eq!(deliver("e1", "order.paid", ""), Outcome::Taken);
    assert_eq!(deliver("e1", "order.paid", ""), Outcome::Repeat);
    assert_eq!(books.points("ann").unwrap(), 1_499);
    assert_eq!(deliver("e2", "order.refunded", ""), Outcome::Taken);
    assert_eq!(deliver("e3", "order.closed", "timeout"), Outcome::Taken);
    assert_eq!(deliver("e4", "sale.paused", ""), Outcome::Taken);
    assert_eq!((books.points("ann").unwrap(), books.messages("ann").unwrap().len()), (0, 3));
    // Late money.
    assert_eq!(deliver("e5", "order.closed", "timeout"), Outcome::Taken);
    assert_eq!(deliver("e6", "order.paid", ""), Outcome::Taken);
    assert_eq!(books.points("ann").unwrap(), 1_499);
    assert_eq!(deliver("e7", "order.refunded", ""), Outcome::Taken);
    assert_eq!(books.points("ann").unwrap(), 0);
    // Money that never paid an order changes no points, and its buyer is told.
    assert_eq!(deliver("e8", "payment.refund_due", "no_unit_left"), Outcome::Taken);
    assert_eq!(deliver("e9", "payment.refunded", "no_unit_left"), Outcome::Taken);
    let messages = books.messages("ann").unwrap().split_off(6);
    assert_eq!((messages.len(), books.points("ann").unwrap()), (2, 0), "{messages:?}");
    assert!(messages[0].contains("no_unit_left"), "{messages:?}");
}

/// The real binary, killed while it delivers.
pub mod heavy {
    use testkit::process::{Process, Program};

    use super::*;
    use crate::app::{ADMIN_KEY, AUTH_SECRET, PASS_SECRET, PATIENCE};

    /// Orders per life of the process, and its lives.
    const ORDERS: u32 = 30;
    const LIVES: u32 = 4;

    fn start(folder: &std::path::Path) -> (Process, String) {
        let process = Program::new(env!("CARGO_BIN_EXE_doorbuster"))
            .args(["serve", "--set", "listen=127.0.0.1:0", "--set", "limits.per_ip_per_s=0", "--set", INSIDE])
            .arg("--data-dir")
            .arg(folder)
            .env("DOORBUSTER_ADMIN_KEY", ADMIN_KEY)
            .env("DOORBUSTER_AUTH__HS256_SECRET", AUTH_SECRET)
            .env("DOORBUSTER_PASS__SECRET", PASS_SECRET)
            .start()
            .unwrap();
        let line = process.wait_for_line("listening on ", PATIENCE).unwrap();
        let url = line.trim_start_matches("listening on ").trim().to_owned();
        (process, url)
    }

    async fn post(url: String, token: &str, body: Value) -> Value {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let response = client.post(&url).bearer_auth(token).json(&body).send().await.unwrap();
        assert!(response.status().is_success(), "{url}: {}", response.status());
        response.json().await.unwrap_or_default()
    }

    fn token(buyer: &str) -> String {
        crate::app::token_of(buyer, &Clock::system())
    }

    /// An open sale; its offer.
    pub async fn open_sale(url: &str) -> String {
        let sale = post(format!("{url}/admin/v1/sales"), ADMIN_KEY, draft(1_000)).await;
        let publish = format!("{url}/admin/v1/sales/{}/publish", sale["id"].as_str().unwrap());
        post(publish, ADMIN_KEY, json!({})).await;
        sale["offers"][0]["id"].as_str().unwrap().to_owned()
    }

    pub async fn buy_and_cancel(url: &str, offer: &str, buyer: &str) {
        let token = token(buyer);
        let pass = post(format!("{url}/api/v1/offers/{offer}/pass"), &token, json!({})).await;
        let body = json!({"pass": pass["pass"], "quantity": 1});
        let order = post(format!("{url}/api/v1/offers/{offer}/orders"), &token, body).await;
        let id = order["id"].as_str().unwrap();
        // What is not recorded yet cannot be cancelled.
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let recorded = client.get(format!("{url}/api/v1/orders/{id}?wait=20")).bearer_auth(&token);
        recorded.send().await.unwrap().error_for_status().unwrap();
        post(format!("{url}/api/v1/orders/{id}/cancel"), &token, json!({})).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_killed_process_loses_no_event_and_keeps_the_order() {
        let folder = tempfile::tempdir().unwrap();
        let receiver = Receiver::willing().await;
        let (mut process, mut url) = start(folder.path());
        post(format!("{url}/admin/v1/webhooks"), ADMIN_KEY, json!({"url": receiver.url()})).await;
        let offer = open_sale(&url).await;
        for life in 0..LIVES {
            for number in 0..ORDERS {
                buy_and_cancel(&url, &offer, &format!("buyer-{life}-{number}")).await;
            }
            // In the middle of deliveries, so that some are sent and not written down.
            process.kill().unwrap();
            process.wait(Duration::from_secs(20)).unwrap();
            (process, url) = start(folder.path());
        }
        let orders = ORDERS * LIVES;
        eventually("all events are there", async || receiver.count("order.closed") == orders as usize).await;
        assert_in_order(&receiver, orders as usize);
        let (asked, taken) = (receiver.asked().len(), receiver.taken().len());
        println!("{asked} requests for {taken} events");
        assert_eq!(
            taken,
            3 + 2 * orders as usize,
            "those of the orders, and that the sale was made, shown and open"
        );
    }
}

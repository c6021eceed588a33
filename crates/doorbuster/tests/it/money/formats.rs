//! Stripe's, Alipay's and WeChat Pay's notifications, made by their own SDKs (`tests/vectors/payments/make.py`), through
//! the callback: each is answered as its provider must be, and money pays the order it names.

use doorbuster::clock::Clock;
use doorbuster::ledger::SqliteLedger;
use doorbuster::ledger::money::{NewPayment, PaymentStarted};
use http::{HeaderName, HeaderValue};
use rules::buyer::BuyerId;
use serde::Deserialize;
use serde_json::json;

use super::*;

#[derive(Deserialize)]
pub struct Vectors {
    pub now_ms: i64,
    pub payment_id: String,
    pub refund_id: String,
    shop: String,
    settings: serde_json::Map<String, Value>,
    notifications: Vec<Notification>,
    requests: Vec<Recorded>,
    answers: Vec<Recorded>,
}

/// An answer to one of our requests; `expect` says what is to be made of it, where it is not the usual one.
#[derive(Deserialize)]
struct Recorded {
    provider: String,
    verb: String,
    expect: Option<Value>,
    answer: Option<RecordedAnswer>,
}

#[derive(Deserialize)]
pub struct RecordedAnswer {
    pub status: u16,
    pub body: String,
}

impl Vectors {
    /// The usual answer to a verb, or the first of which this is expected.
    pub fn answer(&self, provider: &str, verb: &str, expect: Option<&str>) -> &RecordedAnswer {
        let all = if expect.is_some() { &self.answers } else { &self.requests };
        let fits = |one: &&Recorded| {
            let expected = one.expect.as_ref().and_then(Value::as_str);
            (one.provider.as_str(), one.verb.as_str()) == (provider, verb) && expected == expect
        };
        let found = all.iter().find(fits).and_then(|one| one.answer.as_ref());
        found.unwrap_or_else(|| panic!("no answer of {provider} to {verb} is recorded for {expect:?}"))
    }

    /// The key that WeChat Pay signs with.
    fn wechat_serial(&self) -> String {
        let mut all = self.notifications.iter();
        let paid = all.find(|it| it.provider == "wechat" && it.name == "a payment").unwrap();
        paid.headers()["wechatpay-serial"].to_str().unwrap().to_owned()
    }
}

#[derive(Deserialize)]
struct Notification {
    provider: String,
    name: String,
    headers: Vec<(String, String)>,
    body: String,
    expect: Value,
}

impl Notification {
    fn headers(&self) -> HeaderMap {
        let parsed = |(name, value): &(String, String)| {
            (HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap())
        };
        self.headers.iter().map(parsed).collect()
    }

    async fn send(&self, app: &TestApp) -> (u16, String) {
        let path = format!("/api/v1/payments/{}/callback", self.provider);
        let request = app.client.post(app.url(&path)).headers(self.headers()).body(self.body.clone());
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }
}

pub fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../../vectors/payments/vectors.json")).unwrap()
}

/// A server with all three providers, at the moment of the vectors.
async fn open(vectors: &Vectors) -> TestApp {
    open_with(vectors, &[]).await
}

pub async fn open_with(vectors: &Vectors, more: &[String]) -> TestApp {
    let text = |value: &Value| match value {
        Value::Array(all) => all.iter().map(|one| one.as_str().unwrap()).collect::<Vec<_>>().join(","),
        one => one.as_str().unwrap().to_owned(),
    };
    let mut overrides = vec!["public_url=https://sale.shop.example".to_owned()];
    for (provider, settings) in &vectors.settings {
        let settings = settings.as_object().unwrap().iter();
        overrides.extend(settings.map(|(key, value)| format!("payment.{provider}.{key}={}", text(value))));
    }
    let overrides: Vec<&str> = overrides.iter().chain(more).map(String::as_str).collect();
    let clock = Clock::manual(UnixMs(vectors.now_ms));
    let folder = tempfile::tempdir().unwrap();
    // The shop that the vectors' payments belong to.
    let shop = u128::from_str_radix(&vectors.shop, 16).unwrap().to_be_bytes();
    drop(SqliteLedger::open(&folder.path().join("doorbuster.db"), None, shop).unwrap());
    let app = TestApp::on(folder, clock, &overrides).await;
    assert_eq!(shop_of(&app), vectors.shop);
    app
}

/// A sale of five units that is open at the moment of the vectors.
pub async fn sale_of(app: &TestApp, vectors: &Vectors) -> TestSale {
    let now = UnixMs(vectors.now_ms);
    let draft = json!({
        "title": "1499 night", "opens_at": now.plus_s(1).plus_ms(-61_000), "closes_at": now.plus_s(3_600),
        "offers": [{"name": "Feitian 53", "price": {"amount": PRICE, "currency": "CNY"}, "stock": 5}],
    });
    app.publish(draft).await
}

/// An order, and a payment of it at this provider under the vectors' name. How it is started is another test's business.
async fn awaited<'a>(app: &'a TestApp, vectors: &Vectors, provider: &str) -> (TestBuyer<'a>, String) {
    let now = UnixMs(vectors.now_ms);
    let sale = sale_of(app, vectors).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let wanted = NewPayment {
        id: vectors.payment_id.parse().unwrap(),
        order: id.parse().unwrap(),
        buyer: BuyerId::parse("ann").unwrap(),
        provider: provider.to_owned(),
    };
    let started = app.app.ledger.start_payment(wanted, now).await.unwrap();
    assert!(matches!(started, PaymentStarted::New { .. }), "{started:?}");
    (ann, id)
}

/// What a provider must hear for what we make of its notification.
fn expected(notification: &Notification) -> (u16, &'static str) {
    let refused = notification.expect["refused"].as_str();
    let status = match refused {
        None => 200,
        Some("signature_invalid" | "notification_stale" | "unknown_certificate") => 401,
        Some("wrong_merchant") => 403,
        Some("malformed") => 400,
        Some(other) => panic!("{other}"),
    };
    match (notification.provider.as_str(), refused) {
        ("alipay", None) => (status, "success"),
        ("alipay", Some(_)) => (status, "failure"),
        (_, None) => (status, ""),
        ("wechat", Some(_)) => (status, "\"code\":\"FAIL\""),
        (_, Some(code)) => (status, code.to_owned().leak()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_notification_of_the_sdks_is_answered_as_it_should_be() {
    let vectors = vectors();
    let app = open(&vectors).await;
    for notification in &vectors.notifications {
        let (status, body) = notification.send(&app).await;
        let (wanted, text) = expected(notification);
        let Notification { provider, name, .. } = notification;
        assert_eq!(status, wanted, "{provider}: {name}: {body}");
        let fits = if status == 200 { body == text } else { body.contains(text) };
        assert!(fits, "{provider}: {name}: {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_of_each_provider_pays_its_order_once() {
    let vectors = vectors();
    for provider in ["stripe", "alipay", "wechat"] {
        let app = open(&vectors).await;
        let (ann, id) = awaited(&app, &vectors, provider).await;
        let find = |name: &str| {
            let mut all = vectors.notifications.iter();
            all.find(|one| one.provider == provider && one.name == name).unwrap()
        };
        for _ in 0..3 {
            assert_eq!(find("a payment").send(&app).await.0, 200);
        }
        let paid = becomes(&ann, &id, "paid").await;
        assert_eq!(paid["payment_id"], json!(vectors.payment_id), "{provider}");
        assert_eq!(states(&app, &id).await, [plain("applied")], "{provider}");
        let forged = vectors
            .notifications
            .iter()
            .filter(|one| one.provider == provider && one.expect["refused"].is_string());
        for notification in forged {
            assert!(notification.send(&app).await.0 >= 400, "{provider}: {}", notification.name);
        }
        assert_eq!(states(&app, &id).await, [plain("applied")], "{provider}");
    }
}

/// An answer as WeChat Pay signs it.
pub fn signed_by_wechat(vectors: &Vectors, status: u16, body: String, at: UnixMs) -> Response {
    let key = include_str!("../../vectors/payments/keys/test-only-wechat-platform-current.pem");
    let time = (at.0 / 1_000).to_string();
    let headers = [
        ("wechatpay-signature", rsa(key, &format!("{time}\nn\n{body}\n"))),
        ("wechatpay-timestamp", time),
        ("wechatpay-nonce", "n".to_owned()),
        ("wechatpay-serial", vectors.wechat_serial()),
    ];
    (StatusCode::from_u16(status).unwrap(), headers, body).into_response()
}

/// An answer as Alipay signs it: the content of the node that the answer is in.
pub fn signed_by_alipay(body: &str) -> Response {
    let key = include_str!("../../vectors/payments/keys/test-only-alipay-platform.pem");
    let parts: HashMap<String, &serde_json::value::RawValue> = serde_json::from_str(body).unwrap();
    let (node, content) = parts.iter().find(|(name, _)| *name != "sign").unwrap();
    let signature = rsa(key, content.get());
    format!("{{\"{node}\":{content},\"sign\":\"{signature}\"}}").into_response()
}

/// An RSA-SHA256 signature in base64.
fn rsa(pem: &str, message: &str) -> String {
    use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    let der: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let key = RsaKeyPair::from_pkcs8(&STANDARD.decode(der).unwrap()).unwrap();
    let mut signature = vec![0; key.public_modulus_len()];
    let random = aws_lc_rs::rand::SystemRandom::new();
    key.sign(&RSA_PKCS1_SHA256, &random, message.as_bytes(), &mut signature).unwrap();
    STANDARD.encode(signature)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_that_wechat_closed_is_asked_for_again_under_a_new_number() {
    let vectors = Arc::new(vectors());
    let numbers: Arc<Mutex<Vec<String>>> = Arc::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("payment.wechat.url=http://{}", listener.local_addr().unwrap());
    let refunds = {
        let (vectors, numbers) = (Arc::clone(&vectors), Arc::clone(&numbers));
        move |axum::Json(asked): axum::Json<Value>| {
            let mut numbers = numbers.lock();
            numbers.push(asked["out_refund_no"].as_str().unwrap().to_owned());
            // It never says anything else of a number that it has closed.
            let state = if numbers.last() == numbers.first() { "CLOSED" } else { "SUCCESS" };
            let answer = json!({"refund_id": "503", "status": state}).to_string();
            let answer = signed_by_wechat(&vectors, 200, answer, UnixMs(vectors.now_ms));
            async move { answer }
        }
    };
    let router = axum::Router::new().route("/v3/refund/domestic/refunds", axum::routing::post(refunds));
    tokio::spawn(async move { axum::serve(listener, router).await });

    let app = open_with(&vectors, &[url]).await;
    let (ann, id) = awaited(&app, &vectors, "wechat").await;
    let paid = vectors.notifications.iter().find(|it| it.provider == "wechat" && it.name == "a payment");
    assert_eq!(paid.unwrap().send(&app).await.0, 200);
    becomes(&ann, &id, "paid").await;
    let refund = format!("/admin/v1/orders/{id}/refund");
    app.operate("POST", &refund, None, 200).await;
    becomes(&ann, &id, "refund_failed").await;
    app.operate("POST", &refund, None, 200).await;
    becomes(&ann, &id, "refunded").await;
    let key = vectors.payment_id.clone();
    assert_eq!(*numbers.lock(), [key.clone(), format!("{key}-1")]);
}

//! The providers against notifications, requests and answers made by their own SDKs (`tests/vectors/payments/make.py`
//! says how), and against what forgers, old copies and broken senders would bring.

use std::sync::LazyLock;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};
use proptest::prelude::*;
use rules::money::Money;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::keys::VerifyingKey;
use super::*;

#[derive(Deserialize)]
struct Vectors {
    now_ms: i64,
    payment_id: String,
    refund_id: String,
    shop: String,
    settings: Value,
    alipay_app_public_key: String,
    short_public_key: String,
    notifications: Vec<Notification>,
    requests: Vec<Recorded>,
    answers: Vec<Answered>,
}

#[derive(Debug, Deserialize)]
struct Notification {
    provider: String,
    name: String,
    headers: Vec<(String, String)>,
    body: String,
    sdk: Verdict,
    stricter: Option<String>,
    expect: Value,
}

#[derive(Debug, Deserialize)]
struct Verdict {
    accepts: bool,
}

#[derive(Deserialize)]
struct Recorded {
    provider: String,
    verb: String,
    method: String,
    url: String,
    headers: std::collections::BTreeMap<String, String>,
    body: String,
    answer: Option<RecordedAnswer>,
}

#[derive(Deserialize)]
struct Answered {
    provider: String,
    verb: String,
    expect: String,
    answer: RecordedAnswer,
}

#[derive(Deserialize)]
struct RecordedAnswer {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

static VECTORS: LazyLock<Vectors> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../../tests/vectors/payments/vectors.json")).unwrap()
});

static PROVIDERS: LazyLock<Providers> = LazyLock::new(|| Providers::new(&settings(), &shop()).unwrap());

fn shop() -> [u8; 16] {
    u128::from_str_radix(&VECTORS.shop, 16).unwrap().to_be_bytes()
}

fn settings() -> PaymentSettings {
    let mut settings = VECTORS.settings.clone();
    settings["sandbox"] = json!(false);
    settings["return_url"] = json!("");
    serde_json::from_value(settings).unwrap()
}

fn now() -> UnixMs {
    UnixMs(VECTORS.now_ms)
}

fn named(name: &str) -> &'static Provider {
    let name = ProviderName::ALL.into_iter().find(|it| it.as_str() == name).unwrap();
    PROVIDERS.get(name).unwrap()
}

fn headers(of: &[(String, String)]) -> HeaderMap {
    let parsed = |(name, value): &(String, String)| {
        (HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap())
    };
    of.iter().map(parsed).collect()
}

impl Notification {
    fn find(provider: &str, name: &str) -> &'static Self {
        let mut found = VECTORS.notifications.iter().filter(|it| it.provider == provider && it.name == name);
        found.next().unwrap()
    }

    fn verify(&self) -> Result<Notice, Refusal> {
        self.verify_with(&headers(&self.headers), self.body.as_bytes())
    }

    fn verify_with(&self, headers: &HeaderMap, body: &[u8]) -> Result<Notice, Refusal> {
        named(&self.provider).verify(headers, body, now())
    }
}

/// A notice in the form of the vectors.
fn told(notice: &Notice) -> Value {
    let refund = |refund: &Refund| {
        let mut told = json!({
            "capture_id": refund.capture_id,
            "payment_id": refund.payment_id,
            "refund_id": refund.refund_id,
        });
        match refund.amount {
            RefundAmount::This(amount) => told["this"] = json!(amount),
            RefundAmount::SoFar(amount) => told["so_far"] = json!(amount),
        }
        told
    };
    let mut all = json!({"event_id": notice.event_id});
    match &notice.what {
        What::Captured(capture) => {
            all["captured"] = json!({
                "capture_id": capture.capture_id,
                "payment_id": capture.payment_id,
                "amount": capture.amount,
            });
        }
        What::Refunded(of) => all["refunded"] = refund(of),
        What::RefundFailed { refund: of, reason, is_final } => {
            assert!(!reason.is_empty());
            all["refund_failed"] = refund(of);
            all["refund_failed"]["is_final"] = json!(is_final);
        }
        What::Other { kind } => all["other"] = json!(kind),
    }
    all
}

fn judged(outcome: &Result<Notice, Refusal>) -> Value {
    match outcome {
        Ok(notice) => told(notice),
        Err(refusal) => json!({"refused": refusal.code.as_str()}),
    }
}

#[test]
fn every_notification_is_judged_as_it_should_be() {
    for notification in &VECTORS.notifications {
        let outcome = notification.verify();
        let Notification { provider, name, expect, .. } = notification;
        assert_eq!(judged(&outcome), *expect, "{provider}: {name}: {outcome:?}");
        assert!(outcome.is_err() || outcome.unwrap().provider.as_str() == provider);
    }
}

#[test]
fn nothing_is_accepted_that_the_providers_own_sdk_refuses() {
    let (mut both, mut stricter) = (0, 0);
    for notification in &VECTORS.notifications {
        let ours = notification.verify().is_ok();
        assert!(!ours || notification.sdk.accepts, "{}: {}", notification.provider, notification.name);
        assert_eq!(
            notification.stricter.is_some(),
            notification.sdk.accepts && !ours,
            "{}",
            notification.name
        );
        both += usize::from(ours);
        stricter += usize::from(notification.stricter.is_some());
    }
    assert_eq!((both, stricter), (48, 48));
}

#[test]
fn the_corpus_holds_every_refusal_of_every_provider() {
    for (provider, code) in [
        ("stripe", "signature_invalid"),
        ("stripe", "notification_stale"),
        ("stripe", "wrong_merchant"),
        ("stripe", "malformed"),
        ("alipay", "signature_invalid"),
        ("alipay", "notification_stale"),
        ("alipay", "wrong_merchant"),
        ("alipay", "malformed"),
        ("wechat", "signature_invalid"),
        ("wechat", "notification_stale"),
        ("wechat", "wrong_merchant"),
        ("wechat", "unknown_certificate"),
        ("wechat", "malformed"),
    ] {
        let expected = |it: &&Notification| it.provider == provider && it.expect["refused"] == code;
        assert!(VECTORS.notifications.iter().any(|it| expected(&it)), "{provider}: {code}");
    }
}

#[test]
fn the_same_notification_is_the_same_notice_however_often_it_comes() {
    for name in ["stripe", "alipay", "wechat"] {
        let paid = Notification::find(name, "a payment");
        assert_eq!(paid.verify(), paid.verify());
    }
}

#[test]
fn a_good_notification_grows_old() {
    let minutes = |n: i64| now().plus_ms(n * 60_000);
    for (name, last, ahead) in [("stripe", 5, -5), ("wechat", 5, -5), ("alipay", 47 * 60, -4)] {
        let paid = Notification::find(name, "a payment");
        let at =
            |now| named(name).verify(&headers(&paid.headers), paid.body.as_bytes(), now).map_err(|e| e.code);
        assert!(at(minutes(last)).is_ok() && at(minutes(ahead)).is_ok(), "{name}");
        assert_eq!(at(minutes(last + 61)), Err(RefusalCode::Stale), "{name}");
        assert_eq!(at(minutes(ahead - 2)), Err(RefusalCode::Stale), "{name}");
        assert_eq!(at(UnixMs(i64::MIN)), Err(RefusalCode::Stale), "{name}");
        assert_eq!(at(UnixMs(i64::MAX)), Err(RefusalCode::Stale), "{name}");
    }
}

#[test]
fn a_signature_header_that_occurs_twice_is_refused() {
    for name in ["stripe", "wechat"] {
        let paid = Notification::find(name, "a payment");
        for (doubled, value) in &paid.headers {
            let mut twice = headers(&paid.headers);
            twice.append(HeaderName::try_from(doubled).unwrap(), HeaderValue::try_from(value).unwrap());
            let refusal = paid.verify_with(&twice, paid.body.as_bytes()).unwrap_err();
            assert_eq!(refusal.code, RefusalCode::Malformed, "{doubled}");
        }
    }
}

#[test]
fn a_signature_header_beyond_ascii_is_refused() {
    for name in ["stripe", "wechat"] {
        let paid = Notification::find(name, "a payment");
        for (strange, _) in &paid.headers {
            let mut changed = headers(&paid.headers);
            let value = HeaderValue::from_bytes(b"\xff\xfe").unwrap();
            changed.insert(HeaderName::try_from(strange).unwrap(), value);
            assert_eq!(
                paid.verify_with(&changed, paid.body.as_bytes()).unwrap_err().code,
                RefusalCode::Malformed
            );
        }
    }
}

#[test]
fn the_kind_of_signature_may_be_missing_but_not_another() {
    let paid = Notification::find("wechat", "a payment");
    let mut without = headers(&paid.headers);
    without.remove("wechatpay-signature-type").unwrap();
    assert_eq!(paid.verify_with(&without, paid.body.as_bytes()), paid.verify());
}

#[test]
fn more_signatures_than_stripe_would_send_are_refused() {
    let paid = Notification::find("stripe", "a payment");
    let header = |n: usize| {
        let value = format!("{}{}", paid.headers[0].1, ",v1=00".repeat(n));
        HeaderMap::from_iter([(HeaderName::from_static("stripe-signature"), value.parse().unwrap())])
    };
    assert!(paid.verify_with(&header(15), paid.body.as_bytes()).is_ok());
    assert_eq!(paid.verify_with(&header(16), paid.body.as_bytes()).unwrap_err().code, RefusalCode::Malformed);
}

#[test]
fn a_huge_notification_is_refused_before_anything_is_computed() {
    for name in ["stripe", "alipay", "wechat"] {
        let body = vec![b'a'; NOTIFICATION_BYTES_MAX + 1];
        let refusal = named(name).verify(&HeaderMap::new(), &body, now()).unwrap_err();
        assert_eq!((refusal.code, refusal.code.status()), (RefusalCode::TooLarge, 413));
    }
}

#[test]
fn an_empty_notification_is_refused() {
    for name in ["stripe", "alipay", "wechat"] {
        let paid = Notification::find(name, "a payment");
        assert!(paid.verify_with(&headers(&paid.headers), b"").is_err());
        assert_eq!(paid.verify_with(&HeaderMap::new(), b"").unwrap_err().code, RefusalCode::Malformed);
    }
}

#[test]
fn what_is_not_utf8_is_refused_also_inside_a_form() {
    let alipay = named("alipay");
    let code = |body: &[u8]| alipay.verify(&HeaderMap::new(), body, now()).unwrap_err().code;
    let good = &Notification::find("alipay", "a payment").body;
    assert_eq!(code(&[good.as_bytes(), b"&x=\xff"].concat()), RefusalCode::Malformed);
    assert_eq!(code(format!("{good}&x=%ff").as_bytes()), RefusalCode::Malformed);
    assert_eq!(code(format!("{good}&%ff=x").as_bytes()), RefusalCode::Malformed);
    for (name, body) in [("stripe", b"\xff{}"), ("wechat", b"\xff{}")] {
        let paid = Notification::find(name, "a payment");
        assert_eq!(
            paid.verify_with(&headers(&paid.headers), body).unwrap_err().code,
            RefusalCode::SignatureInvalid
        );
    }
}

#[test]
fn a_parameter_that_could_be_read_in_two_ways_is_refused() {
    let good = &Notification::find("alipay", "a payment").body;
    for more in ["total_amount=0.01", "total%5Famount=0.01", "sign=x", "app_id=1", "nonsense"] {
        for body in [format!("{good}&{more}"), format!("{more}&{good}")] {
            let refusal = named("alipay").verify(&HeaderMap::new(), body.as_bytes(), now()).unwrap_err();
            assert_eq!(refusal.code, RefusalCode::Malformed, "{more}");
        }
    }
}

/// Which notifications the properties start from: one of each kind that moves money.
fn good() -> impl Strategy<Value = &'static Notification> {
    let moves_money = |it: &&Notification| it.expect.get("captured").or(it.expect.get("refunded")).is_some();
    let all: Vec<&'static Notification> = VECTORS.notifications.iter().filter(moves_money).collect();
    prop::sample::select(all)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// A form can be spelled in several ways (`%2F`, `%2f`); it may then only mean the same.
    #[test]
    fn a_changed_byte_of_the_body_is_refused(of in good(), at in any::<prop::sample::Index>(), mask in 1..=255_u8) {
        let mut body = of.body.clone().into_bytes();
        let at = at.index(body.len());
        body[at] ^= mask;
        match of.verify_with(&headers(&of.headers), &body) {
            Err(_) => {}
            Ok(notice) => {
                prop_assert_eq!(&of.provider, "alipay");
                let decoded = |body: &[u8]| -> Vec<(String, String)> { form_urlencoded::parse(body).into_owned().collect() };
                prop_assert_eq!(decoded(&body), decoded(of.body.as_bytes()));
                prop_assert_eq!(told(&notice), of.expect.clone());
            }
        }
    }

    #[test]
    fn a_changed_byte_of_the_signature_is_refused(of in good(), at in any::<prop::sample::Index>(), mask in 1..=255_u8) {
        let (name, mut value) = match of.provider.as_str() {
            "stripe" if of.headers[0].1.matches("v1=").count() == 1 && !of.headers[0].1.contains("v0=") => ("stripe-signature", of.headers[0].1.clone().into_bytes()),
            "wechat" => ("wechatpay-signature", of.headers[2].1.clone().into_bytes()),
            _ => return Ok(()),
        };
        let at = at.index(value.len());
        value[at] ^= mask;
        // What is no header cannot arrive.
        let Ok(value) = HeaderValue::from_bytes(&value) else { return Ok(()) };
        let mut changed = headers(&of.headers);
        changed.insert(name, value);
        prop_assert!(of.verify_with(&changed, of.body.as_bytes()).is_err());
    }

    #[test]
    fn a_changed_time_or_nonce_is_refused(which in 0..2_usize, at in any::<prop::sample::Index>(), mask in 1..=127_u8) {
        let of = Notification::find("wechat", "a payment");
        let mut value = of.headers[which].1.clone().into_bytes();
        let at = at.index(value.len());
        value[at] ^= mask;
        let Ok(value) = HeaderValue::from_bytes(&value) else { return Ok(()) };
        let mut changed = headers(&of.headers);
        changed.insert(HeaderName::try_from(&of.headers[which].0).unwrap(), value);
        prop_assert!(of.verify_with(&changed, of.body.as_bytes()).is_err());
    }

    #[test]
    fn what_is_cut_off_is_refused(of in good(), at in any::<prop::sample::Index>()) {
        let body = &of.body.as_bytes()[..at.index(of.body.len())];
        prop_assert!(of.verify_with(&headers(&of.headers), body).is_err());
    }

    #[test]
    fn one_notifications_signature_fits_no_other(a in good(), b in good()) {
        let may_fit = a.body == b.body || a.provider == "alipay";
        prop_assert!(may_fit || a.verify_with(&headers(&a.headers), b.body.as_bytes()).is_err());
    }

    #[test]
    fn noise_is_refused_and_upsets_nothing(name in prop::sample::select(vec!["stripe", "alipay", "wechat"]), header in "[ -~]{0,80}", body in prop::collection::vec(any::<u8>(), 0..300)) {
        let of = Notification::find(name, "a payment");
        let mut changed = headers(&of.headers);
        for value in changed.values_mut() {
            *value = HeaderValue::try_from(&header).unwrap();
        }
        prop_assert!(of.verify_with(&changed, &body).is_err());
        prop_assert!(of.verify_with(&changed, of.body.as_bytes()).is_err() || name == "alipay");
    }
}

#[test]
fn each_provider_hears_what_it_expects() {
    let refusal = Notification::find("stripe", "a stranger's secret").verify().unwrap_err();
    let reply = |name: ProviderName, outcome| {
        let Reply { status, body, .. } = name.reply(outcome);
        (status, body)
    };
    let sentence = refusal.sentence;
    let (stripe, alipay, wechat) = (ProviderName::Stripe, ProviderName::Alipay, ProviderName::Wechat);
    assert_eq!(reply(stripe, Outcome::Recorded), (200, String::new()));
    assert_eq!(reply(stripe, Outcome::Refused(&refusal)), (401, sentence.to_owned()));
    assert_eq!(reply(alipay, Outcome::Recorded), (200, "success".to_owned()));
    assert_eq!(reply(alipay, Outcome::Refused(&refusal)), (401, "failure".to_owned()));
    assert_eq!(reply(alipay, Outcome::NotDurable), (503, "failure".to_owned()));
    assert_eq!(reply(wechat, Outcome::Recorded), (200, String::new()));
    let (status, body) = reply(wechat, Outcome::Refused(&refusal));
    assert_eq!(
        (status, serde_json::from_str::<Value>(&body).unwrap()),
        (401, json!({"code": "FAIL", "message": sentence}))
    );
    assert_eq!(reply(wechat, Outcome::NotDurable).0, 503);
}

#[test]
fn every_refusal_has_its_own_code_and_a_status_that_makes_the_provider_try_again() {
    use RefusalCode::*;
    let all = [SignatureInvalid, Stale, WrongMerchant, UnknownCertificate, Malformed, TooLarge];
    let codes: std::collections::BTreeSet<&str> = all.iter().map(|code| code.as_str()).collect();
    assert_eq!(codes.len(), all.len());
    assert!(all.iter().all(|code| (400..500).contains(&code.status())));
}

fn problems(change: impl FnOnce(&mut PaymentSettings)) -> Vec<String> {
    let mut settings = settings();
    change(&mut settings);
    Providers::new(&settings, &NO_SHOP)
        .err()
        .into_iter()
        .flatten()
        .map(|problem| problem.to_string())
        .collect()
}

#[test]
fn a_provider_of_which_nothing_is_set_is_off() {
    let none = crate::config::Settings::load(None, std::iter::empty(), &[]).unwrap().payment;
    assert_eq!(Providers::new(&none, &NO_SHOP).unwrap().names().count(), 0);
    assert_eq!(PROVIDERS.names().collect::<Vec<_>>(), ProviderName::ALL);
}

#[test]
fn each_wrong_setting_is_named() {
    let key = |text: &str| Some(secrecy::SecretString::from(text));
    let short = include_str!("../../../tests/vectors/payments/keys/test-only-too-short.pem");
    type Change = Box<dyn FnOnce(&mut PaymentSettings)>;
    let cases: Vec<(&str, Change)> = vec![
        ("payment.stripe.secret_key", Box::new(|it| it.stripe.secret_key = None)),
        ("payment.stripe.secret_key", Box::new(move |it| it.stripe.secret_key = key("pk_live_published"))),
        ("payment.stripe.webhook_secrets", Box::new(|it| it.stripe.webhook_secrets.clear())),
        (
            "payment.stripe.webhook_secrets",
            Box::new(|it| it.stripe.webhook_secrets = vec!["whsec_short".into()]),
        ),
        (
            "payment.stripe.webhook_secrets",
            Box::new(|it| it.stripe.webhook_secrets = vec!["whsec_0123456789012345678901234567".into(); 9]),
        ),
        ("payment.stripe.url", Box::new(|it| it.stripe.url = "http://api.stripe.com".into())),
        ("payment.alipay.app_id", Box::new(|it| it.alipay.app_id = None)),
        ("payment.alipay.seller_id", Box::new(|it| it.alipay.seller_id = Some("me@shop.example".into()))),
        ("payment.alipay.private_key", Box::new(|it| it.alipay.private_key = None)),
        ("payment.alipay.private_key", Box::new(move |it| it.alipay.private_key = key("bm9uc2Vuc2U="))),
        ("payment.alipay.private_key", Box::new(move |it| it.alipay.private_key = key(short))),
        (
            "payment.alipay.public_key",
            Box::new(|it| it.alipay.public_key = Some(VECTORS.short_public_key.clone())),
        ),
        (
            "payment.alipay.public_key",
            Box::new(|it| it.alipay.public_key = Some("-----BEGIN PUBLIC KEY-----".into())),
        ),
        ("payment.alipay.url", Box::new(|it| it.alipay.url = "openapi.alipay.com".into())),
        ("payment.wechat.mchid", Box::new(|it| it.wechat.mchid = Some("wx1".into()))),
        ("payment.wechat.appid", Box::new(|it| it.wechat.appid = None)),
        (
            "payment.wechat.certificate_serial",
            Box::new(|it| it.wechat.certificate_serial = Some("serial".into())),
        ),
        ("payment.wechat.private_key", Box::new(move |it| it.wechat.private_key = key("none"))),
        (
            "payment.wechat.api_v3_key",
            Box::new(move |it| it.wechat.api_v3_key = key("31-characters-are-not-enough-01")),
        ),
        ("payment.wechat.platform_keys", Box::new(|it| it.wechat.platform_keys.clear())),
        (
            "payment.wechat.platform_keys",
            Box::new(|it| it.wechat.platform_keys.push("PUB_KEY_ID_1:nonsense".into())),
        ),
        ("payment.wechat.platform_keys", Box::new(|it| it.wechat.platform_keys.push("nonsense".into()))),
        ("payment.wechat.url", Box::new(|it| it.wechat.url = "http://10.0.0.1".into())),
    ];
    for (setting, change) in cases {
        let said = problems(change);
        assert_eq!(said.len(), 1, "{setting}: {said:?}");
        assert!(said[0].starts_with(&format!("{setting}: ")), "{said:?}");
    }
}

#[test]
fn all_that_is_wrong_is_said_at_once_and_no_secret_with_it() {
    let said = problems(|it| {
        it.stripe.secret_key = Some("planted".into());
        it.alipay.private_key = Some("planted".into());
        it.wechat.api_v3_key = Some("planted".into());
        it.wechat.url = "planted".into();
    });
    assert_eq!(said.len(), 4, "{said:?}");
    assert!(!said.join(" ").contains("planted"));
}

#[test]
fn keys_are_read_in_every_form_the_providers_hand_out() {
    let pkcs8 = include_str!("../../../tests/vectors/payments/keys/test-only-alipay-app.pem");
    let bare: String = pkcs8.lines().filter(|line| !line.starts_with("-----")).collect();
    let pkcs1 = VECTORS.settings["alipay"]["private_key"].as_str().unwrap();
    let framed = format!("-----BEGIN RSA PRIVATE KEY-----\n{pkcs1}\n-----END RSA PRIVATE KEY-----");
    let public = VerifyingKey::read(&VECTORS.alipay_app_public_key).unwrap();
    for text in [pkcs8, &bare, pkcs1, &framed] {
        let signature = keys::SigningKey::read(text).unwrap().sign(b"message").unwrap();
        assert!(public.verifies(b"message", &signature) && !public.verifies(b"massage", &signature));
    }
    assert!(keys::SigningKey::read(&VECTORS.alipay_app_public_key).is_none());
    assert!(VerifyingKey::read(pkcs8).is_none());
}

#[test]
fn nothing_shows_a_key() {
    let secrets = ["test_only", "test-only", "MII"];
    let mut shown: Vec<String> = vec![format!("{:?}", &*PROVIDERS)];
    for provider in ["stripe", "alipay", "wechat"] {
        shown.push(format!("{:?}", named(provider).ask(&payment_ref(), &stamp()).unwrap().headers));
    }
    for shown in shown {
        assert!(secrets.iter().all(|secret| !shown.contains(secret)), "{shown}");
    }
}

fn stamp() -> Stamp {
    Stamp { now: now(), nonce: "0123456789ABCDEF0123456789ABCDEF".to_owned() }
}

fn cny(amount: i64) -> Money {
    Money { amount, currency: "CNY".parse().unwrap() }
}

fn payment(provider: &str, device: Device) -> StartPayment {
    StartPayment {
        payment_id: VECTORS.payment_id.clone(),
        amount: cny(149_900),
        title: "Feitian 53 (飞天)".to_owned(),
        pay_by: now().plus_s(900),
        notify_url: format!("https://shop.example/api/v1/payments/{provider}/callback"),
        return_url: "https://shop.example/orders/01jdz0order000000000000001".to_owned(),
        device,
    }
}

fn payment_ref() -> PaymentRef {
    PaymentRef { payment_id: VECTORS.payment_id.clone(), provider_ref: Some("cs_test_only_1".to_owned()) }
}

fn capture_id(provider: &str) -> String {
    let captured = &Notification::find(provider, "a payment").expect["captured"];
    captured["capture_id"].as_str().unwrap().to_owned()
}

fn refund(provider: &str) -> RefundPayment {
    RefundPayment {
        payment_id: VECTORS.payment_id.clone(),
        capture_id: capture_id(provider),
        refund_id: VECTORS.refund_id.clone(),
        amount: cny(if provider == "stripe" { 149_900 } else { 50_000 }),
        captured: cny(149_900),
        reason: "sold out".to_owned(),
        notify_url: format!("https://shop.example/api/v1/payments/{provider}/callback"),
    }
}

fn refund_ref(provider: &str) -> RefundRef {
    RefundRef {
        payment_id: VECTORS.payment_id.clone(),
        capture_id: capture_id(provider),
        refund_id: VECTORS.refund_id.clone(),
        provider_ref: Some("re_3QTestOnly0000000000001".to_owned()),
    }
}

/// Our request for the same verb; an address to go to counts as a GET.
fn ours(recorded: &Recorded) -> Request {
    let (provider, name) = (named(&recorded.provider), recorded.provider.as_str());
    let phone = Device::Phone { address: "203.0.113.7".parse().unwrap() };
    let start = |device| match provider.start(&payment(name, device), &stamp()).unwrap() {
        Start::Send(request) => request,
        Start::Ready(Started { pay: PayAt::Url(url), .. }) => {
            Request { method: Method::GET, url, headers: HeaderMap::new(), body: bytes::Bytes::new() }
        }
        Start::Ready(other) => panic!("{other:?}"),
    };
    match recorded.verb.as_str() {
        "start" => start(Device::Desktop),
        "start_phone" => start(phone),
        "close" => provider.close(&payment_ref(), &stamp()).unwrap(),
        "ask" => provider.ask(&payment_ref(), &stamp()).unwrap(),
        "refund" => provider.refund(&refund(name), &stamp()).unwrap(),
        "ask_refund" => provider.ask_refund(&refund_ref(name), &stamp()).unwrap(),
        other => panic!("{other}"),
    }
}

fn requests_of(provider: &str) -> Vec<&'static Recorded> {
    let all: Vec<_> = VECTORS.requests.iter().filter(|it| it.provider == provider).collect();
    assert!(all.len() >= 5);
    all
}

fn form(text: &[u8]) -> std::collections::BTreeMap<String, String> {
    form_urlencoded::parse(text).into_owned().collect()
}

#[test]
fn requests_to_stripe_are_those_of_its_sdk() {
    for recorded in requests_of("stripe") {
        let ours = ours(recorded);
        assert_eq!((ours.method.as_str(), &ours.url), (recorded.method.as_str(), &recorded.url));
        assert_eq!(form(&ours.body), form(recorded.body.as_bytes()), "{}", recorded.verb);
        for name in ["authorization", "idempotency-key", "stripe-version"] {
            let value = ours.headers.get(name).map(|value| value.to_str().unwrap());
            assert_eq!(value, recorded.headers.get(name).map(String::as_str), "{}: {name}", recorded.verb);
        }
        let typed = ours.headers.get("content-type").map(|value| value.to_str().unwrap());
        assert_eq!(typed, recorded.headers.get("content-type").map(String::as_str));
    }
}

#[test]
fn requests_to_alipay_are_those_of_its_sdk() {
    let public = VerifyingKey::read(&VECTORS.alipay_app_public_key).unwrap();
    for recorded in requests_of("alipay") {
        let ours = ours(recorded);
        assert_eq!(ours.method.as_str(), recorded.method);
        let all = |url: &str, body: &[u8]| {
            let (gateway, query) = url.split_once('?').unwrap();
            let mut parameters = form(query.as_bytes());
            parameters.extend(form(body));
            let sign = parameters.remove("sign").unwrap();
            let text: Vec<String> =
                parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
            assert!(public.verifies(text.join("&").as_bytes(), &sign), "{}", recorded.verb);
            let content = parameters.remove("biz_content").unwrap();
            (gateway.to_owned(), parameters, serde_json::from_str::<Value>(&content).unwrap())
        };
        let theirs = all(&recorded.url, recorded.body.as_bytes());
        assert_eq!(all(&ours.url, &ours.body), theirs, "{}", recorded.verb);
    }
}

#[test]
fn requests_to_wechat_are_those_of_its_sdk() {
    let Provider::Wechat(wechat) = named("wechat") else { panic!() };
    for recorded in requests_of("wechat") {
        let ours = ours(recorded);
        assert_eq!((ours.method.as_str(), &ours.url), (recorded.method.as_str(), &recorded.url));
        let content = |body: &[u8]| serde_json::from_slice::<Value>(body).ok();
        assert_eq!(content(&ours.body), content(recorded.body.as_bytes()), "{}", recorded.verb);
        let path = recorded.url.strip_prefix("https://api.mch.weixin.qq.com").unwrap();
        let signed = wechat.authorization(&recorded.method, path, &recorded.body, &stamp()).unwrap();
        assert_eq!(signed, recorded.headers["authorization"], "{}", recorded.verb);
        let own =
            wechat.authorization(&recorded.method, path, std::str::from_utf8(&ours.body).unwrap(), &stamp());
        assert_eq!(ours.headers["authorization"].to_str().unwrap(), own.unwrap());
        assert_eq!(ours.headers["wechatpay-serial"].to_str().unwrap(), recorded.headers["wechatpay-serial"]);
    }
}

/// Whatever an answer was read as, in one type.
#[derive(Debug, PartialEq)]
enum Read {
    Started(Started),
    Closing(Closing),
    Asked(Asked),
    Refunding(Refunding),
}

fn read(provider: &str, verb: &str, answer: &Answer) -> Result<Read, CallError> {
    let provider = named(provider);
    Ok(match verb {
        "start" | "start_phone" => Read::Started(provider.read_start(answer, now())?),
        "close" => Read::Closing(provider.read_close(answer, now())?),
        "ask" => Read::Asked(provider.read_ask(answer, now())?),
        "refund" => Read::Refunding(provider.read_refund(answer, now())?),
        "ask_refund" => Read::Refunding(provider.read_ask_refund(answer, now())?),
        other => panic!("{other}"),
    })
}

impl RecordedAnswer {
    fn whole(&self) -> Answer {
        Answer { status: self.status, headers: headers(&self.headers), body: self.body.clone().into() }
    }
}

#[test]
fn answers_are_read_as_the_providers_mean_them() {
    let started = |pay, provider_ref: Option<&str>| {
        Read::Started(Started { pay, provider_ref: provider_ref.map(str::to_owned) })
    };
    let paid = |provider: &str| {
        Read::Asked(Asked::Paid(Capture {
            capture_id: capture_id(provider),
            payment_id: VECTORS.payment_id.clone(),
            amount: cny(149_900),
        }))
    };
    let refunding = |state, provider_ref: Option<&str>| {
        Read::Refunding(Refunding { state, provider_ref: provider_ref.map(str::to_owned) })
    };
    let (stripe_refund, wechat_refund) =
        (Some("re_3QTestOnly0000000000001"), Some("50300000002026120100000000001"));
    let session = "https://checkout.stripe.com/c/pay/cs_test_only_1";
    let h5 = "https://wx.tenpay.com/cgi-bin/mmpayweb-bin/checkmweb?prepay_id=testonly";
    let mut expected = vec![
        ("stripe", "start", started(PayAt::Url(session.into()), Some("cs_test_only_1"))),
        ("stripe", "close", Read::Closing(Closing::Closed)),
        ("stripe", "ask", paid("stripe")),
        ("stripe", "refund", refunding(RefundState::Done, stripe_refund)),
        ("stripe", "ask_refund", refunding(RefundState::Done, stripe_refund)),
        ("alipay", "close", Read::Closing(Closing::Closed)),
        ("alipay", "ask", paid("alipay")),
        ("alipay", "refund", refunding(RefundState::Done, None)),
        ("alipay", "ask_refund", refunding(RefundState::Done, None)),
        ("wechat", "start", started(PayAt::QrCode("weixin://wxpay/bizpayurl?pr=testonly".into()), None)),
        ("wechat", "start_phone", started(PayAt::Url(h5.into()), None)),
        ("wechat", "close", Read::Closing(Closing::Closed)),
        ("wechat", "ask", paid("wechat")),
        ("wechat", "refund", refunding(RefundState::Pending, wechat_refund)),
        ("wechat", "ask_refund", refunding(RefundState::Done, wechat_refund)),
    ];
    for recorded in VECTORS.requests.iter() {
        let Some(answer) = &recorded.answer else { continue };
        let (provider, verb, wanted) = expected.remove(0);
        assert_eq!((recorded.provider.as_str(), recorded.verb.as_str()), (provider, verb));
        assert_eq!(read(provider, verb, &answer.whole()).unwrap(), wanted, "{provider} {verb}");
    }
    assert!(expected.is_empty());
}

#[test]
fn every_state_and_every_error_is_read_as_what_it_is() {
    for Answered { provider, verb, expect, answer } in &VECTORS.answers {
        let outcome = read(provider, verb, &answer.whole());
        let word = match &outcome {
            Ok(Read::Closing(Closing::Unknown) | Read::Asked(Asked::Unknown)) => "unknown",
            Ok(Read::Closing(Closing::Closed) | Read::Asked(Asked::Closed)) => "closed",
            Ok(Read::Closing(Closing::NotOpen)) => "not_open",
            Ok(Read::Asked(Asked::Open)) => "open",
            Ok(Read::Asked(Asked::Refunded)) => "refunded",
            Ok(Read::Refunding(Refunding { state: RefundState::Done, .. })) => "done",
            Ok(Read::Refunding(Refunding { state: RefundState::Pending, .. })) => "pending",
            Ok(Read::Refunding(Refunding { state: RefundState::Failed { is_final: true, .. }, .. })) => {
                "failed for good"
            }
            Ok(Read::Refunding(Refunding { state: RefundState::Failed { .. }, .. })) => "failed",
            Err(CallError::Refused { .. }) => "refused",
            Err(CallError::TryAgain { .. }) => "try_again",
            Err(CallError::Unbelievable(_)) => "unbelievable",
            other => panic!("{other:?}"),
        };
        assert_eq!(word, expect, "{provider} {verb}: {} {outcome:?}", answer.body);
    }
}

#[test]
fn an_answer_whose_signature_does_not_fit_says_nothing() {
    for recorded in VECTORS.requests.iter().filter(|it| it.provider != "stripe") {
        let Some(answer) = &recorded.answer else { continue };
        let outcome = |answer: Answer| read(&recorded.provider, &recorded.verb, &answer);
        let mut forged = answer.whole();
        let body = answer.body.replace("PROCESSING", "SUCCESS").replace("20261201", "20261202");
        forged.body = format!("{} ", body.replace("1499", "1")).into();
        let mut unsigned = answer.whole();
        unsigned.headers.clear();
        unsigned.body = answer.body.replace("\"sign\"", "\"sing\"").into();
        for answer in [forged, unsigned] {
            assert!(matches!(outcome(answer), Err(CallError::Unbelievable(_))), "{}", recorded.verb);
        }
    }
}

fn bare_answer(status: u16, body: &str) -> Answer {
    Answer { status, headers: HeaderMap::new(), body: body.to_owned().into() }
}

#[test]
fn errors_tell_whether_it_is_worth_trying_again() {
    let stripe_error =
        r#"{"error":{"type":"invalid_request_error","code":"resource_missing","message":"No such session"}}"#;
    let cases: &[(&str, &str, u16, &str, bool)] = &[
        ("stripe", "start", 400, stripe_error, false),
        (
            "stripe",
            "start",
            401,
            r#"{"error":{"type":"invalid_request_error","message":"Invalid API Key"}}"#,
            false,
        ),
        ("stripe", "start", 409, r#"{"error":{"type":"idempotency_error"}}"#, true),
        ("stripe", "start", 400, r#"{"error":{"type":"idempotency_error"}}"#, true),
        ("stripe", "start", 429, "", true),
        ("stripe", "start", 503, "<html>", true),
        ("stripe", "start", 302, "", false),
        ("stripe", "ask", 200, "{}", false),
        ("alipay", "ask", 502, "<html>", true),
        ("alipay", "ask", 200, "<html>", false),
        (
            "alipay",
            "ask",
            200,
            r#"{"alipay_trade_query_response":{"code":"20000","msg":"Service Currently Unavailable","sub_code":"isp.unknow-error"}}"#,
            true,
        ),
        (
            "alipay",
            "ask",
            200,
            r#"{"error_response":{"code":"40002","msg":"Invalid Arguments","sub_code":"isv.invalid-signature"}}"#,
            false,
        ),
        (
            "alipay",
            "refund",
            200,
            r#"{"alipay_trade_refund_response":{"code":"40004","msg":"Business Failed","sub_code":"ACQ.SYSTEM_ERROR"}}"#,
            true,
        ),
        ("wechat", "ask", 500, r#"{"code":"SYSTEM_ERROR","message":"系统异常"}"#, true),
        ("wechat", "ask", 429, r#"{"code":"FREQUENCY_LIMITED","message":"频率超限"}"#, true),
        ("wechat", "start", 401, r#"{"code":"SIGN_ERROR","message":"签名错误"}"#, false),
        ("wechat", "start", 302, "", false),
    ];
    for (provider, verb, status, body, again) in cases {
        let error = read(provider, verb, &bare_answer(*status, body)).unwrap_err();
        assert_eq!(error.is_worth_repeating(), *again, "{provider} {verb} {status}: {error}");
    }
}

#[test]
fn what_nobody_signed_settles_nothing() {
    let missing = r#"{"alipay_trade_query_response":{"code":"40004","msg":"Business Failed","sub_code":"ACQ.TRADE_NOT_EXIST"}}"#;
    assert!(matches!(read("alipay", "ask", &bare_answer(200, missing)), Err(CallError::Refused { .. })));
    let unknown = r#"{"code":"ORDER_NOT_EXIST","message":"订单不存在"}"#;
    assert!(matches!(read("wechat", "ask", &bare_answer(404, unknown)), Err(CallError::Refused { .. })));
}

#[test]
fn stripes_session_has_many_states() {
    let session = |status: &str, payment: &str| {
        format!(
            r#"{{"id":"cs_1","status":"{status}","payment_status":"{payment}","client_reference_id":"x","amount_total":1,"currency":"cny","payment_intent":"pi_1"}}"#
        )
    };
    let asked =
        |status: &str, payment: &str| read("stripe", "ask", &bare_answer(200, &session(status, payment)));
    assert_eq!(asked("open", "unpaid").unwrap(), Read::Asked(Asked::Open));
    assert_eq!(asked("complete", "unpaid").unwrap(), Read::Asked(Asked::Open));
    assert_eq!(asked("expired", "unpaid").unwrap(), Read::Asked(Asked::Closed));
    assert!(asked("odd", "unpaid").is_err());
    let Read::Asked(Asked::Paid(capture)) = asked("complete", "paid").unwrap() else { panic!() };
    assert_eq!((capture.capture_id.as_str(), capture.payment_id.as_str()), ("pi_1", "x"));
    let gone = r#"{"error":{"type":"invalid_request_error","code":"resource_missing"}}"#;
    assert_eq!(read("stripe", "ask", &bare_answer(404, gone)).unwrap(), Read::Asked(Asked::Unknown));
    assert_eq!(read("stripe", "close", &bare_answer(404, gone)).unwrap(), Read::Closing(Closing::Unknown));
    assert_eq!(read("stripe", "close", &bare_answer(400, gone)).unwrap(), Read::Closing(Closing::NotOpen));
}

#[test]
fn a_refund_that_failed_at_stripe_failed_for_good_and_a_refusal_is_remembered() {
    for status in ["failed", "canceled"] {
        let body = format!(r#"{{"id":"re_1","amount":1,"currency":"cny","status":"{status}"}}"#);
        let Read::Refunding(refunding) = read("stripe", "refund", &bare_answer(200, &body)).unwrap() else {
            panic!()
        };
        assert!(matches!(refunding.state, RefundState::Failed { is_final: true, .. }), "{refunding:?}");
    }
    assert_eq!(["stripe", "alipay", "wechat"].map(|it| named(it).remembers_refusals()), [true, false, false]);
}

#[test]
fn a_payment_is_started_under_another_key_once_stripe_may_have_kept_an_error() {
    let key = |after_ms: i64| {
        let stamp = Stamp { now: now().plus_ms(after_ms), ..stamp() };
        let started = named("stripe").start(&payment("stripe", Device::Desktop), &stamp).unwrap();
        let Start::Send(request) = started else { panic!() };
        let expires = form(&request.body)["expires_at"].clone();
        (request.headers["idempotency-key"].to_str().unwrap().to_owned(), expires)
    };
    assert_eq!(key(0), key(9_999), "a repeat at once is the same request");
    assert_ne!(key(0).0, key(10_000).0);
    assert_ne!(key(0).1, key(10_000).1, "or Stripe would find that it ends too soon");
}

#[test]
fn what_a_provider_could_not_take_is_not_sent() {
    let start = |provider: &str, change: fn(&mut StartPayment)| {
        let mut payment = payment(provider, Device::Desktop);
        change(&mut payment);
        named(provider).start(&payment, &stamp()).map(|_| ())
    };
    for provider in ["stripe", "alipay", "wechat"] {
        assert!(start(provider, |_| ()).is_ok());
        let changes: [fn(&mut StartPayment); 5] = [
            |it| it.payment_id = "short".into(),
            |it| it.payment_id = "a".repeat(33),
            |it| it.payment_id = "../../../refunds".into(),
            |it| it.amount.amount = 0,
            |it| it.amount.amount = -1,
        ];
        for change in changes {
            assert!(matches!(start(provider, change), Err(CallError::Impossible(_))), "{provider}");
        }
    }
    for provider in ["alipay", "wechat"] {
        let dollars = |it: &mut StartPayment| it.amount.currency = "USD".parse().unwrap();
        assert!(matches!(start(provider, dollars), Err(CallError::Impossible(_))), "{provider}");
    }
    let nowhere =
        PaymentRef { payment_id: VECTORS.payment_id.clone(), provider_ref: Some("../refunds".into()) };
    assert!(named("stripe").close(&nowhere, &stamp()).is_err());
}

#[test]
fn long_titles_are_cut_between_characters() {
    let long = StartPayment { title: "飞".repeat(300), ..payment("wechat", Device::Desktop) };
    let Start::Send(request) = named("wechat").start(&long, &stamp()).unwrap() else { panic!() };
    let content: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!(content["description"], "飞".repeat(42), "WeChat Pay takes 127 bytes");
}

#[test]
fn two_stamps_are_never_the_same() {
    let nonces: std::collections::BTreeSet<String> = (0..1_000).map(|_| Stamp::at(now()).nonce).collect();
    assert_eq!(nonces.len(), 1_000);
    assert!(nonces.iter().all(|nonce| nonce.len() == 32));
}

/// Sends one request to a server that answers with these bytes; what the server saw, and what came of it.
async fn exchange(response: &[u8], within: Duration) -> (String, Result<Answer, CallError>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut settings = settings();
    settings.wechat.url = format!("http://{}", listener.local_addr().unwrap());
    let providers = Providers::new(&settings, &NO_SHOP).unwrap();
    let request = providers.get(ProviderName::Wechat).unwrap().close(&payment_ref(), &stamp()).unwrap();
    let serving = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut seen = Vec::new();
        // The client may give up before it has said everything.
        while !seen.ends_with(b"}") && socket.read_buf(&mut seen).await.unwrap() > 0 {}
        // The client may have gone: that is what some of the tests are about.
        let _ = socket.write_all(response).await;
        if response.is_empty() {
            let _ = socket.read_buf(&mut Vec::new()).await;
        }
        String::from_utf8(seen).unwrap()
    };
    let client = client().unwrap();
    tokio::join!(serving, send(&client, request, within))
}

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_request_arrives_as_it_was_built_and_its_answer_as_it_was_given() {
    let response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nwechatpay-nonce: n\r\n\r\n{}";
    let (seen, answer) = exchange(response, SOON).await;
    let path = "/v3/pay/transactions/out-trade-no/01jdz0payment0000000000001/close";
    assert!(seen.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{seen}");
    assert!(seen.contains("authorization: WECHATPAY2-SHA256-RSA2048 mchid=\"1900000001\""), "{seen}");
    assert!(
        seen.contains("user-agent: doorbuster/") && seen.ends_with("{\"mchid\":\"1900000001\"}"),
        "{seen}"
    );
    let answer = answer.unwrap();
    assert_eq!((answer.status, answer.body.as_ref()), (200, &b"{}"[..]));
    assert_eq!(answer.headers["wechatpay-nonce"], "n");
}

#[tokio::test]
async fn a_provider_that_sends_us_elsewhere_is_not_followed() {
    let response = b"HTTP/1.1 307 Go\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(exchange(response, SOON).await.1.unwrap().status, 307);
}

#[tokio::test]
async fn a_provider_that_does_not_answer_is_given_up_and_may_be_asked_again() {
    let error = exchange(b"", Duration::from_secs(1)).await.1.unwrap_err();
    assert!(error.is_worth_repeating() && !error.to_string().contains("127.0.0.1"), "{error}");
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_to_its_end() {
    let mut response = b"HTTP/1.1 200 OK\r\ncontent-length: 1048576\r\n\r\n".to_vec();
    response.resize(600 * 1_024, b' ');
    let error = exchange(&response, SOON).await.1.unwrap_err();
    assert!(matches!(error, CallError::Unbelievable(_)), "{error}");
}

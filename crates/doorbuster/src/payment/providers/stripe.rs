//! Stripe: signed events in, Checkout Sessions and refunds out. Owns Stripe's shapes and its way of counting money.
//! Does not know the ledger; a PaymentIntent is the capture, since every event and every refund names it.
//!
//! Stripe keeps its first answer to an idempotency key for a day and repeats it, also a refusal or an error 500. So keys
//! that must be the same (a refund) are given by whoever calls, and others change with time.

use std::collections::BTreeMap;
use std::fmt;

use aws_lc_rs::{constant_time, hmac};
use form_urlencoded::Serializer;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use rules::money::{Currency, Money};
use rules::time::UnixMs;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::call::{
    Answer, Asked, CallError, Closing, PayAt, PaymentRef, RefundPayment, RefundRef, RefundState, Refunding,
    Request, Stamp, Start, StartPayment, Started, cut, sound_id, sound_ref,
};
use super::notice::{
    Capture, Notice, ProviderName, Refund, RefundAmount, Refusal, RefusalCode, What, fresh, only, positive,
    reference, seconds, within_limit,
};
use super::{Faults, is_endpoint};
use crate::config::StripeSettings;

/// The version of Stripe's API whose shapes are read here.
const API_VERSION: &str = "2026-10-28.endive";

/// Under these names our ids travel in Stripe's metadata, from the request to the events. The shop tells whose they are:
/// Stripe sends every endpoint the events of the whole account.
const SHOP_KEY: &str = "doorbuster_shop";
const PAYMENT_KEY: &str = "doorbuster_payment";
const REFUND_KEY: &str = "doorbuster_refund";

/// The most signatures looked at in one header: two during a change of secrets, and room.
const SIGNATURES_MAX: usize = 16;

/// The most endpoint secrets: the current ones and those they replace.
const SECRETS_MAX: usize = 8;

/// For so long starting or closing again is the same request, in seconds: a double click, or an answer that was lost.
/// Later it is another one, because Stripe would repeat its first answer, also an error. A session that nobody was told of
/// is never paid.
const SLOT_S: i64 = 10;

/// Stripe lets no session end in less than 30 minutes, or in more than a day; with a minute for the clocks, in seconds.
const SESSION_MIN_S: i64 = 31 * 60;
const SESSION_MAX_S: i64 = 24 * 3_600 - 60;

/// Stripe cuts names of products there, in characters.
const TITLE_CHARS_MAX: usize = 250;

/// One Stripe account.
pub struct Stripe {
    url: String,
    secret_key: SecretString,
    /// Whether real money moves, which the key says.
    live: bool,
    secrets: Vec<hmac::Key>,
    /// Whose payments are ours, as the metadata says it.
    shop: String,
}

impl fmt::Debug for Stripe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stripe").field("url", &self.url).field("live", &self.live).finish_non_exhaustive()
    }
}

impl Stripe {
    /// `None` when Stripe is not set at all.
    pub(super) fn new(settings: &StripeSettings, shop: &[u8; 16], faults: &mut Faults) -> Option<Self> {
        let StripeSettings { secret_key, webhook_secrets, url } = settings;
        if secret_key.is_none() && webhook_secrets.is_empty() {
            return None;
        }
        let before = faults.count();
        let Some(secret_key) = secret_key else {
            faults.add("payment.stripe.secret_key", "is missing; Stripe's dashboard shows it (sk_live_…).");
            return None;
        };
        let mode = ["sk_", "rk_"].into_iter().find_map(|kind| secret_key.expose_secret().strip_prefix(kind));
        let live = mode.is_some_and(|mode| mode.starts_with("live_"));
        if !live && !mode.is_some_and(|mode| mode.starts_with("test_")) {
            faults.add(
                "payment.stripe.secret_key",
                "must begin with sk_live_, rk_live_, sk_test_ or rk_test_.",
            );
        }
        if webhook_secrets.is_empty() || webhook_secrets.len() > SECRETS_MAX {
            let sentence = "must hold 1 to 8 signing secrets of the endpoint, each beginning with whsec_.";
            faults.add("payment.stripe.webhook_secrets", sentence);
        } else if webhook_secrets.iter().any(|secret| !is_webhook_secret(secret.expose_secret())) {
            let sentence = "each must begin with whsec_ and be at least 32 bytes long.";
            faults.add("payment.stripe.webhook_secrets", sentence);
        }
        if !is_endpoint(url) {
            faults.add("payment.stripe.url", "must begin with https://.");
        }
        let key =
            |secret: &SecretString| hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().as_bytes());
        let secrets = webhook_secrets.iter().map(key).collect();
        let url = url.trim_end_matches('/').to_owned();
        let shop = hex(shop);
        (faults.count() == before).then(|| Self { url, secret_key: secret_key.clone(), live, secrets, shop })
    }

    pub(super) fn verify(&self, headers: &HeaderMap, body: &[u8], now: UnixMs) -> Result<Notice, Refusal> {
        within_limit(body)?;
        let header = only(headers, "stripe-signature", "the header Stripe-Signature is missing")?;
        self.verify_signature(header, body, now)?;
        self.read_genuine(body).map_err(Refusal::of_genuine)
    }

    fn read_genuine(&self, body: &[u8]) -> Result<Notice, Refusal> {
        let event: Event<'_> = read(body)?;
        self.verify_account(&event)?;
        Ok(Notice {
            provider: ProviderName::Stripe,
            event_id: reference(&event.id)?,
            what: event.what(&self.shop)?,
        })
    }

    fn verify_signature(&self, header: &str, body: &[u8], now: UnixMs) -> Result<(), Refusal> {
        let (time, signatures) = parts(header)?;
        let signed_at = seconds(time).ok_or(Refusal::malformed("the time of the signature is no number"))?;
        let matches = |key: &hmac::Key| {
            let mut message = hmac::Context::with_key(key);
            message.update(time.as_bytes());
            message.update(b".");
            message.update(body);
            let expected = hex(message.sign().as_ref());
            signatures.iter().any(|given| {
                constant_time::verify_slices_are_equal(expected.as_bytes(), given.as_bytes()).is_ok()
            })
        };
        if !self.secrets.iter().any(matches) {
            const SENTENCE: &str =
                "no signature fits; compare payment.stripe.webhook_secrets with the dashboard";
            return Err(Refusal::signature(SENTENCE));
        }
        fresh(signed_at, now)
    }

    /// Play money must not buy goods, and an event of a connected account is not about ours.
    fn verify_account(&self, event: &Event<'_>) -> Result<(), Refusal> {
        let sentence = match (event.livemode == self.live, &event.account) {
            (true, None) => return Ok(()),
            (false, _) => "the event is of test mode and the key of live mode, or the other way round",
            (true, Some(_)) => "the event is about a connected account",
        };
        Err(Refusal::new(RefusalCode::WrongMerchant, sentence))
    }

    /// A Checkout Session. It ends at `pay_by`, but not as soon as Stripe does not allow: close it.
    pub(super) fn start(&self, payment: &StartPayment, stamp: &Stamp) -> Result<Start, CallError> {
        let slot_s = slot_s(stamp);
        let id = sound_id(&payment.payment_id)?;
        let mut form = Serializer::new(String::new());
        form.append_pair("mode", "payment")
            .append_pair("client_reference_id", id)
            .append_pair("success_url", &payment.return_url)
            .append_pair("cancel_url", &payment.return_url)
            .append_pair("expires_at", &expires_at(payment.pay_by, slot_s).to_string())
            .append_pair("line_items[0][quantity]", "1")
            .append_pair("line_items[0][price_data][currency]", &lower(payment.amount.currency))
            .append_pair("line_items[0][price_data][unit_amount]", &to_stripe(payment.amount)?.to_string())
            .append_pair(
                "line_items[0][price_data][product_data][name]",
                &cut(&payment.title, TITLE_CHARS_MAX),
            )
            .append_pair(&format!("metadata[{SHOP_KEY}]"), &self.shop)
            .append_pair(&format!("metadata[{PAYMENT_KEY}]"), id)
            .append_pair(&format!("payment_intent_data[metadata][{SHOP_KEY}]"), &self.shop)
            .append_pair(&format!("payment_intent_data[metadata][{PAYMENT_KEY}]"), id);
        let key = format!("start-{id}-{slot_s}");
        Ok(Start::Send(self.post("/v1/checkout/sessions", form.finish(), &key)?))
    }

    pub(super) fn read_start(&self, answer: &Answer) -> Result<Started, CallError> {
        let session: Session = self.believed(answer)?;
        let url = session.url.filter(|url| url.starts_with("https://"));
        let url = url.ok_or(CallError::Unbelievable("the session has no address to pay at"))?;
        Ok(Started { pay: PayAt::Url(url), provider_ref: Some(session.id) })
    }

    pub(super) fn close(&self, payment: &PaymentRef, stamp: &Stamp) -> Result<Request, CallError> {
        let session = session_of(payment)?;
        let key = format!("close-{session}-{}", slot_s(stamp));
        self.post(&format!("/v1/checkout/sessions/{session}/expire"), String::new(), &key)
    }

    pub(super) fn read_close(&self, answer: &Answer) -> Result<Closing, CallError> {
        match self.believed::<Session>(answer) {
            Ok(session) if session.status.as_deref() == Some("expired") => Ok(Closing::Closed),
            Ok(_) => Ok(Closing::NotOpen),
            Err(CallError::Refused { .. }) if answer.status == 404 => Ok(Closing::Unknown),
            // Stripe has no code for "already complete"; what remains under 400 is exactly that.
            Err(CallError::Refused { .. }) if answer.status == 400 => Ok(Closing::NotOpen),
            Err(error) => Err(error),
        }
    }

    pub(super) fn ask(&self, payment: &PaymentRef) -> Result<Request, CallError> {
        let session = session_of(payment)?;
        self.get(&format!("/v1/checkout/sessions/{session}"))
    }

    pub(super) fn read_ask(&self, answer: &Answer) -> Result<Asked, CallError> {
        let session: Session = match self.believed(answer) {
            Err(CallError::Refused { .. }) if answer.status == 404 => return Ok(Asked::Unknown),
            other => other?,
        };
        match (session.status.as_deref(), session.payment_status.as_deref()) {
            (Some("complete"), Some("paid")) => session.capture().map(Asked::Paid),
            // Some ways of paying take days after the buyer is done; the money may still come.
            (Some("open" | "complete"), _) => Ok(Asked::Open),
            (Some("expired"), _) => Ok(Asked::Closed),
            _ => Err(CallError::Unbelievable("the session is in no state we know")),
        }
    }

    pub(super) fn refund(&self, refund: &RefundPayment) -> Result<Request, CallError> {
        let id = sound_id(&refund.refund_id)?;
        let mut form = Serializer::new(String::new());
        form.append_pair("payment_intent", sound_ref(&refund.capture_id)?)
            .append_pair("amount", &to_stripe(refund.amount)?.to_string())
            .append_pair(&format!("metadata[{SHOP_KEY}]"), &self.shop)
            .append_pair(&format!("metadata[{PAYMENT_KEY}]"), sound_id(&refund.payment_id)?)
            .append_pair(&format!("metadata[{REFUND_KEY}]"), id);
        self.post("/v1/refunds", form.finish(), &format!("refund-{id}"))
    }

    pub(super) fn ask_refund(&self, refund: &RefundRef) -> Result<Request, CallError> {
        let id = refund.provider_ref.as_deref();
        let id =
            id.ok_or(CallError::Impossible("Stripe's id of the refund is not known; repeat the refund"))?;
        self.get(&format!("/v1/refunds/{}", sound_ref(id)?))
    }

    pub(super) fn read_refund(&self, answer: &Answer) -> Result<Refunding, CallError> {
        let refund: RefundObject = match self.believed(answer) {
            // All of it is back already, by a request whose answer Stripe no longer repeats.
            Err(CallError::Refused { code, .. }) if code == "charge_already_refunded" => {
                return Ok(Refunding { state: RefundState::Done, provider_ref: None });
            }
            other => other?,
        };
        let state = match refund.status.as_str() {
            "succeeded" => RefundState::Done,
            "pending" | "requires_action" => RefundState::Pending,
            "failed" | "canceled" => RefundState::Failed { reason: refund.reason(), is_final: true },
            _ => return Err(CallError::Unbelievable("the refund is in no state we know")),
        };
        Ok(Refunding { state, provider_ref: Some(refund.id) })
    }

    fn post(&self, path: &str, form: String, idempotency_key: &str) -> Result<Request, CallError> {
        let mut request = self.get(path)?;
        request.method = Method::POST;
        request.body = form.into();
        let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers.insert(CONTENT_TYPE, form_type);
        request.headers.insert(HeaderName::from_static("idempotency-key"), header_value(idempotency_key)?);
        Ok(request)
    }

    fn get(&self, path: &str) -> Result<Request, CallError> {
        let mut headers = HeaderMap::new();
        let mut bearer = header_value(&format!("Bearer {}", self.secret_key.expose_secret()))?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
        headers.insert(HeaderName::from_static("stripe-version"), HeaderValue::from_static(API_VERSION));
        let url = format!("{}{path}", self.url);
        Ok(Request { method: Method::GET, url, headers, body: bytes::Bytes::new() })
    }

    fn believed<T: for<'de> Deserialize<'de>>(&self, answer: &Answer) -> Result<T, CallError> {
        const UNREADABLE: CallError = CallError::Unbelievable("it is not in Stripe's form");
        if answer.status == 200 {
            return serde_json::from_slice(&answer.body).map_err(|_| UNREADABLE);
        }
        let told: Result<ErrorBody, _> = serde_json::from_slice(&answer.body);
        let error = told.map(|body| body.error).unwrap_or_default();
        let is_mixed_up = error.kind.as_deref() == Some("idempotency_error");
        let code = error.code.or(error.kind).unwrap_or_else(|| answer.status.to_string());
        let message = error.message.unwrap_or_default();
        match answer.status {
            // The same key with other values, such as a title that was changed: the next slot has another key.
            400..=404 if is_mixed_up => Err(CallError::TryAgain { code, message }),
            400..=404 => Err(CallError::Refused { code, message }),
            // 409: the same request is still under way.
            409 | 429 | 500..=599 => Err(CallError::TryAgain { code, message }),
            _ => Err(UNREADABLE),
        }
    }
}

/// The time and the signatures of scheme v1 in the header; other schemes are none of ours.
fn parts(header: &str) -> Result<(&str, Vec<&str>), Refusal> {
    const TIME: &str = "the header Stripe-Signature must hold exactly one t=";
    let fields = || header.split(',').filter_map(|field| field.trim().split_once('='));
    let mut times = fields().filter(|(scheme, _)| *scheme == "t").map(|(_, time)| time);
    let time = times.next().ok_or(Refusal::malformed(TIME))?;
    if times.next().is_some() {
        return Err(Refusal::malformed(TIME));
    }
    let signatures: Vec<&str> =
        fields().filter(|(scheme, _)| *scheme == "v1").map(|(_, signature)| signature).collect();
    match signatures.len() {
        0 => Err(Refusal::signature("the header Stripe-Signature holds no signature of scheme v1")),
        1..=SIGNATURES_MAX => Ok((time, signatures)),
        _ => Err(Refusal::malformed("the header Stripe-Signature holds too many signatures")),
    }
}

#[derive(Deserialize)]
struct Event<'a> {
    id: String,
    #[serde(rename = "type")]
    kind: String,
    livemode: bool,
    account: Option<String>,
    #[serde(borrow)]
    data: EventData<'a>,
}

#[derive(Deserialize)]
struct EventData<'a> {
    #[serde(borrow)]
    object: &'a RawValue,
}

impl Event<'_> {
    fn what(&self, shop: &str) -> Result<What, Refusal> {
        let object = self.data.object.get().as_bytes();
        let other = || What::Other { kind: self.kind.clone() };
        let known = match self.kind.as_str() {
            "payment_intent.succeeded" => read::<PaymentIntent>(object)?.what(shop)?,
            "charge.refunded" => read::<Charge>(object)?.what(shop)?,
            "refund.created" | "refund.updated" | "refund.failed" | "charge.refund.updated" => {
                read::<RefundObject>(object)?.what(shop)?
            }
            _ => None,
        };
        Ok(known.unwrap_or_else(other))
    }
}

type Metadata = BTreeMap<String, String>;

fn is_ours(metadata: &Metadata, shop: &str) -> bool {
    metadata.get(SHOP_KEY).is_some_and(|theirs| theirs == shop)
}

/// Whether it names a shop like ours, and not ours. Without any name, as of a refund made in the dashboard, it is told by
/// its PaymentIntent whose it is.
fn is_anothers(metadata: &Metadata, shop: &str) -> bool {
    let names_a_shop = [SHOP_KEY, PAYMENT_KEY].iter().any(|key| metadata.contains_key(*key));
    names_a_shop && !is_ours(metadata, shop)
}

#[derive(Deserialize)]
struct PaymentIntent {
    id: String,
    amount_received: i64,
    currency: String,
    status: String,
    #[serde(default)]
    metadata: Metadata,
}

impl PaymentIntent {
    /// `None` for what was not started by us: an account may serve other shops, whose money is not ours to touch.
    fn what(self, shop: &str) -> Result<Option<What>, Refusal> {
        let ours = self.metadata.get(PAYMENT_KEY).filter(|_| is_ours(&self.metadata, shop));
        let Some(payment_id) = ours else { return Ok(None) };
        if self.status != "succeeded" {
            return Err(Refusal::malformed("the payment of a succeeded event has not succeeded"));
        }
        Ok(Some(What::Captured(Capture {
            capture_id: reference(&self.id)?,
            payment_id: reference(payment_id)?,
            amount: from_stripe(self.amount_received, &self.currency)?,
        })))
    }
}

#[derive(Deserialize)]
struct Charge {
    amount_refunded: i64,
    currency: String,
    payment_intent: Option<String>,
    #[serde(default)]
    metadata: Metadata,
}

impl Charge {
    /// `None` for a charge without a PaymentIntent, or of another shop: none of ours.
    fn what(self, shop: &str) -> Result<Option<What>, Refusal> {
        let ours = self.payment_intent.as_ref().filter(|_| !is_anothers(&self.metadata, shop));
        let Some(capture_id) = ours else { return Ok(None) };
        let refund = Refund {
            capture_id: reference(capture_id)?,
            payment_id: self.metadata.get(PAYMENT_KEY).map(|id| reference(id)).transpose()?,
            refund_id: None,
            amount: RefundAmount::SoFar(from_stripe(self.amount_refunded, &self.currency)?),
        };
        Ok(Some(What::Refunded(refund)))
    }
}

#[derive(Deserialize)]
struct RefundObject {
    id: String,
    amount: i64,
    currency: String,
    status: String,
    payment_intent: Option<String>,
    failure_reason: Option<String>,
    #[serde(default)]
    metadata: Option<Metadata>,
}

impl RefundObject {
    fn what(self, shop: &str) -> Result<Option<What>, Refusal> {
        let none = Metadata::new();
        let metadata = self.metadata.as_ref().unwrap_or(&none);
        let ours = self.payment_intent.as_ref().filter(|_| !is_anothers(metadata, shop));
        let Some(capture_id) = ours else { return Ok(None) };
        let refund = Refund {
            capture_id: reference(capture_id)?,
            payment_id: metadata.get(PAYMENT_KEY).map(|id| reference(id)).transpose()?,
            refund_id: metadata.get(REFUND_KEY).map(|id| reference(id)).transpose()?,
            amount: RefundAmount::This(from_stripe(self.amount, &self.currency)?),
        };
        match self.status.as_str() {
            "succeeded" => Ok(Some(What::Refunded(refund))),
            "failed" | "canceled" => {
                Ok(Some(What::RefundFailed { refund, reason: self.reason(), is_final: true }))
            }
            _ => Ok(None),
        }
    }

    fn reason(&self) -> String {
        cut(self.failure_reason.as_deref().unwrap_or(&self.status), 200)
    }
}

#[derive(Deserialize)]
struct Session {
    id: String,
    status: Option<String>,
    payment_status: Option<String>,
    url: Option<String>,
    client_reference_id: Option<String>,
    amount_total: Option<i64>,
    currency: Option<String>,
    payment_intent: Option<String>,
}

impl Session {
    fn capture(self) -> Result<Capture, CallError> {
        const INCOMPLETE: CallError =
            CallError::Unbelievable("a paid session lacks its payment or its amount");
        let capture_id = self.payment_intent.ok_or(INCOMPLETE)?;
        let currency = self.currency.ok_or(INCOMPLETE)?;
        let amount = from_stripe(self.amount_total.ok_or(INCOMPLETE)?, &currency).map_err(|_| INCOMPLETE)?;
        let payment_id = self.client_reference_id.ok_or(INCOMPLETE)?;
        Ok(Capture { capture_id, payment_id, amount })
    }
}

#[derive(Default, Deserialize)]
struct ErrorBody {
    error: StripeError,
}

#[derive(Default, Deserialize)]
struct StripeError {
    #[serde(rename = "type")]
    kind: Option<String>,
    code: Option<String>,
    message: Option<String>,
}

/// How many digits Stripe's minor unit has, by its page "Supported currencies". Not always ISO's: MGA has none, and ISK
/// and UGX have two, kept for old clients; HUF and TWD have two in charges and are whole only in payouts.
fn stripe_exponent(currency: Currency) -> u32 {
    match currency.as_str() {
        "BIF" | "CLP" | "DJF" | "GNF" | "JPY" | "KMF" | "KRW" | "MGA" | "PYG" | "RWF" | "VND" | "VUV"
        | "XAF" | "XOF" | "XPF" => 0,
        "BHD" | "JOD" | "KWD" | "OMR" | "TND" => 3,
        _ => 2,
    }
}

/// An amount moved from one number of digits to another; `None` when that would lose a part of it.
fn rescaled(amount: i64, from: u32, to: u32) -> Option<i64> {
    if to >= from {
        return amount.checked_mul(10_i64.checked_pow(to - from)?);
    }
    let scale = 10_i64.checked_pow(from - to)?;
    (amount % scale == 0).then_some(amount / scale)
}

fn to_stripe(money: Money) -> Result<i64, CallError> {
    let exponent = stripe_exponent(money.currency);
    let amount = rescaled(money.amount, money.currency.exponent(), exponent);
    // Of three digits the last must be zero: the banks behind Stripe know two.
    let fits = |amount: &i64| *amount > 0 && (exponent < 3 || *amount % 10 == 0);
    amount.filter(fits).ok_or(CallError::Impossible("Stripe cannot express this amount"))
}

fn from_stripe(amount: i64, currency: &str) -> Result<Money, Refusal> {
    const CURRENCY: Refusal = Refusal::malformed("the currency is none of ISO 4217");
    const FRACTION: Refusal = Refusal::malformed("an amount has a fraction its currency does not know");
    let lower = currency.bytes().all(|byte| byte.is_ascii_lowercase());
    let known: Result<Currency, _> = currency.to_ascii_uppercase().parse();
    let currency = known.ok().filter(|_| lower).ok_or(CURRENCY)?;
    let amount = rescaled(amount, stripe_exponent(currency), currency.exponent()).ok_or(FRACTION)?;
    positive(amount, currency)
}

fn lower(currency: Currency) -> String {
    currency.as_str().to_ascii_lowercase()
}

/// When the slot began in which a request is made.
fn slot_s(stamp: &Stamp) -> i64 {
    let now_s = stamp.now.0.div_euclid(1_000);
    now_s - now_s.rem_euclid(SLOT_S)
}

/// When a session that is made in this slot ends, in seconds.
fn expires_at(pay_by: UnixMs, slot_s: i64) -> i64 {
    let pay_by_s = pay_by.plus_ms(999).0.div_euclid(1_000);
    pay_by_s.clamp(slot_s + SESSION_MIN_S, slot_s + SESSION_MAX_S)
}

fn session_of(payment: &PaymentRef) -> Result<&str, CallError> {
    let session = payment.provider_ref.as_deref();
    sound_ref(session.ok_or(CallError::Impossible("the Checkout Session of the payment is not known"))?)
}

fn is_webhook_secret(secret: &str) -> bool {
    secret.starts_with("whsec_") && secret.len() >= 32
}

fn header_value(text: &str) -> Result<HeaderValue, CallError> {
    HeaderValue::from_str(text).map_err(|_| CallError::Impossible("a header cannot carry it"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(json).map_err(|_| Refusal::malformed("the event is not in Stripe's form"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn money(amount: i64, currency: &str) -> Money {
        Money { amount, currency: currency.parse().unwrap() }
    }

    #[test]
    fn a_session_ends_with_the_time_to_pay_as_far_as_stripe_allows() {
        let at = |pay_by_s: i64| expires_at(UnixMs(pay_by_s * 1_000), 1_000_000) - 1_000_000;
        assert_eq!(at(1_000_000 + 900), 31 * 60, "not in less than 30 minutes");
        assert_eq!(at(1_000_000 + 3_600), 3_600);
        assert_eq!(at(1_000_000 + 86_400), 86_340, "not in more than a day");
        assert_eq!(expires_at(UnixMs(1_003_600_001), 1_000_000), 1_003_601, "not before the last moment");
    }

    #[test]
    fn the_same_slot_is_the_same_request() {
        let at = |ms: i64| slot_s(&Stamp { now: UnixMs(ms), nonce: String::new() });
        assert_eq!([at(10_000), at(19_999), at(20_000)], [10, 10, 20]);
    }

    #[test]
    fn stripe_counts_some_currencies_its_own_way() {
        for (ours, theirs) in [
            (money(149_900, "CNY"), 149_900),
            (money(1_500, "JPY"), 1_500),
            (money(1_230, "KWD"), 1_230),
            (money(5, "ISK"), 500),
            (money(5, "UGX"), 500),
            (money(505, "HUF"), 505),
            (money(505, "TWD"), 505),
            (money(505, "MRU"), 505),
            (money(500, "MGA"), 5),
        ] {
            assert_eq!(to_stripe(ours).unwrap(), theirs, "{ours}");
            assert_eq!(from_stripe(theirs, &lower(ours.currency)), Ok(ours));
        }
    }

    #[test]
    fn a_part_of_the_smallest_coin_is_refused_and_not_rounded() {
        assert_eq!(from_stripe(501, "isk").unwrap_err().code, RefusalCode::Malformed);
        for impossible in [money(505, "MGA"), money(1_234, "KWD"), money(5, "LYD")] {
            assert!(matches!(to_stripe(impossible), Err(CallError::Impossible(_))), "{impossible}");
        }
        assert_eq!(rescaled(5, 2, 0), None);
        assert_eq!(rescaled(i64::MAX, 0, 2), None);
        for (amount, currency) in
            [(0, "usd"), (-1, "usd"), (1, "USD"), (1, "rmb"), (1, ""), (i64::MAX, "mga")]
        {
            assert_eq!(
                from_stripe(amount, currency).unwrap_err().code,
                RefusalCode::Malformed,
                "{amount} {currency}"
            );
        }
    }
}

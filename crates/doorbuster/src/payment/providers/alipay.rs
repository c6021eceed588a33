//! Alipay: signed forms in, signed forms out. Owns Alipay's parameters, its sorted signing text and its yuan.
//! Does not know the ledger. Only RSA2 and UTF-8 are spoken; money is always CNY.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use form_urlencoded::Serializer;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};
use percent_encoding::percent_decode_str;
use rules::money::{Currency, Money};
use rules::time::UnixMs;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::call::{
    Answer, Asked, CallError, Closing, Device, PayAt, PaymentRef, RefundPayment, RefundRef, RefundState,
    Refunding, Request, Stamp, Start, StartPayment, Started, beijing, cut, sound_id, sound_ref,
};
use super::keys::{SigningKey, VerifyingKey};
use super::notice::{
    Capture, Notice, ProviderName, Refund, RefundAmount, Refusal, RefusalCode, What, positive, reference,
    within_limit,
};
use super::{Faults, is_endpoint};
use crate::config::AlipaySettings;

/// How old a notification may be, in milliseconds. Alipay repeats one for 25 hours and signs the time of sending; what is
/// older was kept by somebody.
const NOTIFIED_WITHIN_MS: i64 = 48 * 3_600_000;

/// How far ahead of our clock Alipay's may be, in milliseconds.
const AHEAD_MS: i64 = 300_000;

/// Alipay takes so many characters of a subject or a reason.
const SUBJECT_CHARS_MAX: usize = 256;

/// The longest amount that is read, in characters.
const AMOUNT_CHARS_MAX: usize = 16;

const UNKNOWN_TRADE: &str = "ACQ.TRADE_NOT_EXIST";
const WRONG_TRADE_STATUS: &str = "ACQ.TRADE_STATUS_ERROR";

/// Decoded parameters, each once, in the order in which they are signed.
type Parameters<'a> = BTreeMap<Cow<'a, str>, Cow<'a, str>>;

/// One application at Alipay.
pub struct Alipay {
    url: String,
    app_id: String,
    seller_id: String,
    private_key: SigningKey,
    public_key: VerifyingKey,
    yuan: Currency,
}

impl fmt::Debug for Alipay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alipay").field("url", &self.url).field("app_id", &self.app_id).finish_non_exhaustive()
    }
}

impl Alipay {
    /// `None` when Alipay is not set at all.
    pub(super) fn new(settings: &AlipaySettings, faults: &mut Faults) -> Option<Self> {
        let AlipaySettings { app_id, seller_id, private_key, public_key, url } = settings;
        let texts = [app_id, seller_id, public_key];
        if texts.iter().all(|text| text.is_none()) && private_key.is_none() {
            return None;
        }
        const PRIVATE: &str = "must be the application's RSA private key of at least 2048 bits: \
                               PEM, or the base64 text of Alipay's key tool.";
        const PUBLIC: &str = "must be Alipay's RSA public key (not the application's): PEM, or base64 as the console \
                              shows it.";
        let before = faults.count();
        let app_id = faults.digits("payment.alipay.app_id", app_id);
        let seller_id = faults.digits("payment.alipay.seller_id", seller_id);
        let private_key = private_key.as_ref().and_then(|key| SigningKey::read(key.expose_secret()));
        let private_key = faults.some("payment.alipay.private_key", private_key, PRIVATE);
        let public_key = public_key.as_deref().and_then(VerifyingKey::read);
        let public_key = faults.some("payment.alipay.public_key", public_key, PUBLIC);
        if !is_endpoint(url) {
            faults.add("payment.alipay.url", "must begin with https://.");
        }
        let yuan = "CNY".parse().ok()?;
        let (app_id, seller_id, private_key, public_key) = (app_id?, seller_id?, private_key?, public_key?);
        let alipay = Self { url: url.clone(), app_id, seller_id, private_key, public_key, yuan };
        (faults.count() == before).then_some(alipay)
    }

    pub(super) fn verify(&self, body: &[u8], now: UnixMs) -> Result<Notice, Refusal> {
        within_limit(body)?;
        let text = std::str::from_utf8(body);
        let parameters = parameters(text.map_err(|_| Refusal::malformed("the form is no text"))?)?;
        self.verify_signature(&parameters)?;
        self.read_genuine(&Notification(&parameters), now).map_err(Refusal::of_genuine)
    }

    fn read_genuine(&self, notification: &Notification<'_>, now: UnixMs) -> Result<Notice, Refusal> {
        notification.sent_lately(now)?;
        self.verify_merchant(notification)?;
        let event_id = reference(notification.get("notify_id")?)?;
        Ok(Notice { provider: ProviderName::Alipay, event_id, what: self.what(notification)? })
    }

    fn verify_signature(&self, parameters: &Parameters<'_>) -> Result<(), Refusal> {
        let get = |name: &str| parameters.get(name).map(AsRef::as_ref);
        let signature = get("sign").ok_or(Refusal::malformed("the parameter sign is missing"))?;
        if get("sign_type") != Some("RSA2") {
            return Err(Refusal::signature("it is not signed with RSA2; choose RSA2 in Alipay's console"));
        }
        if !get("charset").is_some_and(|charset| charset.eq_ignore_ascii_case("utf-8")) {
            return Err(Refusal::malformed("its charset is not utf-8"));
        }
        let signed = parameters.iter().filter(|(name, _)| !matches!(name.as_ref(), "sign" | "sign_type"));
        if !self.public_key.verifies(signing_text(signed).as_bytes(), signature) {
            const SENTENCE: &str =
                "the signature does not fit; compare payment.alipay.public_key with the console";
            return Err(Refusal::signature(SENTENCE));
        }
        Ok(())
    }

    fn verify_merchant(&self, notification: &Notification<'_>) -> Result<(), Refusal> {
        let is = |name: &str, ours: &str| notification.0.get(name).is_some_and(|theirs| theirs == ours);
        if !is("app_id", &self.app_id) || !is("seller_id", &self.seller_id) {
            const SENTENCE: &str = "app_id or seller_id is not the one in the settings";
            return Err(Refusal::new(RefusalCode::WrongMerchant, SENTENCE));
        }
        Ok(())
    }

    fn what(&self, notification: &Notification<'_>) -> Result<What, Refusal> {
        let status = notification.get("trade_status")?;
        let refunded = match notification.0.get("refund_fee") {
            Some(fee) => yuan(fee).ok_or(BAD_AMOUNT)?,
            None => 0,
        };
        match status {
            // A closed trade with a refund is one whose money went back in full.
            "TRADE_SUCCESS" | "TRADE_CLOSED" if refunded > 0 => self.refunded(notification, refunded),
            "TRADE_SUCCESS" | "TRADE_FINISHED" => self.captured(notification),
            _ => Ok(What::Other { kind: cut(status, 64) }),
        }
    }

    fn captured(&self, notification: &Notification<'_>) -> Result<What, Refusal> {
        let amount = yuan(notification.get("total_amount")?).ok_or(BAD_AMOUNT)?;
        Ok(What::Captured(Capture {
            capture_id: reference(notification.get("trade_no")?)?,
            payment_id: reference(notification.get("out_trade_no")?)?,
            amount: positive(amount, self.yuan)?,
        }))
    }

    /// Alipay tells the sum of all refunds, and the number of the latest.
    fn refunded(&self, notification: &Notification<'_>, so_far: i64) -> Result<What, Refusal> {
        let refund_id = notification.0.get("out_biz_no").filter(|id| !id.is_empty());
        let refund = Refund {
            capture_id: reference(notification.get("trade_no")?)?,
            payment_id: Some(reference(notification.get("out_trade_no")?)?),
            refund_id: refund_id.map(|id| reference(id)).transpose()?,
            amount: RefundAmount::SoFar(positive(so_far, self.yuan)?),
        };
        Ok(What::Refunded(refund))
    }

    /// An address the buyer is sent to; Alipay hears of the payment when the buyer arrives there.
    pub(super) fn start(&self, payment: &StartPayment, stamp: &Stamp) -> Result<Start, CallError> {
        let (method, product) = match payment.device {
            Device::Desktop => ("alipay.trade.page.pay", "FAST_INSTANT_TRADE_PAY"),
            Device::Phone { .. } => ("alipay.trade.wap.pay", "QUICK_WAP_WAY"),
        };
        let content = json!({
            "out_trade_no": sound_id(&payment.payment_id)?,
            "product_code": product,
            "total_amount": self.to_yuan(payment.amount)?,
            "subject": subject(&payment.title),
            "time_expire": local(payment.pay_by),
        });
        let mut parameters = self.parameters(method, stamp);
        parameters.insert("notify_url".into(), payment.notify_url.as_str().into());
        parameters.insert("return_url".into(), payment.return_url.as_str().into());
        parameters.insert("biz_content".into(), content.to_string().into());
        self.sign(&mut parameters)?;
        let query = Serializer::new(String::new()).extend_pairs(&parameters).finish();
        let pay = PayAt::Url(format!("{}?{query}", self.url));
        Ok(Start::Ready(Started { pay, provider_ref: None }))
    }

    pub(super) fn close(&self, payment: &PaymentRef, stamp: &Stamp) -> Result<Request, CallError> {
        self.request("alipay.trade.close", &json!({"out_trade_no": sound_id(&payment.payment_id)?}), stamp)
    }

    pub(super) fn read_close(&self, answer: &Answer) -> Result<Closing, CallError> {
        match self.believed::<Closed>(answer, "alipay_trade_close_response")? {
            Ok(_) => Ok(Closing::Closed),
            Err(code) if code == UNKNOWN_TRADE => Ok(Closing::Unknown),
            Err(code) if code == WRONG_TRADE_STATUS => Ok(Closing::NotOpen),
            Err(code) => Err(refused(code)),
        }
    }

    pub(super) fn ask(&self, payment: &PaymentRef, stamp: &Stamp) -> Result<Request, CallError> {
        self.request("alipay.trade.query", &json!({"out_trade_no": sound_id(&payment.payment_id)?}), stamp)
    }

    pub(super) fn read_ask(&self, answer: &Answer) -> Result<Asked, CallError> {
        let trade: Trade = match self.believed(answer, "alipay_trade_query_response")? {
            Err(code) if code == UNKNOWN_TRADE => return Ok(Asked::Unknown),
            Err(code) => return Err(refused(code)),
            Ok(trade) => trade,
        };
        match trade.trade_status.as_str() {
            "WAIT_BUYER_PAY" => Ok(Asked::Open),
            "TRADE_SUCCESS" | "TRADE_FINISHED" => self.capture(trade).map(Asked::Paid),
            "TRADE_CLOSED" if trade.send_pay_date.is_some() => Ok(Asked::Refunded),
            "TRADE_CLOSED" => Ok(Asked::Closed),
            _ => Err(CallError::Unbelievable("the trade is in no state we know")),
        }
    }

    fn capture(&self, trade: Trade) -> Result<Capture, CallError> {
        const AMOUNT: CallError = CallError::Unbelievable("the trade has no amount that can be read");
        let amount =
            trade.total_amount.as_deref().and_then(yuan).filter(|amount| *amount > 0).ok_or(AMOUNT)?;
        Ok(Capture {
            capture_id: trade.trade_no,
            payment_id: trade.out_trade_no,
            amount: Money { amount, currency: self.yuan },
        })
    }

    pub(super) fn refund(&self, refund: &RefundPayment, stamp: &Stamp) -> Result<Request, CallError> {
        let content = json!({
            "trade_no": sound_ref(&refund.capture_id)?,
            "out_request_no": sound_id(&refund.refund_id)?,
            "refund_amount": self.to_yuan(refund.amount)?,
            "refund_reason": subject(&refund.reason),
        });
        self.request("alipay.trade.refund", &content, stamp)
    }

    /// `fund_change` is "Y" when this very request moved money; a repeat says "N", which proves nothing: ask.
    pub(super) fn read_refund(&self, answer: &Answer) -> Result<Refunding, CallError> {
        let done: RefundAnswer = self.believed(answer, "alipay_trade_refund_response")?.map_err(refused)?;
        let moved = done.fund_change.as_deref() == Some("Y");
        let state = if moved { RefundState::Done } else { RefundState::Pending };
        Ok(Refunding { state, provider_ref: None })
    }

    pub(super) fn ask_refund(&self, refund: &RefundRef, stamp: &Stamp) -> Result<Request, CallError> {
        let content = json!({
            "trade_no": sound_ref(&refund.capture_id)?,
            "out_request_no": sound_id(&refund.refund_id)?,
        });
        self.request("alipay.trade.fastpay.refund.query", &content, stamp)
    }

    pub(super) fn read_ask_refund(&self, answer: &Answer) -> Result<Refunding, CallError> {
        const NODE: &str = "alipay_trade_fastpay_refund_query_response";
        let told: RefundAnswer = self.believed(answer, NODE)?.map_err(refused)?;
        let state = match told.refund_status.as_deref() {
            Some("REFUND_SUCCESS") => RefundState::Done,
            Some(_) => RefundState::Pending,
            // By Alipay's document it then has not received the request, or failed: the same again, under the same number.
            None => {
                let message = "Alipay knows of no refund under this number, or it failed".to_owned();
                return Err(CallError::TryAgain { code: "no refund_status".to_owned(), message });
            }
        };
        Ok(Refunding { state, provider_ref: None })
    }

    fn request(
        &self,
        method: &str,
        content: &serde_json::Value,
        stamp: &Stamp,
    ) -> Result<Request, CallError> {
        let mut parameters = self.parameters(method, stamp);
        parameters.insert("biz_content".into(), content.to_string().into());
        self.sign(&mut parameters)?;
        let content = parameters.remove("biz_content").unwrap_or_default();
        let query = Serializer::new(String::new()).extend_pairs(&parameters).finish();
        let body = Serializer::new(String::new()).append_pair("biz_content", &content).finish();
        let mut headers = HeaderMap::new();
        let form = HeaderValue::from_static("application/x-www-form-urlencoded;charset=utf-8");
        headers.insert(CONTENT_TYPE, form);
        Ok(Request { method: Method::POST, url: format!("{}?{query}", self.url), headers, body: body.into() })
    }

    fn parameters<'a>(&'a self, method: &'a str, stamp: &Stamp) -> Parameters<'a> {
        let fixed = [
            ("app_id", self.app_id.as_str()),
            ("method", method),
            ("format", "JSON"),
            ("charset", "utf-8"),
            ("sign_type", "RSA2"),
            ("version", "1.0"),
        ];
        let mut parameters: Parameters<'_> =
            fixed.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        parameters.insert("timestamp".into(), local(stamp.now).into());
        parameters
    }

    fn sign(&self, parameters: &mut Parameters<'_>) -> Result<(), CallError> {
        let signature = self.private_key.sign(signing_text(parameters.iter()).as_bytes());
        let signature = signature.ok_or(CallError::Impossible("it could not be signed"))?;
        parameters.insert("sign".into(), signature.into());
        Ok(())
    }

    fn to_yuan(&self, money: Money) -> Result<String, CallError> {
        if money.currency != self.yuan || money.amount < 1 {
            return Err(CallError::Impossible("Alipay takes amounts in CNY, of at least 0.01"));
        }
        Ok(format!("{}.{:02}", money.amount / 100, money.amount % 100))
    }

    /// The content of a signed answer, or Alipay's signed code for why not. What is not signed can only be an error.
    fn believed<T: for<'de> Deserialize<'de>>(
        &self,
        answer: &Answer,
        node: &str,
    ) -> Result<Result<T, String>, CallError> {
        const FORM: CallError = CallError::Unbelievable("it is not in Alipay's form");
        if answer.status != 200 {
            let code = answer.status.to_string();
            return Err(CallError::TryAgain {
                code,
                message: "Alipay's gateway answers with an error".into(),
            });
        }
        let parts: BTreeMap<String, &RawValue> = serde_json::from_slice(&answer.body).map_err(|_| FORM)?;
        let content = parts.get(node).or_else(|| parts.get("error_response")).ok_or(FORM)?.get();
        let signature: Option<String> =
            parts.get("sign").and_then(|signature| serde_json::from_str(signature.get()).ok());
        let signed = signature.is_some_and(|given| self.public_key.verifies(content.as_bytes(), &given));
        let told: Told = serde_json::from_str(content).map_err(|_| FORM)?;
        match (signed, told.code.as_str()) {
            (true, "10000") => serde_json::from_str(content).map(Ok).map_err(|_| FORM),
            (false, "10000") => Err(CallError::Unbelievable("its signature does not fit")),
            (_, "20000") => Err(told.try_again()),
            _ if told.is_passing() => Err(told.try_again()),
            (true, "40004") => Ok(Err(told.sub_code.unwrap_or(told.code))),
            _ => Err(CallError::Refused { code: told.sub_code.unwrap_or(told.code), message: told.msg }),
        }
    }
}

const BAD_AMOUNT: Refusal = Refusal::malformed("an amount is not yuan with at most two decimals");

/// A notification's verified parameters.
struct Notification<'a>(&'a Parameters<'a>);

impl Notification<'_> {
    fn get(&self, name: &str) -> Result<&str, Refusal> {
        let value = self.0.get(name).map(AsRef::as_ref);
        value.ok_or(Refusal::malformed("a parameter that belongs to every trade notification is missing"))
    }

    fn time(&self, name: &str) -> Result<UnixMs, Refusal> {
        instant(self.get(name)?).ok_or(Refusal::malformed("a time is not of the form yyyy-MM-dd HH:mm:ss"))
    }

    fn sent_lately(&self, now: UnixMs) -> Result<(), Refusal> {
        let age_ms = now.0.saturating_sub(self.time("notify_time")?.0);
        if !(-AHEAD_MS..=NOTIFIED_WITHIN_MS).contains(&age_ms) {
            const SENTENCE: &str = "it was sent more than 48 h ago, or its time is ahead of ours; \
                                    if it is genuine, the clock of this machine is wrong";
            return Err(Refusal::new(RefusalCode::Stale, SENTENCE));
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Told {
    code: String,
    #[serde(default)]
    msg: String,
    sub_code: Option<String>,
}

impl Told {
    fn is_passing(&self) -> bool {
        matches!(self.sub_code.as_deref(), Some("ACQ.SYSTEM_ERROR" | "aop.ACQ.SYSTEM_ERROR"))
            || self.sub_code.as_deref().is_some_and(|code| code.starts_with("isp."))
    }

    fn try_again(self) -> CallError {
        CallError::TryAgain { code: self.sub_code.unwrap_or(self.code), message: self.msg }
    }
}

#[derive(Deserialize)]
struct Closed {}

#[derive(Deserialize)]
struct Trade {
    trade_no: String,
    out_trade_no: String,
    trade_status: String,
    total_amount: Option<String>,
    send_pay_date: Option<String>,
}

#[derive(Deserialize)]
struct RefundAnswer {
    fund_change: Option<String>,
    refund_status: Option<String>,
}

fn refused(code: String) -> CallError {
    CallError::Refused { code, message: "see Alipay's list of codes".into() }
}

/// Decodes a form strictly: what is not UTF-8, and a name that occurs twice, could be read in two ways.
fn parameters(form: &str) -> Result<Parameters<'_>, Refusal> {
    let mut parameters = Parameters::new();
    for field in form.split('&').filter(|field| !field.is_empty()) {
        let (name, value) =
            field.split_once('=').ok_or(Refusal::malformed("a field of the form has no ="))?;
        if parameters.insert(decoded(name)?, decoded(value)?).is_some() {
            return Err(Refusal::malformed("a parameter occurs more than once"));
        }
    }
    Ok(parameters)
}

fn decoded(text: &str) -> Result<Cow<'_, str>, Refusal> {
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8();
    Ok(decoded.map_err(|_| Refusal::malformed("the form is not UTF-8"))?.into_owned().into())
}

/// `name=value` in the order of names, joined by `&`, nothing encoded.
fn signing_text<'a>(parameters: impl Iterator<Item = (&'a Cow<'a, str>, &'a Cow<'a, str>)>) -> String {
    let pairs: Vec<String> = parameters.map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

/// Yuan with at most two decimals as fen; never through a float.
fn yuan(text: &str) -> Option<i64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "00"));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = whole == "0" || !whole.starts_with('0');
    let sound = text.len() <= AMOUNT_CHARS_MAX && !whole.is_empty() && (1..=2).contains(&part.len());
    if !(sound && canonical && digits(whole) && digits(part)) {
        return None;
    }
    format!("{whole}{part:0<2}").parse().ok()
}

/// `2026-12-01 20:00:00`, with or without a fraction, on Beijing's clock.
fn instant(text: &str) -> Option<UnixMs> {
    let (date, time) = text.split_once(' ')?;
    let sound =
        date.len() == 10 && time.len() >= 8 && time.bytes().all(|b| matches!(b, b'0'..=b'9' | b':' | b'.'));
    if sound { UnixMs::parse(&format!("{date}T{time}+08:00")).ok() } else { None }
}

fn local(at: UnixMs) -> String {
    beijing(at).replace('T', " ").trim_end_matches("+08:00").to_owned()
}

/// Alipay refuses these characters in texts for people.
fn subject(text: &str) -> String {
    cut(&text.replace(['/', '=', '&'], " "), SUBJECT_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn amounts_are_read_exactly_or_not_at_all() {
        for (text, fen) in [
            ("1499.00", 149_900),
            ("0.01", 1),
            ("20", 2_000),
            ("20.5", 2_050),
            ("0.00", 0),
            ("999999999.99", 99_999_999_999),
        ] {
            assert_eq!(yuan(text), Some(fen), "{text}");
        }
        for bad in [
            "",
            ".",
            "1.",
            ".5",
            "1.999",
            "-1",
            "+1",
            "1e3",
            "1,000.00",
            " 1.00",
            "1.00 ",
            "01.00",
            "0x1",
            "1.0.0",
            "NaN",
            "１.00",
            "99999999999999999",
            "1.-1",
        ] {
            assert_eq!(yuan(bad), None, "{bad}");
        }
    }

    #[test]
    fn times_are_beijings() {
        assert_eq!(instant("2026-12-01 20:00:00"), Some(UnixMs(1_796_126_400_000)));
        assert_eq!(instant("2026-12-01 20:00:00.250"), Some(UnixMs(1_796_126_400_250)));
        assert_eq!(local(UnixMs(1_796_126_400_000)), "2026-12-01 20:00:00");
        for bad in
            ["", "2026-12-01T20:00:00", "2026-12-01 20:00:00Z", "2026-13-01 20:00:00", "2026-12-01 20:00"]
        {
            assert_eq!(instant(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_amount_survives_the_way_there_and_back(amount in 1..=10_000_000_000_000_i64) {
            let text = format!("{}.{:02}", amount / 100, amount % 100);
            prop_assert_eq!(yuan(&text), Some(amount));
        }

        #[test]
        fn no_text_is_read_as_another_amount(text in "[-+0-9.eE, ]{0,12}|[0-9]{1,9}(\\.[0-9]{0,3})?") {
            if let Some(fen) = yuan(&text) {
                let exact = format!("{}.{:02}", fen / 100, fen % 100);
                let forms = [Some(exact.as_str()), exact.strip_suffix('0'), exact.strip_suffix(".00")];
                prop_assert!(forms.contains(&Some(&text)), "{text} is not {exact}");
            }
        }
    }
}

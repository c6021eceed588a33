//! WeChat Pay v3: signed and sealed notifications in, signed JSON out. Owns its headers, its signing texts and its seal.
//! Does not know the ledger, and does not fetch platform certificates: the settings hold them.

use std::collections::BTreeMap;
use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use rules::money::{Currency, Money};
use rules::time::UnixMs;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use serde_json::json;

use super::call::{
    Answer, Asked, CallError, Closing, Device, PayAt, PaymentRef, RefundPayment, RefundRef, RefundState,
    Refunding, Request, Stamp, Start, StartPayment, Started, beijing, cut, cut_bytes, sound_id,
};
use super::keys::{Certificate, SigningKey, VerifyingKey, canonical_serial};
use super::notice::{
    Capture, Notice, ProviderName, Refund, RefundAmount, Refusal, RefusalCode, What, fresh, only, positive,
    reference, seconds, within_limit,
};
use super::{Faults, is_endpoint};
use crate::config::WechatSettings;

/// The one way of signing that is spoken; the other (SM2) needs a contract of its own.
const SCHEME: &str = "WECHATPAY2-SHA256-RSA2048";

/// WeChat's public keys are known by ids that begin so; certificates by a hexadecimal serial number.
const PUBLIC_KEY_ID: &str = "PUB_KEY_ID_";

/// The APIv3 key is an AES-256 key, spelled as so many ASCII characters.
const SEAL_KEY_BYTES: usize = 32;

/// The most platform keys: the current one and those it replaces.
const PLATFORM_KEYS_MAX: usize = 8;

/// WeChat takes so much of a description and of a reason, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 127;
const REASON_BYTES_MAX: usize = 80;

/// Why money does not go back. What is abnormal goes on under its number once somebody has handled it; what is closed never.
const ABNORMAL: &str = "the buyer's account cannot take the money; handle it in WeChat Pay's console";
const CLOSED: &str = "WeChat Pay closed the refund";

const ORDERS: &str = "/v3/pay/transactions";
const REFUNDS: &str = "/v3/refund/domestic/refunds";

/// One merchant at WeChat Pay.
pub struct Wechat {
    url: String,
    mchid: String,
    appid: String,
    certificate_serial: String,
    private_key: SigningKey,
    seal: LessSafeKey,
    platform_keys: BTreeMap<String, VerifyingKey>,
    yuan: Currency,
}

impl fmt::Debug for Wechat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&String> = self.platform_keys.keys().collect();
        let mut shown = f.debug_struct("Wechat");
        shown.field("url", &self.url).field("mchid", &self.mchid).field("platform_keys", &keys);
        shown.finish_non_exhaustive()
    }
}

impl Wechat {
    /// `None` when WeChat Pay is not set at all.
    pub(super) fn new(settings: &WechatSettings, faults: &mut Faults) -> Option<Self> {
        let WechatSettings { mchid, appid, certificate_serial, private_key, api_v3_key, platform_keys, url } =
            settings;
        let unset = [mchid, appid, certificate_serial].iter().all(|text| text.is_none());
        if unset && private_key.is_none() && api_v3_key.is_none() && platform_keys.is_empty() {
            return None;
        }
        const PRIVATE: &str =
            "must be the merchant's RSA private key (apiclient_key.pem) of at least 2048 bits.";
        const SEAL: &str = "must be the APIv3 key: exactly 32 ASCII characters.";
        const SERIAL: &str = "must be the serial number of the merchant's API certificate, in hexadecimal.";
        const APPID: &str = "must be the appid the merchant number is bound to (wx…).";
        let before = faults.count();
        let mchid = faults.digits("payment.wechat.mchid", mchid);
        let appid = appid.clone().filter(|appid| appid.bytes().all(|b| b.is_ascii_alphanumeric()));
        let appid = faults.some("payment.wechat.appid", appid, APPID);
        let serial = certificate_serial.clone().filter(|serial| is_serial(serial));
        let serial = faults.some("payment.wechat.certificate_serial", serial, SERIAL);
        let private_key = private_key.as_ref().and_then(|key| SigningKey::read(key.expose_secret()));
        let private_key = faults.some("payment.wechat.private_key", private_key, PRIVATE);
        let seal = api_v3_key.as_ref().and_then(|key| seal(key.expose_secret()));
        let seal = faults.some("payment.wechat.api_v3_key", seal, SEAL);
        let platform_keys = read_platform_keys(platform_keys, faults);
        if !is_endpoint(url) {
            faults.add("payment.wechat.url", "must begin with https://.");
        }
        let yuan = "CNY".parse().ok()?;
        let url = url.trim_end_matches('/').to_owned();
        let (mchid, appid, certificate_serial) = (mchid?, appid?, serial?);
        let (private_key, seal) = (private_key?, seal?);
        let wechat = Self { url, mchid, appid, certificate_serial, private_key, seal, platform_keys, yuan };
        (faults.count() == before).then_some(wechat)
    }

    pub(super) fn verify(&self, headers: &HeaderMap, body: &[u8], now: UnixMs) -> Result<Notice, Refusal> {
        within_limit(body)?;
        self.verify_signature(headers, body, now)?;
        self.read_genuine(body).map_err(Refusal::of_genuine)
    }

    fn read_genuine(&self, body: &[u8]) -> Result<Notice, Refusal> {
        let envelope: Envelope = read(body)?;
        let event_id = reference(&envelope.id)?;
        let opened = self.open(&envelope.resource)?;
        let what = match envelope.event_type.as_str() {
            "TRANSACTION.SUCCESS" => self.captured(read(&opened)?)?,
            "REFUND.SUCCESS" | "REFUND.ABNORMAL" | "REFUND.CLOSED" => self.refunded(read(&opened)?)?,
            kind => What::Other { kind: cut(kind, 64) },
        };
        Ok(Notice { provider: ProviderName::Wechat, event_id, what })
    }

    fn verify_signature(&self, headers: &HeaderMap, body: &[u8], now: UnixMs) -> Result<(), Refusal> {
        let timestamp = only(headers, "wechatpay-timestamp", "the header Wechatpay-Timestamp is missing")?;
        let nonce = only(headers, "wechatpay-nonce", "the header Wechatpay-Nonce is missing")?;
        let signature = only(headers, "wechatpay-signature", "the header Wechatpay-Signature is missing")?;
        let serial = only(headers, "wechatpay-serial", "the header Wechatpay-Serial is missing")?;
        let signed_at = seconds(timestamp).ok_or(Refusal::malformed("Wechatpay-Timestamp is no number"))?;
        // Older deliveries do not carry it; another scheme must not be taken for this one.
        const TYPE: &str = "wechatpay-signature-type";
        if headers.contains_key(TYPE) && only(headers, TYPE, TYPE)? != SCHEME {
            return Err(Refusal::signature("it is not signed with WECHATPAY2-SHA256-RSA2048"));
        }
        let Some(key) = self.platform_keys.get(&key_name(serial)) else {
            const SENTENCE: &str =
                "it is signed with a platform key that payment.wechat.platform_keys does not hold";
            return Err(Refusal::new(RefusalCode::UnknownCertificate, SENTENCE));
        };
        let message = [timestamp.as_bytes(), b"\n", nonce.as_bytes(), b"\n", body, b"\n"].concat();
        if !key.verifies(&message, signature) {
            return Err(Refusal::signature("the signature does not fit"));
        }
        fresh(signed_at, now)
    }

    fn open(&self, resource: &Resource) -> Result<Vec<u8>, Refusal> {
        const SEAL: Refusal = Refusal::signature(
            "its content cannot be opened; compare payment.wechat.api_v3_key with the console",
        );
        if resource.algorithm != "AEAD_AES_256_GCM" {
            return Err(Refusal::signature("its content is not sealed with AEAD_AES_256_GCM"));
        }
        let mut content = STANDARD.decode(&resource.ciphertext).map_err(|_| SEAL)?;
        let nonce = Nonce::try_assume_unique_for_key(resource.nonce.as_bytes()).map_err(|_| SEAL)?;
        let associated = Aad::from(resource.associated_data.as_deref().unwrap_or_default().as_bytes());
        let opened = self.seal.open_in_place(nonce, associated, &mut content).map_err(|_| SEAL)?;
        Ok(opened.to_vec())
    }

    fn captured(&self, transaction: Transaction) -> Result<What, Refusal> {
        if transaction.mchid != self.mchid || transaction.appid != self.appid {
            return Err(Refusal::new(
                RefusalCode::WrongMerchant,
                "mchid or appid is not the one in the settings",
            ));
        }
        if transaction.trade_state != "SUCCESS" {
            return Err(Refusal::malformed("the transaction of a success has not succeeded"));
        }
        const INCOMPLETE: Refusal = Refusal::malformed("a paid transaction lacks its id or amount");
        let amount = transaction.amount.ok_or(INCOMPLETE)?;
        Ok(What::Captured(Capture {
            capture_id: reference(&transaction.transaction_id.ok_or(INCOMPLETE)?)?,
            payment_id: reference(&transaction.out_trade_no)?,
            amount: positive(amount.total.ok_or(INCOMPLETE)?, self.currency(amount.currency.as_deref())?)?,
        }))
    }

    fn refunded(&self, told: RefundNotice) -> Result<What, Refusal> {
        if told.mchid != self.mchid {
            return Err(Refusal::new(RefusalCode::WrongMerchant, "mchid is not the one in the settings"));
        }
        let amount = positive(told.amount.refund, self.currency(told.amount.currency.as_deref())?)?;
        let refund = Refund {
            capture_id: reference(&told.transaction_id)?,
            payment_id: Some(reference(&told.out_trade_no)?),
            refund_id: Some(reference(&told.out_refund_no)?),
            amount: RefundAmount::This(amount),
        };
        match told.refund_status.as_str() {
            "SUCCESS" => Ok(What::Refunded(refund)),
            "ABNORMAL" => Ok(What::RefundFailed { refund, reason: ABNORMAL.to_owned(), is_final: false }),
            "CLOSED" => Ok(What::RefundFailed { refund, reason: CLOSED.to_owned(), is_final: true }),
            _ => Err(Refusal::malformed("the refund is in no state we know")),
        }
    }

    fn currency(&self, told: Option<&str>) -> Result<Currency, Refusal> {
        match told {
            None | Some("CNY") => Ok(self.yuan),
            Some(other) => other.parse().map_err(|_| Refusal::malformed("the currency is none of ISO 4217")),
        }
    }

    /// Native (a code to scan) on a desktop, H5 (a page that opens the app) on a phone.
    pub(super) fn start(&self, payment: &StartPayment, stamp: &Stamp) -> Result<Start, CallError> {
        let mut content = json!({
            "appid": self.appid,
            "mchid": self.mchid,
            "description": cut_bytes(&payment.title, DESCRIPTION_BYTES_MAX),
            "out_trade_no": sound_id(&payment.payment_id)?,
            "time_expire": beijing(payment.pay_by),
            "notify_url": payment.notify_url,
            "amount": {"total": self.to_fen(payment.amount)?, "currency": "CNY"},
        });
        let way = match payment.device {
            Device::Desktop => "native",
            Device::Phone { address } => {
                let scene = json!({"payer_client_ip": address.to_string(), "h5_info": {"type": "Wap"}});
                content.as_object_mut().map(|content| content.insert("scene_info".into(), scene));
                "h5"
            }
        };
        let request = self.request(Method::POST, &format!("{ORDERS}/{way}"), Some(&content), stamp)?;
        Ok(Start::Send(request))
    }

    pub(super) fn read_start(&self, answer: &Answer, now: UnixMs) -> Result<Started, CallError> {
        let ordered: Ordered = self.believed(answer, now)?.map_err(Told::refused)?;
        let pay = match ordered {
            Ordered { code_url: Some(code), .. } => PayAt::QrCode(code),
            Ordered { h5_url: Some(url), .. } if url.starts_with("https://") => PayAt::Url(url),
            _ => return Err(CallError::Unbelievable("there is neither a code nor an address to pay at")),
        };
        Ok(Started { pay, provider_ref: None })
    }

    pub(super) fn close(&self, payment: &PaymentRef, stamp: &Stamp) -> Result<Request, CallError> {
        let path = format!("{ORDERS}/out-trade-no/{}/close", sound_id(&payment.payment_id)?);
        self.request(Method::POST, &path, Some(&json!({"mchid": self.mchid})), stamp)
    }

    pub(super) fn read_close(&self, answer: &Answer, now: UnixMs) -> Result<Closing, CallError> {
        match self.believed::<Nothing>(answer, now)? {
            Ok(_) => Ok(Closing::Closed),
            Err(told) if told.code == "ORDER_CLOSED" => Ok(Closing::Closed),
            Err(told) if matches!(told.code.as_str(), "ORDERPAID" | "ORDER_PAID") => Ok(Closing::NotOpen),
            Err(told) if told.is_unknown_order() => Ok(Closing::Unknown),
            Err(told) => Err(told.refused()),
        }
    }

    pub(super) fn ask(&self, payment: &PaymentRef, stamp: &Stamp) -> Result<Request, CallError> {
        let id = sound_id(&payment.payment_id)?;
        let path = format!("{ORDERS}/out-trade-no/{id}?mchid={}", self.mchid);
        self.request(Method::GET, &path, None, stamp)
    }

    pub(super) fn read_ask(&self, answer: &Answer, now: UnixMs) -> Result<Asked, CallError> {
        let transaction: Transaction = match self.believed(answer, now)? {
            Ok(transaction) => transaction,
            Err(told) if told.is_unknown_order() => return Ok(Asked::Unknown),
            Err(told) => return Err(told.refused()),
        };
        match transaction.trade_state.as_str() {
            "SUCCESS" => match self.captured(transaction) {
                Ok(What::Captured(capture)) => Ok(Asked::Paid(capture)),
                Ok(_) | Err(_) => {
                    Err(CallError::Unbelievable("a paid order lacks its amount, or is not ours"))
                }
            },
            "NOTPAY" | "USERPAYING" | "ACCEPT" | "PAYERROR" => Ok(Asked::Open),
            "CLOSED" | "REVOKED" => Ok(Asked::Closed),
            "REFUND" => Ok(Asked::Refunded),
            _ => Err(CallError::Unbelievable("the order is in no state we know")),
        }
    }

    pub(super) fn refund(&self, refund: &RefundPayment, stamp: &Stamp) -> Result<Request, CallError> {
        let content = json!({
            "transaction_id": refund.capture_id,
            "out_refund_no": sound_id(&refund.refund_id)?,
            "reason": cut_bytes(&refund.reason, REASON_BYTES_MAX),
            "notify_url": refund.notify_url,
            "amount": {
                "refund": self.to_fen(refund.amount)?,
                "total": self.to_fen(refund.captured)?,
                "currency": "CNY",
            },
        });
        self.request(Method::POST, REFUNDS, Some(&content), stamp)
    }

    pub(super) fn ask_refund(&self, refund: &RefundRef, stamp: &Stamp) -> Result<Request, CallError> {
        let path = format!("{REFUNDS}/{}", sound_id(&refund.refund_id)?);
        self.request(Method::GET, &path, None, stamp)
    }

    pub(super) fn read_refund(&self, answer: &Answer, now: UnixMs) -> Result<Refunding, CallError> {
        let told: RefundAnswer = self.believed(answer, now)?.map_err(Told::refused)?;
        let failed =
            |reason: &str, is_final: bool| RefundState::Failed { reason: reason.to_owned(), is_final };
        let state = match told.status.as_str() {
            "SUCCESS" => RefundState::Done,
            "PROCESSING" => RefundState::Pending,
            "CLOSED" => failed(CLOSED, true),
            "ABNORMAL" => failed(ABNORMAL, false),
            _ => return Err(CallError::Unbelievable("the refund is in no state we know")),
        };
        Ok(Refunding { state, provider_ref: Some(told.refund_id) })
    }

    fn to_fen(&self, money: Money) -> Result<i64, CallError> {
        if money.currency != self.yuan || money.amount < 1 {
            return Err(CallError::Impossible("WeChat Pay takes amounts in CNY, of at least 0.01"));
        }
        Ok(money.amount)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        content: Option<&serde_json::Value>,
        stamp: &Stamp,
    ) -> Result<Request, CallError> {
        const HEADER: CallError = CallError::Impossible("a header cannot carry it");
        let body = content.map(ToString::to_string).unwrap_or_default();
        let authorization = self.authorization(method.as_str(), path, &body, stamp)?;
        let mut authorization = HeaderValue::from_str(&authorization).map_err(|_| HEADER)?;
        authorization.set_sensitive(true);
        let json = HeaderValue::from_static("application/json");
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, authorization);
        headers.insert(ACCEPT, json.clone());
        if content.is_some() {
            headers.insert(CONTENT_TYPE, json);
        }
        // Asks WeChat to sign its answer with this key.
        if let Some(id) = self.platform_keys.keys().find(|id| id.starts_with(PUBLIC_KEY_ID)) {
            let id = HeaderValue::from_str(id).map_err(|_| HEADER)?;
            headers.insert(HeaderName::from_static("wechatpay-serial"), id);
        }
        Ok(Request { method, url: format!("{}{path}", self.url), headers, body: body.into() })
    }

    /// By itself, so that it can be compared with the SDK's for the same bytes.
    pub(super) fn authorization(
        &self,
        method: &str,
        path: &str,
        body: &str,
        stamp: &Stamp,
    ) -> Result<String, CallError> {
        let (timestamp, nonce) = (stamp.now.0.div_euclid(1_000), &stamp.nonce);
        let message = format!("{method}\n{path}\n{timestamp}\n{nonce}\n{body}\n");
        let signature = self.private_key.sign(message.as_bytes());
        let signature = signature.ok_or(CallError::Impossible("it could not be signed"))?;
        let (mchid, serial) = (&self.mchid, &self.certificate_serial);
        Ok(format!(
            "{SCHEME} mchid=\"{mchid}\",nonce_str=\"{nonce}\",signature=\"{signature}\",\
             timestamp=\"{timestamp}\",serial_no=\"{serial}\""
        ))
    }

    /// The content of a signed answer, or WeChat's signed code for why not. What is not signed can only be an error.
    fn believed<T: for<'de> Deserialize<'de>>(
        &self,
        answer: &Answer,
        now: UnixMs,
    ) -> Result<Result<T, Told>, CallError> {
        const FORM: CallError = CallError::Unbelievable("it is not in WeChat Pay's form");
        let signed = self.verify_signature(&answer.headers, &answer.body, now);
        if matches!(answer.status, 200 | 204) {
            signed.map_err(|refusal| CallError::Unbelievable(refusal.sentence))?;
            let content: &[u8] = if answer.body.is_empty() { b"{}" } else { &answer.body };
            return serde_json::from_slice(content).map(Ok).map_err(|_| FORM);
        }
        let told: Told = serde_json::from_slice(&answer.body)
            .unwrap_or_else(|_| Told { code: answer.status.to_string(), message: String::new() });
        match answer.status {
            429 | 500..=599 => Err(CallError::TryAgain { code: told.code, message: told.message }),
            400..=499 if signed.is_ok() => Ok(Err(told)),
            400..=499 => Err(told.refused()),
            _ => Err(FORM),
        }
    }
}

#[derive(Deserialize)]
struct Envelope {
    id: String,
    event_type: String,
    resource: Resource,
}

#[derive(Deserialize)]
struct Resource {
    algorithm: String,
    ciphertext: String,
    nonce: String,
    associated_data: Option<String>,
}

#[derive(Deserialize)]
struct Transaction {
    mchid: String,
    appid: String,
    out_trade_no: String,
    trade_state: String,
    transaction_id: Option<String>,
    amount: Option<TransactionAmount>,
}

#[derive(Deserialize)]
struct TransactionAmount {
    total: Option<i64>,
    currency: Option<String>,
}

#[derive(Deserialize)]
struct RefundNotice {
    mchid: String,
    transaction_id: String,
    out_trade_no: String,
    out_refund_no: String,
    refund_status: String,
    amount: RefundedAmount,
}

#[derive(Deserialize)]
struct RefundedAmount {
    refund: i64,
    currency: Option<String>,
}

#[derive(Deserialize)]
struct Ordered {
    code_url: Option<String>,
    h5_url: Option<String>,
}

#[derive(Deserialize)]
struct Nothing {}

#[derive(Deserialize)]
struct RefundAnswer {
    refund_id: String,
    status: String,
}

#[derive(Deserialize)]
struct Told {
    code: String,
    #[serde(default)]
    message: String,
}

impl Told {
    fn is_unknown_order(&self) -> bool {
        matches!(self.code.as_str(), "ORDER_NOT_EXIST" | "ORDERNOTEXIST" | "RESOURCE_NOT_EXISTS")
    }

    fn refused(self) -> CallError {
        CallError::Refused { code: self.code, message: self.message }
    }
}

/// Each entry is a platform certificate in PEM, which carries its serial number, or `PUB_KEY_ID_…:` and a public key.
fn read_platform_keys(entries: &[String], faults: &mut Faults) -> BTreeMap<String, VerifyingKey> {
    const SENTENCE: &str = "must hold 1 to 8 entries, each a platform certificate in PEM, or `PUB_KEY_ID_…:` followed by \
                            WeChat Pay's public key.";
    let read = |entry: &String| match entry.trim().split_once(':') {
        Some((id, key)) if id.starts_with(PUBLIC_KEY_ID) => Some((key_name(id), VerifyingKey::read(key)?)),
        _ => Certificate::read(entry).map(|certificate| (certificate.serial, certificate.key)),
    };
    let keys: Option<BTreeMap<_, _>> = entries.iter().map(read).collect();
    let keys = keys.filter(|keys| (1..=PLATFORM_KEYS_MAX).contains(&keys.len()));
    faults.some("payment.wechat.platform_keys", keys, SENTENCE).unwrap_or_default()
}

/// One spelling per key: ids of public keys as they are, serial numbers without their leading zeros.
fn key_name(serial: &str) -> String {
    if serial.starts_with(PUBLIC_KEY_ID) { serial.to_owned() } else { canonical_serial(serial) }
}

fn is_serial(text: &str) -> bool {
    (1..=40).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn seal(key: &str) -> Option<LessSafeKey> {
    let sound = key.len() == SEAL_KEY_BYTES && key.is_ascii();
    let key = sound.then(|| UnboundKey::new(&AES_256_GCM, key.as_bytes()).ok())??;
    Some(LessSafeKey::new(key))
}

fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(json).map_err(|_| Refusal::malformed("it is not in WeChat Pay's form"))
}

//! What a provider's notification can mean, why one is refused, and what the provider wants to hear.
//! Owns the words all providers share; knows neither signatures nor where notices go.

use std::fmt;

use http::HeaderMap;
use rules::money::Money;
use rules::time::UnixMs;

/// The largest notification that is looked at, in bytes. Real ones have 1 to 8 KiB.
pub const NOTIFICATION_BYTES_MAX: usize = 64 * 1_024;

/// How old, or how far ahead of our clock, a signature may be, in milliseconds. What Stripe's and WeChat's documents name.
pub const TOLERANCE_MS: u64 = 300_000;

/// The longest id or reference that is taken over from a provider, in bytes.
const REFERENCE_BYTES_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProviderName {
    Stripe,
    Alipay,
    Wechat,
}

impl ProviderName {
    pub const ALL: [Self; 3] = [Self::Stripe, Self::Alipay, Self::Wechat];

    /// As it stands in paths, settings, tables and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stripe => "stripe",
            Self::Alipay => "alipay",
            Self::Wechat => "wechat",
        }
    }
}

impl fmt::Display for ProviderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A notification whose signature, age and merchant were found right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub provider: ProviderName,
    /// The same for every delivery of one notification. Several notifications may tell of one capture.
    pub event_id: String,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Money was taken.
    Captured(Capture),
    /// Money went back.
    Refunded(Refund),
    /// Money did not go back and will not by itself. May follow a `Refunded`: banks send money back. `is_final` as in
    /// [`super::RefundState::Failed`].
    RefundFailed { refund: Refund, reason: String, is_final: bool },
    /// Verified, and nothing to do. `kind` is the provider's word for it.
    Other { kind: String },
}

/// One capture of money. Providers are asked and tell of it under `capture_id`, which is unique per provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    pub capture_id: String,
    /// Our id of the payment, as it was given to the provider when the payment was started.
    pub payment_id: String,
    /// What the buyer owed and paid, before the provider's fees.
    pub amount: Money,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refund {
    /// The capture whose money goes back.
    pub capture_id: String,
    /// Our id of the payment; missing when somebody refunds in the provider's console and the provider does not say.
    pub payment_id: Option<String>,
    /// Our id of the refund; missing when it was made in the provider's console, or only a sum is told.
    pub refund_id: Option<String>,
    pub amount: RefundAmount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefundAmount {
    /// Of this refund.
    This(Money),
    /// Of all refunds of the capture so far.
    SoFar(Money),
}

/// Why a notification is not believed. Nothing of it may be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct Refusal {
    pub code: RefusalCode,
    /// What is wrong and what to look at; holds nothing the sender wrote.
    pub sentence: &'static str,
    /// Whether the provider signed it all the same.
    pub is_genuine: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalCode {
    /// Not signed by the provider, or changed on the way.
    SignatureInvalid,
    /// Signed too long ago, or ahead of our clock.
    Stale,
    /// Genuine, and meant for somebody else.
    WrongMerchant,
    /// Signed with a key that is not in the settings.
    UnknownCertificate,
    /// Cannot be read.
    Malformed,
    /// Too large to be genuine.
    TooLarge,
}

impl RefusalCode {
    /// Stable, for logs, metrics and problem documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SignatureInvalid => "signature_invalid",
            Self::Stale => "notification_stale",
            Self::WrongMerchant => "wrong_merchant",
            Self::UnknownCertificate => "unknown_certificate",
            Self::Malformed => "malformed",
            Self::TooLarge => "too_large",
        }
    }

    /// The HTTP status that goes with it. All of them make the provider try again, in case the settings were wrong.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::SignatureInvalid | Self::Stale | Self::UnknownCertificate => 401,
            Self::WrongMerchant => 403,
            Self::Malformed => 400,
            Self::TooLarge => 413,
        }
    }
}

impl Refusal {
    pub(in crate::payment) const fn new(code: RefusalCode, sentence: &'static str) -> Self {
        Self { code, sentence, is_genuine: false }
    }

    /// What is wrong was found after its signature was found right.
    pub(in crate::payment) const fn of_genuine(self) -> Self {
        Self { is_genuine: true, ..self }
    }

    /// Whether the provider may have told of money that nobody hears of.
    #[must_use]
    pub fn is_alarming(&self) -> bool {
        self.is_genuine && self.code == RefusalCode::Malformed
    }

    pub(in crate::payment) const fn malformed(sentence: &'static str) -> Self {
        Self::new(RefusalCode::Malformed, sentence)
    }

    pub(in crate::payment) const fn signature(sentence: &'static str) -> Self {
        Self::new(RefusalCode::SignatureInvalid, sentence)
    }
}

/// What the provider is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    pub content_type: &'static str,
    pub body: String,
}

/// How the processing of a notification ended.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// It is durable (or there was nothing to do): the provider may forget it.
    Recorded,
    Refused(&'a Refusal),
    /// It could not be made durable: the provider shall send it again.
    NotDurable,
}

impl ProviderName {
    /// The answer in the form this provider reads. Alipay looks only at the text, the others only at the status.
    #[must_use]
    pub fn reply(self, outcome: Outcome<'_>) -> Reply {
        let (status, sentence) = match outcome {
            Outcome::Recorded => (200, None),
            Outcome::Refused(refusal) => (refusal.code.status(), Some(refusal.sentence)),
            Outcome::NotDurable => (503, Some("it could not be recorded; send it again")),
        };
        const TEXT: &str = "text/plain; charset=utf-8";
        const JSON: &str = "application/json";
        match (self, sentence) {
            (Self::Stripe, sentence) => {
                Reply { status, content_type: TEXT, body: sentence.unwrap_or_default().to_owned() }
            }
            (Self::Alipay, None) => Reply { status, content_type: TEXT, body: "success".to_owned() },
            (Self::Alipay, Some(_)) => Reply { status, content_type: TEXT, body: "failure".to_owned() },
            (Self::Wechat, None) => Reply { status, content_type: JSON, body: String::new() },
            (Self::Wechat, Some(sentence)) => {
                let body = serde_json::json!({"code": "FAIL", "message": sentence}).to_string();
                Reply { status, content_type: JSON, body }
            }
        }
    }
}

pub(in crate::payment) fn within_limit(body: &[u8]) -> Result<(), Refusal> {
    const SENTENCE: &str = "the notification is larger than any genuine one";
    if body.len() > NOTIFICATION_BYTES_MAX {
        return Err(Refusal::new(RefusalCode::TooLarge, SENTENCE));
    }
    Ok(())
}

/// Seconds since 1970 as the signature headers spell them: digits and nothing else.
pub(in crate::payment) fn seconds(text: &str) -> Option<UnixMs> {
    const DIGITS_MAX: usize = 12;
    let plain = (1..=DIGITS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let seconds: i64 = if plain { text.parse().ok()? } else { return None };
    Some(UnixMs(seconds * 1_000))
}

pub(in crate::payment) fn fresh(signed_at: UnixMs, now: UnixMs) -> Result<(), Refusal> {
    const SENTENCE: &str = "the notification was signed more than 300 s before or after now; \
                            if it is genuine, the clock of this machine is wrong";
    if now.0.abs_diff(signed_at.0) > TOLERANCE_MS {
        return Err(Refusal::new(RefusalCode::Stale, SENTENCE));
    }
    Ok(())
}

/// The one value of a header. Two of them could be read differently by whoever checked before us.
pub(super) fn only<'h>(
    headers: &'h HeaderMap,
    name: &str,
    missing: &'static str,
) -> Result<&'h str, Refusal> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or(Refusal::malformed(missing))?;
    if values.next().is_some() {
        return Err(Refusal::malformed("a signature header occurs more than once"));
    }
    value.to_str().map_err(|_| Refusal::malformed("a signature header holds more than ASCII text"))
}

/// An id of theirs, or of ours that comes back: short, and nothing that could upset a log or a table.
pub(in crate::payment) fn reference(text: &str) -> Result<String, Refusal> {
    let sound = (1..=REFERENCE_BYTES_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    if !sound {
        return Err(Refusal::malformed("an id is empty, too long or holds strange characters"));
    }
    Ok(text.to_owned())
}

/// Money of a capture or a refund: at least one minor unit. It has no upper bound: money that came is written down, and
/// what is more than any order costs goes back.
pub(in crate::payment) fn positive(amount: i64, currency: rules::money::Currency) -> Result<Money, Refusal> {
    if amount < 1 {
        return Err(Refusal::malformed("an amount is not at least one minor unit"));
    }
    Ok(Money { amount, currency })
}

//! What we ask of a provider and what it can answer, as values; and the one function that sends.
//! Owns the shared words of all providers' requests. Knows no provider, keeps nothing, repeats nothing.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderMap, Method};
use reqwest::Client;
use reqwest::redirect::Policy;
use rules::money::Money;
use rules::time::UnixMs;

use super::notice::Capture;

/// How long a connection to a provider may take to open.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// The largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 256 * 1_024;

/// Idle connections kept per provider.
const IDLE_MAX: usize = 8;

/// A request, ready to be sent. Its key or signature is marked as sensitive and not shown by `Debug`.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: Method,
    pub url: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A provider's answer, not yet believed.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// What makes a request unique and timely. Handed in, so that building a request is pure.
#[derive(Clone, Debug)]
pub struct Stamp {
    pub now: UnixMs,
    /// Never the same twice; 32 letters and digits.
    pub nonce: String,
}

impl Stamp {
    /// With a random nonce.
    #[must_use]
    pub fn at(now: UnixMs) -> Self {
        Self { now, nonce: format!("{:032x}", rand::random::<u128>()) }
    }
}

/// Where the buyer sits, which decides between a page, a phone page and a code to scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Desktop,
    /// WeChat wants the address of the phone and compares it.
    Phone {
        address: IpAddr,
    },
}

#[derive(Clone, Debug)]
pub struct StartPayment {
    /// Ours, 6 to 32 letters, digits, `-` or `_`. A repeat with the same id and the same values is the same payment.
    pub payment_id: String,
    pub amount: Money,
    /// What the buyer sees on the provider's page.
    pub title: String,
    pub pay_by: UnixMs,
    /// Where the provider sends notifications. Stripe knows that from its dashboard instead.
    pub notify_url: String,
    /// Where the buyer comes back to.
    pub return_url: String,
    pub device: Device,
}

/// How a payment is started.
#[derive(Clone, Debug)]
pub enum Start {
    /// Nothing to send: the buyer is sent to this address.
    Ready(Started),
    /// Send it and read the answer with `read_start`.
    Send(Request),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    pub pay: PayAt,
    /// The provider's name of the payment, needed to ask for it or to close it; `None` where our own id serves.
    pub provider_ref: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayAt {
    /// The buyer's browser goes there.
    Url(String),
    /// The buyer scans this text as a QR code.
    QrCode(String),
}

/// Names a started payment.
#[derive(Clone, Debug)]
pub struct PaymentRef {
    pub payment_id: String,
    /// [`Started::provider_ref`].
    pub provider_ref: Option<String>,
}

/// What became of closing a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// No money can come any more.
    Closed,
    /// It is not open: paid, or closed already. Ask which.
    NotOpen,
    /// The provider has never heard of it: the buyer has not been there yet.
    Unknown,
}

/// The provider's view of a payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Open,
    Paid(Capture),
    /// Without money.
    Closed,
    /// It was paid and the money went back.
    Refunded,
    /// The provider has never heard of it.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct RefundPayment {
    pub payment_id: String,
    pub capture_id: String,
    /// Our number of the refund, made like `payment_id`. A repeat with the same number refunds nothing more.
    pub refund_id: String,
    pub amount: Money,
    /// The whole capture.
    pub captured: Money,
    /// What the buyer may read.
    pub reason: String,
    pub notify_url: String,
}

/// Names a refund that was asked for.
#[derive(Clone, Debug)]
pub struct RefundRef {
    pub payment_id: String,
    pub capture_id: String,
    pub refund_id: String,
    /// [`Refunding::provider_ref`].
    pub provider_ref: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refunding {
    pub state: RefundState,
    /// The provider's name of the refund, needed to ask for it; `None` where our own id serves.
    pub provider_ref: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefundState {
    Done,
    /// Under way, or not known yet: ask later or wait for the notification.
    Pending,
    Failed {
        reason: String,
        /// Whether this refund can never happen any more. Then another one needs a `refund_id` of its own; before, it
        /// must not have one.
        is_final: bool,
    },
}

/// Why there is no answer to use.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("the request cannot be made: {0}")]
    Impossible(&'static str),
    /// Certainly nothing happened; asking again would change nothing.
    #[error("the provider refuses ({code}): {message}")]
    Refused { code: String, message: String },
    /// It may or may not have happened; the same request again is safe.
    #[error("the provider cannot now ({code}): {message}")]
    TryAgain { code: String, message: String },
    /// As above.
    #[error("no answer: {0}")]
    Unanswered(String),
    /// Something answered that is not the provider, or a provider we do not know. It may or may not have happened.
    #[error("the answer is not to be believed: {0}")]
    Unbelievable(&'static str),
}

impl CallError {
    /// Whether the same request may be sent again with hope.
    #[must_use]
    pub const fn is_worth_repeating(&self) -> bool {
        match self {
            Self::TryAgain { .. } | Self::Unanswered(_) => true,
            Self::Impossible(_) | Self::Refused { .. } | Self::Unbelievable(_) => false,
        }
    }
}

/// The client for [`send`]. Nothing is followed: a provider that sends us elsewhere is not the provider.
pub fn client() -> anyhow::Result<Client> {
    Client::builder()
        .redirect(Policy::none())
        .connect_timeout(CONNECT_WITHIN)
        .pool_max_idle_per_host(IDLE_MAX)
        .user_agent(concat!("doorbuster/", env!("CARGO_PKG_VERSION")))
        .build()
        .context("no HTTPS client for payments")
}

/// Sends once and reads the whole answer, all within the time given.
pub async fn send(client: &Client, request: Request, within: Duration) -> Result<Answer, CallError> {
    let Request { method, url, headers, body } = request;
    let sent = client.request(method, url).headers(headers).body(body).timeout(within).send().await;
    let mut response = sent.map_err(unanswered)?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unanswered)? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err(CallError::Unbelievable("it is too large"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Answer { status, headers, body: body.into() })
}

/// Without the address: Alipay's carries a signature, and logs need neither.
fn unanswered(error: reqwest::Error) -> CallError {
    let mut told = String::new();
    let error = error.without_url();
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    while let Some(error) = cause {
        told = if told.is_empty() { error.to_string() } else { format!("{told}: {error}") };
        cause = error.source();
    }
    CallError::Unanswered(told)
}

/// Ids that go into paths, forms and the providers' tables. WeChat's rule is the narrowest.
pub(super) fn sound_id(id: &str) -> Result<&str, CallError> {
    let sound = (6..=32).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if !sound {
        return Err(CallError::Impossible("an id of ours must have 6 to 32 letters, digits, `-` or `_`"));
    }
    Ok(id)
}

/// A provider's id that goes into a path.
pub(super) fn sound_ref(id: &str) -> Result<&str, CallError> {
    let sound = (1..=128).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if !sound {
        return Err(CallError::Impossible("the provider's id holds strange characters"));
    }
    Ok(id)
}

/// The text, cut after `most` bytes, between characters.
pub(super) fn cut_bytes(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or_default()
}

/// The text, cut after `most` characters.
pub(super) fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// `2026-12-01T20:00:00+08:00`: the wall clock in Beijing, in which both Chinese providers think.
pub(super) fn beijing(at: UnixMs) -> String {
    const EIGHT_HOURS_MS: i64 = 8 * 3_600_000;
    let shifted = at.plus_ms(EIGHT_HOURS_MS).to_string();
    let seconds = shifted.split('.').next().unwrap_or_default();
    format!("{seconds}+08:00")
}

//! The real providers: what they send us, verified and put into our words, and what we send them, as values.
//! Owns the choice between them. Does not know orders, the ledger or our HTTP; time and nonces are handed in, so all of
//! it but `send` is pure. The requests follow the providers' documents and have not been tried with the providers.

use std::net::IpAddr;

use http::HeaderMap;
use reqwest::Url;
use rules::time::UnixMs;

use crate::config::{PaymentSettings, Problem};

mod alipay;
mod call;
mod keys;
mod notice;
mod stripe;
mod wechat;

#[cfg(test)]
mod tests;

pub use alipay::Alipay;
pub use call::{
    Answer, Asked, CallError, Closing, Device, PayAt, PaymentRef, RefundPayment, RefundRef, RefundState,
    Refunding, Request, Stamp, Start, StartPayment, Started, client, send,
};
pub use notice::{
    Capture, NOTIFICATION_BYTES_MAX, Notice, Outcome, ProviderName, Refund, RefundAmount, Refusal,
    RefusalCode, Reply, TOLERANCE_MS, What,
};
pub(super) use notice::{fresh, positive, reference, seconds, within_limit};
pub use stripe::Stripe;
pub use wechat::Wechat;

/// Of no ledger: where only the settings are looked at.
pub const NO_SHOP: [u8; 16] = [0; 16];

/// The providers the settings name.
#[derive(Debug, Default)]
pub struct Providers {
    all: Vec<Provider>,
}

#[derive(Debug)]
pub enum Provider {
    Stripe(Box<Stripe>),
    Alipay(Box<Alipay>),
    Wechat(Box<Wechat>),
}

impl Providers {
    /// Reads all keys; says everything that is wrong at once. A provider of which nothing is set is off. `shop` tells
    /// whose payments they are, where several shops share an account.
    pub fn new(settings: &PaymentSettings, shop: &[u8; 16]) -> Result<Self, Vec<Problem>> {
        let mut faults = Faults::default();
        let stripe =
            Stripe::new(&settings.stripe, shop, &mut faults).map(|it| Provider::Stripe(Box::new(it)));
        let alipay = Alipay::new(&settings.alipay, &mut faults).map(|it| Provider::Alipay(Box::new(it)));
        let wechat = Wechat::new(&settings.wechat, &mut faults).map(|it| Provider::Wechat(Box::new(it)));
        if !faults.0.is_empty() {
            return Err(faults.0);
        }
        Ok(Self { all: [stripe, alipay, wechat].into_iter().flatten().collect() })
    }

    #[must_use]
    pub fn get(&self, name: ProviderName) -> Option<&Provider> {
        self.all.iter().find(|provider| provider.name() == name)
    }

    /// Those that are on, for whoever shows a choice.
    pub fn names(&self) -> impl Iterator<Item = ProviderName> {
        self.all.iter().map(Provider::name)
    }
}

impl Provider {
    #[must_use]
    pub fn name(&self) -> ProviderName {
        match self {
            Self::Stripe(_) => ProviderName::Stripe,
            Self::Alipay(_) => ProviderName::Alipay,
            Self::Wechat(_) => ProviderName::Wechat,
        }
    }

    /// Believes a notification or refuses it. `body` must be the bytes as they arrived. Pure: the same notification gives
    /// the same notice as often as it comes; that it counts once is up to whoever records it.
    pub fn verify(&self, headers: &HeaderMap, body: &[u8], now: UnixMs) -> Result<Notice, Refusal> {
        match self {
            Self::Stripe(it) => it.verify(headers, body, now),
            Self::Alipay(it) => it.verify(body, now),
            Self::Wechat(it) => it.verify(headers, body, now),
        }
    }

    /// Starts a payment. A repeat with the same values is the same payment.
    pub fn start(&self, payment: &StartPayment, stamp: &Stamp) -> Result<Start, CallError> {
        match self {
            Self::Stripe(it) => it.start(payment, stamp),
            Self::Alipay(it) => it.start(payment, stamp),
            Self::Wechat(it) => it.start(payment, stamp),
        }
    }

    pub fn read_start(&self, answer: &Answer, now: UnixMs) -> Result<Started, CallError> {
        match self {
            Self::Stripe(it) => it.read_start(answer),
            Self::Alipay(_) => Err(CallError::Impossible("Alipay is not asked to start a payment")),
            Self::Wechat(it) => it.read_start(answer, now),
        }
    }

    /// Asks the provider to take no money for it any more. A repeat is harmless.
    pub fn close(&self, payment: &PaymentRef, stamp: &Stamp) -> Result<Request, CallError> {
        match self {
            Self::Stripe(it) => it.close(payment, stamp),
            Self::Alipay(it) => it.close(payment, stamp),
            Self::Wechat(it) => it.close(payment, stamp),
        }
    }

    pub fn read_close(&self, answer: &Answer, now: UnixMs) -> Result<Closing, CallError> {
        match self {
            Self::Stripe(it) => it.read_close(answer),
            Self::Alipay(it) => it.read_close(answer),
            Self::Wechat(it) => it.read_close(answer, now),
        }
    }

    /// Asks for the state of a payment; changes nothing.
    pub fn ask(&self, payment: &PaymentRef, stamp: &Stamp) -> Result<Request, CallError> {
        match self {
            Self::Stripe(it) => it.ask(payment),
            Self::Alipay(it) => it.ask(payment, stamp),
            Self::Wechat(it) => it.ask(payment, stamp),
        }
    }

    pub fn read_ask(&self, answer: &Answer, now: UnixMs) -> Result<Asked, CallError> {
        match self {
            Self::Stripe(it) => it.read_ask(answer),
            Self::Alipay(it) => it.read_ask(answer),
            Self::Wechat(it) => it.read_ask(answer, now),
        }
    }

    /// Gives money back. A repeat with the same `refund_id` and the same values gives nothing more.
    pub fn refund(&self, refund: &RefundPayment, stamp: &Stamp) -> Result<Request, CallError> {
        match self {
            Self::Stripe(it) => it.refund(refund),
            Self::Alipay(it) => it.refund(refund, stamp),
            Self::Wechat(it) => it.refund(refund, stamp),
        }
    }

    pub fn read_refund(&self, answer: &Answer, now: UnixMs) -> Result<Refunding, CallError> {
        match self {
            Self::Stripe(it) => it.read_refund(answer),
            Self::Alipay(it) => it.read_refund(answer),
            Self::Wechat(it) => it.read_refund(answer, now),
        }
    }

    /// Whether a refund that was refused will be refused for ever under its number. Stripe repeats its first answer;
    /// WeChat Pay and Alipay look again, and want the same number.
    #[must_use]
    pub const fn remembers_refusals(&self) -> bool {
        match self {
            Self::Stripe(_) => true,
            Self::Alipay(_) | Self::Wechat(_) => false,
        }
    }

    /// Whether it hears of a payment only when the buyer arrives there. What it does not know may then still be paid.
    #[must_use]
    pub const fn hears_from_buyers(&self) -> bool {
        match self {
            Self::Alipay(_) => true,
            Self::Stripe(_) | Self::Wechat(_) => false,
        }
    }

    /// Asks for the state of a refund; changes nothing.
    pub fn ask_refund(&self, refund: &RefundRef, stamp: &Stamp) -> Result<Request, CallError> {
        match self {
            Self::Stripe(it) => it.ask_refund(refund),
            Self::Alipay(it) => it.ask_refund(refund, stamp),
            Self::Wechat(it) => it.ask_refund(refund, stamp),
        }
    }

    pub fn read_ask_refund(&self, answer: &Answer, now: UnixMs) -> Result<Refunding, CallError> {
        match self {
            Self::Stripe(it) => it.read_refund(answer),
            Self::Alipay(it) => it.read_ask_refund(answer),
            Self::Wechat(it) => it.read_refund(answer, now),
        }
    }
}

/// What is wrong with the settings, gathered while they are read.
#[derive(Debug, Default)]
struct Faults(Vec<Problem>);

impl Faults {
    fn add(&mut self, key: &'static str, sentence: &str) {
        self.0.push(Problem { key, sentence: sentence.to_owned() });
    }

    fn count(&self) -> usize {
        self.0.len()
    }

    /// `read`, or a fault when it is missing.
    fn some<T>(&mut self, key: &'static str, read: Option<T>, sentence: &str) -> Option<T> {
        if read.is_none() {
            self.add(key, sentence);
        }
        read
    }

    /// A number that names somebody: 1 to 32 digits.
    fn digits(&mut self, key: &'static str, text: &Option<String>) -> Option<String> {
        let is_number =
            |text: &String| (1..=32).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        self.some(
            key,
            text.clone().filter(is_number),
            "must be set to the number the provider gave you (digits only).",
        )
    }
}

/// Where a provider listens: https, or a loopback address, where tests and stand-ins live.
fn is_endpoint(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let loopback = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    url.query().is_none() && (url.scheme() == "https" || (url.scheme() == "http" && loopback))
}

//! The port: all providers behind one door, the sandbox among them. Owns which are on, how long each is waited for, and
//! the way from their words to the ledger's. Decides nothing about orders and writes nothing down.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context as _;
use http::HeaderMap;
use parking_lot::Mutex;
use reqwest::Client;
use rules::deadline::{Outage, PROVIDER_ASKED_FOR_MS, Span};
use rules::id::{PaymentId, timed};
use rules::payment::{self, CaptureKey};
use rules::time::UnixMs;
use secrecy::ExposeSecret as _;

use super::providers::{
    self, Asked, CallError, Closing, Device, PayAt, PaymentRef, Provider, ProviderName, Providers,
    RefundAmount, RefundPayment, RefundRef, RefundState, Refunding, Refusal, Request, Stamp, Start,
    StartPayment, What,
};
use super::sandbox::{Sandbox, SandboxWord};
use crate::clock::Clock;
use crate::config::{ORDER_IN_URL, Settings};
use crate::guard;
use crate::ledger::money::{Names, Notice, Payment, RefundFailure, Told};

/// How long a provider may take to answer, at a deadline, whether a payment was paid.
const ASK_WITHIN: Duration = Duration::from_millis(PROVIDER_ASKED_FOR_MS.unsigned_abs());

/// How long a provider may take to start a payment: a buyer waits for it.
const START_WITHIN: Duration = Duration::from_secs(8);

/// How long a provider may take to close a payment or to return money: nobody waits for it.
const CALL_WITHIN: Duration = Duration::from_secs(15);

/// Outages that are remembered of one provider; older ones are forgotten first.
const OUTAGES_MAX: usize = 64;

/// Of a payment whose provider was taken out of the settings.
const OFF: CallError = CallError::Impossible("this provider is not set up any more");

/// A provider by its name in paths, tables and JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    Sandbox,
    Real(ProviderName),
}

impl Name {
    pub const ALL: [Self; 4] = [
        Self::Real(ProviderName::Stripe),
        Self::Real(ProviderName::Alipay),
        Self::Real(ProviderName::Wechat),
        Self::Sandbox,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Real(name) => name.as_str(),
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|name| name.as_str() == text)
    }
}

/// What a buyer's payment needs to be started.
#[derive(Clone, Debug)]
pub struct Beginning {
    pub title: String,
    pub pay_by: UnixMs,
    pub device: Device,
}

/// Where the buyer pays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// An address, or, with WeChat Pay on a desktop, the text of a code to scan (`weixin://…`).
    pub pay_url: String,
    pub provider_ref: Option<String>,
}

/// A verified notification.
#[derive(Clone, Debug)]
pub enum Heard {
    /// To be written down.
    Notice(Notice),
    /// The buyer tried to pay and could not.
    Failed { payment: PaymentId },
    /// Nothing to do. `kind` is the provider's word for it.
    Nothing { kind: String },
}

/// What a provider says of a started payment when it is asked.
#[derive(Clone, Debug)]
pub enum Word {
    /// What its callback would tell; once either is taken, the other is a duplicate.
    Paid(Box<Notice>),
    NotPaid,
}

/// What came of asking a provider to take no money for a payment any more.
#[derive(Clone, Debug)]
pub enum Shut {
    /// It takes none, and has taken none.
    Shut,
    /// It had taken it before; what its callback would tell.
    Paid(Box<Notice>),
    /// It can no longer be closed, and the money is not there: some ways of paying take days.
    OnItsWay,
    /// It hears of a payment from its buyer, and has not: the buyer may still go there while the address is good.
    NotThereYet,
}

/// What came of asking a provider to return money.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefundAnswer {
    /// The money is back.
    Done,
    /// It is on its way; ask again later, or hear of it. `refund_ref` is the provider's name of it, where it has one.
    Pending { refund_ref: Option<String> },
    /// This refund has failed.
    Failed(RefundFailure),
    /// No answer, or not now, or refused: an empty account is filled, a wrong setting is mended.
    NotNow(RefundFailure),
}

/// All providers that are on.
#[derive(Debug)]
pub struct Port {
    client: Client,
    providers: Providers,
    sandbox: Option<Sandbox>,
    clock: Clock,
    public_url: Option<String>,
    return_url: Option<String>,
    home: OnceLock<SocketAddr>,
    /// By the names of providers.
    outages: Mutex<BTreeMap<&'static str, Outages>>,
}

/// When payments could not be started at one provider: from a failure to the next success. In between nobody was seen to get
/// through; that somebody might have is in doubt, and the doubt is the buyers'. Alipay is never seen to fail: a payment
/// there is started by its buyer's arrival.
#[derive(Debug, Default)]
struct Outages {
    past: VecDeque<Span>,
    since: Option<UnixMs>,
}

impl Outages {
    fn until(&self, now: UnixMs) -> impl Iterator<Item = Span> {
        let open = self.since.map(|from| Span { from, until: now });
        self.past.iter().copied().chain(open)
    }

    fn note<T>(&mut self, begun: &Result<T, CallError>, now: UnixMs) {
        match begun {
            Err(error) if error.is_worth_repeating() => {
                self.since.get_or_insert(now);
            }
            Err(_) => {}
            Ok(_) => {
                let Some(from) = self.since.take() else { return };
                if self.past.len() == OUTAGES_MAX {
                    self.past.pop_front();
                }
                self.past.push_back(Span { from, until: now });
            }
        }
    }
}

impl Port {
    /// `shop` tells this ledger from all others: the sandbox signs it, and Stripe carries it with every payment.
    pub fn new(settings: &Settings, clock: Clock, shop: &[u8; 16]) -> anyhow::Result<Self> {
        let providers = Providers::new(&settings.payment, shop).map_err(|problems| {
            let sentences: Vec<String> = problems.iter().map(ToString::to_string).collect();
            anyhow::anyhow!("{}", sentences.join("\n"))
        })?;
        let sandbox = if settings.payment.sandbox || settings.demo {
            let secret = settings.pass.secret.as_ref().context("pass.secret is not set")?;
            Some(Sandbox::new(secret.expose_secret().as_bytes(), shop)?)
        } else {
            None
        };
        let public_url = settings.public_url.as_ref().map(|url| url.trim_end_matches('/').to_owned());
        Ok(Self {
            client: providers::client()?,
            providers,
            sandbox,
            clock,
            public_url,
            return_url: settings.payment.return_url.clone(),
            home: OnceLock::new(),
            outages: Mutex::default(),
        })
    }

    /// Where this process listens for buyers. Said once, before anybody is served.
    pub fn listens_at(&self, address: SocketAddr) {
        // A second word would be about the same listener.
        let _ = self.home.set(address);
    }

    /// The address of the buyers' listener, as this machine reaches it.
    #[must_use]
    pub fn home(&self) -> Option<SocketAddr> {
        self.home.get().copied().map(guard::reachable)
    }

    /// Whether only this machine reaches the buyers' listener itself.
    #[must_use]
    pub fn is_at_home_only(&self) -> bool {
        self.home.get().is_some_and(|home| home.ip().is_loopback())
    }

    #[must_use]
    pub fn sandbox(&self) -> Option<&Sandbox> {
        self.sandbox.as_ref()
    }

    /// A provider that is on.
    #[must_use]
    pub fn named(&self, text: &str) -> Option<Name> {
        let name = Name::parse(text)?;
        let is_on = match name {
            Name::Sandbox => self.sandbox.is_some(),
            Name::Real(real) => self.providers.get(real).is_some(),
        };
        is_on.then_some(name)
    }

    /// The real ones that are on. Whether the sandbox serves depends on the sale.
    pub fn real_names(&self) -> impl Iterator<Item = &'static str> {
        self.providers.names().map(|name| Name::Real(name).as_str())
    }

    /// An address of ours, as buyers and providers reach it.
    #[must_use]
    pub fn address_of(&self, path: &str) -> String {
        match (&self.public_url, self.home()) {
            (Some(url), _) => format!("{url}{path}"),
            (None, Some(home)) => format!("http://{home}{path}"),
            (None, None) => path.to_owned(),
        }
    }

    /// Where a buyer comes back to from a provider: the page of the order.
    fn page_of(&self, order: &str) -> String {
        match &self.return_url {
            Some(url) => url.replace(ORDER_IN_URL, order),
            None => self.address_of(&format!("/orders/{order}")),
        }
    }

    /// Starts a payment at its provider. A repeat is the same payment there.
    pub async fn start(&self, payment: &Payment, beginning: &Beginning) -> Result<Begun, CallError> {
        match self.find(&payment.provider)? {
            Found::Sandbox(_) => Ok(Begun {
                pay_url: self.address_of(&format!("/sandbox/pay/{}", payment.reference)),
                provider_ref: None,
            }),
            Found::Real(provider) => {
                let begun = self.start_real(provider, payment, beginning).await;
                let name = Name::Real(provider.name()).as_str();
                self.outages.lock().entry(name).or_default().note(&begun, self.clock.now());
                begun
            }
        }
    }

    async fn start_real(
        &self,
        provider: &Provider,
        payment: &Payment,
        beginning: &Beginning,
    ) -> Result<Begun, CallError> {
        let order = payment.order.map(|order| order.to_string()).unwrap_or_default();
        let start = StartPayment {
            payment_id: payment.reference.clone(),
            amount: payment.money,
            title: beginning.title.clone(),
            pay_by: beginning.pay_by,
            notify_url: self.notify_url(provider),
            return_url: self.page_of(&order),
            device: beginning.device,
        };
        let started = match provider.start(&start, &self.stamp())? {
            Start::Ready(started) => started,
            Start::Send(request) => {
                let answer = self.send(request, START_WITHIN).await?;
                provider.read_start(&answer, self.clock.now())?
            }
        };
        let pay_url = match started.pay {
            PayAt::Url(url) => url,
            PayAt::QrCode(code) => code,
        };
        Ok(Begun { pay_url, provider_ref: started.provider_ref })
    }

    /// Whether a started payment was paid, by its provider's verified answer. Asking changes nothing.
    pub async fn ask(&self, payment: &Payment, now: UnixMs) -> Result<Word, CallError> {
        match self.ask_provider(payment, now).await? {
            Asked::Paid(capture) => told_when_asked(payment, &capture, now),
            // What was paid and went back pays nothing.
            Asked::Open | Asked::Closed | Asked::Refunded | Asked::Unknown => Ok(Word::NotPaid),
        }
    }

    async fn ask_provider(&self, payment: &Payment, now: UnixMs) -> Result<Asked, CallError> {
        match self.find(&payment.provider)? {
            Found::Sandbox(sandbox) => Ok(sandbox.ask(payment)),
            Found::Real(provider) => {
                let request = provider.ask(&reference(payment), &Stamp::at(now))?;
                let answer = self.send(request, ASK_WITHIN).await?;
                provider.read_ask(&answer, self.clock.now())
            }
        }
    }

    /// Asks the provider to take no money for a payment any more, and, where it is not open there any more, what became
    /// of it. A repeat is harmless; money that comes all the same is settled like any other.
    pub async fn shut(&self, payment: &Payment) -> Result<Shut, CallError> {
        match self.close(payment).await? {
            Closing::Unknown if self.hears_from_buyers(payment) => return Ok(Shut::NotThereYet),
            Closing::Closed | Closing::Unknown => return Ok(Shut::Shut),
            Closing::NotOpen => {}
        }
        let now = self.clock.now();
        match self.ask_provider(payment, now).await? {
            Asked::Paid(capture) => match told_when_asked(payment, &capture, now)? {
                Word::Paid(told) => Ok(Shut::Paid(told)),
                Word::NotPaid => Ok(Shut::Shut),
            },
            Asked::Open => Ok(Shut::OnItsWay),
            Asked::Closed | Asked::Refunded | Asked::Unknown => Ok(Shut::Shut),
        }
    }

    fn hears_from_buyers(&self, payment: &Payment) -> bool {
        matches!(self.find(&payment.provider), Ok(Found::Real(provider)) if provider.hears_from_buyers())
    }

    async fn close(&self, payment: &Payment) -> Result<Closing, CallError> {
        // The sandbox takes money whenever it is told to, also when it is off: there is nothing to close.
        if Name::parse(&payment.provider) == Some(Name::Sandbox) {
            return Ok(Closing::Closed);
        }
        let Found::Real(provider) = self.find(&payment.provider)? else { return Ok(Closing::Closed) };
        let request = provider.close(&reference(payment), &self.stamp())?;
        let answer = self.send(request, CALL_WITHIN).await?;
        provider.read_close(&answer, self.clock.now())
    }

    /// Asks the provider to return all of a capture, or, where it has named that refund, how it stands. A repeat is the
    /// same refund, known by [`Payment::refund_number`].
    pub async fn refund(&self, payment: &Payment) -> RefundAnswer {
        match self.find(&payment.provider) {
            Ok(Found::Sandbox(_)) => RefundAnswer::Done,
            Ok(Found::Real(provider)) => match &payment.refund_ref {
                Some(_) => {
                    let asked = self.ask_refund(provider, payment, payment.refund_ref.clone()).await;
                    // Whatever is wrong with asking says nothing about the refund.
                    refund_answer(payment, asked, false)
                }
                None => {
                    let sent = self.send_refund(provider, payment).await;
                    let is_refused = matches!(sent, Err(CallError::Refused { .. }));
                    refund_answer(payment, sent, is_refused && provider.remembers_refusals())
                }
            },
            Err(error) => refund_answer(payment, Err(error), false),
        }
    }

    /// A repeat may be answered with what was true the first time, so what is pending is asked for.
    async fn send_refund(&self, provider: &Provider, payment: &Payment) -> Result<Refunding, CallError> {
        let reason = payment.status.reason.map(payment::RefundReason::sentence).unwrap_or_default();
        let refund = RefundPayment {
            payment_id: payment.reference.clone(),
            capture_id: payment.capture_id.clone().unwrap_or_default(),
            refund_id: payment.refund_number(),
            amount: payment.money,
            captured: payment.money,
            reason: reason.to_owned(),
            notify_url: self.notify_url(provider),
        };
        let request = provider.refund(&refund, &self.stamp())?;
        let answer = self.send(request, CALL_WITHIN).await?;
        let refunding = provider.read_refund(&answer, self.clock.now())?;
        if refunding.state != RefundState::Pending {
            return Ok(refunding);
        }
        let asked = self.ask_refund(provider, payment, refunding.provider_ref.clone()).await;
        // A provider that named the refund is at it. One that did not has promised nothing.
        if asked.is_err() && refunding.provider_ref.is_some() { Ok(refunding) } else { asked }
    }

    async fn ask_refund(
        &self,
        provider: &Provider,
        payment: &Payment,
        provider_ref: Option<String>,
    ) -> Result<Refunding, CallError> {
        let refund = RefundRef {
            payment_id: payment.reference.clone(),
            capture_id: payment.capture_id.clone().unwrap_or_default(),
            refund_id: payment.refund_number(),
            provider_ref,
        };
        let request = provider.ask_refund(&refund, &self.stamp())?;
        let answer = self.send(request, CALL_WITHIN).await?;
        provider.read_ask_refund(&answer, self.clock.now())
    }

    /// Believes a notification, in the ledger's words, or refuses it. `body` must be the bytes as they arrived.
    pub fn verify(&self, name: Name, headers: &HeaderMap, body: &[u8]) -> Result<Heard, Refusal> {
        let now = self.clock.now();
        match self.find(name.as_str()) {
            Ok(Found::Sandbox(sandbox)) => match sandbox.verify(headers, body, now)? {
                SandboxWord::Captured { event_id, capture } => {
                    captured(name, event_id, &capture, now).map_err(Refusal::of_genuine)
                }
                SandboxWord::Failed { payment } => Ok(Heard::Failed { payment }),
            },
            Ok(Found::Real(provider)) => {
                heard(name, provider.verify(headers, body, now)?, now).map_err(Refusal::of_genuine)
            }
            // Only those that are on are ever named.
            Err(_) => Err(Refusal::malformed("this provider is not set up")),
        }
    }

    /// When payments could not be started at one of the providers, as far as is remembered.
    #[must_use]
    pub fn outages(&self, now: UnixMs) -> Vec<Outage> {
        let of_one = |(name, outages): (&&str, &Outages)| -> Vec<Outage> {
            let at = |span| Outage { provider: Some((*name).to_owned()), span };
            outages.until(now).map(at).collect()
        };
        self.outages.lock().iter().flat_map(of_one).collect()
    }

    fn find(&self, provider: &str) -> Result<Found<'_>, CallError> {
        match (Name::parse(provider).ok_or(OFF)?, &self.sandbox) {
            (Name::Sandbox, Some(sandbox)) => Ok(Found::Sandbox(sandbox)),
            (Name::Sandbox, None) => Err(OFF),
            (Name::Real(name), _) => self.providers.get(name).map(Found::Real).ok_or(OFF),
        }
    }

    fn notify_url(&self, provider: &Provider) -> String {
        self.address_of(&format!("/api/v1/payments/{}/callback", provider.name()))
    }

    fn stamp(&self) -> Stamp {
        Stamp::at(self.clock.now())
    }

    async fn send(&self, request: Request, within: Duration) -> Result<providers::Answer, CallError> {
        providers::send(&self.client, request, within).await
    }
}

enum Found<'a> {
    Sandbox(&'a Sandbox),
    Real(&'a Provider),
}

fn reference(payment: &Payment) -> PaymentRef {
    PaymentRef { payment_id: payment.reference.clone(), provider_ref: payment.provider_ref.clone() }
}

/// `is_spent`: an error ended this refund for good, so that its number is of no more use.
fn refund_answer(payment: &Payment, refunding: Result<Refunding, CallError>, is_spent: bool) -> RefundAnswer {
    let failure = |problem: String, is_final: bool| RefundFailure {
        number: Some(payment.refund_number()),
        problem,
        is_final,
    };
    match refunding {
        Ok(Refunding { state: RefundState::Done, .. }) => RefundAnswer::Done,
        Ok(Refunding { state: RefundState::Pending, provider_ref }) => {
            RefundAnswer::Pending { refund_ref: provider_ref }
        }
        Ok(Refunding { state: RefundState::Failed { reason, is_final }, .. }) => {
            RefundAnswer::Failed(failure(reason, is_final))
        }
        Err(error) => RefundAnswer::NotNow(failure(error.to_string(), is_spent)),
    }
}

fn heard(name: Name, notice: providers::Notice, now: UnixMs) -> Result<Heard, Refusal> {
    let event_id = notice.event_id;
    match notice.what {
        What::Captured(capture) => captured(name, event_id, &capture, now),
        What::Refunded(refund) => {
            let (RefundAmount::This(amount) | RefundAmount::SoFar(amount)) = refund.amount;
            let told = Told::Refunded {
                key: key(name, &refund.capture_id)?,
                payment: refund.payment_id,
                number: refund.refund_id,
                amount,
            };
            Ok(Heard::Notice(Notice { event_id, told }))
        }
        What::RefundFailed { refund, reason, is_final } => {
            let told = Told::RefundFailed {
                key: key(name, &refund.capture_id)?,
                payment: refund.payment_id,
                failure: RefundFailure { number: refund.refund_id, problem: reason, is_final },
            };
            Ok(Heard::Notice(Notice { event_id, told }))
        }
        What::Other { kind } => Ok(Heard::Nothing { kind }),
    }
}

fn captured(
    name: Name,
    event_id: String,
    capture: &providers::Capture,
    now: UnixMs,
) -> Result<Heard, Refusal> {
    let told = Told::Captured {
        capture: payment::Capture { key: key(name, &capture.capture_id)?, money: capture.amount },
        names: Names::Payment(capture.payment_id.clone()),
        fresh: PaymentId(timed(now, rand::random())),
    };
    Ok(Heard::Notice(Notice { event_id, told }))
}

fn told_when_asked(payment: &Payment, capture: &providers::Capture, now: UnixMs) -> Result<Word, CallError> {
    const ANOTHERS: CallError = CallError::Unbelievable("it told of another payment than it was asked about");
    let name = Name::parse(&payment.provider).ok_or(OFF)?;
    if capture.payment_id != payment.reference {
        return Err(ANOTHERS);
    }
    match captured(name, format!("asked-{}", capture.capture_id), capture, now) {
        Ok(Heard::Notice(notice)) => Ok(Word::Paid(Box::new(notice))),
        Ok(_) => Err(ANOTHERS),
        Err(refusal) => Err(CallError::Unbelievable(refusal.sentence)),
    }
}

fn key(name: Name, capture_id: &str) -> Result<CaptureKey, Refusal> {
    CaptureKey::new(name.as_str(), capture_id)
        .map_err(|_| Refusal::malformed("the id of the capture is empty or too long"))
}

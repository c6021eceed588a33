//! The sandbox: a provider that only pretends, for demos, rehearsals and tests. It takes no money; told to, it signs
//! notifications like a real one and sends them to our own callback over HTTP. Knows its own letters; what money does is
//! decided where that of all providers is.
//!
//! It keeps nothing on disk. Its buyer pays at the moment when the notification leaves, so what it has taken is what the
//! ledger knows, or what is on its way right now: a restart forgets only payments that were never made.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use aws_lc_rs::hmac;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use rules::id::{PaymentId, SaleId};
use rules::money::Money;
use rules::order::State;
use rules::time::UnixMs;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use utoipa::ToSchema;

use super::providers::{
    Asked, Capture, Refusal, RefusalCode, fresh, positive, reference, seconds, within_limit,
};
use crate::app::App;
use crate::ledger::money::Payment;
use crate::ledger::{LedgerError, LedgerResult};

/// Most times that one callback is sent.
pub const TIMES_MAX: u32 = 100;

/// Longest delay of a callback, in milliseconds: an hour.
pub const DELAY_MS_MAX: u64 = 3_600_000;

/// Most acts that wait or send at once.
const ACTS_MAX: usize = 1_024;

/// A callback that is not taken is sent again so often, after this wait and then twice as long each time.
const REPEATS: u32 = 5;
const REPEAT_AFTER: Duration = Duration::from_millis(200);

/// How long our own callback may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Payments of which is remembered what happened, and how much of each; the oldest is forgotten first.
const REMEMBERED_MAX: usize = 10_000;
const HAPPENINGS_MAX: usize = 100;

/// What is signed: `t=SECONDS,v1=HEX`, HMAC-SHA256 over `SECONDS.body`.
const SIGNATURE: HeaderName = HeaderName::from_static("sandbox-signature");

/// The purpose of its key, of which `pass.secret` is the root.
const KEY_PURPOSE: &[u8] = b"payment/sandbox/1";

pub struct Sandbox {
    key: hmac::Key,
    shop: String,
    client: reqwest::Client,
    acts: Arc<Semaphore>,
    memory: Mutex<Memory>,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox").field("shop", &self.shop).finish_non_exhaustive()
    }
}

/// What the sandbox tells of a payment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Letter {
    /// The same in every delivery.
    pub id: String,
    pub outcome: Outcome,
    /// The shop it is meant for.
    pub shop: String,
    pub payment_id: String,
    pub capture_id: String,
    pub amount: Money,
    pub at: UnixMs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", try_from = "String")]
pub enum Outcome {
    Paid,
    Failed,
}

/// By hand, because serde would also take `{"paid": null}`.
impl TryFrom<String> for Outcome {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        match text.as_str() {
            "paid" => Ok(Self::Paid),
            "failed" => Ok(Self::Failed),
            _ => Err("must be one of paid, failed"),
        }
    }
}

/// A believed letter.
#[derive(Clone, Debug)]
pub enum SandboxWord {
    Captured { event_id: String, capture: Capture },
    Failed { payment: PaymentId },
}

/// What the sandbox is told to do: its buyer pays or fails, and our callback hears of it `times` times, `delay_ms` late.
/// To pay again is another capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Act {
    pub outcome: Outcome,
    #[serde(default = "once")]
    #[schema(minimum = 1, maximum = 100, default = 1)]
    pub times: u32,
    #[serde(default)]
    #[schema(minimum = 0, maximum = 3_600_000, default = 0)]
    pub delay_ms: u64,
}

const fn once() -> u32 {
    1
}

/// What became of telling the sandbox to act.
#[derive(Clone, Debug)]
pub enum ActAnswer {
    /// Sent, with what our callback answered each time; or, with a delay, under way.
    Done(Acted),
    /// Too many acts are under way.
    Busy,
    NotFound,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Acted {
    pub payment_id: PaymentId,
    pub outcome: Outcome,
    pub times: u32,
    pub delay_ms: u64,
    /// What our callback answered, once for each delivery; empty while the delay lasts.
    pub answers: Vec<u16>,
}

/// How a payment stands, for the sandbox's page.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SandboxPayment {
    pub payment_id: PaymentId,
    pub amount: Money,
    /// How many digits the currency's minor unit has.
    pub digits: u32,
    pub payment_state: rules::payment::State,
    pub order_id: Option<rules::id::OrderId>,
    pub order_state: Option<State>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub pay_by: Option<UnixMs>,
    #[schema(value_type = String, format = DateTime)]
    pub now: UnixMs,
    /// Every capture of this payment and what became of it.
    pub captures: Vec<CaptureView>,
    pub happenings: Vec<Happening>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CaptureView {
    pub capture_id: String,
    pub state: rules::payment::State,
    pub reason: Option<rules::payment::RefundReason>,
}

/// One delivery, or the wait before it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Happening {
    #[schema(value_type = String, format = DateTime)]
    pub at: UnixMs,
    pub outcome: Outcome,
    /// Which delivery of how many; 0 while the delay lasts.
    pub delivery: u32,
    pub times: u32,
    pub delay_ms: u64,
    /// What our callback answered; nothing when it did not, or was not asked yet.
    pub status: Option<u16>,
}

#[derive(Debug, Default)]
struct Memory {
    payments: HashMap<PaymentId, Remembered>,
    /// The oldest first.
    order: VecDeque<PaymentId>,
}

#[derive(Debug, Default)]
struct Remembered {
    /// Payments and failures so far; each has a number.
    acts: u64,
    /// The capture of which a notification has left.
    captured: Option<String>,
    happenings: VecDeque<Happening>,
}

impl Memory {
    fn of(&mut self, payment: PaymentId) -> &mut Remembered {
        if !self.payments.contains_key(&payment) {
            if self.order.len() == REMEMBERED_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.payments.remove(&oldest);
            }
            self.order.push_back(payment);
        }
        self.payments.entry(payment).or_default()
    }
}

impl Sandbox {
    /// Its key is derived from `pass_secret`; `shop` tells one ledger from another.
    pub fn new(pass_secret: &[u8], shop: &[u8; 16]) -> anyhow::Result<Self> {
        let root = hmac::Key::new(hmac::HMAC_SHA256, pass_secret);
        let key = hmac::sign(&root, KEY_PURPOSE);
        // To ourselves: no proxy has a part in it, and nothing is followed.
        let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        Ok(Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()),
            shop: hex(shop),
            client: client.timeout(ANSWER_WITHIN).build().context("no HTTP client for the sandbox")?,
            acts: Arc::new(Semaphore::new(ACTS_MAX)),
            memory: Mutex::default(),
        })
    }

    #[must_use]
    pub fn shop(&self) -> &str {
        &self.shop
    }

    /// A letter as it is sent: headers and bytes.
    #[must_use]
    pub fn seal(&self, letter: &Letter, now: UnixMs) -> (HeaderMap, Bytes) {
        let body = serde_json::to_vec(letter).unwrap_or_default();
        let time = now.0.div_euclid(1_000).to_string();
        let signature = format!("t={time},v1={}", hex(self.sign(&time, &body).as_ref()));
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Ok(signature) = HeaderValue::from_str(&signature) {
            headers.insert(SIGNATURE, signature);
        }
        (headers, body.into())
    }

    fn sign(&self, time: &str, body: &[u8]) -> hmac::Tag {
        let mut message = hmac::Context::with_key(&self.key);
        message.update(time.as_bytes());
        message.update(b".");
        message.update(body);
        message.sign()
    }

    /// Believes a letter or refuses it. The signature comes first: of what is not signed, nothing is looked at.
    pub fn verify(&self, headers: &HeaderMap, body: &[u8], now: UnixMs) -> Result<SandboxWord, Refusal> {
        within_limit(body)?;
        self.verify_signature(headers, body, now)?;
        self.read_genuine(body).map_err(Refusal::of_genuine)
    }

    fn read_genuine(&self, body: &[u8]) -> Result<SandboxWord, Refusal> {
        let letter: Letter = serde_json::from_slice(body)
            .map_err(|_| Refusal::malformed("it is not in the sandbox's form"))?;
        if letter.shop != self.shop {
            const SENTENCE: &str = "it is meant for another shop";
            return Err(Refusal::new(RefusalCode::WrongMerchant, SENTENCE));
        }
        match letter.outcome {
            Outcome::Failed => {
                let payment = letter.payment_id.parse();
                let payment = payment.map_err(|_| Refusal::malformed("payment_id is none of ours"))?;
                Ok(SandboxWord::Failed { payment })
            }
            Outcome::Paid => {
                let capture = Capture {
                    capture_id: reference(&letter.capture_id)?,
                    payment_id: reference(&letter.payment_id)?,
                    amount: positive(letter.amount.amount, letter.amount.currency)?,
                };
                Ok(SandboxWord::Captured { event_id: reference(&letter.id)?, capture })
            }
        }
    }

    fn verify_signature(&self, headers: &HeaderMap, body: &[u8], now: UnixMs) -> Result<(), Refusal> {
        const MISSING: Refusal = Refusal::signature("the header Sandbox-Signature must be t=SECONDS,v1=HEX");
        let mut values = headers.get_all(SIGNATURE).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return Err(MISSING) };
        let text = value.to_str().map_err(|_| MISSING)?;
        let (time, given) = text.split_once(',').ok_or(MISSING)?;
        let time = time.strip_prefix("t=").ok_or(MISSING)?;
        let given = given.strip_prefix("v1=").ok_or(MISSING)?;
        let signed_at = seconds(time).ok_or(MISSING)?;
        let expected = hex(self.sign(time, body).as_ref());
        aws_lc_rs::constant_time::verify_slices_are_equal(expected.as_bytes(), given.as_bytes())
            .map_err(|_| Refusal::signature("the signature does not fit"))?;
        fresh(signed_at, now)
    }

    /// What it says of a payment that the ledger calls started: paid while the notification is on its way.
    #[must_use]
    pub fn ask(&self, payment: &Payment) -> Asked {
        let memory = self.memory.lock();
        let captured = memory.payments.get(&payment.id).and_then(|remembered| remembered.captured.clone());
        match captured {
            None => Asked::Open,
            Some(capture_id) => {
                let payment_id = payment.reference.clone();
                Asked::Paid(Capture { capture_id, payment_id, amount: payment.money })
            }
        }
    }

    /// The next act's number; the ledger knows those up to `known`.
    fn number(&self, payment: PaymentId, known: u64) -> u64 {
        let mut memory = self.memory.lock();
        let remembered = memory.of(payment);
        remembered.acts = remembered.acts.max(known).saturating_add(1);
        remembered.acts
    }

    fn note(&self, payment: PaymentId, happening: Happening) {
        let mut memory = self.memory.lock();
        let happenings = &mut memory.of(payment).happenings;
        if happenings.len() == HAPPENINGS_MAX {
            happenings.pop_front();
        }
        happenings.push_back(happening);
    }

    fn happenings(&self, payment: PaymentId) -> Vec<Happening> {
        let memory = self.memory.lock();
        let remembered = memory.payments.get(&payment);
        remembered.map(|remembered| remembered.happenings.iter().cloned().collect()).unwrap_or_default()
    }

    /// Sends a letter until it is taken, a few times at most, as a provider would. Answers the last status.
    async fn deliver(&self, app: &App, letter: &Letter) -> Option<u16> {
        let home = app.port.home()?;
        let url = format!("http://{home}/api/v1/payments/sandbox/callback");
        let mut wait = REPEAT_AFTER;
        let mut status = None;
        for _ in 0..=REPEATS {
            // Signed anew each time: what waited long must not be too old.
            let (headers, body) = self.seal(letter, app.clock.now());
            let sent = self.client.post(&url).headers(headers).body(body).send().await;
            status = sent.ok().map(|response| response.status().as_u16());
            if status.is_some_and(|status| status < 500) {
                break;
            }
            tokio::time::sleep(wait).await;
            wait = wait.saturating_mul(2);
        }
        status
    }
}

impl App {
    /// Whether the sandbox serves this sale: in a demo all, elsewhere rehearsals, or whoever is on this machine. Others
    /// come through a proxy beside us when there is one.
    #[must_use]
    pub fn sandbox_serves(&self, sale: SaleId) -> bool {
        let is_rehearsal = || self.catalogue.sale(sale).is_some_and(|card| card.sale.rehearsal);
        let is_private = || self.port.is_at_home_only() && !self.settings.is_behind_a_proxy();
        self.port.sandbox().is_some() && (self.settings.demo || is_private() || is_rehearsal())
    }

    /// Tells the sandbox what its buyer does. Without a delay it answers when all deliveries were answered.
    pub async fn act_in_sandbox(self: &Arc<Self>, id: PaymentId, act: Act) -> LedgerResult<ActAnswer> {
        let Some((payment, captures)) = self.sandbox_payment(id).await? else {
            return Ok(ActAnswer::NotFound);
        };
        let Some(sandbox) = self.port.sandbox() else { return Ok(ActAnswer::NotFound) };
        let Ok(permit) = Arc::clone(&sandbox.acts).try_acquire_owned() else { return Ok(ActAnswer::Busy) };
        let known = captures.iter().filter_map(number_of).max().unwrap_or(0);
        let letter = letter(sandbox, &payment, act.outcome, sandbox.number(id, known), self.clock.now());
        let app = Arc::clone(self);
        let sending = self.tasks.spawn_on(
            async move {
                let shutdown = app.shutdown.clone();
                shutdown.run_until_cancelled(send(&app, id, act, letter, permit)).await.unwrap_or_default()
            },
            &self.runtime,
        );
        let answers = if act.delay_ms == 0 {
            sending.await.map_err(|_| LedgerError::Unknown("the sandbox was interrupted".into()))?
        } else {
            Vec::new()
        };
        let Act { outcome, times, delay_ms } = act;
        Ok(ActAnswer::Done(Acted { payment_id: id, outcome, times, delay_ms, answers }))
    }

    /// How a payment at the sandbox stands.
    pub async fn see_sandbox_payment(&self, id: PaymentId) -> LedgerResult<Option<SandboxPayment>> {
        let Some((payment, captures)) = self.sandbox_payment(id).await? else { return Ok(None) };
        let order = match payment.order {
            Some(order) => self.ledger.order(order).await?,
            None => None,
        };
        let view = |payment: &Payment| {
            let capture_id = payment.capture_id.clone()?;
            Some(CaptureView { capture_id, state: payment.status.state, reason: payment.status.reason })
        };
        let happenings = self.port.sandbox().map(|sandbox| sandbox.happenings(id)).unwrap_or_default();
        Ok(Some(SandboxPayment {
            payment_id: id,
            amount: payment.money,
            digits: payment.money.currency.exponent(),
            payment_state: payment.status.state,
            order_id: payment.order,
            order_state: order.as_ref().map(|order| order.status.state),
            pay_by: order.as_ref().and_then(|order| order.pay_by),
            now: self.clock.now(),
            captures: captures.iter().filter_map(view).collect(),
            happenings,
        }))
    }

    /// A payment that was started at the sandbox, and all captures under its name; nothing where the sandbox does not
    /// serve.
    async fn sandbox_payment(&self, id: PaymentId) -> LedgerResult<Option<(Payment, Vec<Payment>)>> {
        let found = self.ledger.payment(id).await?;
        let is_started_here =
            |payment: &Payment| payment.provider == "sandbox" && payment.reference == payment.id.to_string();
        let Some(payment) = found.filter(is_started_here) else { return Ok(None) };
        let Some(order) = payment.order else { return Ok(None) };
        let sale = self.ledger.order(order).await?.map(|order| order.sale);
        if !sale.is_some_and(|sale| self.sandbox_serves(sale)) {
            return Ok(None);
        }
        let mut captures = self.ledger.payments_of(order).await?;
        captures.retain(|other| other.reference == payment.reference && other.capture_id.is_some());
        Ok(Some((payment, captures)))
    }
}

fn letter(sandbox: &Sandbox, payment: &Payment, outcome: Outcome, number: u64, at: UnixMs) -> Letter {
    let capture_id = capture_id(payment.id, number);
    let id = match outcome {
        Outcome::Paid => capture_id.clone(),
        Outcome::Failed => format!("{capture_id}-failed"),
    };
    Letter {
        id,
        outcome,
        shop: sandbox.shop.clone(),
        payment_id: payment.reference.clone(),
        capture_id,
        amount: payment.money,
        at,
    }
}

/// The same after a restart: the number goes on after what the ledger knows.
fn capture_id(payment: PaymentId, number: u64) -> String {
    format!("sandbox-{payment}-{number}")
}

fn number_of(capture: &Payment) -> Option<u64> {
    capture.capture_id.as_ref()?.rsplit('-').next()?.parse().ok()
}

async fn send(app: &App, id: PaymentId, act: Act, letter: Letter, _permit: OwnedSemaphorePermit) -> Vec<u16> {
    let Some(sandbox) = app.port.sandbox() else { return Vec::new() };
    let note = |delivery, status| {
        let Act { outcome, times, delay_ms } = act;
        let at = app.clock.now();
        sandbox.note(id, Happening { at, outcome, delivery, times, delay_ms, status });
    };
    if act.delay_ms > 0 {
        note(0, None);
        tokio::time::sleep(Duration::from_millis(act.delay_ms)).await;
    }
    let mut answers = Vec::new();
    for delivery in 1..=act.times {
        if act.outcome == Outcome::Paid {
            sandbox.memory.lock().of(id).captured.get_or_insert_with(|| letter.capture_id.clone());
        }
        let status = sandbox.deliver(app, &letter).await;
        note(delivery, status);
        answers.extend(status);
    }
    answers
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

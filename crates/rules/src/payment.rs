//! The life of a payment as one pure function, and what a verified capture means for its order. Knows no provider, no
//! signature and no clock: whoever calls it has verified the capture and writes the decision down.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::admission::Verdict;
use crate::money::{Currency, Money};
use crate::order;
use crate::words::words;

/// Where a payment stands: one capture of money at one provider, or the beginning of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = PaymentState)]
pub enum State {
    /// The buyer was sent to the provider. Then: `captured` or `closed`.
    Started,
    /// Given up before money came. Then: `captured`, when money comes all the same.
    Closed,
    /// The provider has the money; what becomes of it is not decided. Then: `applied` or `refund_due`.
    Captured,
    /// It paid the order. Then: `refund_due`, when the shop refunds the order.
    Applied,
    /// It must go back, for the reason given. Then: `refunding`.
    RefundDue,
    /// The provider is asked to return it; asked again after a crash, with the same key. Then: `refunded` or
    /// `refund_failed`.
    Refunding,
    /// It is back. Then, rarely: `refund_failed`, when the buyer's bank sends it back to the provider.
    Refunded,
    /// The provider would not return it. Then: `refunding`, when the operator tries again, or `refunded`, when the
    /// provider returned it after all.
    RefundFailed,
}

/// How long the provider may take to return money before somebody should look, in milliseconds: five days. Banks take up
/// to three working days, and a weekend may lie in between.
pub const REFUND_SLOW_MS: i64 = 5 * 24 * 3_600_000;

words! {
    State {
        Started = "started",
        Closed = "closed",
        Captured = "captured",
        Applied = "applied",
        RefundDue = "refund_due",
        Refunding = "refunding",
        Refunded = "refunded",
        RefundFailed = "refund_failed",
    }
}

macro_rules! refund_reasons {
    ($($name:ident = $code:literal $sentence:literal;)*) => {
        /// Why money goes back. The codes are stable: tables, events and operators name them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum RefundReason { $(#[doc = $sentence] $name,)* }

        impl RefundReason {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code,)* }
            }

            /// The reason in a sentence for the buyer.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self { $(Self::$name => $sentence,)* }
            }
        }
    };
}

refund_reasons! {
    AmountMismatch = "amount_mismatch" "The amount paid is not the total of the order.";
    CurrencyMismatch = "currency_mismatch" "The payment is in another currency than the order.";
    SecondCapture = "second_capture" "The order was already paid; this was a second payment for it.";
    OrderRefused = "order_refused" "The order was refused, so nothing is owed for it.";
    OrderCancelled = "order_cancelled" "The order was cancelled before the payment arrived.";
    OtherLive = "other_live" "The payment came after the deadline, and another order of this offer has taken its place.";
    NoUnitLeft = "no_unit_left" "The payment came after the deadline, and no unit was left.";
    SaleEnded = "sale_ended" "The payment came after the deadline and after the sale, and no unit was left.";
    OrderUnknown = "order_unknown" "The payment names an order that does not exist.";
    Requested = "requested" "The shop refunded the order.";
}

impl RefundReason {
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == text)
    }
}

/// What can happen to a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// It failed at the provider, another one took its place, or its order ended.
    Closed,
    /// A verified capture was written down.
    Captured,
    /// The order became paid by it, in the same transaction.
    Applied,
    /// It was decided that it goes back. With [`RefundReason::Requested`] its order becomes `refunding` in the same
    /// transaction; with any other reason the money never paid an order.
    RefundDue(RefundReason),
    /// The provider is asked, for the first time or again by the operator.
    RefundStarted,
    /// The provider returned it, perhaps after it had given up.
    RefundDone,
    /// The provider refused to return it, or could not after all.
    RefundFailed,
}

impl Event {
    /// One of each kind; for refunds of money that never paid an order one reason stands for all.
    pub const ALL: [Self; 8] = [
        Self::Closed,
        Self::Captured,
        Self::Applied,
        Self::RefundDue(RefundReason::NoUnitLeft),
        Self::RefundDue(RefundReason::Requested),
        Self::RefundStarted,
        Self::RefundDone,
        Self::RefundFailed,
    ];
}

/// A payment as the state machine sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status {
    pub state: State,
    /// Why it goes back; from `refund_due` on.
    pub reason: Option<RefundReason>,
}

impl Status {
    /// A payment the buyer was sent to.
    pub const STARTED: Self = Self { state: State::Started, reason: None };

    /// Money nobody announced: a second capture of one payment, or one whose order is not known yet.
    pub const CAPTURED: Self = Self { state: State::Captured, reason: None };

    /// Whether this is the money that pays, or paid, its order.
    #[must_use]
    pub fn is_the_orders(self) -> bool {
        self.state == State::Applied || self.reason == Some(RefundReason::Requested)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a payment in state {} cannot take {event:?}", .from.as_str())]
pub struct IllegalTransition {
    pub from: State,
    pub event: Event,
}

/// What a payment becomes. Everything a payment can ever do is in this match.
pub fn next(status: Status, event: Event) -> Result<Status, IllegalTransition> {
    let to = |state| Ok(Status { state, ..status });
    let due = |reason| Ok(Status { state: State::RefundDue, reason: Some(reason) });
    match (status.state, event) {
        (State::Started, Event::Closed) => to(State::Closed),
        (State::Started | State::Closed, Event::Captured) => to(State::Captured),

        (State::Captured, Event::Applied) => to(State::Applied),
        (State::Captured, Event::RefundDue(reason)) if reason != RefundReason::Requested => due(reason),
        (State::Applied, Event::RefundDue(RefundReason::Requested)) => due(RefundReason::Requested),

        (State::RefundDue | State::RefundFailed, Event::RefundStarted) => to(State::Refunding),
        (State::Refunding | State::RefundFailed, Event::RefundDone) => to(State::Refunded),
        (State::Refunding | State::Refunded, Event::RefundFailed) => to(State::RefundFailed),

        (State::Started | State::Closed | State::Captured | State::Applied, _)
        | (State::RefundDue | State::Refunding | State::Refunded | State::RefundFailed, _) => {
            Err(IllegalTransition { from: status.state, event })
        }
    }
}

/// Longest name of a provider and longest id of a capture, in bytes.
pub const PROVIDER_BYTES_MAX: usize = 32;
pub const CAPTURE_BYTES_MAX: usize = 128;

/// What makes a capture the same capture. The ids of the events that tell of it do not: one capture is often told by
/// several events.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaptureKey {
    provider: Arc<str>,
    capture: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureKeyError {
    #[error("the provider's name must be 1 to 32 bytes without control characters")]
    Provider,
    #[error("the id of the capture must be 1 to 128 bytes without control characters")]
    Capture,
}

impl CaptureKey {
    pub fn new(provider: &str, capture: &str) -> Result<Self, CaptureKeyError> {
        let fits = |text: &str, most| (1..=most).contains(&text.len()) && !text.chars().any(char::is_control);
        if !fits(provider, PROVIDER_BYTES_MAX) {
            return Err(CaptureKeyError::Provider);
        }
        if !fits(capture, CAPTURE_BYTES_MAX) {
            return Err(CaptureKeyError::Capture);
        }
        Ok(Self { provider: provider.into(), capture: capture.into() })
    }

    #[must_use]
    pub fn provider(&self) -> &str {
        &self.provider
    }

    #[must_use]
    pub fn capture(&self) -> &str {
        &self.capture
    }
}

impl fmt::Debug for CaptureKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.provider, self.capture)
    }
}

/// Money that a provider says, verified, it has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    pub key: CaptureKey,
    pub money: Money,
}

/// A payment of the order as settling sees it. Payments are given in the order in which they were written down.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Payment {
    /// Nothing before the capture.
    pub capture: Option<CaptureKey>,
    pub status: Status,
}

/// The order that a capture names, as the ledger knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Not in the ledger, and a claim may still be on its way.
    NotYet,
    /// Not in the ledger, and nothing that was on its way when the capture came has become it.
    Unknown,
    Order {
        status: order::Status,
        total: Money,
    },
}

/// What a capture means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The order becomes paid, the payment applied.
    Apply,
    /// The money came after the deadline: a claim must find units again. [`revival`] says what follows from its answer.
    Revive,
    /// It goes back.
    RefundDue(RefundReason),
    /// It was decided before; nothing is to be done.
    Duplicate,
    /// The order is not recorded yet: the capture is written down and decided with the order.
    Wait,
}

/// What a verified capture means for its order. Deciding again is harmless: a capture that is still `captured` gets
/// the answer that is right by now, one that is further gets [`Settlement::Duplicate`].
///
/// Captures of one order are decided in the order in which they were written down. Any other order is safe too, but
/// may give back right money because of wrong money that came before it and is not decided yet.
#[must_use]
pub fn settle(subject: Subject, payments: &[Payment], capture: &Capture) -> Settlement {
    let is_this = |payment: &Payment| payment.capture.as_ref() == Some(&capture.key);
    if payments.iter().any(|payment| is_this(payment) && payment.status.state != State::Captured) {
        return Settlement::Duplicate;
    }
    let (status, total) = match subject {
        Subject::NotYet => return Settlement::Wait,
        Subject::Unknown => return Settlement::RefundDue(RefundReason::OrderUnknown),
        Subject::Order { status, total } => (status, total),
    };
    if let Some(reason) = mismatch(total, capture.money) {
        return Settlement::RefundDue(reason);
    }
    if payments.iter().any(|payment| !is_this(payment) && payment.status.is_the_orders()) {
        return Settlement::RefundDue(RefundReason::SecondCapture);
    }
    match status.state {
        order::State::Queued => Settlement::Wait,
        order::State::AwaitingPayment => Settlement::Apply,
        order::State::Paid
        | order::State::Refunding
        | order::State::Refunded
        | order::State::RefundFailed => Settlement::RefundDue(RefundReason::SecondCapture),
        order::State::Refused => Settlement::RefundDue(RefundReason::OrderRefused),
        order::State::Closed if status.reason != Some(order::Reason::Timeout) => {
            Settlement::RefundDue(RefundReason::OrderCancelled)
        }
        // Only the first of several late captures looks for a unit: whatever it finds, the others are one too many.
        order::State::Closed if reviving_before(payments, is_this) => {
            Settlement::RefundDue(RefundReason::SecondCapture)
        }
        order::State::Closed => Settlement::Revive,
    }
}

fn mismatch(total: Money, paid: Money) -> Option<RefundReason> {
    if total.currency != paid.currency {
        Some(RefundReason::CurrencyMismatch)
    } else if total.amount != paid.amount {
        Some(RefundReason::AmountMismatch)
    } else {
        None
    }
}

/// Whether a capture that was written down before this one is undecided.
fn reviving_before(payments: &[Payment], is_this: impl Fn(&Payment) -> bool) -> bool {
    let before = payments.iter().take_while(|payment| !is_this(payment));
    before.into_iter().any(|payment| payment.status.state == State::Captured)
}

/// Who looked for a unit for late money.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finder {
    /// The gate, as for any claim.
    Gate,
    /// The ledger alone: the sale has ended and the queue is drained, so the gate has nothing left to say.
    Ledger,
}

/// How things stand when late money looks for a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scene {
    pub gate_is_open: bool,
    /// Ended, or past its window: no buyer's claim is granted any more.
    pub sale_is_over: bool,
    /// Nothing is granted and not yet recorded.
    pub queue_is_drained: bool,
}

/// Who may look for a unit now; nobody means that the money waits. The ledger alone would sell, a second time, what
/// the gate has granted and the queue still carries: so it decides only when neither can be.
#[must_use]
pub const fn finder(scene: Scene) -> Option<Finder> {
    match scene {
        Scene { gate_is_open: true, .. } => Some(Finder::Gate),
        Scene { sale_is_over: true, queue_is_drained: true, .. } => Some(Finder::Ledger),
        Scene { .. } => None,
    }
}

/// What follows from the answer to a revival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revival {
    /// The units are claimed; the order becomes paid when the ledger records the claim.
    Claimed,
    /// Nothing is decided; ask again later.
    Wait,
    RefundDue(RefundReason),
}

/// What the answer of [`crate::admission::readmit`] means for late money. A closed gate has no answer: the money waits.
#[must_use]
pub fn revival(verdict: Verdict, finder: Finder) -> Revival {
    match verdict {
        Verdict::Granted | Verdict::Repeat => Revival::Claimed,
        Verdict::AlreadyOrdered { .. } => Revival::RefundDue(RefundReason::OtherLive),
        Verdict::SoldOut | Verdict::NotEnough { .. } => Revival::RefundDue(match finder {
            Finder::Gate => RefundReason::NoUnitLeft,
            Finder::Ledger => RefundReason::SaleEnded,
        }),
        Verdict::Busy => Revival::Wait,
        // `readmit` never says these. Should a gate do so, nothing is lost by asking again.
        Verdict::Spent | Verdict::PassReused | Verdict::Ended | Verdict::NotOpen { .. } | Verdict::Paused => {
            Revival::Wait
        }
    }
}

/// What the ledger does with a claim that revives, when it comes out of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevivalRecord {
    /// Its order has moved on since somebody looked at it: the claim was dealt with before, or was made too late. The
    /// ledger changes nothing. If the order lives, the claim's units are its own; if it has ended, they go back under the
    /// `seq` that the order has by now.
    Repeat,
    /// The order becomes paid ([`order::Event::Revived`]), the payment applied.
    Revived,
    /// The claim's units go back ([`order::Event::NotRevived`]), and so does the money unless that was decided already.
    NotRevived { refund: Option<RefundReason> },
}

/// Whether a claim that revives does so. `closing_seq` is the `seq` of the order when the claim was made: every
/// outcome but a repeat raises it, which is how a claim that is delivered again, or comes too late, is known.
/// `obstacle` is what the ledger's own guards say: [`RefundReason::NoUnitLeft`] or [`RefundReason::OtherLive`].
///
/// The payment may have been decided while the claim was under way: two workers asked the gate, and one heard "sold
/// out" just before a unit came back. The claim must then give its units back, or they are held for nobody.
#[must_use]
pub fn record_revival(
    order: order::Version,
    closing_seq: u32,
    payment: Status,
    obstacle: Option<RefundReason>,
) -> RevivalRecord {
    match (payment.state == State::Captured, obstacle) {
        _ if order.seq != closing_seq => RevivalRecord::Repeat,
        (true, None) => RevivalRecord::Revived,
        (true, Some(reason)) => RevivalRecord::NotRevived { refund: Some(reason) },
        (false, _) => RevivalRecord::NotRevived { refund: None },
    }
}

/// Payments that one order may have; then no further one is started. Each is a row, and a call to a provider.
pub const PAYMENTS_PER_ORDER_MAX: usize = 20;

/// A payment of the order that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open<'a> {
    /// The buyer was sent to this provider.
    Started { provider: &'a str },
    /// A capture is written down and not decided.
    Captured,
}

/// What a buyer who wants to pay an order gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// A new payment.
    New,
    /// The one that is open: asking twice is harmless.
    TheOpenOne,
    /// The open one, at another provider, is closed; then a new one.
    InsteadOfTheOpenOne,
    /// The order is not recorded, or money is here and not decided: ask again in a moment.
    NotYet,
    NotPayable,
}

/// Whether, and how, an order can be paid now at this provider. `time_left_ms` is the time until `pay_by`.
#[must_use]
pub fn start(state: order::State, time_left_ms: u64, open: Option<Open<'_>>, provider: &str) -> Start {
    match (state, open) {
        (order::State::Queued, _) | (order::State::AwaitingPayment, Some(Open::Captured)) => Start::NotYet,
        (order::State::AwaitingPayment, _) if time_left_ms == 0 => Start::NotPayable,
        (order::State::AwaitingPayment, None) => Start::New,
        (order::State::AwaitingPayment, Some(Open::Started { provider: open })) => {
            if open == provider {
                Start::TheOpenOne
            } else {
                Start::InsteadOfTheOpenOne
            }
        }
        (order::State::Paid | order::State::Closed | order::State::Refused, _)
        | (order::State::Refunding | order::State::Refunded | order::State::RefundFailed, _) => {
            Start::NotPayable
        }
    }
}

/// Where captured money of one currency is, in minor units. Wide enough that no number of payments overflows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takings {
    /// Everything captured: the sum of the others.
    pub captured: i128,
    /// Captured, not decided.
    pub undecided: i128,
    /// It pays orders.
    pub kept: i128,
    /// It must go back and has not.
    pub owed: i128,
    pub returned: i128,
}

/// The sums of all payments in this currency; others are passed over.
#[must_use]
pub fn takings(currency: Currency, payments: impl IntoIterator<Item = (State, Money)>) -> Takings {
    let mut sums = Takings::default();
    for (state, money) in payments.into_iter().filter(|(_, money)| money.currency == currency) {
        let pot = match state {
            State::Started | State::Closed => continue,
            State::Captured => &mut sums.undecided,
            State::Applied => &mut sums.kept,
            State::RefundDue | State::Refunding | State::RefundFailed => &mut sums.owed,
            State::Refunded => &mut sums.returned,
        };
        *pot = pot.saturating_add(i128::from(money.amount));
        sums.captured = sums.captured.saturating_add(i128::from(money.amount));
    }
    sums
}

#[cfg(test)]
mod tests;

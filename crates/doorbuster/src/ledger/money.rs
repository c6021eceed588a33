//! The ledger's words for money: payments, what providers tell of them, units that orders let go of, strikes. What any
//! of it means is decided by `rules`; how it is kept, by each ledger.

use rules::buyer::BuyerId;
use rules::deadline::Due;
use rules::id::{OrderId, PaymentId};
use rules::money::Money;
use rules::order::State;
use rules::payment::{self, Capture, CaptureKey, RefundReason};
use rules::strike::Strike;
use rules::time::UnixMs;
use rules::wire::RefundView;

use super::Order;

/// A payment as the ledger keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payment {
    /// Payments are decided in the order of their numbers.
    pub no: u64,
    pub id: PaymentId,
    /// Nothing when the provider named no payment and no order of ours.
    pub order: Option<OrderId>,
    pub provider: String,
    /// Our name of the payment as the provider knows it. It differs from `id` for a second capture under one name.
    pub reference: String,
    pub capture_id: Option<String>,
    pub status: payment::Status,
    /// What was asked for; from the capture on, what was taken.
    pub money: Money,
    pub provider_ref: Option<String>,
    pub pay_url: Option<String>,
    pub started_at: UnixMs,
    pub captured_at: Option<UnixMs>,
    /// When it was closed or refunded.
    pub ended_at: Option<UnixMs>,
    /// What the numbers of all its refunds begin with; see [`Payment::refund_number`].
    pub refund_key: String,
    /// How many of them ended for good without returning the money.
    pub refund_round: u32,
    /// The provider's name of the present one, once it is told.
    pub refund_ref: Option<String>,
    /// Whether the units of a refunded order go back on sale.
    pub restock: bool,
    /// How often the provider was asked to return the money since that began.
    pub attempts: u32,
    pub next_try_at: Option<UnixMs>,
    /// Since when the provider is being asked.
    pub refunding_since: Option<UnixMs>,
    /// How often in a row it gave no usable answer.
    pub failures: u32,
    /// When it was told that this takes too long.
    pub slow_told_at: Option<UnixMs>,
    /// Why the provider did not return the money, the last time, or why it could not be brought to close the payment.
    pub problem: Option<String>,
    /// How much of it went back by refunds that are none of ours, at least, as far as the provider told, in minor units.
    pub back_elsewhere: Option<i64>,
}

/// Which of a payment's refunds a provider speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefundOf {
    /// The one that is under way, or was the last.
    Present,
    /// One that ended for good before.
    Earlier,
    /// It names none of ours: somebody made it in the provider's console, or only a sum is told.
    Nobody,
}

impl Payment {
    /// Our number of the refund that is under way or comes next: the same until it has ended for good, so that money goes
    /// back once. Providers answer for ever the same about a number that has ended.
    #[must_use]
    pub fn refund_number(&self) -> String {
        self.number_of(self.refund_round)
    }

    fn number_of(&self, round: u32) -> String {
        match round {
            0 => self.refund_key.clone(),
            round => format!("{}-{round}", self.refund_key),
        }
    }

    #[must_use]
    pub fn refund_of(&self, number: Option<&str>) -> RefundOf {
        let Some(number) = number else { return RefundOf::Nobody };
        let round = match number.strip_prefix(&self.refund_key) {
            Some("") => Some(0),
            Some(rest) => rest.strip_prefix('-').and_then(|round| round.parse().ok()),
            None => None,
        };
        match round.filter(|round| self.number_of(*round) == number) {
            Some(round) if round == self.refund_round => RefundOf::Present,
            Some(round) if round < self.refund_round => RefundOf::Earlier,
            Some(_) | None => RefundOf::Nobody,
        }
    }

    /// What its buyer is told of its way back, if it goes back.
    #[must_use]
    pub fn refund(&self) -> Option<RefundView> {
        let reason = self.status.reason?;
        let (money, state, detail) = (self.money, self.status.state, reason.sentence().to_owned());
        Some(RefundView { money, state, reason, detail })
    }

    /// Whether all of it went back without us: then the provider need not be asked for it.
    #[must_use]
    pub fn is_back_elsewhere(&self) -> bool {
        self.back_elsewhere.is_some_and(|amount| amount >= self.money.amount)
    }

    /// Whether its refund takes so long that somebody should look, and nobody was told.
    #[must_use]
    pub fn is_slow(&self, now: UnixMs) -> bool {
        let slow = self.refunding_since.is_some_and(|since| since.plus_ms(payment::REFUND_SLOW_MS) <= now);
        slow && self.status.state == payment::State::Refunding && self.slow_told_at.is_none()
    }
}

/// Money did not go back, by the provider's word or for lack of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefundFailure {
    /// Our number of the refund that is meant; nothing when the provider names none.
    pub number: Option<String>,
    /// What the operator reads.
    pub problem: String,
    /// Whether that refund can never happen any more: only then the next one gets a number of its own.
    pub is_final: bool,
}

/// An order that let go of its units, in the transaction that is told of. The gate takes them back once per
/// (`order.id`, `order.seq`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    pub order: Order,
    /// The offer's, after the transaction.
    pub change_no: u64,
    /// Whether the units are free again. Otherwise the stock was lowered by them: the gate forgets the order and gets
    /// nothing back.
    pub restock: bool,
    /// Whether its buyer got a strike for it in the same transaction, at `order.closed_at`.
    pub struck: bool,
}

/// Orders that were closed because nobody paid them in time.
#[derive(Clone, Debug, Default)]
pub struct ClosedBatch {
    pub closed: Vec<Released>,
    /// As many as were asked for: there may be more that are due.
    pub is_full: bool,
}

/// An unpaid order whose deadline has passed while somebody is paying it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdue {
    pub order: Order,
    pub payment: Payment,
}

/// Where an order stands among those that are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DuePlace {
    pub pay_by: UnixMs,
    pub no: u64,
}

impl Overdue {
    #[must_use]
    pub fn place(&self) -> DuePlace {
        DuePlace { pay_by: self.order.pay_by.unwrap_or(self.order.created_at), no: self.order.no }
    }
}

/// What became of an order whose provider was asked.
#[derive(Clone, Debug)]
pub enum Lapsed {
    /// Closed now; its open payment, if there was one, is closed too.
    Closed {
        released: Box<Released>,
        payment: Option<Box<Payment>>,
    },
    /// Not to be closed now; `Due` says what is to be done instead.
    NotNow(Due),
    /// It does not wait for money.
    NotUnpaid(State),
    NotFound,
}

/// A buyer's wish to pay.
#[derive(Clone, Debug)]
pub struct NewPayment {
    /// The id of the payment, if there is to be a new one.
    pub id: PaymentId,
    pub order: OrderId,
    pub buyer: BuyerId,
    pub provider: String,
}

/// What became of a buyer's wish to pay.
#[derive(Clone, Debug)]
pub enum PaymentStarted {
    /// A new payment. `instead_of` is the one at another provider that it replaced, to be closed there too.
    New {
        payment: Payment,
        instead_of: Option<Box<Payment>>,
    },
    /// It was open already. Without a `pay_url` its provider has perhaps not heard of it.
    Open(Payment),
    /// The order is not recorded, or money is here and not decided.
    NotYet,
    NotPayable(State),
    /// The order has as many payments as one may have.
    TooMany,
    NotFound,
}

/// What became of closing a payment.
#[derive(Clone, Debug)]
pub enum PaymentClosed {
    Closed(Payment),
    Before(Payment),
    /// Money has come.
    Captured(Payment),
    NotFound,
}

/// A payment that is closed here, and perhaps still open at its provider.
#[derive(Clone, Debug)]
pub struct ToClose {
    pub payment: Payment,
    /// How often its provider was asked in vain.
    pub tries: u32,
    /// Until when its buyer was to pay, and the address to pay at is good.
    pub pay_by: Option<UnixMs>,
}

/// What came of asking a provider to take no money for a payment any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosingNote {
    pub payment_no: u64,
    pub end: ClosingEnd,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClosingEnd {
    /// It takes none, or its money is written down.
    Done,
    /// It is asked again at this time.
    Again { at: UnixMs },
    /// It is not asked any more. Money that comes all the same is taken.
    GivenUp { problem: String },
}

/// A verified notification, in the ledger's words.
#[derive(Clone, Debug)]
pub struct Notice {
    /// The same for every delivery of one notification.
    pub event_id: String,
    pub told: Told,
}

#[derive(Clone, Debug)]
pub enum Told {
    Captured {
        capture: Capture,
        names: Names,
        /// The id of the payment, if the capture needs a row of its own.
        fresh: PaymentId,
    },
    /// So much of the capture's money went back, by this refund or so far. `payment` is the name of the payment, and
    /// `number` that of the refund, as far as the provider tells them.
    Refunded { key: CaptureKey, payment: Option<String>, number: Option<String>, amount: Money },
    /// The money did not go back and will not by itself.
    RefundFailed { key: CaptureKey, payment: Option<String>, failure: RefundFailure },
}

impl Told {
    #[must_use]
    pub fn key(&self) -> &CaptureKey {
        match self {
            Self::Captured { capture, .. } => &capture.key,
            Self::Refunded { key, .. } | Self::RefundFailed { key, .. } => key,
        }
    }
}

/// What a provider names when it tells of money.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// A payment, by the name that the provider was given.
    Payment(String),
    Order(OrderId),
}

/// What became of a notification.
#[derive(Clone, Debug)]
pub enum Taken {
    /// It told of a capture.
    Capture(Decided),
    /// It told how a refund ended.
    Refund(Box<RefundEnd>),
    /// This notification was taken before.
    Duplicate,
    /// It tells of a refund of money that we do not know: nothing is written down.
    UnknownCapture,
    /// The same, but a payment of ours is named: its money was taken and nobody told us yet. Nothing is written down; the
    /// provider must tell it again, or the money would pay the order when it is told.
    TooEarly,
}

/// What became of a capture, and of those of the same order that came before it and were decided in the same commit.
#[derive(Clone, Debug)]
pub struct Decided {
    pub this: Settled,
    /// Paid or due to go back; nothing that still waits.
    pub before: Vec<Settled>,
}

/// What became of a capture.
#[derive(Clone, Debug)]
pub enum Settled {
    /// The order is paid. `closed` is another payment of it that was open, to be closed at its provider too.
    Applied {
        order: Box<Order>,
        closed: Option<Box<Payment>>,
    },
    /// It goes back; see [`super::SqliteLedger::refunds_due`].
    RefundDue {
        payment: PaymentId,
        reason: RefundReason,
    },
    /// The order had closed: a claim must find units again. The order's `seq` is the closing seq of that claim.
    ReviveNeeded {
        payment: PaymentId,
        order: Box<Order>,
    },
    /// It was decided before.
    Duplicate,
    /// It waits for its order; see [`super::SqliteLedger::waiting_captures`].
    Wait,
    NotFound,
}

/// Whether an order that is not in the ledger may still come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// A claim may be on its way.
    MayCome,
    /// Everything that was on its way when the capture came has been recorded.
    WillNotCome,
}

/// Who finds units for late money without the gate, and when: the sale has ended and the queue is drained (see
/// `rules::payment::finder`). Whoever makes one has looked.
#[derive(Clone, Copy, Debug)]
pub struct QueueIsDrained;

/// What became of an operator's wish to refund an order.
#[derive(Clone, Debug)]
pub enum RefundAsked {
    Begun {
        order: Box<Order>,
        payment: PaymentId,
    },
    /// It is being refunded, or was.
    Before(Box<Order>),
    NotRefundable(State),
    NotFound,
}

/// How a refund ended.
#[derive(Clone, Debug)]
pub enum RefundEnd {
    /// The money is back. `released` is the order that it had paid.
    Done {
        payment: Payment,
        released: Option<Box<Released>>,
    },
    /// The provider would not. `order` is the order that the money had paid.
    Failed {
        payment: Payment,
        order: Option<Box<Order>>,
    },
    /// It ended like this before.
    Before(Payment),
    /// Nobody here asked for this refund, or it had ended otherwise: somebody must look at it. What went back without us is
    /// written down, with its event.
    Unasked(Payment),
    NotFound,
}

/// Who took a strike back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifter {
    Operator,
    /// Money that came late and found a unit.
    LateMoney,
}

impl Lifter {
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "operator" => Some(Self::Operator),
            "late_money" => Some(Self::LateMoney),
            _ => None,
        }
    }
}

/// A strike as the ledger keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrikeRow {
    pub no: u64,
    pub buyer: BuyerId,
    pub strike: Strike,
    pub note: Option<String>,
    pub lifted_by: Option<Lifter>,
}

/// Which strike it is: one order strikes once, and those that the operator gave have a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StrikeOf {
    /// By the order's number.
    Order(u64),
    /// By the strike's number.
    Operator(u64),
}

/// A strike that counts, as far as a block is computed from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark<'a> {
    pub buyer: &'a str,
    pub of: StrikeOf,
    pub at: UnixMs,
}

/// What `rules::strike::standing` needs to know of a buyer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuyerRecord {
    pub strikes: Vec<Strike>,
    pub operator_block_until: Option<UnixMs>,
}

/// What became of letting a buyer in again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetIn {
    /// There was a block by the operator's hand in force.
    pub unblocked: bool,
    /// The strikes that were lifted, because they blocked.
    pub lifted: Vec<StrikeOf>,
}

/// A buyer who may be blocked: by the operator's hand, or by so many strikes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub buyer: BuyerId,
    /// The operator's note, if the operator blocks.
    pub note: Option<String>,
}

//! The ledger: the only truth. One method is one business verb and one transaction; its doc says what is durable when
//! it returns and what a retry does. Nothing here knows HTTP.

/// The ledger's words for audits.
pub mod audit;

/// The worker that turns batches of claims into orders.
pub mod clerk;

/// The ledger's words for payments, refunds and strikes.
pub mod money;

/// The ledger of one machine.
pub mod sqlite;

use std::sync::Arc;

use rules::buyer::BuyerId;
use rules::id::{OfferId, OrderId, PaymentId, SaleId};
use rules::money::Money;
use rules::order::{Reason, State, Status};
use rules::payment::RefundReason;
use rules::sale::{FieldError, Sale};
use rules::time::UnixMs;
use rules::wire::OrderView;

use money::{Payment, Released};

pub use sqlite::{Answer, SqliteLedger};

/// Why the ledger could not do it. Refusals are not errors: they are answers of the verbs.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Certainly nothing happened; try again later.
    #[error("the ledger is busy or its disk is full: {0}")]
    Unavailable(String),
    /// It may or may not have happened; the process must stop and read its files again.
    #[error("the outcome of a ledger transaction is unknown: {0}")]
    Unknown(String),
    /// The change is in the ledger, and what follows from it elsewhere could not be done. Whoever asked must look, or
    /// ask again, which is harmless.
    #[error("the change is in the ledger, but could not be followed: {0}")]
    NotFollowed(String),
    /// A defect or a damaged file.
    #[error("the ledger failed: {0}")]
    Failed(#[from] anyhow::Error),
}

/// What is written down does not fit together.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misfit(pub String);

impl LedgerError {
    /// Whether the ledger works and what is written in it is to blame: a counter, a row that cannot be read, a rule of
    /// the tables. The same again fails again, until somebody mends it; everything else goes on.
    #[must_use]
    pub fn is_of_the_content(&self) -> bool {
        use rusqlite::ErrorCode::{ConstraintViolation, DatabaseCorrupt, TypeMismatch};
        let Self::Failed(error) = self else { return false };
        match error.downcast_ref::<rusqlite::Error>().map(rusqlite::Error::sqlite_error_code) {
            // Without a code it was not the database that failed but the reading of a row.
            Some(None | Some(ConstraintViolation | DatabaseCorrupt | TypeMismatch)) => true,
            Some(Some(_)) => false,
            None => {
                error.is::<Misfit>()
                    || error.is::<rules::order::IllegalTransition>()
                    || error.is::<rules::payment::IllegalTransition>()
            }
        }
    }

    /// As it is told once something is committed: from then on nobody may hear that nothing happened.
    #[must_use]
    pub fn after_commit(self) -> Self {
        match self {
            Self::Unavailable(reason) => Self::NotFollowed(reason),
            other @ (Self::Unknown(_) | Self::NotFollowed(_) | Self::Failed(_)) => other,
        }
    }
}

impl From<rusqlite::Error> for LedgerError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked, DiskFull};
        match error.sqlite_error_code() {
            Some(DiskFull | DatabaseBusy | DatabaseLocked) => Self::Unavailable(error.to_string()),
            _ => Self::Failed(error.into()),
        }
    }
}

pub type LedgerResult<T> = Result<T, LedgerError>;

/// What became of the copy of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageCopy {
    /// Where it came from, as the operator wrote it.
    pub source: String,
    /// The copy's name, once there is one.
    pub name: Option<String>,
    /// Why the last try failed.
    pub problem: Option<String>,
}

/// An order as the ledger keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub no: u64,
    pub id: OrderId,
    pub sale: SaleId,
    pub offer: OfferId,
    pub buyer: BuyerId,
    pub quantity: u32,
    pub price: Money,
    pub status: Status,
    pub seq: u32,
    pub created_at: UnixMs,
    pub pay_by: Option<UnixMs>,
    pub paid_at: Option<UnixMs>,
    pub closed_at: Option<UnixMs>,
    pub pass_expires_at: UnixMs,
    /// The payment that pays it, or paid it.
    pub payment: Option<PaymentId>,
    pub refunded_at: Option<UnixMs>,
}

impl Order {
    /// The order as its buyer sees it.
    #[must_use]
    pub fn view(&self) -> OrderView {
        OrderView {
            id: self.id,
            sale_id: self.sale,
            offer_id: self.offer,
            quantity: self.quantity,
            price: self.price,
            // Prices and quantities are bounded so that this product always fits; see rules::money.
            total: self.price.times(self.quantity).unwrap_or(self.price),
            state: self.status.state,
            reason: self.status.reason,
            seq: self.seq,
            created_at: self.created_at,
            pay_by: self.pay_by,
            paid_at: self.paid_at,
            closed_at: self.closed_at,
            refunded_at: self.refunded_at,
            payment_id: self.payment,
            refunds: Vec::new(),
        }
    }

    /// The same, with the money that goes back.
    #[must_use]
    pub fn view_with(&self, refunds: &[Payment]) -> OrderView {
        OrderView { refunds: refunds.iter().filter_map(Payment::refund).collect(), ..self.view() }
    }
}

/// What became of one claim in [`SqliteLedger::record_orders`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// A new order.
    Recorded,
    /// The same claim again; its order lives.
    RepeatLive,
    /// The same claim again; its order has ended.
    RepeatEnded,
    /// The ledger says no. On one machine this is a defect of the gate.
    Refused(Reason),
    /// Late money found its unit: the order is paid.
    Revived,
    /// Late money found no unit after all: what the gate granted goes back to it under the order's new `seq`. With
    /// `refund` the ledger said no, which on one machine is a defect of the gate; without it the money was decided
    /// while the claim was under way.
    NotRevived { refund: Option<RefundReason> },
    /// The order is not where the claim of late money found it: the claim comes again, or somebody else decided about
    /// the money meanwhile. Nothing was written. If the order lives it holds the units; otherwise the gate takes back
    /// what it granted for this claim, if it did.
    RevivalRepeat,
}

/// One claim's outcome and the order that stands for it, if one does.
#[derive(Clone, Debug)]
pub struct Record {
    pub outcome: Recorded,
    pub order: Option<Arc<Order>>,
}

/// What became of a cancel.
#[derive(Clone, Debug)]
pub enum Cancelled {
    /// Closed now; its units must go back to the gate. `payment` is the one that was open, to be closed at its provider.
    Closed {
        released: Box<Released>,
        payment: Option<Box<Payment>>,
    },
    /// It was already closed by a cancel before.
    Before(Box<Order>),
    /// Not in a state that can be cancelled.
    NotCancellable(State),
    /// Money is here and not decided: ask again in a moment, then it is paid or can be cancelled.
    MoneyIsHere,
    NotFound,
}

/// What became of a change to a sale or an offer.
#[derive(Clone, Debug)]
pub enum Changed<T> {
    Done(T),
    NotFound,
    /// The sale's state does not allow it.
    WrongState,
    /// This field can no longer be changed.
    NotEditable(FieldError),
    /// The change itself is not as it must be.
    Invalid(FieldError),
}

/// What became of a stock change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StockChanged {
    /// `before` is true for a repeat of the same change: the gate has seen it already.
    Done {
        stock: u32,
        change_no: u64,
        before: bool,
    },
    /// The same change_id with another change.
    OtherChange,
    BelowLive {
        live: u32,
    },
    /// Above the most stock an offer may have.
    TooMuch,
    NotFound,
}

/// An offer's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    pub offer: OfferId,
    pub stock: u32,
    pub live_units: u32,
    pub paid_units: u32,
    pub change_no: u64,
}

/// The answer to a request that carried an Idempotency-Key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedAnswer {
    pub key: String,
    pub answer: Answer,
}

/// A page of sales and where it goes on.
#[derive(Clone, Debug)]
pub struct SalePage {
    pub sales: Vec<Sale>,
    /// The number of the last sale, when there may be more.
    pub next: Option<u64>,
}

/// A page of orders and where it goes on.
#[derive(Clone, Debug)]
pub struct OrderPage {
    pub orders: Vec<Order>,
    /// The number of the last order, when there may be more.
    pub next: Option<u64>,
}

/// What an operator looks for. Everything that is set must match.
#[derive(Clone, Debug, Default)]
pub struct OrderSearch {
    pub sale: Option<SaleId>,
    pub offer: Option<OfferId>,
    pub buyer: Option<BuyerId>,
    pub order: Option<OrderId>,
    pub state: Option<State>,
    /// Only orders before this number: the cursor of a page.
    pub before: Option<u64>,
    pub limit: u32,
}

/// A refusal of passes for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub buyer: BuyerId,
    pub until: UnixMs,
    pub note: Option<String>,
}

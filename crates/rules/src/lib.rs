//! The rules of a flash sale, pure: no I/O, no clock, no async. Everything here is decided from its arguments alone,
//! so the gate, the ledger, the auditor and the crowd can all trust the same code.

/// Names of things.
pub mod id;

/// Names of states and kinds.
mod words;

/// Instants.
pub mod time;

/// Money in minor units.
pub mod money;

/// JSON objects that are objects.
pub mod object;

/// Who buys.
pub mod buyer;

/// Sales, offers, windows, drafts.
pub mod sale;

/// What may be changed of a sale, and until when.
pub mod edit;

/// The signed right to try.
pub mod pass;

/// Who gets a unit.
pub mod admission;

/// The life of an order.
pub mod order;

/// The life of a payment, and what a capture means for its order.
pub mod payment;

/// When an unpaid order closes.
pub mod deadline;

/// Marks against buyers who win and do not pay.
pub mod strike;

/// The promises as checks.
pub mod invariant;

/// What an audit can find.
pub mod audit;

/// What travels over HTTP.
pub mod wire;

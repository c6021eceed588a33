//! Doorbuster: a flash-sale ordering engine. The modules stand in the order of the funnel.

/// Where all buyers arrive: HTTP, tokens, challenges, passes, limits.
pub mod edge;

/// What is on sale, in memory.
pub mod catalogue;

/// Our copies of the offers' images.
pub mod images;

/// Whom we call when somebody else names the address.
pub mod guard;

/// Who gets a unit: one atomic step.
pub mod gate;

/// The durable way from the gate to the ledger.
pub mod queue;

/// The only truth, and the clerk who writes it.
pub mod ledger;

/// Money: the providers that take it, and the way there and back.
pub mod payment;

/// Closes unpaid orders at their deadline, and decides money that had to wait.
pub mod sweeper;

/// What the world is told.
pub mod outbox;

/// What buyers and operators do to orders and sales.
pub mod desk;

/// Marks against buyers, in the ledger and in memory.
pub mod strikes;

/// Who compares all of it.
pub mod auditor;

/// The composition root.
pub mod app;

/// Named points at which tests end the process.
pub mod crash;

/// Who is told that a file can no longer be trusted.
pub mod failure;

/// The one clock.
pub mod clock;

/// What can be set, where it comes from, and whether it makes sense.
pub mod config;

/// Logs, traces and metrics.
pub mod telemetry;

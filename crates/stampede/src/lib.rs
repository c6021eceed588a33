//! The crowd: simulated buyers who know the shop only by its public HTTP API, a generator that drives the same API
//! as hard as it can, and a judge of what the buyers were told.

#![cfg_attr(test, allow(clippy::as_conversions, reason = "tests count in small numbers"))]

/// The one place that reads the time.
pub mod clock;

/// One keep-alive HTTP/1.1 connection.
pub mod connection;

/// As many requests as wanted, measured.
pub mod blast;

/// What one buyer was told, and when.
pub mod history;

/// Numbers and times as people read them.
pub mod words;

/// Words on standard output and standard error.
pub mod say;

/// Who comes, when, and how they behave.
pub mod scenario;

/// One simulated buyer.
mod person;

/// What a buyer does with an order that is won.
mod ending;

/// News about an order that come by themselves.
mod push;

/// Many of them at once.
pub mod crowd;

/// Whether what they were told holds together.
pub mod verdict;

/// How hard the crowd's own machine works.
pub mod effort;

/// A night while it happens.
pub mod view;

/// How it went, promise by promise.
pub mod summary;

/// The calls that are not a buyer's.
pub mod desk;

/// All facts of one night.
pub mod record;

/// One night from outside.
pub mod visit;

/// A rehearsal in words.
pub mod rehearsal;

/// The command line.
pub mod cli;
/// What a run looked like, for people and for machines.
pub mod report;

#[cfg(test)]
mod fake;

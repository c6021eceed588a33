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

/// One simulated buyer.
mod person;

/// Many of them at once.
pub mod crowd;

/// Whether what they were told holds together.
pub mod verdict;

/// What a run looked like, for people and for machines.
pub mod report;

#[cfg(test)]
mod fake;

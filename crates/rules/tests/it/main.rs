//! Tests of the rules from outside, by their public functions alone.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stdout,
    reason = "a test stops at the first surprise and counts in small numbers"
)]

/// The protocol of units and money, every interleaving of a small instance.
mod protocol;

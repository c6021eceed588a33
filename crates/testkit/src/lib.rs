//! What the tests stand on. Knows operating system and SQLite, and deliberately nothing of the product.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "test support: a broken assumption should stop the test at once, and real processes need the real clock"
)]

/// A private Chromium.
pub mod browser;

/// A disk for SQLite that loses, tears and refuses what a real one may.
pub mod disk;

/// A private nginx.
pub mod nginx;

/// Programs that can be watched, stopped and killed.
pub mod process;

/// A private RabbitMQ.
pub mod rabbitmq;

/// A file system that is really full after a few megabytes.
pub mod small_disk;

mod eventually;

mod ports;

pub use eventually::eventually;

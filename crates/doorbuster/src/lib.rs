//! Doorbuster: a flash-sale ordering engine. The modules stand in the order of the funnel.

/// Who gets a unit.
pub mod gate;

/// The one clock.
pub mod clock;

/// What can be set, where it comes from, and whether it makes sense.
pub mod config;

/// Limits, HTTP and all that meets the buyers.
pub mod edge;

/// Logs, traces and metrics.
pub mod telemetry;

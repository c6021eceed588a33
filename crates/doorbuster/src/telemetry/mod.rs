//! What the operator's tools see: logs and traces (`logging`) and metrics (`metrics`).
//!
//! It knows no stage of the funnel; the stages call it. docs/logging.md and docs/metrics.md are its contract.

pub mod logging;
pub mod metrics;

pub use logging::{Guard, init_logging};
pub use metrics::Metrics;

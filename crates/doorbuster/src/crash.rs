//! Named points at which the process can be told to die, so that tests can ask what survives exactly there.
//!
//! `DOORBUSTER_CRASH_AT=journal.committed:3` ends the process, without any clean-up, the third time it comes by
//! `journal.committed`. Without that variable a point costs one load.

use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The variable that arms a point.
pub const VARIABLE: &str = "DOORBUSTER_CRASH_AT";

/// The points from a claim to its order, in the order of the funnel.
pub const POINTS: [&str; 9] = [
    "journal.appending",
    "journal.committed",
    "journal.telling",
    "clerk.recording",
    "ledger.committing",
    "clerk.recorded",
    "desk.cancelled",
    "desk.stock_changed",
    "desk.acted",
];

/// The points on the way of money, in its order.
pub const MONEY_POINTS: [&str; 6] = [
    "till.started",
    "till.at_provider",
    "till.noticed",
    "till.refund_begun",
    "till.refund_asked",
    "till.refunded",
];

/// The points on the way back of units, and of late money that wants some.
pub const RETURN_POINTS: [&str; 9] = [
    "sweeper.closed",
    "sweeper.lapsed",
    "closings.asking",
    "closings.asked",
    "desk.releasing",
    "desk.released",
    "captures.settled",
    "gate.revived",
    "desk.refusing_late",
];

struct Armed {
    point: String,
    left: AtomicU64,
}

static ARMED: OnceLock<Option<Armed>> = OnceLock::new();

/// Arms a point from the variable's text, once, at start. What is no point is refused.
pub fn arm(text: Option<&str>) -> anyhow::Result<()> {
    let armed = match text {
        None => None,
        Some(text) => {
            let (point, times) = text.split_once(':').unwrap_or((text, "1"));
            let mut all = POINTS.iter().chain(&MONEY_POINTS).chain(&RETURN_POINTS);
            let is_known = all.any(|known| *known == point);
            anyhow::ensure!(is_known, "{VARIABLE}: there is no crash point {point}");
            let left = AtomicU64::new(times.parse()?);
            Some(Armed { point: point.to_owned(), left })
        }
    };
    // A second start in one process keeps the first word.
    let _ = ARMED.set(armed);
    Ok(())
}

/// Ends the process here if it was told to.
#[inline]
pub fn point(name: &'static str) {
    if let Some(Some(armed)) = ARMED.get()
        && armed.point == name
        && armed.left.fetch_sub(1, Ordering::AcqRel) == 1
    {
        let _ = writeln!(std::io::stderr(), "crash point {name} reached");
        std::process::abort();
    }
}

//! Named points at which the process can be told to die, so that tests can ask what survives exactly there.
//!
//! `DOORBUSTER_CRASH_AT=journal.committed:3` ends the process, without any clean-up, the third time it comes by
//! `journal.committed`. Without that variable a point costs one load.

use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The variable that arms a point.
pub const VARIABLE: &str = "DOORBUSTER_CRASH_AT";

/// The points from a claim to its order, in the order of the funnel, and at the desk. `ledger.<verb>`, here and below, is just
/// before the commit of that verb.
pub const POINTS: [&str; 11] = [
    "journal.appending",
    "journal.committed",
    "journal.telling",
    "clerk.recording",
    "ledger.record_orders",
    "clerk.recorded",
    "ledger.cancel_order",
    "desk.cancelled",
    "ledger.change_stock",
    "desk.stock_changed",
    "desk.acted",
];

/// The points on the way of money, in its order.
pub const MONEY_POINTS: [&str; 12] = [
    "ledger.start_payment",
    "till.started",
    "till.at_provider",
    "ledger.note_started",
    "ledger.take_notice",
    "till.noticed",
    "ledger.refund_order",
    "ledger.refund_begun",
    "till.refund_begun",
    "till.refund_asked",
    "ledger.end_refund",
    "till.refunded",
];

/// The points where a payment or a refund does not get through at once.
pub const DETOUR_POINTS: [&str; 4] =
    ["ledger.close_payment", "ledger.refund_put_off", "ledger.refund_pending", "ledger.retry_refund"];

/// The points on the way back of units, and of late money that wants some.
pub const RETURN_POINTS: [&str; 15] = [
    "ledger.close_due",
    "sweeper.closed",
    "ledger.close_asked",
    "sweeper.lapsed",
    "closings.asking",
    "closings.asked",
    "ledger.note_closings",
    "desk.releasing",
    "desk.released",
    "ledger.settle_capture",
    "captures.settled",
    "gate.revived",
    "desk.refusing_late",
    "ledger.refund_late",
    "ledger.revive_alone",
];

/// The points after something was done that is not written down yet.
pub const UNTOLD_POINTS: [&str; 2] = ["courier.sent", "audit.mended"];

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
            let money = MONEY_POINTS.iter().chain(&DETOUR_POINTS).chain(&RETURN_POINTS);
            let is_known = POINTS.iter().chain(money).chain(&UNTOLD_POINTS).any(|known| *known == point);
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

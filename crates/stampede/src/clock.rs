//! The one place of the crowd that reads the time. It knows nothing of the server's clock: a buyer learns that by
//! asking.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rules::time::UnixMs;

/// Wall time carried forward by the monotonic clock, so that a correction of the system clock in the middle of a run
/// moves no answer before its question.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    started_at: UnixMs,
}

impl Clock {
    #[must_use]
    pub fn start() -> Self {
        Self { started: monotonic_now(), started_at: wall_now() }
    }

    /// When this clock was started, by the wall.
    #[must_use]
    pub const fn started_at(&self) -> UnixMs {
        self.started_at
    }

    #[must_use]
    pub fn now(&self) -> UnixMs {
        self.started_at.plus_ms(i64::try_from(self.elapsed().as_millis()).unwrap_or(i64::MAX))
    }

    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.instant().saturating_duration_since(self.started)
    }

    /// A point on the monotonic clock, for measuring how long something took.
    #[must_use]
    pub fn instant(&self) -> Instant {
        monotonic_now()
    }

    /// The point `after` the start of this clock.
    #[must_use]
    pub fn instant_at(&self, after: Duration) -> Instant {
        self.started + after
    }

    /// Microseconds from the start of this clock to `instant`.
    #[must_use]
    pub fn us_at(&self, instant: Instant) -> u64 {
        micros(instant.saturating_duration_since(self.started))
    }
}

/// A duration as histograms and histories count it.
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[expect(clippy::disallowed_methods, reason = "this is the place the ban points to")]
pub(crate) fn monotonic_now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "this is the place the ban points to")]
fn wall_now() -> UnixMs {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMs(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

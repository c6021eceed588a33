//! The one clock. Everything that asks "what time is it" asks here, so that tests can turn the hands
//! and so that no second clock can disagree about when a sale opens.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rules::time::UnixMs;

/// A read that meets a change of the line so many times lets the one who changes it go first.
const SPINS_MAX: u32 = 100;

/// Wall time that never runs backwards.
///
/// The system clock is read once and carried forward by the monotonic clock; [`Clock::resync`] follows
/// corrections of the system clock. A buyer therefore never sees a sale open, close and open again.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Hands>);

#[derive(Debug)]
enum Hands {
    System { started: Instant, line: SharedLine },
    Manual { now_ms: AtomicI64 },
}

/// Our time over the monotonic clock, from one resync to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    /// Where it begins on the monotonic clock.
    from_ms: i64,
    /// Our time there.
    at_ms: i64,
    /// For so long it runs at half speed, because it was ahead of the system clock.
    slow_ms: i64,
}

impl Line {
    fn now(self, elapsed_ms: i64) -> i64 {
        let run = elapsed_ms.saturating_sub(self.from_ms).max(0);
        self.at_ms.saturating_add(run - run.min(self.slow_ms) / 2)
    }

    /// The line that goes on where this one is now, or at the system clock if that is ahead.
    fn following(self, elapsed_ms: i64, wall_ms: i64) -> Self {
        let now = self.now(elapsed_ms);
        let ahead = now.saturating_sub(wall_ms).max(0);
        Self { from_ms: elapsed_ms, at_ms: now.max(wall_ms), slow_ms: ahead.saturating_mul(2) }
    }
}

/// The line as all threads read it: without a lock, and without writing anything.
#[derive(Debug)]
struct SharedLine {
    /// Odd while the line is being changed.
    version: AtomicU64,
    from_ms: AtomicI64,
    at_ms: AtomicI64,
    slow_ms: AtomicI64,
    /// Who changes it has this.
    changing: Mutex<()>,
}

impl SharedLine {
    fn new(wall_ms: i64) -> Self {
        Self {
            version: AtomicU64::new(0),
            from_ms: AtomicI64::new(0),
            at_ms: AtomicI64::new(wall_ms),
            slow_ms: AtomicI64::new(0),
            changing: Mutex::new(()),
        }
    }

    fn get(&self) -> Line {
        Line {
            from_ms: self.from_ms.load(Ordering::Relaxed),
            at_ms: self.at_ms.load(Ordering::Relaxed),
            slow_ms: self.slow_ms.load(Ordering::Relaxed),
        }
    }

    /// Our time now. The monotonic clock is read between two looks at the version: if both are the same, it was read
    /// before the next line began, and that one begins no earlier than where this one was.
    #[inline]
    fn now(&self, started: Instant) -> i64 {
        let mut spins = 0;
        loop {
            let version = self.version.load(Ordering::Acquire);
            let line = self.get();
            let elapsed = elapsed_ms(started);
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return line.now(elapsed);
            }
            spins += 1;
            if spins < SPINS_MAX { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    fn follow(&self, started: Instant, wall_ms: i64) {
        let _changing = self.changing.lock();
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // Whoever still takes the old line has read the clock before we do.
        fence(Ordering::SeqCst);
        let line = self.get().following(elapsed_ms(started), wall_ms);
        self.from_ms.store(line.from_ms, Ordering::Relaxed);
        self.at_ms.store(line.at_ms, Ordering::Relaxed);
        self.slow_ms.store(line.slow_ms, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }
}

impl Clock {
    pub fn system() -> Self {
        Self(Arc::new(Hands::System { started: monotonic_now(), line: SharedLine::new(wall_ms()) }))
    }

    /// A clock that stands still until [`Clock::advance`] moves it.
    pub fn manual(now: UnixMs) -> Self {
        Self(Arc::new(Hands::Manual { now_ms: AtomicI64::new(now.0) }))
    }

    #[inline]
    pub fn now(&self) -> UnixMs {
        match &*self.0 {
            Hands::System { started, line } => UnixMs(line.now(*started)),
            Hands::Manual { now_ms } => UnixMs(now_ms.load(Ordering::Acquire)),
        }
    }

    /// A point on the monotonic clock, for measuring how long something took.
    #[inline]
    pub fn instant(&self) -> Instant {
        monotonic_now()
    }

    /// Follows the system clock: forwards at once, backwards by running at half speed until they agree.
    /// Call it about once a second.
    pub fn resync(&self) {
        self.follow(wall_ms());
    }

    fn follow(&self, wall_ms: i64) {
        if let Hands::System { started, line } = &*self.0 {
            line.follow(*started, wall_ms);
        }
    }

    /// Moves a manual clock. On the system clock it does nothing: time is not ours to move.
    pub fn advance(&self, by: Duration) {
        if let Hands::Manual { now_ms } = &*self.0 {
            now_ms.fetch_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX), Ordering::AcqRel);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the place the ban points to")]
fn monotonic_now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "this is the place the ban points to")]
fn wall_ms() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}

/// Whole milliseconds, as a number that fits into JSON.
#[must_use]
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn elapsed_ms(since: Instant) -> i64 {
    i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = Clock::manual(UnixMs(1_000));
        assert_eq!(clock.now(), UnixMs(1_000));
        clock.advance(Duration::from_millis(250));
        assert_eq!(clock.now(), UnixMs(1_250));
    }

    #[test]
    fn a_clock_that_is_ahead_runs_at_half_speed_until_it_agrees() {
        let line = Line { from_ms: 0, at_ms: 50_000, slow_ms: 0 };
        // After a second the system clock is set back by ten, and again looked at a second later.
        let slow = line.following(1_000, 41_000);
        assert_eq!(slow.now(1_000), 51_000, "it stays where it was");
        assert_eq!(slow.now(2_000), 51_500);
        let still_slow = slow.following(2_000, 42_000);
        for elapsed in 2_000..40_000 {
            assert_eq!(still_slow.now(elapsed), slow.now(elapsed), "to look again changes nothing");
            assert!(still_slow.now(elapsed) <= still_slow.now(elapsed + 1));
        }
        assert_eq!(slow.now(21_000), 61_000, "now they agree");
        assert_eq!(slow.now(22_000), 62_000, "and go on together");
        let ahead = slow.following(3_000, 53_000);
        assert_eq!((ahead.now(3_000), ahead.now(4_000)), (53_000, 54_000), "forwards at once");
    }

    #[test]
    fn the_system_clock_never_runs_backwards_however_the_wall_clock_is_set() {
        const ROUNDS: i64 = 20_000;
        let clock = Clock::system();
        let (latest, done) = (AtomicI64::new(0), std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        let before = latest.load(Ordering::Acquire);
                        let now = clock.now().0;
                        assert!(now >= before, "{now} after {before}");
                        latest.fetch_max(now, Ordering::AcqRel);
                    }
                });
            }
            for round in 0..ROUNDS {
                // Ten seconds back, and now and then a little forth.
                let by = if round % 100 == 99 { 5 } else { -10_000 };
                clock.follow(clock.now().0 + by);
            }
            done.store(true, Ordering::Release);
        });
        clock.resync();
        assert!(clock.now().0 >= latest.load(Ordering::Acquire));
    }
}

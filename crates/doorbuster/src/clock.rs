//! The one clock. Everything that asks "what time is it" asks here, so that tests can turn the hands
//! and so that no second clock can disagree about when a sale opens.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rules::time::UnixMs;

/// Wall time that never runs backwards.
///
/// The system clock is read once and carried forward by the monotonic clock; [`Clock::resync`] follows
/// corrections of the system clock. A buyer therefore never sees a sale open, close and open again.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Hands>);

#[derive(Debug)]
enum Hands {
    System { started: Instant, offset_ms: AtomicI64, synced_at_ms: AtomicI64 },
    Manual { now_ms: AtomicI64 },
}

impl Clock {
    pub fn system() -> Self {
        Self(Arc::new(Hands::System {
            started: monotonic_now(),
            offset_ms: AtomicI64::new(wall_ms()),
            synced_at_ms: AtomicI64::new(0),
        }))
    }

    /// A clock that stands still until [`Clock::advance`] moves it.
    pub fn manual(now: UnixMs) -> Self {
        Self(Arc::new(Hands::Manual { now_ms: AtomicI64::new(now.0) }))
    }

    #[inline]
    pub fn now(&self) -> UnixMs {
        match &*self.0 {
            Hands::System { started, offset_ms, .. } => {
                UnixMs(offset_ms.load(Ordering::Acquire).saturating_add(elapsed_ms(*started)))
            }
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
        let Hands::System { started, offset_ms, synced_at_ms } = &*self.0 else { return };
        let elapsed = elapsed_ms(*started);
        let since_last = elapsed - synced_at_ms.swap(elapsed, Ordering::AcqRel);
        let wanted = wall_ms().saturating_sub(elapsed);
        let current = offset_ms.load(Ordering::Acquire);
        offset_ms.store(wanted.max(current - since_last / 2), Ordering::Release);
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
    fn the_system_clock_never_runs_backwards_across_resyncs() {
        let clock = Clock::system();
        let mut last = clock.now();
        for _ in 0..1_000 {
            clock.resync();
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }
}

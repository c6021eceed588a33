//! When a failed delivery is tried again, and when a receiver is left alone for a while. Pure: time and chance are
//! handed in.

use rules::time::UnixMs;

/// The first wait after a failure, in milliseconds, and the longest: each is three times the one before.
const WAIT_FIRST_MS: u64 = 5_000;
const WAIT_MAX_MS: u64 = 4 * 3_600_000;

/// Failures in a row after which a receiver is left alone.
const FAILURES_IN_A_ROW: u32 = 5;

/// The first time it is left alone, in milliseconds, and the longest: each is twice the one before.
const REST: Rest = Rest { first_ms: 5_000, max_ms: 300_000 };

/// The same for a receiver that is asked again sooner.
const SHORT_REST: Rest = Rest { first_ms: 1_000, max_ms: 30_000 };

/// For so long after a start, in milliseconds, nothing is given up or dropped because of its age: time in which nobody
/// tried is no reason.
pub const GRACE_MS: u64 = 3_600_000;

/// How long to wait after so many attempts, in milliseconds: from half to one and a half of the rule, by chance, so
/// that what failed together does not come back together.
#[must_use]
pub fn wait_ms(attempts: u32, chance: u64) -> u64 {
    spread(growing(WAIT_FIRST_MS, 3, attempts.saturating_sub(1), WAIT_MAX_MS), chance)
}

fn growing(first: u64, factor: u64, times: u32, most: u64) -> u64 {
    first.saturating_mul(factor.saturating_pow(times)).min(most)
}

fn spread(ms: u64, chance: u64) -> u64 {
    ms / 2 + chance % ms.max(1)
}

/// Leaves a receiver alone that keeps failing, and asks it with one delivery whether it is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    rest: Rest,
    failures: u32,
    /// Times that it opened since the last success.
    openings: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rest {
    first_ms: u64,
    max_ms: u64,
}

impl Default for Breaker {
    fn default() -> Self {
        Self::with(REST)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Closed,
    Open {
        until: UnixMs,
    },
    Probing,
}

/// How many deliveries may begin now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    None,
    /// One, to see whether the receiver is back.
    Probe,
    Places(usize),
}

impl Breaker {
    /// One that rests for seconds, not for minutes.
    #[must_use]
    pub fn eager() -> Self {
        Self::with(SHORT_REST)
    }

    fn with(rest: Rest) -> Self {
        Self { rest, failures: 0, openings: 0, state: State::Closed }
    }

    #[must_use]
    pub fn room(&self, now: UnixMs, under_way: usize, most: usize) -> Room {
        match self.state {
            State::Closed if under_way < most => Room::Places(most - under_way),
            State::Open { until } if now >= until && under_way == 0 => Room::Probe,
            State::Closed | State::Open { .. } | State::Probing => Room::None,
        }
    }

    /// A probe is on its way.
    pub fn probe(&mut self) {
        self.state = State::Probing;
    }

    pub fn delivered(&mut self) {
        *self = Self::with(self.rest);
    }

    pub fn failed(&mut self, now: UnixMs, chance: u64) {
        self.failures = self.failures.saturating_add(1);
        let opens = match self.state {
            State::Closed => self.failures >= FAILURES_IN_A_ROW,
            State::Probing => true,
            // Stragglers of what began before it opened.
            State::Open { .. } => false,
        };
        if opens {
            let rest = spread(growing(self.rest.first_ms, 2, self.openings, self.rest.max_ms), chance);
            let until = now.plus_ms(i64::try_from(rest).unwrap_or(i64::MAX));
            self.openings = self.openings.saturating_add(1);
            self.state = State::Open { until };
        }
    }

    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state != State::Closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_hours_and_never_stand_still() {
        let rule: Vec<u64> = (1..=9).map(|attempts| wait_ms(attempts, 0) / 1_000).collect();
        assert_eq!(rule, [2, 7, 22, 67, 202, 607, 1_822, 5_467, 7_200]);
        assert_eq!(wait_ms(u32::MAX, 0), WAIT_MAX_MS / 2);
        for chance in [0, 1, 12_345, u64::MAX] {
            let wait = wait_ms(3, chance);
            assert!((22_500..67_500).contains(&wait), "{wait}");
        }
    }

    #[test]
    fn a_receiver_that_keeps_failing_is_left_alone_and_asked_by_one_delivery() {
        let mut breaker = Breaker::default();
        let now = UnixMs(1_000_000);
        for _ in 1..FAILURES_IN_A_ROW {
            breaker.failed(now, 0);
            assert_eq!(breaker.room(now, 3, 10), Room::Places(7));
        }
        breaker.failed(now, 0);
        assert_eq!(breaker.room(now, 0, 10), Room::None);
        let later = now.plus_ms(2_500);
        assert_eq!(breaker.room(later, 1, 10), Room::None, "what is under way must end first");
        assert_eq!(breaker.room(later, 0, 10), Room::Probe);
        breaker.probe();
        assert_eq!(breaker.room(later, 1, 10), Room::None);
        breaker.failed(later, 0);
        assert_eq!(breaker.room(later.plus_ms(4_999), 0, 10), Room::None, "twice as long");
        assert_eq!(breaker.room(later.plus_ms(5_000), 0, 10), Room::Probe);
        breaker.probe();
        breaker.delivered();
        assert_eq!(breaker.room(later, 0, 10), Room::Places(10));
        assert!(!breaker.is_open());
    }

    #[test]
    fn an_eager_one_rests_for_seconds_also_after_it_was_back() {
        let mut breaker = Breaker::eager();
        for _ in 0..2 {
            for _ in 0..FAILURES_IN_A_ROW {
                breaker.failed(UnixMs(0), 0);
            }
            assert_eq!(breaker.room(UnixMs(500), 0, 10), Room::Probe);
            for opening in 1..20 {
                breaker.probe();
                breaker.failed(UnixMs(0), 0);
                let rest = (1_000_i64 << opening.min(20)).min(30_000) / 2;
                assert_eq!(breaker.room(UnixMs(rest - 1), 0, 10), Room::None);
                assert_eq!(breaker.room(UnixMs(rest), 0, 10), Room::Probe);
            }
            breaker.probe();
            breaker.delivered();
        }
    }

    #[test]
    fn one_success_in_between_keeps_it_closed() {
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            breaker.failed(UnixMs(0), 7);
            breaker.delivered();
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn stragglers_do_not_make_the_rest_longer() {
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES_IN_A_ROW + 10 {
            breaker.failed(UnixMs(0), 0);
        }
        assert_eq!(breaker.room(UnixMs(2_500), 0, 10), Room::Probe);
    }
}

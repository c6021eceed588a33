//! Owns waiting for a condition. Does not know what is waited for; a test never sleeps for a guessed time instead.

use std::panic::Location;
use std::thread;
use std::time::{Duration, Instant};

const POLL_EVERY: Duration = Duration::from_millis(5);

/// Returns once `condition` is true, and panics with the caller's place when it is not within `timeout`.
///
/// The condition is asked at least once, and once more after the deadline: a machine that slept through the whole
/// timeout does not fail a test whose condition has come true meanwhile.
#[track_caller]
pub fn eventually(timeout: Duration, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    loop {
        let late = started.elapsed() >= timeout;
        if condition() {
            return;
        }
        if late {
            panic!("the condition at {} did not come true within {timeout:?}", Location::caller());
        }
        thread::sleep(POLL_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_comes_true_ends_the_wait() {
        let mut asked = 0;
        eventually(Duration::from_secs(60), || {
            asked += 1;
            asked == 3
        });
        assert_eq!(asked, 3);
    }

    #[test]
    fn a_condition_that_stays_false_panics_and_names_the_caller() {
        let panic = std::panic::catch_unwind(|| eventually(Duration::ZERO, || false)).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains(file!()), "{text}");
    }
}

//! How hard the crowd's own machine works while it comes: a crowd that is at the end of its processors says nothing about a
//! server. It knows nothing of buyers.

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::blast::{machine_cpu, process_cpu};
use crate::clock::{Clock, micros};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Moments that are kept: an hour.
const MOMENTS_MAX: usize = 36_000;
/// From here on the crowd's threads have no time to spare, in percent of what they can use.
const THREADS_FULL_PERCENT: u64 = 90;
/// From here on the machine has none, in percent of all its processors.
const MACHINE_FULL_PERCENT: u64 = 95;
/// On a full machine the crowd is in the way of others if it uses so much of it, in percent of all its processors.
const IN_THE_WAY_PERCENT: u64 = 20;

/// Processor time that was used up to a moment, in microseconds. Zero where the system does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// Microseconds since the start.
    pub at_us: u64,
    /// By the crowd.
    pub crowd_us: u64,
    /// By everybody on this machine.
    pub machine_us: u64,
}

/// The moments of one night.
#[derive(Debug, Default)]
pub(crate) struct Moments(Mutex<Vec<Moment>>);

impl Moments {
    /// Keeps one now and then, until it is dropped.
    pub async fn keep(&self, clock: Clock) -> Infallible {
        loop {
            self.look(clock);
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn look(&self, clock: Clock) {
        let mut moments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if moments.len() < MOMENTS_MAX {
            moments.push(Moment {
                at_us: micros(clock.elapsed()),
                crowd_us: micros(process_cpu()),
                machine_us: micros(machine_cpu()),
            });
        }
    }

    pub fn take(&self) -> Vec<Moment> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What was used over a time, in percent of one processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effort {
    crowd_percent: u64,
    machine_percent: u64,
}

impl Effort {
    /// `None`: nobody looked then.
    pub fn between(moments: &[Moment], from_us: u64, to_us: u64) -> Option<Self> {
        let first = moments.iter().rev().find(|moment| moment.at_us <= from_us)?;
        let last = moments.iter().find(|moment| moment.at_us >= to_us).or(moments.last())?;
        let time_us = last.at_us.saturating_sub(first.at_us);
        let percent = |used: fn(&Moment) -> u64| {
            used(last).saturating_sub(used(first)).saturating_mul(100).checked_div(time_us)
        };
        Some(Self {
            crowd_percent: percent(|moment| moment.crowd_us)?,
            machine_percent: percent(|moment| moment.machine_us)?,
        })
    }

    /// Whether the crowd could hardly have done more: its threads were busy all the time, or its machine was, and not for others
    /// alone.
    pub fn is_all(self, threads: usize, cores: usize) -> bool {
        let [threads, cores] = [threads, cores].map(|count| u64::try_from(count.max(1)).unwrap_or(u64::MAX));
        let machine_is_full = self.machine_percent >= cores.saturating_mul(MACHINE_FULL_PERCENT);
        self.crowd_percent >= threads.min(cores).saturating_mul(THREADS_FULL_PERCENT)
            || (machine_is_full && self.crowd_percent >= cores.saturating_mul(IN_THE_WAY_PERCENT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So much of one processor, by the crowd and by all, from the first to the third second.
    fn moments(crowd_percent: u64, machine_percent: u64) -> Vec<Moment> {
        let at = |at_us: u64| {
            let busy_us = at_us.clamp(1_000_000, 3_000_000) - 1_000_000;
            let used = |percent: u64| busy_us * percent / 100;
            Moment { at_us, crowd_us: used(crowd_percent), machine_us: used(machine_percent) }
        };
        (0..40).map(|step| at(step * 100_000)).collect()
    }

    #[test]
    fn a_crowd_without_a_processor_to_spare_is_known() {
        for (crowd, machine, threads, cores, is_all) in [
            (99, 150, 1, 2, true),
            (60, 150, 1, 2, false),
            (99, 110, 2, 2, false),
            (190, 195, 4, 2, true),
            // Beside a server that takes the other half.
            (60, 199, 1, 2, true),
            // The others do not leave it a tenth, and it would hardly need more.
            (20, 199, 1, 2, false),
        ] {
            let effort = Effort::between(&moments(crowd, machine), 1_500_000, 2_500_000).unwrap();
            assert_eq!(effort.is_all(threads, cores), is_all, "{effort:?} {threads} {cores}");
        }
        let idle = Effort::between(&moments(99, 99), 3_200_000, 3_700_000).unwrap();
        assert_eq!(idle, Effort { crowd_percent: 0, machine_percent: 0 });
        assert_eq!(Effort::between(&[], 0, 1), None);
        assert_eq!(Effort::between(&moments(99, 99)[5..], 0, 1), None);
    }

    #[tokio::test]
    async fn moments_are_kept_while_it_goes_on() {
        let moments = Moments::default();
        tokio::select! {
            never = moments.keep(Clock::start()) => match never {},
            () = tokio::time::sleep(Duration::from_millis(350)) => {}
        }
        let kept = moments.take();
        assert!(kept.len() >= 2 && kept.is_sorted_by_key(|moment| moment.at_us), "{kept:?}");
        assert!(kept.iter().all(|moment| moment.machine_us >= moment.crowd_us && moment.machine_us > 0));
    }
}

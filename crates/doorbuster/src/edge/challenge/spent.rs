//! What has been answered. Owns that a challenge opens at most one door; does not know what was asked.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rules::time::UnixMs;

use super::{ChallengeId, ChallengeRefusal, Checked};
use crate::clock::Clock;

/// How many wrong answers use a challenge up.
pub(super) const MAX_WRONG_ANSWERS: u8 = 3;

/// How many expired entries one call forgets at most. More than one, so that forgetting outruns
/// remembering; few, so that no caller pays for an idle hour.
const FORGET_AT_ONCE: usize = 32;

/// Every answered challenge until it expires, bounded. Forgotten early, a solution would work twice; so a
/// full memory refuses instead, and a process that ends takes the keys of its challenges with it.
#[derive(Debug)]
pub(super) struct Spent {
    limit: usize,
    clock: Clock,
    answered: Mutex<BTreeMap<ChallengeId, Answered>>,
}

#[derive(Clone, Copy, Debug)]
enum Answered {
    Wrong(u8),
    Right,
}

impl Spent {
    pub fn new(limit: usize, clock: Clock) -> Self {
        Self { limit, clock, answered: Mutex::default() }
    }

    /// Of all right answers to one challenge, exactly one hears `Ok`.
    pub fn settle(&self, checked: Checked) -> Result<(), ChallengeRefusal> {
        let mut answered = self.answered.lock();
        // Read under the lock: with an earlier time a caller could bring a challenge back whose entry
        // another caller has just forgotten as expired.
        let now = self.clock.now();
        if checked.challenge.expires_at <= now {
            return Err(ChallengeRefusal::Expired);
        }
        forget_expired(&mut answered, now);
        let wrong_before = match answered.get(&checked.challenge) {
            None if answered.len() >= self.limit => return Err(ChallengeRefusal::Busy),
            None => 0,
            Some(Answered::Wrong(wrong)) if *wrong < MAX_WRONG_ANSWERS => *wrong,
            Some(Answered::Wrong(_) | Answered::Right) => return Err(ChallengeRefusal::Spent),
        };
        if checked.right {
            answered.insert(checked.challenge, Answered::Right);
            return Ok(());
        }
        answered.insert(checked.challenge, Answered::Wrong(wrong_before.saturating_add(1)));
        Err(ChallengeRefusal::Wrong)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.answered.lock().len()
    }
}

fn forget_expired(answered: &mut BTreeMap<ChallengeId, Answered>, now: UnixMs) {
    for _ in 0..FORGET_AT_ONCE {
        match answered.first_entry() {
            Some(oldest) if oldest.key().expires_at <= now => oldest.remove(),
            Some(_) | None => return,
        };
    }
}

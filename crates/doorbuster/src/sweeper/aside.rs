//! What cannot be dealt with because of what is written about it: set aside for a while, so that all others go on. Kept
//! in memory, since forgetting it only means trying again. Mends nothing; the auditor names what is wrong.

use std::collections::HashMap;
use std::hash::Hash;

use rules::time::UnixMs;

/// How long something is left alone, in milliseconds. Then it is tried again: somebody may have mended it.
const ASIDE_FOR_MS: i64 = 60_000;

/// So many are set aside at most; whatever comes beyond that holds up the others.
const ASIDE_MAX: usize = 10_000;

#[derive(Debug)]
pub(super) struct Aside<K> {
    until: HashMap<K, UnixMs>,
}

impl<K> Default for Aside<K> {
    fn default() -> Self {
        Self { until: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash> Aside<K> {
    /// Sets it aside. `false` when too many are.
    pub(super) fn put(&mut self, key: K, now: UnixMs) -> bool {
        let has_room = self.until.len() < ASIDE_MAX || self.until.contains_key(&key);
        if has_room {
            self.until.insert(key, now.plus_ms(ASIDE_FOR_MS));
        }
        has_room
    }

    /// Those that have been left alone for long enough are no longer aside.
    pub(super) fn let_go(&mut self, now: UnixMs) {
        self.until.retain(|_, until| now < *until);
    }

    pub(super) fn has(&self, key: K) -> bool {
        self.until.contains_key(&key)
    }

    pub(super) fn all(&self) -> Vec<K> {
        self.until.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_aside_is_tried_again_after_a_while_and_only_so_much_is() {
        let now = UnixMs(1_000);
        let mut aside = Aside::default();
        assert!(aside.put(1, now) && aside.has(1) && !aside.has(2));
        aside.let_go(now.plus_ms(ASIDE_FOR_MS - 1));
        assert_eq!(aside.all(), [1]);
        aside.let_go(now.plus_ms(ASIDE_FOR_MS));
        assert!(aside.all().is_empty());
        assert!((0..ASIDE_MAX).all(|key| aside.put(key, now)));
        assert!(!aside.put(ASIDE_MAX, now), "there is no room");
        assert!(aside.put(7, now), "it is there already");
    }
}

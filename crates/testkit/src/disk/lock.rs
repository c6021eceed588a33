//! Owns the locks of one file among the connections of this process, and its shared memory (the WAL index). Does not
//! know contents; a lock is never written to the disk and never survives it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::state::HandleId;

/// SQLite's five levels, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    None,
    Shared,
    Reserved,
    Pending,
    Exclusive,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Busy;

#[derive(Debug, Default)]
pub(super) struct FileLocks {
    held: BTreeMap<HandleId, Level>,
}

impl FileLocks {
    /// Raises the handle's lock. On the way from reserved to exclusive a busy answer leaves it pending, so that no
    /// new reader comes and the writer is not starved.
    pub fn lock(&mut self, handle: HandleId, wanted: Level) -> Result<(), Busy> {
        let own = self.level(handle);
        if own >= wanted {
            return Ok(());
        }
        let others = self.strongest_other(handle);
        let allowed = match wanted {
            Level::None | Level::Shared => others < Level::Pending,
            Level::Reserved | Level::Pending => others < Level::Reserved,
            Level::Exclusive => others == Level::None,
        };
        if allowed {
            self.held.insert(handle, wanted);
            return Ok(());
        }
        if wanted == Level::Exclusive && own == Level::Reserved {
            self.held.insert(handle, Level::Pending);
        }
        Err(Busy)
    }

    pub fn unlock(&mut self, handle: HandleId, down_to: Level) {
        if self.level(handle) > down_to {
            self.held.insert(handle, down_to);
        }
    }

    pub fn forget(&mut self, handle: HandleId) {
        self.held.remove(&handle);
    }

    pub fn is_reserved(&self) -> bool {
        self.held.values().any(|level| *level >= Level::Reserved)
    }

    fn level(&self, handle: HandleId) -> Level {
        self.held.get(&handle).copied().unwrap_or(Level::None)
    }

    fn strongest_other(&self, handle: HandleId) -> Level {
        let others = self.held.iter().filter(|(other, _)| **other != handle);
        others.map(|(_, level)| *level).max().unwrap_or(Level::None)
    }
}

/// The WAL index: regions that all connections write to without asking, and locks that keep them apart. It lives
/// while at least one connection uses it, as the `-shm` file does, whose first opener empties it.
#[derive(Debug, Default)]
pub(super) struct SharedMemory {
    // Atomics because SQLite writes through the pointers from several threads. `Arc` because the words must not move
    // and, unlike those of a `Box`, may be pointed to while their owner is moved.
    regions: Vec<Arc<[AtomicU64]>>,
    slots: [Slot; SLOTS],
    users: BTreeSet<HandleId>,
}

pub(super) const SLOTS: usize = 8;

#[derive(Debug, Default)]
struct Slot {
    exclusive: Option<HandleId>,
    shared: BTreeSet<HandleId>,
}

impl SharedMemory {
    /// The start of a region, which stays valid until the last user has left. `None` if the region does not exist
    /// and may not be made.
    pub fn region(
        &mut self,
        user: HandleId,
        index: usize,
        bytes: usize,
        extend: bool,
    ) -> Option<*const AtomicU64> {
        self.users.insert(user);
        while extend && self.regions.len() <= index {
            let words = bytes.div_ceil(size_of::<AtomicU64>());
            self.regions.push((0..words).map(|_| AtomicU64::new(0)).collect());
        }
        self.regions.get(index).map(|region| region.as_ptr())
    }

    pub fn lock_shared(&mut self, user: HandleId, slot: usize) -> Result<(), Busy> {
        let slot = &mut self.slots[slot];
        if slot.exclusive.is_some() {
            return Err(Busy);
        }
        slot.shared.insert(user);
        Ok(())
    }

    /// All slots of the range or none.
    pub fn lock_exclusive(&mut self, user: HandleId, slots: std::ops::Range<usize>) -> Result<(), Busy> {
        let slots = &mut self.slots[slots];
        if slots.iter().any(|slot| slot.exclusive.is_some() || !slot.shared.is_empty()) {
            return Err(Busy);
        }
        slots.iter_mut().for_each(|slot| slot.exclusive = Some(user));
        Ok(())
    }

    pub fn unlock(&mut self, user: HandleId, slots: std::ops::Range<usize>) {
        for slot in &mut self.slots[slots] {
            slot.shared.remove(&user);
            slot.exclusive.take_if(|holder| *holder == user);
        }
    }

    /// Answers whether nobody is left, and the memory may go.
    pub fn leave(&mut self, user: HandleId) -> bool {
        self.unlock(user, 0..SLOTS);
        self.users.remove(&user);
        self.users.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: HandleId = 1;
    const BOB: HandleId = 2;

    #[test]
    fn a_writer_waits_for_readers_and_keeps_new_ones_out() {
        let mut locks = FileLocks::default();
        locks.lock(ANN, Level::Shared).unwrap();
        locks.lock(BOB, Level::Shared).unwrap();
        locks.lock(ANN, Level::Reserved).unwrap();
        assert!(locks.is_reserved());
        assert_eq!(locks.lock(BOB, Level::Reserved), Err(Busy), "one writer at a time");
        assert_eq!(locks.lock(ANN, Level::Exclusive), Err(Busy), "a reader is still there");
        locks.unlock(BOB, Level::None);
        assert_eq!(locks.lock(BOB, Level::Shared), Err(Busy), "the writer is pending");
        locks.lock(ANN, Level::Exclusive).unwrap();
        locks.unlock(ANN, Level::Shared);
        locks.lock(BOB, Level::Shared).unwrap();
    }

    #[test]
    fn slots_are_shared_by_many_or_exclusive_to_one() {
        let mut memory = SharedMemory::default();
        memory.lock_shared(ANN, 3).unwrap();
        memory.lock_shared(BOB, 3).unwrap();
        assert_eq!(memory.lock_exclusive(ANN, 2..5), Err(Busy));
        memory.unlock(ANN, 3..4);
        assert_eq!(memory.lock_exclusive(ANN, 2..5), Err(Busy), "Bob's share is his own");
        memory.unlock(BOB, 3..4);
        memory.lock_exclusive(ANN, 2..5).unwrap();
        assert_eq!(memory.lock_shared(BOB, 4), Err(Busy));
        memory.unlock(BOB, 0..SLOTS);
        assert_eq!(memory.lock_shared(BOB, 4), Err(Busy), "Bob cannot give back what is Ann's");
    }

    #[test]
    fn a_region_stays_where_it_is_while_others_are_added() {
        let mut memory = SharedMemory::default();
        assert!(memory.region(ANN, 0, 64, false).is_none());
        let first = memory.region(ANN, 0, 64, true);
        memory.region(BOB, 20, 64, true).unwrap();
        assert_eq!(memory.region(BOB, 0, 64, false), first);
        assert!(!memory.leave(ANN));
        assert!(memory.leave(BOB));
    }
}

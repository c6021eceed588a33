//! Room in the queue. A permit is reserved before a unit is taken and returns by itself when it is dropped.

use std::sync::Arc;

use super::sync::{AtomicUsize, Ordering};

/// How many claims may be granted and not yet recorded.
#[derive(Debug)]
pub struct Room {
    capacity: usize,
    taken: AtomicUsize,
}

/// One claim's room in the queue.
#[derive(Debug)]
pub struct Permit(Arc<Room>);

impl Room {
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity, taken: AtomicUsize::new(0) }
    }

    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many claims are on their way to the ledger.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }

    /// Room for one claim, or `None` when the queue is full.
    #[must_use]
    pub fn reserve(self: &Arc<Self>) -> Option<Permit> {
        let grow = |taken: usize| (taken < self.capacity).then(|| taken + 1);
        self.taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, grow)
            .ok()
            .map(|_| Permit(Arc::clone(self)))
    }

    /// Room for a claim that was answered before this process started: it exists whatever the capacity is.
    #[must_use]
    pub fn reserve_replayed(self: &Arc<Self>) -> Permit {
        self.taken.fetch_add(1, Ordering::AcqRel);
        Permit(Arc::clone(self))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

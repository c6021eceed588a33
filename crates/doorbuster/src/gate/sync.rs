//! The primitives the gate is built on, named once. The interleaving tests compile the gate's own source against
//! another module of this name, so that every step a thread can take is under the tester's control.

pub use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

pub use parking_lot::Mutex;

/// A pointer that readers follow without a lock and a writer replaces as a whole.
#[derive(Debug)]
pub struct Swap<T>(arc_swap::ArcSwap<T>);

impl<T> Swap<T> {
    pub fn new(value: T) -> Self {
        Self(arc_swap::ArcSwap::from_pointee(value))
    }

    #[inline]
    pub fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.0.load())
    }

    pub fn replace(&self, value: T) {
        self.0.store(std::sync::Arc::new(value));
    }
}

//! The gate's primitives under the scheduler's control; same names and meaning as the product's.

use std::sync::Arc;

pub use shuttle::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

#[derive(Debug)]
pub struct Swap<T>(shuttle::sync::Mutex<Arc<T>>);

impl<T> Swap<T> {
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(Arc::new(value)))
    }

    pub fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        let current = Arc::clone(&self.0.lock().unwrap());
        look(&current)
    }

    pub fn replace(&self, value: T) {
        *self.0.lock().unwrap() = Arc::new(value);
    }
}

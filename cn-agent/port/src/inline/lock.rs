//! A spin lock that a signal handler may take: waiting threads spin, so the lock keeps no list of them.

#![expect(unsafe_code, reason = "the lock lends its value to one thread at a time")]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
pub struct SpinLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the lock reaches the value.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub fn new(value: T) -> SpinLock<T> {
        SpinLock { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Runs `with` on the value if the lock is free; else returns `None`.
    #[inline]
    pub fn try_with<R>(&self, with: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.taken.load(Ordering::Relaxed) || self.taken.swap(true, Ordering::Acquire) {
            return None;
        }
        struct Release<'a>(&'a AtomicBool);
        impl Drop for Release<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        let _release = Release(&self.taken);
        // SAFETY: this call holds the lock until it returns.
        Some(with(unsafe { &mut *self.value.get() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let lock = SpinLock::new(0);
        assert_eq!(lock.try_with(|_| lock.try_with(|_| ())), Some(None));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        while lock.try_with(|value| *value += 1).is_none() {
                            std::hint::spin_loop();
                        }
                    }
                });
            }
        });
        assert_eq!(lock.try_with(|value| *value), Some(4000));
    }
}

//! A lock for memory allocators: it never allocates, waiters sleep while the holder waits for a page, and a forked
//! child can reset it, whichever thread of the parent held it.
//!
//! The word is 0 when open, 1 when held, 2 when held and a thread may be asleep on it.

#![expect(unsafe_code, reason = "the lock lends its value to one thread at a time")]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sys;

const OPEN: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;
/// Number of spins before a waiter sleeps: critical sections are short unless a page has to be fetched.
const LOOKS: u32 = 100;

#[derive(Debug)]
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only one thread at a time accesses the value, through a guard.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Access to the value of a lock, which is held until this is dropped.
#[derive(Debug)]
pub struct LockGuard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock { word: AtomicU32::new(OPEN), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub fn lock(&self) -> LockGuard<'_, T> {
        if self.word.compare_exchange(OPEN, HELD, Acquire, Relaxed).is_err() {
            self.wait();
        }
        LockGuard { lock: self }
    }

    #[inline]
    pub fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        self.word.compare_exchange(OPEN, HELD, Acquire, Relaxed).ok().map(|_| LockGuard { lock: self })
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..LOOKS {
            if self.word.load(Relaxed) == OPEN
                && self.word.compare_exchange(OPEN, HELD, Acquire, Relaxed).is_ok()
            {
                return;
            }
            std::hint::spin_loop();
        }
        while self.word.swap(AWAITED, Acquire) != OPEN {
            sys::futex_wait(&self.word, AWAITED);
        }
    }

    #[inline]
    fn open(&self) {
        if self.word.swap(OPEN, Release) == AWAITED {
            sys::futex_wake(&self.word);
        }
    }

    /// Takes the lock before a fork, so that the value is consistent in the child.
    pub fn lock_before_fork(&self) {
        std::mem::forget(self.lock());
    }

    /// Releases the lock that [`lock_before_fork`](Self::lock_before_fork) took, in the parent.
    pub fn unlock_after_fork(&self) {
        self.open();
    }

    /// Releases the lock in a forked child, which has no other thread.
    pub fn reset(&self) {
        self.word.store(OPEN, Release);
    }
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held, so no other thread accesses the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, so no other thread accesses the value.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for LockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.open();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let count = Lock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let mut count = count.lock();
                        let read = *count;
                        std::hint::spin_loop();
                        *count = read + 1;
                    }
                });
            }
        });
        assert_eq!(*count.lock(), 80_000);
        assert!(count.try_lock().is_some());
        count.lock_before_fork();
        assert!(count.try_lock().is_none());
        count.unlock_after_fork();
        count.lock_before_fork();
        count.reset();
        assert!(count.try_lock().is_some());
    }
}

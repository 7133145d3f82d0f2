//! A lock for memory allocators: it never allocates, a holder may wait long for a page without burning a core of others,
//! and a forked child can put it back to open, whoever held it in the parent.
//!
//! The word is 0 when open, 1 when held, 2 when held and somebody may be asleep over it.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sys;

const OPEN: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;
/// Looks at the word before going to sleep: critical sections are short unless a page has to come.
const LOOKS: u32 = 100;

/// A value and its lock.
#[derive(Debug)]
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time, through a guard.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The value of a lock that is held.
#[derive(Debug)]
pub struct Held<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    /// An open lock.
    pub const fn new(value: T) -> Lock<T> {
        Lock { word: AtomicU32::new(OPEN), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Held<'_, T> {
        if self.word.compare_exchange(OPEN, HELD, Acquire, Relaxed).is_err() {
            self.wait();
        }
        Held { lock: self }
    }

    /// The lock, if it is open.
    #[inline]
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        self.word.compare_exchange(OPEN, HELD, Acquire, Relaxed).ok().map(|_| Held { lock: self })
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

    /// Takes the lock before a fork, so that the value is whole in the child.
    pub fn hold(&self) {
        std::mem::forget(self.lock());
    }

    /// Opens the lock that [`hold`](Self::hold) took: in the parent.
    pub fn let_go(&self) {
        self.open();
    }

    /// Opens the lock in a forked child, where nobody waits.
    pub fn reset(&self) {
        self.word.store(OPEN, Release);
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held, so nobody else reaches the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, so nobody else reaches the value.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
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
        count.hold();
        assert!(count.try_lock().is_none());
        count.let_go();
        count.hold();
        count.reset();
        assert!(count.try_lock().is_some());
    }
}

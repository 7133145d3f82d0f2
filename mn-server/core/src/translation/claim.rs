//! Runs an action only once for each bit of a word: the first thread that claims a bit runs the action, and the others
//! wait.

use std::sync::atomic::{AtomicU64, Ordering};

/// A word of bits that threads share.
pub(super) trait SharedBits {
    /// Returns the bits. A thread that finds a bit set sees all writes made before the bit was set.
    fn get(&self) -> u64;
    /// Sets bits and returns the word as it was before.
    fn set(&self, bits: u64) -> u64;
    fn clear(&self, bits: u64);
}

impl SharedBits for AtomicU64 {
    #[inline]
    fn get(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn set(&self, bits: u64) -> u64 {
        self.fetch_or(bits, Ordering::AcqRel)
    }

    #[inline]
    fn clear(&self, bits: u64) {
        self.fetch_and(!bits, Ordering::Release);
    }
}

/// Calls `act` and sets `bit` in `done`, unless that bit is set already. `claimed` has the bits that threads
/// are working on; a thread that finds its bit claimed calls `pause` until the bit is done, or `ended`
/// returns `true`.
pub(super) fn once(
    claimed: &impl SharedBits,
    done: &impl SharedBits,
    bit: u64,
    ended: impl Fn() -> bool,
    pause: impl Fn(),
    act: impl FnOnce(),
) {
    loop {
        if ended() || done.get() & bit != 0 {
            return;
        }
        if claimed.set(bit) & bit == 0 {
            break;
        }
        pause();
    }
    // Another thread may have set the bit between the check above and the claim.
    if done.get() & bit == 0 {
        act();
        done.set(bit);
    }
    claimed.clear(bit);
}

#[cfg(test)]
#[expect(unsafe_code, reason = "loom checks accesses to a cell that threads share")]
mod tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    use super::*;

    impl SharedBits for loom::sync::atomic::AtomicU64 {
        fn get(&self) -> u64 {
            self.load(Ordering::Acquire)
        }

        fn set(&self, bits: u64) -> u64 {
            self.fetch_or(bits, Ordering::AcqRel)
        }

        fn clear(&self, bits: u64) {
            self.fetch_and(!bits, Ordering::Release);
        }
    }

    struct Shared {
        claimed: loom::sync::atomic::AtomicU64,
        done: loom::sync::atomic::AtomicU64,
        /// Number of times that `act` was called. The model checker reports a thread that reads the number
        /// while another writes it.
        acts: UnsafeCell<u32>,
    }

    // SAFETY: the model checker (loom) checks each access to the cell.
    unsafe impl Sync for Shared {}
    // SAFETY: the same reason as for `Sync`.
    unsafe impl Send for Shared {}

    /// In every interleaving of two threads, one of them acts, and both see the result.
    #[test]
    fn one_thread_acts_and_all_see_it() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Arc::new(Shared {
                claimed: loom::sync::atomic::AtomicU64::new(0),
                done: loom::sync::atomic::AtomicU64::new(0),
                acts: UnsafeCell::new(0),
            });
            let body = |shared: &Shared| {
                let act = || {
                    // SAFETY: the model checker (loom) checks this access.
                    shared.acts.with_mut(|acts| unsafe { *acts += 1 });
                };
                once(&shared.claimed, &shared.done, 2, || false, loom::thread::yield_now, act);
                // SAFETY: the model checker (loom) checks this access.
                assert_eq!(shared.acts.with(|acts| unsafe { *acts }), 1);
            };
            let other = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || body(&other));
            body(&shared);
            thread.join().unwrap();
        });
    }
}

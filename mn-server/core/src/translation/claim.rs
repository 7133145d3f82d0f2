//! Something that is done once for each bit of a word, by whichever thread comes first; the others wait for it.

use std::sync::atomic::{AtomicU64, Ordering};

/// A word of bits that threads share.
pub(super) trait SharedBits {
    /// The bits; what was done before they were set is visible.
    fn get(&self) -> u64;
    /// Sets bits, and returns those before.
    fn set(&self, bits: u64) -> u64;
    /// Clears bits.
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

/// Calls `act` unless `bit` is set in `done`, and sets it there. `claimed` has the bits of threads that act; one that
/// finds its bit claimed calls `pause` until the bit is done, or `ended` is true.
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
    // Another thread may have acted between the look and the claim.
    if done.get() & bit == 0 {
        act();
        done.set(bit);
    }
    claimed.clear(bit);
}

#[cfg(test)]
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
        /// Number of acts; the model reports a thread that reads it while another writes it.
        acts: UnsafeCell<u32>,
    }

    // SAFETY: the model checks each access to the cell.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}

    /// In every order of the steps of two threads, one acts, and both see what it did.
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
                    // SAFETY: the model checks this access.
                    shared.acts.with_mut(|acts| unsafe { *acts += 1 });
                };
                once(&shared.claimed, &shared.done, 2, || false, loom::thread::yield_now, act);
                // SAFETY: the model checks this access.
                assert_eq!(shared.acts.with(|acts| unsafe { *acts }), 1);
            };
            let other = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || body(&other));
            body(&shared);
            thread.join().unwrap();
        });
    }
}

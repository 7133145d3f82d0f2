//! How the control thread knows that no worker uses a removed mapping any more.
//!
//! Each removal belongs to a generation. A worker looks at the current one at its batch boundaries, where it
//! holds no translation but those in its TLB: if the generation has moved, it purges the TLB and then says
//! which generation it has passed. Once all have passed generation g, what was removed before g is out of
//! use everywhere, and its extents can be zeroed. In the usual case a boundary costs one load of a word that
//! nobody writes. A worker that goes to sleep says so and is not waited for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Said by a worker that holds no translation and will ask before it holds one again.
const PARKED: u64 = u64::MAX;

/// The generation of the mappings; shared by the control thread and all workers.
#[derive(Debug, Default)]
pub struct Generation {
    current: Padded,
    workers: Mutex<Vec<Arc<Padded>>>,
}

/// A word alone in its cache lines, so that one worker's reports do not slow another's reads.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicU64);

impl Generation {
    /// Generation 0, no workers.
    pub fn new() -> Arc<Generation> {
        Arc::default()
    }

    /// Admits a worker, parked at first. It counts until its [`Passage`] is dropped.
    pub fn worker(self: &Arc<Self>) -> Passage {
        let slot = Arc::new(Padded(AtomicU64::new(PARKED)));
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(slot.clone());
        Passage { generation: self.clone(), slot, seen: PARKED, purged: 0 }
    }

    /// The current generation.
    #[inline]
    pub fn current(&self) -> u64 {
        self.current.0.load(Ordering::Acquire)
    }

    /// Starts the next generation and returns it. What the caller did before is seen by every worker that
    /// passes it.
    pub(super) fn advance(&self) -> u64 {
        self.current.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The generation that every worker has passed; [`current`](Self::current) if none is awake.
    pub fn passed(&self) -> u64 {
        let current = self.current.0.load(Ordering::SeqCst);
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        // Where only this list holds the word, the worker has ended.
        workers.retain(|worker| Arc::strong_count(worker) > 1);
        workers.iter().map(|worker| worker.0.load(Ordering::SeqCst)).min().unwrap_or(current).min(current)
    }
}

/// A worker's side of [`Generation`].
#[derive(Debug)]
pub struct Passage {
    generation: Arc<Generation>,
    slot: Arc<Padded>,
    /// What `slot` says.
    seen: u64,
    /// The generation at the last purge.
    purged: u64,
}

impl Passage {
    /// To be called at every batch boundary, before the batch: the worker holds no translation now, outside
    /// its TLB. `purge` empties the TLB; it is called if a mapping has been removed since the last time.
    #[inline]
    pub fn pass(&mut self, purge: impl FnOnce()) {
        let current = self.generation.current();
        if current != self.seen {
            self.move_on(current, purge);
        }
    }

    #[cold]
    fn move_on(&mut self, mut current: u64, purge: impl FnOnce()) {
        // Until report and generation agree: while this worker was parked, the control thread may have moved
        // on without it. Nothing is translated between the report and the purge.
        loop {
            self.slot.0.store(current, Ordering::SeqCst);
            match self.generation.current.0.load(Ordering::SeqCst) {
                again if again == current => break,
                again => current = again,
            }
        }
        if current != self.purged {
            purge();
        }
        self.seen = current;
        self.purged = current;
    }

    /// To be called before going to sleep: the worker holds no translation and will not use its TLB before
    /// the next [`pass`](Self::pass).
    pub fn park(&mut self) {
        self.slot.0.store(PARKED, Ordering::Release);
        self.seen = PARKED;
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.slot.0.store(PARKED, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_those_awake_only() {
        let generation = Generation::new();
        assert_eq!(generation.passed(), 0);
        let (mut one, mut two) = (generation.worker(), generation.worker());
        one.pass(|| panic!("nothing was removed yet"));
        assert_eq!(generation.advance(), 1);
        assert_eq!(generation.passed(), 0, "worker one is in a batch of generation 0");

        let mut purged = false;
        two.pass(|| purged = true);
        assert!(purged, "worker two wakes up in generation 1");
        assert_eq!(generation.passed(), 0);
        one.park();
        assert_eq!(generation.passed(), 1);

        generation.advance();
        assert_eq!(generation.passed(), 1, "worker two is in a batch of generation 1");
        drop(two);
        assert_eq!(generation.passed(), 2);
    }

    #[test]
    fn purges_once_per_generation_and_not_after_sleep_alone() {
        let generation = Generation::new();
        let mut worker = generation.worker();
        let mut purges = 0;
        worker.pass(|| purges += 1);
        generation.advance();
        for _ in 0..3 {
            worker.pass(|| purges += 1);
        }
        assert_eq!(purges, 1);
        worker.park();
        worker.pass(|| purges += 1);
        assert_eq!(purges, 1, "nothing was removed during the sleep");
        worker.park();
        generation.advance();
        worker.pass(|| purges += 1);
        assert_eq!((purges, generation.passed()), (2, 2));
    }
}

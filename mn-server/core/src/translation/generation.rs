//! Reclamation of removed mappings: detects when no worker uses a removed mapping any more.
//!
//! Each removal belongs to a generation. A worker reads the current generation at its batch boundaries, where its only
//! translations are those in its TLB. If the generation has advanced, the worker purges its TLB and then publishes the
//! generation that it has passed. When all workers have passed generation g, no worker uses a mapping removed before g,
//! and the extents can be zeroed. While no mapping is removed, a boundary costs one load of a word that no thread
//! writes. A worker marks itself as parked before it sleeps, and the control thread does not wait for parked workers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Value of a parked worker, which has no translation and reads the generation before its next translation.
const PARKED: u64 = u64::MAX;

/// Number of the present generation, and the generation that each worker has passed.
#[derive(Debug, Default)]
pub struct Generation {
    current: Padded,
    workers: Mutex<Vec<Arc<Padded>>>,
}

/// A word with cache lines of its own, so that one worker's writes do not slow another's reads.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicU64);

impl Generation {
    pub fn new() -> Arc<Generation> {
        Arc::default()
    }

    /// Adds a worker, which is parked at first. The worker counts until its [`WorkerGeneration`] is dropped.
    pub fn worker(self: &Arc<Self>) -> WorkerGeneration {
        let slot = Arc::new(Padded(AtomicU64::new(PARKED)));
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(slot.clone());
        WorkerGeneration { generation: self.clone(), slot, seen: PARKED, purged: 0 }
    }

    #[inline]
    pub fn current(&self) -> u64 {
        self.current.0.load(Ordering::Acquire)
    }

    /// Starts the next generation and returns it. Every worker that passes it sees the caller's earlier writes.
    pub(super) fn advance(&self) -> u64 {
        self.current.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Generation that every worker has passed; [`current`](Self::current) if all are parked.
    pub fn passed(&self) -> u64 {
        let current = self.current.0.load(Ordering::SeqCst);
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        // If the list has the only reference to a word, the worker to which the word belonged has ended.
        workers.retain(|worker| Arc::strong_count(worker) > 1);
        workers.iter().map(|worker| worker.0.load(Ordering::SeqCst)).min().unwrap_or(current).min(current)
    }
}

#[derive(Debug)]
pub struct WorkerGeneration {
    generation: Arc<Generation>,
    slot: Arc<Padded>,
    /// Copy of the generation in `slot`, so that the worker need not read that word.
    seen: u64,
    /// Generation at the last purge.
    purged: u64,
}

impl WorkerGeneration {
    /// Passes a batch boundary, where the worker has no translation outside its TLB; call before each batch. Calls
    /// `purge`, which empties the TLB, if a mapping has been removed since the last call.
    #[inline]
    pub fn pass(&mut self, purge: impl FnOnce()) {
        let current = self.generation.current();
        if current != self.seen {
            self.move_on(current, purge);
        }
    }

    #[cold]
    fn move_on(&mut self, mut current: u64, purge: impl FnOnce()) {
        // Repeats until the value written equals the current generation: while this worker was parked, the control
        // thread may have advanced without it. The worker translates nothing between the write and the purge.
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

    /// Marks the worker as parked; call before it sleeps. It must not use its TLB before the next [`pass`](Self::pass).
    pub fn park(&mut self) {
        self.slot.0.store(PARKED, Ordering::Release);
        self.seen = PARKED;
    }
}

impl Drop for WorkerGeneration {
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

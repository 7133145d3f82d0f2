//! Current instance (one run of the agent) of each CN that has several queues, for all workers of the node: the shards
//! of a CN, one per queue, may have their sessions on different workers, and delayed requests of an agent that has
//! ended must not be executed after its successor's requests.
//!
//! ```text
//!   worker 0: Start of the CN itself, new instance --> becomes the current one, in a new generation
//!   worker 3: its next batch --> ends the sessions of the former instance's shards
//!   worker 0: Start again    --> all workers have passed the generation: StartAck
//! ```
//!
//! A shard is offered a session only while its instance is the current one. So the CN's own session, which
//! distinguishes two agents with one address, always comes first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::entry::CnId;
use super::generation::{Generation, WorkerGeneration};

/// Maximum number of CNs in the map, more than have memory on any node. Above it, CNs without shards are
/// removed.
const CNS_MAX: usize = 65_536;

#[derive(Clone, Copy, Debug)]
struct Current {
    instance: u64,
    /// Set when a shard (one queue) of this instance has been admitted.
    sharded: bool,
    /// Generation that all workers have to pass before the CN's own session can start.
    from: u64,
}

/// Current instances of CNs. They have a generation of their own, separate from that of the mappings, which only the
/// control thread advances.
#[derive(Debug, Default)]
pub struct Instances {
    current: Mutex<HashMap<CnId, Current>>,
    generation: Arc<Generation>,
}

impl Instances {
    fn lock(&self) -> MutexGuard<'_, HashMap<CnId, Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a worker, which at every batch boundary passes the generation and ends the sessions of shards that are not
    /// current.
    pub fn worker(&self) -> WorkerGeneration {
        self.generation.worker()
    }

    /// Makes `instance` the current one of `cn`. Returns `true` if no worker executes requests from shards of an
    /// earlier instance any more; until then, the caller repeats the call.
    pub fn take_over(&self, cn: CnId, instance: u64) -> bool {
        let mut all = self.lock();
        if let Some(current) = all.get(&cn).filter(|current| current.instance == instance) {
            return current.from == 0 || self.generation.passed() >= current.from;
        }
        if all.len() >= CNS_MAX {
            all.retain(|_, current| current.sharded);
        }
        if all.len() >= CNS_MAX {
            return false;
        }
        let sharded = all.get(&cn).is_some_and(|before| before.sharded);
        // The instance is stored before the generation advances, so that a worker that passes the generation finds it.
        all.insert(cn, Current { instance, sharded: false, from: if sharded { u64::MAX } else { 0 } });
        if sharded && let Some(current) = all.get_mut(&cn) {
            current.from = self.generation.advance();
        }
        !sharded
    }

    /// Whether `instance` is the current one of `cn`, so that its shards may have sessions.
    pub fn is_current(&self, cn: CnId, instance: u64) -> bool {
        let mut all = self.lock();
        let Some(current) = all.get_mut(&cn).filter(|current| current.instance == instance) else {
            return false;
        };
        current.sharded = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_waits_until_no_worker_serves_shards_of_the_one_before() {
        let instances = Instances::default();
        let (mut one, mut two) = (instances.worker(), instances.worker());
        let none = || panic!("nobody has been replaced");
        one.pass(none);
        two.pass(none);
        assert!(!instances.is_current(7, 1), "a shard comes after its CN");
        assert!(instances.take_over(7, 1));
        assert!(instances.is_current(7, 1) && !instances.is_current(7, 2) && !instances.is_current(8, 1));
        assert!(instances.take_over(7, 1), "the same agent again");

        assert!(!instances.take_over(7, 2), "the other's shards may still be served");
        assert!(!instances.is_current(7, 1), "and are not any more from now on");
        let mut ended = false;
        one.pass(|| ended = true);
        assert!(ended && !instances.take_over(7, 2), "worker two is in a batch");
        two.park();
        assert!(instances.take_over(7, 2), "who sleeps passes before it serves anybody");
        assert!(instances.is_current(7, 2));
    }

    #[test]
    fn an_agent_without_shards_delays_no_other() {
        let instances = Instances::default();
        let mut worker = instances.worker();
        worker.pass(|| panic!("nobody has been replaced"));
        for instance in 1..9 {
            assert!(instances.take_over(7, instance));
        }
    }
}

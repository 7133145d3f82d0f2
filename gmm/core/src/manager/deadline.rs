//! Work of the manager that no command of a node or a user brings: nodes become silent, and regions are to be repaired.
//!
//! Times are those of `now_ms`, from the Unix epoch on; as [`Time`], in nanoseconds.

use cxloe_wire::machine::{Deadline, StateMachine};
use cxloe_wire::time::Time;

use super::Manager;
use super::liveness::NodeKey;

impl StateMachine for Manager {
    /// Time at which [`Command::Tick`](super::Command::Tick) is due. Never while the state is frozen.
    fn deadline(&self) -> Deadline {
        if self.frozen.is_some() {
            return Deadline::NEVER;
        }
        let silence = self.liveness.next_silence_ms(self.options.node_timeout_ms);
        let silence = silence.map(|at_ms| self.not_before_next(at_ms, "silence of a node"));
        let repair = self.next_repair_ms().map(|at_ms| self.not_before_next(at_ms, "repair of a region"));
        silence.into_iter().chain(repair).fold(Deadline::NEVER, Deadline::min)
    }
}

impl Manager {
    /// Deadline at `at_ms`, but later than the last tick: a tick repairs a limited number of regions, and the rest is
    /// due at once.
    fn not_before_next(&self, at_ms: u64, reason: &'static str) -> Deadline {
        Deadline::new(Time::from_millis(at_ms.max(self.ticked_ms.saturating_add(1))), reason)
    }

    pub(super) fn tick(&mut self) {
        self.ticked_ms = self.now_ms;
        for node in self.liveness.take_silent(self.now_ms, self.options.node_timeout_ms) {
            match node {
                NodeKey::Memory(name) => self.memory_node_silent(&name),
                NodeKey::Compute(cn) => self.compute_node_silent(cn),
            }
        }
        self.repair_due();
    }
}

//! Processes of memory nodes whose place others have taken.
//!
//! What such a process said last may arrive when its successor has hung up for a moment. Taken as news, it would say that the
//! content of the successor's pool is lost, and somebody who accepts that loss has flushed lines zeroed.
//!
//! Who is the successor is known by the order in which registrations arrive. Where those of two processes arrived the other
//! way round, the one that is there is refused as long as messages may be under way, and believed from then on.

use std::collections::{BTreeMap, VecDeque};

use cxloe_fabric::model::Name;

/// Processes of one node that are remembered: what is on its way for longer than that was sent over a connection that ended.
const FORMER_MAX: usize = 16;

/// How long a process is refused that has a successor, milliseconds: nothing that it said before is under way for longer.
pub(super) const REFUSED_MS: u64 = 2_000;

/// Their `instance_id`s and since when they have successors, milliseconds, the latest last. Not part of the state: nothing that
/// was said to one manager reaches another.
#[derive(Debug, Default)]
pub(super) struct Former(BTreeMap<Name, VecDeque<(u64, u64)>>);

impl Former {
    /// Process `instance` of the node has a successor from now on.
    pub fn add(&mut self, node: &Name, instance: u64, now_ms: u64) {
        let processes = self.0.entry(node.clone()).or_default();
        if processes.len() == FORMER_MAX {
            processes.pop_front();
        }
        processes.push_back((instance, now_ms));
    }

    /// Whether that process has one, and something that it said before may still arrive.
    pub fn has(&self, node: &Name, instance: u64, now_ms: u64) -> bool {
        let refused =
            |(former, since): &(u64, u64)| *former == instance && now_ms.saturating_sub(*since) < REFUSED_MS;
        self.0.get(node).is_some_and(|processes| processes.iter().any(refused))
    }

    /// There is no such node any more.
    pub fn forget(&mut self, node: &Name) {
        self.0.remove(node);
    }
}

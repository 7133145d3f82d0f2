//! Processes of memory nodes whose place others have taken.
//!
//! What such a process said last may arrive when its successor has hung up for a moment. Taken as news, it would say that the
//! content of the successor's pool is lost, and somebody who accepts that loss has flushed lines zeroed.

use std::collections::{BTreeMap, VecDeque};

use cxloe_fabric::model::Name;

/// Processes of one node that are remembered: what is on its way for longer than that was sent over a connection that ended.
const FORMER_MAX: usize = 16;

/// By their `instance_id`s, the latest last. Not part of the state: nothing that was said to one manager reaches another.
#[derive(Debug, Default)]
pub(super) struct Former(BTreeMap<Name, VecDeque<u64>>);

impl Former {
    /// Process `instance` of the node has a successor.
    pub fn add(&mut self, node: &Name, instance: u64) {
        let processes = self.0.entry(node.clone()).or_default();
        if processes.len() == FORMER_MAX {
            processes.pop_front();
        }
        processes.push_back(instance);
    }

    /// Whether that process has one.
    pub fn has(&self, node: &Name, instance: u64) -> bool {
        self.0.get(node).is_some_and(|processes| processes.contains(&instance))
    }

    /// There is no such node any more.
    pub fn forget(&mut self, node: &Name) {
        self.0.remove(node);
    }
}

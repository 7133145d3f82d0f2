//! Processes of memory nodes whose place others have taken.
//!
//! What such a process said last may arrive when its successor has hung up for a moment. Taken as news, it would say that the
//! content of the successor's pool is lost, and somebody who accepts that loss has flushed lines zeroed.
//!
//! Who is the successor is known by the order in which registrations arrive, and by when the processes say that they started:
//! the former one's registration may be the last to arrive, or have been heard by another manager. A clock may have been set
//! back between two starts. So nobody is refused for longer than messages may be under way.

use std::collections::{BTreeMap, VecDeque};

use cxloe_fabric::model::Name;

/// Processes of one node that are remembered: what is on its way for longer than that was sent over a connection that ended.
const FORMER_MAX: usize = 16;

/// How long a process is refused that has a successor, milliseconds: nothing that it said before is under way for longer.
pub(super) const REFUSED_MS: u64 = 2_000;

/// The processes of one node.
#[derive(Debug)]
struct Processes {
    /// When the present one registered first, milliseconds.
    present_ms: u64,
    /// The `instance_id`s of those before it and since when they have successors, milliseconds, the latest last.
    former: VecDeque<(u64, u64)>,
}

/// Those of all nodes. Not part of the state: nothing that was said to one manager reaches another.
#[derive(Debug)]
pub(super) struct Former {
    /// Since when this manager listens, milliseconds. Whoever is there already registered before.
    since_ms: u64,
    nodes: BTreeMap<Name, Processes>,
}

impl Former {
    /// Of a manager that listens from now on.
    pub fn new(now_ms: u64) -> Self {
        Self { since_ms: now_ms, nodes: BTreeMap::new() }
    }

    /// A process of the node registers for the first time, and takes the place of `before`.
    pub fn succeed(&mut self, node: &Name, before: Option<u64>, now_ms: u64) {
        let new = Processes { present_ms: now_ms, former: VecDeque::new() };
        let processes = self.nodes.entry(node.clone()).or_insert(new);
        processes.present_ms = now_ms;
        let Some(before) = before else { return };
        if processes.former.len() == FORMER_MAX {
            processes.former.pop_front();
        }
        processes.former.push_back((before, now_ms));
    }

    /// Whether that process has a successor, and something that it said before may still arrive.
    pub fn has(&self, node: &Name, instance: u64, now_ms: u64) -> bool {
        let refused = |(former, since): &(u64, u64)| *former == instance && is_recent(*since, now_ms);
        self.nodes.get(node).is_some_and(|processes| processes.former.iter().any(refused))
    }

    /// Whether something may still arrive that was said before the present process of the node started.
    pub fn is_fresh(&self, node: &Name, now_ms: u64) -> bool {
        let since = self.nodes.get(node).map_or(self.since_ms, |processes| processes.present_ms);
        is_recent(since, now_ms)
    }

    /// There is no such node any more.
    pub fn forget(&mut self, node: &Name) {
        self.nodes.remove(node);
    }
}

fn is_recent(since_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(since_ms) < REFUSED_MS
}

//! Processes of memory nodes that another process of the same name has superseded.
//!
//! The last messages of a superseded process may arrive while its successor is briefly disconnected. The manager must
//! not accept them: they would mark the content of the successor's pool as lost, and if a user then accepted that loss,
//! flushed lines would be zeroed.
//!
//! The successor is determined by the order in which registrations arrive and by the start times that processes report,
//! because the earlier process's registration may be the last to arrive, or may have arrived at another manager. A
//! clock may have been set back between two starts, so no process is refused for longer than its messages may be under
//! way.

use std::collections::{BTreeMap, VecDeque};

use cxloe_fabric::model::Name;

/// Maximum number of superseded processes recorded per node. The connections of earlier ones have ended, so
/// no message of theirs is under way.
const FORMER_MAX: usize = 16;

/// Time for which a superseded process is refused, in milliseconds: none of its messages is under way for longer.
pub(super) const REFUSED_MS: u64 = 2_000;

#[derive(Debug)]
struct NodeProcesses {
    /// Time of the present process's first registration, in milliseconds since the Unix epoch.
    present_ms: u64,
    /// The `instance_id` of each superseded process and the time at which it was superseded, in milliseconds since the
    /// Unix epoch; the latest is last.
    superseded: VecDeque<(u64, u64)>,
}

/// Superseded processes of all nodes. Not stored, because no message sent to one manager reaches another.
#[derive(Debug)]
pub(super) struct SupersededProcesses {
    /// Start time of this manager, in milliseconds since the Unix epoch. A process that was running at that
    /// time had registered earlier.
    since_ms: u64,
    nodes: BTreeMap<Name, NodeProcesses>,
}

impl SupersededProcesses {
    pub fn new(now_ms: u64) -> Self {
        Self { since_ms: now_ms, nodes: BTreeMap::new() }
    }

    /// Records the first registration of a process, which supersedes the process `before`.
    pub fn succeed(&mut self, node: &Name, before: Option<u64>, now_ms: u64) {
        let new = NodeProcesses { present_ms: now_ms, superseded: VecDeque::new() };
        let processes = self.nodes.entry(node.clone()).or_insert(new);
        processes.present_ms = now_ms;
        let Some(before) = before else { return };
        if processes.superseded.len() == FORMER_MAX {
            processes.superseded.pop_front();
        }
        processes.superseded.push_back((before, now_ms));
    }

    /// Returns true if the process `instance` is superseded and messages from it may still arrive.
    pub fn has(&self, node: &Name, instance: u64, now_ms: u64) -> bool {
        let refused = |(superseded, since): &(u64, u64)| *superseded == instance && is_recent(*since, now_ms);
        self.nodes.get(node).is_some_and(|processes| processes.superseded.iter().any(refused))
    }

    /// Returns true if messages of the predecessor of the node's present process may still arrive.
    pub fn is_fresh(&self, node: &Name, now_ms: u64) -> bool {
        let since = self.nodes.get(node).map_or(self.since_ms, |processes| processes.present_ms);
        is_recent(since, now_ms)
    }

    pub fn forget(&mut self, node: &Name) {
        self.nodes.remove(node);
    }
}

fn is_recent(since_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(since_ms) < REFUSED_MS
}

//! Time of the latest message of each node. These times are not stored: after a restart, every reachable node
//! has the full time-out to send a message.

use std::collections::{BTreeMap, BTreeSet};

use cxloe_fabric::model::{CnId, Name};

/// Key of a node in a table of memory nodes and compute nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeKey {
    Memory(Name),
    Compute(CnId),
}

#[derive(Debug, Clone, Copy)]
struct LastContact {
    at_ms: u64,
    attached: bool,
}

/// Time of the latest message of each reachable node, and whether its daemon is connected.
#[derive(Debug, Default)]
pub struct Liveness {
    heard: BTreeMap<NodeKey, LastContact>,
    /// The same entries ordered by time, so that silent nodes are found without a walk over all nodes.
    by_time: BTreeSet<(u64, NodeKey)>,
    /// Time before which no node counts as silent, because the manager itself was paused.
    grace_until_ms: u64,
}

impl Liveness {
    /// Records the arrival of a message, and that the node's daemon is connected.
    pub fn heard(&mut self, node: NodeKey, now_ms: u64) {
        let before = self.heard.insert(node.clone(), LastContact { at_ms: now_ms, attached: true });
        match before {
            Some(before) if before.at_ms == now_ms => return,
            Some(before) => drop(self.by_time.remove(&(before.at_ms, node.clone()))),
            None => {}
        }
        self.by_time.insert((now_ms, node));
    }

    /// Records that the node's connection ended. The node does not count as silent yet, but another daemon may take its
    /// place.
    pub fn hung_up(&mut self, node: &NodeKey) {
        if let Some(heard) = self.heard.get_mut(node) {
            heard.attached = false;
        }
    }

    /// Removes a node, so that it can no longer become silent.
    pub fn forget(&mut self, node: &NodeKey) {
        if let Some(heard) = self.heard.remove(node) {
            self.by_time.remove(&(heard.at_ms, node.clone()));
        }
    }

    /// Returns true if the node has sent a message and has not become silent since.
    pub(crate) fn is_heard(&self, node: &NodeKey) -> bool {
        self.heard.contains_key(node)
    }

    pub(crate) fn is_attached(&self, node: &NodeKey) -> bool {
        self.heard.get(node).is_some_and(|heard| heard.attached)
    }

    /// Prevents nodes from becoming silent before `until_ms`.
    pub(crate) fn grant_grace(&mut self, until_ms: u64) {
        self.grace_until_ms = self.grace_until_ms.max(until_ms);
    }

    /// Removes and returns the nodes that have sent no message for `timeout_ms`.
    pub(crate) fn take_silent(&mut self, now_ms: u64, timeout_ms: u64) -> Vec<NodeKey> {
        let mut silent = Vec::new();
        if now_ms < self.grace_until_ms {
            return silent;
        }
        while self.by_time.first().is_some_and(|(at_ms, _)| at_ms.saturating_add(timeout_ms) <= now_ms) {
            let Some((_, node)) = self.by_time.pop_first() else { break };
            self.heard.remove(&node);
            silent.push(node);
        }
        silent
    }

    /// Returns the time at which the next node becomes silent if none sends a message until then; `None`
    /// without nodes.
    pub fn next_silence_ms(&self, timeout_ms: u64) -> Option<u64> {
        let first = self.by_time.first().map(|(at_ms, _)| at_ms.saturating_add(timeout_ms));
        first.map(|at_ms| at_ms.max(self.grace_until_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_counted_from_the_last_answer() {
        let node = NodeKey::Memory(Name::new("mn0").unwrap());
        let mut liveness = Liveness::default();
        liveness.heard(node.clone(), 100);
        liveness.heard(node.clone(), 400);
        assert_eq!(liveness.next_silence_ms(500), Some(900));
        assert!(liveness.take_silent(899, 500).is_empty());
        liveness.hung_up(&node);
        assert!(!liveness.is_attached(&node));
        assert_eq!(liveness.take_silent(900, 500), [node]);
        assert_eq!(liveness.next_silence_ms(500), None);
    }

    #[test]
    fn nobody_is_silent_before_the_grace_ends() {
        let node = NodeKey::Memory(Name::new("mn0").unwrap());
        let mut liveness = Liveness::default();
        liveness.heard(node.clone(), 100);
        liveness.grant_grace(2_000);
        assert_eq!(liveness.next_silence_ms(500), Some(2_000));
        assert!(liveness.take_silent(1_999, 500).is_empty());
        assert_eq!(liveness.take_silent(2_000, 500), [node]);
    }
}

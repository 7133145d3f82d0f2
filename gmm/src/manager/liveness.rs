//! When each node was last heard of. The one thing of the manager that does not outlive it: a manager that starts again
//! gives every node that was reachable the full time-out to speak.

use std::collections::{BTreeMap, BTreeSet};

use cxloe_fabric::model::{CnId, Name};

/// A node of either kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeKey {
    /// A memory node.
    Memory(Name),
    /// A compute node.
    Compute(CnId),
}

#[derive(Debug, Clone, Copy)]
struct Heard {
    at_ms: u64,
    attached: bool,
}

/// When each reachable node was last heard of, and whether its daemon is believed to run.
#[derive(Debug, Default)]
pub struct Liveness {
    heard: BTreeMap<NodeKey, Heard>,
    /// The same by time, so that finding who is silent does not mean looking at everyone.
    by_time: BTreeSet<(u64, NodeKey)>,
}

impl Liveness {
    /// The node spoke: its daemon runs.
    pub fn heard(&mut self, node: NodeKey, now_ms: u64) {
        let before = self.heard.insert(node.clone(), Heard { at_ms: now_ms, attached: true });
        match before {
            Some(before) if before.at_ms == now_ms => return,
            Some(before) => drop(self.by_time.remove(&(before.at_ms, node.clone()))),
            None => {}
        }
        self.by_time.insert((now_ms, node));
    }

    /// The node's daemon hung up. It may be back in a moment, so this does not make it silent, but another daemon may
    /// now take its place.
    pub fn hung_up(&mut self, node: &NodeKey) {
        if let Some(heard) = self.heard.get_mut(node) {
            heard.attached = false;
        }
    }

    /// The node is gone for good.
    pub fn forget(&mut self, node: &NodeKey) {
        if let Some(heard) = self.heard.remove(node) {
            self.by_time.remove(&(heard.at_ms, node.clone()));
        }
    }

    /// Whether the node was heard of and is not silent.
    pub fn is_heard(&self, node: &NodeKey) -> bool {
        self.heard.contains_key(node)
    }

    /// Whether a daemon of this node is believed to run.
    pub fn is_attached(&self, node: &NodeKey) -> bool {
        self.heard.get(node).is_some_and(|heard| heard.attached)
    }

    /// Removes and returns the nodes that were silent for `timeout_ms`.
    pub fn take_silent(&mut self, now_ms: u64, timeout_ms: u64) -> Vec<NodeKey> {
        let mut silent = Vec::new();
        while self.by_time.first().is_some_and(|(at_ms, _)| at_ms.saturating_add(timeout_ms) <= now_ms) {
            let Some((_, node)) = self.by_time.pop_first() else { break };
            self.heard.remove(&node);
            silent.push(node);
        }
        silent
    }

    /// When the next node becomes silent if none speaks until then; `None` when there are none.
    pub fn next_deadline_ms(&self, timeout_ms: u64) -> Option<u64> {
        self.by_time.first().map(|(at_ms, _)| at_ms.saturating_add(timeout_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_counted_from_the_last_word() {
        let node = NodeKey::Memory(Name::new("mn0").unwrap());
        let mut liveness = Liveness::default();
        liveness.heard(node.clone(), 100);
        liveness.heard(node.clone(), 400);
        assert_eq!(liveness.next_deadline_ms(500), Some(900));
        assert!(liveness.take_silent(899, 500).is_empty());
        liveness.hung_up(&node);
        assert!(!liveness.is_attached(&node));
        assert_eq!(liveness.take_silent(900, 500), [node]);
        assert_eq!(liveness.next_deadline_ms(500), None);
    }
}

//! Undo log: the earlier value of each changed record, so that the changes of a refused command, or changes
//! that could not be stored, can be undone.

use std::collections::BTreeMap;
use std::fmt;

use super::{Change, FabricState, Meta};

type Undo = Box<dyn FnOnce(&mut FabricState) + Send>;

/// Steps that undo all changes since the log began, and the counters at that time.
pub(super) struct UndoLog {
    meta: Meta,
    steps: Vec<Undo>,
}

impl fmt::Debug for UndoLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UndoLog").field("steps", &self.steps.len()).finish_non_exhaustive()
    }
}

/// Returns the step that restores one record of a table.
fn restoring_step<K, V>(
    state: &FabricState,
    key: K,
    table: fn(&FabricState) -> &BTreeMap<K, V>,
    back: fn(&mut FabricState) -> &mut BTreeMap<K, V>,
) -> Undo
where
    K: Ord + Send + 'static,
    V: Clone + Send + 'static,
{
    let before = table(state).get(&key).cloned();
    Box::new(move |state| {
        match before {
            Some(value) => back(state).insert(key, value),
            None => back(state).remove(&key),
        };
    })
}

macro_rules! as_before {
    ($state:expr, $table:ident, $key:expr) => {
        restoring_step($state, $key, |state| &state.$table, |state| &mut state.$table)
    };
}

impl UndoLog {
    pub(super) fn new(meta: Meta) -> Self {
        Self { meta, steps: Vec::new() }
    }

    /// Returns true if nothing has changed since the beginning of the log, counters included.
    pub(super) fn is_empty(&self, state: &FabricState) -> bool {
        self.steps.is_empty() && self.meta == state.meta
    }

    /// Appends a log that begins where this one ends.
    pub(super) fn append(&mut self, mut later: UndoLog) {
        self.steps.append(&mut later.steps);
    }

    /// Restores `state` to the beginning of the log.
    pub(super) fn take_back(self, state: &mut FabricState) {
        self.steps.into_iter().rev().for_each(|undo| undo(state));
        state.meta = self.meta;
    }

    /// Records how to undo a change. Called with each change before it is applied.
    pub(super) fn note(&mut self, state: &FabricState, change: &Change) {
        let undo: Undo = match change {
            // Nothing to record: `take_back` restores all counters at once.
            Change::Meta(_) => return,
            Change::Replaced(before, _) => {
                let before = before.clone();
                Box::new(move |state| *state = *before)
            }
            Change::MemoryNode(node) => as_before!(state, memory_nodes, node.name.clone()),
            Change::MemoryNodeGone(name) => {
                self.steps.push(as_before!(state, qos, name.clone()));
                self.steps.push(as_before!(state, orphans, name.clone()));
                as_before!(state, memory_nodes, name.clone())
            }
            Change::ComputeNode(node) => as_before!(state, compute_nodes, node.cn_id),
            Change::ComputeNodeGone(cn) => as_before!(state, compute_nodes, *cn),
            Change::Region(region) => as_before!(state, regions, region.name.clone()),
            Change::RegionGone(name) => as_before!(state, regions, name.clone()),
            Change::LogicalDevice(ld) => as_before!(state, logical_devices, (ld.memory_node.clone(), ld.id)),
            Change::LogicalDeviceGone(node, id) => as_before!(state, logical_devices, (node.clone(), *id)),
            Change::Operation(operation) => as_before!(state, operations, operation.switch),
            Change::Qos(qos) => as_before!(state, qos, qos.memory_node.clone()),
            Change::LogCleared(log) => as_before!(state, cleared_logs, log.place()),
            Change::CommandIssued(node, command) => as_before!(state, commands, (node.clone(), command.seq)),
            Change::CommandAnswered(node, seq) => as_before!(state, commands, (node.clone(), *seq)),
            Change::LeaderTerm(leader) => as_before!(state, leader_terms, leader.term),
            Change::LeaderTermForgotten(term) => as_before!(state, leader_terms, *term),
            Change::Orphans(orphans) => as_before!(state, orphans, orphans.memory_node.clone()),
            Change::OrphansGone(name) => as_before!(state, orphans, name.clone()),
            Change::Token(token) => as_before!(state, tokens, token.id.clone()),
            Change::TokenGone(id) => as_before!(state, tokens, id.clone()),
            Change::Joined(joined) => as_before!(state, joined, joined.node.clone()),
            Change::JoinedGone(node) => as_before!(state, joined, node.clone()),
            Change::Event(_) => Box::new(|state| drop(state.events.pop_back())),
            Change::EventsForgotten(below) => {
                let forgotten = state.events.iter().take_while(|event| event.seq < *below);
                let forgotten: Vec<_> = forgotten.cloned().collect();
                Box::new(move |state| {
                    forgotten.into_iter().rev().for_each(|event| state.events.push_front(event))
                })
            }
        };
        self.steps.push(undo);
    }
}

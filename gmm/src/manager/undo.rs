//! The way back: what each change replaced, so that changes of a command that is refused, or that could not be stored, are
//! taken back.

use std::collections::BTreeMap;
use std::fmt;

use super::{Change, Meta, State};

/// Takes one step back.
type Undo = Box<dyn FnOnce(&mut State) + Send>;

/// What was changed since a moment: the steps back to it, and its counters.
pub(super) struct UndoLog {
    meta: Meta,
    steps: Vec<Undo>,
}

impl fmt::Debug for UndoLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UndoLog").field("steps", &self.steps.len()).finish_non_exhaustive()
    }
}

/// Makes one record of a table what it was.
fn as_before<K, V>(
    state: &State,
    key: K,
    table: fn(&State) -> &BTreeMap<K, V>,
    back: fn(&mut State) -> &mut BTreeMap<K, V>,
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
        as_before($state, $key, |state| &state.$table, |state| &mut state.$table)
    };
}

impl UndoLog {
    /// From a moment with these counters on.
    pub(super) fn new(meta: Meta) -> Self {
        Self { meta, steps: Vec::new() }
    }

    /// Whether nothing was changed since, counters included.
    pub(super) fn is_empty(&self, state: &State) -> bool {
        self.steps.is_empty() && self.meta == state.meta
    }

    /// Adds what was changed after it.
    pub(super) fn append(&mut self, mut later: UndoLog) {
        self.steps.append(&mut later.steps);
    }

    /// Makes `state` what it was.
    pub(super) fn take_back(self, state: &mut State) {
        self.steps.into_iter().rev().for_each(|undo| undo(state));
        state.meta = self.meta;
    }

    /// To be told of each change before it is applied.
    pub(super) fn note(&mut self, state: &State, change: &Change) {
        let undo: Undo = match change {
            // The counters are put back as a whole.
            Change::Meta(_) => return,
            Change::MemoryNode(node) => as_before!(state, memory_nodes, node.name.clone()),
            Change::MemoryNodeGone(name) => {
                self.steps.push(as_before!(state, qos, name.clone()));
                self.steps.push(as_before!(state, orphans, name.clone()));
                as_before!(state, memory_nodes, name.clone())
            }
            Change::ComputeNode(node) => as_before!(state, compute_nodes, node.cn_id),
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

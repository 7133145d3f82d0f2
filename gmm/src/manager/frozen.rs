//! When the store cannot be written: what was changed since the last commit is taken back, and nothing is changed until it
//! can be written again. Looks are answered, and nodes are heard, for as long as that takes.

use std::collections::BTreeMap;
use std::fmt;

use cxloe_fabric::model::Health;

use super::index::Index;
use super::liveness::NodeKey;
use super::{Change, Command, Contradiction, Manager, ManagerError, Meta, State};

/// Takes one step back.
type Undo = Box<dyn FnOnce(&mut State) + Send>;

/// What was changed since the last commit, to be taken back if there is none.
pub(super) struct Batch {
    meta: Meta,
    steps: Vec<Undo>,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("steps", &self.steps.len()).finish_non_exhaustive()
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

impl Batch {
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
            Change::Reign(reign) => as_before!(state, reigns, reign.term),
            Change::ReignForgotten(term) => as_before!(state, reigns, *term),
            Change::Orphans(orphans) => as_before!(state, orphans, orphans.memory_node.clone()),
            Change::OrphansGone(name) => as_before!(state, orphans, name.clone()),
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

impl Manager {
    /// From here on, changes can be taken back until they are [`kept`](Self::keep).
    pub fn begin_batch(&mut self) {
        self.batch = Some(Batch { meta: self.state.meta, steps: Vec::new() });
    }

    /// The changes are stored: there is no way back.
    pub fn keep(&mut self) {
        self.begin_batch();
    }

    /// The changes since the last commit could not be stored: they are taken back, and no more are made.
    ///
    /// # Errors
    /// [`Contradiction`] when the state before was none, which it was not.
    pub fn freeze(&mut self, reason: String) -> Result<(), Contradiction> {
        if let Some(Batch { meta, steps }) = self.batch.take() {
            let mut state = std::mem::take(&mut self.state);
            steps.into_iter().rev().for_each(|undo| undo(&mut state));
            state.meta = meta;
            self.put_back(state)?;
        }
        self.begin_batch();
        self.frozen = Some(reason);
        Ok(())
    }

    /// The store can be written again, and holds this.
    ///
    /// # Errors
    /// [`Contradiction`] when that is no state.
    pub fn thaw(&mut self, state: State, now_ms: u64) -> Result<(), Contradiction> {
        self.now_ms = now_ms;
        state.verify()?;
        self.put_back(state)?;
        self.begin_batch();
        self.frozen = None;
        Ok(())
    }

    /// Why nothing is changed at present, if that is so.
    pub fn frozen(&self) -> Option<&str> {
        self.frozen.as_deref()
    }

    fn put_back(&mut self, state: State) -> Result<(), Contradiction> {
        self.free = state.free_extents()?;
        self.index = Index::new(&state);
        self.state = state;
        self.journal.clear();
        // Who counts as reachable again has the full time to speak, as at a start.
        let memory = self.state.memory_nodes.values().filter(|node| node.health == Health::Reachable);
        let memory = memory.map(|node| NodeKey::Memory(node.name.clone()));
        let compute = self.state.compute_nodes.values().filter(|node| node.health == Health::Reachable);
        let unheard: Vec<NodeKey> = memory
            .chain(compute.map(|node| NodeKey::Compute(node.cn_id)))
            .filter(|node| !self.liveness.is_heard(node))
            .collect();
        unheard.into_iter().for_each(|node| self.liveness.heard(node, self.now_ms));
        Ok(())
    }

    /// Refuses what would change something while nothing may be changed.
    pub(super) fn check_frozen(&self, command: &Command) -> Result<(), ManagerError> {
        let Some(reason) = &self.frozen else { return Ok(()) };
        let harmless = match command {
            Command::SyncMemoryNode(_, sync) => sync.results.is_empty(),
            // What it has let go of it says again.
            Command::SyncComputeNode(..) | Command::HungUp(..) | Command::NotFollowed(_) | Command::Tick => {
                true
            }
            _ => false,
        };
        if harmless { Ok(()) } else { Err(ManagerError::ReadOnly(reason.clone())) }
    }
}

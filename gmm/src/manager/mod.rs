//! The manager: a state machine without I/O. A [`Command`] and the time go in; out come the [`Change`]s it made, among
//! them events and commands for memory nodes, or a named error and nothing changed. Who runs it writes the changes to the
//! store and only then tells anyone.
//!
//! What it guarantees, whatever the order of commands and whatever is lost or repeated:
//! * an extent is one region's at most, and becomes free only with its memory node's result for the `UnmapCmem` command,
//!   which the node gives after the mapping is gone and the extent is zero; extents of a node that cannot be reached wait
//! * a CMem address is given to a CN once and never again
//! * content that a memory node lost is reported as lost, never served as zeros, until someone accepts the loss
//!
//! Files: [`state`] what is remembered and how it changes, `memory_nodes`, `compute_nodes` and `regions` the rules,
//! [`pool`] free extents, [`liveness`] who was heard of when.

mod compute_nodes;
mod error;
pub mod liveness;
mod memory_nodes;
pub mod pool;
mod regions;
pub mod state;

use std::collections::BTreeMap;

pub use error::ManagerError;
pub use state::{Change, Contradiction, Meta, State};

use crate::api::{CreateRegion, Events, MemoryNodeSync, NodeCount, RegisterComputeNode, RegisterMemoryNode};
use crate::model::{CnId, Event, EventKind, Health, Name, NodeAction, NodeCommand, Region, Watermark};
use liveness::{Liveness, NodeKey};
use pool::FreeExtents;

/// Most memory nodes of a fabric.
pub const MEMORY_NODES_MAX: usize = 1024;
/// Most compute nodes of a fabric.
pub const COMPUTE_NODES_MAX: usize = 4096;
/// Most regions of a fabric.
pub const REGIONS_MAX: usize = 65_536;
/// Most legs of a region.
pub const LEGS_MAX: usize = 64;
/// Most ports of a memory node.
pub const PORTS_MAX: usize = 16;
/// Events kept; older ones are forgotten.
pub const EVENTS_KEPT: u64 = 10_000;
/// Most events in one answer.
pub const EVENTS_PER_ANSWER_MAX: u64 = 1000;
/// Silence after which a node counts as unreachable, in milliseconds, when not told otherwise.
pub const NODE_TIMEOUT_MS_DEFAULT: u64 = 5000;

/// What the manager can be asked to do.
#[derive(Debug, Clone)]
pub enum Command {
    /// A memory node is there.
    RegisterMemoryNode(RegisterMemoryNode),
    /// A memory node lives and gives results.
    SyncMemoryNode(Name, MemoryNodeSync),
    /// A compute node is there.
    RegisterComputeNode(RegisterComputeNode),
    /// A compute node lives; the number is its registration.
    SyncComputeNode(CnId, u64),
    /// The connection of a node broke while it waited; the number is its registration.
    HungUp(NodeKey, u64),
    /// Make a region.
    CreateRegion(CreateRegion),
    /// Take a region down.
    DestroyRegion {
        /// Which.
        name: Name,
        /// Although its owner may be using it.
        force: bool,
    },
    /// Map a lost region again, empty.
    ResetRegion(Name),
    /// Time has passed.
    Tick,
}

/// What a command did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Every change, in order; to be stored as one.
    pub changes: Vec<Change>,
}

impl Outcome {
    /// The events among the changes.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.changes.iter().filter_map(|change| match change {
            Change::Event(event) => Some(event),
            _ => None,
        })
    }

    /// The commands to memory nodes among the changes.
    pub fn node_commands(&self) -> impl Iterator<Item = (&Name, &NodeCommand)> {
        self.changes.iter().filter_map(|change| match change {
            Change::CommandIssued(node, command) => Some((node, command)),
            _ => None,
        })
    }
}

/// The state machine.
#[derive(Debug)]
pub struct Manager {
    state: State,
    /// Free extents of each memory node: follows from the state, kept because it is asked for often.
    free: BTreeMap<Name, FreeExtents>,
    /// What memory nodes said of themselves last; not part of the state.
    stats: BTreeMap<Name, serde_json::Value>,
    liveness: Liveness,
    node_timeout_ms: u64,
    /// The time of the command being applied.
    now_ms: u64,
    /// Changes made by the command being applied.
    journal: Vec<Change>,
}

impl Manager {
    /// Takes over a state (an empty one for a new fabric) under the next term. The outcome is to be stored like that of
    /// any command. `now_ms` is the time in milliseconds since the Unix epoch; it must never go back.
    ///
    /// # Errors
    /// [`Contradiction`] when the state cannot have come about by commands.
    pub fn take_over(
        state: State,
        node_timeout_ms: u64,
        now_ms: u64,
    ) -> Result<(Self, Outcome), Contradiction> {
        state.verify()?;
        let mut free = BTreeMap::new();
        for node in state.memory_nodes.values() {
            free.insert(node.name.clone(), state.free_extents(node)?);
        }
        let mut liveness = Liveness::default();
        for node in state.memory_nodes.values().filter(|node| node.health == Health::Reachable) {
            liveness.heard(NodeKey::Memory(node.name.clone()), now_ms);
        }
        for node in state.compute_nodes.values().filter(|node| node.health == Health::Reachable) {
            liveness.heard(NodeKey::Compute(node.cn_id), now_ms);
        }
        let stats = BTreeMap::new();
        let mut manager = Self { state, free, stats, liveness, node_timeout_ms, now_ms, journal: Vec::new() };
        let mut meta = manager.state.meta;
        meta.watermark.term += 1;
        manager.put(Change::Meta(meta));
        manager.event(EventKind::ManagerStarted { term: meta.watermark.term });
        let outcome = manager.close_journal();
        Ok((manager, outcome))
    }

    /// Carries out one command at `now_ms`.
    ///
    /// # Errors
    /// A [`ManagerError`] that says why not; the state is as before.
    pub fn apply(&mut self, command: Command, now_ms: u64) -> Result<Outcome, ManagerError> {
        self.now_ms = now_ms;
        let result = match command {
            Command::RegisterMemoryNode(node) => self.register_memory_node(node),
            Command::SyncMemoryNode(name, sync) => self.sync_memory_node(&name, sync),
            Command::RegisterComputeNode(node) => self.register_compute_node(node),
            Command::SyncComputeNode(cn, registration) => self.sync_compute_node(cn, registration),
            Command::HungUp(node, registration) => {
                self.hang_up(&node, registration);
                Ok(())
            }
            Command::CreateRegion(create) => self.create_region(create),
            Command::DestroyRegion { name, force } => self.destroy_region(&name, force),
            Command::ResetRegion(name) => self.reset_region(&name),
            Command::Tick => {
                self.tick();
                Ok(())
            }
        };
        debug_assert!(result.is_ok() || self.journal.is_empty(), "a refused command left changes");
        result.map(|()| self.close_journal())
    }

    /// When [`Command::Tick`] is due next, in milliseconds since the Unix epoch; `None`: not before another command.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.liveness.next_deadline_ms(self.node_timeout_ms)
    }

    /// The state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The term and the revision of the latest change.
    pub fn watermark(&self) -> Watermark {
        self.state.meta.watermark
    }

    /// How often a node has to speak, in milliseconds: three times within the node time-out.
    pub fn heartbeat_ms(&self) -> u64 {
        (self.node_timeout_ms / 3).max(1)
    }

    /// A region.
    ///
    /// # Errors
    /// [`ManagerError::NoRegion`].
    pub fn region(&self, name: &Name) -> Result<&Region, ManagerError> {
        self.state.regions.get(name).ok_or_else(|| ManagerError::NoRegion(name.clone()))
    }

    /// The events after `after`, at most `limit`.
    pub fn events_after(&self, after: u64, limit: u64) -> Events {
        let newest = self.state.meta.last_event;
        let oldest = self.state.events.front().map_or(newest + 1, |event| event.seq);
        let skip = (after + 1).saturating_sub(oldest);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX).min(self.state.events.len());
        let limit = usize::try_from(limit.min(EVENTS_PER_ANSWER_MAX)).unwrap_or(usize::MAX);
        Events { oldest, newest, events: self.state.events.range(skip..).take(limit).cloned().collect() }
    }

    /// How many memory nodes there are.
    pub fn memory_node_count(&self) -> NodeCount {
        count(self.state.memory_nodes.values().map(|node| node.health))
    }

    /// How many compute nodes there are.
    pub fn compute_node_count(&self) -> NodeCount {
        count(self.state.compute_nodes.values().map(|node| node.health))
    }

    fn tick(&mut self) {
        for node in self.liveness.take_silent(self.now_ms, self.node_timeout_ms) {
            match node {
                NodeKey::Memory(name) => self.memory_node_silent(&name),
                NodeKey::Compute(cn) => self.compute_node_silent(cn),
            }
        }
    }

    fn hang_up(&mut self, node: &NodeKey, registration: u64) {
        let current = match node {
            NodeKey::Memory(name) => self.state.memory_nodes.get(name).map(|node| node.registration),
            NodeKey::Compute(cn) => self.state.compute_nodes.get(cn).map(|node| node.registration),
        };
        if current == Some(registration) {
            self.liveness.hung_up(node);
        }
    }

    /// The only way by which the state changes.
    fn put(&mut self, change: Change) {
        self.state.apply(change.clone());
        self.journal.push(change);
    }

    fn event(&mut self, kind: EventKind) -> u64 {
        let mut meta = self.state.meta;
        meta.last_event += 1;
        let seq = meta.last_event;
        self.state.meta = meta;
        self.put(Change::Event(Event { seq, time_ms: self.now_ms, kind }));
        seq
    }

    fn issue(&mut self, node: &Name, action: NodeAction) {
        let Some(mut record) = self.state.memory_nodes.get(node).cloned() else { return };
        record.last_seq += 1;
        let Watermark { term, revision } = self.watermark();
        let command = NodeCommand { seq: record.last_seq, term, revision: revision + 1, action };
        self.put(Change::MemoryNode(record));
        self.put(Change::CommandIssued(node.clone(), command));
    }

    fn next_registration(&mut self) -> u64 {
        self.state.meta.last_registration += 1;
        self.state.meta.last_registration
    }

    /// Ends a command: one revision for all its changes, the counters last.
    fn close_journal(&mut self) -> Outcome {
        if self.journal.is_empty() {
            return Outcome::default();
        }
        let forgotten = (self.state.meta.last_event + 1).saturating_sub(EVENTS_KEPT);
        if self.state.events.front().is_some_and(|event| event.seq < forgotten) {
            self.put(Change::EventsForgotten(forgotten));
        }
        let mut meta = self.state.meta;
        meta.watermark.revision += 1;
        self.put(Change::Meta(meta));
        Outcome { changes: std::mem::take(&mut self.journal) }
    }
}

fn count(health: impl Iterator<Item = Health>) -> NodeCount {
    health.fold(NodeCount::default(), |mut count, health| {
        count.known += 1;
        count.reachable += u64::from(health == Health::Reachable);
        count
    })
}

#[cfg(test)]
mod tests;

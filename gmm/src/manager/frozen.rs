//! When the store cannot be written: what was changed since the last commit is taken back, and nothing is changed until it
//! can be written again. Looks are answered, and nodes are heard, for as long as that takes.

use cxloe_fabric::model::Health;

use super::index::Index;
use super::liveness::NodeKey;
use super::undo::UndoLog;
use super::{Command, Contradiction, Manager, ManagerError, State};

impl Manager {
    /// From here on, changes can be taken back until they are [`kept`](Self::keep).
    pub fn begin_batch(&mut self) {
        self.batch = Some(UndoLog::new(self.state.meta));
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
        if let Some(batch) = self.batch.take() {
            let mut state = std::mem::take(&mut self.state);
            batch.take_back(&mut state);
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

    /// What a command changed before it was refused is taken back: it had to change nothing.
    pub(super) fn take_back_command(&mut self) {
        let mut state = std::mem::take(&mut self.state);
        let undo = std::mem::replace(&mut self.undo, UndoLog::new(state.meta));
        undo.take_back(&mut state);
        self.undo = UndoLog::new(state.meta);
        if let Err(error) = self.put_back(state) {
            // The state before was one: it was checked when it came about.
            tracing::error!(%error, "the state before a refused command contradicts itself");
        }
    }

    /// What a command changed is part of the batch, if there is one.
    pub(super) fn keep_command(&mut self) {
        let undo = std::mem::replace(&mut self.undo, UndoLog::new(self.state.meta));
        if let Some(batch) = &mut self.batch {
            batch.append(undo);
        }
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

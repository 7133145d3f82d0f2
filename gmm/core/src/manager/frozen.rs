//! Operation while the store cannot be written. The changes since the last commit are undone, and commands
//! that change the state are refused until the store can be written again. The manager still answers reads
//! and accepts the regular messages of nodes.

use cxloe_fabric::model::Health;

use super::index::Index;
use super::liveness::NodeKey;
use super::undo::UndoLog;
use super::{Command, Contradiction, FabricState, Manager, ManagerError};

impl Manager {
    /// Begins a batch: its changes can be undone until they are [`kept`](Self::keep).
    pub fn begin_batch(&mut self) {
        self.batch = Some(UndoLog::new(self.state.meta));
    }

    /// Ends a batch whose changes are stored: they can no longer be undone.
    pub fn keep(&mut self) {
        self.begin_batch();
    }

    /// Undoes the changes since the last commit, which could not be stored, and refuses further ones.
    ///
    /// # Errors
    /// [`Contradiction`] if the earlier state contradicts itself, which only a bug can cause.
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

    /// Accepts changes again, from `state`, the content of the store.
    ///
    /// # Errors
    /// [`Contradiction`] if `state` contradicts itself.
    pub fn thaw(&mut self, state: FabricState, now_ms: u64) -> Result<(), Contradiction> {
        self.now_ms = now_ms;
        state.verify()?;
        self.put_back(state)?;
        self.begin_batch();
        self.frozen = None;
        Ok(())
    }

    /// Returns the reason why changes are refused at present; `None` if they are not.
    pub fn frozen(&self) -> Option<&str> {
        self.frozen.as_deref()
    }

    /// Undoes the changes that a refused command had made.
    pub(super) fn take_back_command(&mut self) {
        let mut state = std::mem::take(&mut self.state);
        let undo = std::mem::replace(&mut self.undo, UndoLog::new(state.meta));
        undo.take_back(&mut state);
        self.undo = UndoLog::new(state.meta);
        if let Err(error) = self.put_back(state) {
            // Cannot happen: the earlier state passed the check when it was made.
            tracing::error!(%error, "the state before a refused command contradicts itself");
        }
    }

    /// Adds the changes of a command to the batch, if there is one.
    pub(super) fn keep_command(&mut self) {
        let undo = std::mem::replace(&mut self.undo, UndoLog::new(self.state.meta));
        if let Some(batch) = &mut self.batch {
            batch.append(undo);
        }
    }

    fn put_back(&mut self, state: FabricState) -> Result<(), Contradiction> {
        self.free = state.free_extents()?;
        self.index = Index::new(&state);
        self.state = state;
        self.note_repairs();
        self.journal.clear();
        // A node that counts as reachable again has the full time-out to send a message, as after a start.
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

    /// Refuses commands that change the state while the store cannot be written.
    pub(super) fn check_frozen(&self, command: &Command) -> Result<(), ManagerError> {
        let Some(reason) = &self.frozen else { return Ok(()) };
        let harmless = match command {
            Command::SyncMemoryNode(_, sync) => sync.results.is_empty(),
            // These messages are accepted but not recorded: a node repeats its list of released regions.
            Command::SyncComputeNode(..) | Command::HungUp(..) | Command::NotFollowed(_) | Command::Tick => {
                true
            }
            _ => false,
        };
        if harmless { Ok(()) } else { Err(ManagerError::ReadOnly(reason.clone())) }
    }
}

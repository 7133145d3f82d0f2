//! Replacement of the whole state by a backup while the manager runs. To nodes, the backup is an older copy
//! of the store: nodes that have seen later changes refuse it until these are given up by `gmm adopt-fabric`.
//! The present tokens and joined nodes are kept, unless there are none.

use cxloe_fabric::model::{EventKind, Health};

use super::index::Index;
use super::liveness::{Liveness, NodeKey};
use super::reports::Reports;
use super::undo::UndoLog;
use super::{Change, Contradiction, FabricState, Manager};

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The backup contradicts itself.
    #[error(transparent)]
    Contradiction(#[from] Contradiction),
    /// The store cannot be written at present.
    #[error("nothing can be changed at present: {0}")]
    ReadOnly(String),
}

impl Manager {
    /// Replaces the whole state by `state`, under a new term with the run number `run`, by order of `who`.
    /// The caller stores the changes in one transaction.
    ///
    /// # Errors
    /// A `RestoreError`; the state is unchanged then.
    pub fn restore(
        &mut self,
        mut state: FabricState,
        run: u64,
        who: &str,
        now_ms: u64,
    ) -> Result<Vec<Change>, RestoreError> {
        if let Some(reason) = &self.frozen {
            return Err(RestoreError::ReadOnly(reason.clone()));
        }
        if !self.state.tokens.is_empty() || !self.state.joined.is_empty() {
            // Rights are not taken from the backup, so that a revoked token or node stays revoked.
            state.tokens.clone_from(&self.state.tokens);
            state.joined.clone_from(&self.state.joined);
        }
        state.verify()?;
        let free = state.free_extents()?;
        self.now_ms = now_ms;
        self.undo = UndoLog::new(self.state.meta);
        let before = Box::new(self.state.clone());
        self.put(Change::Replaced(before, Box::new(state)));
        (self.index, self.free) = (Index::new(&self.state), free);
        (self.reports, self.liveness) = (Reports::default(), Liveness::default());
        self.progress.clear();
        // These records do not concern the restored state: nodes register again and repeat their reports.
        self.heard.clear();
        self.refused.clear();
        self.registered_ms = self.state.compute_nodes.keys().map(|cn| (*cn, now_ms)).collect();
        for node in self.state.memory_nodes.values().filter(|node| node.health == Health::Reachable) {
            self.liveness.heard(NodeKey::Memory(node.name.clone()), now_ms);
        }
        for node in self.state.compute_nodes.values().filter(|node| node.health == Health::Reachable) {
            self.liveness.heard(NodeKey::Compute(node.cn_id), now_ms);
        }
        self.options.run = run;
        let mut meta = self.state.meta;
        (meta.watermark.term, meta.watermark.run) = (meta.watermark.term + 1, run);
        self.put(Change::Meta(meta));
        self.begin_term(meta.watermark);
        self.actor = Some(who.to_owned());
        self.event(EventKind::ManagerStarted { term: meta.watermark.term });
        self.actor = None;
        self.end_waiting_operations();
        self.realise_declared();
        Ok(self.close_journal().changes)
    }
}

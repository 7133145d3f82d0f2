//! The slow part of a change of mappings: zeroing extents that no worker uses any more. A job uses the pool,
//! never the page table, so that it can run beside the control thread. Extents that a command waits for are
//! prepared first, then extents without an owner are zeroed.

use cxloe_fabric::model::NodeCommand;

use crate::pool::{MpExtent, PoolError};
use crate::translation::{PageTable, Translation};

/// Slow work that completes a change of mappings.
#[derive(Debug, PartialEq, Eq)]
pub struct Job {
    pub(super) purpose: Purpose,
    /// Generation of the page table that every worker has to pass before the job begins; 0 if no mapping was removed.
    pub(super) generation: u64,
    /// Extents without an owner, to be zeroed.
    pub(super) released: Vec<MpExtent>,
    /// Extents that are about to get an owner: they are zeroed, and their disk space is reserved.
    pub(super) granted: Vec<MpExtent>,
    /// Source extents of a clone. Copies that still fill these extents are completed first.
    pub(super) sources: Vec<MpExtent>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Command(Box<NodeCommand>),
    /// Second part of a clone command: the extents are prepared, and every worker has to receive the set of
    /// new copies.
    Copies(Box<NodeCommand>),
    /// Change of the page table to exactly these mappings.
    Reconcile(Vec<Translation>),
}

#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The pool could not prepare an extent.
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(
        "the memory node was stopped before the change was complete; it is carried out after its restart"
    )]
    Stopped,
}

impl Job {
    /// Whether the job ends at once, because there is nothing to wait for and nothing to zero.
    pub fn is_quick(&self) -> bool {
        self.generation == 0 && self.released.is_empty() && self.granted.is_empty() && self.sources.is_empty()
    }

    pub fn command(&self) -> Option<u64> {
        self.node_command().map(|command| command.seq)
    }

    /// Command that the job completes; `None` if the job applies a complete list of mappings.
    pub fn node_command(&self) -> Option<&NodeCommand> {
        match &self.purpose {
            Purpose::Command(command) | Purpose::Copies(command) => Some(command),
            Purpose::Reconcile(_) => None,
        }
    }

    /// Whether the job may run: every worker has passed the generation in which the mappings were removed.
    pub fn is_due(&self, table: &PageTable) -> bool {
        table.generation().passed() >= self.generation
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Prepares the granted extents, then zeroes the released ones. `keep_going` is called about every mebibyte with
    /// the bytes done since the last call, and stops the job by returning `false`. `before_zeroing` is called before
    /// the released extents are zeroed; no command waits for their zeroing.
    ///
    /// # Errors
    /// [`JobError::Stopped`] if `keep_going` returned `false`, [`JobError::Pool`] if an extent cannot be prepared.
    ///
    /// # Panics
    /// If the job is not [due](Self::is_due).
    pub fn carry_out(
        &self,
        table: &PageTable,
        mut keep_going: impl FnMut(u64) -> bool,
        before_zeroing: impl FnOnce(),
    ) -> Result<(), JobError> {
        assert!(self.is_due(table), "a worker may still use extents that this job zeroes");
        let pool = table.pool();
        for extent in &self.sources {
            // The source may be a clone itself, with pages that are not copied yet.
            table.complete_copy_to(*extent);
            if !keep_going(0) {
                return Err(JobError::Stopped);
            }
        }
        for extent in &self.granted {
            // Preparing this extent destroys its content, which clones of it still need.
            table.complete_copies_from(*extent);
            if !keep_going(0) || !pool.prepare_extent(*extent, &mut keep_going)? {
                return Err(JobError::Stopped);
            }
        }
        if !self.released.is_empty() {
            before_zeroing();
        }
        for extent in &self.released {
            // Zeroing this extent destroys its content, which clones of it still need.
            table.complete_copies_from(*extent);
            if !keep_going(0) || !pool.zero_extent(*extent, &mut keep_going)? {
                return Err(JobError::Stopped);
            }
        }
        Ok(())
    }
}

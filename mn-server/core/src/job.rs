//! The slow part of a change: zeroing extents that no worker uses any more. A job uses the pool, never the page table,
//! so it can run beside the control thread. Extents that a command waits for are prepared first, then those without an
//! owner are zeroed.

use cxloe_fabric::model::NodeCommand;

use crate::pool::{MpExtent, PoolError};
use crate::translation::{PageTable, Translation};

/// Slow work that completes a change of mappings.
#[derive(Debug, PartialEq, Eq)]
pub struct Job {
    /// Change that the job completes.
    pub(super) purpose: Purpose,
    /// Generation that every worker has to pass before the job begins; 0 if no mapping was removed.
    pub(super) generation: u64,
    /// Extents without an owner, to be zeroed.
    pub(super) released: Vec<MpExtent>,
    /// Extents about to get an owner, to be prepared.
    pub(super) granted: Vec<MpExtent>,
    /// Extents that are to be copied: the copies that fill them are completed first.
    pub(super) sources: Vec<MpExtent>,
}

/// Change that a job completes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A command of the manager.
    Command(Box<NodeCommand>),
    /// A command to clone a mapping, whose extents are prepared, and whose copies workers are getting to know.
    Copies(Box<NodeCommand>),
    /// Change of the page table to exactly these mappings.
    Reconcile(Vec<Translation>),
}

/// Reason why a job was not completed.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The pool could not prepare an extent.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// This node is shutting down.
    #[error(
        "the memory node was stopped before the change was complete; it is carried out after its restart"
    )]
    Stopped,
}

impl Job {
    /// Whether the job neither waits nor zeroes.
    pub fn is_quick(&self) -> bool {
        self.generation == 0 && self.released.is_empty() && self.granted.is_empty() && self.sources.is_empty()
    }

    /// Number of the manager's command that the job completes, if any.
    pub fn command(&self) -> Option<u64> {
        self.node_command().map(|command| command.seq)
    }

    /// Command of the manager that the job completes, if any.
    pub fn node_command(&self) -> Option<&NodeCommand> {
        match &self.purpose {
            Purpose::Command(command) | Purpose::Copies(command) => Some(command),
            Purpose::Reconcile(_) => None,
        }
    }

    /// Whether every worker has passed the generation in which the mappings were removed; the job must not run before.
    pub fn is_due(&self, table: &PageTable) -> bool {
        table.generation().passed() >= self.generation
    }

    /// Generation that every worker has to pass before the job begins; 0 if no mapping was removed.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Prepares extents and zeroes others. `keep_going` is called about every mebibyte with the bytes done since the
    /// last call, and stops the job by returning `false`. `before_zeroing` is called before the extents that no command
    /// waits for are zeroed.
    ///
    /// # Errors
    /// Any [`JobError`].
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
            table.complete_copy_to(*extent);
            if !keep_going(0) {
                return Err(JobError::Stopped);
            }
        }
        for extent in &self.granted {
            table.complete_copies_from(*extent);
            if !keep_going(0) || !pool.prepare_extent_while(*extent, &mut keep_going)? {
                return Err(JobError::Stopped);
            }
        }
        if !self.released.is_empty() {
            before_zeroing();
        }
        for extent in &self.released {
            // Clones keep the content.
            table.complete_copies_from(*extent);
            if !keep_going(0) || !pool.zero_extent_while(*extent, &mut keep_going)? {
                return Err(JobError::Stopped);
            }
        }
        Ok(())
    }
}

//! The slow part of a change: waiting until the workers have let go of extents, and filling them with zeros.
//! A job touches the pool only, never the page table, so that it can run beside the thread that decides, on a thread of
//! its own: what has to be ready before somebody can go on is done first, then what nobody waits for is zeroed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_fabric::model::NodeCommand;

use crate::pool::{MpExtent, PoolError};
use cxloe_mn_core::translation::{PageTable, Translation};

/// The longest pause between two looks at the workers.
const PAUSE_MAX: Duration = Duration::from_millis(2);
/// After this long it is worth a line in the log that a worker does not come to a batch boundary.
const STUCK_AFTER: Duration = Duration::from_secs(2);

/// What has to happen before a change is complete.
#[derive(Debug, PartialEq, Eq)]
pub struct Job {
    /// Which change.
    pub(super) purpose: Purpose,
    /// The generation that every worker has to pass first; 0 if nothing was removed.
    pub(super) generation: u64,
    /// Extents that lost their owner, to be zeroed.
    pub(super) released: Vec<MpExtent>,
    /// Extents about to get one, to be made ready.
    pub(super) granted: Vec<MpExtent>,
}

/// What a job is part of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A command of the manager.
    Command(Box<NodeCommand>),
    /// Making the page table hold these mappings.
    Reconcile(Vec<Translation>),
}

/// Why a job was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The pool could not ready an extent.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// This node is shutting down.
    #[error(
        "the memory node was stopped before the change was complete; it is carried out after its restart"
    )]
    Stopped,
}

impl Job {
    /// Whether there is nothing to wait for and nothing to zero.
    pub fn is_quick(&self) -> bool {
        self.generation == 0 && self.released.is_empty() && self.granted.is_empty()
    }

    /// The number of the command it carries out, if it does.
    pub fn command(&self) -> Option<u64> {
        match &self.purpose {
            Purpose::Command(command) => Some(command.seq),
            Purpose::Reconcile(_) => None,
        }
    }

    /// Waits and zeroes; `done` counts the bytes that are ready, as far as it has come. Blocks; `stop` ends it within
    /// the time that a mebibyte takes. `before_zeroing` is called before memory is zeroed that nobody waits for.
    ///
    /// # Errors
    /// Any [`JobError`].
    pub fn carry_out(
        &self,
        table: &Arc<PageTable>,
        stop: &AtomicBool,
        done: &AtomicU64,
        before_zeroing: impl FnOnce(),
    ) -> Result<(), JobError> {
        self.wait_for_workers(table, stop)?;
        let go_on = |bytes| {
            done.fetch_add(bytes, Ordering::Relaxed);
            !stop.load(Ordering::Relaxed)
        };
        let pool = table.pool();
        for extent in &self.granted {
            if stop.load(Ordering::Relaxed) || !pool.prepare_extent_while(*extent, go_on)? {
                return Err(JobError::Stopped);
            }
        }
        if !self.released.is_empty() {
            before_zeroing();
        }
        for extent in &self.released {
            if stop.load(Ordering::Relaxed) || !pool.zero_extent_while(*extent, go_on)? {
                return Err(JobError::Stopped);
            }
        }
        Ok(())
    }

    fn wait_for_workers(&self, table: &PageTable, stop: &AtomicBool) -> Result<(), JobError> {
        let started = Instant::now();
        let (mut pause, mut told) = (Duration::from_micros(20), false);
        while table.generation().passed() < self.generation {
            if stop.load(Ordering::Relaxed) {
                return Err(JobError::Stopped);
            }
            if !told && started.elapsed() > STUCK_AFTER {
                tracing::warn!(
                    generation = self.generation,
                    passed = table.generation().passed(),
                    "a worker has not come to a batch boundary yet; its extents are not given away before it has"
                );
                told = true;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Ok(())
    }
}

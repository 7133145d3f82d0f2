//! Suspension of a space while its region moves to another compute node, or is expected from one: processes
//! keep the memory mapped, no page of it is resident, and faults wait.
//!
//! ```text
//!             suspend                written back, all pages removed
//!   served ------------> leaving -----------------------------------> held <--- created: region not attached
//!      ^                    |                                           |
//!      +--------------------+------------ serve_again -----------------+
//! ```

use cxloe_cn_core::mapped::{MappingKind, SpaceError};
use cxloe_cn_core::transfers::Transfers;

use super::write_back::WriteBackRequest;
use super::{ONLY, Space};

/// Placeholder HPA of a space whose region is not attached to this compute node.
pub(crate) const NOWHERE: u64 = u64::MAX;
/// Maximum number of pages in the list of pages that will be used soon: 1 GiB of memory.
const HOT_MAX: usize = 1 << 18;

/// Notes about the pages of a space (a mapped region), which one compute node passes to the next when the region moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageNotes {
    /// Pages that will be used soon, the likeliest first.
    pub hot: Vec<u32>,
    /// Runs of pages that are zeros, whatever the memory nodes hold: the first page and the number of pages.
    pub zeros: Vec<(u32, u32)>,
}

/// Function that is called with the notes on the pages when a suspended space has no resident page left.
pub type OnSuspended = Box<dyn FnOnce(PageNotes) + Send>;

pub(crate) enum Suspension {
    /// Pages are being written back and removed.
    Leaving(OnSuspended),
    /// No page is resident, and nothing accesses the region until the suspension ends.
    Held,
}

impl std::fmt::Debug for Suspension {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Suspension::Leaving(_) => "Leaving",
            Suspension::Held => "Held",
        })
    }
}

impl Space {
    /// Marks the space's region as not attached to this compute node yet: faults wait.
    #[must_use]
    pub fn held(mut self) -> Space {
        (self.options.hpa, self.suspension) = (NOWHERE, Some(Suspension::Held));
        self
    }

    /// Whether the faults of the space's processes wait.
    pub fn is_suspended(&self) -> bool {
        self.suspension.is_some()
    }

    /// Whether no page is resident, and no page can become resident.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        matches!(self.suspension, Some(Suspension::Held))
    }

    pub(crate) fn uses_region(&self) -> bool {
        !self.is_held() && !self.region_gone
    }

    /// Records that the region is no longer attached to this compute node.
    pub(crate) fn region_left(&mut self) {
        self.options.hpa = NOWHERE;
    }

    /// Begins to suspend the space; `done` is called once no page is resident.
    pub(crate) fn suspend(&mut self, done: OnSuspended) -> Result<(), SpaceError> {
        if self.options.kind != MappingKind::Shared || self.takeover.is_some() || self.suspension.is_some() {
            return Err(SpaceError::NotSuspendable);
        }
        self.suspension = Some(Suspension::Leaving(done));
        // `Spaces::watch` then removes the userfaultfds from epoll: faults stay unread.
        self.changed = true;
        Ok(())
    }

    /// Continues to write pages back, and removes them once all are written. Returns the amount of work.
    pub(crate) fn leave(&mut self, transfers: &mut Transfers) -> usize {
        if !self.cleans.is_empty() || !matches!(self.suspension, Some(Suspension::Leaving(_))) {
            return 0;
        }
        let hot = self.pager.hot_pages(ONLY, HOT_MAX);
        if !self.with_io(transfers, |pager, io| pager.withdraw(ONLY, io)) {
            let failures = self.pager.counters().write_back_failures;
            self.cleans.push(WriteBackRequest::without_zeros(ONLY, failures));
            return 1;
        }
        let runs = self.pager.zero_runs(ONLY);
        let zeros = runs.into_iter().map(|run| (run.start, run.end - run.start)).collect();
        if let Some(Suspension::Leaving(done)) = self.suspension.replace(Suspension::Held) {
            done(PageNotes { hot, zeros });
        }
        self.changed = true;
        1
    }

    /// Applies the notes on pages from the compute node to which the region was attached before.
    pub(crate) fn note(&mut self, notes: &PageNotes) -> Result<(), SpaceError> {
        if !self.is_held() || self.options.hpa != NOWHERE {
            return Err(SpaceError::NotSuspendable);
        }
        for (first, count) in &notes.zeros {
            self.pager.set_zeros(ONLY, *first..first.saturating_add(*count));
        }
        self.pager.will_read(ONLY, &notes.hot);
        Ok(())
    }

    /// Ends the suspension, with the region attached at `hpa`; `false` if the space was not suspended.
    pub(crate) fn serve_again(&mut self, hpa: u64) -> bool {
        if self.suspension.take().is_none() {
            return false;
        }
        self.options.hpa = hpa;
        (self.changed, self.unwanted, self.region_gone) = (true, false, false);
        tracing::info!(region = self.options.region, "the region's memory is served again");
        true
    }
}

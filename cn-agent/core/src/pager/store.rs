//! What the pager needs of the compute node: pages of CMem, fetched and written back.
//!
//! A transfer is known by the buffer that it fills or empties. Whoever carries it out retries while there is hope, for
//! as long as the region's policy says, and reports once: [`Pager::fetched`](super::Pager::fetched),
//! [`Pager::written`](super::Pager::written).

use super::page_buffers::BufferId;

/// A transfer has failed for good: the memory node has lost the data, or was away for longer than the region allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory node has lost the page, or was away too long")]
pub struct Lost;

/// Which transfers go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Somebody waits for it.
    Demand,
    /// Nobody does yet.
    Ahead,
}

/// Pages of CMem. A slot is one page of the region, counted from its start.
pub trait Store {
    /// Transfers that may be begun now.
    fn room(&self) -> usize;

    /// Transfers under way that somebody waits for.
    fn demands(&self) -> usize;

    /// Somebody waits now for what is being fetched ahead into this buffer.
    fn hurry(&mut self, buffer: BufferId);

    /// Begins to fetch a slot into a buffer.
    fn fetch(&mut self, slot: u32, buffer: BufferId, urgency: Urgency);

    /// Begins to write those lines of a buffer to a slot that `lines` names; at least one. The buffer does not change
    /// until it is done.
    fn write(&mut self, slot: u32, lines: u64, buffer: BufferId);
}

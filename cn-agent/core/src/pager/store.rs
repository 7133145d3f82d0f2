//! The pager's interface to the compute node: pages of CMem, fetched and written back.
//!
//! A transfer is identified by the buffer that it fills or empties. The implementation retries as long as the region's
//! policy allows, and reports once: [`Pager::fetched`](super::Pager::fetched),
//! [`Pager::written`](super::Pager::written).

use super::page_buffers::BufferId;

/// A transfer has failed for good: the memory node has lost the data, or was out of reach for longer than the region
/// allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory node has lost the page, or was away too long")]
pub struct Lost;

/// Priority of a fetch at its memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// A thread waits for the page.
    Demand,
    /// No thread waits for the page yet.
    Ahead,
}

/// Pages of CMem. A slot is one page of the region, counted from its start.
pub trait Store {
    /// Number of transfers that may be begun now.
    fn room(&self) -> usize;

    /// Number of transfers in flight that threads wait for.
    fn demands(&self) -> usize;

    /// Raises the priority of the fetch into this buffer, because a thread has begun to wait for it.
    fn hurry(&mut self, buffer: BufferId);

    /// Begins to fetch the page in a slot into a buffer.
    fn fetch(&mut self, slot: u32, buffer: BufferId, urgency: Urgency);

    /// Begins to write those lines of a buffer that `lines` selects, at least one, to a slot. The buffer must not
    /// change until the write has ended.
    fn write(&mut self, slot: u32, lines: u64, buffer: BufferId);
}

//! What a pager has counted.

use serde::{Deserialize, Serialize};

/// Counts since the pager began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagerCounters {
    /// Faults on pages that were not in memory.
    pub faults: u64,
    /// Of these, pages never written: filled with zeros, without a fetch.
    pub zero_fills: u64,
    /// Of these, served from what was read ahead.
    pub held_hits: u64,
    /// Of these, pages that were taken away a moment before: served from where they were kept.
    #[serde(default)]
    pub second_chances: u64,
    /// First writes to pages in memory.
    pub write_faults: u64,
    /// Faults that had to wait because no more may be resident.
    pub waits_for_room: u64,
    /// Pages fetched because somebody waited for them.
    pub fetched: u64,
    /// Pages fetched ahead.
    pub prefetched: u64,
    /// Of these, wanted afterwards.
    pub prefetch_hits: u64,
    /// Of these, not wanted.
    pub prefetch_wasted: u64,
    /// Pages copied from another process of the same fork, which had them in memory, instead of being fetched.
    #[serde(default)]
    pub copied: u64,
    /// Pages taken out of memory.
    pub evicted: u64,
    /// Of these, fetched again later.
    pub refaulted: u64,
    /// Pages that another process of the same fork had sent alike, and that were not sent again.
    #[serde(default)]
    pub shared: u64,
    /// Pages that had changed and were written back.
    pub written_back: u64,
    /// Lines that were sent for them.
    pub lines_written_back: u64,
    /// Evictions given up because somebody wrote to the page.
    pub cancelled: u64,
    /// Pages that could not leave because the region has no slot left for them.
    pub no_slot: u64,
    /// Pages discarded by their program.
    pub discarded: u64,
    /// Pages whose data is lost.
    pub lost: u64,
    /// Write-backs that failed; their pages stay in memory.
    pub write_back_failures: u64,
    /// Forks.
    pub forks: u64,
}

impl PagerCounters {
    /// Faults on pages that were not in memory and needed no fetch.
    pub fn local_faults(&self) -> u64 {
        self.zero_fills + self.held_hits + self.second_chances
    }
}

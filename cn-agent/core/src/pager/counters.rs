//! Counters of a pager, for statistics.

use serde::{Deserialize, Serialize};

cxloe_wire::counters! {
    /// Counts since the pager was created.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct PagerCounters {
        /// Faults on absent pages, including those served without a fetch.
        pub faults: u64,
        /// Faults on pages never written: filled with zeros, without a fetch.
        pub zero_fills: u64,
        /// Faults served from pages that were read ahead.
        pub held_hits: u64,
        /// Faults on pages just evicted, served from the buffers that still hold them.
        #[serde(default)]
        pub second_chances: u64,
        /// Write faults on resident pages: the first write after a page was installed or sent.
        pub write_faults: u64,
        /// Faults that had to wait because the limit of resident pages was reached.
        pub waits_for_room: u64,
        /// Pages fetched for a waiting thread.
        pub fetched: u64,
        /// Pages whose fetch began before a thread touched them.
        pub prefetched: u64,
        /// Pages fetched ahead that were used afterwards.
        pub prefetch_hits: u64,
        /// Pages fetched ahead that were not used.
        pub prefetch_wasted: u64,
        /// Pages copied from another process of the same fork, without a fetch.
        #[serde(default)]
        pub copied: u64,
        /// Pages evicted, clean or written back.
        pub evicted: u64,
        /// Evicted pages that were fetched again later.
        pub refaulted: u64,
        /// Pages not sent because they equal a page that another process of the same fork had sent.
        #[serde(default)]
        pub shared: u64,
        /// Pages whose changes were written back.
        pub written_back: u64,
        /// 64-byte lines sent in these write-backs.
        pub lines_written_back: u64,
        /// Evictions given up because the page was written to.
        pub cancelled: u64,
        /// Pages that could not be evicted because the region has no slot left.
        pub no_slot: u64,
        /// Pages that their program discarded, as by `madvise(2)`.
        pub discarded: u64,
        /// Pages whose data is lost: an access raises SIGBUS.
        pub lost: u64,
        /// Write-backs that failed; the pages stay resident.
        pub write_back_failures: u64,
        /// Forked children whose views were added.
        pub forks: u64,
    }
}

impl PagerCounters {
    /// Faults on pages that were not in memory and needed no fetch.
    pub fn local_faults(&self) -> u64 {
        self.zero_fills + self.held_hits + self.second_chances
    }
}

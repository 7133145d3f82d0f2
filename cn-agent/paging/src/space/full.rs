//! Handling of a region that is full: it has no free slot (place for a page on the memory nodes), so pages that have no
//! slot yet cannot be evicted.
//!
//! After a fork each page that either process changes needs a slot of its own. Without a free slot, dirty pages cannot
//! be evicted, and faults wait for a process to end or to discard memory. After too long a wait the process started
//! last is ended, so that its parent can continue. Growth of the region also adds slots: the supervisor of `cn-agent
//! exec --size` requests it.

use std::time::Duration;

use cxloe_wire::time::Time;

use super::Space;
use crate::process::Process;
use cxloe_cn_core::mapped::{MappingKind, whole_pages};
use cxloe_cn_core::pager::{MappingId, PAGE_BYTES};
use cxloe_cn_core::transfers::Transfers;

/// Interval of checks whether pages can be evicted again.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time that a region must have had free slots before another lack of slots is reported.
const QUIET_PERIOD: Duration = Duration::from_secs(1);

/// State of a space whose region is full: faults wait for free slots (places for pages on the memory nodes).
#[derive(Clone, Copy, Debug)]
pub(crate) struct FullRegion {
    since: Time,
    looked: Time,
}

impl Space {
    /// Handles time-outs of faults that wait for slots.
    pub(crate) fn check_full(&mut self, now: Time, transfers: &mut Transfers) {
        if !self.pager.is_full() {
            if self.full.is_some_and(|full| now.since(full.looked) > QUIET_PERIOD) {
                self.full = None;
            }
            return;
        }
        if self.pager.waiting_for_slots().next().is_none() {
            return;
        }
        let wait_limit = self.options.lost_wait;
        let full = *self.full.get_or_insert_with(|| {
            tracing::warn!(
                region = self.options.region,
                bytes = u64::from(self.options.pages) * PAGE_BYTES as u64,
                ?wait_limit,
                "the region has no room left for pages to be evicted, and its processes wait; a process of it is \
                 ended if that lasts: give it more with --size, or let more stay with --local"
            );
            FullRegion { since: now, looked: now }
        });
        if now.since(full.since) > wait_limit {
            // The process needs a moment to end, so the remaining waiting faults get the full wait limit again.
            self.full = Some(FullRegion { since: now, looked: now });
            if let Some(last) = self.last_to_wait_for_slots() {
                self.end_for_want_of_room(last, transfers);
            }
        } else if now.since(full.looked) > POLL_INTERVAL {
            self.full = Some(FullRegion { looked: now, ..full });
            self.pager.retry_evictions();
        }
    }

    /// The process started last of those that wait for slots; one that has not joined counts as the last.
    fn last_to_wait_for_slots(&self) -> Option<MappingId> {
        let started = |id: &MappingId| {
            let process = self.memory.mappings().get(*id).and_then(|mapped| mapped.process.as_ref());
            process.map_or(u64::MAX, Process::started)
        };
        self.pager.waiting_for_slots().map(|fault| fault.mapping).max_by_key(started)
    }

    /// Handles memory that was added to the region at offset `from`; the region now has `bytes` reachable
    /// bytes. Returns whether private memory has gained pages; other memory keeps the size of its mapping.
    pub(crate) fn grown(&mut self, from: u64, bytes: u64) -> bool {
        let pages = whole_pages(bytes);
        // An added part of the region is used only if the memory before it is reachable.
        let follows = from <= u64::from(self.options.pages) * PAGE_BYTES as u64;
        if self.options.kind != MappingKind::Private || !follows || pages <= self.options.pages {
            return false;
        }
        self.options.pages = pages;
        self.shared_state.set_pages(pages);
        self.pager.grow(pages);
        // Faults that wait for slots get the full wait limit again.
        self.full = None;
        tracing::info!(region = self.options.region, pages, "the region has room for more pages");
        true
    }

    #[cold]
    fn end_for_want_of_room(&mut self, id: MappingId, transfers: &mut Transfers) {
        let Some(mapped) = self.memory.mappings_mut().get_mut(id) else { return };
        tracing::error!(
            region = self.options.region,
            pid = mapped.pid,
            "a process is ended: the region has had no room for its pages for too long"
        );
        match &mut mapped.link {
            Some(link) => link.full(),
            None => self.with_io(transfers, |pager, io| pager.give_up_waiting_for_slots(id, io)),
        }
    }
}

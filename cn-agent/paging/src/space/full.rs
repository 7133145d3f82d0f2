//! A region that has no room left for pages that have to leave.
//!
//! After a fork each page that either process changes needs room of its own. When there is none, pages that may leave
//! cannot, and whoever wants another one waits: for a process to end, or to give memory back. What waits too long is
//! ended, the process that was started last, so that the one it was forked from goes on. A region that grows meanwhile has
//! room again: the supervisor of `cn-agent exec --size` asks for that.

use std::time::Duration;

use cxloe_wire::time::Time;

use super::Space;
use crate::shared_state;
use cxloe_cn_core::mapped::{Kind, whole_pages};
use cxloe_cn_core::pager::{MappingId, PAGE_BYTES};
use cxloe_cn_core::transfers::Transfers;

/// The pause between two looks whether pages can leave after all.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long there has to have been room before it is told again that there is none.
const QUIET_PERIOD: Duration = Duration::from_secs(1);

/// A space whose region is full, and somebody waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Full {
    since: Time,
    looked: Time,
}

impl Space {
    /// Takes time into account for those who wait for room in the region.
    pub(crate) fn look_after_full(&mut self, now: Time, transfers: &mut Transfers) {
        if !self.pager.is_full() {
            if self.full.is_some_and(|full| now.since(full.looked) > QUIET_PERIOD) {
                self.full = None;
            }
            return;
        }
        let latest = |id: &MappingId| {
            let pid = self.memory.mappings().get(*id).map_or(0, |mapped| mapped.pid);
            shared_state::started(pid).unwrap_or(u64::MAX)
        };
        let last = self.pager.waiting_for_slots().map(|fault| fault.mapping).max_by_key(latest);
        let Some(last) = last else { return };
        let patience = self.options.lost_wait;
        let full = *self.full.get_or_insert_with(|| {
            tracing::warn!(
                region = self.options.region,
                bytes = u64::from(self.options.pages) * PAGE_BYTES as u64,
                ?patience,
                "the region has no room left for pages that have to leave, and its processes wait; a process of it is \
                 ended if that lasts: give it more with --size, or let more stay with --local"
            );
            Full { since: now, looked: now }
        });
        if now.since(full.since) > patience {
            // It takes a moment to end; whoever waits after it has as long again.
            self.full = Some(Full { since: now, looked: now });
            self.end_for_want_of_room(last, transfers);
        } else if now.since(full.looked) > POLL_INTERVAL {
            self.full = Some(Full { looked: now, ..full });
            self.pager.look_again();
        }
    }

    /// The region has grown behind its first `from` bytes, and `bytes` of it can be reached. Whether there are more pages
    /// for private memory than before; other memory is as large as it was mapped.
    pub(crate) fn grown(&mut self, from: u64, bytes: u64) -> bool {
        let pages = whole_pages(bytes);
        // Behind a part that could not be attached nothing is usable.
        let follows = from <= u64::from(self.options.pages) * PAGE_BYTES as u64;
        if self.options.kind != Kind::Private || !follows || pages <= self.options.pages {
            return false;
        }
        self.options.pages = pages;
        self.shared_state.set_pages(pages);
        self.pager.grow(pages);
        // Whoever finds no room again waits as long again.
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

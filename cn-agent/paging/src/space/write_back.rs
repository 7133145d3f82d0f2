//! Writing back all pages: on request, and when the region has neither an owner nor a member left.
//!
//! Each page is visited once, a few pages in each round; dirty pages are sent. The write-back is complete
//! when all transfers begun by then have ended without a failure. Pages that become dirty after their visit
//! are not waited for, so the write-back ends even if a program continues to write.

use std::time::Duration;

use cxloe_wire::time::Time;

use super::{ONLY, Space};
use cxloe_cn_core::mapped::MappingKind;
use cxloe_cn_core::pager::{Flags, PageState, ViewId};
use cxloe_cn_core::transfers::Transfers;

/// A request to write back all pages.
pub(crate) struct WriteBackRequest {
    /// The view whose pages are being visited.
    view: ViewId,
    /// Page at which to continue; `None` once all dirty pages are in flight.
    from: Option<u32>,
    /// Whether zeros are sent for pages whose content is discarded.
    zeros: bool,
    /// Serial number of the last transfer begun for the request.
    serial: u64,
    /// Count of failed write-backs when the request began.
    failures: u64,
    done: Option<Box<dyn FnOnce(bool) + Send>>,
}

impl WriteBackRequest {
    /// A request that sends no zeros for discarded pages, and does not report when it is complete.
    pub(super) fn without_zeros(view: ViewId, failures: u64) -> WriteBackRequest {
        WriteBackRequest { view, from: Some(0), zeros: false, serial: 0, failures, done: None }
    }
}

impl std::fmt::Debug for WriteBackRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clean").field("from", &self.from).finish_non_exhaustive()
    }
}

impl Space {
    /// Begins to write back all dirty pages; `done` is called with `true` once they have arrived, or with `false` if
    /// that is impossible. With `zeros`, zeros are sent for discarded pages.
    pub(crate) fn clean_all(&mut self, zeros: bool, done: Option<Box<dyn FnOnce(bool) + Send>>) {
        if self.options.kind != MappingKind::Shared || self.is_held() {
            done.into_iter().for_each(|done| done(false));
            return;
        }
        let failures = self.pager.counters().write_back_failures;
        self.cleans.push(WriteBackRequest { view: ONLY, from: Some(0), zeros, serial: 0, failures, done });
    }

    #[cold]
    pub(crate) fn clean(&mut self, transfers: &mut Transfers) -> usize {
        let mut cleans = std::mem::take(&mut self.cleans);
        let failures = self.pager.counters().write_back_failures;
        let mut work = 0;
        cleans.retain_mut(|clean| {
            if let Some(from) = clean.from {
                let before = transfers.serial();
                clean.from =
                    self.with_io(transfers, |pager, io| pager.clean_from(clean.view, from, clean.zeros, io));
                clean.serial = transfers.serial();
                work += usize::from(clean.serial != before || clean.from != Some(from));
                return true;
            }
            if transfers.is_writing(self.place, clean.serial) {
                return true;
            }
            if clean.failures != failures && self.ending.is_none() {
                // Visit all pages again: those whose write-back failed are still dirty.
                (clean.failures, clean.from) = (failures, Some(0));
                return true;
            }
            clean.done.take().into_iter().for_each(|done| done(clean.failures == failures));
            false
        });
        self.cleans.extend(cleans);
        work
    }

    /// Handles time-outs; `false` when the space has ended.
    pub(crate) fn housekeeping(&mut self, now: Time) -> bool {
        self.remove_ended();
        if self.is_held() {
            return !self.is_idle();
        }
        self.advance_takeover();
        self.pager.remove_held_pages();
        match (self.is_idle(), self.ending) {
            (true, _) if self.unwanted => return false,
            (false, _) => {
                self.ending = None;
                self.used = true;
            }
            (true, None) => {
                self.ending = Some(now + self.options.lost_wait + Duration::from_secs(1));
                // The memory nodes may still hold the old content of discarded pages, for which zeros must be written.
                let discarded = self.adopted || self.pager.counters().discarded > 0;
                let owed = self.pager.resident() > 0 || discarded;
                if self.options.kind == MappingKind::Shared && owed {
                    self.clean_all(true, None);
                }
            }
            (true, Some(until)) if (self.used && self.cleans.is_empty()) || now >= until => {
                let lost = self.dirty();
                if lost > 0 && self.options.kind == MappingKind::Shared {
                    tracing::error!(
                        region = self.options.region,
                        pages = lost,
                        "pages could not be written back, and are lost with the mapping"
                    );
                }
                return false;
            }
            (true, Some(_)) => {}
        }
        true
    }

    /// Number of pages of shared memory that may differ from the memory nodes' content.
    pub(crate) fn dirty(&self) -> usize {
        let dirty = |page: &u32| {
            let entry = self.pager.entry_of(ONLY, *page);
            entry.is_some_and(|entry| {
                let due =
                    matches!(entry.state(), PageState::Dirty | PageState::Cleaning | PageState::Zeroing);
                due && !entry.is(Flags::ZAPPED)
            })
        };
        if self.options.kind == MappingKind::Shared {
            (0..self.options.pages).filter(dirty).count()
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use cxloe_cn_core::mapped::SpaceOptions;

    use super::*;
    use crate::space::testing::options;

    /// A region that processes share, without resident pages.
    fn space() -> Space {
        Space::create(options(MappingKind::Shared)).unwrap()
    }

    /// Whether the space's pages are written back when its last owner leaves.
    fn is_written_back(space: &mut Space) -> bool {
        space.housekeeping(Time::ZERO);
        !space.cleans.is_empty()
    }

    #[test]
    fn what_was_discarded_is_written_back_though_nothing_is_in_memory() {
        let mut space = space();
        assert!(!is_written_back(&mut space), "nobody has changed anything");
        let mut space = self::space();
        space.pager.discarded(ONLY, 3..4);
        assert!(is_written_back(&mut space));
    }

    #[test]
    fn what_was_discarded_before_the_agent_died_is_written_back_by_its_successor() {
        let mut before = space();
        before.pager.discarded(ONLY, 3..4);
        let made = before.made().unwrap();
        drop(before);
        let place = |_: &SpaceOptions| Some((1 << 40, 64 << 12));
        let mut successor = Space::adopt(made.shared_state, made.memory, place).unwrap().unwrap();
        assert_eq!(successor.pager.counters().discarded, 0, "it has not seen it");
        assert!(is_written_back(&mut successor));
    }
}

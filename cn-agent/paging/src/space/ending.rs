//! Writing everything back: because somebody asks for it, and when nobody has the region mapped any more.
//!
//! Pages are gone through once, a stretch in each turn; what is dirty is begun to be sent. It has arrived when all
//! transfers have ended that were begun by then and none has failed. Pages dirtied behind are not waited for, so that it
//! comes to an end beside a program that goes on writing.

use std::time::Duration;

use cxloe_wire::time::Time;

use super::{ONLY, Space};
use cxloe_cn_core::mapped::Kind;
use cxloe_cn_core::pager::{Flags, State, ViewId};
use cxloe_cn_core::transfers::Transfers;

/// Somebody who waits until everything is written back.
pub(crate) struct Clean {
    /// The view.
    view: ViewId,
    /// Where to go on; `None` once all is on its way.
    from: Option<u32>,
    /// The last transfer that was begun for it.
    serial: u64,
    /// Failed write-backs when it began.
    failures: u64,
    done: Option<Box<dyn FnOnce(bool) + Send>>,
}

impl std::fmt::Debug for Clean {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clean").field("from", &self.from).finish_non_exhaustive()
    }
}

impl Space {
    /// Asks for everything dirty to be written back; `done` hears when it is, and `false` if that cannot be.
    pub(crate) fn clean_all(&mut self, done: Option<Box<dyn FnOnce(bool) + Send>>) {
        if self.options.kind != Kind::Shared {
            done.into_iter().for_each(|done| done(false));
            return;
        }
        let failures = self.pager.counters().write_back_failures;
        self.cleans.push(Clean { view: ONLY, from: Some(0), serial: 0, failures, done });
    }

    #[cold]
    pub(crate) fn clean(&mut self, transfers: &mut Transfers) -> usize {
        let mut cleans = std::mem::take(&mut self.cleans);
        let failures = self.pager.counters().write_back_failures;
        let mut work = 0;
        cleans.retain_mut(|clean| {
            if let Some(from) = clean.from {
                let before = transfers.serial();
                clean.from = self.with_io(transfers, |pager, io| pager.clean_from(clean.view, from, io));
                clean.serial = transfers.serial();
                work += usize::from(clean.serial != before || clean.from != Some(from));
                return true;
            }
            if transfers.is_writing(self.place, clean.serial) {
                return true;
            }
            if clean.failures != failures && self.ending.is_none() {
                // Again: what failed is dirty still.
                (clean.failures, clean.from) = (failures, Some(0));
                return true;
            }
            clean.done.take().into_iter().for_each(|done| done(clean.failures == failures));
            false
        });
        self.cleans.extend(cleans);
        work
    }

    /// Takes time into account; `false` when the space is over.
    pub(crate) fn housekeeping(&mut self, now: Time) -> bool {
        self.look_after();
        self.go_on_taking_over();
        self.pager.let_go_of_held();
        match (self.is_idle(), self.ending) {
            (true, _) if self.unwanted => return false,
            (false, _) => {
                self.ending = None;
                self.used = true;
            }
            (true, None) => {
                self.ending = Some(now + self.options.lost_wait + Duration::from_secs(1));
                // What was discarded is zeros that the memory nodes may not have.
                let discarded = self.adopted || self.pager.counters().discarded > 0;
                let owed = self.pager.resident() > 0 || discarded;
                if self.options.kind == Kind::Shared && owed {
                    self.clean_all(None);
                }
            }
            (true, Some(until)) if (self.used && self.cleans.is_empty()) || now >= until => {
                let lost = self.dirty();
                if lost > 0 && self.options.kind == Kind::Shared {
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

    /// Pages of shared memory that memory nodes do not have as they are.
    pub(crate) fn dirty(&self) -> usize {
        let dirty = |page: &u32| {
            let entry = self.pager.look(ONLY, *page);
            entry.is_some_and(|entry| {
                let due = matches!(entry.state(), State::Dirty | State::Cleaning | State::Zeroing);
                due && !entry.is(Flags::ZAPPED)
            })
        };
        if self.options.kind == Kind::Shared { (0..self.options.pages).filter(dirty).count() } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use cxloe_cn_core::mapped::SpaceOptions;

    use super::*;

    /// A region that processes share, none of whose pages is in memory.
    fn space() -> Space {
        let options = SpaceOptions {
            id: 7,
            region: "r".into(),
            kind: Kind::Shared,
            hpa: 1 << 40,
            pages: 64,
            view_pages: 64,
            limit: 64,
            prefetch: true,
            fresh: false,
            lost_wait: Duration::from_secs(1),
            stay: false,
            owner: None,
            created_ms: 0,
        };
        Space::create(options).unwrap()
    }

    /// Whether anything is written back when nobody has it any more.
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

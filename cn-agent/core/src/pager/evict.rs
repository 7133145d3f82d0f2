//! Selection of pages to evict, and the number to evict at a time: enough that a fault finds room, and few enough
//! that a fault's own page is not delayed. The steps of writing back a page are in `clean.rs`.

use super::clean::CleanResult;
use super::*;

/// Maximum number of evictions begun in one turn.
pub(super) const STEP: usize = 16;
/// Maximum number of evictions begun in one turn while several faults wait for room.
pub(super) const STEP_FOR_MANY: usize = 64;
/// Maximum number of evictions begun in one turn for each page in flight that a thread waits for, because the
/// link is to be polled between two steps. With fewer evictions per step, a program that faults without a
/// pause overtakes eviction, and then waits for a whole step.
const STEP_BESIDE_DEMAND: usize = 2;
/// Maximum number of queue entries examined in one turn.
const LOOKS: usize = 128;
/// Maximum number of pages that one order to a process's helper evicts, if the order is not urgent: as many
/// as one message names, and at most the reserve divided by `ORDER_SHARE`.
const ORDER_MAX: u32 = 64;
const ORDER_SHARE: u32 = 4;

impl Pager {
    /// Size of the reserve: pages kept free for faults and read-ahead.
    pub(super) fn reserve_pages(&self) -> u32 {
        (self.options.limit / 16).max(4)
    }

    /// Does background work: retries faults that found no room, evicts pages, and installs pages fetched ahead. During
    /// a [walk](Self::is_walking), does a step of it. Call this after events have been read and their requests have
    /// been sent. Returns the amount of work; 0 means that only completions and events bring more work.
    pub fn turn(&mut self, io: &mut Io<'_>) -> usize {
        let mut work = 0;
        if self.is_walking() {
            work += self.walk();
            if self.is_walking() {
                return work;
            }
        }
        work += self.take_held(io);
        // While a page is in flight, the turn has time for evictions or for preparing memory, not for both.
        if self.surplus() == 0 && self.to_drop.is_empty() {
            self.make_ready(io);
        } else {
            self.awaited.clear();
        }
        work += self.place_arrived(io);
        work += self.follow_hints(io);
        self.worth = if io.memory.drops_by_order() {
            (self.reserve_pages() / ORDER_SHARE).clamp(1, ORDER_MAX)
        } else {
            1
        };
        work += self.evict(io);
        self.drop_pages(io);
        if self.waits() > 0 {
            work += self.serve_waiting(io);
        }
        work
    }

    /// Whether a turn may have something to do. Faults for which there is no room are nothing to do: the end of an
    /// eviction makes room, and is an event.
    pub fn has_work(&self) -> bool {
        let stuck = self.is_full() && self.claimed() >= self.options.limit;
        (!self.waiting.is_empty() && !stuck)
            || (!self.starved.is_empty() && self.has_room_for_fault())
            || (!self.to_drop.is_empty() && !self.held_back)
            || !self.awaited.is_empty()
            || !self.arrived.is_empty()
            || !self.hints.is_empty()
            || !self.wanted_soon.is_empty()
            || self.is_walking()
            || !self.walks.held.is_empty()
            || self.surplus() > 0
    }

    /// Whether pages cannot be evicted, although they should be, because the region has no slot left.
    pub fn is_full(&self) -> bool {
        self.full && !self.slots.has_free()
    }

    /// Retries evictions although the region has no slot left, because some pages may have become zeros, or
    /// equal to another process's.
    pub fn retry_evictions(&mut self) {
        self.full = false;
        // Each retry examines a few pages.
        self.fruitless = self.order.entries().saturating_sub(LOOKS);
    }

    /// Number of pages that should be evicted and are not being evicted yet.
    fn surplus(&self) -> u32 {
        if !self.options.evict || self.is_full() {
            return 0;
        }
        let wanted = self.options.limit - self.reserve_pages();
        let surplus = self.claimed().saturating_sub(wanted).saturating_sub(self.leaving);
        let surplus = if surplus < self.worth { 0 } else { surplus };
        surplus.max(self.order.to_page_out())
    }

    /// Whether a thread waits for a page in flight, and no thread waits for room.
    fn is_beside_demand(&self, io: &Io<'_>) -> bool {
        self.waits() == 0 && io.store.demands() > 0
    }

    fn evict(&mut self, io: &mut Io<'_>) -> usize {
        if self.is_full() {
            return 0;
        }
        let most = match io.store.demands() {
            _ if self.is_contended() => STEP_FOR_MANY,
            0 => STEP,
            _ if self.waits() > 0 => STEP,
            demands => (STEP_BESIDE_DEMAND * demands).min(STEP),
        };
        let most = most.min(self.surplus() as usize);
        let (mut begun, no_slot) = (0, self.counters.no_slot);
        // If the kernel does not show which pages are write-protected, a clean page may have changed, so it counts as
        // dirty.
        let shows = io.memory.shows_protection();
        let mut dirty = core::mem::take(&mut self.victims);
        for _ in 0..LOOKS {
            if begun + dirty.len() >= most {
                break;
            }
            let Some(candidate) = self.order.next() else { break };
            let (PageRef { view, page }, heat) = (candidate.page, candidate.heat);
            let Some(of) = self.view(view) else { continue };
            let (entry, droppable) = (of.table.get(page), of.droppable);
            let of = candidate.page;
            let state = match entry.state() {
                PageState::Clean if !shows => PageState::Dirty,
                state => state,
            };
            match state {
                PageState::Clean | PageState::Dirty if !droppable => self.order.requeue_spared(of, heat),
                // A page that was read ahead and has been passed by its reader is not expected to be used again soon,
                // so no copy is kept.
                PageState::Clean
                    if (candidate.ahead || candidate.passed) && self.was_given_back(view, page, io) => {}
                PageState::Clean if candidate.passed => {
                    self.leaves_written(view, false);
                    self.evict_clean(view, page, entry.with_written(false), None);
                    begun += 1;
                }
                PageState::Clean if candidate.ahead => {
                    self.record_unused(view, page);
                    self.evict_clean(view, page, entry, None);
                    begun += 1;
                }
                PageState::Clean => {
                    if let Ok(kept) = self.copy_to_keep(of, heat, entry, io) {
                        // The page has a history, so it is kept in a buffer. It was read ahead, however, and its reader
                        // has not touched it this time.
                        if candidate.unasked {
                            self.record_unused(view, page);
                        }
                        self.leaves_written(view, false);
                        self.evict_clean(view, page, entry.with_written(false), kept);
                        begun += 1;
                    }
                }
                PageState::Dirty if self.may_clean(view, dirty.len(), io) => {
                    if candidate.unasked {
                        self.record_unused(view, page);
                    }
                    if entry.state() == PageState::Clean {
                        self.set(view, page, entry.to(PageState::Dirty));
                    }
                    dirty.push(candidate);
                }
                PageState::Dirty => {
                    self.order.requeue_spared(of, heat);
                    break;
                }
                // The page is being written back without eviction, so it goes back into the queue.
                PageState::Cleaning if !entry.is(Flags::LEAVING) => self.order.requeue_spared(of, heat),
                _ => {}
            }
        }
        begun += self.evict_dirty(&mut dirty, io);
        dirty.clear();
        self.victims = dirty;
        // The region counts as full when all queued pages were examined and none could be evicted, because no slot was
        // free.
        let some_go = begun > 0 || self.leaving > 0 || self.counters.no_slot == no_slot;
        self.fruitless = if some_go { 0 } else { self.fruitless + LOOKS };
        self.full = !some_go && self.fruitless >= self.order.entries();
        begun
    }

    /// Evicts up to `most` pages from the front of the queue, as long as these were read ahead and equal CMem; no
    /// copies of them are kept.
    pub(super) fn evict_ahead(&mut self, most: usize, io: &mut Io<'_>) {
        let (mut begun, shows) = (0, io.memory.shows_protection());
        for _ in 0..LOOKS {
            if begun == most {
                break;
            }
            let Some(Candidate { page: of, heat, .. }) = self.order.next_ahead() else { break };
            let PageRef { view, page } = of;
            let Some(droppable) = self.view(view).map(|view| view.droppable) else { continue };
            let entry = self.entry(view, page);
            match entry.state() {
                PageState::Clean if droppable && self.was_given_back(view, page, io) => {}
                PageState::Clean if droppable && shows => {
                    self.record_unused(view, page);
                    self.evict_clean(view, page, entry, None);
                    begun += 1;
                }
                PageState::Clean if !droppable => self.order.requeue_spared(of, heat),
                // Dirty pages are evicted in a later turn, when there is time for it.
                PageState::Clean | PageState::Dirty => {
                    self.order.requeue_spared(of, heat);
                    break;
                }
                PageState::Cleaning if !entry.is(Flags::LEAVING) => self.order.requeue_spared(of, heat),
                _ => {}
            }
        }
        if begun > 0 {
            self.drop_first(self.to_drop.len(), io);
        }
    }

    /// Begins to send these pages; neighbours are protected in one step. Returns how many pages are being sent. The
    /// other pages go back into the queue.
    fn evict_dirty(&mut self, dirty: &mut [Candidate], io: &mut Io<'_>) -> usize {
        dirty.sort_unstable_by_key(|candidate| (candidate.page.view, candidate.page.page));
        let mut begun = 0;
        let follows = |a: PageRef, b: PageRef| a.view == b.view && a.page + 1 == b.page;
        for run in dirty.chunk_by(|a, b| follows(a.page, b.page)) {
            let PageRef { view, page: first } = run[0].page;
            let protected = self.protect(view, first..first + run.len() as u32, io);
            for Candidate { page: of, heat, .. } in run {
                if self.entry(view, of.page).state() != PageState::Dirty {
                    // The page is in the queues twice, and is being sent already.
                    continue;
                }
                let outcome = match protected {
                    CleanResult::Yes => self.send(view, of.page, Some(*heat), io),
                    other => other,
                };
                match outcome {
                    CleanResult::Yes => begun += 1,
                    CleanResult::Later | CleanResult::NotThis => self.order.requeue_spared(*of, *heat),
                }
            }
        }
        begun
    }

    /// Records whether an evicted page had been written to since it was installed.
    #[inline]
    pub(super) fn leaves_written(&mut self, view: ViewId, written: bool) {
        if let Some(view) = self.view_mut(view) {
            view.written.add(written);
        }
    }

    /// Begins the eviction of a clean page, for which only the removal is left to do. `kept` is a buffer with
    /// the content.
    pub(super) fn evict_clean(&mut self, view: ViewId, page: u32, entry: Entry, kept: Option<BufferId>) {
        self.leaving += 1;
        self.set(view, page, entry.to(PageState::Dropping).with_buffer(kept));
        self.held_back = false;
        self.to_drop.push(PageRef { view, page });
    }

    /// Puts a page whose eviction was cancelled back into the queue. `leaving` is the page's heat, or `None`
    /// if the page was not being evicted.
    pub(super) fn requeue(&mut self, view: ViewId, page: u32, leaving: Option<Heat>) {
        if let Some(heat) = leaving {
            self.order.requeue_spared(PageRef { view, page }, heat);
        }
    }

    /// Removes the pages that are ready to be removed, unless it pays to wait for more of them.
    fn drop_pages(&mut self, io: &mut Io<'_>) {
        if self.to_drop.is_empty() {
            return;
        }
        let (by_order, wanted_back) = (io.memory.drops_by_order(), core::mem::take(&mut self.wanted_back));
        let beside_demand = self.is_beside_demand(io) && !wanted_back;
        // An order to remove pages costs a message to the process and two turns of its helper, on a CPU that the
        // program most likely needs, so one order removes many pages. Until there are enough of them, pages are held
        // back as long as there is other room and no thread waits for one of them.
        let few = self.to_drop.len() < self.worth as usize && !core::mem::take(&mut self.overdue);
        let asked = wanted_back || self.waits() > 0 || self.order.to_page_out() > 0;
        self.held_back = by_order && few && self.has_room_ahead() && !asked;
        if self.held_back {
            return;
        }
        // While a thread waits for a page in flight, only a few pages are removed, so that the link is polled soon.
        let rest = if beside_demand && !by_order {
            self.to_drop.len().saturating_sub(STEP_BESIDE_DEMAND)
        } else {
            0
        };
        self.drop_first(self.to_drop.len() - rest, io);
    }

    /// Has pages removed that are held back for a larger order, which may never be complete. Call this every few
    /// milliseconds.
    pub fn remove_held_pages(&mut self) {
        self.overdue |= core::mem::take(&mut self.held_back);
    }

    /// Removes the first `now` of the pages ready to be removed, neighbours in one step.
    fn drop_first(&mut self, now: usize, io: &mut Io<'_>) {
        let mut pages = core::mem::take(&mut self.to_drop);
        let mut ranges = core::mem::take(&mut self.ranges);
        pages[..now].sort_unstable_by_key(|page| (page.view, page.page));
        let mut recent = RecentRecords::default();
        for of_view in pages[..now].chunk_by(|a, b| a.view == b.view) {
            let view = of_view[0].view;
            ranges.clear();
            for PageRef { page, .. } in of_view {
                if !self.may_leave(view, *page, &mut recent, io) {
                    continue;
                }
                match ranges.last_mut() {
                    Some(last) if last.end == *page => last.end += 1,
                    _ => ranges.push(*page..page + 1),
                }
            }
            if ranges.is_empty() {
                continue;
            }
            match io.memory.drop_pages(view, &ranges) {
                Ok(Drop::Done) => ranges.iter().for_each(|range| self.dropped(view, range.clone(), io)),
                Ok(Drop::Ordered) => {}
                Err(error) => {
                    if error == MemoryError::Gone {
                        self.mappings_of(view).for_each(|mapping| self.mapping_ended(mapping));
                    }
                    ranges.iter().cloned().flatten().for_each(|page| self.removal_failed(view, page, io));
                }
            }
        }
        pages.drain(..now);
        (self.to_drop, self.ranges) = (pages, ranges);
    }

    #[cold]
    fn removal_failed(&mut self, view: ViewId, page: u32, io: &mut Io<'_>) {
        let entry = self.entry(view, page);
        self.leaving -= 1;
        entry.buffer().into_iter().for_each(|kept| self.buffers.give(kept));
        self.set(view, page, entry.to(PageState::Clean).with_buffer(None));
        self.order.requeue_spared(PageRef { view, page }, Heat::default());
        self.wake(view, page, io);
    }

    /// Handles the report that pages have been removed, as ordered.
    pub fn dropped(&mut self, view: ViewId, pages: Range<u32>, io: &mut Io<'_>) {
        if self.is_walking() {
            self.walks.held.push_back(HeldInput::Dropped(view, pages));
            return;
        }
        let Some(end) = self.view(view).map(|view| view.table.len()) else { return };
        self.held_back = false;
        for page in pages.start..pages.end.min(end) {
            let entry = self.entry(view, page);
            if entry.state() != PageState::Dropping {
                continue;
            }
            self.leaving -= 1;
            self.record_evicted(view);
            self.counters.evicted += 1;
            match entry.buffer() {
                Some(kept) if entry.is(Flags::ZAPPED) => {
                    self.buffers.give(kept);
                    self.release(view, page, entry.with_buffer(None));
                }
                None if entry.is(Flags::ZAPPED) => self.release(view, page, entry),
                Some(_) => {
                    self.set(view, page, entry.to(PageState::Staged));
                    self.keep_evicted(PageRef { view, page });
                }
                None => self.remember(PageRef { view, page }, entry, false),
            }
            if entry.is(Flags::WANTED) {
                self.wake(view, page, io);
            }
        }
    }
}

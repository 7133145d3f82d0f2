//! Which pages leave, and how many at a time: so many that there is room before a fault asks for it, so few at once that a
//! fault's own page is not kept waiting. How one leaves is `clean.rs`: protected, copied, compared with its twin, sent,
//! acknowledged, taken away; each in that order.

use super::clean::Begun;
use super::*;

/// Pages begun to leave in one turn.
pub(super) const STEP: usize = 16;
/// The same while several wait for room.
pub(super) const STEP_FOR_MANY: usize = 64;
/// The same while somebody waits for a page that is on its way: the link is to be looked at between two steps. With fewer,
/// eviction falls behind a program that faults without a pause, which then waits for a whole step of it.
const STEP_BESIDE_DEMAND: usize = 2;
/// Places of the queues looked at in one turn.
const LOOKS: usize = 128;
/// Pages of one process taken away at its helper's hands in one order, if that can wait: a part of those kept free, and not
/// more than one message names.
const ORDER_MAX: u32 = 64;
const ORDER_SHARE: u32 = 4;

impl Pager {
    /// Pages kept free, so that a fault finds room, and what is read ahead.
    pub(super) fn reserve_pages(&self) -> u32 {
        (self.options.limit / 16).max(4)
    }

    /// Goes on with what nobody waits for in particular: faults that found no room, pages that have to leave, pages that came
    /// ahead. Call it after events have been read and what they ask for has been sent. How much was done; 0 means that only
    /// completions and events bring news.
    pub fn turn(&mut self, io: &mut Io<'_>) -> usize {
        // As long as a page is on its way there is time for one of both.
        if self.surplus() == 0 && self.to_drop.is_empty() {
            self.make_ready(io);
        } else {
            self.awaited.clear();
        }
        let mut work = self.place_arrived(io);
        work += self.follow_hints(io);
        self.worth = if io.memory.drops_by_order() {
            (self.reserve_pages() / ORDER_SHARE).clamp(1, ORDER_MAX)
        } else {
            1
        };
        work += self.evict(io);
        self.drop_pages(io);
        if !self.waiting.is_empty() {
            work += self.serve_waiting(io);
        }
        work
    }

    /// Whether a turn may have something to do.
    pub fn has_work(&self) -> bool {
        let stuck = self.is_full() && self.claimed() >= self.options.limit;
        (!self.waiting.is_empty() && !stuck)
            || (!self.to_drop.is_empty() && !self.held_back)
            || !self.awaited.is_empty()
            || !self.arrived.is_empty()
            || !self.hints.is_empty()
            || self.surplus() > 0
    }

    /// Whether pages would have to leave for which the region has no slot.
    pub fn is_full(&self) -> bool {
        self.full && !self.slots.has_free()
    }

    /// Looks again whether pages can leave, though the region has no slot left: some may have become zeros, or another
    /// process's.
    pub fn look_again(&mut self) {
        self.full = false;
        // A few of them in each look.
        self.fruitless = self.order.entries().saturating_sub(LOOKS);
    }

    /// Pages that ought to leave and are not on their way.
    fn surplus(&self) -> u32 {
        if !self.options.evict || self.is_full() {
            return 0;
        }
        let wanted = self.options.limit - self.reserve_pages();
        let surplus = self.claimed().saturating_sub(wanted).saturating_sub(self.leaving);
        let surplus = if surplus < self.worth { 0 } else { surplus };
        surplus.max(self.order.to_page_out())
    }

    /// Whether somebody waits for a page that is on its way, and nobody for room.
    fn is_beside_demand(&self, io: &Io<'_>) -> bool {
        self.waiting.is_empty() && io.store.demands() > 0
    }

    fn evict(&mut self, io: &mut Io<'_>) -> usize {
        if self.is_full() {
            return 0;
        }
        let most = match io.store.demands() {
            _ if self.is_contended() => STEP_FOR_MANY,
            0 => STEP,
            _ if !self.waiting.is_empty() => STEP,
            demands => (STEP_BESIDE_DEMAND * demands).min(STEP),
        };
        let most = most.min(self.surplus() as usize);
        let (mut begun, no_slot) = (0, self.counters.no_slot);
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
            match entry.state() {
                State::Clean | State::Dirty if !droppable => self.order.spared(of, heat),
                // Who has passed by what was read ahead for him does not come back soon.
                State::Clean if candidate.ahead && self.was_given_back(view, page, io) => {}
                State::Clean if candidate.ahead => {
                    self.thrown_away(view, page);
                    self.leave(view, page, entry, None);
                    begun += 1;
                }
                State::Clean => {
                    if let Ok(kept) = self.copy_to_keep(of, heat, entry, io) {
                        self.leaves_written(view, false);
                        self.leave(view, page, entry.with_written(false), kept);
                        begun += 1;
                    }
                }
                State::Dirty if self.may_clean(view, dirty.len(), io) => {
                    if candidate.ahead {
                        self.thrown_away(view, page);
                    }
                    dirty.push(candidate);
                }
                State::Dirty => {
                    self.order.spared(of, heat);
                    break;
                }
                // It is being written back without leaving: its turn comes again.
                State::Cleaning if !entry.is(Flags::LEAVING) => self.order.spared(of, heat),
                _ => {}
            }
        }
        begun += self.evict_dirty(&mut dirty, io);
        dirty.clear();
        self.victims = dirty;
        // Of all pages none could go, and nothing is on its way.
        let some_go = begun > 0 || self.leaving > 0 || self.counters.no_slot == no_slot;
        self.fruitless = if some_go { 0 } else { self.fruitless + LOOKS };
        self.full = !some_go && self.fruitless >= self.order.entries();
        begun
    }

    /// Takes away up to `most` pages whose turn it is, as long as they were read ahead and are as CMem has them, and keeps none
    /// of them.
    pub(super) fn evict_ahead(&mut self, most: usize, io: &mut Io<'_>) {
        let mut begun = 0;
        for _ in 0..LOOKS {
            if begun == most {
                break;
            }
            let Some(Candidate { page: of, heat, .. }) = self.order.next_ahead() else { break };
            let PageRef { view, page } = of;
            let Some(droppable) = self.view(view).map(|view| view.droppable) else { continue };
            let entry = self.entry(view, page);
            match entry.state() {
                State::Clean if droppable && self.was_given_back(view, page, io) => {}
                State::Clean if droppable => {
                    self.thrown_away(view, page);
                    self.leave(view, page, entry, None);
                    begun += 1;
                }
                State::Clean => self.order.spared(of, heat),
                // Those have their turn when there is time for it.
                State::Dirty => {
                    self.order.spared(of, heat);
                    break;
                }
                State::Cleaning if !entry.is(Flags::LEAVING) => self.order.spared(of, heat),
                _ => {}
            }
        }
        if begun > 0 {
            self.drop_first(self.to_drop.len(), io);
        }
    }

    /// Begins to send these pages, neighbours protected in one step; how many are on their way. The others' turns come again.
    fn evict_dirty(&mut self, dirty: &mut [Candidate], io: &mut Io<'_>) -> usize {
        dirty.sort_unstable_by_key(|candidate| (candidate.page.view, candidate.page.page));
        let mut begun = 0;
        let follows = |a: PageRef, b: PageRef| a.view == b.view && a.page + 1 == b.page;
        for run in dirty.chunk_by(|a, b| follows(a.page, b.page)) {
            let PageRef { view, page: first } = run[0].page;
            let protected = self.protect(view, first..first + run.len() as u32, io);
            for Candidate { page: of, heat, .. } in run {
                if self.entry(view, of.page).state() != State::Dirty {
                    // It stands in the queues twice, and was sent already.
                    continue;
                }
                let outcome = match protected {
                    Begun::Yes => self.send(view, of.page, Some(*heat), io),
                    other => other,
                };
                match outcome {
                    Begun::Yes => begun += 1,
                    Begun::Later | Begun::NotThis => self.order.spared(*of, *heat),
                }
            }
        }
        begun
    }

    /// A page leaves that has been written since it came, or has not.
    #[inline]
    pub(super) fn leaves_written(&mut self, view: ViewId, written: bool) {
        if let Some(view) = self.view_mut(view) {
            view.written.add(written);
        }
    }

    /// A clean page leaves: nothing but taking it away is left to do. `kept` is a copy of it.
    pub(super) fn leave(&mut self, view: ViewId, page: u32, entry: Entry, kept: Option<BufferId>) {
        self.leaving += 1;
        self.set(view, page, entry.to(State::Dropping).with_buffer(kept));
        self.held_back = false;
        self.to_drop.push(PageRef { view, page });
    }

    /// A page that was to leave, if it was and was so hot, stays after all.
    pub(super) fn come_again(&mut self, view: ViewId, page: u32, leaving: Option<Heat>) {
        if let Some(heat) = leaving {
            self.order.spared(PageRef { view, page }, heat);
        }
    }

    /// Has pages taken away that can be.
    fn drop_pages(&mut self, io: &mut Io<'_>) {
        if self.to_drop.is_empty() {
            return;
        }
        let (by_order, wanted_back) = (io.memory.drops_by_order(), core::mem::take(&mut self.wanted_back));
        let beside_demand = self.is_beside_demand(io) && !wanted_back;
        // Where each is a message to the process, and two turns of its helper on a CPU that the program most likely wants, many
        // are taken away at once, as long as there is room without them and nobody waits for one.
        let few = self.to_drop.len() < self.worth as usize && !core::mem::take(&mut self.overdue);
        let asked = wanted_back || !self.waiting.is_empty() || self.order.to_page_out() > 0;
        self.held_back = by_order && few && self.has_room_ahead() && !asked;
        if self.held_back {
            return;
        }
        // Beside a fault one step of it.
        let rest = if beside_demand && !by_order {
            self.to_drop.len().saturating_sub(STEP_BESIDE_DEMAND)
        } else {
            0
        };
        self.drop_first(self.to_drop.len() - rest, io);
    }

    /// Pages that can be taken away wait for others no longer: it may be that none come. Call it every few milliseconds.
    pub fn let_go_of_held(&mut self) {
        self.overdue |= core::mem::take(&mut self.held_back);
    }

    /// Has the first `now` of the pages taken away that can be, neighbours in one step.
    fn drop_first(&mut self, now: usize, io: &mut Io<'_>) {
        let mut pages = core::mem::take(&mut self.to_drop);
        let mut ranges = core::mem::take(&mut self.ranges);
        pages[..now].sort_unstable_by_key(|page| (page.view, page.page));
        for of_view in pages[..now].chunk_by(|a, b| a.view == b.view) {
            let view = of_view[0].view;
            ranges.clear();
            for PageRef { page, .. } in of_view {
                match ranges.last_mut() {
                    Some(last) if last.end == *page => last.end += 1,
                    _ => ranges.push(*page..page + 1),
                }
            }
            match io.memory.drop_pages(view, &ranges) {
                Ok(Drop::Done) => ranges.iter().for_each(|range| self.dropped(view, range.clone(), io)),
                Ok(Drop::Ordered) => {}
                Err(error) => {
                    if error == MemoryError::Gone {
                        self.mappings_of(view).for_each(|mapping| self.gone(mapping));
                    }
                    ranges.iter().cloned().flatten().for_each(|page| self.stay(view, page, io));
                }
            }
        }
        pages.drain(..now);
        (self.to_drop, self.ranges) = (pages, ranges);
    }

    /// A page could not be taken away.
    #[cold]
    fn stay(&mut self, view: ViewId, page: u32, io: &mut Io<'_>) {
        let entry = self.entry(view, page);
        self.leaving -= 1;
        entry.buffer().into_iter().for_each(|kept| self.buffers.give(kept));
        self.set(view, page, entry.to(State::Clean).with_buffer(None));
        self.order.spared(PageRef { view, page }, Heat::default());
        self.wake(view, page, io);
    }

    /// Pages have been taken away, as ordered.
    pub fn dropped(&mut self, view: ViewId, pages: Range<u32>, io: &mut Io<'_>) {
        let Some(end) = self.view(view).map(|view| view.table.len()) else { return };
        self.held_back = false;
        for page in pages.start..pages.end.min(end) {
            let entry = self.entry(view, page);
            if entry.state() != State::Dropping {
                continue;
            }
            self.leaving -= 1;
            self.left(view);
            self.counters.evicted += 1;
            match entry.buffer() {
                Some(kept) if entry.is(Flags::ZAPPED) => {
                    self.buffers.give(kept);
                    self.release(view, page, entry.with_buffer(None));
                }
                None if entry.is(Flags::ZAPPED) => self.release(view, page, entry),
                Some(_) => {
                    self.set(view, page, entry.to(State::Staged));
                    self.keep_for_a_while(PageRef { view, page });
                }
                None => self.remember(PageRef { view, page }, entry, false),
            }
            if entry.is(Flags::WANTED) {
                self.wake(view, page, io);
            }
        }
    }
}

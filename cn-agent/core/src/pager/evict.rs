//! How a page leaves: protected, copied, compared with its twin, sent, acknowledged, taken away; each in that order.

use super::page_buffers::Use;
use super::*;

/// Pages begun to be sent in one turn.
const BATCH: usize = 32;
/// Pages being sent at once.
const CLEANING_MAX: u32 = 128;
/// Entries looked at in one turn when everything is to be sent.
const CLEAN_LOOKS: u32 = 8192;
/// Places of the queues looked at in one turn.
const LOOKS: usize = 128;

/// What has become of an attempt to send a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    /// It is on its way, or was already as CMem has it.
    Yes,
    /// Not now: something is in short supply.
    Later,
    /// Not this page now.
    NotThis,
}

impl Pager {
    /// Pages kept free, so that a fault finds room, and what is read ahead.
    pub(super) fn reserve_pages(&self) -> u32 {
        (self.options.limit / 16).clamp(4, 1024)
    }

    /// Goes on with what nobody waits for in particular: faults that found no room, pages that have to leave. Call it
    /// after events have been read. How much was done; 0 means that only completions and events bring news.
    pub fn turn(&mut self, io: &mut Io<'_>) -> usize {
        let mut work = self.evict(io);
        self.drop_pages(io);
        if !self.waiting.is_empty() {
            work += self.serve_waiting(io);
        }
        work
    }

    /// Whether a turn may have something to do.
    pub fn has_work(&self) -> bool {
        let stuck = self.is_full() && self.bounded() + self.coming >= self.options.limit;
        (!self.waiting.is_empty() && !stuck) || !self.to_drop.is_empty() || self.surplus() > 0
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
        (self.bounded() + self.coming).saturating_sub(wanted).saturating_sub(self.leaving)
    }

    fn evict(&mut self, io: &mut Io<'_>) -> usize {
        if self.is_full() {
            return 0;
        }
        let (mut begun, no_slot) = (0, self.counters.no_slot);
        for _ in 0..LOOKS {
            if begun >= BATCH || self.surplus() == 0 {
                break;
            }
            let Some(PageRef { view, page }) = self.order.next() else { break };
            let Some(of) = self.view(view) else { continue };
            let entry = of.table.get(page);
            let spare = |pager: &mut Pager| pager.order.spared(PageRef { view, page }, true);
            match entry.state() {
                State::Clean | State::Dirty if !of.droppable => spare(self),
                State::Clean => {
                    self.leave(view, page, entry);
                    begun += 1;
                }
                State::Dirty => match self.clean(view, page, true, io) {
                    Begun::Yes => begun += 1,
                    Begun::NotThis => spare(self),
                    Begun::Later => {
                        spare(self);
                        break;
                    }
                },
                // It is being written back without leaving: its turn comes again.
                State::Cleaning if !entry.is(Flags::LEAVING) => spare(self),
                _ => {}
            }
        }
        // Of all pages none could go, and nothing is on its way.
        let some_go = begun > 0 || self.leaving > 0 || self.counters.no_slot == no_slot;
        self.fruitless = if some_go { 0 } else { self.fruitless + LOOKS };
        self.full = !some_go && self.fruitless >= self.order.entries();
        begun
    }

    /// A clean page leaves: nothing but taking it away is left to do.
    fn leave(&mut self, view: ViewId, page: u32, entry: Entry) {
        self.leaving += 1;
        self.set(view, page, entry.to(State::Dropping).with_buffer(None));
        self.to_drop.push(PageRef { view, page });
    }

    /// Begins to send what has changed of a dirty page.
    fn clean(&mut self, view: ViewId, page: u32, leaving: bool, io: &mut Io<'_>) -> Begun {
        if io.store.room() == 0 || !self.complete {
            return Begun::Later;
        }
        let Some(cleaning) = self.view(view).map(|view| view.cleaning) else { return Begun::NotThis };
        if cleaning >= CLEANING_MAX {
            return Begun::Later;
        }
        let entry = self.entry(view, page);
        let own = entry.slot().filter(|slot| !self.slots.is_shared(*slot));
        let Some(buffer) = self.buffers.take(Use::Twin) else { return Begun::Later };
        let mut mappings = self.mappings_of(view);
        if let Err(error) =
            mappings.try_for_each(|mapping| match io.memory.protect(mapping, page..page + 1) {
                // Who has gone writes no more.
                Err(MemoryError::Gone) => {
                    self.gone(mapping);
                    Ok(())
                }
                other => other,
            })
        {
            self.buffers.give(buffer);
            return if error == MemoryError::Again { Begun::Later } else { Begun::NotThis };
        }
        if let Err(error) = io.memory.snapshot(view, page, self.buffers.page_mut(buffer)) {
            self.buffers.give(buffer);
            if error == MemoryError::Absent {
                self.discarded(view, page..page + 1);
            }
            return Begun::NotThis;
        }
        let now = self.buffers.page(buffer);
        let (slot, lines) = match (own, entry.buffer()) {
            (Some(slot), Some(twin)) => (Some(slot), lines::changed(now, self.buffers.page(twin))),
            (Some(slot), None) => (Some(slot), u64::MAX),
            // Zeros need no slot.
            (None, _) if lines::written(now) == 0 && !self.slots.is_own() => (None, 0),
            (None, _) => match self.slots.take(page) {
                Some(taken) if taken.zeroed => (Some(taken.slot), lines::written(now)),
                Some(taken) => (Some(taken.slot), u64::MAX),
                None => {
                    self.buffers.give(buffer);
                    self.counters.no_slot += 1;
                    // It stays, and may be written.
                    return Begun::NotThis;
                }
            },
        };
        let old = if own.is_some() { None } else { entry.slot() };
        let cleaning = entry.to(State::Cleaning);
        self.set(view, page, if leaving { cleaning.with(Flags::LEAVING) } else { cleaning });
        self.leaving += u32::from(leaving);
        if let Some(view) = self.view_mut(view) {
            view.cleaning += 1;
        }
        let slot = slot.unwrap_or(NO_SLOT);
        self.buffers.set_purpose(buffer, Use::Write { view: Some(view), page, slot, old });
        if lines == 0 {
            self.written(buffer, Ok(()), io);
        } else {
            self.counters.written_back += 1;
            self.counters.lines_written_back += u64::from(lines.count_ones());
            io.store.write(slot, lines, buffer);
        }
        Begun::Yes
    }

    /// A page has arrived in its slot.
    pub fn written(&mut self, buffer: BufferId, outcome: Result<(), Lost>, io: &mut Io<'_>) {
        let Use::Write { view, page, slot, old } = self.buffers.purpose(buffer) else { return };
        let slot = Some(slot).filter(|slot| *slot != NO_SLOT);
        let Some(id) = view else {
            // Its view has ended; what it referred to is given up now that nothing is on its way there.
            slot.into_iter().chain(old).for_each(|slot| self.slots.give(slot));
            self.buffers.give(buffer);
            return;
        };
        if let Some(view) = self.view_mut(id) {
            view.cleaning -= 1;
        }
        let entry = self.entry(id, page);
        let leaving = entry.is(Flags::LEAVING);
        self.leaving -= u32::from(leaving);
        // The twin that was, or will not be.
        entry.buffer().into_iter().for_each(|twin| self.buffers.give(twin));
        let place = entry.with_buffer(None);
        if outcome.is_err() {
            // What arrived of it is not known: it is dirty as a whole, and stays.
            if old.is_some() || entry.slot().is_none() {
                slot.into_iter().for_each(|slot| self.slots.give(slot));
            }
            self.buffers.give(buffer);
            self.counters.write_back_failures += 1;
            self.set(id, page, place.to(State::Dirty));
            self.come_again(id, page, leaving);
            if entry.is(Flags::ZAPPED) {
                self.discarded(id, page..page + 1);
            }
            self.let_all_write(id, page, io);
            self.give_up_waiting(io);
            return;
        }
        old.into_iter().for_each(|slot| self.slots.give(slot));
        let place = place.with_slot(slot);
        if entry.is(Flags::ZAPPED) {
            self.buffers.give(buffer);
            self.left(id);
            self.release(id, page, place);
            self.wake(id, page, io);
        } else if entry.is(Flags::WANTED) {
            self.counters.cancelled += u64::from(leaving);
            self.buffers.set_purpose(buffer, Use::Twin);
            self.set(id, page, place.to(State::Dirty).with_buffer(Some(buffer)));
            self.come_again(id, page, leaving);
            self.let_all_write(id, page, io);
        } else {
            self.buffers.give(buffer);
            if leaving {
                self.leave(id, page, place);
            } else {
                self.set(id, page, place.to(State::Clean));
            }
        }
    }

    /// A page that was to leave stays after all.
    fn come_again(&mut self, view: ViewId, page: u32, leaving: bool) {
        if leaving {
            self.order.spared(PageRef { view, page }, true);
        }
    }

    /// Lets whoever waits to write to a dirty page go on.
    fn let_all_write(&mut self, view: ViewId, page: u32, io: &mut Io<'_>) {
        for mapping in self.mappings_of(view) {
            match io.memory.unprotect(mapping, page) {
                Ok(()) => {}
                Err(MemoryError::Gone) => self.gone(mapping),
                Err(_) => {
                    let access = Access::Protected;
                    self.waiting.push_back(Fault { mapping, page, access, write: true });
                }
            }
        }
    }

    /// Has pages taken away that can be.
    fn drop_pages(&mut self, io: &mut Io<'_>) {
        if self.to_drop.is_empty() {
            return;
        }
        let mut pages = core::mem::take(&mut self.to_drop);
        let mut ranges = core::mem::take(&mut self.ranges);
        pages.sort_unstable_by_key(|page| (page.view, page.page));
        for of_view in pages.chunk_by(|a, b| a.view == b.view) {
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
        pages.clear();
        (self.to_drop, self.ranges) = (pages, ranges);
    }

    /// A page could not be taken away.
    #[cold]
    fn stay(&mut self, view: ViewId, page: u32, io: &mut Io<'_>) {
        let entry = self.entry(view, page);
        self.leaving -= 1;
        self.set(view, page, entry.to(State::Clean));
        self.order.spared(PageRef { view, page }, true);
        self.wake(view, page, io);
    }

    /// Pages have been taken away, as ordered.
    pub fn dropped(&mut self, view: ViewId, pages: Range<u32>, io: &mut Io<'_>) {
        let Some(end) = self.view(view).map(|view| view.table.len()) else { return };
        for page in pages.start..pages.end.min(end) {
            let entry = self.entry(view, page);
            if entry.state() != State::Dropping {
                continue;
            }
            self.leaving -= 1;
            self.left(view);
            self.counters.evicted += 1;
            if entry.is(Flags::ZAPPED) {
                self.release(view, page, entry);
            } else {
                self.set(view, page, entry.to(State::Absent).with(Flags::RECENT));
                if let Forget::Page(old) = self.order.left(PageRef { view, page }) {
                    self.forget(old);
                }
            }
            if entry.is(Flags::WANTED) {
                self.wake(view, page, io);
            }
        }
    }

    fn forget(&mut self, PageRef { view, page }: PageRef) {
        if let Some(view) = self.view(view).filter(|view| page < view.table.len()) {
            view.table.set(page, view.table.get(page).without(Flags::RECENT));
        }
    }

    /// Begins to send everything of a view that is dirty, without its leaving; `true` once nothing is. Call it again
    /// after a turn.
    pub fn clean_all(&mut self, view: ViewId, io: &mut Io<'_>) -> bool {
        let mut from = Some(0);
        while let Some(page) = from {
            from = self.clean_from(view, page, io);
            if from.is_some_and(|next| next < page.saturating_add(CLEAN_LOOKS)) {
                return false;
            }
        }
        self.buffers.uses_mut().all(|purpose| !matches!(purpose, Use::Write { .. }))
    }

    /// Begins to send what is dirty of a view, from page `from` on, without its leaving. Where to go on in the next turn;
    /// `None` at the end. What was begun has arrived when the store says so.
    pub fn clean_from(&mut self, view: ViewId, from: u32, io: &mut Io<'_>) -> Option<u32> {
        let pages = self.view(view).map(|view| view.table.len())?;
        // What was discarded is zeros here and not yet there.
        let zeros_due = self.slots.is_own() && !self.slots.is_fresh();
        let end = pages.min(from.saturating_add(CLEAN_LOOKS));
        for page in from..end {
            let entry = self.entry(view, page);
            let begun = match (entry.state(), entry.slot()) {
                (State::Dirty, _) => self.clean(view, page, false, io),
                (State::Clean, None) if zeros_due => {
                    self.set(view, page, entry.to(State::Dirty));
                    self.clean(view, page, false, io)
                }
                (State::Absent, None) if zeros_due => self.write_zeros(view, page, entry, io),
                _ => continue,
            };
            if begun == Begun::Later {
                return Some(page);
            }
        }
        Some(end).filter(|next| *next < pages)
    }

    /// Sends zeros for a page that is nowhere.
    fn write_zeros(&mut self, view: ViewId, page: u32, entry: Entry, io: &mut Io<'_>) -> Begun {
        if io.store.room() == 0 {
            return Begun::Later;
        }
        // Nobody's: the page may come back and be written meanwhile, which goes out behind it.
        let purpose = Use::Write { view: None, page, slot: page, old: None };
        let Some(buffer) = self.buffers.take(purpose) else { return Begun::Later };
        self.buffers.page_mut(buffer).fill(0);
        self.set(view, page, entry.with_slot(Some(page)));
        io.store.write(page, u64::MAX, buffer);
        Begun::Yes
    }
}

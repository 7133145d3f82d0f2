//! How a page leaves: protected, copied, compared with its twin, sent, acknowledged.

use super::page_buffers::Use;
use super::*;

/// Pages being sent at once.
const CLEANING_MAX: u32 = 128;
/// Entries looked at in one turn when everything is to be sent.
const CLEAN_LOOKS: u32 = 8192;
/// Neighbours protected in one step when everything is to be sent, and pages copied in one turn: the link has those of the
/// turn before meanwhile, and is looked at in between.
const RUN: u32 = 16;

/// What has become of an attempt to send a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// It is on its way, or was already as CMem has it.
    Yes,
    /// Not now: something is in short supply.
    Later,
    /// Not this page now.
    NotThis,
}

impl Pager {
    /// Whether one more page of a view may be sent, besides `others` that are about to be.
    pub(super) fn may_clean(&self, view: ViewId, others: usize, io: &Io<'_>) -> bool {
        let cleaning = self.view(view).map_or(CLEANING_MAX, |view| view.cleaning);
        self.complete
            && cleaning + (others as u32) < CLEANING_MAX
            && io.store.room() > ahead::ROOM_FOR_DEMAND + others
            && self.buffers.room() > ahead::ROOM_FOR_DEMAND + others
    }

    /// Protects pages in every mapping of their view.
    pub(super) fn protect(&mut self, view: ViewId, pages: Range<u32>, io: &mut Io<'_>) -> Begun {
        for mapping in self.mappings_of(view) {
            match io.memory.protect(mapping, pages.clone()) {
                Ok(()) => {}
                // Who has gone writes no more.
                Err(MemoryError::Gone) => self.gone(mapping),
                Err(MemoryError::Again) => return Begun::Later,
                Err(_) => return Begun::NotThis,
            }
        }
        Begun::Yes
    }

    /// Begins to send what has changed of a dirty page that is [protected](Self::protect); `leaving`, and how hot it is, if it
    /// is to be taken away then.
    pub(super) fn send(&mut self, view: ViewId, page: u32, leaving: Option<Heat>, io: &mut Io<'_>) -> Begun {
        let entry = self.entry(view, page);
        let own = entry.slot().filter(|slot| !self.slots.is_shared(*slot));
        let Some(buffer) = self.buffers.take(Use::Twin) else { return Begun::Later };
        if let Err(error) = io.memory.snapshot(view, page, self.buffers.page_mut(buffer)) {
            self.buffers.give(buffer);
            if error == MemoryError::Absent {
                self.discarded(view, page..page + 1);
            }
            return Begun::NotThis;
        }
        let now = self.buffers.page(buffer);
        let unwritten = |twin| entry.slot().is_some() && lines::changed(now, self.buffers.page(twin)) == 0;
        let (slot, lines) = match (own, entry.buffer()) {
            (Some(slot), Some(twin)) => (Some(slot), lines::changed(now, self.buffers.page(twin))),
            (Some(slot), None) => (Some(slot), u64::MAX),
            // Let be written and not written since: it goes on sharing the slot.
            (None, Some(twin)) if unwritten(twin) => (entry.slot(), 0),
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
        let old = entry.slot().filter(|old| slot != Some(*old));
        let cleaning = entry.to(State::Cleaning).with_written(lines != 0);
        self.set(view, page, if leaving.is_some() { cleaning.with(Flags::LEAVING) } else { cleaning });
        self.leaving += u32::from(leaving.is_some());
        if leaving.is_some() {
            self.leaves_written(view, lines != 0);
        }
        if let Some(view) = self.view_mut(view) {
            view.cleaning += 1;
        }
        let slot = slot.unwrap_or(NO_SLOT);
        let heat = leaving.unwrap_or_default();
        self.buffers.set_purpose(buffer, Use::Write { view: Some(view), page, slot, old, heat });
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
        let Use::Write { view, page, slot, old, heat } = self.buffers.purpose(buffer) else { return };
        self.held_back = false;
        let slot = Some(slot).filter(|slot| *slot != NO_SLOT);
        let Some(id) = view else {
            // Its view has ended; what it referred to is given up now that nothing is on its way there.
            slot.into_iter().chain(old).for_each(|slot| self.slots.give(slot));
            self.buffers.give(buffer);
            return;
        };
        let entry = self.entry(id, page);
        if entry.state() == State::Zeroing {
            return self.zeros_written(id, page, buffer, outcome, io);
        }
        if let Some(view) = self.view_mut(id) {
            view.cleaning -= 1;
        }
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
            self.come_again(id, page, leaving.then_some(heat));
            if entry.is(Flags::ZAPPED) {
                self.discarded(id, page..page + 1);
            }
            self.let_all_write(id, page, io);
            self.give_up_waiting(io);
            return;
        }
        old.into_iter().for_each(|slot| self.slots.give(slot));
        if let Some(slot) = slot {
            self.share_sent(id, page, slot, buffer, io);
        }
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
            self.come_again(id, page, leaving.then_some(heat));
            self.let_all_write(id, page, io);
        } else if leaving && slot.is_some() {
            self.buffers.set_purpose(buffer, Use::Kept { page, heat });
            self.leave(id, page, place, Some(buffer));
        } else {
            self.buffers.give(buffer);
            if leaving {
                self.leave(id, page, place, None);
            } else {
                self.set(id, page, place.to(State::Clean));
            }
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
        self.buffers.writing() == 0
    }

    /// Begins to send what is dirty of a view, from page `from` on, without its leaving: a few pages. Where to go on in the
    /// next turn; `None` at the end. What was begun has arrived when the store says so.
    pub fn clean_from(&mut self, view: ViewId, from: u32, io: &mut Io<'_>) -> Option<u32> {
        let pages = self.view(view).map(|view| view.table.len())?;
        let own = self.slots.is_own();
        // What was discarded is zeros here and not yet there.
        let zeros_due = own && !self.slots.is_fresh();
        let end = pages.min(from.saturating_add(CLEAN_LOOKS));
        let (mut page, mut begun) = (from, 0);
        while page < end {
            if begun >= RUN {
                return Some(page);
            }
            let entry = self.entry(view, page);
            let mut next = page + 1;
            let waits = match (entry.state(), entry.slot()) {
                (State::Dirty, _) => {
                    let is_dirty = |page: &u32| self.entry(view, *page).state() == State::Dirty;
                    next += (next..end.min(page + RUN)).take_while(is_dirty).count() as u32;
                    begun += next - page;
                    self.clean_run(view, page..next, io)
                }
                (State::Clean, None) if zeros_due => {
                    begun += 1;
                    self.set(view, page, entry.to(State::Dirty));
                    self.clean_run(view, page..next, io)
                }
                (State::Absent, None) if zeros_due => {
                    begun += 1;
                    (self.write_zeros(view, page, entry, io) == Begun::Later).then_some(page)
                }
                // Discarded while it was on its way: zeros are due once that has ended.
                _ if own && entry.is(Flags::ZAPPED) => Some(page),
                _ => None,
            };
            if waits.is_some() {
                return waits;
            }
            page = next;
        }
        Some(end).filter(|next| *next < pages)
    }

    /// Begins to send dirty neighbours; the first that has to wait for another turn, if one has.
    fn clean_run(&mut self, view: ViewId, pages: Range<u32>, io: &mut Io<'_>) -> Option<u32> {
        if !self.may_clean(view, 0, io) {
            return Some(pages.start);
        }
        match self.protect(view, pages.clone(), io) {
            Begun::Yes => {}
            Begun::Later => return Some(pages.start),
            Begun::NotThis => return None,
        }
        // What was sent before a page may have made room scarce.
        let mut pages = pages;
        pages.find(|page| !self.may_clean(view, 0, io) || self.send(view, *page, None, io) == Begun::Later)
    }

    /// Sends zeros for a page that is nowhere.
    fn write_zeros(&mut self, view: ViewId, page: u32, entry: Entry, io: &mut Io<'_>) -> Begun {
        if io.store.room() <= ahead::ROOM_FOR_DEMAND {
            return Begun::Later;
        }
        let purpose = Use::Write { view: Some(view), page, slot: page, old: None, heat: Heat::default() };
        let Some(buffer) = self.buffers.take(purpose) else { return Begun::Later };
        self.buffers.page_mut(buffer).fill(0);
        self.set(view, page, entry.to(State::Zeroing).with_buffer(Some(buffer)));
        io.store.write(page, u64::MAX, buffer);
        Begun::Yes
    }

    /// The zeros of a page that is nowhere have arrived in its slot, or not all of them.
    fn zeros_written(
        &mut self,
        view: ViewId,
        page: u32,
        buffer: BufferId,
        outcome: Result<(), Lost>,
        io: &mut Io<'_>,
    ) {
        let entry = self.entry(view, page);
        self.buffers.give(buffer);
        self.counters.write_back_failures += u64::from(outcome.is_err());
        // Until they have, whatever is there is not the page's content.
        let slot = outcome.ok().map(|()| page);
        self.set(view, page, entry.to(State::Absent).with_slot(slot).with_buffer(None));
        if entry.is(Flags::WANTED) {
            self.wake(view, page, io);
        }
    }
}

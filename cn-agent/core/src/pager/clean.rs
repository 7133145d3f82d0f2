//! Write-back of a page in steps: the page is write-protected, copied, compared with its twin (its content at the
//! memory node), sent, and acknowledged.

use super::fault::Wait;
use super::page_buffers::BufferUse;
use super::*;

/// Maximum number of pages being sent at once.
const CLEANING_MAX: u32 = 128;
/// Maximum number of entries examined in one turn when all dirty pages are to be sent.
const CLEAN_LOOKS: u32 = 8192;
/// Maximum number of neighbouring pages that are protected in one step when all dirty pages are to be sent, and of
/// pages copied in one turn. Between turns the link sends the pages copied before, and is polled.
const RUN: u32 = 16;

/// Result of an attempt to send a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CleanResult {
    /// The page is in flight, or already equal to CMem.
    Yes,
    /// No page can be sent now, because a resource is short.
    Later,
    /// This page cannot be sent now; others may.
    NotThis,
}

impl Pager {
    /// Whether one more page of a view may be sent, besides `others` pages about to be sent.
    pub(super) fn may_clean(&self, view: ViewId, others: usize, io: &Io<'_>) -> bool {
        let cleaning = self.view(view).map_or(CLEANING_MAX, |view| view.cleaning);
        self.complete
            && cleaning + (others as u32) < CLEANING_MAX
            && io.store.room() > read_ahead::ROOM_FOR_DEMAND + others
            && self.buffers.room() > read_ahead::ROOM_FOR_DEMAND + others
    }

    /// Write-protects pages in every mapping of their view.
    pub(super) fn protect(&mut self, view: ViewId, pages: Range<u32>, io: &mut Io<'_>) -> CleanResult {
        for mapping in self.mappings_of(view) {
            match io.memory.protect(mapping, pages.clone()) {
                Ok(()) => {}
                // The process has ended, so it cannot write to the pages.
                Err(MemoryError::Gone) => self.mapping_ended(mapping),
                Err(MemoryError::Again) => return CleanResult::Later,
                Err(_) => return CleanResult::NotThis,
            }
        }
        CleanResult::Yes
    }

    /// Begins to send the changes of a dirty page that is [protected](Self::protect). If `leaving` is given, it is the
    /// page's heat (how often the page returned early after an eviction), and the page is evicted afterwards.
    pub(super) fn send(
        &mut self,
        view: ViewId,
        page: u32,
        leaving: Option<Heat>,
        io: &mut Io<'_>,
    ) -> CleanResult {
        let entry = self.entry(view, page);
        let own = entry.slot().filter(|slot| !self.slots.is_shared(*slot));
        let Some(buffer) = self.buffers.take(BufferUse::Scratch) else { return CleanResult::Later };
        if let Err(error) = io.memory.snapshot(view, page, self.buffers.page_mut(buffer)) {
            self.buffers.give(buffer);
            if error == MemoryError::Absent {
                self.discarded(view, page..page + 1);
            }
            return CleanResult::NotThis;
        }
        let now = self.buffers.page(buffer);
        let unwritten = |twin| entry.slot().is_some() && lines::changed(now, self.buffers.page(twin)) == 0;
        let (slot, lines) = match (own, entry.buffer()) {
            (Some(slot), Some(twin)) => (Some(slot), lines::changed(now, self.buffers.page(twin))),
            (Some(slot), None) => (Some(slot), u64::MAX),
            // The page was made writable, but was not written after that: it keeps sharing its slot.
            (None, Some(twin)) if unwritten(twin) => (entry.slot(), 0),
            // A page of zeros needs no slot.
            (None, _) if lines::written(now) == 0 && !self.slots.is_own() => (None, 0),
            (None, _) => match self.slots.take(page) {
                Some(taken) if taken.zeroed => (Some(taken.slot), lines::written(now)),
                Some(taken) => (Some(taken.slot), u64::MAX),
                None => {
                    self.buffers.give(buffer);
                    self.counters.no_slot += 1;
                    // Without a slot the page stays resident, and may be written.
                    return CleanResult::NotThis;
                }
            },
        };
        if let Some(slot) = slot {
            self.slots.set_holder(slot, view);
        }
        let old = entry.slot().filter(|old| slot != Some(*old));
        let cleaning = entry.to(PageState::Cleaning).with_written(lines != 0);
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
        self.buffers.set_purpose(buffer, BufferUse::Write { view: Some(view), page, slot, old, heat });
        if lines == 0 {
            self.written(buffer, Ok(()), io);
        } else {
            self.counters.written_back += 1;
            self.counters.lines_written_back += u64::from(lines.count_ones());
            io.store.write(slot, lines, buffer);
        }
        CleanResult::Yes
    }

    /// Handles the end of a page's write to its slot.
    pub fn written(&mut self, buffer: BufferId, outcome: Result<(), Lost>, io: &mut Io<'_>) {
        if self.is_walking() {
            self.walks.held.push_back(HeldInput::Written(buffer, outcome));
            return;
        }
        let BufferUse::Write { view, page, slot, old, heat } = self.buffers.purpose(buffer) else { return };
        self.held_back = false;
        let slot = Some(slot).filter(|slot| *slot != NO_SLOT);
        let Some(id) = view else {
            // The page's view has ended; its slots are released now that no write to them is in flight.
            slot.into_iter().chain(old).for_each(|slot| self.slots.give(slot));
            self.buffers.give(buffer);
            return;
        };
        let entry = self.entry(id, page);
        if entry.state() == PageState::Zeroing {
            return self.zeros_written(id, page, buffer, outcome, io);
        }
        if let Some(view) = self.view_mut(id) {
            view.cleaning -= 1;
        }
        let leaving = entry.is(Flags::LEAVING);
        self.leaving -= u32::from(leaving);
        // The twin, the content before this write-back, is not needed any more.
        entry.buffer().into_iter().for_each(|twin| self.buffers.give(twin));
        let place = entry.with_buffer(None);
        if outcome.is_err() {
            // The memory node may have received any part of the page, so the page stays resident and counts as entirely
            // dirty.
            if old.is_some() || entry.slot().is_none() {
                slot.into_iter().for_each(|slot| self.slots.give(slot));
            }
            self.buffers.give(buffer);
            self.counters.write_back_failures += 1;
            self.set(id, page, place.to(PageState::Dirty));
            self.requeue(id, page, leaving.then_some(heat));
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
            self.record_evicted(id);
            self.release(id, page, place);
            self.wake(id, page, io);
        } else if entry.is(Flags::WANTED) {
            self.counters.cancelled += u64::from(leaving);
            self.buffers.set_purpose(buffer, BufferUse::Twin { view: id, page });
            self.set(id, page, place.to(PageState::Dirty).with_buffer(Some(buffer)));
            self.requeue(id, page, leaving.then_some(heat));
            self.let_all_write(id, page, io);
        } else if leaving && slot.is_some() {
            self.buffers.set_purpose(buffer, BufferUse::Kept { page, heat });
            self.evict_clean(id, page, place, Some(buffer));
        } else {
            self.buffers.give(buffer);
            if leaving {
                self.evict_clean(id, page, place, None);
            } else {
                self.set(id, page, place.to(PageState::Clean));
            }
        }
    }

    /// Unprotects a dirty page for all threads that wait to write to it.
    fn let_all_write(&mut self, view: ViewId, page: u32, io: &mut Io<'_>) {
        for mapping in self.mappings_of(view) {
            match io.memory.unprotect(mapping, page) {
                Ok(()) => {}
                Err(MemoryError::Gone) => self.mapping_ended(mapping),
                Err(_) => {
                    let access = Access::Protected;
                    self.keep_fault(Fault { mapping, page, access, write: true }, Wait::Turn);
                }
            }
        }
    }

    /// Begins to write back all dirty pages of a view without evicting them; returns `true` once none is dirty. Call
    /// again after each turn.
    pub fn clean_all(&mut self, view: ViewId, io: &mut Io<'_>) -> bool {
        let mut from = Some(0);
        while let Some(page) = from {
            from = self.clean_from(view, page, true, io);
            if from.is_some_and(|next| next < page.saturating_add(CLEAN_LOOKS)) {
                return false;
            }
        }
        self.buffers.writing() == 0
    }

    /// Begins to write back a few dirty pages of a view, from page `from` on, without evicting them. Returns the page
    /// at which to continue in the next turn; `None` at the end. The store reports the end of each write
    /// ([`written`](Self::written)). If `zeros` is false, pages that a program has discarded keep their old content on
    /// the memory node.
    pub fn clean_from(&mut self, view: ViewId, from: u32, zeros: bool, io: &mut Io<'_>) -> Option<u32> {
        let pages = self.view(view).map(|view| view.table.len())?;
        if self.is_walking() {
            return Some(from);
        }
        let own = self.slots.is_own();
        // Discarded pages read as zeros here; the memory node still holds their old content.
        let zeros_due = zeros && own && !self.slots.is_fresh();
        let end = pages.min(from.saturating_add(CLEAN_LOOKS));
        let (mut page, mut begun) = (from, 0);
        let mut recent = RecentRecords::default();
        while page < end {
            if begun >= RUN {
                return Some(page);
            }
            let entry = self.entry(view, page);
            let mut next = page + 1;
            let waits = match (entry.state(), entry.slot()) {
                (PageState::Dirty, _) => {
                    let is_dirty = |page: &u32| self.entry(view, *page).state() == PageState::Dirty;
                    next += (next..end.min(page + RUN)).take_while(is_dirty).count() as u32;
                    begun += next - page;
                    self.clean_run(view, page..next, io)
                }
                (PageState::Clean, slot)
                    if (slot.is_none() && zeros_due)
                        || self.may_have_changed(view, page, &mut recent, io) =>
                {
                    begun += 1;
                    self.set(view, page, entry.to(PageState::Dirty));
                    self.clean_run(view, page..next, io)
                }
                (PageState::Absent, None) if zeros_due => {
                    begun += 1;
                    (self.write_zeros(view, page, entry, io) == CleanResult::Later).then_some(page)
                }
                // The page was discarded while it was being sent: zeros are sent once that transfer has
                // ended.
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

    /// Begins to send dirty neighbours; returns the first one that has to wait for another turn, if any.
    fn clean_run(&mut self, view: ViewId, pages: Range<u32>, io: &mut Io<'_>) -> Option<u32> {
        if !self.may_clean(view, 0, io) {
            return Some(pages.start);
        }
        match self.protect(view, pages.clone(), io) {
            CleanResult::Yes => {}
            CleanResult::Later => return Some(pages.start),
            CleanResult::NotThis => return None,
        }
        // Pages sent just before may have used up the buffers or transfers.
        let mut pages = pages;
        pages.find(|page| {
            !self.may_clean(view, 0, io) || self.send(view, *page, None, io) == CleanResult::Later
        })
    }

    /// Sends zeros for a discarded page that is not resident.
    fn write_zeros(&mut self, view: ViewId, page: u32, entry: Entry, io: &mut Io<'_>) -> CleanResult {
        if io.store.room() <= read_ahead::ROOM_FOR_DEMAND {
            return CleanResult::Later;
        }
        let purpose =
            BufferUse::Write { view: Some(view), page, slot: page, old: None, heat: Heat::default() };
        let Some(buffer) = self.buffers.take(purpose) else { return CleanResult::Later };
        self.buffers.page_mut(buffer).fill(0);
        self.set(view, page, entry.to(PageState::Zeroing).with_buffer(Some(buffer)));
        io.store.write(page, u64::MAX, buffer);
        CleanResult::Yes
    }

    /// Handles the end of sending zeros for a page that is not resident.
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
        // If the zeros were not written, the slot still has old content, so the page is left without a slot and reads
        // as zeros.
        let slot = outcome.ok().map(|()| page);
        self.set(view, page, entry.to(PageState::Absent).with_slot(slot).with_buffer(None));
        if entry.is(Flags::WANTED) {
            self.wake(view, page, io);
        }
    }
}

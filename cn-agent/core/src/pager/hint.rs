//! Advice of a program about pages that it will use, or no longer uses. Advice changes when pages are fetched
//! and evicted, never their content, and is ignored where it cannot be followed.

use super::*;

/// Maximum number of pending hints; beyond it the oldest are dropped.
pub(super) const HINTS_MAX: usize = 64;
/// Maximum number of pages examined for hints in one turn.
const LOOKS: u32 = 128;

/// Advice about pages, as `madvise(2)` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hint {
    /// The pages will be read soon: they are fetched ahead, as far as there is room.
    WillRead,
    /// The pages will be written soon: they are fetched ahead, and pages never written are installed as zeros.
    WillWrite,
    /// The pages are not needed soon: they are evicted before others.
    Cold,
    /// The pages are not needed for long: they are evicted now.
    PageOut,
}

#[derive(Clone, Debug)]
pub(super) struct Hinted {
    pub view: ViewId,
    pages: Range<u32>,
    hint: Hint,
}

impl Pager {
    /// Records advice about pages of a view, to be applied in the next turns.
    pub fn hint(&mut self, view: ViewId, pages: Range<u32>, hint: Hint) {
        let Some(end) = self.view(view).map(|view| view.table.len()) else { return };
        let pages = pages.start..pages.end.min(end);
        let leaves = matches!(hint, Hint::Cold | Hint::PageOut);
        if pages.is_empty() || (leaves && !self.options.evict) {
            return;
        }
        if self.hints.len() == HINTS_MAX {
            self.hints.pop_front();
        }
        self.hints.push_back(Hinted { view, pages, hint });
    }

    /// Continues with the oldest hint; returns the amount of work.
    pub(super) fn follow_hints(&mut self, io: &mut Io<'_>) -> usize {
        let Some(Hinted { view, mut pages, hint }) = self.hints.pop_front() else {
            return self.fetch_wanted_soon(io);
        };
        let end = pages.end.min(pages.start.saturating_add(LOOKS));
        let (mut work, mut go_on) = (0, true);
        while pages.start < end && go_on {
            let page = pages.start;
            let entry = self.entry(view, page);
            match (hint, entry.state()) {
                (Hint::WillRead | Hint::WillWrite, PageState::Absent) => {
                    match self.bring(view, page, entry, hint == Hint::WillWrite, io) {
                        Brought::Begun => work += 1,
                        Brought::NotNow => break,
                        Brought::NoRoom => go_on = false,
                        Brought::Nothing => {}
                    }
                }
                // The page was evicted a moment ago, and its content is in a buffer.
                (Hint::WillRead | Hint::WillWrite, PageState::Staged) => {
                    if self.arrived.len() == self.arrived.capacity() {
                        break;
                    }
                    go_on = self.has_room_for_hint();
                    if go_on {
                        self.arrived.push(PageRef { view, page });
                        work += 1;
                    }
                }
                (Hint::Cold | Hint::PageOut, PageState::Clean | PageState::Dirty) => {
                    self.order.advise_cold(PageRef { view, page }, hint == Hint::PageOut);
                    work += 1;
                }
                _ => {}
            }
            pages.start += 1;
        }
        if go_on && !pages.is_empty() {
            self.hints.push_front(Hinted { view, pages, hint });
        }
        work
    }

    /// Begins to fetch pages that [will be read](Self::will_read); returns the amount of work.
    fn fetch_wanted_soon(&mut self, io: &mut Io<'_>) -> usize {
        let mut work = 0;
        for _ in 0..LOOKS.min(self.wanted_soon.len() as u32) {
            let Some(PageRef { view, page }) = self.wanted_soon.front().copied() else { break };
            let entry = self.entry(view, page);
            if entry.state() == PageState::Absent {
                match self.bring(view, page, entry, false, io) {
                    Brought::Begun => work += 1,
                    Brought::NotNow => break,
                    Brought::NoRoom => {
                        self.wanted_soon.clear();
                        break;
                    }
                    Brought::Nothing => {}
                }
            }
            self.wanted_soon.pop_front();
        }
        work
    }

    /// Whether one more page may be resident because of a hint: no other page is evicted for it.
    fn has_room_for_hint(&self) -> bool {
        let wanted = self.options.limit - self.reserve_pages();
        !self.options.evict || self.bounded() + self.coming < wanted
    }

    /// Begins to fetch a page that the program will use, or installs zeros if it was never written.
    fn bring(&mut self, view: ViewId, page: u32, entry: Entry, write: bool, io: &mut Io<'_>) -> Brought {
        if !self.has_room_for_hint() {
            return Brought::NoRoom;
        }
        let Some(slot) = entry.slot() else {
            let Some(mapping) = self.mappings_of(view).next().filter(|_| write) else {
                return Brought::Nothing;
            };
            // No zeros are installed where the process already has a page, or a guard page: they would replace it.
            let group = page / u64::BITS * u64::BITS;
            if io.memory.occupied(view, group) >> (page - group) & 1 == 1 {
                return Brought::Nothing;
            }
            let put = self.install_zeros(view, mapping, page, true, true, io);
            return if put.is_ok() { Brought::Begun } else { Brought::NoRoom };
        };
        if io.store.room() <= read_ahead::ROOM_FOR_DEMAND
            || self.buffers.room() <= read_ahead::ROOM_FOR_DEMAND
        {
            return Brought::NotNow;
        }
        let purpose = BufferUse::Fetch { view: Some(view), page, mapping: None, write: false };
        let Some(buffer) = self.buffers.take(purpose) else { return Brought::NotNow };
        self.coming += 1;
        self.trim_kept();
        self.counters.prefetched += 1;
        self.set(view, page, entry.to(PageState::Fetching).with_buffer(Some(buffer)));
        io.store.fetch(slot, buffer, Urgency::Ahead);
        Brought::Begun
    }
}

enum Brought {
    Begun,
    /// Too many pages are in flight: the hint continues in a later turn.
    NotNow,
    /// The limit of resident pages is reached: the hint ends.
    NoRoom,
    /// The page needs no fetch.
    Nothing,
}

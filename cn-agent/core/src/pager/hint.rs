//! What a program says of pages before it uses them, or when it is done with them. Advice: it changes when pages come and go,
//! never what they hold, and is forgotten where it does not fit.

use super::*;

/// Hints that can be waiting; of more the oldest are forgotten.
pub(super) const HINTS_MAX: usize = 64;
/// Pages looked at in one turn for hints.
const LOOKS: u32 = 128;

/// What a program says of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hint {
    /// It will read them soon: they are fetched ahead, as far as there is room.
    WillRead,
    /// It will write them soon: the same, and pages never written are there as zeros.
    WillWrite,
    /// It does not need them soon: they leave before others.
    Cold,
    /// It does not need them for long: they leave now.
    PageOut,
}

/// A hint that is being followed.
#[derive(Clone, Debug)]
pub(super) struct Hinted {
    pub view: ViewId,
    pages: Range<u32>,
    hint: Hint,
}

impl Pager {
    /// A program says something of pages of a view. It is followed in the next turns.
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

    /// Goes on with the oldest hint; how much was done.
    pub(super) fn follow_hints(&mut self, io: &mut Io<'_>) -> usize {
        let Some(Hinted { view, mut pages, hint }) = self.hints.pop_front() else { return 0 };
        let end = pages.end.min(pages.start.saturating_add(LOOKS));
        let (mut work, mut go_on) = (0, true);
        while pages.start < end && go_on {
            let page = pages.start;
            let entry = self.entry(view, page);
            match (hint, entry.state()) {
                (Hint::WillRead | Hint::WillWrite, State::Absent) => {
                    match self.bring(view, page, entry, hint == Hint::WillWrite, io) {
                        Brought::Begun => work += 1,
                        Brought::NotNow => break,
                        Brought::NoRoom => go_on = false,
                        Brought::Nothing => {}
                    }
                }
                // It left a moment ago, and is kept.
                (Hint::WillRead | Hint::WillWrite, State::Staged) => {
                    if self.arrived.len() == self.arrived.capacity() {
                        break;
                    }
                    go_on = self.has_room_for_hint();
                    if go_on {
                        self.arrived.push(PageRef { view, page });
                        work += 1;
                    }
                }
                (Hint::Cold | Hint::PageOut, State::Clean | State::Dirty) => {
                    self.order.cold(PageRef { view, page }, hint == Hint::PageOut);
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

    /// Whether one more page may be resident for a hint's sake: no other one is to leave for it.
    fn has_room_for_hint(&self) -> bool {
        let wanted = self.options.limit - self.reserve_pages();
        !self.options.evict || self.bounded() + self.coming < wanted
    }

    /// Begins to fetch a page that will be used, or puts zeros in place of one that was never written.
    fn bring(&mut self, view: ViewId, page: u32, entry: Entry, write: bool, io: &mut Io<'_>) -> Brought {
        if !self.has_room_for_hint() {
            return Brought::NoRoom;
        }
        let Some(slot) = entry.slot() else {
            let Some(mapping) = self.mappings_of(view).next().filter(|_| write) else {
                return Brought::Nothing;
            };
            let group = page / u64::BITS * u64::BITS;
            if io.memory.occupied(view, group) >> (page - group) & 1 == 1 {
                return Brought::Nothing;
            }
            let put = self.install_zeros(view, mapping, page, true, io);
            return if put.is_ok() { Brought::Begun } else { Brought::NoRoom };
        };
        if io.store.room() <= ahead::ROOM_FOR_DEMAND || self.buffers.room() <= ahead::ROOM_FOR_DEMAND {
            return Brought::NotNow;
        }
        let purpose = Use::Fetch { view: Some(view), page, mapping: None, write: false };
        let Some(buffer) = self.buffers.take(purpose) else { return Brought::NotNow };
        self.coming += 1;
        self.trim_kept();
        self.counters.prefetched += 1;
        self.set(view, page, entry.to(State::Fetching).with_buffer(Some(buffer)));
        io.store.fetch(slot, buffer, Urgency::Ahead);
        Brought::Begun
    }
}

/// What came of an attempt to bring a page.
enum Brought {
    Begun,
    /// Too much is on its way.
    NotNow,
    /// No more may be resident.
    NoRoom,
    /// There is nothing to be brought.
    Nothing,
}

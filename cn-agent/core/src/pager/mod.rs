//! The pager: which pages of a region are in memory, and the order of operations in which they come and go.
//!
//! ```text
//!                 fault                fetched, write                     first write: twin taken
//!     Absent ------------> Fetching --------------------> Dirty <------------------------------- Clean
//!       ^                     |  ahead                      |                                      ^ |
//!       |                     v      fault, read            | protect, copy                        | |
//!       |                   Staged --------------> Clean    v             acknowledged             | |
//!       |                                                Cleaning ---------------------------------+ |
//!       |            taken away                             | to leave                               |
//!       +--------------------------- Dropping <-------------+----------------------------------------+
//! ```
//!
//! It decides without I/O: faults, completions and events come in by method calls; what is to be done goes out through
//! [`Memory`] (the kernel) and [`Store`] (memory nodes). What keeps writes:
//!
//! * What is sent is a copy of a page that is write-protected in every mapping, so it is the page until somebody is let
//!   write again. That happens only when the page is [`State::Dirty`], and a page leaves only when it is not.
//! * The twin of a dirty page is what the memory node has acknowledged. A page without one is sent whole.
//! * A writer that comes while its page is being sent waits for the acknowledgement, and the page stays.
//! * What was discarded is zeros, whatever CMem has, until CMem has acknowledged zeros ([`State::Zeroing`]); nobody reads or
//!   writes the page there meanwhile.
//! * Entries are written before what they promise is done ([`entry`]), so that a successor loses nothing either.
//!
//! A *view* is one table of pages: that of a region which processes share, or of one process whose memory is its own
//! and which a fork duplicates (`fork`). Resident pages of all views of a region are bounded by one limit; leaving is
//! begun ahead of need (`evict`), so that a fault finds room.

mod ahead;
mod clean;
mod copies;
mod counters;
pub mod entry;
mod evict;
mod fault;
mod fork;
mod hint;
mod install;
mod kept;
mod lines;
pub mod memory;
pub mod page_buffers;
mod prefetch;
mod replacement;
mod share;
pub mod slots;
pub mod store;
mod table;
mod takeover;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

pub use counters::PagerCounters;
pub use entry::{Entry, Flags, NO_SLOT, State};
pub use fault::{Access, Fault};
pub use hint::Hint;
pub use memory::{Drop, MappingId, Memory, MemoryError, PAGE_BYTES, Page, ViewId};
pub use page_buffers::{BufferId, PageBuffers, Use};
pub use slots::Slots;
pub use store::{Lost, Store, Urgency};
pub use table::{Entries, PageTable};

use hint::Hinted;
use prefetch::{Prefetch, Proved};
pub use replacement::Heat;
use replacement::{Candidate, Forget, Known, PageRef, Replacement};
use share::Share;

/// Views of a region at a time.
pub const VIEWS_MAX: usize = 256;
/// Mappings of a region at a time.
pub const MAPPINGS_MAX: usize = 1024;
/// Page buffers beyond those for twins: what may be on its way at once, and what is held.
const BUFFERS_IN_FLIGHT: u32 = 256;
/// The least number of resident pages a region can do with.
pub const LIMIT_MIN: u32 = 16;

/// How a region is paged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagerOptions {
    /// Pages of each view.
    pub pages: u32,
    /// Pages resident at most, over all views; at least [`LIMIT_MIN`].
    pub limit: u32,
    /// Whether readers that go through memory in even steps are served ahead.
    pub prefetch: bool,
    /// Whether pages leave memory at all. Not where the pages cannot be taken away.
    pub evict: bool,
}

/// There are as many views or mappings as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{limit} processes use the region's memory already, as many as can at a time")]
pub struct Full {
    /// How many there may be.
    pub limit: usize,
}

/// Memory and Store, together what a pager acts through.
pub struct Io<'a> {
    /// The kernel.
    pub memory: &'a mut dyn Memory,
    /// Memory nodes.
    pub store: &'a mut dyn Store,
}

#[derive(Debug)]
struct View {
    table: PageTable,
    mappings: Vec<MappingId>,
    /// Whether its pages can be taken away at present. Those of a view where they cannot are not bounded by the limit:
    /// nobody could make room for them.
    droppable: bool,
    /// Its pages that take up memory.
    resident: u32,
    prefetch: Prefetch,
    /// Pages being sent.
    cleaning: u32,
    /// How many pages are written while they are here.
    written: Share,
}

/// The pager of one region.
#[derive(Debug)]
pub struct Pager {
    options: PagerOptions,
    views: Vec<Option<View>>,
    mappings: Vec<Option<ViewId>>,
    slots: Slots,
    buffers: PageBuffers,
    order: Replacement,
    /// Pages that take up memory, of all views.
    resident: u32,
    /// Of these, pages of views that cannot be taken away.
    fixed: u32,
    /// Pages on their way in that will.
    coming: u32,
    /// Pages on their way out.
    leaving: u32,
    /// Faults that wait for room, or for events to be read.
    waiting: VecDeque<Fault>,
    /// Pages that can be taken away, until the end of the turn.
    to_drop: Vec<PageRef>,
    ranges: Vec<Range<u32>>,
    staged: VecDeque<PageRef>,
    /// Whether somebody waits for a page that is about to be taken away.
    wanted_back: bool,
    /// How many pages leave at least at a time: where each order to take some away is dear, more than one.
    worth: u32,
    /// Whether pages that can be taken away wait for more, which something under way will bring.
    held_back: bool,
    /// Whether they have waited long enough.
    overdue: bool,
    /// Pages that somebody waits for, and for which memory can be made ready meanwhile.
    awaited: Vec<PageRef>,
    /// The view that a page was copied from last.
    donor: ViewId,
    /// Pages that came ahead and are not in place yet.
    arrived: Vec<PageRef>,
    /// Dirty pages about to be sent, within a turn.
    victims: Vec<Candidate>,
    /// Pages that have left memory and are kept, those that left first at the front.
    kept: VecDeque<PageRef>,
    /// What programs have said of their pages.
    hints: VecDeque<Hinted>,
    /// Neighbours on their way into memory in one step.
    landing: Box<[Page]>,
    /// Mappings found to have ended.
    ended: Vec<MappingId>,
    /// Whether pages have been found that cannot leave for want of a slot, and none that can.
    full: bool,
    /// Pages looked at since one could go.
    fruitless: usize,
    /// Whether slots may be given out: not before all views of a predecessor are known.
    complete: bool,
    counters: PagerCounters,
}

impl Pager {
    /// A pager without views.
    pub fn new(options: PagerOptions, slots: Slots) -> Pager {
        let limit = options.limit.max(LIMIT_MIN);
        Pager {
            options: PagerOptions { limit, ..options },
            views: Vec::new(),
            mappings: Vec::new(),
            slots,
            buffers: PageBuffers::new(limit.saturating_add(BUFFERS_IN_FLIGHT)),
            order: Replacement::new(limit),
            resident: 0,
            fixed: 0,
            coming: 0,
            leaving: 0,
            waiting: VecDeque::with_capacity(MAPPINGS_MAX),
            to_drop: Vec::with_capacity(BUFFERS_IN_FLIGHT as usize),
            ranges: Vec::with_capacity(BUFFERS_IN_FLIGHT as usize),
            staged: VecDeque::with_capacity(BUFFERS_IN_FLIGHT as usize),
            wanted_back: false,
            worth: 1,
            held_back: false,
            overdue: false,
            awaited: Vec::with_capacity(fault::AWAITED_MAX),
            donor: ViewId(0),
            arrived: Vec::with_capacity(BUFFERS_IN_FLIGHT as usize),
            victims: Vec::with_capacity(evict::STEP_FOR_MANY),
            kept: VecDeque::new(),
            hints: VecDeque::with_capacity(hint::HINTS_MAX),
            landing: vec![[0; PAGE_BYTES]; ahead::RUN].into_boxed_slice(),
            ended: Vec::with_capacity(MAPPINGS_MAX),
            full: false,
            fruitless: 0,
            complete: true,
            counters: PagerCounters::default(),
        }
    }

    /// Takes all memory that it may ever need, so that nothing is allocated later.
    pub fn reserve(&mut self) {
        self.buffers.reserve();
        self.order.reserve();
        self.kept.reserve(self.kept_entries_max() + 1);
    }

    /// How it pages.
    #[inline]
    pub fn options(&self) -> &PagerOptions {
        &self.options
    }

    /// What it has counted.
    #[inline]
    pub fn counters(&self) -> PagerCounters {
        self.counters
    }

    /// Pages that take up memory, of all views.
    #[inline]
    pub fn resident(&self) -> u32 {
        self.resident
    }

    /// Slots of CMem in use.
    pub fn slots_used(&self) -> u32 {
        self.slots.used()
    }

    /// The region has `count` slots from now on: pages for which there was none can leave.
    pub fn grow(&mut self, count: u32) {
        self.slots.grow(count);
        self.look_again();
    }

    /// Changes how many pages may be resident; pages beyond leave in the next turns.
    pub fn set_limit(&mut self, limit: u32) {
        let limit = limit.max(LIMIT_MIN);
        self.options.limit = limit;
        // Pages beyond still have their twins, and need buffers to leave.
        self.buffers.set_limit(limit.max(self.resident).saturating_add(BUFFERS_IN_FLIGHT));
        self.order.set_limit(limit);
    }

    /// The buffers, for whoever carries out transfers.
    #[inline]
    pub fn buffers(&mut self) -> &mut PageBuffers {
        &mut self.buffers
    }

    /// Adds a view. Its table is taken as it is: empty, or a predecessor's after [`take_over`](Self::take_over).
    ///
    /// # Errors
    /// [`Full`].
    pub fn add_view(&mut self, table: PageTable, droppable: bool) -> Result<ViewId, Full> {
        let view = View {
            table,
            mappings: Vec::new(),
            droppable,
            resident: 0,
            prefetch: Prefetch::default(),
            cleaning: 0,
            written: Share::default(),
        };
        let place = match self.views.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.views.len() < VIEWS_MAX => {
                self.views.push(None);
                self.views.len() - 1
            }
            None => return Err(Full { limit: VIEWS_MAX }),
        };
        self.views[place] = Some(view);
        Ok(ViewId(place as u16))
    }

    /// Adds a mapping of a view.
    ///
    /// # Errors
    /// [`Full`].
    ///
    /// # Panics
    /// If there is no such view.
    pub fn add_mapping(&mut self, view: ViewId) -> Result<MappingId, Full> {
        let place = match self.mappings.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.mappings.len() < MAPPINGS_MAX => {
                self.mappings.push(None);
                self.mappings.len() - 1
            }
            None => return Err(Full { limit: MAPPINGS_MAX }),
        };
        let mapping = MappingId(place as u16);
        self.views[usize::from(view.0)].as_mut().expect("there is such a view").mappings.push(mapping);
        self.mappings[place] = Some(view);
        Ok(mapping)
    }

    /// The view of a mapping, if there is one.
    #[inline]
    pub fn view_of(&self, mapping: MappingId) -> Option<ViewId> {
        self.mappings.get(usize::from(mapping.0)).copied().flatten()
    }

    /// Whether a view's pages can be taken away.
    pub fn set_droppable(&mut self, view: ViewId, droppable: bool) {
        let Some(of) = self.view_mut(view) else { return };
        let (before, resident) = (core::mem::replace(&mut of.droppable, droppable), of.resident);
        match (before, droppable) {
            (true, false) => {
                self.fixed += resident;
                self.give_twins(view);
            }
            (false, true) => self.fixed -= resident,
            _ => {}
        }
    }

    /// Page buffers are for what the limit bounds: pages beyond are sent whole when their turn comes.
    fn give_twins(&mut self, view: ViewId) {
        for page in 0..self.view(view).map_or(0, |view| view.table.len()) {
            let entry = self.entry(view, page);
            if let (State::Dirty, Some(twin)) = (entry.state(), entry.buffer()) {
                self.buffers.give(twin);
                self.set(view, page, entry.with_buffer(None));
            }
        }
    }

    /// Whether a view's pages can be taken away.
    fn is_droppable(&self, view: ViewId) -> bool {
        self.view(view).is_some_and(|view| view.droppable)
    }

    /// Resident pages that the limit bounds.
    fn bounded(&self) -> u32 {
        self.resident - self.fixed
    }

    /// The same, and pages that will be: on their way, or here and about to be put in place. Room that is not kept for these
    /// goes to faults of others, and each of them becomes a fault.
    fn claimed(&self) -> u32 {
        self.bounded() + self.coming + self.arrived.len() as u32
    }

    /// One page of a view takes up memory no more.
    fn left(&mut self, view: ViewId) {
        self.resident -= 1;
        let mut fixed = false;
        if let Some(view) = self.view_mut(view) {
            view.resident -= 1;
            fixed = !view.droppable;
        }
        self.fixed -= u32::from(fixed);
    }

    /// Removes a mapping; its view stays.
    pub fn end_mapping(&mut self, mapping: MappingId) {
        let Some(view) = self.mappings.get_mut(usize::from(mapping.0)).and_then(Option::take) else { return };
        if let Some(view) = self.view_mut(view) {
            view.mappings.retain(|other| *other != mapping);
        }
        self.waiting.retain(|fault| fault.mapping != mapping);
        // Its number may soon be another's.
        self.ended.retain(|other| *other != mapping);
        for purpose in self.buffers.uses_mut() {
            match purpose {
                Use::Fetch { mapping: of, .. } if *of == Some(mapping) => *of = None,
                _ => {}
            }
        }
    }

    /// Mappings that were found to have ended, their processes most likely with them.
    #[inline]
    pub fn take_ended(&mut self) -> Option<MappingId> {
        self.ended.pop()
    }

    /// Removes a view and its mappings: its pages are nobody's any more, and the slots that only they referred to free.
    /// Pages of shared memory have to have been written back before ([`clean_all`](Self::clean_all)).
    pub fn end_view(&mut self, id: ViewId) {
        while let Some(mapping) = self.view(id).and_then(|view| view.mappings.last().copied()) {
            self.end_mapping(mapping);
        }
        let Some(view) = self.views.get_mut(usize::from(id.0)).and_then(Option::take) else { return };
        for purpose in self.buffers.uses_mut() {
            match purpose {
                Use::Fetch { view: of, .. } | Use::Write { view: of, .. } if *of == Some(id) => *of = None,
                _ => {}
            }
        }
        self.resident -= view.resident;
        self.fixed -= if view.droppable { 0 } else { view.resident };
        for page in 0..view.table.len() {
            let entry = view.table.get(page);
            let state = entry.state();
            match (state, entry.buffer()) {
                // The transfer ends as nobody's.
                (State::Fetching, Some(_)) => self.coming -= 1,
                (State::Staged | State::Dirty | State::Cleaning | State::Dropping, Some(buffer)) => {
                    self.buffers.give(buffer);
                }
                _ => {}
            }
            self.leaving -=
                u32::from(state == State::Dropping || (state == State::Cleaning && entry.is(Flags::LEAVING)));
            // What is being sent to a slot goes on until it has arrived; its buffer knows the slot.
            match entry.slot() {
                Some(slot) if state != State::Cleaning => self.slots.give(slot),
                _ => {}
            }
            view.table.set(page, Entry::absent(NO_SLOT));
        }
        let wasted = { view }.prefetch.clear();
        self.counters.prefetch_wasted += u64::from(wasted);
        self.to_drop.retain(|page| page.view != id);
        self.staged.retain(|page| page.view != id);
        self.awaited.retain(|page| page.view != id);
        self.arrived.retain(|page| page.view != id);
        self.kept.retain(|page| page.view != id);
        self.hints.retain(|hinted| hinted.view != id);
    }

    /// The program discards pages, and has said so before it does: they are zeros from here on. Not for pages that leave by
    /// our own doing ([`dropped`](Self::dropped)).
    pub fn discarded(&mut self, view: ViewId, pages: Range<u32>) {
        let Some(pages) = self.view(view).map(|v| pages.start..pages.end.min(v.table.len())) else { return };
        for page in pages {
            let entry = self.entry(view, page);
            match entry.state() {
                State::Absent => self.release(view, page, entry),
                State::Staged => {
                    entry.buffer().into_iter().for_each(|buffer| self.buffers.give(buffer));
                    self.release(view, page, entry.with_buffer(None));
                }
                State::Clean | State::Dirty => {
                    self.left(view);
                    entry.buffer().into_iter().for_each(|buffer| self.buffers.give(buffer));
                    self.release(view, page, entry.with_buffer(None));
                }
                State::Fetching | State::Cleaning | State::Dropping => {
                    self.set(view, page, entry.with(Flags::ZAPPED));
                }
                State::Installing | State::Lost => self.release(view, page, entry),
                // It is zeros already.
                State::Zeroing => {}
            }
            self.counters.discarded += 1;
        }
    }

    /// An absent page that has no content any more.
    fn release(&mut self, view: ViewId, page: u32, entry: Entry) {
        entry.slot().into_iter().for_each(|slot| self.slots.give(slot));
        self.set(view, page, Entry::absent(NO_SLOT));
    }

    fn view(&self, view: ViewId) -> Option<&View> {
        self.views.get(usize::from(view.0)).and_then(Option::as_ref)
    }

    fn view_mut(&mut self, view: ViewId) -> Option<&mut View> {
        self.views.get_mut(usize::from(view.0)).and_then(Option::as_mut)
    }

    /// What is known of a page of a view that there is.
    #[inline]
    fn entry(&self, view: ViewId, page: u32) -> Entry {
        self.views[usize::from(view.0)].as_ref().map_or(Entry::absent(NO_SLOT), |view| view.table.get(page))
    }

    /// The entry of a page, for tests and displays.
    #[inline]
    pub fn look(&self, view: ViewId, page: u32) -> Option<Entry> {
        self.view(view).filter(|view| page < view.table.len()).map(|view| view.table.get(page))
    }

    #[inline]
    fn set(&self, view: ViewId, page: u32, entry: Entry) {
        if let Some(view) = &self.views[usize::from(view.0)] {
            view.table.set(page, entry);
        }
    }

    /// Each mapping of a view.
    fn mappings_of(&self, view: ViewId) -> impl Iterator<Item = MappingId> + use<> {
        // Few, and mostly one; a copy because what is done for each may change the list.
        let mut all = [MappingId(0); 4];
        let list = self.view(view).map_or(&[][..], |view| &view.mappings);
        let (some, rest) = list.split_at(list.len().min(all.len()));
        all[..some.len()].copy_from_slice(some);
        let count = some.len();
        let rest = (!rest.is_empty()).then(|| rest.to_vec());
        all.into_iter().take(count).chain(rest.into_iter().flatten())
    }

    /// Whether a fault at this page that was [told](Self::fault) is still to be served: a later [`Memory::wake`], or the
    /// page's coming, will say that it was. For those whom the kernel does not wake.
    #[inline]
    pub fn owes(&self, mapping: MappingId, page: u32) -> bool {
        let Some(entry) = self.view_of(mapping).and_then(|view| self.look(view, page)) else { return false };
        let under_way =
            matches!(entry.state(), State::Fetching | State::Cleaning | State::Dropping | State::Zeroing);
        (under_way && entry.is(Flags::WANTED))
            || self.waiting.iter().any(|fault| (fault.mapping, fault.page) == (mapping, page))
    }

    /// Has whoever waits for a page try again.
    fn wake(&self, view: ViewId, page: u32, io: &mut Io<'_>) {
        self.mappings_of(view).for_each(|mapping| io.memory.wake(mapping, page));
    }

    /// A page has come into memory.
    fn entered(&mut self, view: ViewId, page: u32, known: Known) {
        self.resident += 1;
        let mut fixed = false;
        if let Some(view) = self.view_mut(view) {
            view.resident += 1;
            fixed = !view.droppable;
        }
        self.fixed += u32::from(fixed);
        self.counters.refaulted += u64::from(matches!(known, Known::Remembered { .. }));
        if !self.options.evict {
            return;
        }
        self.order.entered(PageRef { view, page }, known);
        self.trim_kept();
        if self.order.is_crowded() {
            let views = &self.views;
            self.order.clean(|page| {
                views[usize::from(page.view.0)]
                    .as_ref()
                    .is_some_and(|v| v.table.get(page.page).state().is_resident())
            });
        }
    }

    fn proved(&mut self, Proved { hits, wasted }: Proved) {
        self.counters.prefetch_hits += u64::from(hits);
        self.counters.prefetch_wasted += u64::from(wasted);
    }

    /// A mapping was found to have ended.
    #[cold]
    fn gone(&mut self, mapping: MappingId) {
        if !self.ended.contains(&mapping) {
            self.ended.push(mapping);
        }
    }
}

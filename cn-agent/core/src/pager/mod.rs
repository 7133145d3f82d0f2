//! The pager: resident pages of a region, and the order of operations in which they are fetched and evicted.
//!
//! ```text
//!                 fault                fetched, write                     first write: twin taken
//!     Absent ------------> Fetching --------------------> Dirty <------------------------------- Clean
//!       ^                     |  ahead                      |                                      ^ |
//!       |                     v      fault, read            | protect, copy                        | |
//!       |                   Staged --------------> Clean    v             acknowledged             | |
//!       |                                                Cleaning ---------------------------------+ |
//!       |            removed                                | to be evicted                          |
//!       +--------------------------- Dropping <-------------+----------------------------------------+
//! ```
//!
//! The pager decides without I/O: faults, completions and events come in by method calls; actions go out through
//! [`Memory`] (the kernel) and [`Store`] (memory nodes), which `io` has:
//!
//! ```text
//!   loop {
//!       for fault in faults { pager.fault(fault, io); }                     // and discarded, dropped, forked
//!       for transfer in ended { pager.fetched(buffer, outcome, io); }       // or written
//!       if pager.has_work() { pager.turn(io); }                             // a step of a walk, or other work
//!       while let Some(mapping) = pager.take_ended() { ... }
//!       wait for faults and transfers, but briefly while pager.has_work()
//!   }
//! ```
//!
//! It is the one machine without a deadline, and so not a [`StateMachine`](cxloe_wire::machine::StateMachine): no time
//! plays a part in its decisions, and a turn is cut short for the sake of faults, so that work is left after it. The
//! times of its pages are in [`transfers`](crate::transfers), which retry.
//!
//! Invariants that preserve writes:
//!
//! * Data is sent from a copy of a page that is write-protected in every mapping, so the copy equals the page until a
//!   thread may write again. Threads may write only while the page is [`PageState::Dirty`], and a dirty page is never
//!   evicted.
//! * The twin of a dirty page is the content that the memory node has acknowledged. A page without a twin is sent
//!   whole.
//! * A thread that writes to a page being sent waits for the acknowledgement, and the page stays resident.
//! * A clean page is removed only while the kernel shows it write-protected (`unchanged`).
//! * A discarded page is zeros, whatever CMem holds, until CMem has acknowledged zeros ([`PageState::Zeroing`]);
//!   until then the page in CMem is neither read nor written otherwise.
//! * Entries are written before the action that they announce ([`entry`]), so that an agent's successor loses
//!   nothing.
//!
//! A *view* is one table of pages: of a region that processes share, or of one process's private memory, which a fork
//! duplicates (`fork`). One limit bounds the resident pages of all views of a region; pages are evicted before it is
//! reached (`evict`), so that a fault finds room.
//!
//! The work of a turn does not grow with the number of pages: what concerns a whole table is a walk (`walk`), and queues
//! are cleaned and grow a chunk at a time (`queue`).

mod clean;
mod copies;
mod counters;
mod end;
pub mod entry;
mod evict;
mod evicted_pages;
mod fault;
mod fork;
mod hint;
mod install;
mod last_entries;
mod lines;
pub mod memory;
pub mod page_buffers;
mod prefetch;
mod queue;
mod read_ahead;
mod replacement;
mod share;
pub mod slots;
pub mod store;
mod table;
mod takeover;
#[cfg(test)]
mod tests;
mod unchanged;
mod walk;
mod withdraw;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

pub use counters::PagerCounters;
pub use entry::{Entry, Flags, NO_SLOT, PageState};
pub use fault::{Access, Fault};
pub use hint::Hint;
pub use memory::{Drop, MappingId, Memory, MemoryError, PAGE_BYTES, Page, PageRecords, ViewId};
pub use page_buffers::{BufferId, BufferUse, PageBuffers};
pub use slots::Slots;
pub use store::{Lost, Store, Urgency};
pub use table::{Entries, PageTable};

use copies::PageCopy;
use hint::Hinted;
use prefetch::{Prefetch, PrefetchOutcome};
use queue::ChunkedQueue;
pub use replacement::Heat;
use replacement::{Candidate, ForgottenPage, PageHistory, PageRef, Replacement};
use share::PageShare;
use unchanged::RecentRecords;
use walk::{HeldInput, Walk, Walks};

/// Maximum number of views of a region at a time.
pub const VIEWS_MAX: usize = 1024;
/// Maximum number of mappings of a region at a time.
pub const MAPPINGS_MAX: usize = 4096;
/// Number of page buffers for transfers and kept pages, in addition to the buffers for twins.
const BUFFERS_IN_FLIGHT: u32 = 256;
/// Lowest permitted limit of resident pages.
pub const LIMIT_MIN: u32 = 16;

/// Parameters of a pager, fixed except for the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagerOptions {
    /// Number of pages of each view.
    pub pages: u32,
    /// Limit of resident pages, over all views; at least [`LIMIT_MIN`].
    pub limit: u32,
    /// Whether pages are read ahead for readers in constant strides.
    pub prefetch: bool,
    /// Whether pages are evicted at all; `false` where pages cannot be removed.
    pub evict: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{limit} processes use the region's memory already, as many as can at a time")]
pub struct PagerFull {
    pub limit: usize,
}

/// The two interfaces through which the pager acts.
pub struct Io<'a> {
    pub memory: &'a mut dyn Memory,
    pub store: &'a mut dyn Store,
}

#[derive(Debug)]
struct View {
    table: PageTable,
    mappings: Vec<MappingId>,
    /// Whether pages of the view can be removed now. If not, the limit does not bound them, because there
    /// would be no way to make room.
    droppable: bool,
    /// Number of the view's pages that take up memory.
    resident: u32,
    prefetch: Prefetch,
    /// Number of the view's pages being sent.
    cleaning: u32,
    /// Share of the view's pages that are written while resident.
    written: PageShare,
}

/// The pager of one region: the states of its pages, and the decisions on them.
#[derive(Debug)]
pub struct Pager {
    options: PagerOptions,
    views: Vec<Option<View>>,
    mappings: Vec<Option<ViewId>>,
    slots: Slots,
    buffers: PageBuffers,
    order: Replacement,
    /// Number of pages of all views that take up memory.
    resident: u32,
    /// Number of resident pages of views whose pages cannot be removed.
    fixed: u32,
    /// Number of pages in flight that will take up memory when they arrive.
    coming: u32,
    leaving: u32,
    /// Faults to be retried in the next turn: events have to be read first, or a resource was short.
    waiting: VecDeque<Fault>,
    /// Faults that wait for room, in the order in which they came.
    starved: VecDeque<Fault>,
    /// Pages ready to be removed by the end of the turn.
    to_drop: Vec<PageRef>,
    ranges: Vec<Range<u32>>,
    staged: VecDeque<PageRef>,
    /// Whether a thread waits for a page whose removal has begun.
    wanted_back: bool,
    /// Minimum number of pages removed at a time: more than one where each order to remove pages is costly.
    worth: u32,
    /// Whether pages ready to be removed are held back until there are enough of them for a larger order.
    held_back: bool,
    /// Whether the pages held back have waited long enough.
    overdue: bool,
    /// Pages that threads wait for; memory can be prepared for them while they are in flight.
    awaited: Vec<PageRef>,
    /// View from which the last copy of a page was made (`copies`).
    donor: ViewId,
    /// Copies for the pages of one window that it is still to be found out of whether they are good.
    copies: Vec<PageCopy>,
    /// Pages that were fetched ahead, have arrived, and are not installed yet.
    arrived: Vec<PageRef>,
    /// Dirty pages selected in this turn, about to be sent.
    victims: Vec<Candidate>,
    /// Evicted pages whose content is still in buffers, in order of eviction.
    kept: ChunkedQueue<PageRef>,
    /// Advice of programs that is still to be applied.
    hints: VecDeque<Hinted>,
    /// Pages that will be read soon, as recorded by the compute node that had the region before.
    wanted_soon: VecDeque<PageRef>,
    /// Room for the contents of neighbours that are installed in one step.
    landing: Box<[Page]>,
    /// Mappings found to have ended, for the caller to remove.
    ended: Vec<MappingId>,
    /// Whether the last search found pages that cannot be evicted for lack of a slot, and no page that can be evicted.
    full: bool,
    /// Number of pages examined since the last one that could be evicted.
    fruitless: usize,
    /// Whether slots may be assigned. During a takeover, no slot is assigned before all views of the
    /// predecessor are known.
    complete: bool,
    /// Work on whole tables, and what waits for it.
    walks: Walks,
    counters: PagerCounters,
}

impl Pager {
    /// Returns a pager without views. A limit below [`LIMIT_MIN`] is raised to it.
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
            starved: VecDeque::with_capacity(MAPPINGS_MAX),
            to_drop: Vec::with_capacity(BUFFERS_IN_FLIGHT as usize),
            ranges: Vec::with_capacity(BUFFERS_IN_FLIGHT as usize),
            staged: VecDeque::with_capacity(BUFFERS_IN_FLIGHT as usize),
            wanted_back: false,
            worth: 1,
            held_back: false,
            overdue: false,
            awaited: Vec::with_capacity(fault::AWAITED_MAX),
            donor: ViewId(0),
            copies: Vec::with_capacity(BUFFERS_IN_FLIGHT as usize),
            arrived: Vec::with_capacity(BUFFERS_IN_FLIGHT as usize),
            victims: Vec::with_capacity(evict::STEP_FOR_MANY),
            kept: ChunkedQueue::default(),
            hints: VecDeque::with_capacity(hint::HINTS_MAX),
            wanted_soon: VecDeque::new(),
            landing: vec![[0; PAGE_BYTES]; read_ahead::RUN].into_boxed_slice(),
            ended: Vec::with_capacity(MAPPINGS_MAX),
            full: false,
            fruitless: 0,
            complete: true,
            walks: Walks::new(),
            counters: PagerCounters::default(),
        }
    }

    /// Allocates all memory that the pager may ever need for its present views.
    pub fn reserve(&mut self) {
        self.buffers.reserve();
        self.order.reserve();
        for (number, view) in (0..).zip(&self.views) {
            if let Some(view) = view {
                self.order.reserve_view(ViewId(number), view.table.len());
            }
        }
        let kept = self.kept_entries_max();
        // Each page that is added while stale entries are removed has a chunk examined.
        self.kept.reserve(kept + kept / queue::CHUNK + 1);
    }

    /// Parameters with which the pager was created, and the present limit.
    #[inline]
    pub fn options(&self) -> &PagerOptions {
        &self.options
    }

    #[inline]
    pub fn counters(&self) -> PagerCounters {
        self.counters
    }

    /// Number of pages of all views that take up memory.
    #[inline]
    pub fn resident(&self) -> u32 {
        self.resident
    }

    /// Number of slots of CMem that hold pages.
    pub fn slots_used(&self) -> u32 {
        self.slots.used()
    }

    /// Sets the number of the region's slots to `count` after growth, so that pages that lacked a slot can be
    /// evicted.
    pub fn grow(&mut self, count: u32) {
        self.slots.grow(count);
        self.retry_evictions();
    }

    /// Changes the limit of resident pages; pages beyond it are evicted in the next turns.
    pub fn set_limit(&mut self, limit: u32) {
        let limit = limit.max(LIMIT_MIN);
        self.options.limit = limit;
        // Pages beyond the limit still have twins, and need buffers for their eviction.
        self.buffers.set_limit(limit.max(self.resident).saturating_add(BUFFERS_IN_FLIGHT));
        self.order.set_limit(limit);
    }

    /// The page buffers, which transfers fill and empty.
    #[inline]
    pub fn buffers(&mut self) -> &mut PageBuffers {
        &mut self.buffers
    }

    /// Number that the next view will get; `None` if there are [`VIEWS_MAX`] views, some of which may be ending.
    pub fn next_view(&self) -> Option<ViewId> {
        let place = self.views.iter().position(Option::is_none).unwrap_or(self.views.len());
        (place < VIEWS_MAX).then_some(ViewId(place as u16))
    }

    /// Adds a view. Its table is empty, or a predecessor's; then [`take_over`](Self::take_over) must follow.
    ///
    /// # Errors
    /// [`PagerFull`] if there are [`VIEWS_MAX`] views.
    pub fn add_view(&mut self, table: PageTable, droppable: bool) -> Result<ViewId, PagerFull> {
        let view = View {
            table,
            mappings: Vec::new(),
            droppable,
            resident: 0,
            prefetch: Prefetch::default(),
            cleaning: 0,
            written: PageShare::default(),
        };
        let id = self.next_view().ok_or(PagerFull { limit: VIEWS_MAX })?;
        let place = usize::from(id.0);
        if place == self.views.len() {
            self.views.push(None);
        }
        self.views[place] = Some(view);
        Ok(id)
    }

    /// Adds a mapping of a view.
    ///
    /// # Errors
    /// [`PagerFull`] if there are [`MAPPINGS_MAX`] mappings.
    ///
    /// # Panics
    /// If there is no such view.
    pub fn add_mapping(&mut self, view: ViewId) -> Result<MappingId, PagerFull> {
        let place = match self.mappings.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.mappings.len() < MAPPINGS_MAX => {
                self.mappings.push(None);
                self.mappings.len() - 1
            }
            None => return Err(PagerFull { limit: MAPPINGS_MAX }),
        };
        let mapping = MappingId(place as u16);
        self.views[usize::from(view.0)].as_mut().expect("there is such a view").mappings.push(mapping);
        self.mappings[place] = Some(view);
        Ok(mapping)
    }

    #[inline]
    pub fn view_of(&self, mapping: MappingId) -> Option<ViewId> {
        self.mappings.get(usize::from(mapping.0)).copied().flatten()
    }

    /// Sets whether the pages of a view can be removed. If not, the limit does not bound them, and they have
    /// no twins.
    pub fn set_droppable(&mut self, view: ViewId, droppable: bool) {
        let Some(of) = self.view_mut(view) else { return };
        let (before, resident) = (core::mem::replace(&mut of.droppable, droppable), of.resident);
        match (before, droppable) {
            (true, false) => {
                self.fixed += resident;
                self.end_starving(view);
                self.begin_walk(Walk::Twins { view, chunk: 0 });
            }
            (false, true) => self.fixed -= resident,
            _ => {}
        }
    }

    /// Has the faults of a view that wait for room retried in the next turn, because no room is needed for them now.
    fn end_starving(&mut self, view: ViewId) {
        for _ in 0..self.starved.len() {
            let Some(fault) = self.starved.pop_front() else { break };
            let its = self.view_of(fault.mapping) == Some(view);
            if its { &mut self.waiting } else { &mut self.starved }.push_back(fault);
        }
    }

    fn is_droppable(&self, view: ViewId) -> bool {
        self.view(view).is_some_and(|view| view.droppable)
    }

    /// Number of resident pages that the limit bounds.
    fn bounded(&self) -> u32 {
        self.resident - self.fixed
    }

    /// Number of pages that the limit bounds, including those in flight, and those fetched and about to be
    /// installed. If these pages were not counted, other faults would take their room, and each of these
    /// pages would cause a fault.
    fn claimed(&self) -> u32 {
        self.bounded() + self.coming + self.arrived.len() as u32
    }

    /// Records that one page of a view no longer takes up memory.
    fn record_evicted(&mut self, view: ViewId) {
        self.resident -= 1;
        let mut fixed = false;
        if let Some(view) = self.view_mut(view) {
            view.resident -= 1;
            fixed = !view.droppable;
        }
        self.fixed -= u32::from(fixed);
    }

    /// Removes and returns a mapping that was found to have ended, most likely with its process.
    #[inline]
    pub fn take_ended(&mut self) -> Option<MappingId> {
        self.ended.pop()
    }

    /// Handles a program's announcement that it discards pages: they are zeros from now on. Not to be called for
    /// pages that the pager itself evicts ([`dropped`](Self::dropped)), nor during a [walk](Self::is_walking): a child
    /// that is being copied has the pages still.
    pub fn discarded(&mut self, view: ViewId, pages: Range<u32>) {
        debug_assert!(!self.is_walking(), "a discard has to wait");
        let Some(pages) = self.view(view).map(|v| pages.start..pages.end.min(v.table.len())) else { return };
        for page in pages {
            let entry = self.entry(view, page);
            match entry.state() {
                PageState::Absent => self.release(view, page, entry),
                PageState::Staged => {
                    entry.buffer().into_iter().for_each(|buffer| self.buffers.give(buffer));
                    self.release(view, page, entry.with_buffer(None));
                }
                PageState::Clean | PageState::Dirty => {
                    self.record_evicted(view);
                    entry.buffer().into_iter().for_each(|buffer| self.buffers.give(buffer));
                    self.release(view, page, entry.with_buffer(None));
                }
                PageState::Fetching | PageState::Cleaning | PageState::Dropping => {
                    self.set(view, page, entry.with(Flags::ZAPPED));
                }
                PageState::Installing | PageState::Lost => self.release(view, page, entry),
                // The page is zeros already.
                PageState::Zeroing => {}
            }
            self.counters.discarded += 1;
        }
    }

    /// Releases the slot of an absent page that no longer has content.
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

    /// Returns the entry of a page, which must be in the view's table.
    #[inline]
    fn entry(&self, view: ViewId, page: u32) -> Entry {
        self.views[usize::from(view.0)].as_ref().map_or(Entry::absent(NO_SLOT), |view| view.table.get(page))
    }

    /// Entry of a page, for tests and displays; `None` if there is no such page.
    #[inline]
    pub fn entry_of(&self, view: ViewId, page: u32) -> Option<Entry> {
        self.view(view).filter(|view| page < view.table.len()).map(|view| view.table.get(page))
    }

    #[inline]
    fn set(&self, view: ViewId, page: u32, entry: Entry) {
        if let Some(view) = &self.views[usize::from(view.0)] {
            view.table.set(page, entry);
        }
    }

    fn mappings_of(&self, view: ViewId) -> impl Iterator<Item = MappingId> + use<> {
        // A view usually has one mapping. The list is copied, because the caller's action may change it.
        let mut all = [MappingId(0); 4];
        let list = self.view(view).map_or(&[][..], |view| &view.mappings);
        let (some, rest) = list.split_at(list.len().min(all.len()));
        all[..some.len()].copy_from_slice(some);
        let count = some.len();
        let rest = (!rest.is_empty()).then(|| rest.to_vec());
        all.into_iter().take(count).chain(rest.into_iter().flatten())
    }

    /// Whether a [reported](Self::fault) fault at this page is still to be served: a later [`Memory::wake`], or the
    /// installation of the page, will end the fault. The caller needs this for threads that the kernel does not wake.
    #[inline]
    pub fn has_pending_fault(&self, mapping: MappingId, page: u32) -> bool {
        self.is_under_way(mapping, page)
            || self.waiting_faults().any(|fault| (fault.mapping, fault.page) == (mapping, page))
    }

    /// Whether a fault at this page is served when a pending operation ends.
    #[inline]
    pub fn is_under_way(&self, mapping: MappingId, page: u32) -> bool {
        let entry = self.view_of(mapping).and_then(|view| self.entry_of(view, page));
        entry.is_some_and(|entry| {
            let under_way = matches!(
                entry.state(),
                PageState::Fetching | PageState::Cleaning | PageState::Dropping | PageState::Zeroing
            );
            under_way && entry.is(Flags::WANTED)
        })
    }

    /// Faults that wait for room or for another turn.
    pub fn waiting_faults(&self) -> impl Iterator<Item = &Fault> {
        self.waiting.iter().chain(&self.starved)
    }

    /// Wakes all threads that wait for a page, so that they retry.
    fn wake(&self, view: ViewId, page: u32, io: &mut Io<'_>) {
        self.mappings_of(view).for_each(|mapping| io.memory.wake(mapping, page));
    }

    /// Records that a page has become resident because a thread has touched it.
    fn record_resident(&mut self, view: ViewId, page: u32, known: PageHistory) {
        self.add_resident(view, page, known, false);
    }

    /// Records that a page has become resident; if `unasked`, before a thread has touched the page.
    fn add_resident(&mut self, view: ViewId, page: u32, known: PageHistory, unasked: bool) {
        self.resident += 1;
        let mut fixed = false;
        if let Some(view) = self.view_mut(view) {
            view.resident += 1;
            fixed = !view.droppable;
        }
        self.fixed += u32::from(fixed);
        self.counters.refaulted += u64::from(matches!(known, PageHistory::Remembered { .. }));
        if !self.options.evict {
            return;
        }
        self.order.add_resident(PageRef { view, page }, known, unasked);
        self.trim_kept();
        self.clean_queues(1);
    }

    /// Removes some stale entries of the queues, after `added` entries were added, if there are or were too many.
    #[inline]
    fn clean_queues(&mut self, added: usize) {
        if self.order.is_over_limit() {
            self.order.begin_cleaning();
        }
        if self.order.is_cleaning() {
            let views = &self.views;
            // Twice as many as were added, so that the pass ends.
            self.order.clean_some(2 * added, |page| {
                views[usize::from(page.view.0)]
                    .as_ref()
                    .is_some_and(|v| v.table.get(page.page).state().is_resident())
            });
        }
    }

    fn record_prefetch(&mut self, PrefetchOutcome { hits, wasted, .. }: PrefetchOutcome) {
        self.counters.prefetch_hits += u64::from(hits);
        self.counters.prefetch_wasted += u64::from(wasted);
    }

    /// Notes a mapping that was found to have ended, for [`take_ended`](Self::take_ended).
    #[cold]
    fn mapping_ended(&mut self, mapping: MappingId) {
        if !self.ended.contains(&mapping) {
            self.ended.push(mapping);
        }
    }
}

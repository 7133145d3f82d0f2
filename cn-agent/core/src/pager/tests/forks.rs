//! Two processes of one fork: pages of one of them are neither fetched nor sent again for the other.

use core::ops::Deref;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;

/// Pages of parent and child, by view and number.
#[derive(Default)]
pub(super) struct Both {
    pub pages: BTreeMap<(u16, u32), Page>,
    protected: usize,
    /// Number of looks at the kernel's records.
    records: usize,
    /// Whether the records show that pages may have changed.
    changes: bool,
}

impl Memory for Both {
    fn install(&mut self, of: MappingId, page: u32, bytes: &Page, _: bool) -> Result<(), MemoryError> {
        self.pages.insert((of.0, page), *bytes);
        Ok(())
    }

    fn map(&mut self, _: MappingId, _: u32, _: bool) -> Result<(), MemoryError> {
        Err(MemoryError::Exists)
    }

    fn protect(&mut self, _: MappingId, _: Range<u32>) -> Result<(), MemoryError> {
        self.protected += 1;
        Ok(())
    }

    fn unprotect(&mut self, _: MappingId, _: u32) -> Result<(), MemoryError> {
        Ok(())
    }

    fn snapshot(&mut self, of: ViewId, page: u32, into: &mut Page) -> Result<(), MemoryError> {
        *into = *self.pages.get(&(of.0, page)).ok_or(MemoryError::Absent)?;
        Ok(())
    }

    fn drop_pages(&mut self, of: ViewId, ranges: &[Range<u32>]) -> Result<Drop, MemoryError> {
        ranges.iter().cloned().flatten().for_each(|page| {
            self.pages.remove(&(of.0, page));
        });
        Ok(Drop::Done)
    }

    fn is_present(&mut self, of: ViewId, page: u32) -> bool {
        self.pages.contains_key(&(of.0, page))
    }

    fn records(&mut self, _: ViewId, _: u32) -> PageRecords {
        self.records += 1;
        if self.changes { PageRecords::UNKNOWN } else { PageRecords::KEPT }
    }

    fn wake(&mut self, _: MappingId, _: u32) {}

    fn poison(&mut self, _: MappingId, _: u32) -> Result<(), MemoryError> {
        Ok(())
    }
}

pub(super) const PARENT: ViewId = ViewId(0);
pub(super) const CHILD: ViewId = ViewId(1);

pub(super) struct Family {
    pub pager: Pager,
    pub memory: Both,
    pub nodes: Nodes,
}

impl Family {
    /// A family whose parent has written `written` pages.
    pub fn new(written: u32) -> Family {
        Family::over(PageTable::local(PAGES), written)
    }

    /// As [`new`](Family::new), with the parent's entries in `table`.
    fn over(table: PageTable, written: u32) -> Family {
        let options = PagerOptions { pages: PAGES, limit: LIMIT, prefetch: false, evict: true };
        let mut pager = Pager::new(options, Slots::pool(2 * PAGES, false));
        assert_eq!(pager.add_view(table, true), Ok(PARENT));
        assert_eq!(pager.add_mapping(PARENT), Ok(MappingId(0)));
        let mut family = Family { pager, memory: Both::default(), nodes: Nodes::default() };
        for page in 0..written {
            family.fault(PARENT, page, true);
            family.memory.pages.insert((0, page), content(page + 1));
        }
        family
    }

    pub fn fork(&mut self) {
        self.fork_into(PageTable::local(PAGES));
    }

    /// As [`fork`](Family::fork), with the child's entries in `table`.
    fn fork_into(&mut self, table: PageTable) {
        assert_eq!(self.fork_of(PARENT, table), CHILD);
        self.pager.set_droppable(CHILD, true);
    }

    /// Forks a process; the child has not joined. Returns the child's view.
    pub fn fork_of(&mut self, parent: ViewId, table: PageTable) -> ViewId {
        let child = self.pager.forked(parent, table).unwrap();
        assert_eq!(self.pager.add_mapping(child), Ok(MappingId(child.0)));
        let of_parent = self.memory.pages.iter().filter(|((view, _), _)| *view == parent.0);
        let pages: Vec<_> = of_parent.map(|((_, page), bytes)| ((child.0, *page), *bytes)).collect();
        self.memory.pages.extend(pages);
        child
    }

    pub fn io<R>(&mut self, act: impl FnOnce(&mut Pager, &mut Io<'_>) -> R) -> R {
        act(&mut self.pager, &mut Io { memory: &mut self.memory, store: &mut self.nodes })
    }

    pub fn fault(&mut self, view: ViewId, page: u32, write: bool) {
        let fault = Fault { mapping: MappingId(view.0), page, access: Access::Missing, write };
        self.io(|pager, io| pager.fault(fault, io));
    }

    /// Completes all transfers; returns the numbers of pages fetched and written.
    pub fn answer(&mut self) -> (usize, usize) {
        let (mut fetched, mut written) = (0, 0);
        while self.answer_fetch(Ok(())) {
            fetched += 1;
        }
        while self.answer_write(Ok(())) {
            written += 1;
        }
        (fetched, written)
    }

    /// Completes the oldest fetch; `false` if there is none.
    pub fn answer_fetch(&mut self, outcome: Result<(), Lost>) -> bool {
        let Some((slot, buffer, _)) = self.nodes.fetches.pop_front() else { return false };
        *self.pager.buffers().page_mut(buffer) = self.nodes.written[&slot];
        self.io(|pager, io| pager.fetched(buffer, outcome, io));
        true
    }

    /// Completes the oldest write; `false` if there is none.
    pub fn answer_write(&mut self, outcome: Result<(), Lost>) -> bool {
        let Some((slot, buffer)) = self.nodes.writes.pop_front() else { return false };
        if outcome.is_ok() {
            self.nodes.written.insert(slot, *self.pager.buffers().page(buffer));
        }
        self.io(|pager, io| pager.written(buffer, outcome, io));
        true
    }

    /// Sends all dirty pages of a view; returns the number of pages sent.
    pub fn clean(&mut self, view: ViewId) -> usize {
        let mut written = 0;
        for _ in 0..PAGES {
            let done = self.io(|pager, io| pager.clean_all(view, io));
            written += self.answer().1;
            if done {
                return written;
            }
        }
        panic!("it does not end")
    }

    /// Evicts these pages, which must be clean, and keeps no copies of them.
    pub fn take_away(&mut self, view: ViewId, pages: Range<u32>) {
        self.order_away(view, pages.clone());
        self.io(|pager, io| pager.dropped(view, pages, io));
    }

    /// Begins to evict these pages, which must be clean. They are removed from memory, but that is not reported.
    pub fn order_away(&mut self, view: ViewId, pages: Range<u32>) {
        for page in pages.clone() {
            self.pager.evict_clean(view, page, self.entry(view, page), None);
            self.memory.pages.remove(&(view.0, page));
        }
        self.pager.to_drop.retain(|of| of.view != view || !pages.contains(&of.page));
    }

    /// The last byte of a page, all of whose bytes are the same.
    pub fn byte(&self, view: ViewId, page: u32) -> u8 {
        self.memory.pages[&(view.0, page)][PAGE_BYTES - 1]
    }

    pub fn entry(&self, view: ViewId, page: u32) -> Entry {
        self.pager.entry_of(view, page).unwrap()
    }
}

/// Entries whose memory is looked up through a counter.
struct Counted {
    words: Vec<AtomicU64>,
    lookups: Arc<AtomicU32>,
}

impl Deref for Counted {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        &self.words
    }
}

/// An empty table, and the number of its lookups.
fn counted() -> (PageTable, Arc<AtomicU32>) {
    let lookups = Arc::new(AtomicU32::new(0));
    let words = (0..PAGES).map(|_| AtomicU64::new(Entry::absent(NO_SLOT).0)).collect();
    (PageTable::new(Counted { words, lookups: Arc::clone(&lookups) }), lookups)
}

/// Faults of other processes wait while all pages of a view are gone through.
#[test]
fn a_fork_and_the_end_of_a_view_do_not_look_up_the_tables_for_each_page() {
    let ((of_parent, by_parent), (of_child, by_child)) = (counted(), counted());
    let mut family = Family::over(of_parent, LIMIT / 2);
    family.clean(PARENT);
    let taken = |lookups: &AtomicU32| lookups.swap(0, Ordering::Relaxed);
    taken(&by_parent);
    family.fork_into(of_child);
    assert!(taken(&by_parent) <= 4 && taken(&by_child) <= 4);
    let state = |family: &Family, page| family.entry(CHILD, page).state();
    assert!((0..PAGES).all(|page| (state(&family, page) == PageState::Clean) == (page < LIMIT / 2)));
    assert!((0..LIMIT / 2).all(|page| family.entry(CHILD, page).slot() == family.entry(PARENT, page).slot()));
    assert_eq!((family.pager.resident(), family.pager.bounded(), family.pager.order.entries()), (64, 64, 64));
    taken(&by_child);
    family.pager.end_view(CHILD);
    assert!(taken(&by_child) <= 4);
    assert_eq!((family.pager.resident(), family.pager.bounded(), family.pager.slots_used()), (32, 32, 32));
    assert!(!(0..LIMIT / 2).any(|page| family.pager.slots.is_shared(page)));
}

/// The helper of a process ends with it, when pages of other processes are waited for.
#[test]
fn a_process_without_a_helper_gives_up_its_twins_without_a_look_at_each_page() {
    let (of_child, by_child) = counted();
    let mut family = Family::new(8);
    family.clean(PARENT);
    family.take_away(PARENT, 0..8);
    family.fork_into(of_child);
    for page in 2..5 {
        family.fault(CHILD, page, true);
        family.answer();
        assert!(family.entry(CHILD, page).buffer().is_some());
    }
    family.fault(PARENT, 7, true);
    family.answer();
    let used = family.pager.buffers().used();
    by_child.store(0, Ordering::Relaxed);
    family.pager.set_droppable(CHILD, false);
    assert!(by_child.load(Ordering::Relaxed) <= 6, "a look and a change for each twin");
    assert_eq!(family.pager.buffers().used(), used - 3);
    assert!((2..5).all(|page| family.entry(CHILD, page).buffer().is_none()));
    assert!(family.entry(PARENT, 7).buffer().is_some(), "another one's stays");
    // Without its twin, what is not written is sent whole.
    family.pager.set_droppable(CHILD, true);
    assert_eq!(family.clean(CHILD), 3);
    family.take_away(CHILD, 2..5);
    family.fault(CHILD, 3, false);
    family.answer();
    assert_eq!(family.byte(CHILD, 3), 4);
}

/// A later child has the number of a view that has ended, whose entries are still in the queues.
#[test]
fn entries_of_ended_children_leave_the_queues() {
    let mut family = Family::new(LIMIT / 2);
    for child in 1..=8 {
        assert_eq!(family.pager.forked(PARENT, PageTable::local(PAGES)), Ok(CHILD), "{child}");
        family.pager.end_view(CHILD);
    }
    assert_eq!(family.pager.resident(), LIMIT / 2);
    assert!(family.pager.order.entries() <= 3 * LIMIT as usize, "{}", family.pager.order.entries());
}

#[test]
fn what_one_has_is_copied_for_the_other() {
    let mut family = Family::new(8);
    family.clean(PARENT);
    family.take_away(PARENT, 0..8);
    family.fork();
    family.fault(PARENT, 3, false);
    assert_eq!(family.answer(), (1, 0));
    family.fault(CHILD, 3, true);
    assert_eq!(family.answer(), (0, 0), "it is here");
    assert_eq!(family.byte(CHILD, 3), 4);
    // The child's twin is the content in CMem, even after the child has written to the page.
    family.memory.pages.insert((1, 3), content(77));
    family.clean(PARENT);
    family.take_away(PARENT, 3..4);
    assert_eq!(family.entry(PARENT, 3).state(), PageState::Absent);
    family.fault(PARENT, 3, false);
    assert_eq!((family.answer(), family.byte(PARENT, 3)), ((0, 0), 4));
    assert_eq!(family.pager.counters().copied, 2);
    // A page that neither process has is fetched.
    family.fault(CHILD, 4, false);
    assert_eq!((family.answer(), family.pager.counters().fetched), ((1, 0), 2));
}

/// A look at each table would take as long as a fetch.
#[test]
fn a_page_is_not_looked_for_in_the_tables_of_many_processes() {
    let mut family = Family::new(8);
    family.clean(PARENT);
    family.take_away(PARENT, 0..8);
    let children: Vec<_> = (1..=20)
        .map(|child| {
            let (table, lookups) = counted();
            assert_eq!(family.pager.forked(PARENT, table), Ok(ViewId(child)));
            assert_eq!(family.pager.add_mapping(ViewId(child)), Ok(MappingId(child)));
            family.pager.set_droppable(ViewId(child), true);
            lookups
        })
        .collect();
    let looked = || children[..19].iter().map(|lookups| lookups.load(Ordering::Relaxed)).sum::<u32>();
    let before = looked();
    family.fault(ViewId(20), 3, false);
    assert_eq!(family.answer(), (1, 0), "nobody has it");
    assert!(looked() - before <= 4, "{} lookups", looked() - before);
    // Each gets it from the one before.
    for child in 1..20 {
        family.fault(ViewId(child), 3, false);
        assert_eq!((family.answer(), family.byte(ViewId(child), 3)), ((0, 0), 4), "{child}");
    }
    assert_eq!(family.pager.counters().copied, 19);
}

#[test]
fn copies_of_a_window_are_checked_together_and_fetched_if_they_may_be_wrong() {
    for changes in [false, true] {
        let mut family = Family::new(48);
        family.pager.options.prefetch = true;
        family.clean(PARENT);
        family.fork();
        family.take_away(CHILD, 0..48);
        (family.memory.records, family.memory.changes) = (0, changes);
        for page in 0..3 {
            family.fault(CHILD, page, false);
            if changes {
                assert_eq!(family.nodes.fetches.len(), if page == 2 { 5 } else { 1 });
            }
            family.answer();
        }
        assert_eq!(family.memory.records, 4, "three faults and one window");
        assert_eq!(family.pager.counters().copied, if changes { 0 } else { 7 });
        assert_eq!((family.pager.coming, family.pager.arrived.len()), (0, 3));
        family.io(|pager, io| pager.turn(io));
        let bytes: Vec<u8> = [0, 1, 2, 4, 5, 6].map(|page| family.byte(CHILD, page)).to_vec();
        assert_eq!(bytes, [1, 2, 3, 5, 6, 7]);
        assert_eq!(family.entry(CHILD, 3).state(), PageState::Staged, "the reader's marker");
    }
}

#[test]
fn what_a_child_has_of_its_parent_is_sent_once() {
    let mut family = Family::new(8);
    family.fork();
    family.memory.pages.insert((1, 5), content(99));
    assert_eq!(family.clean(PARENT), 8);
    let alike = |page: &u32| family.entry(CHILD, *page).slot() == family.entry(PARENT, *page).slot();
    assert_eq!((0..8).filter(alike).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 6, 7]);
    assert_eq!(
        (family.entry(CHILD, 0).state(), family.entry(CHILD, 5).state()),
        (PageState::Clean, PageState::Dirty)
    );
    assert_eq!((family.clean(CHILD), family.pager.slots_used()), (1, 9), "only what it has changed");
    assert_eq!(family.pager.counters().shared, 7);
    // Each process keeps its own content, copied or fetched.
    [PARENT, CHILD].into_iter().for_each(|view| family.take_away(view, 0..8));
    for (view, page, expected) in [(PARENT, 5, 6), (CHILD, 5, 99), (CHILD, 6, 7), (PARENT, 6, 7)] {
        family.fault(view, page, false);
        family.answer();
        assert_eq!(family.byte(view, page), expected, "{view:?} {page}");
    }
}

#[test]
fn what_is_not_written_after_all_keeps_its_slot() {
    let mut family = Family::new(8);
    family.clean(PARENT);
    family.take_away(PARENT, 0..8);
    family.fork();
    family.fault(CHILD, 2, true);
    family.answer();
    assert_eq!(family.entry(CHILD, 2).state(), PageState::Dirty);
    assert_eq!((family.clean(CHILD), family.pager.slots_used()), (0, 8));
    assert_eq!(family.entry(CHILD, 2).slot(), family.entry(PARENT, 2).slot());
    family.fault(CHILD, 3, true);
    family.answer();
    family.memory.pages.insert((1, 3), content(50));
    assert_eq!((family.clean(CHILD), family.pager.slots_used()), (1, 9));
}

/// The pages of a process whose helper has ended do not count towards the limit.
#[test]
fn a_fault_that_waits_for_room_is_served_when_its_process_needs_none() {
    let mut family = Family::new(LIMIT);
    family.fork();
    family.fault(CHILD, 100, true);
    let mut turns = 0;
    while family.pager.has_work() && turns < 100 {
        family.io(|pager, io| pager.turn(io));
        turns += 1;
    }
    assert!(turns < 100 && !family.memory.pages.contains_key(&(1, 100)), "{turns} turns");
    family.pager.set_droppable(CHILD, false);
    assert!(family.pager.has_work(), "no event will come for it");
    family.io(|pager, io| pager.turn(io));
    assert!(family.memory.pages.contains_key(&(1, 100)));
}

impl Family {
    /// Touches a page in the child if it would fault there; returns the number of pages read ahead.
    fn reads(&mut self, child: ViewId, page: u32) -> u64 {
        let before = self.pager.counters().prefetched;
        if !self.memory.pages.contains_key(&(child.0, page)) {
            self.fault(child, page, false);
            self.answer();
            self.io(|pager, io| pager.turn(io));
            self.answer();
        }
        self.pager.counters().prefetched - before
    }
}

/// Otherwise pages would make room for it that others have not reached.
#[test]
fn a_reader_that_waits_for_room_gives_up_what_it_has_passed() {
    let mut family = Family::new(48);
    family.pager.options.prefetch = true;
    family.clean(PARENT);
    family.take_away(PARENT, 0..48);
    for child in 1..=5 {
        assert_eq!(family.pager.forked(PARENT, PageTable::local(PAGES)), Ok(ViewId(child)));
        assert_eq!(family.pager.add_mapping(ViewId(child)), Ok(MappingId(child)));
        family.pager.set_droppable(ViewId(child), true);
    }
    for page in 0..15 {
        family.reads(CHILD, page);
    }
    // The others take the room that is left.
    family.pager.options.prefetch = false;
    let mut others = (0..48).flat_map(|page| (2..=5).map(move |child| (ViewId(child), page)));
    while family.pager.has_room_for_fault() {
        let (child, page) = others.next().unwrap();
        family.fault(child, page, false);
        family.answer();
    }
    family.pager.options.prefetch = true;
    assert_eq!(family.entry(CHILD, 15).state(), PageState::Staged, "the reader's marker");
    family.fault(CHILD, 15, false);
    assert!(family.pager.has_pending_fault(MappingId(1), 15));
    let next: Vec<PageRef> =
        (7..15).filter_map(|_| family.pager.order.next()).map(|next| next.page).collect();
    let expected: Vec<PageRef> = (7..15).map(|page| PageRef { view: CHILD, page }).collect();
    assert_eq!(next, expected, "from one fault of the reader to the next");
}

#[test]
fn readers_do_not_take_pages_read_ahead_for_others() {
    let mut family = Family::new(48);
    family.pager.options.prefetch = true;
    family.clean(PARENT);
    family.take_away(PARENT, 0..48);
    let children: Vec<ViewId> = (1..=5).map(ViewId).collect();
    for child in &children {
        assert_eq!(family.pager.forked(PARENT, PageTable::local(PAGES)), Ok(*child));
        assert_eq!(family.pager.add_mapping(*child), Ok(MappingId(child.0)));
        family.pager.set_droppable(*child, true);
    }
    // The first child stops where a window of pages is ready for it.
    for page in 0..8 {
        family.reads(CHILD, page);
    }
    let has = |family: &Family| {
        (16..48).filter(|page| family.memory.pages.contains_key(&(CHILD.0, *page))).collect::<Vec<_>>()
    };
    let ready = has(&family);
    assert!(ready.len() >= 12, "{ready:?}");
    let mut most = 0;
    for page in 0..48 {
        for child in &children[1..] {
            let many = family.pager.is_shared_by_many();
            let ahead = family.reads(*child, page);
            most = if many { most.max(ahead) } else { most };
        }
    }
    assert!((1..=5).contains(&most), "{most} at a time, of 60 pages for six processes");
    assert_eq!(has(&family), ready, "what the others have passed leaves first");
}

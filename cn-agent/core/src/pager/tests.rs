//! Tests of the pager. Its memory is a map that carries out each call at once; its memory nodes answer when the test
//! makes them.

#![allow(clippy::single_range_in_vec_init, reason = "one range of pages is meant")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use super::*;

mod ahead;
mod forged;
mod forks;
mod orders;
mod ready;
mod unchanged;
mod walks;
mod withdraw;
mod zeros;

const PAGES: u32 = 256;
const LIMIT: u32 = 64;

/// Memory of one mapping, with a record of each operation on it: the first page and the number of pages.
#[derive(Default)]
struct Kernel {
    pages: BTreeMap<u32, Page>,
    installed: Vec<Range<u32>>,
    protected: Vec<Range<u32>>,
    dropped: Vec<Range<u32>>,
    woken: Vec<u32>,
    /// Whether pages are removed by orders to the process, and the orders not carried out yet.
    by_order: bool,
    orders: VecDeque<Vec<Range<u32>>>,
    /// Whether memory is prepared for pages; the prepared pages, and whether each is filled.
    makes_ready: bool,
    ready: BTreeMap<u32, bool>,
    /// Pages whose page table entries the kernel has recreated without write protection.
    unprotected: BTreeSet<u32>,
    /// Whether the kernel does not show protection.
    hides_protection: bool,
    /// Number of copies made of resident pages.
    copied: usize,
    /// Number of times that the presence of one page was looked at.
    looks: usize,
}

impl Memory for Kernel {
    fn makes_ready(&self) -> bool {
        self.makes_ready
    }

    fn make_ready(&mut self, _: ViewId, page: u32) {
        self.ready.insert(page, false);
    }

    fn fill(&mut self, _: ViewId, page: u32, _: &Page) {
        self.ready.entry(page).and_modify(|filled| *filled = true);
    }

    fn give_up(&mut self, _: ViewId, page: u32) {
        self.ready.remove(&page);
    }

    fn install(&mut self, _: MappingId, page: u32, bytes: &Page, _: bool) -> Result<(), MemoryError> {
        self.install_run(MappingId(0), page, std::slice::from_ref(bytes), true).map(drop)
    }

    fn install_run(
        &mut self,
        _: MappingId,
        page: u32,
        bytes: &[Page],
        _: bool,
    ) -> Result<usize, MemoryError> {
        self.installed.push(page..page + bytes.len() as u32);
        self.pages.extend((page..).zip(bytes.iter().copied()));
        Ok(bytes.len())
    }

    fn map(&mut self, _: MappingId, _: u32, _: bool) -> Result<(), MemoryError> {
        Err(MemoryError::Exists)
    }

    fn protect(&mut self, _: MappingId, pages: Range<u32>) -> Result<(), MemoryError> {
        self.unprotected.retain(|page| !pages.contains(page));
        self.protected.push(pages);
        Ok(())
    }

    fn unprotect(&mut self, _: MappingId, page: u32) -> Result<(), MemoryError> {
        self.woken.push(page);
        Ok(())
    }

    fn snapshot(&mut self, _: ViewId, page: u32, into: &mut Page) -> Result<(), MemoryError> {
        *into = *self.pages.get(&page).ok_or(MemoryError::Absent)?;
        self.copied += 1;
        Ok(())
    }

    fn drops_by_order(&self) -> bool {
        self.by_order
    }

    fn drop_pages(&mut self, _: ViewId, ranges: &[Range<u32>]) -> Result<Drop, MemoryError> {
        if self.by_order {
            self.orders.push_back(ranges.to_vec());
            return Ok(Drop::Ordered);
        }
        ranges.iter().cloned().flatten().for_each(|page| {
            self.pages.remove(&page);
        });
        self.dropped.extend_from_slice(ranges);
        Ok(Drop::Done)
    }

    fn is_present(&mut self, _: ViewId, page: u32) -> bool {
        self.looks += 1;
        self.pages.contains_key(&page)
    }

    fn shows_protection(&self) -> bool {
        !self.hides_protection
    }

    fn records(&mut self, _: ViewId, first: u32) -> PageRecords {
        let mask = |is: &dyn Fn(&u32) -> bool| {
            let pages = (0..u64::BITS).filter(|bit| is(&(first + bit)));
            pages.fold(0, |mask, bit| mask | 1 << bit)
        };
        PageRecords {
            present: mask(&|page| self.pages.contains_key(page)),
            protected: mask(&|page| !self.unprotected.contains(page)),
        }
    }

    fn wake(&mut self, _: MappingId, page: u32) {
        self.woken.push(page);
    }

    fn poison(&mut self, _: MappingId, _: u32) -> Result<(), MemoryError> {
        Ok(())
    }
}

#[derive(Default)]
struct Nodes {
    fetches: VecDeque<(u32, BufferId, Urgency)>,
    writes: VecDeque<(u32, BufferId)>,
    written: BTreeMap<u32, Page>,
    hurried: Vec<BufferId>,
    /// Number of faults on other pages that wait, as set by the test.
    demands: usize,
}

impl Store for Nodes {
    fn room(&self) -> usize {
        512 - self.fetches.len() - self.writes.len()
    }

    fn demands(&self) -> usize {
        self.demands
    }

    fn hurry(&mut self, buffer: BufferId) {
        self.hurried.push(buffer);
    }

    fn fetch(&mut self, slot: u32, buffer: BufferId, urgency: Urgency) {
        self.fetches.push_back((slot, buffer, urgency));
    }

    fn write(&mut self, slot: u32, _: u64, buffer: BufferId) {
        self.writes.push_back((slot, buffer));
    }
}

/// A pager over a region in which each page is filled with its number.
struct Rig {
    pager: Pager,
    kernel: Kernel,
    nodes: Nodes,
}

const ONLY: MappingId = MappingId(0);
const VIEW: ViewId = ViewId(0);

fn content(page: u32) -> Page {
    [page as u8; PAGE_BYTES]
}

impl Rig {
    fn new() -> Rig {
        Rig::with(PagerOptions { pages: PAGES, limit: LIMIT, prefetch: false, evict: true })
    }

    fn with(options: PagerOptions) -> Rig {
        let mut pager = Pager::new(options, Slots::own(options.pages, false));
        let table = PageTable::local(options.pages);
        (0..options.pages).for_each(|page| table.set(page, Entry::absent(page)));
        assert_eq!(pager.add_view(table, true), Ok(VIEW));
        assert_eq!(pager.add_mapping(VIEW), Ok(ONLY));
        pager.reserve();
        Rig { pager, kernel: Kernel::default(), nodes: Nodes::default() }
    }

    fn io<R>(&mut self, act: impl FnOnce(&mut Pager, &mut Io<'_>) -> R) -> R {
        act(&mut self.pager, &mut Io { memory: &mut self.kernel, store: &mut self.nodes })
    }

    fn turn(&mut self) -> usize {
        self.io(|pager, io| pager.turn(io))
    }

    /// Completes all transfers in flight.
    fn answer(&mut self) {
        while let Some((page, buffer, _)) = self.nodes.fetches.pop_front() {
            *self.pager.buffers().page_mut(buffer) = content(page);
            self.io(|pager, io| pager.fetched(buffer, Ok(()), io));
        }
        while let Some((slot, buffer)) = self.nodes.writes.pop_front() {
            self.nodes.written.insert(slot, *self.pager.buffers().page(buffer));
            self.io(|pager, io| pager.written(buffer, Ok(()), io));
        }
    }

    fn fault(&mut self, page: u32, write: bool) {
        let fault = Fault { mapping: ONLY, page, access: Access::Missing, write };
        self.io(|pager, io| pager.fault(fault, io));
    }

    fn touch(&mut self, pages: Range<u32>, write: bool) {
        for page in pages {
            self.fault(page, write);
            self.answer();
            if write {
                self.kernel.pages.get_mut(&page).unwrap()[9] ^= 1;
            }
        }
    }

    fn state(&self, page: u32) -> PageState {
        self.pager.entry_of(VIEW, page).unwrap().state()
    }
}

#[test]
fn beside_a_fault_few_pages_leave_and_neighbours_are_protected_at_once() {
    let mut rig = Rig::new();
    rig.touch(0..LIMIT, true);
    rig.nodes.demands = 1;
    rig.turn();
    assert_eq!(rig.nodes.writes.len(), 2, "the link is looked at between two of them");
    assert_eq!(rig.kernel.protected, [0..2]);
    rig.nodes.demands = 0;
    rig.turn();
    assert_eq!(
        (rig.nodes.writes.len(), rig.kernel.protected.len()),
        (4, 2),
        "as many as are to be kept free"
    );
    rig.nodes.demands = 1;
    rig.answer();
    rig.turn();
    assert_eq!(rig.kernel.dropped, [0..2]);
    rig.nodes.demands = 0;
    rig.turn();
    assert_eq!((rig.kernel.dropped.last(), rig.pager.resident()), (Some(&(2..4)), LIMIT - 4));
}

/// Each page that a thread has written has a buffer with the content at its memory node.
#[test]
fn a_raised_limit_brings_the_buffers_for_the_pages_that_it_permits() {
    let mut rig = Rig::with(PagerOptions { pages: 1024, limit: LIMIT, prefetch: false, evict: true });
    rig.pager.set_limit(1024);
    rig.touch(0..600, true);
    assert_eq!((rig.pager.resident(), rig.pager.has_work()), (600, false), "no fault waits");
}

#[test]
fn what_was_taken_away_a_moment_ago_comes_back_without_its_memory_node() {
    let mut rig = Rig::new();
    rig.touch(0..LIMIT, false);
    rig.turn();
    assert_eq!(
        (rig.state(0), rig.state(3), rig.state(4)),
        (PageState::Staged, PageState::Staged, PageState::Clean)
    );
    rig.fault(2, false);
    assert!(rig.nodes.fetches.is_empty());
    assert_eq!((rig.state(2), rig.kernel.pages[&2]), (PageState::Clean, content(2)));
    let counters = rig.pager.counters();
    assert_eq!((counters.second_chances, counters.fetched), (1, u64::from(LIMIT)));
    // Faults take the room of kept pages at once.
    rig.touch(LIMIT..LIMIT + 3, false);
    assert_eq!((rig.state(0), rig.state(LIMIT + 2)), (PageState::Absent, PageState::Clean));
    assert_eq!(rig.pager.counters().waits_for_room, 0);
    assert!(rig.pager.resident() as usize + rig.pager.buffers().kept_count() <= LIMIT as usize);
    // A page that its program has discarded is zeros, even if its content was kept.
    rig.turn();
    let kept = (0..PAGES).find(|page| rig.state(*page) == PageState::Staged).unwrap();
    rig.pager.discarded(VIEW, kept..kept + 1);
    rig.fault(kept, false);
    assert_eq!(rig.kernel.pages[&kept], [0; PAGE_BYTES]);
}

#[test]
fn a_page_that_was_written_is_kept_as_its_memory_node_has_it() {
    let mut rig = Rig::new();
    rig.touch(0..LIMIT, true);
    rig.kernel.pages.insert(1, [0xAA; PAGE_BYTES]);
    rig.turn();
    rig.answer();
    rig.turn();
    assert_eq!(rig.state(1), PageState::Staged);
    rig.fault(1, false);
    assert_eq!(rig.kernel.pages[&1], [0xAA; PAGE_BYTES]);
}

#[test]
fn who_reads_what_was_written_before_may_write_at_once() {
    let mut rig = Rig::new();
    rig.touch(0..LIMIT, true);
    // Evicts all pages without keeping copies of them.
    let leave = |rig: &mut Rig| {
        rig.touch(LIMIT..3 * LIMIT, false);
        while rig.pager.has_work() {
            rig.turn();
            rig.answer();
        }
    };
    leave(&mut rig);
    assert_eq!((rig.state(3), rig.nodes.written.len()), (PageState::Absent, LIMIT as usize));
    rig.nodes.written.clear();
    rig.touch(3..5, false);
    assert_eq!(rig.state(3), PageState::Dirty);
    rig.kernel.pages.get_mut(&3).unwrap()[100] = 0xEE;
    let (changed, kept) = (rig.kernel.pages[&3], rig.kernel.pages[&4]);
    leave(&mut rig);
    assert_eq!(rig.nodes.written.keys().copied().collect::<Vec<_>>(), [3], "what has changed is sent");
    assert_eq!(rig.nodes.written[&3], changed);
    // A page that was not written when it was last resident is installed read-only.
    rig.touch(3..5, false);
    assert_eq!((rig.state(3), rig.state(4)), (PageState::Dirty, PageState::Clean));
    assert_eq!(kept, content(4));
    // The same holds for pages installed ahead of their reader: neighbours are installed in one step only if all were
    // written, or none.
    leave(&mut rig);
    rig.pager.hint(VIEW, 0..3 * LIMIT, Hint::PageOut);
    while rig.pager.has_work() {
        rig.turn();
    }
    rig.kernel.installed.clear();
    rig.pager.hint(VIEW, 0..8, Hint::WillRead);
    rig.turn();
    rig.answer();
    rig.turn();
    assert_eq!(rig.kernel.installed, [0..3, 3..5, 5..8]);
    let states: Vec<PageState> = (0..8).map(|page| rig.state(page)).collect();
    let (dirty, clean) = (PageState::Dirty, PageState::Clean);
    assert_eq!(states, [dirty, dirty, dirty, clean, clean, dirty, dirty, dirty]);
}

#[test]
fn where_pages_are_written_those_that_are_read_first_come_writable() {
    let mut rig = Rig::new();
    let leave = |rig: &mut Rig| {
        while rig.pager.has_work() {
            rig.turn();
            rig.answer();
        }
    };
    let pass = |rig: &mut Rig, write: bool| {
        for page in 0..3 * LIMIT {
            rig.touch(page..page + 1, write);
            leave(rig);
        }
    };
    pass(&mut rig, false);
    rig.touch(200..201, false);
    leave(&mut rig);
    assert_eq!(rig.state(200), PageState::Clean, "nothing is written here");
    pass(&mut rig, true);
    rig.touch(201..202, false);
    assert_eq!(rig.state(201), PageState::Dirty, "it was never here, and will be written as all others are");
    // A page that was installed writable without need is not sent.
    rig.nodes.written.clear();
    rig.pager.hint(VIEW, 201..202, Hint::PageOut);
    leave(&mut rig);
    assert!(!rig.nodes.written.contains_key(&201) && rig.state(201) != PageState::Dirty);
    pass(&mut rig, false);
    pass(&mut rig, false);
    rig.touch(202..203, false);
    assert_eq!(rig.state(202), PageState::Clean, "who only reads is believed");
}

#[test]
fn pages_that_will_be_read_are_fetched_and_come_in_one_step() {
    let mut rig = Rig::new();
    rig.pager.hint(VIEW, 8..24, Hint::WillRead);
    assert!(rig.pager.has_work());
    rig.turn();
    assert!(rig.nodes.fetches.iter().all(|(_, _, urgency)| *urgency == Urgency::Ahead));
    // A thread begins to wait for one of the pages.
    let (page, buffer, _) = rig.nodes.fetches[3];
    rig.fault(page, false);
    assert_eq!(rig.nodes.hurried, [buffer]);
    rig.answer();
    rig.turn();
    assert_eq!(rig.kernel.installed, [11..12, 8..11, 12..24]);
    assert_eq!((rig.pager.counters().fetched, rig.pager.counters().prefetched), (0, 16));
    // Only as many pages are fetched as the resident limit allows, and no page is evicted for a hint.
    rig.pager.hint(VIEW, 0..PAGES + 9, Hint::WillRead);
    while rig.pager.has_work() {
        rig.turn();
        rig.answer();
    }
    assert!(rig.pager.resident() < LIMIT && rig.pager.counters().evicted == 0);
}

#[test]
fn pages_that_will_be_written_are_there_as_zeros_if_they_never_were() {
    let mut rig = Rig::new();
    rig.pager.discarded(VIEW, 0..4);
    rig.pager.hint(VIEW, 0..4, Hint::WillRead);
    rig.turn();
    assert!(rig.kernel.installed.is_empty(), "whoever reads zeros has them soon enough");
    rig.pager.hint(VIEW, 0..4, Hint::WillWrite);
    rig.turn();
    assert!(rig.nodes.fetches.is_empty(), "nothing of it crosses the wire");
    assert_eq!((rig.state(3), rig.kernel.pages.len()), (PageState::Dirty, 4));
}

#[test]
fn what_is_not_needed_leaves() {
    let mut rig = Rig::new();
    rig.touch(0..32, false);
    rig.pager.hint(VIEW, 20..24, Hint::PageOut);
    rig.turn();
    assert_eq!(rig.kernel.dropped, [20..24]);
    // The program needs the pages after all.
    rig.pager.hint(VIEW, 20..24, Hint::WillRead);
    rig.turn();
    rig.turn();
    assert!(rig.nodes.fetches.is_empty() && rig.kernel.installed.last() == Some(&(20..24)));
    rig.pager.hint(VIEW, 20..24, Hint::PageOut);
    rig.turn();
    rig.pager.hint(VIEW, 8..12, Hint::Cold);
    rig.turn();
    assert_eq!(rig.kernel.dropped.len(), 2, "there is room");
    rig.touch(32..LIMIT + 4, false);
    rig.turn();
    assert_eq!(rig.kernel.dropped[2], 8..12);
    // There are more hints than the limit: the oldest are dropped.
    (0..1000).for_each(|_| rig.pager.hint(VIEW, 0..1, Hint::Cold));
    rig.pager.hint(VIEW, PAGES..PAGES + 1, Hint::PageOut);
    while rig.pager.has_work() {
        rig.turn();
    }
}

/// Its reader does not come back for it, and a copy takes longer than the removal.
#[test]
fn what_its_reader_has_passed_leaves_without_a_copy() {
    let mut rig = Rig::new();
    rig.touch(0..LIMIT, false);
    (8..12).for_each(|page| rig.pager.order.advise_passed(PageRef { view: VIEW, page }));
    // One of them was discarded by its program, without a word.
    rig.kernel.pages.remove(&10);
    rig.turn();
    assert_eq!((rig.kernel.copied, rig.state(8)), (1, PageState::Absent), "of another page, to keep it");
    assert_eq!(rig.kernel.dropped, [0..1, 8..10, 11..12]);
    assert_eq!(rig.pager.entry_of(VIEW, 10).unwrap().slot(), None, "it reads as zeros");
}

/// Reads page after page so fast that eviction has one step for each fault; returns the number of faults.
fn read_on(rig: &mut Rig, pages: Range<u32>) -> u32 {
    let mut faults = 0;
    for page in pages {
        if rig.kernel.pages.contains_key(&page) {
            continue;
        }
        faults += 1;
        rig.nodes.demands = 1;
        rig.fault(page, false);
        while !rig.kernel.pages.contains_key(&page) {
            if !rig.pager.has_pending_fault(ONLY, page) {
                // The page was still being fetched as read-ahead, so the reader faults again.
                rig.fault(page, false);
            }
            rig.answer();
            rig.turn();
        }
        rig.turn();
        assert_eq!(rig.kernel.pages[&page], content(page));
        assert!(rig.pager.resident() <= rig.pager.options().limit);
    }
    faults
}

#[test]
fn what_is_read_ahead_takes_the_place_of_what_has_been_read() {
    let (pages, limit) = (4096, 512);
    let mut rig = Rig::with(PagerOptions { pages, limit, prefetch: true, evict: true });
    let faults = read_on(&mut rig, 0..pages);
    assert!(faults < pages / 32, "{faults} faults: one for each window of 64 pages, and some at the start");
    assert_eq!(rig.pager.counters().waits_for_room, 0);
}

/// Tests that pages which a program has silently discarded read as zeros, even if they were evicted to make
/// room.
#[test]
fn what_was_given_back_does_not_come_back_after_it_has_made_room() {
    let (pages, limit) = (4096, 512);
    let mut rig = Rig::with(PagerOptions { pages, limit, prefetch: true, evict: true });
    read_on(&mut rig, 0..limit / 2);
    let given: Vec<u32> = (0..limit / 2).step_by(8).collect();
    rig.kernel.pages.retain(|page, _| !given.contains(page));
    read_on(&mut rig, limit..pages);
    let left: Vec<u32> = given.into_iter().filter(|page| rig.state(*page) != PageState::Clean).collect();
    assert_eq!((rig.pager.counters().discarded, left.len() > 16), (left.len() as u64, true), "{left:?}");
    for page in left {
        let sent = rig.nodes.written.get(&page) == Some(&[0; PAGE_BYTES]);
        rig.fault(page, false);
        assert!(sent || rig.nodes.fetches.iter().all(|(fetched, ..)| *fetched != page), "{page} is fetched");
    }
}

#[test]
fn what_is_read_ahead_takes_no_place_of_what_has_been_written() {
    let (pages, limit) = (4096, 512);
    let mut rig = Rig::with(PagerOptions { pages, limit, prefetch: true, evict: true });
    rig.touch(0..limit / 2, true);
    let written: Vec<Page> = (0..limit / 2).map(|page| rig.kernel.pages[&page]).collect();
    rig.kernel.dropped.clear();
    read_on(&mut rig, limit..pages);
    for page in (0..limit / 2).filter(|page| rig.kernel.dropped.iter().any(|range| range.contains(page))) {
        // The page has been written to its memory node.
        assert!(
            matches!(rig.state(page), PageState::Absent | PageState::Staged),
            "{page}: {:?}",
            rig.state(page)
        );
        let sent = rig.nodes.written.get(&page).expect("it was sent");
        assert_eq!(*sent, written[page as usize]);
    }
    assert!(rig.pager.counters().evicted > 0);
}

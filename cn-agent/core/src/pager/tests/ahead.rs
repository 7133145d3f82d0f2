//! Read-ahead in the pager for each kind of memory: it takes no room of pages that threads have faulted on,
//! and if pages are evicted before the reader reaches them, its windows shrink at once.

use super::orders::carry_out_orders;
use super::*;

const PAGES: u32 = 4096;
const LIMIT: u32 = 512;
const WINDOW: u32 = 64;

/// Kind of memory: of a process that serves its own faults, of several that share and map it, or of one whose helper
/// removes pages by order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Inline,
    Mapped,
    Exec,
}

const KINDS: [Kind; 3] = [Kind::Inline, Kind::Mapped, Kind::Exec];

fn rig(kind: Kind) -> Rig {
    let mut rig = Rig::with(PagerOptions { pages: PAGES, limit: LIMIT, prefetch: true, evict: true });
    rig.kernel.makes_ready = kind == Kind::Mapped;
    rig.kernel.by_order = kind == Kind::Exec;
    rig
}

/// Like `rig`, but with a region that was never written.
fn fresh(kind: Kind) -> Rig {
    let mut rig = rig(kind);
    rig.pager = Pager::new(*rig.pager.options(), Slots::own(PAGES, true));
    assert_eq!(rig.pager.add_view(PageTable::local(PAGES), true), Ok(VIEW));
    assert_eq!(rig.pager.add_mapping(VIEW), Ok(ONLY));
    rig.pager.reserve();
    rig
}

/// Touches a page, and runs the pager until nothing is pending.
fn touch(rig: &mut Rig, page: u32, write: bool) {
    if !rig.kernel.pages.contains_key(&page) {
        rig.fault(page, write);
    }
    settle(rig);
    while !rig.kernel.pages.contains_key(&page) {
        rig.fault(page, write);
        settle(rig);
    }
}

fn settle(rig: &mut Rig) {
    loop {
        rig.answer();
        let work = rig.turn() + carry_out_orders(rig).len();
        if work == 0 && rig.nodes.fetches.is_empty() && rig.nodes.writes.is_empty() {
            rig.pager.remove_held_pages();
            if !rig.pager.has_work() {
                return;
            }
        }
    }
}

/// Touches page after page from `from` on, until untouched pages lie ahead of the reader; returns the reader's
/// position.
fn reader(rig: &mut Rig, from: u32, write: bool) -> u32 {
    for page in from.. {
        touch(rig, page, write);
        if page > from + 128 && (1..8).all(|ahead| rig.kernel.pages.contains_key(&(page + ahead))) {
            return page;
        }
    }
    unreachable!("nothing is read ahead")
}

/// Lowers the limit of resident pages for a while, so that all pages are evicted, including those ahead of the reader
/// at `page`.
fn squeeze(rig: &mut Rig, page: u32) {
    rig.pager.set_limit(16);
    settle(rig);
    assert_eq!(rig.state(page + 2), PageState::Absent);
    rig.pager.set_limit(LIMIT);
}

/// Maximum window of the reader at `page`.
fn most(rig: &Rig, page: u32) -> u32 {
    rig.pager.view(VIEW).unwrap().prefetch.reader_window(page).expect("a reader")
}

/// Tests a reader beside a working set of pages on which threads faulted in random order: read-ahead gets
/// only free room.
#[test]
fn it_takes_no_place_of_what_was_asked_for() {
    for kind in KINDS {
        let mut rig = rig(kind);
        // The strides are too long for the prefetcher.
        (0..LIMIT - 20).for_each(|nth| rig.touch(nth * 37 % 2048..nth * 37 % 2048 + 1, false));
        assert_eq!(rig.pager.resident(), LIMIT - 20);
        rig.kernel.dropped.clear();
        // Without turns of the pager, the evictions make room for read-ahead only.
        (3000..3010).for_each(|page| rig.fault(page, false));
        assert!(rig.pager.counters().prefetched > 0, "{kind:?}");
        assert!(rig.kernel.dropped.is_empty(), "{kind:?}: {:?}", rig.kernel.dropped);
        assert!(rig.kernel.orders.is_empty(), "{kind:?}: {:?}", rig.kernel.orders);
    }
}

#[test]
fn an_early_eviction_halves_the_reader_windows() {
    for kind in KINDS {
        let mut rig = rig(kind);
        let page = reader(&mut rig, 0, false);
        assert_eq!(most(&rig, page), WINDOW, "{kind:?}");
        squeeze(&mut rig, page);
        assert_eq!(most(&rig, page), WINDOW / 2, "{kind:?}");
        let page = reader(&mut rig, page + 1, false);
        let before = most(&rig, page);
        squeeze(&mut rig, page);
        assert_eq!(most(&rig, page), before / 2, "{kind:?}");
    }
}

/// Tests pages whose earlier evictions are remembered, but on which no thread has faulted since they were read ahead.
#[test]
fn a_refault_of_a_remembered_page_halves_the_windows() {
    for kind in KINDS {
        let mut rig = rig(kind);
        let table = &rig.pager.view(VIEW).unwrap().table;
        (0..PAGES).for_each(|page| table.set(page, Entry::absent(page).with(Flags::RECENT)));
        let page = reader(&mut rig, 0, false);
        assert!(rig.pager.counters().refaulted > 100 && most(&rig, page) == WINDOW, "{kind:?}");
        squeeze(&mut rig, page);
        assert_eq!(most(&rig, page), WINDOW / 2, "{kind:?}");
    }
}

#[test]
fn zeros_put_there_ahead_halve_them_as_well() {
    for (kind, write) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let mut rig = fresh(kind);
        let page = reader(&mut rig, 0, write);
        assert_eq!(most(&rig, page), WINDOW, "{kind:?}");
        squeeze(&mut rig, page);
        assert_eq!(most(&rig, page), WINDOW / 2, "{kind:?}, write: {write}");
    }
}

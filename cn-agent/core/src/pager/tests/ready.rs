//! Tests of preparing memory for pages in flight.

use super::*;

fn rig() -> Rig {
    let mut rig = Rig::new();
    rig.kernel.makes_ready = true;
    rig
}

fn fault(rig: &mut Rig, page: u32, access: Access) {
    rig.io(|pager, io| pager.fault(Fault { mapping: ONLY, page, access, write: false }, io));
}

#[test]
fn memory_is_made_ready_once_a_page_was_sent_for_and_filled_before_it_is_installed() {
    let mut rig = rig();
    rig.fault(3, false);
    assert!(rig.kernel.ready.is_empty() && rig.pager.has_work(), "its request leaves first");
    rig.nodes.demands = 1;
    rig.turn();
    assert_eq!(rig.kernel.ready, [(3, false)].into());
    rig.answer();
    assert_eq!((rig.kernel.ready.get(&3), rig.state(3)), (Some(&true), PageState::Clean));
    // Another thread of this process, or of one that shares the memory, touches the prepared page: it waits too.
    rig.fault(4, false);
    rig.turn();
    fault(&mut rig, 4, Access::Unmapped);
    assert_eq!((rig.nodes.fetches.len(), rig.state(4)), (1, PageState::Fetching));
    assert!(!rig.kernel.woken.contains(&4));
    // With many faults no memory is prepared: pages that have arrived are installed first.
    (8..12).for_each(|page| rig.fault(page, false));
    rig.nodes.demands = 5;
    rig.turn();
    assert!(rig.kernel.ready.range(5..).next().is_none() && !rig.pager.has_work());
    // While pages have to be evicted, no memory is prepared either.
    rig.answer();
    rig.nodes.demands = 1;
    for page in 30..30 + LIMIT - 10 {
        rig.touch(page..page + 1, false);
        rig.turn();
    }
    assert_eq!((rig.pager.resident(), rig.kernel.dropped.len()), (LIMIT - 4, 0), "as many as may stay");
    rig.fault(200, false);
    rig.turn();
    assert!(rig.state(200) == PageState::Fetching && !rig.kernel.ready.contains_key(&200));
    while rig.pager.has_work() {
        rig.turn();
    }
    // A page that has already arrived needs no prepared memory.
    rig.fault(20, false);
    rig.answer();
    rig.nodes.demands = 0;
    rig.turn();
    assert!(!rig.kernel.ready.contains_key(&20));
}

#[test]
fn an_overdue_page_is_given_up() {
    for lost in [false, true] {
        let mut rig = rig();
        rig.fault(3, false);
        rig.turn();
        let (_, buffer, _) = rig.nodes.fetches.pop_front().unwrap();
        if !lost {
            rig.pager.discarded(VIEW, 3..4);
        }
        let outcome = if lost { Err(Lost) } else { Ok(()) };
        rig.io(|pager, io| pager.fetched(buffer, outcome, io));
        assert!(rig.kernel.ready.is_empty());
        assert_eq!(rig.state(3), if lost { PageState::Lost } else { PageState::Absent });
    }
    // A fault at an absent page whose memory is prepared: the page does not count as resident.
    let mut rig = rig();
    rig.kernel.ready.insert(5, false);
    fault(&mut rig, 5, Access::Unmapped);
    assert!(rig.kernel.ready.is_empty() && rig.kernel.woken == [5]);
    assert_eq!(rig.state(5), PageState::Absent);
}

#[test]
fn a_successor_takes_no_page_that_was_only_made_ready() {
    for (makes_ready, state) in [(true, PageState::Absent), (false, PageState::Clean)] {
        let mut rig = rig();
        rig.kernel.makes_ready = makes_ready;
        rig.fault(3, false);
        rig.fault(4, false);
        rig.pager.discarded(VIEW, 4..5);
        rig.turn();
        // The memory of these pages may be partially filled when the agent dies.
        rig.kernel.pages.extend([(3, [7; PAGE_BYTES]), (4, [7; PAGE_BYTES])]);
        let mut next = Rig::new();
        for page in 0..PAGES {
            let entry = rig.pager.entry_of(VIEW, page).unwrap();
            next.io(|pager, _| pager.set(VIEW, page, entry));
        }
        let kernel = &mut rig.kernel;
        next.pager.take_over(VIEW, kernel);
        assert_eq!((next.state(3), kernel.pages.contains_key(&3)), (state, !makes_ready));
        assert_eq!((next.state(4), kernel.pages.contains_key(&4)), (PageState::Absent, !makes_ready));
    }
}

/// Tests that a page of zeros is not taken for the content. The kernel makes such a page when a process that
/// has the shared memory, and is no member, reads a hole.
#[test]
fn a_page_that_an_outsider_made_is_not_the_content() {
    for (makes_ready, write) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut rig = Rig::new();
        rig.kernel.makes_ready = makes_ready;
        rig.kernel.pages.insert(5, [0; PAGE_BYTES]);
        let touch = Fault { mapping: ONLY, page: 5, access: Access::Unmapped, write };
        rig.io(|pager, io| pager.fault(touch, io));
        assert_eq!((rig.state(5), rig.nodes.fetches.len()), (PageState::Fetching, 1));
        rig.answer();
        assert_eq!(rig.kernel.pages[&5], content(5));
        assert_eq!(rig.state(5), if write { PageState::Dirty } else { PageState::Clean });
    }
}

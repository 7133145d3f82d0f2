//! Tests of the withdrawal of a view: all its pages are removed, so that the region can move to another compute node.

use super::*;

/// Writes dirty pages back and withdraws the view; returns the number of attempts.
fn withdraw(rig: &mut Rig) -> usize {
    for attempt in 1..9 {
        if rig.io(|pager, io| pager.withdraw(VIEW, io)) {
            return attempt;
        }
        let mut from = Some(0);
        while let Some(page) = from {
            from = rig.io(|pager, io| pager.clean_from(VIEW, page, false, io));
            rig.answer();
        }
        rig.turn();
    }
    panic!("it is not withdrawn")
}

#[test]
fn all_pages_leave_and_none_is_lost() {
    let mut rig = Rig::new();
    rig.touch(0..8, false);
    rig.touch(8..16, true);
    let changed = rig.kernel.pages[&9];
    // A write without a fault, as after the kernel has merged the page.
    rig.kernel.unprotected.insert(3);
    rig.kernel.pages.get_mut(&3).unwrap()[7] = 99;
    assert!(withdraw(&mut rig) > 1);
    assert!(rig.kernel.pages.is_empty() && rig.pager.resident() == 0);
    assert_eq!(rig.nodes.written.keys().copied().collect::<Vec<_>>(), [3, 8, 9, 10, 11, 12, 13, 14, 15]);
    assert_eq!((rig.nodes.written[&9], rig.nodes.written[&3][7]), (changed, 99));
    assert!((0..16).all(|page| rig.state(page) == PageState::Absent));
    // After the withdrawal, pages are fetched as before.
    rig.touch(0..16, false);
    assert_eq!((rig.kernel.pages[&0], rig.pager.resident()), (content(0), 16));
}

#[test]
fn pages_in_flight_are_waited_for() {
    let mut rig = Rig::new();
    rig.fault(5, false);
    assert!(!rig.io(|pager, io| pager.withdraw(VIEW, io)));
    rig.answer();
    assert!(rig.kernel.pages.contains_key(&5));
    assert_eq!(withdraw(&mut rig), 1);
    rig.touch(5..6, true);
    assert!(!rig.io(|pager, io| pager.withdraw(VIEW, io)), "it is dirty");
    assert!(rig.kernel.pages.contains_key(&5), "and stays");
}

#[test]
fn copies_of_evicted_pages_go_along() {
    let mut rig = Rig::new();
    rig.touch(0..LIMIT, false);
    rig.turn();
    assert_eq!(rig.state(0), PageState::Staged);
    assert_eq!(withdraw(&mut rig), 1);
    assert_eq!((rig.state(0), rig.pager.buffers().kept_count()), (PageState::Absent, 0));
}

#[test]
fn zeros_are_named_and_not_sent() {
    let mut rig = Rig::new();
    rig.touch(0..2, true);
    rig.pager.discarded(VIEW, 1..5);
    rig.pager.discarded(VIEW, 9..10);
    withdraw(&mut rig);
    assert_eq!(rig.nodes.written.keys().copied().collect::<Vec<_>>(), [0]);
    assert_eq!(rig.pager.zero_runs(VIEW), [1..5, 9..10]);

    let mut there = Rig::new();
    for run in rig.pager.zero_runs(VIEW) {
        there.pager.set_zeros(VIEW, run);
    }
    there.pager.set_zeros(VIEW, PAGES - 1..PAGES + 9);
    there.fault(4, false);
    assert!(there.nodes.fetches.is_empty());
    assert_eq!(there.kernel.pages[&4], [0; PAGE_BYTES]);
    there.fault(5, false);
    assert_eq!(there.nodes.fetches.len(), 1);
}

#[test]
fn hot_pages_are_fetched_first_where_the_region_goes() {
    let mut rig = Rig::new();
    rig.touch(0..8, false);
    let hot = rig.pager.hot_pages(VIEW, 100);
    assert_eq!(hot, [7, 6, 5, 4, 3, 2, 1, 0]);
    assert_eq!(rig.pager.hot_pages(VIEW, 3), [7, 6, 5]);
    let mut there = Rig::new();
    there.pager.will_read(VIEW, &hot);
    there.pager.will_read(VIEW, &[PAGES, 40]);
    assert!(there.pager.has_work());
    there.turn();
    let order: Vec<u32> = there.nodes.fetches.iter().map(|(slot, _, _)| *slot).collect();
    assert_eq!(order, [7, 6, 5, 4, 3, 2, 1, 0, 40]);
    there.answer();
    there.turn();
    assert_eq!(there.pager.resident(), 9);
    // Pages announced as soon to be read are fetched only while there is room: no other page is evicted for them.
    let many: Vec<u32> = (0..PAGES).collect();
    there.pager.will_read(VIEW, &many);
    while there.pager.has_work() {
        there.turn();
        there.answer();
    }
    assert!(there.pager.resident() < LIMIT && there.pager.counters().evicted == 0);
}

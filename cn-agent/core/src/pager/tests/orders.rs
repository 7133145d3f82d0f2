//! Removal of pages by orders to their process: many at a time, unless a thread waits for one of them.

use super::*;

/// Limit of resident pages, large enough that the reserve permits orders of many pages.
const LIMIT: u32 = 1024;

fn rig() -> Rig {
    let mut rig = Rig::with(PagerOptions { pages: 4 * LIMIT, limit: LIMIT, prefetch: false, evict: true });
    rig.kernel.by_order = true;
    rig
}

/// Carries out the pending orders; returns the number of pages of each.
pub(super) fn carry_out_orders(rig: &mut Rig) -> Vec<usize> {
    let mut sizes = Vec::new();
    while let Some(ranges) = rig.kernel.orders.pop_front() {
        sizes.push(ranges.iter().map(Range::len).sum());
        for range in ranges {
            range.clone().for_each(|page| {
                rig.kernel.pages.remove(&page);
            });
            rig.io(|pager, io| pager.dropped(VIEW, range, io));
        }
    }
    sizes
}

/// Reads pages one after the other, with the time between two faults that a program usually takes. Returns
/// the number of pages of each order.
fn read(rig: &mut Rig, pages: Range<u32>) -> Vec<usize> {
    let mut sizes = Vec::new();
    for page in pages {
        rig.fault(page, false);
        rig.nodes.demands = 1;
        rig.turn();
        rig.nodes.demands = 0;
        rig.answer();
        while rig.pager.has_work() {
            rig.turn();
            sizes.extend(carry_out_orders(rig));
        }
        assert!(rig.kernel.pages.contains_key(&page) && rig.pager.resident() <= LIMIT);
    }
    sizes
}

#[test]
fn pages_of_a_program_that_faults_now_and_then_leave_many_at_a_time() {
    let mut rig = rig();
    let sizes = read(&mut rig, 0..3 * LIMIT);
    assert!(sizes.len() > 50 && sizes.iter().all(|size| *size >= 16), "{sizes:?}");
    assert_eq!(rig.pager.counters().waits_for_room, 0);
    // Removals that were held back are ordered when they are due, and nothing is left to do.
    rig.pager.remove_held_pages();
    while rig.pager.has_work() {
        rig.turn();
    }
    let rest = carry_out_orders(&mut rig);
    assert!(rest.len() <= 1 && rest.iter().all(|size| *size < 16), "{rest:?}");
    let leaves = (0..4 * LIMIT).filter(|page| rig.state(*page) == PageState::Dropping).count();
    assert_eq!(leaves, 0);
}

#[test]
fn who_waits_for_room_has_it_at_once() {
    let mut rig = rig();
    read(&mut rig, 0..2 * LIMIT);
    rig.pager.set_limit(LIMIT / 2);
    while rig.pager.has_work() {
        rig.turn();
        carry_out_orders(&mut rig);
    }
    assert!(rig.pager.resident() <= LIMIT / 2);
}

/// Only the process can make room, and its answer is an event: a turn would try every waiting fault in vain.
#[test]
fn faults_wait_for_answers_to_orders_without_turns() {
    const FAULTS: u32 = 8;
    let mut rig = rig();
    rig.touch(0..LIMIT, false);
    (LIMIT..LIMIT + FAULTS).for_each(|page| rig.fault(page, false));
    let mut turns = 0;
    while rig.pager.has_work() && turns < 100 {
        rig.turn();
        turns += 1;
    }
    assert!(turns <= 2, "{turns} turns");
    assert_eq!((rig.kernel.orders.len(), rig.nodes.fetches.len()), (1, 0));
    assert!((LIMIT..LIMIT + FAULTS).all(|page| rig.pager.has_pending_fault(ONLY, page)));
    carry_out_orders(&mut rig);
    assert!(rig.pager.has_work(), "there is room");
    rig.turn();
    assert_eq!(rig.nodes.fetches.len(), FAULTS as usize);
    rig.answer();
    assert!((LIMIT..LIMIT + FAULTS).all(|page| rig.kernel.pages.contains_key(&page)));
    assert_eq!(rig.pager.counters().waits_for_room, u64::from(FAULTS), "each fault once");
}

/// A timer of the program may interrupt its threads at any rate.
#[test]
fn a_fault_that_is_reported_again_and_again_is_kept_once() {
    let mut rig = rig();
    rig.touch(0..LIMIT, false);
    (0..1000).for_each(|time| rig.fault(LIMIT + time % 2, time == 500));
    assert_eq!(rig.pager.waiting_faults().count(), 2);
    while rig.pager.has_work() {
        rig.turn();
        carry_out_orders(&mut rig);
    }
    rig.answer();
    assert_eq!((rig.state(LIMIT), rig.state(LIMIT + 1)), (PageState::Dirty, PageState::Clean));
    assert_eq!(rig.pager.waiting_faults().count(), 0);
}

/// The kernel's records of many pages are read before the order that removes them.
#[test]
fn pages_that_leave_by_order_are_not_looked_at_one_by_one() {
    let mut rig = rig();
    rig.touch(0..LIMIT, false);
    (8..24).for_each(|page| rig.pager.order.advise_passed(PageRef { view: VIEW, page }));
    rig.kernel.looks = 0;
    // The program has discarded one of the pages without a word.
    rig.kernel.pages.remove(&20);
    rig.turn();
    assert_eq!((rig.kernel.looks, &rig.kernel.orders[0][..]), (0, &[8..24][..]));
    carry_out_orders(&mut rig);
    let slots = |page| rig.pager.entry_of(VIEW, page).unwrap().slot();
    assert_eq!((slots(19), slots(20)), (Some(19), None), "it reads as zeros");
}

#[test]
fn a_demanded_page_does_not_wait_for_others() {
    let mut rig = rig();
    read(&mut rig, 0..LIMIT);
    let mut next = LIMIT;
    let waiting = loop {
        read(&mut rig, next..next + 1);
        next += 1;
        if let Some(page) = (0..next).find(|page| rig.state(*page) == PageState::Dropping) {
            break page;
        }
    };
    assert!(rig.kernel.orders.is_empty() && !rig.pager.has_work());
    let fault = Fault { mapping: ONLY, page: waiting, access: Access::Protected, write: true };
    rig.kernel.woken.clear();
    rig.io(|pager, io| pager.fault(fault, io));
    assert!(rig.pager.has_pending_fault(ONLY, waiting) && rig.pager.has_work());
    rig.turn();
    assert_eq!(rig.kernel.orders.len(), 1);
    carry_out_orders(&mut rig);
    assert_eq!(rig.kernel.woken, [waiting], "it is told to try again");
    let fault = Fault { access: Access::Missing, ..fault };
    rig.io(|pager, io| pager.fault(fault, io));
    assert_eq!((rig.state(waiting), rig.kernel.pages[&waiting]), (PageState::Dirty, content(waiting)));
}

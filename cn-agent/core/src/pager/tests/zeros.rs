//! Discarded pages are zeros, locally and at the memory node.

use super::*;

/// Begins to write back all dirty pages; returns whether nothing is left to do.
fn clean(rig: &mut Rig) -> bool {
    rig.io(|pager, io| pager.clean_all(VIEW, io))
}

/// Ends the only write in flight; returns its slot.
fn end_write(rig: &mut Rig, outcome: Result<(), Lost>) -> u32 {
    let (slot, buffer) = rig.nodes.writes.pop_front().expect("something is being written");
    assert!(rig.nodes.writes.is_empty());
    rig.io(|pager, io| pager.written(buffer, outcome, io));
    slot
}

#[test]
fn zeros_of_what_was_discarded_are_sent_until_they_have_arrived() {
    let mut rig = Rig::new();
    rig.pager.discarded(VIEW, 7..8);
    assert!(!clean(&mut rig));
    assert_eq!(end_write(&mut rig, Err(Lost)), 7);
    assert_eq!(rig.pager.counters().write_back_failures, 1);
    // The memory node holds old content, so a read is served with zeros.
    rig.fault(7, false);
    assert!(rig.nodes.fetches.is_empty());
    assert_eq!(rig.kernel.pages[&7], [0; PAGE_BYTES]);
    assert!(!clean(&mut rig));
    assert_eq!(end_write(&mut rig, Err(Lost)), 7);
    assert!(!clean(&mut rig));
    assert_eq!(end_write(&mut rig, Ok(())), 7);
    assert!(clean(&mut rig));
    // A page that is not touched meanwhile behaves the same.
    rig.pager.discarded(VIEW, 8..9);
    assert!(!clean(&mut rig));
    assert_eq!(end_write(&mut rig, Err(Lost)), 8);
    assert!(!clean(&mut rig));
    assert_eq!(end_write(&mut rig, Ok(())), 8);
    assert!(clean(&mut rig));
    rig.fault(8, false);
    assert_eq!(rig.nodes.fetches.front().map(|(page, ..)| *page), Some(8), "they are there now");
}

/// Tests that a thread that reads a page discarded while it is being sent is woken at the end of that, not at once,
/// when it would only fault again.
#[test]
fn a_read_of_what_was_discarded_while_it_is_sent_waits() {
    for is_announced in [true, false] {
        let mut rig = Rig::new();
        rig.touch(7..8, true);
        assert!(!clean(&mut rig));
        rig.kernel.pages.remove(&7);
        if is_announced {
            rig.pager.discarded(VIEW, 7..8);
        }
        rig.kernel.woken.clear();
        rig.fault(7, false);
        assert!(rig.kernel.woken.is_empty() && rig.pager.has_pending_fault(ONLY, 7));
        assert_eq!(end_write(&mut rig, Ok(())), 7);
        assert_eq!(rig.kernel.woken, [7]);
        rig.fault(7, false);
        assert_eq!(rig.kernel.pages[&7], [0; PAGE_BYTES]);
        assert_eq!(rig.pager.counters().discarded, 1);
    }
}

/// Tests that a page and its zeros are not in flight at once: a fetch could overtake the zeros and return old
/// content, and the zeros could overwrite later writes.
#[test]
fn no_write_of_a_page_is_in_flight_with_its_zeros() {
    for (write, outcome) in [(false, Ok(())), (true, Ok(())), (false, Err(Lost)), (true, Err(Lost))] {
        let mut rig = Rig::new();
        rig.pager.discarded(VIEW, 7..8);
        assert!(!clean(&mut rig));
        rig.fault(7, write);
        rig.turn();
        assert!(rig.pager.has_pending_fault(ONLY, 7), "whoever stopped there is told to go on");
        assert!(rig.nodes.fetches.is_empty() && rig.kernel.pages.is_empty());
        assert_eq!(end_write(&mut rig, outcome), 7);
        assert_eq!(rig.kernel.woken, [7]);
        assert!(!rig.pager.has_pending_fault(ONLY, 7));
        rig.fault(7, write);
        assert_eq!(rig.nodes.fetches.len(), usize::from(outcome.is_ok()));
        assert_eq!(rig.kernel.pages.len(), usize::from(outcome.is_err()));
        assert_eq!(rig.pager.buffers().used(), rig.nodes.fetches.len());
    }
}

#[test]
fn a_successor_does_not_take_zeros_for_arrived() {
    let mut rig = Rig::new();
    rig.pager.discarded(VIEW, 7..8);
    assert!(!clean(&mut rig));
    let table = PageTable::local(PAGES);
    (0..PAGES).for_each(|page| table.set(page, rig.pager.entry_of(VIEW, page).unwrap()));
    let mut next = Rig::new();
    next.pager = Pager::new(*rig.pager.options(), Slots::own(PAGES, false));
    assert_eq!(next.pager.add_view(table, true), Ok(VIEW));
    assert_eq!(next.pager.add_mapping(VIEW), Ok(ONLY));
    next.pager.take_over(VIEW, &mut next.kernel);
    next.fault(7, false);
    assert!(next.nodes.fetches.is_empty());
    assert_eq!(next.kernel.pages[&7], [0; PAGE_BYTES]);
    assert!(!clean(&mut next));
    assert_eq!(end_write(&mut next, Ok(())), 7);
    assert!(clean(&mut next));
}

#[test]
fn a_page_discarded_on_its_way_is_not_written_back_before_its_zeros_are() {
    let mut rig = Rig::new();
    rig.fault(7, false);
    rig.pager.discarded(VIEW, 7..8);
    assert!(!clean(&mut rig), "zeros are due, and cannot be sent yet");
    rig.answer();
    assert!(!clean(&mut rig));
    assert_eq!(end_write(&mut rig, Ok(())), 7);
    assert!(clean(&mut rig));
}

/// Many programs discard memory that they have freed, and soon use it again.
#[test]
fn a_page_that_is_discarded_and_touched_again_and_again_does_not_fill_the_queues() {
    let mut rig = Rig::new();
    rig.touch(0..8, false);
    for time in 0..10_000 {
        rig.touch(7..8, true);
        rig.kernel.pages.remove(&7);
        rig.pager.discarded(VIEW, 7..8);
        assert!(rig.pager.order.entries() <= 3 * LIMIT as usize, "{time}");
    }
}

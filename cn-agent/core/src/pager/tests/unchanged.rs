//! Pages whose page table entries the kernel recreates without write protection.

use super::*;

/// Writes to a page without a fault, as a program does after the kernel has merged the page.
fn write_unseen(rig: &mut Rig, page: u32) {
    rig.kernel.unprotected.insert(page);
    rig.kernel.pages.get_mut(&page).unwrap()[100] = 77;
}

/// Lets the program advise that these pages are not needed for long, and runs the pager until none of them is resident.
fn page_out(rig: &mut Rig, pages: Range<u32>) {
    for _ in 0..8 {
        rig.pager.hint(VIEW, pages.clone(), Hint::PageOut);
        while rig.pager.has_work() {
            rig.turn();
            rig.answer();
        }
    }
    assert!(pages.into_iter().all(|page| !rig.kernel.pages.contains_key(&page)), "all have left");
}

#[test]
fn a_write_without_a_fault_is_sent_before_its_page_leaves() {
    let mut rig = Rig::new();
    rig.touch(0..4, false);
    write_unseen(&mut rig, 2);
    page_out(&mut rig, 0..4);
    let mut written = content(2);
    written[100] = 77;
    assert_eq!(rig.nodes.written, BTreeMap::from([(2, written)]), "this page only");
}

#[test]
fn a_write_while_a_page_waits_for_its_removal_keeps_it() {
    let mut rig = Rig::new();
    rig.kernel.by_order = true;
    rig.touch(0..LIMIT, false);
    rig.io(|pager, io| {
        let entry = pager.entry(VIEW, 1);
        let kept = pager.copy_to_keep(PageRef { view: VIEW, page: 1 }, Heat::default(), entry, io).unwrap();
        assert!(kept.is_some());
        pager.evict_clean(VIEW, 1, entry, kept);
    });
    write_unseen(&mut rig, 1);
    rig.pager.remove_held_pages();
    let kept = rig.pager.buffers().kept_count();
    rig.turn();
    assert_eq!(rig.state(1), PageState::Dirty);
    assert!(!rig.kernel.orders.iter().flatten().any(|range| range.contains(&1)), "{:?}", rig.kernel.orders);
    assert_eq!(rig.pager.entry_of(VIEW, 1).unwrap().buffer(), None, "it is sent whole");
    assert!(kept > 0 && rig.kernel.woken.contains(&1));
}

#[test]
fn a_page_discarded_without_a_word_leaves_as_zeros() {
    let mut rig = Rig::new();
    rig.touch(0..4, false);
    rig.io(|pager, _| {
        let entry = pager.entry(VIEW, 3);
        pager.evict_clean(VIEW, 3, entry, None);
    });
    rig.kernel.pages.remove(&3);
    rig.turn();
    assert_eq!((rig.state(3), rig.pager.entry_of(VIEW, 3).unwrap().slot()), (PageState::Absent, None));
}

#[test]
fn the_first_seen_write_after_an_unseen_one_has_no_twin() {
    let mut rig = Rig::new();
    rig.touch(0..2, false);
    write_unseen(&mut rig, 1);
    for page in 0..2 {
        let fault = Fault { mapping: ONLY, page, access: Access::Protected, write: true };
        rig.io(|pager, io| pager.fault(fault, io));
    }
    let twin = |page| rig.pager.entry_of(VIEW, page).unwrap().buffer();
    assert!(twin(0).is_some() && twin(1).is_none());
}

#[test]
fn writing_everything_back_finds_writes_without_a_fault() {
    let mut rig = Rig::new();
    rig.touch(0..8, false);
    write_unseen(&mut rig, 5);
    assert!(!rig.io(|pager, io| pager.clean_all(VIEW, io)));
    rig.answer();
    assert!(rig.io(|pager, io| pager.clean_all(VIEW, io)));
    assert_eq!(rig.nodes.written.keys().collect::<Vec<_>>(), [&5]);
    assert_eq!(rig.nodes.written[&5][100], 77);
}

#[test]
fn where_the_kernel_shows_nothing_every_page_is_sent_when_it_leaves() {
    let mut rig = Rig::new();
    rig.kernel.hides_protection = true;
    rig.touch(0..4, false);
    rig.kernel.pages.get_mut(&2).unwrap()[100] = 77;
    page_out(&mut rig, 0..4);
    assert!((0..4).all(|page| rig.nodes.written.contains_key(&page)));
    assert_eq!(rig.nodes.written[&2][100], 77);
}

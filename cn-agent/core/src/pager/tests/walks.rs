//! Walks through whole tables: what arrives between two steps has the same effect as if the walk had been done at once.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::forks::{CHILD, Family, PARENT};
use super::*;

/// Number of entries of a step: a table has 16 times as many.
const STEP: u32 = PAGES / 16;
/// Maximum numbers of fetches, of writes and of removals under way in a random state. Together they are handled in the
/// turn in which a walk ends.
const UNDER_WAY: usize = 16;

impl Family {
    /// A family whose parent has 40 pages at memory nodes, of which the first eight are not in memory. Walks take many
    /// steps.
    fn in_steps() -> Family {
        let mut family = Family::new(40);
        family.clean(PARENT);
        family.take_away(PARENT, 0..8);
        family.pager.set_walk_step(STEP);
        family
    }

    fn turn(&mut self) -> usize {
        self.io(|pager, io| pager.turn(io))
    }

    /// Takes turns until no walk is left; returns their number.
    fn end_walks(&mut self) -> u32 {
        let mut turns = 0;
        while self.pager.is_walking() {
            self.turn();
            turns += 1;
            assert!(turns < 1000, "it does not end");
        }
        turns
    }

    /// Handles a write to a page that is write-protected.
    fn write(&mut self, view: ViewId, page: u32) {
        let fault = Fault { mapping: MappingId(view.0), page, access: Access::Protected, write: true };
        self.io(|pager, io| pager.fault(fault, io));
    }

    /// Reads the last byte of a page, all of whose bytes are the same.
    fn read(&mut self, view: ViewId, page: u32) -> u8 {
        for _ in 0..100 {
            if self.memory.pages.contains_key(&(view.0, page)) {
                return self.byte(view, page);
            }
            if !self.pager.has_pending_fault(MappingId(view.0), page) {
                self.fault(view, page, false);
            }
            self.answer();
            self.turn();
        }
        panic!("page {page} of {view:?} does not come")
    }

    fn entries(&self, view: ViewId) -> Vec<Entry> {
        (0..PAGES).map(|page| self.entry(view, page)).collect()
    }

    fn state(&self, view: ViewId, page: u32) -> PageState {
        self.entry(view, page).state()
    }

    fn slot(&self, view: ViewId, page: u32) -> Option<u32> {
        self.entry(view, page).slot()
    }

    /// Whether another view refers to the slot of a page, which must have one.
    fn is_shared(&self, view: ViewId, page: u32) -> bool {
        self.pager.slots.is_shared(self.slot(view, page).unwrap())
    }
}

/// A table that holds what an agent has left that was killed during a fork: it refers to a slot of another page.
fn left_behind() -> PageTable {
    let table = PageTable::local(PAGES);
    (0..PAGES).for_each(|page| table.set(page, Entry::absent(9).to(PageState::Dirty)));
    table
}

#[test]
fn a_child_gets_its_table_in_steps() {
    let mut family = Family::in_steps();
    assert_eq!(family.fork_of(PARENT, left_behind()), CHILD);
    assert!(family.pager.is_walking() && family.pager.is_copying(CHILD) && !family.pager.is_copying(PARENT));
    assert!(family.pager.has_work());
    assert_eq!(family.pager.resident(), 32 + 8, "the first step is done");
    assert_eq!(family.end_walks(), 15);
    assert!(!family.pager.is_copying(CHILD));
    let mut at_once = Family::in_steps();
    at_once.pager.set_walk_step(PAGES);
    assert_eq!(at_once.fork_of(PARENT, PageTable::local(PAGES)), CHILD);
    assert!(!at_once.pager.is_walking());
    assert_eq!(family.entries(CHILD), at_once.entries(CHILD));
    let counts =
        |family: &Family| (family.pager.resident(), family.pager.bounded(), family.pager.slots_used());
    assert_eq!((counts(&family), counts(&at_once)), ((64, 32, 40), (64, 32, 40)));
}

#[test]
fn nothing_happens_to_a_page_while_a_child_is_copied() {
    use PageState::{Absent, Clean, Cleaning, Dirty, Dropping, Fetching};
    let mut family = Family::in_steps();
    // Page 0 is being fetched, page 10 written back, page 12 removed.
    family.fault(PARENT, 0, false);
    family.write(PARENT, 10);
    family.memory.pages.insert((PARENT.0, 10), content(99));
    family.io(|pager, io| pager.clean_from(PARENT, 0, false, io));
    family.order_away(PARENT, 12..13);
    let before = family.entries(PARENT);
    let states = [0, 10, 12].map(|page: usize| before[page].state());
    assert_eq!(states, [Fetching, Cleaning, Dropping]);
    assert_eq!(family.fork_of(PARENT, left_behind()), CHILD);
    assert!(family.answer_fetch(Ok(())) && family.answer_write(Ok(())));
    family.io(|pager, io| pager.dropped(PARENT, 12..13, io));
    family.fault(PARENT, 1, false);
    assert_eq!(family.io(|pager, io| pager.clean_from(PARENT, 3, false, io)), Some(3));
    assert!(!family.io(|pager, io| pager.clean_all(PARENT, io)));
    for _ in 0..14 {
        family.turn();
        assert_eq!(family.entries(PARENT), before);
        assert!(!family.memory.pages.contains_key(&(PARENT.0, 0)) && family.nodes.fetches.is_empty());
        assert!(family.pager.has_pending_fault(MappingId(0), 1) && family.pager.is_walking());
    }
    family.turn();
    assert!(!family.pager.is_walking());
    // The turn that ends the walk handles what has arrived, and then the fault.
    let states = [0, 1, 10, 12].map(|page| family.state(PARENT, page));
    assert_eq!(states, [Dirty, Fetching, Clean, Absent]);
    assert_eq!((family.byte(PARENT, 0), family.nodes.fetches.len()), (1, 1));
    let states = [0, 1, 10, 12, 20].map(|page| family.state(CHILD, page));
    assert_eq!(states, [Absent, Absent, Dirty, Absent, Clean]);
    let slots = |view| [0, 1, 12, 20].map(|page| family.slot(view, page));
    assert_eq!((slots(CHILD), family.slot(CHILD, 10)), (slots(PARENT), None));
    // What the parent writes from now on does not reach the child.
    family.answer();
    family.write(PARENT, 0);
    family.memory.pages.insert((PARENT.0, 0), content(77));
    family.clean(PARENT);
    family.take_away(PARENT, 0..1);
    assert_eq!((family.read(CHILD, 0), family.read(PARENT, 0)), (1, 77));
    assert_eq!((family.read(CHILD, 10), family.read(PARENT, 10)), (99, 99));
}

#[test]
fn a_second_fork_during_a_copy_finds_the_same_pages() {
    let mut family = Family::in_steps();
    let first = family.fork_of(PARENT, left_behind());
    family.turn();
    let second = family.fork_of(PARENT, left_behind());
    assert!(family.pager.is_copying(first) && family.pager.is_copying(second));
    assert_eq!(family.end_walks(), 14 + 16);
    assert_eq!(family.entries(first), family.entries(second));
    assert!((0..40).all(|page| family.slot(second, page) == family.slot(PARENT, page)));
    family.pager.end_view(first);
    family.pager.end_view(second);
    family.end_walks();
    assert!((0..40).all(|page| !family.is_shared(PARENT, page)));
    assert_eq!((family.pager.resident(), family.pager.bounded(), family.pager.slots_used()), (32, 32, 40));
}

#[test]
fn a_child_that_ends_during_its_copy_leaves_nothing_behind() {
    let mut family = Family::in_steps();
    assert_eq!(family.fork_of(PARENT, left_behind()), CHILD);
    family.turn();
    family.turn();
    family.pager.end_view(CHILD);
    family.pager.end_view(CHILD);
    assert!(!family.pager.is_copying(CHILD) && family.pager.view_of(MappingId(1)).is_none());
    assert_eq!(family.pager.next_view(), Some(ViewId(2)), "its number is in use");
    assert_eq!(family.end_walks(), 2, "only the entries that it got are released, in three steps");
    assert_eq!(family.pager.next_view(), Some(CHILD));
    assert!((0..40).all(|page| !family.is_shared(PARENT, page)));
    assert_eq!((family.pager.resident(), family.pager.bounded(), family.pager.slots_used()), (32, 32, 40));
    // One that ends before its copy has begun, behind another one.
    let first = family.fork_of(PARENT, left_behind());
    let second = family.fork_of(PARENT, left_behind());
    family.pager.end_view(second);
    family.end_walks();
    assert_eq!((family.pager.resident(), family.pager.next_view()), (64, Some(second)));
    assert!((0..40).all(|page| family.slot(first, page) == family.slot(PARENT, page)));
}

#[test]
fn a_child_that_has_forked_gets_its_table_even_if_it_ends() {
    let mut family = Family::in_steps();
    assert_eq!(family.fork_of(PARENT, left_behind()), CHILD);
    let grandchild = family.fork_of(CHILD, left_behind());
    family.pager.end_view(CHILD);
    family.end_walks();
    assert_eq!((family.pager.entry_of(CHILD, 0), family.pager.resident()), (None, 64));
    assert!((0..40).all(|page| family.slot(grandchild, page) == family.slot(PARENT, page)));
    family.pager.end_view(grandchild);
    family.end_walks();
    assert!((0..40).all(|page| !family.is_shared(PARENT, page)));
}

#[test]
fn a_parent_that_ends_during_a_copy_leaves_its_pages_to_the_child() {
    let mut family = Family::in_steps();
    assert_eq!(family.fork_of(PARENT, left_behind()), CHILD);
    family.turn();
    family.pager.end_view(PARENT);
    assert_eq!(family.pager.view_of(MappingId(0)), None);
    family.end_walks();
    assert_eq!(family.pager.entry_of(PARENT, 0), None);
    let counts = (family.pager.resident(), family.pager.bounded(), family.pager.slots_used());
    assert_eq!(counts, (32, 0, 40), "its pages stay until it has joined");
    assert!((0..40).all(|page| !family.is_shared(CHILD, page)));
    assert_eq!([3, 20].map(|page| family.read(CHILD, page)), [4, 21]);
}

#[test]
fn transfers_of_a_view_that_is_ending_end_at_any_time() {
    let mut family = Family::in_steps();
    family.fork_of(PARENT, left_behind());
    family.end_walks();
    let used = family.pager.buffers().used();
    // Page 2 is being fetched, page 20 written to a slot of its own, page 21 removed.
    family.fault(CHILD, 2, false);
    family.write(CHILD, 20);
    family.memory.pages.insert((CHILD.0, 20), content(88));
    family.io(|pager, io| pager.clean_from(CHILD, 0, false, io));
    family.order_away(CHILD, 21..22);
    assert_eq!((family.nodes.fetches.len(), family.nodes.writes.len()), (1, 1));
    family.pager.end_view(CHILD);
    assert!(family.pager.is_walking());
    assert!(family.answer_fetch(Ok(())));
    family.turn();
    assert!(family.answer_write(Ok(())));
    family.io(|pager, io| pager.dropped(CHILD, 21..22, io));
    family.end_walks();
    assert_eq!((family.pager.coming, family.pager.leaving), (0, 0));
    assert_eq!(
        (family.pager.buffers().used(), family.pager.resident(), family.pager.slots_used()),
        (used, 32, 40)
    );
    assert!((0..40).all(|page| !family.is_shared(PARENT, page)));
    assert!(family.pager.walks.held.is_empty(), "no later view of this number gets the removal");
    assert_eq!(family.fork_of(PARENT, left_behind()), CHILD);
}

#[test]
fn twins_are_given_back_in_steps() {
    let mut family = Family::new(32);
    family.clean(PARENT);
    (0..16).for_each(|page| family.write(PARENT, page));
    // A step examines a chunk of buffers: the other twins are in the second one.
    let buffers = family.pager.buffers();
    let rest: Vec<BufferId> = (16..256).filter_map(|_| buffers.take(BufferUse::Scratch)).collect();
    (16..32).for_each(|page| family.write(PARENT, page));
    rest.into_iter().for_each(|buffer| family.pager.buffers().give(buffer));
    assert_eq!((family.pager.buffers().used(), family.pager.buffers().chunks()), (32, 2));
    family.pager.set_walk_step(STEP);
    family.pager.set_droppable(PARENT, false);
    assert_eq!((family.pager.buffers().used(), family.pager.is_walking()), (16, true));
    // The pages can be removed again before all twins are given back: the others stay.
    family.pager.set_droppable(PARENT, true);
    family.end_walks();
    assert_eq!((family.pager.buffers().used(), family.pager.bounded()), (16, 32));
    family.pager.set_droppable(PARENT, false);
    family.end_walks();
    assert_eq!((family.pager.buffers().used(), family.pager.bounded()), (0, 0));
    assert!((0..32).all(|page| family.state(PARENT, page) == PageState::Dirty));
}

#[test]
fn the_limit_changes_and_the_child_joins_during_a_copy() {
    let mut family = Family::in_steps();
    assert_eq!(family.fork_of(PARENT, left_behind()), CHILD);
    family.turn();
    family.pager.set_limit(32);
    family.pager.grow(4 * PAGES);
    family.pager.set_droppable(CHILD, true);
    family.turn();
    family.pager.hint(CHILD, 30..32, Hint::Cold);
    for _ in 0..1000 {
        if !family.pager.has_work() {
            break;
        }
        family.turn();
        family.answer();
    }
    assert!(family.pager.bounded() <= 32 && family.pager.bounded() == family.pager.resident());
    for page in 0..40 {
        for view in [PARENT, CHILD] {
            assert_eq!(u32::from(family.read(view, page)), page + 1, "{view:?} {page}");
        }
    }
    assert!(family.pager.resident() <= 32);
}

/// A timer of the program may interrupt its threads at any rate, and one fork may follow the other.
#[test]
fn a_fault_that_is_reported_again_during_walks_is_kept_once() {
    let mut family = Family::new(LIMIT);
    family.pager.set_walk_step(STEP);
    family.fault(PARENT, 100, false);
    for time in 0..3 {
        family.fork_of(PARENT, left_behind());
        for _ in 0..20 {
            family.fault(PARENT, 100, time == 1);
            family.fault(PARENT, 101, false);
        }
        assert_eq!(family.pager.waiting_faults().count(), 2, "{time}");
        family.end_walks();
        assert!([100, 101].iter().all(|page| family.pager.has_pending_fault(MappingId(0), *page)), "no room");
        (0..20).for_each(|_| family.fault(PARENT, 101, false));
        assert_eq!(family.pager.waiting_faults().count(), 2, "{time}");
    }
    assert_eq!((family.read(PARENT, 100), family.read(PARENT, 101)), (0, 0));
    assert_eq!(family.pager.waiting_faults().count(), 0);
    assert_eq!([100, 101].map(|page| family.state(PARENT, page)), [PageState::Dirty, PageState::Clean]);
}

/// A parent in a random state, with transfers and removals under way.
fn at_random(seed: u64) -> Family {
    let (mut random, mut family) = (StdRng::seed_from_u64(seed), Family::new(0));
    family.pager.set_limit(LIMIT / 2);
    for _ in 0..600 {
        let page = random.random_range(0..72);
        match random.random_range(0..13) {
            0..4 => family.fault(PARENT, page, random.random_range(0..2) == 0),
            4..6 => {
                family.write(PARENT, page);
                if family.state(PARENT, page) == PageState::Dirty {
                    family.memory.pages.insert((PARENT.0, page), content(random.random_range(0..200)));
                }
            }
            6 => {
                for _ in 0..random.random_range(1..6) {
                    family.answer_fetch(Ok(()));
                }
            }
            7 => {
                for _ in 0..random.random_range(1..6) {
                    family.answer_write(Ok(()));
                }
            }
            8 => {
                family.io(|pager, io| pager.clean_from(PARENT, page, false, io));
            }
            9 => {
                family.turn();
            }
            10 if family.state(PARENT, page) == PageState::Clean => {
                family.order_away(PARENT, page..page + 1);
            }
            11 => {
                for page in leaving(&family).into_iter().take(random.random_range(1..12)) {
                    family.io(|pager, io| pager.dropped(PARENT, page..page + 1, io));
                }
                family.turn();
            }
            _ => {
                family.pager.discarded(PARENT, page..page + 1);
                family.memory.pages.remove(&(PARENT.0, page));
            }
        }
    }
    while family.nodes.fetches.len() > UNDER_WAY {
        family.answer_fetch(Ok(()));
    }
    while family.nodes.writes.len() > UNDER_WAY {
        family.answer_write(Ok(()));
    }
    for page in leaving(&family).into_iter().skip(UNDER_WAY) {
        family.io(|pager, io| pager.dropped(PARENT, page..page + 1, io));
    }
    // Without stale entries, the same ones are examined whenever a pass is made.
    let Pager { order, views, .. } = &mut family.pager;
    order.begin_cleaning();
    order.clean_some(usize::MAX, |of| {
        let view = views[usize::from(of.view.0)].as_ref();
        view.is_some_and(|view| view.table.get(of.page).state().is_resident())
    });
    family
}

/// Pages of the parent whose removal was ordered and is not reported yet.
fn leaving(family: &Family) -> Vec<u32> {
    let is_ordered = |page: &u32| {
        let of = PageRef { view: PARENT, page: *page };
        family.state(PARENT, *page) == PageState::Dropping && !family.pager.to_drop.contains(&of)
    };
    (0..PAGES).filter(is_ordered).collect()
}

/// After a fork, the same inputs reach two pagers: one has copied the table at once, the other one copies it in steps.
#[test]
fn a_fork_in_steps_has_the_same_effect_as_one_at_once() {
    let mut under_way = [0; 3];
    for seed in 0..100 {
        let step = 1 + seed as u32 % 40;
        let mut both = [PAGES, step].map(|step| {
            let mut family = at_random(seed);
            family.pager.set_walk_step(step);
            assert_eq!(family.fork_of(PARENT, left_behind()), CHILD);
            family
        });
        let [at_once, in_steps] = &mut both;
        assert!(!at_once.pager.is_walking() && in_steps.pager.is_walking());
        let mut random = StdRng::seed_from_u64(seed + 1000);
        for _ in 0..8 {
            let (page, write) = (random.random_range(0..72), random.random_range(0..2) == 0);
            let fault = Fault { mapping: MappingId(PARENT.0), page, access: Access::Missing, write };
            if at_once.pager.waiting_faults().any(|other| other.page == page) {
                continue;
            }
            // A fault that is reported during the walk waits like one for which there is no room.
            at_once.pager.waiting.push_back(fault);
            in_steps.io(|pager, io| pager.fault(fault, io));
        }
        let mut turns_left = PAGES.div_ceil(step) - 1;
        let mut left = leaving(in_steps);
        let counts = [in_steps.nodes.fetches.len(), in_steps.nodes.writes.len(), left.len()];
        let [mut fetches, mut writes, _] = counts;
        for (sum, count) in under_way.iter_mut().zip(counts) {
            *sum += count;
        }
        while fetches + writes + left.len() > 0 {
            let outcome = if random.random_range(0..8) == 0 { Err(Lost) } else { Ok(()) };
            match random.random_range(0..5) {
                0 if fetches > 0 => {
                    fetches -= 1;
                    assert!(at_once.answer_fetch(outcome) && in_steps.answer_fetch(outcome));
                }
                1 if writes > 0 => {
                    writes -= 1;
                    assert!(at_once.answer_write(outcome) && in_steps.answer_write(outcome));
                }
                2 if !left.is_empty() => {
                    let page = left.remove(random.random_range(0..left.len()));
                    at_once.io(|pager, io| pager.dropped(PARENT, page..page + 1, io));
                    in_steps.io(|pager, io| pager.dropped(PARENT, page..page + 1, io));
                }
                _ if turns_left > 1 => {
                    in_steps.turn();
                    turns_left -= 1;
                }
                _ => {}
            }
        }
        at_once.turn();
        assert_eq!(in_steps.end_walks(), turns_left);
        for view in [PARENT, CHILD] {
            assert_eq!(at_once.entries(view), in_steps.entries(view), "seed {seed}, {view:?}");
        }
        assert!(at_once.memory.pages == in_steps.memory.pages, "seed {seed}");
        let slots = |family: &Family| {
            let fetches: Vec<u32> = family.nodes.fetches.iter().map(|fetch| fetch.0).collect();
            let writes: Vec<u32> = family.nodes.writes.iter().map(|write| write.0).collect();
            (fetches, writes, family.pager.slots_used())
        };
        assert_eq!(slots(at_once), slots(in_steps), "seed {seed}");
        let counts = |Family { pager, .. }: &Family| {
            [pager.resident, pager.bounded(), pager.coming, pager.leaving, pager.buffers.used() as u32]
        };
        assert_eq!(counts(at_once), counts(in_steps), "seed {seed}");
        assert_eq!(at_once.pager.counters(), in_steps.pager.counters(), "seed {seed}");
    }
    assert!(under_way.iter().all(|sum| *sum > 20), "{under_way:?}");
}

//! A successor's pager over tables that another process has written, and continues to overwrite.
//!
//! The words change before the pager's accesses, so that runs cover the orders of the two processes' accesses without a
//! second thread. Programs cannot write tables, which are read-only for them: these tests show that the count of slots,
//! which is private, stays correct even if the words are wrong.

use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use proptest::prelude::*;

use super::*;

/// Number of pages of a view. `SLOTS` is the number of slots of the region.
const FEW: u32 = 24;
const SLOTS: u32 = 32;

/// Entries of a table, one of which is overwritten before each access while stores are left.
struct Stormy {
    words: Vec<AtomicU64>,
    stores: Mutex<VecDeque<(u32, u64)>>,
}

impl Deref for Stormy {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        if let Some((page, word)) = self.stores.lock().unwrap().pop_front() {
            self.words[page as usize].store(word, Ordering::Relaxed);
        }
        &self.words
    }
}

/// A word that resembles an entry: any state and flags, a slot that may exist or not, any buffer.
fn word() -> impl Strategy<Value = u64> {
    let slot = prop_oneof![4 => 0..SLOTS, 1 => any::<u32>(), 1 => Just(NO_SLOT)];
    (0..16_u64, 0..16_u64, slot, any::<u32>(), any::<bool>()).prop_map(
        |(state, flags, slot, buffer, written)| {
            let entry = Entry(state | flags << 4).with_slot((slot != NO_SLOT).then_some(slot));
            entry.with_written(written).with_buffer(Some(BufferId(buffer % 600))).0
        },
    )
}

/// Words of a table as the predecessor left them, and the stores that overwrite them later.
fn table() -> impl Strategy<Value = Stormy> {
    let words = proptest::collection::vec(word(), FEW as usize);
    let stores = proptest::collection::vec((0..FEW, word()), 0..200);
    (words, stores).prop_map(|(words, stores)| Stormy {
        words: words.into_iter().map(AtomicU64::new).collect(),
        stores: Mutex::new(stores.into()),
    })
}

impl core::fmt::Debug for Stormy {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}, then {:?}", self.words, self.stores)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Tests a takeover from any tables, during which any words are stored into them. Afterwards no slot beyond the
    /// region is free, no slot is free twice and, if nothing was stored, no slot of a page is free.
    #[test]
    fn a_takeover_frees_no_slot_twice(
        tables in [table(), table()],
        calm in any::<bool>(),
        present in proptest::collection::vec(any::<bool>(), FEW as usize),
        late in any::<bool>(),
    ) {
        let options = PagerOptions { pages: FEW, limit: LIMIT_MIN, prefetch: false, evict: true };
        let pager = Pager::new(options, Slots::pool(SLOTS, false));
        let mut rig = Rig { pager, kernel: Kernel::default(), nodes: Nodes::default() };
        let present = (0..FEW).zip(present).filter(|(_, there)| *there);
        rig.kernel.pages = present.map(|(page, _)| (page, content(page))).collect();
        rig.pager.expect_more();
        let mut views = Vec::new();
        for table in tables {
            if calm {
                table.stores.lock().unwrap().clear();
            }
            let view = rig.pager.add_view(PageTable::new(table), true).unwrap();
            rig.pager.add_mapping(view).unwrap();
            let unsettled = rig.pager.take_over_known(view);
            views.push((view, unsettled));
        }
        if late {
            rig.pager.complete();
        }
        views.iter().for_each(|(view, pages)| rig.pager.settle(*view, pages, &mut rig.kernel));
        rig.pager.complete();
        let of_view = |view: ViewId| (0..FEW).map(move |page| (view, page));
        let pages = views.iter().flat_map(|(view, _)| of_view(*view));
        let entries: Vec<Entry> = pages.filter_map(|(view, page)| rig.pager.entry_of(view, page)).collect();
        let free: Vec<u32> = core::iter::from_fn(|| rig.pager.slots.take(0)).map(|slot| slot.slot).collect();
        let all: BTreeSet<u32> = free.iter().copied().collect();
        prop_assert_eq!(all.len(), free.len(), "twice among {:?}", free);
        prop_assert!(all.last().is_none_or(|slot| *slot < SLOTS), "{:?}", free);
        let lost = |entry: &&Entry| entry.state() != PageState::Lost;
        let of_page = entries.iter().filter(lost).find(|entry| entry.slot().is_some_and(|slot| all.contains(&slot)));
        prop_assert!(!calm || of_page.is_none(), "{:?} beside {:?}", of_page, free);
    }
}

//! Choice of the next page to evict.
//!
//! The pager does not observe accesses to resident pages, which cause no fault. So it judges pages by whether they
//! are used again after eviction, and how soon.
//!
//! ```text
//!   new --> young --+                            +--> given up, remembered for a while
//!                   +--> evicted, and kept ------+
//!   known > proven -+    (a few per cent of all) |
//!      ^  ^  |                                   |
//!      |  |  +-- spared: back to the end         |
//!      |  +------ of the proven queue            |
//!      +------------- touched: it is hot <-------+
//! ```
//!
//! * **A small queue and a large one.** A page without history enters *young*; a page that is remembered enters
//!   *proven*, and stays there long. A scan passes through the small queue and leaves the large one unchanged (from
//!   2Q).
//! * **The share of young adapts.** A returning page that was proven shows that young has too much room; one that was
//!   young shows that young has too little (from ARC). With a fixed share, a program whose hot pages just fail to fit
//!   would lose one of them for each that returns, for ever.
//! * **A second chance.** Evicted pages are kept in buffers as long as the reserve has room. A touch in that time
//!   restores the page without its memory node, and shows that it is in use: a sample of a few per cent of all pages,
//!   taken from the likely least used (segmented FIFO).
//! * **Lives.** Each such return makes a page hotter, and eviction passes over it more often: once, three times,
//!   seven times. So the most frequently used pages are hardly ever sampled.
//!
//! Queues hold page numbers and are never searched: an entry of a page that is no longer resident, or that has a later
//! entry, is passed over. Such stale entries are removed in passes, a little of each with every page that is added.

use alloc::vec::Vec;

use super::last_entries::{EntryMark, LastEntries};
use super::memory::ViewId;
use super::queue::{CHUNK, ChunkedQueue};

/// Divisor of the limit of resident pages that gives the young queue's maximum size. However small the limit
/// of resident pages, the maximum size is at least `YOUNG_MIN` pages or one part in [`YOUNG_SHARE_MAX`],
/// whichever is less. With a larger share, scans drive out used pages.
const YOUNG_SHARE: u32 = 8;
const YOUNG_MIN: u32 = 128;
const YOUNG_SHARE_MAX: u32 = 4;
/// Number of pages by which a returning page changes the young queue's share.
const YOUNG_STEP: u32 = 4;
/// Stale entries are removed when the queues have this number of entries more than twice the limit.
const ENTRIES_SPARE: usize = 32;
/// Maximum heat (number of early returns of a page after an eviction), at which eviction passes over a page seven
/// times.
const HEAT_MAX: u8 = 3;

/// A page, by its view and its number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRef {
    pub view: ViewId,
    pub page: u32,
}

/// History of a page that becomes resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageHistory {
    /// The page has no history.
    New,
    /// The page has no history, and was read ahead without a fault.
    Ahead,
    /// The page was evicted some time ago, and is still remembered.
    Remembered {
        /// Whether the page was in the proven queue when evicted.
        proven: bool,
    },
    /// The page was evicted a moment ago with this heat, and a thread has faulted on it.
    WantedAgain(Heat),
}

/// Number of early returns of a page, and the queue from which it was evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heat {
    times: u8,
    proven: bool,
}

impl Heat {
    #[must_use]
    fn next_heat(self) -> Heat {
        Heat { times: (self.times + 1).min(HEAT_MAX), ..self }
    }

    /// Number of times that eviction passes over a page of this heat.
    fn spared_turns(self) -> u8 {
        (1 << self.times) - 1
    }

    /// Whether the page was in the proven queue when it was evicted.
    pub(super) fn was_proven(self) -> bool {
        self.proven
    }
}

/// A page to be evicted next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub page: PageRef,
    /// Heat of the page, from its former evictions.
    pub heat: Heat,
    /// Whether the page was read ahead, has not been faulted on since, and has no history.
    pub ahead: bool,
    /// Whether the page was installed before a thread had faulted on it.
    pub unasked: bool,
    /// Whether the reader for which the page was read ahead has passed it.
    pub passed: bool,
    lives: u8,
    mark: EntryMark,
}

/// A page that is to be evicted before others.
#[derive(Clone, Copy, Debug)]
struct AdvisedPage {
    page: PageRef,
    /// Generation of the page's view when the entry was made.
    generation: u8,
}

/// Effect of an eviction on the set of remembered pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgottenPage {
    Nothing,
    /// This page is forgotten, because the limit of remembered pages is reached.
    Page(PageRef),
}

/// The queues of resident pages, and the pages remembered after eviction.
#[derive(Debug, Default)]
pub struct Replacement {
    young: ChunkedQueue<Candidate>,
    proven: ChunkedQueue<Candidate>,
    recent: ChunkedQueue<PageRef>,
    /// Pages to evict first because their programs have advised so: `out` for pages not needed for long, and after it
    /// `cold` for pages not needed soon.
    out: ChunkedQueue<AdvisedPage>,
    cold: ChunkedQueue<AdvisedPage>,
    /// Pages to evict next, because their readers have passed them.
    passed: ChunkedQueue<AdvisedPage>,
    limit: u32,
    /// Size of the young queue above which young pages are evicted before proven ones.
    share: u32,
    /// Number of entries left when stale entries were last removed.
    cleaned: usize,
    /// By number of a view: which entries of its pages count.
    last: Vec<LastEntries>,
}

/// Whether an entry is the last one of its page.
#[inline]
fn is_last(last: &[LastEntries], entry: &Candidate) -> bool {
    let PageRef { view, page } = entry.page;
    last.get(usize::from(view.0)).is_some_and(|last| last.is_last(page, entry.mark))
}

impl Replacement {
    /// Returns empty queues for up to `limit` resident pages.
    pub fn new(limit: u32) -> Replacement {
        Replacement { limit, share: limit / YOUNG_SHARE, ..Replacement::default() }.within_bounds()
    }

    fn within_bounds(mut self) -> Replacement {
        self.adjust_young_share(0);
        self
    }

    /// Changes the young queue's share by `more` pages, within its limits.
    fn adjust_young_share(&mut self, more: i32) {
        let least = YOUNG_MIN.min(self.limit / YOUNG_SHARE_MAX).max(1);
        let most = (self.limit / YOUNG_SHARE).max(least);
        self.share = self.share.saturating_add_signed(more).clamp(least, most);
    }

    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
        self.share = limit / YOUNG_SHARE;
        self.adjust_young_share(0);
    }

    pub fn reserve(&mut self) {
        let limit = self.limit as usize;
        // Each page that is added while stale entries are removed has a chunk examined.
        let most = limit * 2 + limit * 2 / CHUNK + 2 * ENTRIES_SPARE;
        self.young.reserve(most);
        self.proven.reserve(most);
        self.recent.reserve(limit / 2 + 2);
        self.out.reserve(limit);
        self.cold.reserve(limit);
        self.passed.reserve(limit);
    }

    /// Allocates what entries of a view's pages need.
    pub fn reserve_view(&mut self, view: ViewId, pages: u32) {
        self.last_of(view).reserve(pages);
    }

    fn last_of(&mut self, view: ViewId) -> &mut LastEntries {
        let at = usize::from(view.0);
        if self.last.len() <= at {
            self.last.resize_with(at + 1, LastEntries::default);
        }
        &mut self.last[at]
    }

    fn generation(&self, view: ViewId) -> u8 {
        self.last.get(usize::from(view.0)).map_or(0, LastEntries::generation)
    }

    /// Makes all entries of a view stale, because the view has ended and another one may get its number.
    pub fn end_view(&mut self, view: ViewId) {
        self.last_of(view).end();
    }

    /// Adds a page on which a thread has faulted.
    #[cfg(test)]
    fn record_resident(&mut self, page: PageRef, known: PageHistory) {
        self.add_resident(page, known, false);
    }

    /// Adds a page; if `unasked`, before a thread has faulted on it.
    #[inline]
    pub fn add_resident(&mut self, page: PageRef, known: PageHistory, unasked: bool) {
        let heat = match known {
            PageHistory::New | PageHistory::Ahead | PageHistory::Remembered { .. } => Heat::default(),
            PageHistory::WantedAgain(heat) => heat.next_heat(),
        };
        match known {
            PageHistory::Remembered { proven: false } => self.adjust_young_share(YOUNG_STEP as i32),
            PageHistory::Remembered { proven: true } => self.adjust_young_share(-(YOUNG_STEP as i32)),
            PageHistory::WantedAgain(heat) if heat.proven => self.adjust_young_share(-(YOUNG_STEP as i32)),
            _ => {}
        }
        let ahead = known == PageHistory::Ahead;
        let (passed, lives, mark) = (false, heat.spared_turns(), self.last_of(page.view).renew(page.page));
        let candidate = Candidate { page, heat, ahead, unasked, passed, lives, mark };
        let is_young = ahead || known == PageHistory::New;
        if is_young { &mut self.young } else { &mut self.proven }.push_back(candidate);
    }

    /// Applies a program's advice that a page is not needed soon or, if `out`, not needed for long. Advice beyond the
    /// limit is ignored.
    pub fn advise_cold(&mut self, page: PageRef, out: bool) {
        let generation = self.generation(page.view);
        let queue = if out { &mut self.out } else { &mut self.cold };
        if queue.len() < self.limit as usize {
            queue.push_back(AdvisedPage { page, generation });
        }
    }

    /// Has a page evicted next, because its reader has passed it. Pages beyond the limit are ignored.
    pub fn advise_passed(&mut self, page: PageRef) {
        if self.passed.len() < self.limit as usize {
            let generation = self.generation(page.view);
            self.passed.push_back(AdvisedPage { page, generation });
        }
    }

    /// Number of pages that are to be evicted even if there is room.
    #[inline]
    pub fn to_page_out(&self) -> u32 {
        self.out.len() as u32
    }

    /// Removes the next page to evict from its queue and returns it. The caller checks whether the page is
    /// still resident, and calls again if not. Returns `None` if there is none, or if many frequently used
    /// pages, or stale entries, were passed over.
    #[inline]
    pub fn next(&mut self) -> Option<Candidate> {
        for _ in 0..PASSES_MAX {
            let advised = self.out.pop_front().or_else(|| self.cold.pop_front());
            let passed = advised.is_none();
            if let Some(AdvisedPage { page, generation }) = advised.or_else(|| self.passed.pop_front()) {
                if generation != self.generation(page.view) {
                    continue;
                }
                let (heat, mark) = (Heat::default(), EntryMark::default());
                return Some(Candidate { page, heat, ahead: false, unasked: false, passed, lives: 0, mark });
            }
            let is_young =
                !self.young.is_empty() && (self.young.len() > self.share as usize || self.proven.is_empty());
            let candidate = if is_young { self.young.pop_front()? } else { self.proven.pop_front()? };
            if !is_last(&self.last, &candidate) {
                continue;
            }
            if is_young || candidate.lives == 0 {
                return Some(Candidate { heat: Heat { proven: !is_young, ..candidate.heat }, ..candidate });
            }
            self.proven.push_back(Candidate { lives: candidate.lives - 1, ..candidate });
        }
        None
    }

    /// Like [`next`](Self::next), but returns a page only if it was read ahead and not faulted on: read-ahead
    /// evicts no other page.
    #[inline]
    pub fn next_ahead(&mut self) -> Option<Candidate> {
        for _ in 0..PASSES_MAX {
            let counts = is_last(&self.last, self.young.front()?);
            if counts && !self.young.front()?.ahead {
                return None;
            }
            let first = self.young.pop_front();
            if counts {
                return first;
            }
        }
        None
    }

    /// Puts a page that cannot be evicted now at the end of the proven queue.
    #[inline]
    pub fn requeue_spared(&mut self, page: PageRef, heat: Heat) {
        let (ahead, unasked, passed, lives) = (false, false, false, 0);
        let mark = self.last_of(page.view).renew(page.page);
        self.proven.push_back(Candidate { page, heat, ahead, unasked, passed, lives, mark });
    }

    /// Remembers an evicted page. If too many pages are remembered, the oldest one is forgotten and returned.
    #[inline]
    pub fn record_evicted(&mut self, page: PageRef) -> ForgottenPage {
        self.recent.push_back(page);
        if self.recent.len() > (self.limit / 2).max(1) as usize {
            return self.recent.pop_front().map_or(ForgottenPage::Nothing, ForgottenPage::Page);
        }
        ForgottenPage::Nothing
    }

    /// Number of entries in the queues of resident pages, including stale ones.
    pub fn entries(&self) -> usize {
        self.young.len() + self.proven.len() + self.out.len() + self.cold.len() + self.passed.len()
    }

    /// Returns the pages in the queues, the last to be evicted first. Some may not be resident any more, or
    /// may be returned several times.
    pub fn hottest_first(&self) -> impl Iterator<Item = PageRef> + '_ {
        self.proven.iter().rev().chain(self.young.iter().rev()).map(|candidate| candidate.page)
    }

    /// Whether enough entries were added since stale ones were last removed. After a fork more pages than the limit
    /// have valid entries: the condition ensures that each pass examines no more entries than were added before it.
    #[inline]
    pub fn is_over_limit(&self) -> bool {
        self.entries() > 2 * self.cleaned.max(self.limit as usize) + ENTRIES_SPARE
    }

    /// Whether a pass that removes stale entries is under way.
    #[inline]
    pub fn is_cleaning(&self) -> bool {
        self.young.has_pass() || self.proven.has_pass()
    }

    /// Begins a pass that removes stale entries, unless one is under way; [`clean_some`](Self::clean_some) continues it.
    pub fn begin_cleaning(&mut self) {
        // A queue that has been examined is not begun again before the other one has been, or no pass would end.
        if !self.is_cleaning() {
            self.young.begin_pass();
            self.proven.begin_pass();
        }
    }

    /// Continues the pass, if one is under way, with at least `looks` entries: removes those that are not the last ones
    /// of their pages, and those for which `is_here` is false.
    pub fn clean_some(&mut self, looks: usize, mut is_here: impl FnMut(PageRef) -> bool) {
        if !self.is_cleaning() {
            return;
        }
        let Replacement { young, proven, last, .. } = self;
        let mut stays = |entry: &Candidate| is_last(last, entry) && is_here(entry.page);
        let mut examined = 0;
        while examined < looks && (young.has_pass() || proven.has_pass()) {
            let queue = if young.has_pass() { &mut *young } else { &mut *proven };
            examined += queue.retain_some(&mut stays);
        }
        if !self.is_cleaning() {
            self.cleaned = self.entries();
        }
    }
}

/// Maximum number of frequently used pages, and of stale entries, that one call passes over.
const PASSES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet, VecDeque};

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    const PAGES: u32 = 4096;
    const LIMIT: u32 = PAGES / 2;
    /// Size of the reserve, where evicted pages are kept for their second chance.
    const KEPT: usize = LIMIT as usize / 16;

    fn page(page: u32) -> PageRef {
        PageRef { view: ViewId(0), page }
    }

    /// Number of accesses by their outcome.
    #[derive(Default, Debug)]
    struct Counts {
        accesses: u32,
        /// Accesses to resident pages.
        hits: u32,
        /// Accesses to pages kept in a buffer.
        second_chances: u32,
        /// Accesses to pages that had to be fetched.
        misses: u32,
    }

    /// Drives the queues as the pager does, with as many pages as the pager would have, and counts the
    /// outcomes.
    fn run(accesses: impl Iterator<Item = u32>) -> Counts {
        let mut queue = Replacement::new(LIMIT);
        let (mut here, mut recent, mut counts) = (HashSet::new(), HashMap::new(), Counts::default());
        let (mut kept, mut kept_in_order): (HashMap<u32, Heat>, VecDeque<u32>) = Default::default();
        for access in accesses {
            counts.accesses += 1;
            if here.contains(&access) {
                counts.hits += 1;
                continue;
            }
            let known = match kept.remove(&access) {
                Some(heat) => {
                    counts.second_chances += 1;
                    kept_in_order.retain(|page| *page != access);
                    PageHistory::WantedAgain(heat)
                }
                None => {
                    counts.misses += 1;
                    recent
                        .remove(&access)
                        .map_or(PageHistory::New, |proven| PageHistory::Remembered { proven })
                }
            };
            while here.len() + KEPT >= LIMIT as usize {
                let Some(victim) = queue.next() else { continue };
                assert!(here.remove(&victim.page.page));
                kept.insert(victim.page.page, victim.heat);
                kept_in_order.push_back(victim.page.page);
            }
            while kept.len() > KEPT {
                let old = kept_in_order.pop_front().unwrap();
                let heat = kept.remove(&old).unwrap();
                recent.insert(old, heat.was_proven());
                if let ForgottenPage::Page(old) = queue.record_evicted(page(old)) {
                    recent.remove(&old.page);
                }
            }
            queue.record_resident(page(access), known);
            here.insert(access);
        }
        counts
    }

    /// Pages drawn by Zipf's law with exponent 0.99; the most frequent ones are spread over the range.
    fn zipf(seed: u64) -> impl Iterator<Item = u32> {
        let mut sums = Vec::new();
        let mut sum = 0.0;
        for rank in 1..=PAGES {
            sum += f64::from(rank).powf(-0.99);
            sums.push(sum);
        }
        let mut random = StdRng::seed_from_u64(seed);
        std::iter::repeat_with(move || {
            let at = random.random::<f64>() * sum;
            let rank = sums.partition_point(|sum| *sum < at) as u32;
            rank.min(PAGES - 1).wrapping_mul(2_654_435_761) % PAGES
        })
    }

    /// Misses of FIFO replacement that uses all of the memory.
    fn misses_in_order(accesses: impl Iterator<Item = u32>) -> u32 {
        let (mut here, mut queue, mut misses) = (HashSet::new(), VecDeque::new(), 0);
        for access in accesses {
            if !here.insert(access) {
                continue;
            }
            misses += 1;
            queue.push_back(access);
            if queue.len() as u32 > LIMIT {
                here.remove(&queue.pop_front().unwrap());
            }
        }
        misses
    }

    /// Tests accesses by Zipf's law to twice the local memory, compared with FIFO order, which ignores hot
    /// pages.
    #[test]
    fn what_is_hot_stays() {
        for seed in 1..4 {
            let counts = run(zipf(seed).take(400_000));
            let in_order = misses_in_order(zipf(seed).take(400_000));
            assert!(counts.misses < in_order * 86 / 100, "{counts:?}, in order {in_order}");
            // In return, some accesses fault on kept pages, which need no fetch.
            assert!(counts.second_chances < in_order / 8, "{counts:?}, in order {in_order}");
        }
    }

    #[test]
    fn newly_hot_pages_replace_older_hot_ones() {
        let shifted = |page: u32| (page * 7 + 13) % PAGES;
        let accesses = || zipf(4).take(200_000).chain(zipf(5).take(200_000).map(shifted));
        let (counts, in_order) = (run(accesses()), misses_in_order(accesses()));
        assert!(counts.misses < in_order * 9 / 10, "{counts:?}, in order {in_order}");
    }

    /// Tests the accesses of a compressor: random ones to tables that nearly all fit, and a scan of data that
    /// is read and written once. With a fixed share of young pages, each hot page that returns would drive
    /// out the next.
    #[test]
    fn hot_pages_that_just_fit_beside_a_scan_stay() {
        let hot = LIMIT * 7 / 8;
        let mut random = StdRng::seed_from_u64(11);
        let accesses = (0..4000_u32).flat_map(|step| {
            let tables: Vec<u32> = (0..100).map(|_| random.random_range(0..hot)).collect();
            tables.into_iter().chain([PAGES + step])
        });
        let counts = run(accesses);
        assert!(counts.second_chances < 4 * 4000, "{counts:?}");
        assert!(counts.misses < 4000 + hot + 2000, "{counts:?}");
    }

    #[test]
    fn what_is_not_needed_leaves_first() {
        let mut queue = Replacement::new(16);
        (0..8).for_each(|number| {
            queue.record_resident(page(number), PageHistory::Remembered { proven: false })
        });
        queue.advise_cold(page(5), false);
        queue.advise_cold(page(7), true);
        assert_eq!(queue.to_page_out(), 1);
        let order: Vec<u32> = std::iter::from_fn(|| queue.next()).map(|next| next.page.page).collect();
        assert_eq!(order, [7, 5, 0, 1, 2, 3, 4, 5, 6, 7], "who left already is passed over by the pager");
        (0..40).for_each(|number| queue.advise_cold(page(number), true));
        assert_eq!(queue.to_page_out(), 16);
    }

    #[test]
    fn a_scan_does_not_drive_out_what_is_used() {
        let scan = PAGES..PAGES + 200_000;
        let mixed = zipf(2).take(200_000).zip(scan).flat_map(|(used, scanned)| [used, scanned]);
        let counts = run(mixed);
        let rate = 1.0 - f64::from(counts.misses - 200_000) / 200_000.0;
        assert!(rate > 0.80, "{rate} {counts:?}");
        assert_eq!(counts.hits + counts.second_chances + counts.misses, counts.accesses);
    }

    /// Tests that an added page does not cause all entries to be examined, although after forks more pages
    /// have entries than may be resident.
    #[test]
    fn stale_entries_are_looked_for_seldom_and_a_few_at_a_time() {
        let (mut order, mut looks) = (Replacement::new(100), 0_usize);
        for page in 0..20_000 {
            order.record_resident(PageRef { view: ViewId(0), page }, PageHistory::New);
            if order.is_over_limit() {
                order.begin_cleaning();
            }
            let before = looks;
            order.clean_some(1, |_| {
                looks += 1;
                true
            });
            assert!(looks - before <= CHUNK, "{} looks at once", looks - before);
        }
        assert!((20_000..2 * 20_000).contains(&looks), "{looks} looks");
        // The pages have been evicted, so the next pass removes their entries.
        order.begin_cleaning();
        order.clean_some(usize::MAX, |_| false);
        assert_eq!((order.entries(), order.is_cleaning()), (0, false));
    }

    /// A view with the number of an ended one has the same pages in memory.
    #[test]
    fn entries_of_an_ended_view_are_not_those_of_the_next_with_its_number() {
        let mut order = Replacement::new(16);
        let of = |view, page| PageRef { view: ViewId(view), page };
        let resident = |order: &mut Replacement, view| {
            (0..8).for_each(|page| order.record_resident(of(view, page), PageHistory::New));
        };
        resident(&mut order, 3);
        resident(&mut order, 4);
        [false, true].into_iter().for_each(|out| order.advise_cold(of(3, 7), out));
        order.advise_passed(of(3, 6));
        order.end_view(ViewId(3));
        resident(&mut order, 3);
        order.requeue_spared(of(3, 0), Heat::default());
        order.begin_cleaning();
        order.clean_some(usize::MAX, |_| true);
        // Page 0 has its last entry in the other queue; advice is passed over when it is due.
        assert_eq!(order.entries(), 8 + 8 + 3);
        let mut next: Vec<PageRef> = std::iter::from_fn(|| order.next()).map(|next| next.page).collect();
        assert_eq!(next[0], of(4, 0), "advice for the former view does not count");
        next.sort_unstable_by_key(|of| (of.view, of.page));
        let expected: Vec<PageRef> =
            [3, 4].into_iter().flat_map(|view| (0..8).map(move |page| of(view, page))).collect();
        assert_eq!(next, expected, "each page once");
        // An ended view's pages that were read ahead are none of the next one's.
        order.add_resident(of(3, 1), PageHistory::Ahead, true);
        order.add_resident(of(4, 1), PageHistory::Ahead, true);
        order.end_view(ViewId(3));
        assert_eq!(order.next_ahead().map(|next| next.page), Some(of(4, 1)));
        resident(&mut order, 3);
        order.end_view(ViewId(3));
        assert_eq!((order.next(), order.entries()), (None, 0), "they are passed over");
    }

    #[test]
    fn a_page_that_comes_again_and_again_does_not_fill_the_queues() {
        let mut order = Replacement::new(100);
        (0..10).for_each(|number| order.record_resident(page(number), PageHistory::New));
        for time in 0..100_000_u32 {
            let known = [PageHistory::New, PageHistory::Remembered { proven: false }][time as usize % 2];
            order.record_resident(page(3), known);
            order.record_resident(page(time % 10), PageHistory::New);
            if order.is_over_limit() {
                order.begin_cleaning();
                order.clean_some(usize::MAX, |_| true);
                assert_eq!(order.entries(), 10, "{time}");
            }
            assert!(order.entries() <= 2 * 100 + ENTRIES_SPARE + 2, "{time}");
        }
        // The last entries count, in their order, and stay in a pass.
        for cleans in [false, true] {
            let mut order = Replacement::new(100);
            for number in (0..10).chain([3; 50]).chain(5..8) {
                order.record_resident(page(number), PageHistory::New);
            }
            if cleans {
                order.begin_cleaning();
                order.clean_some(usize::MAX, |_| true);
                assert_eq!(order.entries(), 10);
            }
            let left: Vec<u32> = std::iter::from_fn(|| order.next()).map(|next| next.page.page).collect();
            assert_eq!(left, [0, 1, 2, 4, 8, 9, 3, 5, 6, 7]);
        }
    }
}

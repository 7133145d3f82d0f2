//! Which page leaves memory next.
//!
//! Nobody tells the pager which resident pages are used: an access to a page that is there is no fault. So pages are
//! judged by whether they come back, and how soon.
//!
//! ```text
//!   new --> young --+                            +--> given up, remembered for a while
//!                   +--> taken away, and kept ---+
//!   known > proven -+    (a few per cent of all) |
//!      ^  ^  |                                   |
//!      |  |  +-- has lives left: the end         |
//!      |  +------ of the queue                   |
//!      +------------- wanted: it is hot <--------+
//! ```
//!
//! * **A small queue and a large one.** A page that was not here lately enters *young*; one that is remembered enters
//!   *proven*, where it stays long. A scan passes through the small queue and leaves the large one as it is (2Q's idea).
//! * **How small is learned.** Pages that were proven and come back say that young has too much room, those that were young and
//!   are fetched again that it has too little (ARC's idea). With a fixed share, a program whose hot pages just did not fit
//!   beside it had one of them taken away for each that came back, for ever.
//! * **A second chance.** What leaves memory is kept in a buffer for as long as there is room for it, among the pages kept
//!   free anyway. Whoever wants it in that time has it back without its memory node, and it is known to be in use: a sample
//!   of a few per cent of all pages, taken from where the least used are likely to be (segmented FIFO).
//! * **Lives.** Each time a page comes back so it is hotter, and its turn passes over it more often: once, three times,
//!   seven times. So the pages in most frequent use are hardly ever asked.
//!
//! Queues hold page numbers and are never searched: a page that has left otherwise is passed over when its turn comes.

use alloc::collections::VecDeque;

use super::memory::ViewId;

/// The young queue's share of resident pages: one in this many at most, and at least as many as are read ahead at once for one
/// reader if that is less than one in [`YOUNG_SHARE_MAX`]. With a larger share, scans drive out what is used.
const YOUNG_SHARE: u32 = 8;
const YOUNG_MIN: u32 = 128;
const YOUNG_SHARE_MAX: u32 = 4;
/// By how many pages one that comes back changes the share.
const YOUNG_STEP: u32 = 4;
/// Entries beyond twice the limit before stale ones are looked for.
const ENTRIES_SPARE: usize = 32;
/// How often a page's coming back makes it hotter.
const HEAT_MAX: u8 = 3;

/// A page of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRef {
    /// The view.
    pub view: ViewId,
    /// The page.
    pub page: u32,
}

/// What is known of a page that comes into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing.
    New,
    /// Nothing, and nobody has asked for it: it was read ahead.
    Ahead,
    /// It is remembered, and was proven when it left or was not.
    Remembered {
        /// Whether it was.
        proven: bool,
    },
    /// It was taken away a moment ago, when it was so hot, and is wanted again.
    WantedAgain(Heat),
}

/// How often a page has come back in time, and from which queue it left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heat {
    times: u8,
    proven: bool,
}

impl Heat {
    /// Once more.
    #[must_use]
    fn hotter(self) -> Heat {
        Heat { times: (self.times + 1).min(HEAT_MAX), ..self }
    }

    /// Turns that pass over a page as hot as this.
    fn lives(self) -> u8 {
        (1 << self.times) - 1
    }

    /// Whether it was among the proven ones when its turn came.
    pub(super) fn was_proven(self) -> bool {
        self.proven
    }
}

/// A page in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub page: PageRef,
    /// How hot it is.
    pub heat: Heat,
    /// Whether it was read ahead, and never wanted since.
    pub ahead: bool,
    lives: u8,
}

/// What is remembered of a page that has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forget {
    /// Nothing is forgotten.
    Nothing,
    /// This page is no longer remembered.
    Page(PageRef),
}

/// The queues.
#[derive(Debug, Default)]
pub struct Replacement {
    young: VecDeque<Candidate>,
    proven: VecDeque<Candidate>,
    recent: VecDeque<PageRef>,
    /// Those that are not needed for long, in their programs' words, and then those that are not needed soon.
    out: VecDeque<PageRef>,
    cold: VecDeque<PageRef>,
    limit: u32,
    /// Pages that young ones may be before one of them leaves in place of a proven one.
    share: u32,
    /// Entries that were kept when stale ones were last looked for.
    cleaned: usize,
}

impl Replacement {
    /// For up to `limit` resident pages.
    pub fn new(limit: u32) -> Replacement {
        Replacement { limit, share: limit / YOUNG_SHARE, ..Replacement::default() }.within_bounds()
    }

    fn within_bounds(mut self) -> Replacement {
        self.learn(0);
        self
    }

    /// The young queue's share was too large by so many pages, or too small.
    fn learn(&mut self, more: i32) {
        let least = YOUNG_MIN.min(self.limit / YOUNG_SHARE_MAX).max(1);
        let most = (self.limit / YOUNG_SHARE).max(least);
        self.share = self.share.saturating_add_signed(more).clamp(least, most);
    }

    /// Changes how many pages there may be.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
        self.share = limit / YOUNG_SHARE;
        self.learn(0);
    }

    /// Takes room for all there may be, so that nothing is allocated later.
    pub fn reserve(&mut self) {
        let most = self.limit as usize * 2 + 2 * ENTRIES_SPARE;
        self.young.reserve(most);
        self.proven.reserve(most);
        self.recent.reserve(most);
        self.out.reserve(self.limit as usize);
        self.cold.reserve(self.limit as usize);
    }

    /// A page has come.
    #[inline]
    pub fn entered(&mut self, page: PageRef, known: Known) {
        let heat = match known {
            Known::New | Known::Ahead | Known::Remembered { .. } => Heat::default(),
            Known::WantedAgain(heat) => heat.hotter(),
        };
        match known {
            Known::Remembered { proven: false } => self.learn(YOUNG_STEP as i32),
            Known::Remembered { proven: true } => self.learn(-(YOUNG_STEP as i32)),
            Known::WantedAgain(heat) if heat.proven => self.learn(-(YOUNG_STEP as i32)),
            _ => {}
        }
        let ahead = known == Known::Ahead;
        let candidate = Candidate { page, heat, ahead, lives: heat.lives() };
        let is_young = ahead || known == Known::New;
        if is_young { &mut self.young } else { &mut self.proven }.push_back(candidate);
    }

    /// A page is not needed soon, says its program; `out`: not for long. One of many is forgotten.
    pub fn cold(&mut self, page: PageRef, out: bool) {
        let queue = if out { &mut self.out } else { &mut self.cold };
        if queue.len() < self.limit as usize {
            queue.push_back(page);
        }
    }

    /// How many are to leave though there is room.
    #[inline]
    pub fn to_page_out(&self) -> u32 {
        self.out.len() as u32
    }

    /// The page whose turn it is. The caller looks whether it is still there, and calls again if not. `None` also when many
    /// turns in a row passed over pages in frequent use.
    #[inline]
    pub fn next(&mut self) -> Option<Candidate> {
        if let Some(page) = self.out.pop_front().or_else(|| self.cold.pop_front()) {
            return Some(Candidate { page, heat: Heat::default(), ahead: false, lives: 0 });
        }
        if (self.young.len() > self.share as usize || self.proven.is_empty())
            && let Some(young) = self.young.pop_front()
        {
            return Some(Candidate { heat: Heat { proven: false, ..young.heat }, ..young });
        }
        for _ in 0..PASSES_MAX {
            let candidate = self.proven.pop_front()?;
            if candidate.lives == 0 {
                return Some(Candidate { heat: Heat { proven: true, ..candidate.heat }, ..candidate });
            }
            self.proven.push_back(Candidate { lives: candidate.lives - 1, ..candidate });
        }
        None
    }

    /// The page whose turn it is, if it was read ahead and nobody has asked for it: what is read ahead takes no other's place.
    #[inline]
    pub fn next_ahead(&mut self) -> Option<Candidate> {
        if self.young.front()?.ahead { self.young.pop_front() } else { None }
    }

    /// A page cannot leave now; its turn comes again.
    #[inline]
    pub fn spared(&mut self, page: PageRef, heat: Heat) {
        self.proven.push_back(Candidate { page, heat, ahead: false, lives: 0 });
    }

    /// A page has left and is to be remembered; which one is forgotten for it.
    #[inline]
    pub fn left(&mut self, page: PageRef) -> Forget {
        self.recent.push_back(page);
        if self.recent.len() > (self.limit / 2).max(1) as usize {
            return self.recent.pop_front().map_or(Forget::Nothing, Forget::Page);
        }
        Forget::Nothing
    }

    /// How many entries the queues of resident pages have, stale ones included.
    pub fn entries(&self) -> usize {
        self.young.len() + self.proven.len() + self.out.len() + self.cold.len()
    }

    /// Whether so many entries have come since stale ones were last looked for that it is time to look again. After a fork more
    /// pages than the limit have entries that are not stale: each look is paid for by as many pages as it looks at.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.entries() > 2 * self.cleaned.max(self.limit as usize) + ENTRIES_SPARE
    }

    /// Keeps only entries of pages that `is_here` knows; for when stale ones have become many.
    pub fn clean(&mut self, mut is_here: impl FnMut(PageRef) -> bool) {
        self.young.retain(|candidate| is_here(candidate.page));
        self.proven.retain(|candidate| is_here(candidate.page));
        self.cleaned = self.entries();
    }
}

/// Pages in frequent use passed over in one call.
const PASSES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const PAGES: u32 = 4096;
    const LIMIT: u32 = PAGES / 2;
    /// Pages kept free, where those that leave have their second chance.
    const KEPT: usize = LIMIT as usize / 16;

    fn page(page: u32) -> PageRef {
        PageRef { view: ViewId(0), page }
    }

    /// What became of accesses.
    #[derive(Default, Debug)]
    struct Counts {
        accesses: u32,
        /// Found in memory.
        hits: u32,
        /// Found in the buffer that they were kept in.
        second_chances: u32,
        /// Fetched.
        misses: u32,
    }

    /// The queues as the pager uses them, with as many pages as it would have at once.
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
                    Known::WantedAgain(heat)
                }
                None => {
                    counts.misses += 1;
                    recent.remove(&access).map_or(Known::New, |proven| Known::Remembered { proven })
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
                if let Forget::Page(old) = queue.left(page(old)) {
                    recent.remove(&old.page);
                }
            }
            queue.entered(page(access), known);
            here.insert(access);
        }
        counts
    }

    /// Pages by Zipf's law with exponent 0.99, the most frequent ones anywhere.
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

    /// Misses of pages that leave in the order in which they came, all of the memory being theirs.
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

    /// Zipf's law over twice the local memory, in which the order of arrival knows nothing of what is hot.
    #[test]
    fn what_is_hot_stays() {
        for seed in 1..4 {
            let counts = run(zipf(seed).take(400_000));
            let in_order = misses_in_order(zipf(seed).take(400_000));
            assert!(counts.misses < in_order * 86 / 100, "{counts:?}, in order {in_order}");
            // What is paid for it, each a fault that crosses no wire.
            assert!(counts.second_chances < in_order / 8, "{counts:?}, in order {in_order}");
        }
    }

    #[test]
    fn what_becomes_hot_takes_the_place_of_what_was() {
        let shifted = |page: u32| (page * 7 + 13) % PAGES;
        let accesses = || zipf(4).take(200_000).chain(zipf(5).take(200_000).map(shifted));
        let (counts, in_order) = (run(accesses()), misses_in_order(accesses()));
        assert!(counts.misses < in_order * 9 / 10, "{counts:?}, in order {in_order}");
    }

    /// A compressor: tables that it looks into everywhere, and which nearly all fit, beside what it reads and writes once. With a
    /// fixed share of young pages each hot page that came back drove out the next.
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
        (0..8).for_each(|number| queue.entered(page(number), Known::Remembered { proven: false }));
        queue.cold(page(5), false);
        queue.cold(page(7), true);
        assert_eq!(queue.to_page_out(), 1);
        let order: Vec<u32> = std::iter::from_fn(|| queue.next()).map(|next| next.page.page).collect();
        assert_eq!(order, [7, 5, 0, 1, 2, 3, 4, 5, 6, 7], "who left already is passed over by the pager");
        (0..40).for_each(|number| queue.cold(page(number), true));
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

    /// After forks more pages have entries than may be resident: they are not gone through for each page that comes.
    #[test]
    fn stale_entries_are_looked_for_seldom() {
        let (mut order, mut looks) = (Replacement::new(100), 0_u32);
        for page in 0..20_000 {
            order.entered(PageRef { view: ViewId(0), page }, Known::New);
            if order.is_crowded() {
                order.clean(|_| {
                    looks += 1;
                    true
                });
            }
        }
        assert!(looks < 2 * 20_000, "{looks} looks");
        // Once they have left, the next look forgets them.
        order.clean(|_| false);
        assert_eq!(order.entries(), 0);
    }
}

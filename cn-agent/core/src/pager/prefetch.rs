//! Prediction of the next faults: pages ahead of a reader that goes through memory in constant strides.
//!
//! For each view, a few recent demand faults are recorded. When three of them are one stride apart, the pages
//! ahead are fetched; the number of pages grows each time the prediction proves right. The first page of each
//! window is its *marker*: it is fetched but not installed, so that its first use is a fault. That fault is
//! served without waiting, shows the reader's progress and triggers the next window. Pages of a window count
//! as hits once its marker, or a page behind the marker, was touched.
//!
//! A reader without a stride triggers nothing and costs a few comparisons per fault.

/// Maximum number of readers tracked at once.
const STREAMS: usize = 8;
/// Maximum stride, in pages.
const STEP_MAX: i64 = 16;
/// Number of pages of a reader's first window.
const WINDOW_MIN: u32 = 4;
/// Maximum number of pages of a window: 256 KiB.
const WINDOW_MAX: u32 = 64;

/// Pages to fetch: `first`, `first + step`, and so on, `count` of them; the first is the marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub first: i64,
    pub step: i64,
    pub count: u32,
}

impl Window {
    /// Returns those pages of the window that lie in a view of `pages` pages.
    pub fn pages(self, pages: u32) -> impl Iterator<Item = u32> {
        (0..i64::from(self.count))
            .filter_map(move |i| u32::try_from(self.first + i * self.step).ok().filter(|page| *page < pages))
    }
}

#[derive(Clone, Copy, Debug)]
struct AccessStream {
    last: i64,
    step: i64,
    /// Number of consecutive faults that were one stride apart.
    steps: u32,
    /// The last window that was read ahead; empty if none was.
    window: Window,
    /// Number of pages of the next window, even if there was room for fewer in the last one.
    next: u32,
    /// The first page that the reader has passed and that has not been reported as passed yet.
    passed: i64,
    /// Number of pages of the window whose fetch has begun.
    begun: u32,
    /// Number of pages of earlier windows that have not counted as hits yet.
    open: u32,
    /// Maximum number of pages of a window: reduced when pages were evicted before the reader touched them, and
    /// increased with each window that proves right.
    most: u32,
    /// Whether pages of the present window have been evicted early.
    cut: bool,
    used_at: u64,
}

enum StreamMatch {
    /// The fault is on the last page again.
    Same,
    /// The fault is between the reader's last page and the window, or one stride behind the last page.
    Next,
    /// The fault is in the reader's window, so the prediction proved right.
    Proved,
}

impl AccessStream {
    /// Whether a fault on `page` would prove this reader's window right.
    fn proves(&self, page: i64) -> bool {
        let (ahead, Window { first, count, .. }) = (page - self.last, self.window);
        let in_step = self.step != 0 && ahead % self.step == 0 && ahead / self.step > 0;
        let index = if in_step { (page - first) / self.step } else { -1 };
        let behind = (page - first).signum() == -self.step.signum();
        count > 0 && in_step && index <= i64::from(count) && !behind
    }

    /// Returns the relation of `page` to this reader; `None` if `page` cannot be the reader's next page.
    #[inline]
    fn follow(&mut self, page: i64) -> Option<StreamMatch> {
        let ahead = page - self.last;
        if ahead == 0 {
            // Another thread touched the page, or the page has been evicted since its last fault.
            return Some(StreamMatch::Same);
        }
        let in_step = self.step != 0 && ahead % self.step == 0 && ahead / self.step > 0;
        if self.window.count > 0 {
            let index = (page - self.window.first) / self.step;
            if !in_step || index > i64::from(self.window.count) {
                return None;
            }
            self.last = page;
            let before = (page - self.window.first).signum() == -self.step.signum();
            return Some(if before { StreamMatch::Next } else { StreamMatch::Proved });
        }
        if in_step && ahead == self.step {
            self.steps += 1;
        } else if ahead.abs() <= STEP_MAX {
            (self.step, self.steps) = (ahead, 1);
        } else {
            return None;
        }
        self.last = page;
        Some(StreamMatch::Next)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefetchOutcome {
    /// Number of pages read ahead that were touched.
    pub hits: u32,
    /// Number of pages read ahead that were not touched.
    pub wasted: u32,
    /// Pages that the reader has passed since a prediction for it was last confirmed.
    pub passed: Option<Window>,
}

/// State of the prediction for one view: its readers and its recent faults.
#[derive(Debug, Default)]
pub struct Prefetch {
    streams: [Option<AccessStream>; STREAMS],
    faults: u64,
}

impl Prefetch {
    /// Handles a touch of `page`, which is not resident. Returns the window to read ahead, and the outcome of earlier
    /// windows.
    #[inline]
    pub fn on_miss(&mut self, page: u32) -> (Option<Window>, PrefetchOutcome) {
        self.faults += 1;
        let page = i64::from(page);
        let faults = self.faults;
        let mut proved = PrefetchOutcome::default();
        for stream in self.streams.iter_mut().flatten() {
            let Some(step) = stream.follow(page) else { continue };
            stream.used_at = faults;
            let window = match step {
                StreamMatch::Same => None,
                StreamMatch::Next if stream.window.count == 0 && stream.steps >= 2 => {
                    stream.passed = page;
                    stream.window =
                        Window { first: page + stream.step, step: stream.step, count: stream.next };
                    Some(stream.window)
                }
                StreamMatch::Next => None,
                StreamMatch::Proved => {
                    let (from, step) = (core::mem::replace(&mut stream.passed, page), stream.step);
                    let passed = u32::try_from((page - from) / step);
                    proved.passed = passed.ok().map(|count| Window { first: from, step, count });
                    proved.hits = core::mem::replace(&mut stream.open, core::mem::take(&mut stream.begun));
                    let first = stream.window.first + i64::from(stream.window.count) * stream.step;
                    stream.next = (stream.next * 2).clamp(WINDOW_MIN.min(stream.most), stream.most);
                    stream.window = Window { first, step, count: stream.next };
                    if !core::mem::take(&mut stream.cut) {
                        stream.most = (stream.most + WINDOW_MIN).min(WINDOW_MAX);
                    }
                    Some(stream.window)
                }
            };
            return (window, proved);
        }
        let none = Window { first: 0, step: 0, count: 0 };
        let new = AccessStream {
            last: page,
            step: 0,
            steps: 0,
            window: none,
            next: WINDOW_MIN,
            passed: page,
            begun: 0,
            open: 0,
            most: WINDOW_MAX,
            cut: false,
            used_at: faults,
        };
        let oldest = self.streams.iter_mut().min_by_key(|s| s.map_or(0, |s| s.used_at));
        if let Some(place) = oldest
            && let Some(old) = place.replace(new)
        {
            proved.wasted = old.open + old.begun;
        }
        (None, proved)
    }

    /// Pages that the reader waiting for `page` has passed, except those that were reported before.
    pub fn take_passed(&mut self, page: u32) -> Option<Window> {
        let page = i64::from(page);
        let stream = self.streams.iter_mut().flatten().find(|stream| stream.proves(page))?;
        let from = core::mem::replace(&mut stream.passed, page);
        let count = u32::try_from((page - from) / stream.step).ok()?;
        Some(Window { first: from, step: stream.step, count })
    }

    /// Records that the last window was examined up to its `covered`th page, and that the fetch of `begun` pages has
    /// begun. The rest of the window is left for the next one.
    pub fn began(&mut self, covered: u32, begun: u32) {
        let latest = self.streams.iter_mut().flatten().max_by_key(|stream| stream.used_at);
        if let Some(stream) = latest {
            stream.window.count = covered;
            stream.begun = begun;
        }
    }

    /// Records that a page read ahead was evicted without a touch. If its reader has not reached the page, the
    /// reader's windows are halved, once for each window.
    pub fn record_unused(&mut self, page: u32) {
        let page = i64::from(page);
        let of = |stream: &&mut AccessStream| {
            let Window { first, step, count } = stream.window;
            let ahead = step != 0 && (page - stream.last) * step.signum() > 0;
            ahead && (page - first) % step == 0 && (page - first) / step < i64::from(count)
        };
        if let Some(stream) = self.streams.iter_mut().flatten().find(of)
            && !core::mem::replace(&mut stream.cut, true)
        {
            stream.most = (stream.most / 2).max(1);
            stream.window.count = stream.window.count.min(stream.most);
            stream.next = stream.next.min(stream.most);
        }
    }

    /// Maximum window of the reader at `page` that reads forward page after page; `None` if there is no such
    /// reader.
    #[cfg(test)]
    pub fn reader_window(&self, page: u32) -> Option<u32> {
        let readers = self.streams.iter().flatten().filter(|s| s.step == 1 && s.last <= i64::from(page));
        readers.max_by_key(|s| s.last).map(|s| s.most)
    }

    /// Drops all readers; returns the number of pages that were read ahead for them and not used.
    pub fn clear(&mut self) -> u32 {
        let wasted = self.streams.iter().flatten().map(|s| s.open + s.begun).sum();
        self.streams = Default::default();
        wasted
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// Reads pages in order; a page is a fault unless it was read ahead and is not a marker. Returns the
    /// numbers of faults and of pages read ahead, and the sums of the outcomes.
    fn read(pages: impl Iterator<Item = u32>) -> (u32, u32, PrefetchOutcome) {
        let (mut prefetch, mut here) = (Prefetch::default(), HashSet::new());
        let (mut faults, mut ahead, mut proved) = (0, 0, PrefetchOutcome::default());
        for page in pages {
            if here.contains(&page) {
                continue;
            }
            faults += 1;
            here.insert(page);
            let (window, more) = prefetch.on_miss(page);
            (proved.hits, proved.wasted) = (proved.hits + more.hits, proved.wasted + more.wasted);
            if let Some(window) = window {
                ahead += window.count;
                prefetch.began(window.count, window.count);
                here.extend(window.pages(u32::MAX).skip(1));
            }
        }
        (faults, ahead, proved)
    }

    #[test]
    fn even_steps_are_followed_in_both_directions() {
        for (name, pages) in [
            ("forward", Box::new(0..10_000_u32) as Box<dyn Iterator<Item = u32>>),
            ("backward", Box::new((0..10_000).rev())),
            ("every third", Box::new((0..30_000).step_by(3))),
        ] {
            let (faults, ahead, proved) = read(pages);
            assert!(faults < 10_000 / 50, "{name}: {faults} faults");
            assert!(ahead < 10_000 + 2 * WINDOW_MAX, "{name}: {ahead} ahead");
            assert!(proved.hits > 9_500 && proved.wasted == 0, "{name}: {proved:?}");
        }
    }

    #[test]
    fn several_readers_are_distinguished() {
        let readers = (0..10_000).flat_map(|i| [i, 1_000_000 + i, 2_000_000 + i * 2]);
        let (faults, _, proved) = read(readers);
        assert!(faults < 3 * 10_000 / 50, "{faults}");
        assert_eq!(proved.wasted, 0);
    }

    #[test]
    fn without_a_step_nothing_is_read_ahead() {
        let mut random = StdRng::seed_from_u64(3);
        let pages = std::iter::repeat_with(|| random.random_range(0..1 << 20)).take(20_000);
        let (_, ahead, _) = read(pages);
        assert!(ahead < 200, "{ahead}");
    }

    /// Returns the sizes of the windows of a reader from page 0 on. `leave` selects the windows whose pages
    /// are evicted before they are read.
    fn windows(count: usize, leave: impl Fn(usize) -> bool) -> Vec<u32> {
        let (mut prefetch, mut page, mut windows) = (Prefetch::default(), 0, Vec::new());
        while windows.len() < count {
            if let (Some(window), _) = prefetch.on_miss(page) {
                prefetch.began(window.count, window.count);
                page = u32::try_from(window.first).unwrap();
                if leave(windows.len()) {
                    window.pages(u32::MAX).for_each(|page| prefetch.record_unused(page));
                }
                windows.push(window.count);
            } else {
                page += 1;
            }
            assert!(page < 1 << 20, "{windows:?}");
        }
        windows
    }

    #[test]
    fn windows_shrink_when_pages_leave_unused_and_grow_again() {
        assert_eq!(windows(7, |_| false), [4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(windows(8, |window| window >= 4), [4, 8, 16, 32, 64, 32, 16, 8]);
        assert_eq!(windows(12, |window| window >= 4)[8..], [4, 2, 1, 1]);
        let back = windows(60, |window| (4..8).contains(&window));
        assert_eq!((back[8], back[59]), (4, 64), "{back:?}");
    }

    /// Tests a reader for whose windows there is room for one page or none: it gets a window of full size as soon as
    /// there is room.
    #[test]
    fn lack_of_room_does_not_reset_a_reader() {
        let (mut prefetch, mut windows) = (Prefetch::default(), Vec::new());
        for page in 0..40 {
            if let Some(window) = prefetch.on_miss(page).0 {
                windows.push(window.count);
                prefetch.began(u32::from(windows.len() % 4 != 3), u32::from(windows.len() % 4 != 3));
            }
        }
        assert_eq!(windows[windows.len() - 3..], [64, 64, 64], "{windows:?}");
    }

    #[test]
    fn passed_pages_are_reported_once() {
        let (mut prefetch, mut passed) = (Prefetch::default(), Vec::new());
        for page in (0..3000).step_by(3) {
            let (window, proved) = prefetch.on_miss(page);
            passed.extend(proved.passed.into_iter().flat_map(|window| window.pages(u32::MAX)));
            if let Some(window) = window {
                prefetch.began(window.count, window.count);
            }
        }
        assert!(passed.len() > 800, "{}", passed.len());
        assert!(passed.windows(2).all(|pair| pair[0] + 3 == pair[1]), "{passed:?}");
    }

    #[test]
    fn pages_passed_by_a_reader_that_waits_are_reported_once_and_change_no_window() {
        let (mut prefetch, mut other, mut passed) = (Prefetch::default(), Prefetch::default(), Vec::new());
        for page in (0..3000).step_by(3) {
            for _ in 0..2 {
                let pages = prefetch.take_passed(page).into_iter().flat_map(|window| window.pages(u32::MAX));
                passed.extend(pages);
            }
            let ((window, proved), (expected, _)) = (prefetch.on_miss(page), other.on_miss(page));
            assert_eq!(window, expected);
            assert_eq!(proved.passed.map_or(0, |window| window.count), 0, "{page}: reported before");
            if let Some(window) = window {
                prefetch.began(window.count, window.count);
                other.began(window.count, window.count);
            }
        }
        assert!(passed.len() > 800, "{}", passed.len());
        assert!(passed.windows(2).all(|pair| pair[0] + 3 == pair[1]), "{passed:?}");
        assert_eq!(prefetch.take_passed(1_000_000), None, "it has not come so far");
    }

    #[test]
    fn what_its_reader_has_passed_shrinks_nothing() {
        let mut prefetch = Prefetch::default();
        let windows: Vec<Window> = (0..6).filter_map(|page| prefetch.on_miss(page).0).collect();
        assert!(!windows.is_empty());
        let before = format!("{prefetch:?}");
        (0..4).chain([1000]).for_each(|page| prefetch.record_unused(page));
        assert_eq!(format!("{prefetch:?}"), before);
    }

    #[test]
    fn a_guess_that_fails_is_counted() {
        let starts = (0..100).map(|i| i * 10_000);
        let (_, ahead, proved) = read(starts.flat_map(|start| start..start + 3));
        assert!(ahead >= 300 && proved.hits == 0, "{ahead} {proved:?}");
        assert!(proved.wasted + 8 * WINDOW_MAX >= ahead, "{ahead} {proved:?}");
    }
}

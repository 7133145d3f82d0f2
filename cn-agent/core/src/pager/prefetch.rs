//! Which pages will be wanted next: those ahead of a reader that goes through memory in even steps.
//!
//! A view remembers a few recent demand faults. When three of them are one step apart, the pages ahead are fetched,
//! more of them each time the guess proves right. The first of each window read ahead is its *marker*: it is fetched but
//! not installed, so that its first use is a fault, served without waiting, that shows where the reader has got to and
//! calls for the next window. Pages of a window count as hits once its marker, or a page behind it, was wanted.
//!
//! A reader without a step starts nothing and costs a few comparisons a fault.

/// Readers followed at once.
const STREAMS: usize = 8;
/// The longest step, in pages.
const STEP_MAX: i64 = 16;
/// Pages of the first window.
const WINDOW_MIN: u32 = 4;
/// Pages of the largest window: 256 KiB.
const WINDOW_MAX: u32 = 64;

/// Pages to fetch: `first`, `first + step`, … `count` of them; the first is the marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first page, the marker.
    pub first: i64,
    /// From one to the next.
    pub step: i64,
    /// How many.
    pub count: u32,
}

impl Window {
    /// The pages that lie in a view of `pages`.
    pub fn pages(self, pages: u32) -> impl Iterator<Item = u32> {
        (0..i64::from(self.count))
            .filter_map(move |i| u32::try_from(self.first + i * self.step).ok().filter(|page| *page < pages))
    }
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    last: i64,
    step: i64,
    /// Faults in a row that were one step apart.
    steps: u32,
    /// The window that was read ahead last; no pages if none was.
    window: Window,
    /// Pages of it that were begun to be fetched.
    begun: u32,
    /// Pages of the windows before it that have not proved right yet.
    open: u32,
    /// Pages of a window at most: fewer since some have left before their reader came, and more again with each window that
    /// proves right.
    most: u32,
    /// Whether pages of the present window have.
    cut: bool,
    used_at: u64,
}

/// How a fault continues a stream.
enum Step {
    /// The page before once more.
    Same,
    /// On the way to its window, or one step on.
    Next,
    /// In its window.
    Proved,
}

impl Stream {
    /// Takes `page` for the reader's next one, if it may be.
    #[inline]
    fn follow(&mut self, page: i64) -> Option<Step> {
        let ahead = page - self.last;
        if ahead == 0 {
            // Another thread, or the page has left memory since.
            return Some(Step::Same);
        }
        let in_step = self.step != 0 && ahead % self.step == 0 && ahead / self.step > 0;
        if self.window.count > 0 {
            let index = (page - self.window.first) / self.step;
            if !in_step || index > i64::from(self.window.count) {
                return None;
            }
            self.last = page;
            let before = (page - self.window.first).signum() == -self.step.signum();
            return Some(if before { Step::Next } else { Step::Proved });
        }
        if in_step && ahead == self.step {
            self.steps += 1;
        } else if ahead.abs() <= STEP_MAX {
            (self.step, self.steps) = (ahead, 1);
        } else {
            return None;
        }
        self.last = page;
        Some(Step::Next)
    }
}

/// What became of pages read ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proved {
    /// They were wanted.
    pub hits: u32,
    /// They were not.
    pub wasted: u32,
}

/// The readers of a view.
#[derive(Debug, Default)]
pub struct Prefetch {
    streams: [Option<Stream>; STREAMS],
    faults: u64,
}

impl Prefetch {
    /// Somebody wants `page`, which is not in memory: what to read ahead, and what that says of what was.
    #[inline]
    pub fn wanted(&mut self, page: u32) -> (Option<Window>, Proved) {
        self.faults += 1;
        let page = i64::from(page);
        let faults = self.faults;
        let mut proved = Proved::default();
        for stream in self.streams.iter_mut().flatten() {
            let Some(step) = stream.follow(page) else { continue };
            stream.used_at = faults;
            let window = match step {
                Step::Same => None,
                Step::Next if stream.window.count == 0 && stream.steps >= 2 => {
                    stream.window =
                        Window { first: page + stream.step, step: stream.step, count: WINDOW_MIN };
                    Some(stream.window)
                }
                Step::Next => None,
                Step::Proved => {
                    proved.hits = core::mem::replace(&mut stream.open, core::mem::take(&mut stream.begun));
                    let first = stream.window.first + i64::from(stream.window.count) * stream.step;
                    let count = (stream.window.count * 2).clamp(WINDOW_MIN.min(stream.most), stream.most);
                    stream.window = Window { first, step: stream.step, count };
                    if !core::mem::take(&mut stream.cut) {
                        stream.most = (stream.most + WINDOW_MIN).min(WINDOW_MAX);
                    }
                    Some(stream.window)
                }
            };
            return (window, proved);
        }
        let none = Window { first: 0, step: 0, count: 0 };
        let new = Stream {
            last: page,
            step: 0,
            steps: 0,
            window: none,
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

    /// The window just asked for was looked at up to its `covered`th page, and `begun` of these are being fetched. What
    /// was not looked at is left for the next window.
    pub fn began(&mut self, covered: u32, begun: u32) {
        let latest = self.streams.iter_mut().flatten().max_by_key(|stream| stream.used_at);
        if let Some(stream) = latest {
            stream.window.count = covered;
            stream.begun = begun;
        }
    }

    /// A page that was read ahead has left memory, and nobody has asked for it. If its reader is still to come there, its
    /// windows are half as large from now on, once for each window.
    pub fn thrown_away(&mut self, page: u32) {
        let page = i64::from(page);
        let of = |stream: &&mut Stream| {
            let Window { first, step, count } = stream.window;
            let ahead = step != 0 && (page - stream.last) * step.signum() > 0;
            ahead && (page - first) % step == 0 && (page - first) / step < i64::from(count)
        };
        if let Some(stream) = self.streams.iter_mut().flatten().find(of)
            && !core::mem::replace(&mut stream.cut, true)
        {
            stream.most = (stream.most / 2).max(1);
            stream.window.count = stream.window.count.min(stream.most);
        }
    }

    /// All readers are forgotten: what was read ahead for them and not wanted.
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
    use rand::{Rng, SeedableRng};

    use super::*;

    /// Reads pages in order; a page is a fault unless it was read ahead and is no marker.
    fn read(pages: impl Iterator<Item = u32>) -> (u32, u32, Proved) {
        let (mut prefetch, mut here) = (Prefetch::default(), HashSet::new());
        let (mut faults, mut ahead, mut proved) = (0, 0, Proved::default());
        for page in pages {
            if here.contains(&page) {
                continue;
            }
            faults += 1;
            here.insert(page);
            let (window, more) = prefetch.wanted(page);
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
    fn several_readers_are_told_apart() {
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

    /// Windows that a reader has of pages from 0 on, when so many of each leave before it comes.
    fn windows(count: usize, leave: impl Fn(usize) -> bool) -> Vec<u32> {
        let (mut prefetch, mut page, mut windows) = (Prefetch::default(), 0, Vec::new());
        while windows.len() < count {
            if let (Some(window), _) = prefetch.wanted(page) {
                prefetch.began(window.count, window.count);
                page = u32::try_from(window.first).unwrap();
                if leave(windows.len()) {
                    window.pages(u32::MAX).for_each(|page| prefetch.thrown_away(page));
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

    #[test]
    fn what_its_reader_has_passed_shrinks_nothing() {
        let mut prefetch = Prefetch::default();
        let windows: Vec<Window> = (0..6).filter_map(|page| prefetch.wanted(page).0).collect();
        assert!(!windows.is_empty());
        let before = format!("{prefetch:?}");
        (0..4).chain([1000]).for_each(|page| prefetch.thrown_away(page));
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

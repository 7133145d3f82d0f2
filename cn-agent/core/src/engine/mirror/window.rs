//! Number of pages that are copied at once: all that there is room for while no program has operations in flight; beside
//! programs as many as the path takes, and few more, which wait in queues, where operations would wait behind them.
//!
//! ```text
//!   pages that wait = pages at once x (time of a page - time without a queue) / time of a page
//!
//!   few wait: more at once     many wait, or requests had to wait for room or tokens: fewer
//! ```
//!
//! This is the rule of TCP Vegas (Brakmo and Peterson, 1995). Both numbers are kept, so that the smaller one holds as
//! soon as a program begins an operation.

use core::time::Duration;

use cxloe_wire::time::Time;

/// Maximum number of pages copied at once: 256 KiB, or 250 MB/s if the copy of a page takes a millisecond, as it does
/// where all nodes share a few processors.
pub(super) const PAGES_MAX: usize = 64;
/// Minimum number of pages copied at once.
const PAGES_MIN: usize = 4;
/// Maximum number of pages that wait while programs have operations in flight: at 20 us a page, less than 100 us for an
/// operation that comes behind them.
const WAITING_MAX: usize = 4;
/// Time after a program's last operation in flight for which the smaller number holds.
const PROGRAMS_HOLD: Duration = Duration::from_millis(10);
/// Minimum number of pages whose mean time decides: one page alone may have met a thread that was not running.
const SAMPLES_MIN: usize = 16;
/// Number of decisions after which the time without a queue is measured again, because the path may have changed.
const DECISIONS_MAX: u32 = 64;

#[derive(Debug)]
pub(super) struct FillWindow {
    /// Number of pages at once while no program has operations in flight.
    alone: usize,
    /// Number of pages at once beside programs.
    beside: usize,
    /// Whether a program had operations in flight lately.
    has_programs: bool,
    /// Time until which `has_programs` holds.
    programs_until: Time,
    /// Mean time of a page of the fewest at once, which do not wait for each other, in nanoseconds.
    base_ns: u64,
    /// Number of decisions beside programs since `base_ns` was measured.
    decisions: u32,
    /// Number of pages beside programs to return to after `base_ns` is measured.
    resume: usize,
    /// Time of the last decision. Pages that were begun before it do not count for the next one.
    since: Time,
    /// Total time of the pages counted since, in nanoseconds.
    sum_ns: u64,
    count: usize,
    /// Whether requests had to wait for room or tokens since.
    short: bool,
}

impl FillWindow {
    pub fn new() -> FillWindow {
        FillWindow {
            alone: PAGES_MIN,
            beside: PAGES_MIN,
            has_programs: false,
            programs_until: Time::ZERO,
            base_ns: 0,
            decisions: 0,
            resume: 0,
            since: Time::ZERO,
            sum_ns: 0,
            count: 0,
            short: false,
        }
    }

    /// Returns the number of pages to copy at once; `programs` is whether programs have operations in flight now.
    pub fn pages(&mut self, programs: bool, now: Time) -> usize {
        if programs {
            self.programs_until = now + PROGRAMS_HOLD;
        }
        let has_programs = now < self.programs_until;
        if has_programs != self.has_programs {
            self.has_programs = has_programs;
            self.begin(now);
        }
        if has_programs { self.beside } else { self.alone }
    }

    /// Records that requests have to wait for room or tokens.
    pub fn lack(&mut self) {
        self.short = true;
    }

    /// Records that a page is copied whose copy began at `began`. Decides on the number once enough pages are.
    pub fn copied(&mut self, began: Time, now: Time) {
        if began < self.since {
            return;
        }
        self.sum_ns += now.since(began).as_nanos() as u64;
        self.count += 1;
        let pages = if self.has_programs { self.beside } else { self.alone };
        if self.count < SAMPLES_MIN.max(pages / 2) {
            return;
        }
        let mean_ns = (self.sum_ns / self.count as u64).max(1);
        let next = match (self.short, self.has_programs) {
            (true, _) => fewer(pages),
            (false, true) => self.decide_beside(pages, mean_ns),
            (false, false) => pages * 2,
        };
        let next = next.clamp(PAGES_MIN, PAGES_MAX);
        if self.has_programs {
            self.beside = next;
        } else {
            self.alone = next;
        }
        self.begin(now);
    }

    /// Decides beside programs; `pages` at once took `mean_ns` each.
    fn decide_beside(&mut self, pages: usize, mean_ns: u64) -> usize {
        if pages == PAGES_MIN {
            (self.base_ns, self.decisions) = (mean_ns, 0);
            return core::mem::take(&mut self.resume).max(more(pages));
        }
        self.decisions += 1;
        if self.decisions > DECISIONS_MAX {
            self.resume = pages;
            return PAGES_MIN;
        }
        let waiting = (pages as u64 * mean_ns.saturating_sub(self.base_ns) / mean_ns) as usize;
        if waiting > WAITING_MAX {
            fewer(pages)
        } else if waiting <= WAITING_MAX / 2 {
            more(pages)
        } else {
            pages
        }
    }

    /// Begins to count for the next decision.
    fn begin(&mut self, now: Time) {
        (self.since, self.sum_ns, self.count, self.short) = (now, 0, 0, false);
    }
}

fn more(pages: usize) -> usize {
    pages + pages / 4 + 1
}

fn fewer(pages: usize) -> usize {
    pages - pages / 4 - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// A path that needs `base` for a page alone, and carries one page in each `service`.
    struct Path {
        window: FillWindow,
        now: Time,
        base: Duration,
        service: Duration,
    }

    impl Path {
        /// A path that 15 pages fill.
        fn new() -> Path {
            Path { window: FillWindow::new(), now: Time::from_millis(1000), base: 300 * US, service: 20 * US }
        }

        /// Copies `count` pages, and returns the number that are copied at once in the end.
        fn copy(&mut self, programs: bool, count: usize) -> usize {
            for _ in 0..count {
                let pages = self.window.pages(programs, self.now) as u32;
                let took = self.base.max(self.service * pages);
                self.now = self.now + took / pages;
                self.window.copied(Time(self.now.0 - took.as_nanos() as u64), self.now);
            }
            self.window.pages(programs, self.now)
        }
    }

    #[test]
    fn alone_there_are_soon_as_many_as_there_is_room_for() {
        let mut path = Path::new();
        assert_eq!(path.copy(false, 1), PAGES_MIN);
        assert_eq!(path.copy(false, 200), PAGES_MAX);
    }

    #[test]
    fn beside_programs_the_path_is_full_and_few_pages_wait() {
        let mut path = Path::new();
        path.copy(true, 1000);
        let mut fewest = 0;
        for _ in 0..5000 {
            let pages = path.copy(true, 1);
            assert!((15..=24).contains(&pages) || pages == PAGES_MIN, "{pages} at once");
            fewest += u32::from(pages == PAGES_MIN);
        }
        assert!((1..100).contains(&fewest), "the path was measured for {fewest} of 5000 pages");
    }

    #[test]
    fn a_program_that_begins_meets_few_pages() {
        let mut path = Path::new();
        path.copy(true, 1000);
        path.copy(false, 1000);
        let now = path.now;
        assert_eq!(path.window.pages(false, now), PAGES_MAX);
        assert!(path.window.pages(true, now) <= 24);
        let later = now + (PROGRAMS_HOLD - US);
        assert!(path.window.pages(false, later) <= 24, "the program goes on");
        assert_eq!(path.window.pages(false, now + PROGRAMS_HOLD), PAGES_MAX, "it has ended");
    }

    #[test]
    fn a_lack_of_tokens_leaves_the_fewest_pages() {
        for programs in [false, true] {
            let mut path = Path::new();
            path.copy(programs, 1000);
            for _ in 0..1000 {
                path.window.lack();
                path.copy(programs, 1);
            }
            assert_eq!(path.window.pages(programs, path.now), PAGES_MIN);
        }
    }

    #[test]
    fn a_path_that_has_become_longer_is_measured_anew() {
        let mut path = Path::new();
        path.copy(true, 1000);
        path.base = 1200 * US;
        let pages = path.copy(true, 3000);
        assert!(pages > 40, "{pages} at once, although 60 fill the path");
    }
}

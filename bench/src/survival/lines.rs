//! Lines of a region that are written and read through an agent, with the versions that each may have: every line that
//! is read is compared with them.
//!
//! ```text
//!   one at a time, timed    at random, or one line of each of the last pages
//!   many at a time          all of them, or one line of each page
//! ```
//!
//! An operation that fails is tried again, as a program would do, and its time counts from its first attempt.

use std::ops::Range;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_client::client::{Client, ClientError};
use cxloe_lab::Interrupt;
use cxloe_measure::floor_fault::PageOrder;
use cxloe_measure::report::{Latency, Samples};
use cxloe_wire::random::Random;
use serde::Serialize;

use super::SurvivalError;
use crate::versions::{Versions, WrongLines, content};

pub const LINE: u64 = 64;
pub const PAGE: usize = 4096;
/// Number of lines of a page.
const PAGE_LINES: usize = 64;
/// Number of lines in one call that moves bytes: 1 MiB.
const STEP: usize = 16 << 10;
/// Number of lines in one call that writes a line of each page.
const BATCH: usize = 4096;
/// Time after which an operation that fails again and again ends the measurement.
const LIMIT: Duration = Duration::from_secs(60);
/// Pause before the next attempt.
const RETRY: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineAccess {
    Read,
    Write,
}

cxloe_wire::counters! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    pub struct LineCounts {
        /// Operations on single lines that were done.
        pub operations: u64,
        /// Lines that were read and compared.
        pub checked: u64,
        /// Attempts that failed; their writes may have been carried out.
        pub failed: u64,
        /// Lines whose content was not permitted.
        pub wrong: u64,
    }
}

/// Consecutive lines of a region, used by one thread at a time.
pub struct CheckedLines {
    socket: PathBuf,
    /// First HPA of the region.
    hpa: u64,
    /// Number, within the region, of the first of these lines.
    first: u64,
    lines: Vec<Versions>,
    /// Time of the last write to each page.
    written: Vec<Option<Instant>>,
    port: Option<Client>,
    random: Random,
    counts: LineCounts,
    wrong: WrongLines,
}

impl CheckedLines {
    /// The lines `numbers` of a region that is zeros. The region begins at `hpa` of the agent at `socket`; `numbers` are
    /// those of whole pages.
    pub fn new(socket: PathBuf, hpa: u64, numbers: Range<u64>) -> CheckedLines {
        let count = (numbers.end - numbers.start) as usize;
        CheckedLines {
            socket,
            hpa,
            first: numbers.start,
            lines: vec![Versions::default(); count],
            written: vec![None; count / PAGE_LINES],
            port: None,
            random: Random::new(numbers.start + 1),
            counts: LineCounts::default(),
            wrong: WrongLines::default(),
        }
    }

    /// The lower and the upper half of the pages of a region that is zeros, for two threads.
    pub fn halves(socket: PathBuf, hpa: u64, bytes: u64) -> [CheckedLines; 2] {
        let (middle, end) = (bytes / PAGE as u64 / 2 * PAGE_LINES as u64, bytes / LINE);
        [0..middle, middle..end].map(|numbers| CheckedLines::new(socket.clone(), hpa, numbers))
    }

    /// The same lines of a copy of the region, with the versions that they have here at present. The copy begins at
    /// `hpa` of the agent at `socket`.
    pub fn twin(&self, socket: PathBuf, hpa: u64) -> CheckedLines {
        let numbers = self.first..self.first + self.lines.len() as u64;
        let mut twin = CheckedLines::new(socket, hpa, numbers);
        twin.lines.clone_from(&self.lines);
        twin
    }

    /// Changes the address of the region.
    pub fn move_to(&mut self, hpa: u64) {
        self.hpa = hpa;
    }

    /// Permits each line also the versions up to the last one that was attempted in `later`.
    pub fn permit_until(&mut self, later: &CheckedLines) {
        for (line, later) in self.lines.iter_mut().zip(&later.lines) {
            line.tried = later.tried;
        }
    }

    pub fn bytes(&self) -> u64 {
        self.lines.len() as u64 * LINE
    }

    /// Number of bytes in pages that were written after `moment`.
    pub fn written_since(&self, moment: Instant) -> u64 {
        let pages = self.written.iter().filter(|written| written.is_some_and(|at| at >= moment));
        (pages.count() * PAGE) as u64
    }

    /// Returns the counts since the last call.
    pub fn take_counts(&mut self) -> LineCounts {
        std::mem::take(&mut self.counts)
    }

    fn number(&self, index: usize) -> u64 {
        self.first + index as u64
    }

    fn hpa_of(&self, index: usize) -> u64 {
        self.hpa + self.number(index) * LINE
    }

    fn port(&mut self) -> Result<&mut Client, ClientError> {
        if self.port.is_none() {
            self.port = Some(Client::connect(&self.socket)?);
        }
        Ok(self.port.as_mut().expect("it was connected"))
    }

    /// Notes a failed attempt, and waits for a moment. Unless the agent itself has refused the operation, the next
    /// attempt connects again.
    fn failed(&mut self, error: &ClientError, interrupt: &Interrupt) -> Result<(), SurvivalError> {
        self.counts.failed += 1;
        if !matches!(error, ClientError::Engine(_)) {
            self.port = None;
        }
        interrupt.check()?;
        thread::sleep(RETRY);
        Ok(())
    }

    /// Carries out `operation` until it is done, and returns the time of the attempt that was.
    fn until_done(
        &mut self,
        interrupt: &Interrupt,
        mut operation: impl FnMut(&mut Client) -> Result<(), ClientError>,
    ) -> Result<Duration, SurvivalError> {
        let began = Instant::now();
        loop {
            let attempt = Instant::now();
            let Err(error) = self.port().and_then(&mut operation) else { return Ok(attempt.elapsed()) };
            if began.elapsed() > LIMIT {
                return Err(error.into());
            }
            self.failed(&error, interrupt)?;
        }
    }

    /// Begins the next version of a line; returns the line's HPA and its new content.
    fn begin_write(&mut self, index: usize) -> (u64, [u8; 64]) {
        self.lines[index].tried += 1;
        (self.hpa_of(index), content(self.number(index), self.lines[index].tried))
    }

    fn end_write(&mut self, index: usize) {
        self.lines[index].answered = self.lines[index].tried;
        self.written[index / PAGE_LINES] = Some(Instant::now());
    }

    /// Writes the next version of every line, and returns the time that the agent took.
    ///
    /// # Errors
    /// The agent does not do it in time, or Ctrl-C.
    pub fn fill(&mut self, interrupt: &Interrupt) -> Result<Duration, SurvivalError> {
        let mut took = Duration::ZERO;
        for first in (0..self.lines.len()).step_by(STEP) {
            interrupt.check()?;
            let some = first..self.lines.len().min(first + STEP);
            let mut data = Vec::with_capacity(some.len() * LINE as usize);
            some.clone().for_each(|index| data.extend_from_slice(&self.begin_write(index).1));
            let hpa = self.hpa_of(first);
            took += self.until_done(interrupt, |port| port.write_bytes(hpa, &data))?;
            some.for_each(|index| self.end_write(index));
        }
        Ok(took)
    }

    /// Writes the next version of the first line of every page, many lines at a time, and returns the time that the
    /// agent took.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub fn pass(&mut self, interrupt: &Interrupt) -> Result<Duration, SurvivalError> {
        let mut took = Duration::ZERO;
        let indices: Vec<usize> = (0..self.lines.len()).step_by(PAGE_LINES).collect();
        for some in indices.chunks(BATCH) {
            interrupt.check()?;
            let lines: Vec<(u64, [u8; 64])> = some.iter().map(|index| self.begin_write(*index)).collect();
            took += self.until_done(interrupt, |port| port.write_batch(&lines))?;
            some.iter().for_each(|index| self.end_write(*index));
        }
        Ok(took)
    }

    /// Reads every line, many at a time, and compares all of them.
    ///
    /// # Errors
    /// As [`fill`](Self::fill); or a line was wrong, now or earlier.
    pub fn verify(&mut self, interrupt: &Interrupt) -> Result<(), SurvivalError> {
        let mut room = vec![0; STEP.min(self.lines.len()) * LINE as usize];
        for first in (0..self.lines.len()).step_by(STEP) {
            interrupt.check()?;
            let count = STEP.min(self.lines.len() - first);
            let (hpa, data) = (self.hpa_of(first), &mut room[..count * LINE as usize]);
            self.until_done(interrupt, |port| port.read_bytes(hpa, data))?;
            self.judge(first, data);
        }
        self.wrong.check()
    }

    /// Waits until lines can be read, as after the end of a mapping of the region.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub fn settle(&mut self, interrupt: &Interrupt) -> Result<(), SurvivalError> {
        let before = self.counts.failed;
        let (mut line, hpa) = ([0; 64], self.hpa_of(0));
        self.until_done(interrupt, |port| {
            line = port.read(hpa)?;
            Ok(())
        })?;
        // These attempts were expected to fail.
        self.counts.failed = before;
        self.judge(0, &line);
        self.wrong.check()
    }

    /// Compares lines, the first of which has this index, with the versions that they may have.
    fn judge(&mut self, first: usize, data: &[u8]) {
        let (number, lines) = (self.number(first), data.as_chunks::<64>().0);
        self.counts.checked += lines.len() as u64;
        self.counts.wrong += self.wrong.judge(number, &mut self.lines[first..], lines);
    }

    /// Compares a page of the region, which has this number, as it was read through a mapping.
    ///
    /// # Errors
    /// A line was wrong, now or earlier.
    pub fn check_page(&mut self, page: usize, data: &[u8; PAGE]) -> Result<(), SurvivalError> {
        self.judge(page * PAGE_LINES - self.first as usize, data);
        self.wrong.check()
    }

    /// One attempt of an access to a line.
    fn access(&mut self, access: LineAccess, index: usize) -> Result<(), ClientError> {
        match access {
            LineAccess::Read => {
                let hpa = self.hpa_of(index);
                let line = self.port()?.read(hpa)?;
                self.judge(index, &line);
            }
            LineAccess::Write => {
                let (hpa, line) = self.begin_write(index);
                self.port()?.write(hpa, &line)?;
                self.end_write(index);
            }
        }
        Ok(())
    }

    /// Carries out one access, and records its time from the first attempt on. A failed attempt is repeated until `ends`
    /// is set; then nothing is recorded.
    fn timed(
        &mut self,
        access: LineAccess,
        index: usize,
        samples: &mut Samples,
        ends: &AtomicBool,
        interrupt: &Interrupt,
    ) -> Result<(), SurvivalError> {
        let began = Instant::now();
        while let Err(error) = self.access(access, index) {
            if began.elapsed() > LIMIT {
                return Err(error.into());
            }
            self.failed(&error, interrupt)?;
            if ends.load(Ordering::Acquire) {
                return Ok(());
            }
        }
        samples.record_ns(began.elapsed().as_nanos() as u64);
        self.counts.operations += 1;
        Ok(())
    }

    fn draw(&mut self) -> usize {
        self.random.below(self.lines.len() as u64) as usize
    }

    /// Times `count` accesses to random lines, one after the other.
    ///
    /// # Errors
    /// As [`fill`](Self::fill); or a line was wrong, now or earlier.
    pub fn at_random(
        &mut self,
        access: LineAccess,
        count: u64,
        interrupt: &Interrupt,
    ) -> Result<Latency, SurvivalError> {
        let (mut samples, mut warm) = (Samples::new("lines"), Samples::new("warm"));
        // Untimed accesses warm the caches and let threads settle on their cores.
        let first = count / 20 + 10;
        for turn in 0..first + count {
            interrupt.check()?;
            let samples = if turn < first { &mut warm } else { &mut samples };
            let index = self.draw();
            self.timed(access, index, samples, &AtomicBool::new(false), interrupt)?;
        }
        self.wrong.check()?;
        summary(&samples)
    }

    /// Times a write to each of the last `pages` pages, a power of two, in an unpredictable order.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub fn write_last_pages(
        &mut self,
        pages: usize,
        interrupt: &Interrupt,
    ) -> Result<Latency, SurvivalError> {
        let mut samples = Samples::new("pages");
        let mut order = PageOrder::new(pages, 1);
        let first = self.lines.len() / PAGE_LINES - pages;
        for _ in 0..pages {
            interrupt.check()?;
            let index = (first + order.draw()) * PAGE_LINES;
            self.timed(LineAccess::Write, index, &mut samples, &AtomicBool::new(false), interrupt)?;
        }
        summary(&samples)
    }

    /// Accesses random lines, one after the other, until `ends` is set; one at least.
    fn work(
        &mut self,
        access: LineAccess,
        ends: &AtomicBool,
        interrupt: &Interrupt,
    ) -> Result<Latency, SurvivalError> {
        let mut samples = Samples::new("beside");
        loop {
            interrupt.check()?;
            let index = self.draw();
            self.timed(access, index, &mut samples, ends, interrupt)?;
            if ends.load(Ordering::Acquire) {
                break;
            }
        }
        self.wrong.check()?;
        summary(&samples)
    }
}

fn summary(samples: &Samples) -> Result<Latency, SurvivalError> {
    samples.summary().ok_or_else(|| "no operation was done".into())
}

/// Carries out `act` while each load accesses its lines in a thread of its own; returns the result, and the times of
/// each load.
///
/// # Errors
/// That of `act`, or of a load; or a load has done no operation.
pub fn beside<T>(
    loads: &mut [(&mut CheckedLines, LineAccess)],
    interrupt: &Interrupt,
    act: impl FnOnce() -> Result<T, SurvivalError>,
) -> Result<(T, Vec<Latency>), SurvivalError> {
    let ends = &AtomicBool::new(false);
    let (acted, worked) = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (lines, access) in loads.iter_mut() {
            let access = *access;
            threads.push(scope.spawn(move || lines.work(access, ends, interrupt)));
        }
        let acted = act();
        ends.store(true, Ordering::Release);
        let ended = threads.into_iter().map(|load| load.join().unwrap_or_else(|panic| resume_unwind(panic)));
        (acted, ended.collect::<Vec<_>>())
    });
    Ok((acted?, worked.into_iter().collect::<Result<Vec<_>, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(numbers: Range<u64>) -> CheckedLines {
        CheckedLines::new(PathBuf::from("/nowhere"), 1 << 40, numbers)
    }

    fn page(first: u64, version: u32) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        for (number, line) in (first..).zip(page.as_chunks_mut::<64>().0) {
            *line = content(number, version);
        }
        page
    }

    #[test]
    fn halves_are_whole_pages_and_all_lines() {
        let [lower, upper] = CheckedLines::halves(PathBuf::new(), 0, 5 * PAGE as u64);
        assert_eq!((lower.first, lower.bytes()), (0, 2 * PAGE as u64));
        assert_eq!((upper.first, upper.bytes()), (128, 3 * PAGE as u64));
    }

    #[test]
    fn pages_are_compared_to_the_last_line() {
        let mut some = lines(64..192);
        assert!(some.check_page(1, &[0; PAGE]).is_ok(), "a page that was never written");
        let (hpa, line) = some.begin_write(64);
        assert_eq!((hpa, line), ((1 << 40) + 128 * LINE, content(128, 1)));
        some.end_write(64);
        let mut second = [0; PAGE];
        assert!(some.check_page(2, &second).is_err(), "the write is lost");
        let mut some = lines(64..192);
        some.begin_write(64);
        second[..64].copy_from_slice(&content(128, 1));
        assert!(some.check_page(2, &second).is_ok(), "the write may have been carried out");
        let error = some.check_page(2, &[0; PAGE]).unwrap_err().to_string();
        assert!(error.contains("line 128 begins with"), "it was seen, and is lost: {error}");
        assert_eq!(some.take_counts(), LineCounts { checked: 128, wrong: 1, ..LineCounts::default() });
        assert_eq!(some.take_counts(), LineCounts::default());
    }

    #[test]
    fn a_twin_has_the_versions_of_its_time() {
        let mut source = lines(0..64);
        (0..64).for_each(|index| {
            source.begin_write(index);
            source.end_write(index);
        });
        let mut twin = source.twin(PathBuf::new(), 0);
        (0..64).for_each(|index| {
            source.begin_write(index);
        });
        assert!(twin.check_page(0, &page(0, 2)).is_err(), "a later write");
        let mut twin = source.twin(PathBuf::new(), 0);
        assert!(twin.check_page(0, &page(0, 1)).is_ok() && twin.check_page(0, &page(0, 2)).is_ok());
        let mut early = lines(0..64);
        early.permit_until(&source);
        assert!(early.check_page(0, &page(0, 2)).is_ok());
        assert!(early.check_page(0, &page(0, 3)).is_err(), "never attempted");
    }

    #[test]
    fn pages_written_since_a_moment_are_counted() {
        let mut some = lines(0..256);
        some.end_write(3);
        let moment = Instant::now();
        assert_eq!(some.written_since(moment + Duration::from_secs(1)), 0);
        for index in [64, 65, 130] {
            some.end_write(index);
        }
        assert!((2 * PAGE as u64..=3 * PAGE as u64).contains(&some.written_since(moment)));
    }
}

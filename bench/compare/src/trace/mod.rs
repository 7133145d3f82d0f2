//! Recorded traces of accesses, to be replayed in the memory of each peer. A trace is a text with one access a line:
//!
//! ```text
//!   # a comment
//!   r 0x7fff3000 64     read of 64 bytes at this offset
//!   w 81920 8           write
//!
//!   lackey, msr --convert--> text --access--> AccessTrace --lines--> lines of the measured memory:
//!                                             page 0x7fff3 was used first and becomes page 0, page 20 becomes 1
//! ```
//!
//! A trace in memory is bounded: see [`ACCESSES_MAX`] and [`PAGES_MAX`].

mod access;
mod convert;
mod error;
mod text;

use std::collections::HashMap;
use std::io::BufRead;

use cxloe_wire::frame::{LINE_SIZE, PAGE_LINES};

use text::NumberedLines;

pub use access::TraceAccess;
pub use convert::{TraceFormat, convert};
pub use error::{ACCESSES_MAX, PAGES_MAX, TraceError};

const LINE_BYTES: u64 = LINE_SIZE as u64;
const LINES_IN_PAGE: u64 = PAGE_LINES as u64;
const PAGE_BYTES: u64 = LINES_IN_PAGE * LINE_BYTES;

/// Accesses in the order in which they were recorded, and the pages that they touch.
#[derive(Debug, Default)]
pub struct AccessTrace {
    accesses: Vec<TraceAccess>,
    /// For each touched page, by its number in the recorded memory, its number in the order of first use.
    pages: HashMap<u64, u32>,
}

impl AccessTrace {
    /// Reads a trace as a text.
    ///
    /// # Errors
    /// Returns which line is wrong, or which limit the trace exceeds.
    pub fn read(input: impl BufRead) -> Result<AccessTrace, TraceError> {
        let mut lines = NumberedLines::new(input);
        let mut trace = AccessTrace::default();
        while let Some((line, text)) = lines.next_line()? {
            let access = TraceAccess::parsed(text).map_err(|fault| TraceError::Line { line, fault })?;
            if let Some(access) = access {
                trace.add(access)?;
            }
        }
        if trace.accesses.is_empty() { Err(TraceError::Empty) } else { Ok(trace) }
    }

    fn add(&mut self, access: TraceAccess) -> Result<(), TraceError> {
        for page in access.units(PAGE_BYTES) {
            let next = self.pages.len() as u32;
            self.pages.entry(page).or_insert(next);
        }
        if self.pages.len() > PAGES_MAX {
            return Err(TraceError::TooWide);
        }
        if self.accesses.len() == ACCESSES_MAX {
            return Err(TraceError::TooLong);
        }
        self.accesses.push(access);
        Ok(())
    }

    pub fn accesses(&self) -> &[TraceAccess] {
        &self.accesses
    }

    /// Number of different pages that the accesses touch.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Size of a memory that has a place for each touched page.
    pub fn bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES
    }

    /// Appends to `out` the index of each line that an access of this trace touches, in a memory of `pages` pages. If
    /// the trace has more pages, several of them share a place: their numbers are taken modulo `pages`.
    pub fn lines(&self, access: &TraceAccess, pages: usize, out: &mut Vec<usize>) {
        let touched = access.units(LINE_BYTES);
        for page in access.units(PAGE_BYTES) {
            let place = self.pages[&page] as usize % pages * PAGE_LINES;
            let first = (page * LINES_IN_PAGE).max(*touched.start());
            let last = (page * LINES_IN_PAGE + LINES_IN_PAGE - 1).min(*touched.end());
            out.extend((first..=last).map(|line| place + (line % LINES_IN_PAGE) as usize));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# recorded somewhere\n\
        r 0x7008 8\n\
        w 4096 65   # two lines\n\
        \n\
        r 0x7fff 2\n";

    fn lines(trace: &AccessTrace, pages: usize) -> Vec<Vec<usize>> {
        let lines = |access| {
            let mut out = Vec::new();
            trace.lines(access, pages, &mut out);
            out
        };
        trace.accesses().iter().map(lines).collect()
    }

    #[test]
    fn pages_are_numbered_in_the_order_of_their_first_use() {
        let trace = AccessTrace::read(TEXT.as_bytes()).unwrap();
        assert_eq!((trace.accesses().len(), trace.pages(), trace.bytes()), (3, 3, 3 * 4096));
        assert_eq!(trace.accesses().iter().filter(|access| access.is_write).count(), 1);
        // Page 7 becomes page 0, page 1 stays page 1, and page 8 becomes page 2.
        assert_eq!(lines(&trace, 16), [vec![0], vec![64, 65], vec![63, 128]]);
    }

    #[test]
    fn pages_beyond_the_memory_are_folded_into_it() {
        let trace = AccessTrace::read(TEXT.as_bytes()).unwrap();
        assert_eq!(lines(&trace, 2), [vec![0], vec![64, 65], vec![63, 0]]);
        assert_eq!(lines(&trace, 1), [vec![0], vec![0, 1], vec![63, 0]]);
    }

    #[test]
    fn an_access_of_many_pages_touches_all_their_lines() {
        let trace = AccessTrace::read("w 64 12288".as_bytes()).unwrap();
        assert_eq!(trace.pages(), 4);
        assert_eq!(lines(&trace, 4), [(1..193).collect::<Vec<usize>>()]);
    }

    #[test]
    fn the_last_bytes_of_all_can_be_accessed() {
        let trace = AccessTrace::read("r 0xffffffffffffffc0 64".as_bytes()).unwrap();
        assert_eq!(lines(&trace, 1), [vec![63]]);
    }

    #[test]
    fn wrong_lines_are_named_with_their_numbers() {
        for (text, expected) in [
            ("r 0 64\nx 0 64\n", "line 2: `x` is neither"),
            ("\n# nothing\nr 0\n", "line 3: not of the form"),
            ("r 0 64 128\n", "line 1: not of the form"),
            ("w zero 64\n", "line 1: `zero` is no number"),
            ("w +1 64\n", "line 1: `+1` is no number"),
            ("w 0x 64\n", "line 1: `0x` is no number"),
            ("w 0 0\n", "line 1: a length of 0"),
            ("w 0 16777217\n", "line 1: a length of 16777217"),
            ("r 0xffffffffffffffff 2\n", "line 1: offset 0xffffffffffffffff"),
            ("# nothing\n", "no access"),
            ("", "no access"),
        ] {
            let error = AccessTrace::read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}

//! Values that each line of a region may have. A line is a register, which one compute node writes and reads.
//!
//! A read may return the last write that ended before the read was submitted, or a write that overlaps the
//! read. A failed write may have taken effect or not; the first read that no write overlaps decides which.
//!
//! In addition, the values that the memory node may have are recorded for each line; they may be older than
//! those in the cache. After the compute node was killed, only these values may be read: a value that was
//! only in the cache may be lost, but not a value that a flush or an acknowledgement has confirmed to be at
//! the memory node.

use cxloe_wire::frame::LINE_SIZE;

/// Lines of a region that programs use: the first lines of each page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of pages of 4 KiB.
    pub pages: usize,
    /// Number of used lines in each page, 1 to 64.
    pub page_lines: usize,
}

impl Shape {
    /// Returns the number of used lines in all pages.
    pub fn lines(self) -> usize {
        self.pages * self.page_lines
    }

    /// Returns the offset of a used line in its region, in bytes.
    pub fn offset(self, line: usize) -> u64 {
        (line / self.page_lines * 4096 + line % self.page_lines * LINE_SIZE) as u64
    }

    /// Returns the number of used lines from `line` to the end of its page.
    pub(crate) fn rest_of_page(self, line: usize) -> usize {
        self.page_lines - line % self.page_lines
    }
}

/// Returns the line that stands for `value`, with the value encoded differently in each word, so that a torn
/// line is noticed.
pub fn content(value: u64) -> [u8; LINE_SIZE] {
    let mut line = [0; LINE_SIZE];
    for (i, word) in line.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&value.wrapping_mul(2 * i as u64 + 1).to_le_bytes());
    }
    line
}

/// Returns the value that a line stands for; `None` if no value has this content.
pub fn value(line: &[u8]) -> Option<u64> {
    let value = u64::from_le_bytes(*line.first_chunk()?);
    (line == content(value)).then_some(value)
}

/// Origin of a region's initial content. The content differs between pools, so that a read of lost memory is
/// noticed.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// Number of the compute node that owns the region.
    pub cn: usize,
    /// Number of the memory node that has the region.
    pub mn: usize,
    /// Number of times that the region was replaced.
    pub life: u64,
    /// Number of times that the memory node has lost its pool.
    pub losses: usize,
    /// True if the content is all zeros, as in a new region of the manager.
    pub zero: bool,
}

impl Origin {
    pub fn initial(self, line: usize) -> u64 {
        let Origin { cn, mn, life, losses, zero } = self;
        if zero {
            return 0;
        }
        1 << 62 | (losses as u64) << 48 | (cn as u64) << 40 | (mn as u64) << 32 | life << 16 | line as u64
    }
}

/// A value in a line that no permitted order of reads and writes explains.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A line contains bytes that no write has written.
    #[error("line {line} {} holds garbage: {data:02x?}", place(*.stored))]
    Garbage {
        /// Index of the line among the used ones.
        line: usize,
        /// True if the value is in the memory node's pool; otherwise a read has returned it.
        stored: bool,
        data: Vec<u8>,
    },
    /// A line has a value that is outdated, or that was not written yet.
    #[error("line {line} {} holds {got:#x}; allowed: {allowed:x?}", place(*.stored))]
    Value {
        /// Index of the line among the used ones.
        line: usize,
        /// True if the value is in the memory node's pool; otherwise a read has returned it.
        stored: bool,
        got: u64,
        /// Values that the line may have.
        allowed: Vec<u64>,
    },
}

fn place(stored: bool) -> &'static str {
    if stored { "of the pool, after a flush," } else { "as read" }
}

/// A read in flight, with the values that it may return.
struct Read {
    id: u64,
    allowed: Vec<u64>,
    /// True if no write to the line has overlapped the read so far.
    alone: bool,
}

struct LineHistory {
    /// Values that a read may return, other than those of writes in flight.
    candidates: Vec<u64>,
    /// Values of writes in flight, in order of submission.
    writes: Vec<u64>,
    reads: Vec<Read>,
    /// Values that the memory node may have, in order of submission.
    stored: Vec<u64>,
}

/// Permitted values of all used lines of a region.
pub struct Registers(Vec<LineHistory>);

impl Registers {
    pub fn new(origin: Origin, lines: usize) -> Registers {
        let line = |i| LineHistory {
            candidates: vec![origin.initial(i)],
            writes: vec![],
            reads: vec![],
            stored: vec![origin.initial(i)],
        };
        Registers((0..lines).map(line).collect())
    }

    /// Replaces the initial values when the memory node's state becomes known. Values that were written are kept.
    pub(crate) fn rebase(&mut self, before: Origin, now: Origin) {
        for (i, line) in self.0.iter_mut().enumerate() {
            let values = line.candidates.iter_mut().chain(&mut line.stored);
            values.filter(|v| **v == before.initial(i)).for_each(|v| *v = now.initial(i));
        }
    }

    /// Records that the read `id` is about to be submitted, with the values that it may return.
    pub(crate) fn read_issued(&mut self, line: usize, id: u64) {
        let LineHistory { candidates, writes, reads, .. } = &mut self.0[line];
        let allowed = candidates.iter().chain(writes.iter()).copied().collect();
        reads.push(Read { id, allowed, alone: writes.is_empty() });
    }

    /// Records that the read `id` has failed, or was not submitted after all.
    pub(crate) fn read_failed(&mut self, line: usize, id: u64) {
        self.0[line].reads.retain(|r| r.id != id);
    }

    /// Records that the read `id` has returned `data`, from the memory node or from the cache.
    ///
    /// # Errors
    /// Returns [`Violation`] if the line may not have this value.
    pub(crate) fn read_ended(
        &mut self,
        line: usize,
        id: u64,
        data: &[u8],
        from_memory: bool,
    ) -> Result<(), Violation> {
        let state = &mut self.0[line];
        let at = state.reads.iter().position(|r| r.id == id).expect("it was issued");
        let read = state.reads.swap_remove(at);
        let Some(got) = value(data) else {
            return Err(Violation::Garbage { line, stored: false, data: data.to_vec() });
        };
        if !read.allowed.contains(&got) {
            return Err(Violation::Value { line, stored: false, got, allowed: read.allowed });
        }
        if read.alone {
            // Only a read without overlapping writes decides: if a write was in flight, another read may
            // still return a value that this one has not returned.
            state.candidates.clear();
            state.candidates.push(got);
            if from_memory {
                state.stored.clear();
                state.stored.push(got);
            }
        }
        Ok(())
    }

    fn overlap(&mut self, line: usize, value: u64) -> &mut LineHistory {
        let state = &mut self.0[line];
        for read in &mut state.reads {
            read.allowed.push(value);
            read.alone = false;
        }
        state.stored.push(value);
        state
    }

    /// Records that a write is being submitted. All reads in flight may return its value from now on.
    pub(crate) fn write_issued(&mut self, line: usize, value: u64) {
        self.overlap(line, value).writes.push(value);
    }

    /// Records that a write in flight has ended, or failed.
    pub(crate) fn write_ended(&mut self, line: usize, value: u64, failed: bool) {
        let LineHistory { candidates, writes, stored, .. } = &mut self.0[line];
        if !failed && let Some(at) = stored.iter().position(|v| *v == value) {
            // Earlier values have been overwritten; later ones may be at the memory node already.
            stored.drain(..at);
        }
        // If the value is missing, a later write that completed at once has already determined the line's value.
        if let Some(at) = writes.iter().position(|w| *w == value) {
            writes.remove(at);
            if !failed {
                candidates.clear();
            }
            candidates.push(value);
        }
    }

    /// Records a write that the cache has completed at once.
    pub fn written(&mut self, line: usize, value: u64) {
        let state = self.overlap(line, value);
        state.writes.clear();
        state.candidates.clear();
        state.candidates.push(value);
    }

    /// Records that the whole cache was written back and acknowledged.
    pub fn flushed(&mut self) {
        for LineHistory { candidates, writes, stored, .. } in &mut self.0 {
            stored.retain(|v| candidates.contains(v) || writes.contains(v));
        }
    }

    /// Records that the compute node was killed with its cache. Writes in flight may take effect until the
    /// next process's session begins; values in the cache may have reached the memory node or not.
    pub(crate) fn crashed(&mut self) {
        for line in &mut self.0 {
            line.candidates.clone_from(&line.stored);
            line.writes.clear();
            line.reads.clear();
        }
    }

    /// Compares a line in the memory node's pool with the values that it may have, after a flush.
    ///
    /// # Errors
    /// Returns [`Violation`] if the line may not have the pool's value.
    pub(crate) fn check_stored(&self, line: usize, data: &[u8]) -> Result<(), Violation> {
        let state = &self.0[line];
        let Some(got) = value(data) else {
            return Err(Violation::Garbage { line, stored: true, data: data.to_vec() });
        };
        if state.writes.is_empty() && !state.candidates.contains(&got) {
            return Err(Violation::Value { line, stored: true, got, allowed: state.candidates.clone() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin = Origin { cn: 0, mn: 0, life: 0, losses: 0, zero: false };

    fn one() -> Registers {
        Registers::new(ORIGIN, 1)
    }

    fn allowed(registers: &mut Registers, value: u64) -> bool {
        // The read is removed again, so that it does not decide the value.
        registers.read_issued(0, 99);
        let may = registers.0[0].reads.iter().any(|r| r.id == 99 && r.allowed.contains(&value));
        registers.read_failed(0, 99);
        may
    }

    #[test]
    fn a_read_returns_the_last_write_or_one_that_overlaps_it() {
        let mut r = one();
        r.write_issued(0, 1);
        r.write_ended(0, 1, false);
        r.read_issued(0, 7);
        r.write_issued(0, 2);
        r.write_ended(0, 2, false);
        r.read_issued(0, 8);
        assert!(r.read_ended(0, 7, &content(1), true).is_ok());
        let stale = r.read_ended(0, 8, &content(1), true);
        assert_eq!(stale, Err(Violation::Value { line: 0, stored: false, got: 1, allowed: vec![2] }));
        assert!(!allowed(&mut r, ORIGIN.initial(0)));
    }

    #[test]
    fn a_failed_write_is_there_or_not_until_a_read_settles_it() {
        let mut r = one();
        r.write_issued(0, 1);
        r.write_ended(0, 1, true);
        assert!(allowed(&mut r, 1) && allowed(&mut r, ORIGIN.initial(0)));
        r.read_issued(0, 7);
        r.read_ended(0, 7, &content(1), true).expect("one of both");
        assert!(!allowed(&mut r, ORIGIN.initial(0)));
    }

    #[test]
    fn a_killed_cache_may_lose_what_was_not_flushed_and_nothing_else() {
        let mut r = one();
        r.written(0, 1);
        r.written(0, 2);
        r.flushed();
        r.written(0, 3);
        r.crashed();
        assert!(allowed(&mut r, 2) && allowed(&mut r, 3));
        assert!(!allowed(&mut r, 1) && !allowed(&mut r, ORIGIN.initial(0)));

        // The acknowledged write must be in the pool; the write in flight may be in the pool as well.
        r.write_issued(0, 4);
        r.write_ended(0, 4, false);
        r.write_issued(0, 5);
        r.crashed();
        assert!(allowed(&mut r, 4) && allowed(&mut r, 5) && !allowed(&mut r, 3));
    }

    #[test]
    fn a_read_from_memory_settles_what_a_crash_leaves() {
        let mut r = one();
        r.written(0, 1);
        r.crashed();
        r.read_issued(0, 7);
        r.read_ended(0, 7, &content(ORIGIN.initial(0)), true).expect("it was never flushed");
        r.crashed();
        assert!(!allowed(&mut r, 1));
    }

    #[test]
    fn pools_are_compared() {
        let mut r = one();
        r.written(0, 1);
        assert!(r.check_stored(0, &content(1)).is_ok());
        assert!(matches!(r.check_stored(0, &content(2)), Err(Violation::Value { stored: true, .. })));
        assert!(matches!(r.check_stored(0, &[1; 64]), Err(Violation::Garbage { .. })));
    }

    #[test]
    fn lines_lie_at_the_beginning_of_pages() {
        let shape = Shape { pages: 2, page_lines: 5 };
        assert_eq!((shape.lines(), shape.offset(4), shape.offset(5)), (10, 256, 4096));
        assert_eq!((shape.rest_of_page(0), shape.rest_of_page(9)), (5, 1));
    }
}

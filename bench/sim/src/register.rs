//! What each line of a region may read as: a register, written and read by one compute node.
//!
//! A read may return the last write that ended before the read was made, or one that overlaps it. A write that
//! failed may have taken effect or not; the first read that no write overlaps settles which.
//!
//! Beside that, every line has the values its memory node may hold at this moment: behind what the compute node sees
//! while its cache has something newer. When the compute node is killed, these are what may be read afterwards: a
//! value that was only in the cache may be gone, one that a flush or an acknowledgement has brought to the memory
//! node may not.

use cxloe_wire::frame::LINE_SIZE;

/// Which lines of a region are used: some from the beginning of each page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Pages of 4 KiB.
    pub pages: usize,
    /// Lines of each page, 1 to 64.
    pub page_lines: usize,
}

impl Shape {
    /// Lines in all.
    pub fn lines(self) -> usize {
        self.pages * self.page_lines
    }

    /// Where a line lies in its region, in bytes.
    pub fn offset(self, line: usize) -> u64 {
        (line / self.page_lines * 4096 + line % self.page_lines * LINE_SIZE) as u64
    }

    /// Lines from `line` to the end of what is used of its page.
    pub fn rest_of_page(self, line: usize) -> usize {
        self.page_lines - line % self.page_lines
    }
}

/// A line full of `value`, each word otherwise.
pub fn content(value: u64) -> [u8; LINE_SIZE] {
    let mut line = [0; LINE_SIZE];
    for (i, word) in line.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&value.wrapping_mul(2 * i as u64 + 1).to_le_bytes());
    }
    line
}

/// The value a line is full of; `None` for anything else.
pub fn value(line: &[u8]) -> Option<u64> {
    let value = u64::from_le_bytes(*line.first_chunk()?);
    (line == content(value)).then_some(value)
}

/// Whose content a region starts with. It differs from pool to pool, so that a read of memory that was lost
/// shows.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The compute node.
    pub cn: usize,
    /// The memory node.
    pub mn: usize,
    /// How many times the region was made anew.
    pub life: u64,
    /// How many times the memory node has lost its pool.
    pub losses: usize,
    /// It is all zeros, as the memory of a region is that the manager has made.
    pub zero: bool,
}

impl Origin {
    /// What a line is full of before anything was written to it.
    pub fn initial(self, line: usize) -> u64 {
        let Origin { cn, mn, life, losses, zero } = self;
        if zero {
            return 0;
        }
        1 << 62 | (losses as u64) << 48 | (cn as u64) << 40 | (mn as u64) << 32 | life << 16 | line as u64
    }
}

/// What was observed that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A line holds what nobody ever wrote.
    #[error("line {line} {} holds garbage: {data:02x?}", place(*.stored))]
    Garbage {
        /// The line.
        line: usize,
        /// Seen in the memory node's pool, not by a read.
        stored: bool,
        /// Its bytes.
        data: Vec<u8>,
    },
    /// A line holds a value that it may not hold any more, or not yet.
    #[error("line {line} {} holds {got:#x}; allowed: {allowed:x?}", place(*.stored))]
    Value {
        /// The line.
        line: usize,
        /// Seen in the memory node's pool, not by a read.
        stored: bool,
        /// The value.
        got: u64,
        /// What it may hold.
        allowed: Vec<u64>,
    },
}

fn place(stored: bool) -> &'static str {
    if stored { "of the pool, after a flush," } else { "as read" }
}

/// A read on its way.
struct Read {
    id: u64,
    allowed: Vec<u64>,
    /// Nothing has been written since it was made.
    alone: bool,
}

struct Line {
    /// What it may read as, apart from the effect of writes on their way.
    candidates: Vec<u64>,
    /// Values on their way, in order.
    writes: Vec<u64>,
    reads: Vec<Read>,
    /// What the memory node may hold, in the order in which it was written.
    stored: Vec<u64>,
}

/// A region's lines.
pub struct Registers(Vec<Line>);

impl Registers {
    /// Lines that hold what `origin` says.
    pub fn new(origin: Origin, lines: usize) -> Registers {
        let line = |i| Line {
            candidates: vec![origin.initial(i)],
            writes: vec![],
            reads: vec![],
            stored: vec![origin.initial(i)],
        };
        Registers((0..lines).map(line).collect())
    }

    /// The region turns out to start with another content than was thought; what was written stays.
    pub fn rebase(&mut self, before: Origin, now: Origin) {
        for (i, line) in self.0.iter_mut().enumerate() {
            let values = line.candidates.iter_mut().chain(&mut line.stored);
            values.filter(|v| **v == before.initial(i)).for_each(|v| *v = now.initial(i));
        }
    }

    /// A read, named `id`, is about to be made.
    pub fn read_issued(&mut self, line: usize, id: u64) {
        let Line { candidates, writes, reads, .. } = &mut self.0[line];
        let allowed = candidates.iter().chain(writes.iter()).copied().collect();
        reads.push(Read { id, allowed, alone: writes.is_empty() });
    }

    /// The read has failed, or was not made after all.
    pub fn read_failed(&mut self, line: usize, id: u64) {
        self.0[line].reads.retain(|r| r.id != id);
    }

    /// The read has brought `data`, from the memory node or from the cache.
    ///
    /// # Errors
    /// [`Violation`] if it cannot have.
    pub fn read_ended(
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
            // A read that overlaps this one may still return what this one has ruled out.
            state.candidates.clear();
            state.candidates.push(got);
            if from_memory {
                state.stored.clear();
                state.stored.push(got);
            }
        }
        Ok(())
    }

    fn overlap(&mut self, line: usize, value: u64) -> &mut Line {
        let state = &mut self.0[line];
        for read in &mut state.reads {
            read.allowed.push(value);
            read.alone = false;
        }
        state.stored.push(value);
        state
    }

    /// A write is on its way.
    pub fn write_issued(&mut self, line: usize, value: u64) {
        self.overlap(line, value).writes.push(value);
    }

    /// A write that was on its way has ended.
    pub fn write_ended(&mut self, line: usize, value: u64, failed: bool) {
        let Line { candidates, writes, stored, .. } = &mut self.0[line];
        if !failed && let Some(at) = stored.iter().position(|v| *v == value) {
            // What was written before has been overwritten; what was written later may have been as well.
            stored.drain(..at);
        }
        // Not among them: overtaken by one that was done at once, which comes after it in every respect.
        if let Some(at) = writes.iter().position(|w| *w == value) {
            writes.remove(at);
            if !failed {
                candidates.clear();
            }
            candidates.push(value);
        }
    }

    /// A write was done at once: the cache has it.
    pub fn written(&mut self, line: usize, value: u64) {
        let state = self.overlap(line, value);
        state.writes.clear();
        state.candidates.clear();
        state.candidates.push(value);
    }

    /// Everything that the cache had was written back and acknowledged.
    pub fn flushed(&mut self) {
        for Line { candidates, writes, stored, .. } in &mut self.0 {
            stored.retain(|v| candidates.contains(v) || writes.contains(v));
        }
    }

    /// The compute node was killed, and its cache is gone: what is on its way may still take effect until its
    /// successor's session starts, and what was written at once may have reached the memory node or not.
    pub fn crashed(&mut self) {
        for line in &mut self.0 {
            line.candidates.clone_from(&line.stored);
            line.writes.clear();
            line.reads.clear();
        }
    }

    /// Compares a line with what the memory node has, after a flush.
    ///
    /// # Errors
    /// [`Violation`] if it cannot have that.
    pub fn check_stored(&self, line: usize, data: &[u8]) -> Result<(), Violation> {
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
        // Tried on a read that is forgotten again, so that it settles nothing.
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

        // A write that was acknowledged by the memory node is there to stay, one on its way may be.
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

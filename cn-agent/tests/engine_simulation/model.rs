//! What each line of a region may read as: a register, written and read by one engine.
//!
//! A read may return the last write that ended before the read was made, or one that overlaps it. A write that
//! failed may have taken effect or not; the first read that no write overlaps settles which.

use cxloe_wire::frame::LINE_SIZE;

/// Pages of a region that are used.
pub const PAGES: usize = 2;
/// Lines of a page that are used, from its beginning.
pub const PAGE_LINES: usize = 5;
/// Lines in all.
pub const LINES: usize = PAGES * PAGE_LINES;

/// Where a line lies in its region.
pub fn offset(line: usize) -> u64 {
    (line / PAGE_LINES * 4096 + line % PAGE_LINES * LINE_SIZE) as u64
}

/// A line full of `value`, each word otherwise.
pub fn content(value: u64) -> [u8; LINE_SIZE] {
    let mut line = [0; LINE_SIZE];
    for (i, word) in line.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&value.wrapping_mul(2 * i as u64 + 1).to_le_bytes());
    }
    line
}

/// The value a line is full of.
pub fn value(line: &[u8]) -> Option<u64> {
    let value = u64::from_le_bytes(line.get(..8)?.try_into().ok()?);
    (line == content(value)).then_some(value)
}

/// Whose content a region starts with. It differs from pool to pool, so that a read of memory that was lost
/// shows.
#[derive(Clone, Copy)]
pub struct Origin {
    pub cn: usize,
    pub mn: usize,
    /// How many times the region was made anew.
    pub life: u64,
    /// How many times the memory node has lost its pool.
    pub losses: usize,
}

impl Origin {
    /// What a line is full of before anything was written to it.
    pub fn initial(self, line: usize) -> u64 {
        let Origin { cn, mn, life, losses } = self;
        1 << 62 | (losses as u64) << 48 | (cn as u64) << 40 | (mn as u64) << 32 | life << 16 | line as u64
    }
}

/// A read on its way.
struct Read {
    id: u64,
    allowed: Vec<u64>,
    /// Nothing has been written since it was made.
    alone: bool,
}

struct Line {
    /// What it may hold, apart from the effect of writes on their way.
    candidates: Vec<u64>,
    /// Values on their way, in order.
    writes: Vec<u64>,
    reads: Vec<Read>,
}

/// A region's lines.
pub struct Model(Vec<Line>);

impl Model {
    pub fn new(origin: Origin) -> Model {
        let line = |i| Line { candidates: vec![origin.initial(i)], writes: vec![], reads: vec![] };
        Model((0..LINES).map(line).collect())
    }

    /// The region turns out to start with another content than was thought; what was written stays.
    pub fn rebase(&mut self, before: Origin, now: Origin) {
        for (i, line) in self.0.iter_mut().enumerate() {
            let values = line.candidates.iter_mut();
            values.filter(|v| **v == before.initial(i)).for_each(|v| *v = now.initial(i));
        }
    }

    pub fn read_issued(&mut self, line: usize, id: u64) {
        let Line { candidates, writes, reads } = &mut self.0[line];
        let allowed = candidates.iter().chain(writes.iter()).copied().collect();
        reads.push(Read { id, allowed, alone: writes.is_empty() });
    }

    /// The read has ended; `None` if it failed.
    pub fn read_ended(&mut self, line: usize, id: u64, data: Option<&[u8]>) -> Result<(), String> {
        let state = &mut self.0[line];
        let at = state.reads.iter().position(|r| r.id == id).expect("it was issued");
        let read = state.reads.remove(at);
        let Some(data) = data else { return Ok(()) };
        let got = value(data).ok_or_else(|| format!("line {line} reads as garbage: {data:02x?}"))?;
        if !read.allowed.contains(&got) {
            return Err(format!("line {line} reads as {got:#x}, allowed are {:x?}", read.allowed));
        }
        if read.alone {
            state.candidates = vec![got];
            // A read that overlaps this one may still return what this one has ruled out.
        }
        Ok(())
    }

    fn overlap(&mut self, line: usize, value: u64) {
        for read in &mut self.0[line].reads {
            read.allowed.push(value);
            read.alone = false;
        }
    }

    /// The write is on its way.
    pub fn write_issued(&mut self, line: usize, value: u64) {
        self.overlap(line, value);
        self.0[line].writes.push(value);
    }

    /// The write that was on its way has ended.
    pub fn write_ended(&mut self, line: usize, value: u64, failed: bool) {
        let state = &mut self.0[line];
        // Not among them: overtaken by one that was done at once, which comes after it in every respect.
        if let Some(at) = state.writes.iter().position(|w| *w == value) {
            state.writes.remove(at);
            if !failed {
                state.candidates.clear();
            }
            state.candidates.push(value);
        }
    }

    /// The write was done at once.
    pub fn written(&mut self, line: usize, value: u64) {
        self.overlap(line, value);
        let state = &mut self.0[line];
        state.writes.clear();
        state.candidates = vec![value];
    }

    /// Compares with what the memory node has.
    pub fn check_pool(&self, line: usize, data: &[u8]) -> Result<(), String> {
        let state = &self.0[line];
        let got = value(data).ok_or_else(|| format!("the pool has garbage in line {line}: {data:02x?}"))?;
        if state.writes.is_empty() && !state.candidates.contains(&got) {
            return Err(format!(
                "after a flush the pool has {got:#x} in line {line}, not {:x?}",
                state.candidates
            ));
        }
        Ok(())
    }
}

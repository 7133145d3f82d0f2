//! What each line of one CN at one MN may read as.
//!
//! A line's requests all go through one stream, so they are executed in the order in which they were
//! issued, and a read is never under way together with a later write. So when a read completes, every
//! write issued before it has been acknowledged or has failed, and none has been issued after it: the line
//! reads as the last one acknowledged, or as one that failed since and may have taken effect.

use cxloe_wire::frame::LINE_SIZE;

/// Lines of a page that are used, from its beginning.
pub const PAGE_LINES_USED: u64 = 12;
/// Pages used.
pub const PAGES: u64 = 6;
/// Lines in all.
pub const LINES: usize = (PAGES * PAGE_LINES_USED) as usize;

#[derive(Clone, Default)]
struct Line {
    /// Values it may have. Empty: never written since the memory was new, so 0.
    candidates: Vec<u64>,
    reads: u32,
    writes: u32,
}

/// The lines of one CN at one MN.
pub struct Model {
    lines: Vec<Line>,
}

/// The CMem address of a line.
pub fn addr(line: usize) -> u64 {
    let (page, index) = (line as u64 / PAGE_LINES_USED, line as u64 % PAGE_LINES_USED);
    page * 4096 + index * LINE_SIZE as u64
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
fn value(line: &[u8]) -> Option<u64> {
    let value = u64::from_le_bytes(line.get(..8)?.try_into().ok()?);
    (line == content(value)).then_some(value)
}

impl Model {
    pub fn new() -> Model {
        Model { lines: vec![Line::default(); LINES] }
    }

    pub fn may_write(&self, line: usize) -> bool {
        self.lines[line].reads == 0
    }

    pub fn issue(&mut self, line: usize, write: bool) {
        let line = &mut self.lines[line];
        *(if write { &mut line.writes } else { &mut line.reads }) += 1;
    }

    /// The read ends; `None` if it failed.
    pub fn read(&mut self, line: usize, data: Option<&[u8]>) -> Result<(), String> {
        let state = &mut self.lines[line];
        state.reads -= 1;
        let Some(data) = data else { return Ok(()) };
        let got = value(data).ok_or_else(|| format!("line {line} reads as garbage: {data:02x?}"))?;
        let possible = state.candidates.contains(&got) || (state.candidates.is_empty() && got == 0);
        if !possible {
            return Err(format!("line {line} reads as {got}, it can only be one of {:?}", state.candidates));
        }
        if state.writes == 0 {
            // From now on the line is known: what failed earlier can have no effect in this session.
            state.candidates.clear();
            state.candidates.push(got);
        }
        Ok(())
    }

    /// The write of `value` ends.
    pub fn written(&mut self, line: usize, value: u64, failed: bool) {
        let state = &mut self.lines[line];
        state.writes -= 1;
        if !failed {
            state.candidates.clear();
        } else if state.candidates.is_empty() {
            state.candidates.push(0);
        }
        state.candidates.push(value);
    }

    /// The memory is new: all lines are 0.
    pub fn lost(&mut self) {
        self.lines.iter_mut().for_each(|line| line.candidates = vec![0]);
    }
}

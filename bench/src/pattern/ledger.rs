//! What every line must hold: so each read is checked against the very write it has to see.
//!
//! A line's content follows from its number and its version; the ledger keeps the version of each, one byte. A line that
//! is another's, older than the last write, torn, or damaged in any bit differs.

use cxloe_cn_core::cache::Line;
use cxloe_wire::frame::LINE_SIZE;

use super::memory::Memory;
use crate::measure::MeasureError;

/// Lines written or read in one go.
pub const RUN_LINES: usize = 1024;

/// Versions of all lines of a memory, and what checks of them have found.
#[derive(Debug)]
pub struct Ledger {
    versions: Vec<u8>,
    /// Lines compared.
    pub checked: u64,
    /// Of these, lines that did not hold what was written last.
    pub wrong: u64,
}

/// The content of a line at a version.
#[inline]
pub fn stamp(line: u64, version: u8) -> Line {
    let mark = (line + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(version);
    let mut content = [0; LINE_SIZE];
    for (index, word) in content.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = mark.rotate_left(8 * index as u32).to_le_bytes();
    }
    content
}

impl Ledger {
    /// Stamps every line of `memory`.
    pub fn fill(memory: &mut dyn Memory) -> Result<Ledger, MeasureError> {
        let lines = memory.lines();
        fill(memory, |line| stamp(line, 0))?;
        Ok(Ledger { versions: vec![0; lines as usize], checked: 0, wrong: 0 })
    }

    /// The version of a line now.
    #[inline]
    pub fn version(&self, line: u64) -> u8 {
        self.versions[line as usize]
    }

    /// The version with which a line is to be written next.
    #[inline]
    pub fn next_version(&mut self, line: u64) -> u8 {
        let version = &mut self.versions[line as usize];
        *version = version.wrapping_add(1);
        *version
    }

    /// Compares what was read with what had been written when the read began.
    #[inline]
    pub fn check(&mut self, line: u64, version: u8, found: &Line) {
        self.checked += 1;
        self.wrong += u64::from(*found != stamp(line, version));
    }

    /// Reads all lines and compares them.
    pub fn check_all(&mut self, memory: &mut dyn Memory) -> Result<(), MeasureError> {
        scan(memory, |line, found| self.check(line, self.version(line), found))
    }
}

/// Writes every line.
pub fn fill(memory: &mut dyn Memory, content: impl Fn(u64) -> Line) -> Result<(), MeasureError> {
    let mut run = Vec::with_capacity(RUN_LINES);
    let lines = memory.lines();
    for first in (0..lines).step_by(RUN_LINES) {
        memory.check()?;
        run.clear();
        run.extend((first..lines.min(first + RUN_LINES as u64)).map(&content));
        memory.write_run(first, &run)?;
    }
    memory.flush()
}

/// Reads every line, in order.
pub fn scan(memory: &mut dyn Memory, mut each: impl FnMut(u64, &Line)) -> Result<(), MeasureError> {
    let lines = memory.lines();
    let mut run = vec![[0; LINE_SIZE]; RUN_LINES.min(lines as usize)];
    for first in (0..lines).step_by(run.len()) {
        memory.check()?;
        memory.read_run(first, &mut run)?;
        for (line, found) in (first..).zip(&run) {
            each(line, found);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::memory::local;
    use super::*;

    #[test]
    fn stamps_differ_by_line_and_by_version() {
        let mut stamps: Vec<Line> =
            (0..32).flat_map(|line| (0..=255).map(move |version| stamp(line, version))).collect();
        stamps.sort_unstable();
        stamps.dedup();
        assert_eq!(stamps.len(), 32 * 256);
    }

    #[test]
    fn any_damage_is_found() {
        let mut memory = local(4096 * 64, None);
        let mut ledger = Ledger::fill(&mut memory).unwrap();
        ledger.check_all(&mut memory).unwrap();
        assert_eq!((ledger.checked, ledger.wrong), (4096, 0));
        // A write the ledger knows of, one that got lost, a bit that flipped.
        let version = ledger.next_version(5);
        memory.write(5, &stamp(5, version)).unwrap();
        ledger.next_version(9);
        let mut damaged = memory.read(4000).unwrap();
        damaged[63] ^= 0x10;
        memory.write(4000, &damaged).unwrap();
        ledger.check_all(&mut memory).unwrap();
        assert_eq!((ledger.checked, ledger.wrong), (2 * 4096, 2));
    }
}

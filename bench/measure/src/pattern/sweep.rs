//! Passes over all lines of a memory in order, to fill and to check it.

use cxloe_cn_core::cache::Line;
use cxloe_wire::frame::LINE_SIZE;

use super::line_versions::{LineVersions, stamp};
use super::memory::Memory;
use crate::MeasureError;

/// Number of lines in one access of a pass.
const RUN_LINES: usize = 1024;

/// Writes every line at version 0, and returns these versions.
pub fn stamp_all(memory: &mut dyn Memory) -> Result<LineVersions, MeasureError> {
    fill(memory, |line| stamp(line, 0))?;
    Ok(LineVersions::new(memory.lines()))
}

/// Reads all lines, and counts in `versions` those that differ from their expected content.
pub fn check_all(versions: &mut LineVersions, memory: &mut dyn Memory) -> Result<(), MeasureError> {
    scan(memory, |line, found| versions.check(line, versions.version(line), found))
}

/// Writes every line with the content that `content` returns for the line's index.
pub fn fill(memory: &mut dyn Memory, content: impl Fn(u64) -> Line) -> Result<(), MeasureError> {
    let mut run = Vec::with_capacity(RUN_LINES);
    let lines = memory.lines();
    for first in (0..lines).step_by(RUN_LINES) {
        memory.check()?;
        run.clear();
        run.extend((first..lines.min(first + RUN_LINES as u64)).map(&content));
        memory.write_run(first, &run)?;
    }
    // Lines that are only in a cache would be written back during the measurement.
    memory.flush()
}

/// Reads every line in order, and calls `each` with the line's index and content.
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
    fn any_damage_is_found() {
        let mut memory = local(4096 * 64, None);
        let mut versions = stamp_all(&mut memory).unwrap();
        check_all(&mut versions, &mut memory).unwrap();
        assert_eq!((versions.checked, versions.wrong), (4096, 0));
        // The write of line 5 is recorded and made, so line 5 is correct. A write of line 9 is recorded but not made,
        // as if it were lost.
        let version = versions.next_version(5);
        memory.write(5, &stamp(5, version)).unwrap();
        versions.next_version(9);
        let mut damaged = memory.read(4000).unwrap();
        damaged[63] ^= 0x10;
        memory.write(4000, &damaged).unwrap();
        check_all(&mut versions, &mut memory).unwrap();
        assert_eq!((versions.checked, versions.wrong), (2 * 4096, 2));
    }
}

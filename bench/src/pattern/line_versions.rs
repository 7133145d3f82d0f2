//! What every line must hold: so each read is checked against the very write it has to see.
//!
//! A line's content follows from its number and its version; this keeps the version of each, one byte. A line that
//! is another's, older than the last write, torn, or damaged in any bit differs.

use cxloe_cn_core::cache::Line;
use cxloe_wire::frame::LINE_SIZE;

/// Versions of all lines of a memory, and what checks of them have found.
#[derive(Debug)]
pub struct LineVersions {
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

impl LineVersions {
    /// Those of `lines` lines, each at its first version.
    pub fn new(lines: u64) -> LineVersions {
        LineVersions { versions: vec![0; lines as usize], checked: 0, wrong: 0 }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_differ_by_line_and_by_version() {
        let mut stamps: Vec<Line> =
            (0..32).flat_map(|line| (0..=255).map(move |version| stamp(line, version))).collect();
        stamps.sort_unstable();
        stamps.dedup();
        assert_eq!(stamps.len(), 32 * 256);
    }
}

//! Expected content of every line, so that each read is checked against the latest write it must observe.
//!
//! The content of a line is a function of its index and its version; [`LineVersions`] keeps the version of
//! each line in one byte. So a read that returns another line, an older version, a torn write, or a flipped
//! bit is detected.

use cxloe_cn_core::cache::Line;
use cxloe_wire::frame::LINE_SIZE;

/// Version of each line of a memory, and counts of the comparisons.
#[derive(Debug)]
pub struct LineVersions {
    versions: Vec<u8>,
    /// Number of lines compared.
    pub checked: u64,
    /// Number of compared lines that differ from the last write.
    pub wrong: u64,
}

/// Returns the content of the line with index `line` at `version`: eight rotations of one word, so that no
/// part of a line equals another.
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
    /// Starts with all `lines` lines at version 0.
    pub fn new(lines: u64) -> LineVersions {
        LineVersions { versions: vec![0; lines as usize], checked: 0, wrong: 0 }
    }

    /// Returns the version that the last write of a line stored.
    #[inline]
    pub fn version(&self, line: u64) -> u8 {
        self.versions[line as usize]
    }

    /// Increments the version of a line for the next write, and returns the new version.
    #[inline]
    pub(crate) fn next_version(&mut self, line: u64) -> u8 {
        let version = &mut self.versions[line as usize];
        *version = version.wrapping_add(1);
        *version
    }

    /// Compares the content `found` with the version that was current when the read began.
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

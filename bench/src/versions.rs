//! Content of a line in each of its versions, and the versions that a line may have while its writes can fail: from the
//! last acknowledged one to the last attempted one.

use std::error::Error;

/// Versions that a line may contain: from the last acknowledged one to the last attempted one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Versions {
    pub answered: u32,
    pub tried: u32,
}

impl Versions {
    /// Returns the version in `line`, the content read for line number `at`; `None` if this content is not permitted.
    pub fn judge(self, at: u64, line: &[u8; 64]) -> Option<u32> {
        let version = u32::from_le_bytes([line[0], line[1], line[2], line[3]]);
        let may_be = (self.answered..=self.tried).contains(&version);
        (may_be && *line == content(at, version)).then_some(version)
    }
}

/// Number of lines that were found wrong, and the first of them for the error.
#[derive(Debug, Default)]
pub struct WrongLines {
    count: u64,
    first: Option<String>,
}

impl WrongLines {
    /// Compares `lines`, read from line number `first` on, with the versions that they may have; returns how many of
    /// them are wrong.
    pub fn judge(&mut self, first: u64, versions: &mut [Versions], lines: &[[u8; 64]]) -> u64 {
        let before = self.count;
        for ((at, versions), line) in (first..).zip(versions).zip(lines) {
            match versions.judge(at, line) {
                // After a version was read, no later read may return an earlier version.
                Some(version) => versions.answered = version,
                None => {
                    self.count += 1;
                    self.first.get_or_insert_with(|| {
                        format!("line {at} begins with {:02x?}, of {versions:?}", &line[..8])
                    });
                }
            }
        }
        self.count - before
    }

    /// # Errors
    /// A line was wrong.
    pub fn check(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        match &self.first {
            Some(wrong) => Err(format!("{} lines were wrong; the first: {wrong}", self.count).into()),
            None => Ok(()),
        }
    }
}

/// Content of line number `at` in `version`; version 0 is zeros.
pub fn content(at: u64, version: u32) -> [u8; 64] {
    let mut line = [0; 64];
    if version > 0 {
        for (index, word) in line.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // Each word depends on the line, the version and its own number, so that a torn write is
            // recognised.
            let mixed = (at << 35) ^ (u64::from(version) << 3) ^ index as u64;
            *word = mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).to_le_bytes();
        }
        line[..4].copy_from_slice(&version.to_le_bytes());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_answered_is_required_and_what_failed_may_be_there() {
        let versions = Versions { answered: 3, tried: 5 };
        let judge = |line: &[u8; 64]| versions.judge(9, line);
        for version in 3..=5 {
            assert_eq!(judge(&content(9, version)), Some(version));
        }
        for version in [0, 2, 6] {
            assert_eq!(judge(&content(9, version)), None, "lost, or never written: {version}");
        }
        assert_eq!(judge(&content(8, 4)), None, "another line's");
        let mut torn = content(9, 4);
        torn[32..].copy_from_slice(&content(9, 3)[32..]);
        assert_eq!(judge(&torn), None, "half a write");
        assert_eq!(Versions::default().judge(9, &[0; 64]), Some(0), "never written");
    }
}

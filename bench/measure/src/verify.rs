//! Verification of a region: a pattern is written over it, then every byte is read back and compared.

use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::random::Random;

use super::{MeasureError, MeasuredRegion};

/// Number of bytes written or read in one call of the port.
const STEP: usize = 1 << 20;

/// Fills `buffer` with the pattern at region offset `offset`. The pattern differs from line to line and from
/// seed to seed.
fn pattern(offset: u64, seed: u64, buffer: &mut [u8]) {
    for (i, line) in buffer.chunks_exact_mut(LINE_SIZE).enumerate() {
        let mut words = Random::new(seed ^ (offset / LINE_SIZE as u64 + i as u64).rotate_left(32));
        for word in line.chunks_exact_mut(8) {
            word.copy_from_slice(&words.bits().to_le_bytes());
        }
    }
}

impl MeasuredRegion {
    /// Writes and checks the whole region, and returns the number of bytes compared. Calls `progress` with
    /// the number of bytes written and read so far, which ends at twice the region's size.
    pub fn verify(&mut self, seed: u64, progress: &mut dyn FnMut(u64)) -> Result<u64, MeasureError> {
        let mut expected = vec![0_u8; STEP];
        let mut found = vec![0_u8; STEP];
        let mut offset = 0;
        while offset < self.bytes {
            self.check()?;
            let len = (self.bytes - offset).min(STEP as u64) as usize;
            pattern(offset, seed, &mut expected[..len]);
            self.port.write_bytes(self.hpa + offset, &expected[..len])?;
            offset += len as u64;
            progress(offset);
        }
        let mut wrong = 0_u64;
        let mut first = None;
        offset = 0;
        while offset < self.bytes {
            self.check()?;
            let len = (self.bytes - offset).min(STEP as u64) as usize;
            pattern(offset, seed, &mut expected[..len]);
            self.port.read_bytes(self.hpa + offset, &mut found[..len])?;
            // Comparing whole blocks first is faster than comparing byte by byte.
            if expected[..len] != found[..len] {
                for (i, (written, found)) in expected[..len].iter().zip(&found[..len]).enumerate() {
                    if written != found {
                        wrong += 1;
                        first.get_or_insert((offset + i as u64, *written, *found));
                    }
                }
            }
            offset += len as u64;
            progress(self.bytes + offset);
        }
        match first {
            None => Ok(self.bytes),
            Some((at, written, found)) => Err(MeasureError::WrongData {
                hpa: self.hpa + at - at % LINE_SIZE as u64,
                index: (at % LINE_SIZE as u64) as usize,
                found,
                written,
                wrong,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_pattern_differs() {
        let mut a = vec![0; 4096];
        let mut b = vec![0; 4096];
        pattern(0, 1, &mut a);
        pattern(4096, 1, &mut b);
        let mut lines: Vec<&[u8]> = a.chunks(64).chain(b.chunks(64)).collect();
        lines.sort();
        lines.dedup();
        assert_eq!(lines.len(), 128);
        let mut again = vec![0; 64];
        pattern(64, 1, &mut again);
        assert_eq!(again, &a[64..128], "the pattern depends on the address alone");
        pattern(64, 2, &mut again);
        assert_ne!(again, &a[64..128], "and on the seed");
    }
}

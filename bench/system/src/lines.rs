//! Content of remote memory that says where it belongs and who wrote it: a line that is read from another place, or that
//! an earlier writer left, is none of those expected.

use cxloe_client::client::Client;

use crate::outcome::{Outcome, ensure};

/// Lines in one call of a client.
const CHUNK: usize = 4096;

/// The line at `hpa` as the writer `seed` writes it. No word of it is zero.
pub fn line(hpa: u64, seed: u64) -> [u8; 64] {
    let mut line = [0; 64];
    for (i, word) in line.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let mixed = (hpa ^ seed.rotate_left(32)).wrapping_add(i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        *word = (mixed | 1).to_le_bytes();
    }
    line
}

/// Writes every line of `bytes` from `hpa` on.
///
/// # Errors
/// What the agent says.
pub fn fill(port: &mut Client, hpa: u64, bytes: u64, seed: u64) -> Outcome {
    let hpas: Vec<u64> = (hpa..hpa + bytes).step_by(64).collect();
    for chunk in hpas.chunks(CHUNK) {
        let lines: Vec<_> = chunk.iter().map(|hpa| (*hpa, line(*hpa, seed))).collect();
        port.write_batch(&lines)?;
    }
    Ok(())
}

/// Reads every line of `bytes` from `hpa` on; each has to be what `expected` says.
///
/// # Errors
/// What the agent says, or the first line that is another.
pub fn check(port: &mut Client, hpa: u64, bytes: u64, expected: impl Fn(u64) -> [u8; 64]) -> Outcome {
    let hpas: Vec<u64> = (hpa..hpa + bytes).step_by(64).collect();
    let mut read = vec![[0; 64]; CHUNK];
    for chunk in hpas.chunks(CHUNK) {
        port.read_batch(chunk, &mut read[..chunk.len()])?;
        let wrong = chunk.iter().zip(&read).find(|(hpa, read)| expected(**hpa) != **read);
        ensure(wrong.is_none(), format!("another line than was written: {wrong:x?}"))?;
    }
    Ok(())
}

/// Reads every line of `bytes` from `hpa` on; each has to be as the writer `seed` wrote it.
///
/// # Errors
/// As [`check`].
pub fn verify(port: &mut Client, hpa: u64, bytes: u64, seed: u64) -> Outcome {
    check(port, hpa, bytes, |hpa| line(hpa, seed))
}

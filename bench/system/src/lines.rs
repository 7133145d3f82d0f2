//! Content of remote memory that depends on its address and its writer, so that a line read from a wrong address, or
//! left by an earlier writer, is detected.

use cxloe_client::client::Client;

use crate::outcome::{Outcome, ensure};

/// Number of lines transferred by one call of a client.
const CHUNK: usize = 4096;

/// Content that the writer `seed` gives the line at `hpa`. No 64-bit word of the line is zero, so that no
/// part of it
/// can be mistaken for memory that was never written.
pub fn line(hpa: u64, seed: u64) -> [u8; 64] {
    let mut line = [0; 64];
    for (i, word) in line.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let mixed = (hpa ^ seed.rotate_left(32)).wrapping_add(i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        *word = (mixed | 1).to_le_bytes();
    }
    line
}

/// Writes [`line()`]s over `bytes` bytes from `hpa` on.
pub fn fill(port: &mut Client, hpa: u64, bytes: u64, seed: u64) -> Outcome {
    let hpas: Vec<u64> = (hpa..hpa + bytes).step_by(64).collect();
    for chunk in hpas.chunks(CHUNK) {
        let lines: Vec<_> = chunk.iter().map(|hpa| (*hpa, line(*hpa, seed))).collect();
        port.write_batch(&lines)?;
    }
    Ok(())
}

/// Reads `bytes` bytes from `hpa` on, and compares every line with the result of `expected` for its address.
///
/// # Errors
/// Returns errors of the agent, or the first line that differs.
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

/// Reads `bytes` bytes from `hpa` on, and compares every line with what the writer `seed` has written.
pub fn verify(port: &mut Client, hpa: u64, bytes: u64, seed: u64) -> Outcome {
    check(port, hpa, bytes, |hpa| line(hpa, seed))
}

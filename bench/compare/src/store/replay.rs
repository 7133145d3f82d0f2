//! Replay of a recorded trace: its accesses are made in whole lines, and each begins when the one before has ended.
//!
//! ```text
//!   access --trace--> lines, each once --store--> read or written, timed ---> lines read are compared, not timed
//!                     pages forgotten, not timed
//! ```
//!
//! Each write gives a line a content that it never had. The next read of the line, or the reading back at the end,
//! finds a write that was lost.

use std::time::{Duration, Instant};

use super::{Store, compare};
use crate::error::PeerError;
use crate::measured::Measured;
use crate::pattern::Pattern;
use crate::trace::{AccessTrace, TraceAccess};
use crate::unit::{AccessUnit, LINE, PAGE};
use cxloe_lab::Interrupt;

/// Maximum number of lines in one call.
const CALL_LINES: usize = 4096;
/// Number of written lines that are read back between two readings of the clock.
const READ_BACK_LINES: usize = 64;
/// Factor from the version of a line to the difference of each of its words: odd, so that no two versions agree.
const MARK: u64 = 0x9E37_79B9_7F4A_7C15;

/// Replays all of `trace` in a store that holds `content`. Then reads back lines that were written, for about `each`.
pub(super) fn replay(
    store: &mut dyn Store,
    content: &[u8],
    trace: &AccessTrace,
    each: Duration,
    interrupt: &Interrupt,
) -> Result<Measured, PeerError> {
    let versions = vec![0; content.len() / LINE];
    let mut replay = Replay { store, content, trace, versions, indices: Vec::new(), bytes: Vec::new() };
    replay.warm()?;
    let mut times = Vec::with_capacity(trace.accesses().len());
    for (done, access) in trace.accesses().iter().enumerate() {
        if done.is_multiple_of(64) {
            interrupt.check()?;
        }
        times.push(replay.access(access)?.as_nanos() as u64);
    }
    replay.read_back(each, interrupt)?;
    Ok(Measured::times(Pattern::Trace, times))
}

struct Replay<'a> {
    store: &'a mut dyn Store,
    /// Content of the memory before the first access.
    content: &'a [u8],
    trace: &'a AccessTrace,
    /// For each line of the memory, how often it was written.
    versions: Vec<u32>,
    /// Lines of the present access, in ascending order.
    indices: Vec<usize>,
    /// Data of the present access.
    bytes: Vec<u8>,
}

impl Replay<'_> {
    fn warm(&mut self) -> Result<(), PeerError> {
        self.indices.push(0);
        for _ in 0..AccessUnit::Line.warm() {
            self.forget()?;
            self.read()?;
        }
        Ok(())
    }

    fn access(&mut self, access: &TraceAccess) -> Result<Duration, PeerError> {
        self.indices.clear();
        self.trace.lines(access, self.content.len() / PAGE, &mut self.indices);
        // Two pages of an access may have one place, if the trace has more pages than the memory.
        self.indices.sort_unstable();
        self.indices.dedup();
        self.forget()?;
        if access.is_write { self.write() } else { self.read() }
    }

    /// Prepares the pages of the present access; see [`Store::forget`].
    fn forget(&mut self) -> Result<(), PeerError> {
        let page = |line: usize| line / (PAGE / LINE);
        for lines in self.indices.chunk_by(|a, b| page(*a) == page(*b)) {
            self.store.forget(AccessUnit::Page, page(lines[0]))?;
        }
        Ok(())
    }

    /// Reads and compares the lines of the present access; returns the time without the comparison.
    fn read(&mut self) -> Result<Duration, PeerError> {
        self.bytes.clear();
        self.bytes.resize(self.indices.len() * LINE, 0);
        let start = Instant::now();
        read_lines(self.store, &self.indices, &mut self.bytes)?;
        let took = start.elapsed();
        for (index, line) in self.indices.iter().zip(self.bytes.chunks_exact(LINE)) {
            let written = version(self.content, *index, self.versions[*index]);
            compare(Pattern::Trace, line, &written, index * LINE)?;
        }
        Ok(took)
    }

    /// Writes new versions of the lines of the present access.
    fn write(&mut self) -> Result<Duration, PeerError> {
        self.bytes.resize(self.indices.len() * LINE, 0);
        for (index, line) in self.indices.iter().zip(self.bytes.chunks_exact_mut(LINE)) {
            self.versions[*index] += 1;
            line.copy_from_slice(&version(self.content, *index, self.versions[*index]));
        }
        let start = Instant::now();
        write_lines(self.store, &self.indices, &self.bytes)?;
        Ok(start.elapsed())
    }

    fn read_back(&mut self, each: Duration, interrupt: &Interrupt) -> Result<(), PeerError> {
        let until = Instant::now() + each;
        let is_written = |index: &usize| self.versions[*index] > 0;
        let written: Vec<usize> = (0..self.versions.len()).filter(is_written).collect();
        for (count, indices) in written.chunks(READ_BACK_LINES).enumerate() {
            if count > 0 && Instant::now() > until {
                break;
            }
            interrupt.check()?;
            self.indices.clear();
            self.indices.extend_from_slice(indices);
            self.forget()?;
            self.read()?;
        }
        Ok(())
    }
}

/// Content of a line after so many writes.
fn version(content: &[u8], index: usize, writes: u32) -> [u8; LINE] {
    let mark = u64::from(writes).wrapping_mul(MARK);
    let before = content[index * LINE..(index + 1) * LINE].as_chunks::<8>().0;
    let mut line = [0_u8; LINE];
    for (word, before) in line.as_chunks_mut::<8>().0.iter_mut().zip(before) {
        *word = (u64::from_le_bytes(*before) ^ mark).to_le_bytes();
    }
    line
}

/// Reads lines: one by itself, several with as many in flight as the peer allows.
fn read_lines(store: &mut dyn Store, indices: &[usize], out: &mut [u8]) -> Result<(), PeerError> {
    if let [index] = indices {
        return store.read(AccessUnit::Line, *index, out);
    }
    for (indices, out) in indices.chunks(CALL_LINES).zip(out.chunks_mut(CALL_LINES * LINE)) {
        if store.read_many(AccessUnit::Line, indices, out)?.is_some() {
            continue;
        }
        for (index, line) in indices.iter().zip(out.chunks_exact_mut(LINE)) {
            store.read(AccessUnit::Line, *index, line)?;
        }
    }
    Ok(())
}

/// Writes lines: one by itself, several with as many in flight as the peer allows.
fn write_lines(store: &mut dyn Store, indices: &[usize], lines: &[u8]) -> Result<(), PeerError> {
    if let [index] = indices {
        return store.write(*index, lines);
    }
    for (indices, lines) in indices.chunks(CALL_LINES).zip(lines.chunks(CALL_LINES * LINE)) {
        store.write_lines(indices, lines)?;
    }
    Ok(())
}

//! The same accesses for every peer that keeps bytes: [`drive`] issues them to a [`Store`], times them, and
//! checks every byte read.
//!
//! ```text
//!   bulk_write  all memory                       -> rate
//!   bulk_read   all memory, then compared        -> rate
//!   read4k      one page at a time, compared     -> times
//!   read64      one line at a time, compared     -> times
//!   stream64    many lines in flight, then compared -> rate
//!   trace       accesses of a recorded trace, if there is one, compared -> times (replay)
//!   write64     other lines, one at a time, then read back and compared -> times
//! ```
//!
//! Checking is outside the timed interval.

mod replay;

use std::time::Instant;

use super::error::PeerError;
use super::measured::Measured;
use super::pattern::{LINE, OPERATIONS_MIN, PAGE, Pattern, Plan};
use cxloe_lab::Interrupt;
use cxloe_wire::random::Random;

/// Number of lines in one [`Store::read_lines`] call.
const STREAM_LINES: usize = 4096;
/// Untimed operations before the timed ones: they warm caches and wake sleeping threads.
const WARM: u64 = 10;
/// Maximum number of written lines that are read back and checked.
const LOOKED_AT: usize = 2000;

/// Size of a single access. An access with index `n` begins at `n` times this size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessUnit {
    /// 64 bytes.
    Line,
    /// 4096 bytes.
    Page,
}

impl AccessUnit {
    pub fn bytes(self) -> usize {
        match self {
            AccessUnit::Line => LINE,
            AccessUnit::Page => PAGE,
        }
    }
}

/// Memory of another machine, as one peer provides it. Indices of units count from the start of the memory.
pub trait Store {
    /// Reads one unit; returns when its bytes are in `out`.
    fn read(&mut self, unit: AccessUnit, index: usize, out: &mut [u8]) -> Result<(), PeerError>;

    /// Writes one line; returns when the peer has acknowledged its arrival.
    fn write(&mut self, index: usize, line: &[u8]) -> Result<(), PeerError>;

    /// Reads many lines with several requests in flight; returns `None` if the peer is limited to one request at a
    /// time.
    fn read_lines(&mut self, indices: &[usize], out: &mut [u8]) -> Result<Option<()>, PeerError>;

    /// Writes many lines, none of them twice; returns when the peer has acknowledged all. A peer that can have several
    /// requests in flight does; others write one line after the other.
    fn write_lines(&mut self, indices: &[usize], lines: &[u8]) -> Result<(), PeerError> {
        indices.iter().zip(lines.chunks_exact(LINE)).try_for_each(|(index, line)| self.write(*index, line))
    }

    /// Reads the whole memory into `out`.
    fn bulk_read(&mut self, out: &mut [u8]) -> Result<(), PeerError>;

    /// Writes the whole memory; returns when the other end has acknowledged all bytes.
    fn bulk_write(&mut self, all: &[u8]) -> Result<(), PeerError>;

    /// Makes single lines and pages readable, for peers whose [`bulk_write`](Self::bulk_write) does not store them as
    /// such; not timed.
    fn fill(&mut self, _all: &[u8]) -> Result<(), PeerError> {
        Ok(())
    }

    /// Prepares the next [`read`](Self::read) or [`write`](Self::write) of this unit, for instance by dropping cached
    /// data; not timed.
    fn forget(&mut self, _unit: AccessUnit, _index: usize) -> Result<(), PeerError> {
        Ok(())
    }
}

/// Content of the memory: two versions that differ in every line.
#[derive(Debug)]
pub struct Content {
    first: Vec<u8>,
    second: Vec<u8>,
}

impl Content {
    /// Makes two versions of `bytes` bytes.
    pub fn new(bytes: usize) -> Content {
        let made = |seed| {
            let mut words = Random::new(seed);
            (0..bytes / 8).flat_map(|_| words.bits().to_le_bytes()).collect()
        };
        Content { first: made(0xC0FFEE), second: made(0x7EA) }
    }
}

/// Runs one trial of all patterns on an empty store, which `bulk_write` fills.
pub fn drive(
    store: &mut dyn Store,
    content: &Content,
    plan: &Plan,
    interrupt: &Interrupt,
) -> Result<Vec<Measured>, PeerError> {
    let mut trial = Trial { store, content, plan, interrupt, random: Random::new(64) };
    let mut found = Vec::new();
    found.push(trial.bulk_write()?);
    trial.store.fill(&content.first)?;
    found.push(trial.bulk_read()?);
    found.push(trial.single_reads(Pattern::Read4k, AccessUnit::Page)?);
    found.push(trial.single_reads(Pattern::Read64, AccessUnit::Line)?);
    found.extend(trial.stream()?);
    // Single writes change lines, so the trace is replayed before them.
    found.extend(trial.trace()?);
    found.push(trial.single_writes()?);
    Ok(found)
}

struct Trial<'a> {
    store: &'a mut dyn Store,
    content: &'a Content,
    plan: &'a Plan,
    interrupt: &'a Interrupt,
    random: Random,
}

impl Trial<'_> {
    fn bulk_write(&mut self) -> Result<Measured, PeerError> {
        let start = Instant::now();
        let mut bytes = 0;
        while bytes == 0 || start.elapsed() < self.plan.each {
            self.interrupt.check()?;
            self.store.bulk_write(&self.content.first)?;
            bytes += self.content.first.len() as u64;
        }
        Ok(Measured::rate(Pattern::BulkWrite, bytes, start.elapsed()))
    }

    fn bulk_read(&mut self) -> Result<Measured, PeerError> {
        let mut out = vec![0; self.content.first.len()];
        let (start, mut took, mut bytes) = (Instant::now(), std::time::Duration::ZERO, 0);
        while bytes == 0 || start.elapsed() < self.plan.each {
            self.interrupt.check()?;
            out.fill(0);
            let turn = Instant::now();
            self.store.bulk_read(&mut out)?;
            took += turn.elapsed();
            bytes += out.len() as u64;
            compare(Pattern::BulkRead, &out, &self.content.first, 0)?;
        }
        Ok(Measured::rate(Pattern::BulkRead, bytes, took))
    }

    /// True if the plan requires another single operation after `done` of them.
    fn continues(&self, done: u64, start: Instant) -> Result<bool, PeerError> {
        if done.is_multiple_of(64) {
            self.interrupt.check()?;
        }
        let enough = done >= self.plan.operations || start.elapsed() >= self.plan.each;
        Ok(done < OPERATIONS_MIN + WARM || !enough)
    }

    fn single_reads(&mut self, pattern: Pattern, unit: AccessUnit) -> Result<Measured, PeerError> {
        let units = (self.content.first.len() / unit.bytes()) as u64;
        let mut out = vec![0; unit.bytes()];
        let mut times = Vec::with_capacity(self.plan.operations as usize);
        let (start, mut done) = (Instant::now(), 0);
        while self.continues(done, start)? {
            let index = self.random.below(units) as usize;
            self.store.forget(unit, index)?;
            let turn = Instant::now();
            self.store.read(unit, index, &mut out)?;
            let took = turn.elapsed();
            if done >= WARM {
                times.push(took.as_nanos() as u64);
            }
            let at = index * unit.bytes();
            compare(pattern, &out, &self.content.first[at..at + unit.bytes()], at)?;
            done += 1;
        }
        Ok(Measured::times(pattern, times))
    }

    fn stream(&mut self) -> Result<Option<Measured>, PeerError> {
        let lines = (self.content.first.len() / LINE) as u64;
        let mut out = vec![0; STREAM_LINES * LINE];
        let (start, mut took, mut bytes) = (Instant::now(), std::time::Duration::ZERO, 0);
        while bytes == 0 || start.elapsed() < self.plan.each {
            self.interrupt.check()?;
            let indices: Vec<usize> = (0..STREAM_LINES).map(|_| self.random.below(lines) as usize).collect();
            out.fill(0);
            let turn = Instant::now();
            if self.store.read_lines(&indices, &mut out)?.is_none() {
                return Ok(None);
            }
            took += turn.elapsed();
            bytes += out.len() as u64;
            for (index, line) in indices.iter().zip(out.chunks_exact(LINE)) {
                let at = index * LINE;
                compare(Pattern::Stream64, line, &self.content.first[at..at + LINE], at)?;
            }
        }
        Ok(Some(Measured::rate(Pattern::Stream64, bytes, took)))
    }

    fn trace(&mut self) -> Result<Option<Measured>, PeerError> {
        let Some(trace) = &self.plan.trace else { return Ok(None) };
        let content = &self.content.first;
        replay::replay(self.store, content, trace, self.plan.each, self.interrupt).map(Some)
    }

    fn single_writes(&mut self) -> Result<Measured, PeerError> {
        let lines = (self.content.second.len() / LINE) as u64;
        let mut times = Vec::with_capacity(self.plan.operations as usize);
        let mut written = Vec::with_capacity(LOOKED_AT);
        let (start, mut done) = (Instant::now(), 0);
        while self.continues(done, start)? {
            let index = self.random.below(lines) as usize;
            self.store.forget(AccessUnit::Line, index)?;
            let line = &self.content.second[index * LINE..(index + 1) * LINE];
            let turn = Instant::now();
            self.store.write(index, line)?;
            let took = turn.elapsed();
            if done >= WARM {
                times.push(took.as_nanos() as u64);
            }
            if written.len() < LOOKED_AT {
                written.push(index);
            }
            done += 1;
        }
        let mut out = [0; LINE];
        let until = Instant::now() + self.plan.each;
        for (count, index) in written.into_iter().enumerate() {
            if count as u64 >= OPERATIONS_MIN && Instant::now() > until {
                break;
            }
            self.store.forget(AccessUnit::Line, index)?;
            self.store.read(AccessUnit::Line, index, &mut out)?;
            let at = index * LINE;
            compare(Pattern::Write64, &out, &self.content.second[at..at + LINE], at)?;
        }
        Ok(Measured::times(Pattern::Write64, times))
    }
}

/// Compares bytes read with bytes written; `start` is the offset of the first byte in the memory.
fn compare(pattern: Pattern, found: &[u8], written: &[u8], start: usize) -> Result<(), PeerError> {
    if found == written {
        return Ok(());
    }
    let at = found.iter().zip(written).position(|(a, b)| a != b).unwrap_or(0);
    Err(PeerError::Wrong { pattern: pattern.name(), at: start + at, found: found[at], written: written[at] })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::measured::Value;
    use super::super::trace::AccessTrace;
    use super::*;

    /// Memory of this process, which on request loses the write of one line or corrupts a byte of bulk reads.
    struct LocalStore {
        bytes: Vec<u8>,
        loses_writes: bool,
        spoils: Option<usize>,
        streams: bool,
    }

    impl Store for LocalStore {
        fn read(&mut self, unit: AccessUnit, index: usize, out: &mut [u8]) -> Result<(), PeerError> {
            let at = index * unit.bytes();
            out.copy_from_slice(&self.bytes[at..at + unit.bytes()]);
            Ok(())
        }

        fn write(&mut self, index: usize, line: &[u8]) -> Result<(), PeerError> {
            if !self.loses_writes {
                self.bytes[index * LINE..(index + 1) * LINE].copy_from_slice(line);
            }
            Ok(())
        }

        fn read_lines(&mut self, indices: &[usize], out: &mut [u8]) -> Result<Option<()>, PeerError> {
            if !self.streams {
                return Ok(None);
            }
            for (index, line) in indices.iter().zip(out.chunks_exact_mut(LINE)) {
                self.read(AccessUnit::Line, *index, line)?;
            }
            Ok(Some(()))
        }

        fn bulk_read(&mut self, out: &mut [u8]) -> Result<(), PeerError> {
            out.copy_from_slice(&self.bytes);
            if let Some(at) = self.spoils {
                out[at] ^= 1;
            }
            Ok(())
        }

        fn bulk_write(&mut self, all: &[u8]) -> Result<(), PeerError> {
            self.bytes.copy_from_slice(all);
            Ok(())
        }
    }

    /// Trace whose writes are each followed by a read of the same bytes and more: within a line, and over several.
    fn trace() -> AccessTrace {
        let line = |n: usize| {
            let kind = if n.is_multiple_of(2) { 'w' } else { 'r' };
            format!("{kind} {} {}\n", n / 2 * 5000, 1 + n * 10)
        };
        AccessTrace::read((0..60).map(line).collect::<String>().as_bytes()).unwrap()
    }

    fn driven(
        bytes: usize,
        trace: Option<AccessTrace>,
        change: impl FnOnce(&mut LocalStore),
    ) -> Result<Vec<Measured>, PeerError> {
        let mut store =
            LocalStore { bytes: vec![0; bytes], loses_writes: false, spoils: None, streams: true };
        change(&mut store);
        let plan = Plan { bytes, operations: 100, each: Duration::from_millis(5), depth: 8, trace };
        drive(&mut store, &Content::new(bytes), &plan, &Interrupt::never())
    }

    #[test]
    fn every_pattern_is_measured_once() {
        let found = driven(1 << 20, Some(trace()), |_| ()).unwrap();
        let mut patterns: Vec<Pattern> = found.iter().map(|measured| measured.pattern).collect();
        patterns.sort();
        assert_eq!(patterns, Pattern::ALL);
        for measured in found {
            match measured.value {
                Value::Times(times) => assert!(times.len() >= 20 && measured.pattern.is_time()),
                Value::Rate { bytes_per_s, .. } => assert!(bytes_per_s > 0.0 && !measured.pattern.is_time()),
                Value::Said { .. } => panic!("nobody said anything"),
            }
        }
        let without = driven(1 << 20, None, |store| store.streams = false).unwrap();
        let is_left_out =
            |measured: &Measured| matches!(measured.pattern, Pattern::Stream64 | Pattern::Trace);
        assert!(!without.iter().any(is_left_out));
    }

    #[test]
    fn every_access_of_a_trace_is_timed_whatever_the_store_can_do() {
        // In 64 KiB, pages of the trace share places.
        for (bytes, streams) in [(1 << 20, true), (1 << 20, false), (1 << 16, true)] {
            let found = driven(bytes, Some(trace()), |store| store.streams = streams).unwrap();
            let replayed = found.into_iter().find(|measured| measured.pattern == Pattern::Trace).unwrap();
            assert!(matches!(replayed.value, Value::Times(times) if times.len() == 60), "{bytes} {streams}");
        }
        assert!(trace().bytes() > 1 << 16);
    }

    #[test]
    fn lost_writes_and_spoilt_bytes_are_found() {
        let lost = driven(1 << 20, None, |store| store.loses_writes = true).unwrap_err();
        assert!(matches!(lost, PeerError::Wrong { pattern: "write64", .. }), "{lost}");
        let lost = driven(1 << 20, Some(trace()), |store| store.loses_writes = true).unwrap_err();
        assert!(matches!(lost, PeerError::Wrong { pattern: "trace", at: 0, .. }), "{lost}");
        let unread = AccessTrace::read("w 8192 64".as_bytes()).unwrap();
        let lost = driven(1 << 20, Some(unread), |store| store.loses_writes = true).unwrap_err();
        assert!(matches!(lost, PeerError::Wrong { pattern: "trace", at: 0, .. }), "{lost}");
        let spoilt = driven(1 << 20, None, |store| store.spoils = Some(777)).unwrap_err();
        assert!(matches!(spoilt, PeerError::Wrong { pattern: "bulk_read", at: 777, .. }), "{spoilt}");
    }
}

//! The same accesses for every peer that keeps bytes: [`drive`] issues them to a [`Store`], times them, and
//! checks every byte read.
//!
//! ```text
//!   bulk_write             all memory: it fills the store                       -> rate       trial
//!   bulk_read              all memory, then compared                            -> rate       trial
//!   read, seq              one unit at a time, compared                         -> times      reads
//!   stream, seq_stream     many units in flight, then compared                  -> rate       reads
//!   load                   lines at moments given in advance, compared          -> times      loads
//!   trace                  accesses of a recorded trace, compared               -> times      replay
//!   write64                other lines, one at a time, read back and compared   -> times      trial
//! ```
//!
//! Checking is outside the timed interval.

mod loads;
mod reads;
mod replay;
mod trial;

use super::error::PeerError;
use super::measured::Measured;
use super::pattern::{AccessOrder, Pattern};
use super::pipeline::Pipeline;
use super::plan::Plan;
use super::unit::{AccessUnit, LINE};
use cxloe_lab::Interrupt;
use cxloe_wire::random::Random;
use trial::Trial;

/// Memory of another machine, as one peer provides it. Indices of units count from the start of the memory.
pub trait Store {
    /// Reads one unit; returns when its bytes are in `out`.
    fn read(&mut self, unit: AccessUnit, index: usize, out: &mut [u8]) -> Result<(), PeerError>;

    /// Writes one line; returns when the peer has acknowledged its arrival.
    fn write(&mut self, index: usize, line: &[u8]) -> Result<(), PeerError>;

    /// Reads many units with several requests in flight, as many as [`AccessUnit::in_flight`] says; returns `None` if
    /// the peer is limited to one request at a time.
    fn read_many(
        &mut self,
        unit: AccessUnit,
        indices: &[usize],
        out: &mut [u8],
    ) -> Result<Option<()>, PeerError>;

    /// Writes many lines, none of them twice; returns when the peer has acknowledged all. A peer that can have several
    /// requests in flight does; others write one line after the other.
    fn write_lines(&mut self, indices: &[usize], lines: &[u8]) -> Result<(), PeerError> {
        indices.iter().zip(lines.chunks_exact(LINE)).try_for_each(|(index, line)| self.write(*index, line))
    }

    /// Reads the whole memory into `out`.
    fn bulk_read(&mut self, out: &mut [u8]) -> Result<(), PeerError>;

    /// Writes the whole memory; returns when the other end has acknowledged all bytes.
    fn bulk_write(&mut self, all: &[u8]) -> Result<(), PeerError>;

    /// Reads that are begun while earlier ones are in flight; `None` if the peer is limited to one request at a time.
    fn pipeline(&mut self) -> Option<&mut dyn Pipeline> {
        None
    }

    /// Makes single units readable, for peers whose [`bulk_write`](Self::bulk_write) does not store them as such; not
    /// timed.
    fn fill(&mut self, _all: &[u8]) -> Result<(), PeerError> {
        Ok(())
    }

    /// Prepares accesses in this order, which begin at the start of the memory if it is sequential, for instance by
    /// dropping cached data; not timed.
    fn prepare(&mut self, _order: AccessOrder) -> Result<(), PeerError> {
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

/// Runs one trial of all patterns of the plan on an empty store.
pub fn drive(
    store: &mut dyn Store,
    content: &Content,
    plan: &Plan,
    interrupt: &Interrupt,
) -> Result<Vec<Measured>, PeerError> {
    let mut trial = Trial { store, content, plan, interrupt, random: Random::new(64) };
    let mut found = Vec::new();
    found.extend(trial.bulk_write()?);
    trial.store.fill(&content.first)?;
    found.extend(trial.bulk_read()?);
    for (pattern, shape) in plan.patterns.iter().filter_map(|pattern| Some((*pattern, pattern.read_shape()?)))
    {
        if plan.has(pattern) {
            found.extend(trial.reads(pattern, shape)?);
        }
    }
    trial.store.prepare(AccessOrder::Random)?;
    found.extend(trial.loads()?);
    // Single writes change lines, so the trace is replayed before them.
    found.extend(trial.trace()?);
    found.extend(trial.single_writes()?);
    Ok(found)
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
    use std::time::{Duration, Instant};

    use super::super::measured::Value;
    use super::super::plan::tests::plan;
    use super::super::trace::AccessTrace;
    use super::*;

    /// Number of reads that [`LocalStore`] has in flight at most: fewer than loads ask for.
    const ROOM: usize = 3;

    /// Memory of this process, which on request loses the write of one line or corrupts a byte of bulk reads or loads.
    struct LocalStore {
        bytes: Vec<u8>,
        loses_writes: bool,
        spoils: Option<usize>,
        spoils_loads: bool,
        /// True if several requests can be in flight.
        streams: bool,
        /// Slots and lines of reads in flight.
        begun: Vec<(u32, usize)>,
        /// Number of times that sequential accesses began.
        rewound: usize,
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

        fn read_many(
            &mut self,
            unit: AccessUnit,
            indices: &[usize],
            out: &mut [u8],
        ) -> Result<Option<()>, PeerError> {
            if !self.streams {
                return Ok(None);
            }
            for (index, found) in indices.iter().zip(out.chunks_exact_mut(unit.bytes())) {
                self.read(unit, *index, found)?;
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

        fn pipeline(&mut self) -> Option<&mut dyn Pipeline> {
            if self.streams { Some(self) } else { None }
        }

        fn prepare(&mut self, order: AccessOrder) -> Result<(), PeerError> {
            self.rewound += usize::from(order == AccessOrder::Sequential);
            Ok(())
        }
    }

    impl Pipeline for LocalStore {
        fn begin(&mut self, slot: u32, line: usize) -> Result<bool, PeerError> {
            let has_room = self.begun.len() < ROOM;
            if has_room {
                self.begun.push((slot, line));
            }
            Ok(has_room)
        }

        /// Answers in reverse order.
        fn take(&mut self, until: Instant, arrived: &mut dyn FnMut(u32, &[u8])) -> Result<(), PeerError> {
            while self.begun.is_empty() && Instant::now() < until {
                std::hint::spin_loop();
            }
            while let Some((slot, line)) = self.begun.pop() {
                let mut found = [0; LINE];
                self.read(AccessUnit::Line, line, &mut found)?;
                found[7] ^= u8::from(self.spoils_loads);
                arrived(slot, &found);
            }
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

    fn store(bytes: usize) -> LocalStore {
        LocalStore {
            bytes: vec![0; bytes],
            loses_writes: false,
            spoils: None,
            spoils_loads: false,
            streams: true,
            begun: Vec::new(),
            rewound: 0,
        }
    }

    fn driven(
        bytes: usize,
        trace: Option<AccessTrace>,
        change: impl FnOnce(&mut LocalStore),
    ) -> Result<Vec<Measured>, PeerError> {
        let mut store = store(bytes);
        change(&mut store);
        let mut plan = Plan { operations: 100, depth: 8, trace, ..plan(bytes, Duration::from_millis(5)) };
        plan.patterns.extend(plan.trace.as_ref().map(|_| Pattern::Trace));
        drive(&mut store, &Content::new(bytes), &plan, &Interrupt::never())
    }

    fn patterns(found: &[Measured]) -> Vec<Pattern> {
        let mut patterns: Vec<Pattern> = found.iter().map(|measured| measured.pattern).collect();
        patterns.sort();
        patterns
    }

    #[test]
    fn every_pattern_is_measured_once() {
        let found = driven(1 << 20, Some(trace()), |_| ()).unwrap();
        assert_eq!(patterns(&found), Pattern::ALL);
        for Measured { pattern, value } in found {
            match value {
                Value::Times(times) => {
                    let least = if pattern.bytes() > 1 << 16 { 5 } else { 20 };
                    assert!(times.len() >= least && pattern.is_time(), "{pattern}");
                }
                Value::Load { times_ns, offered_per_s, per_s } => {
                    assert!(times_ns.len() >= 20 && pattern.load_share().is_some(), "{pattern}");
                    assert!(offered_per_s > 0.0 && per_s > 0.0, "{pattern}");
                }
                Value::Rate { bytes_per_s, .. } => assert!(bytes_per_s > 0.0 && !pattern.is_time()),
                Value::Said { .. } => panic!("nobody said anything"),
            }
        }
    }

    #[test]
    fn a_peer_with_one_request_at_a_time_has_loads_and_no_streams() {
        let found = driven(1 << 20, None, |store| store.streams = false).unwrap();
        let is_one = |pattern: &Pattern| pattern.read_shape().is_none_or(|shape| !shape.is_many);
        let expected = Pattern::ALL.into_iter().filter(is_one).filter(|pattern| *pattern != Pattern::Trace);
        assert_eq!(patterns(&found), expected.collect::<Vec<_>>());
    }

    #[test]
    fn loads_are_offered_at_shares_of_the_same_rate() {
        let found = driven(1 << 20, None, |_| ()).unwrap();
        let highest: Vec<f64> = found
            .iter()
            .filter_map(|measured| match measured.value {
                Value::Load { offered_per_s, .. } => Some(offered_per_s / measured.pattern.load_share()?),
                _ => None,
            })
            .collect();
        assert_eq!(highest.len(), 4);
        assert!(highest.iter().all(|rate| (rate / highest[0] - 1.0).abs() < 1e-9), "{highest:?}");
    }

    #[test]
    fn only_what_was_asked_for_is_measured_and_the_store_is_filled() {
        let mut store = store(1 << 20);
        let chosen = vec![Pattern::Seq4k, Pattern::Load50];
        let plan = Plan { patterns: chosen, operations: 600, ..plan(1 << 20, Duration::from_secs(3)) };
        let found = drive(&mut store, &Content::new(1 << 20), &plan, &Interrupt::never()).unwrap();
        assert_eq!(patterns(&found), plan.patterns);
        // 600 accesses in order go through 256 pages more than twice.
        assert_eq!(store.rewound, 3);
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
        let spoilt = driven(1 << 20, None, |store| store.spoils_loads = true).unwrap_err();
        assert!(matches!(spoilt, PeerError::Wrong { pattern: "load25", .. }), "{spoilt}");
    }
}

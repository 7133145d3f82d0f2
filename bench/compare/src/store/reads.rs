//! Reads of one size, at random places or in order, one at a time or many in flight.

use std::time::{Duration, Instant};

use super::compare;
use super::trial::Trial;
use crate::error::PeerError;
use crate::measured::Measured;
use crate::pattern::{AccessOrder, Pattern, ReadShape};
use crate::unit::AccessUnit;

impl Trial<'_> {
    /// Reads as the pattern says. `None` if the peer is limited to one request at a time and the pattern needs more.
    pub fn reads(&mut self, pattern: Pattern, shape: ReadShape) -> Result<Option<Measured>, PeerError> {
        if shape.order == AccessOrder::Random {
            self.store.prepare(AccessOrder::Random)?;
        }
        match shape.is_many {
            true => self.many(pattern, shape),
            false => self.one_at_a_time(pattern, shape).map(Some),
        }
    }

    fn one_at_a_time(&mut self, pattern: Pattern, shape: ReadShape) -> Result<Measured, PeerError> {
        let unit = shape.unit;
        let mut out = vec![0; unit.bytes()];
        let mut times = Vec::with_capacity(self.plan.operations as usize);
        let (start, mut done) = (Instant::now(), 0);
        while self.continues(unit, done, start)? {
            let index = self.place(shape, done);
            self.make_ready(shape, index)?;
            let turn = Instant::now();
            self.store.read(unit, index, &mut out)?;
            let took = turn.elapsed();
            if done >= unit.warm() {
                times.push(took.as_nanos() as u64);
            }
            self.compare_unit(pattern, unit, index, &out)?;
            done += 1;
        }
        Ok(Measured::times(pattern, times))
    }

    /// Reads in calls of many units each. The first call warms up, and shows how many units a call may have.
    fn many(&mut self, pattern: Pattern, shape: ReadShape) -> Result<Option<Measured>, PeerError> {
        let unit = shape.unit;
        // A call reads no more than all memory: what a peer caches would be read twice.
        let call_max = unit.call_max().min(self.units(unit));
        let mut call = (2 * unit.in_flight(self.plan.depth)).min(call_max);
        let (mut done, mut is_warm) = (0, false);
        let (mut start, mut took, mut bytes) = (Instant::now(), Duration::ZERO, 0);
        let (mut indices, mut out) = (Vec::new(), Vec::new());
        while bytes == 0 || start.elapsed() < self.plan.each {
            self.interrupt.check()?;
            indices.clear();
            for _ in 0..call {
                indices.push(self.place(shape, done));
                done += 1;
            }
            for index in &indices {
                self.make_ready(shape, *index)?;
            }
            out.clear();
            out.resize(call * unit.bytes(), 0);
            let turn = Instant::now();
            if self.store.read_many(unit, &indices, &mut out)?.is_none() {
                return Ok(None);
            }
            let call_took = turn.elapsed();
            for (index, found) in indices.iter().zip(out.chunks_exact(unit.bytes())) {
                self.compare_unit(pattern, unit, *index, found)?;
            }
            if is_warm {
                took += call_took;
                bytes += out.len() as u64;
            } else {
                let share = self.plan.each.as_secs_f64() / 4.0 / call_took.as_secs_f64().max(1e-9);
                call = ((call as f64 * share) as usize).clamp(call.div_ceil(2), call_max);
                (is_warm, start) = (true, Instant::now());
            }
        }
        Ok(Some(Measured::rate(pattern, bytes, took)))
    }

    /// Number of whole units in the memory; at least 1, because patterns of larger units are not measured.
    fn units(&self, unit: AccessUnit) -> usize {
        self.content.first.len() / unit.bytes()
    }

    /// Index of the next unit after `done` of them.
    fn place(&mut self, shape: ReadShape, done: u64) -> usize {
        let units = self.units(shape.unit) as u64;
        match shape.order {
            AccessOrder::Random => self.random.below(units) as usize,
            AccessOrder::Sequential => (done % units) as usize,
        }
    }

    /// Prepares the store for the next read. In order, what the peer has fetched ahead stays, until the memory begins
    /// again.
    fn make_ready(&mut self, shape: ReadShape, index: usize) -> Result<(), PeerError> {
        match shape.order {
            AccessOrder::Random => self.store.forget(shape.unit, index),
            AccessOrder::Sequential if index == 0 => self.store.prepare(AccessOrder::Sequential),
            AccessOrder::Sequential => Ok(()),
        }
    }

    fn compare_unit(
        &self,
        pattern: Pattern,
        unit: AccessUnit,
        index: usize,
        found: &[u8],
    ) -> Result<(), PeerError> {
        let at = index * unit.bytes();
        compare(pattern, found, &self.content.first[at..at + unit.bytes()], at)
    }
}

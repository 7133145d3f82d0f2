//! State of one trial of a store, and its bulk transfers and single writes.

use std::time::{Duration, Instant};

use super::{Content, Store, compare, replay};
use crate::error::PeerError;
use crate::measured::Measured;
use crate::pattern::Pattern;
use crate::plan::Plan;
use crate::unit::{AccessUnit, LINE};
use cxloe_lab::Interrupt;
use cxloe_wire::random::Random;

/// Maximum number of written lines that are read back and checked.
const LOOKED_AT: usize = 2000;

pub(super) struct Trial<'a> {
    pub store: &'a mut dyn Store,
    pub content: &'a Content,
    pub plan: &'a Plan,
    pub interrupt: &'a Interrupt,
    pub random: Random,
}

impl Trial<'_> {
    /// Fills the store: as often as the time allows if the plan has the rate of this, else once.
    pub fn bulk_write(&mut self) -> Result<Option<Measured>, PeerError> {
        let is_measured = self.plan.has(Pattern::BulkWrite);
        let start = Instant::now();
        let mut bytes = 0;
        while bytes == 0 || (is_measured && start.elapsed() < self.plan.each) {
            self.interrupt.check()?;
            self.store.bulk_write(&self.content.first)?;
            bytes += self.content.first.len() as u64;
        }
        Ok(is_measured.then(|| Measured::rate(Pattern::BulkWrite, bytes, start.elapsed())))
    }

    pub fn bulk_read(&mut self) -> Result<Option<Measured>, PeerError> {
        if !self.plan.has(Pattern::BulkRead) {
            return Ok(None);
        }
        let mut out = vec![0; self.content.first.len()];
        let (start, mut took, mut bytes) = (Instant::now(), Duration::ZERO, 0);
        while bytes == 0 || start.elapsed() < self.plan.each {
            self.interrupt.check()?;
            out.fill(0);
            let turn = Instant::now();
            self.store.bulk_read(&mut out)?;
            took += turn.elapsed();
            bytes += out.len() as u64;
            compare(Pattern::BulkRead, &out, &self.content.first, 0)?;
        }
        Ok(Some(Measured::rate(Pattern::BulkRead, bytes, took)))
    }

    /// True if the plan requires another single access of this unit after `done` of them.
    pub fn continues(&self, unit: AccessUnit, done: u64, start: Instant) -> Result<bool, PeerError> {
        if done.is_multiple_of(64) {
            self.interrupt.check()?;
        }
        let enough = done >= self.plan.operations || start.elapsed() >= self.plan.each;
        Ok(done < unit.timed_min() + unit.warm() || !enough)
    }

    pub fn trace(&mut self) -> Result<Option<Measured>, PeerError> {
        let Some(trace) = self.plan.trace.as_ref().filter(|_| self.plan.has(Pattern::Trace)) else {
            return Ok(None);
        };
        let content = &self.content.first;
        replay::replay(self.store, content, trace, self.plan.each, self.interrupt).map(Some)
    }

    pub fn single_writes(&mut self) -> Result<Option<Measured>, PeerError> {
        if !self.plan.has(Pattern::Write64) {
            return Ok(None);
        }
        let mut times = Vec::with_capacity(self.plan.operations as usize);
        let mut written = Vec::with_capacity(LOOKED_AT);
        let (start, mut done) = (Instant::now(), 0);
        while self.continues(AccessUnit::Line, done, start)? {
            let index = self.random.below(self.plan.lines()) as usize;
            self.store.forget(AccessUnit::Line, index)?;
            let line = &self.content.second[index * LINE..(index + 1) * LINE];
            let turn = Instant::now();
            self.store.write(index, line)?;
            let took = turn.elapsed();
            if done >= AccessUnit::Line.warm() {
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
            if count as u64 >= AccessUnit::Line.timed_min() && Instant::now() > until {
                break;
            }
            self.store.forget(AccessUnit::Line, index)?;
            self.store.read(AccessUnit::Line, index, &mut out)?;
            let at = index * LINE;
            compare(Pattern::Write64, &out, &self.content.second[at..at + LINE], at)?;
        }
        Ok(Some(Measured::times(Pattern::Write64, times)))
    }
}

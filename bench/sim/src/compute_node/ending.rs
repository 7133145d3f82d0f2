//! Checks of completed operations, and of the content of the memory nodes' pools.

use cxloe_cn_core::engine::{Engine, EngineError, RequestId, Sink};
use cxloe_net::Link;
use cxloe_wire::Transmit;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::time::Time;

use super::paged::{PAGE, words};
use super::{ComputeNode, Program, Worker};
use crate::node_context::NodeContext;
use crate::operation::OperationKind;
use crate::planted_fault::PlantedFault;
use crate::tally::Tally;
use crate::trace::Name;
use crate::verdict::{Moment, check_error};
use crate::violation::InvariantViolation;

/// Completions as the engine has reported them, in order, to be checked after the engine's turn.
#[derive(Default)]
pub(super) struct CompletedOperations {
    outcomes: Vec<(RequestId, Result<usize, EngineError>)>,
    /// Data of the completed reads, one after the other.
    data: Vec<u8>,
}

impl Sink for CompletedOperations {
    fn read(&mut self, id: RequestId, data: &[u8]) {
        self.data.extend_from_slice(data);
        self.outcomes.push((id, Ok(data.len())));
    }
    fn written(&mut self, id: RequestId) {
        self.outcomes.push((id, Ok(0)));
    }
    fn failed(&mut self, id: RequestId, error: EngineError) {
        self.outcomes.push((id, Err(error)));
    }
}

impl Program {
    pub(super) fn take_ended(
        &mut self,
        now: Time,
        around: NodeContext<'_>,
        tally: &mut Tally,
    ) -> Result<(), InvariantViolation> {
        if self.ended.outcomes.is_empty() {
            return Ok(());
        }
        let mut ended = std::mem::take(&mut self.ended);
        if self.worker > 0 {
            tally.figures.later_workers += ended.outcomes.len() as u64;
        }
        let mut rest = ended.data.as_slice();
        for (id, outcome) in ended.outcomes.drain(..) {
            let outcome = outcome.map(|len| {
                let (data, behind) = rest.split_at(len);
                rest = behind;
                data
            });
            match &mut self.paged {
                Some(paged) if id.is_paging() => {
                    tally.figures.page_parts += 1;
                    paged.arrived(id, outcome);
                }
                _ => self.end(id, outcome, now, around, tally)?,
            }
        }
        ended.data.clear();
        self.ended = ended;
        Ok(())
    }

    /// Checks the result of an operation that was in flight, and counts it.
    fn end(
        &mut self,
        id: RequestId,
        outcome: Result<&[u8], EngineError>,
        now: Time,
        around: NodeContext<'_>,
        tally: &mut Tally,
    ) -> Result<(), InvariantViolation> {
        let user = id.number();
        let Some(at) = self.under_way.iter().position(|(number, _)| Some(*number) == user) else {
            return Err(InvariantViolation::Rule(format!(
                "{}: operation {id:?} ends twice",
                Name(self.name)
            )));
        };
        let (user, op) = self.under_way.remove(at);
        let user = u64::from(user);
        self.trace.log(now, Name(self.name), || match outcome {
            Ok(_) => format!("{op}: done after {:?}", now - op.at),
            Err(error) => format!("{op}: FAILED after {:?}, {error}", now - op.at),
        });
        tally.figures.operations += 1;
        let broken = |why: String| InvariantViolation::at(self.name, &op, why);
        let region = &mut self.regions[op.region];
        if region.life == op.life {
            if op.lost && outcome.is_ok() {
                return Err(broken("it has succeeded, but its region was lost".into()));
            }
            let registers = &mut region.registers;
            for (i, line) in op.lines().enumerate() {
                match (op.kind, outcome) {
                    (OperationKind::Read | OperationKind::BurstRead(_), Ok(data)) => {
                        let data = data.get(i * LINE_SIZE..(i + 1) * LINE_SIZE);
                        let data = data.ok_or_else(|| broken("too little data came".into()))?;
                        registers
                            .read_ended(line, user, data, true)
                            .map_err(|why| broken(why.to_string()))?;
                    }
                    (OperationKind::Read | OperationKind::BurstRead(_), Err(_)) => {
                        registers.read_failed(line, user)
                    }
                    (OperationKind::Write(value), _) => registers.write_ended(line, value, outcome.is_err()),
                    (OperationKind::BurstWrite(_, first), _) => {
                        registers.write_ended(line, first + i as u64, outcome.is_err());
                    }
                    (OperationKind::Flush, _) => {}
                }
            }
        }
        match outcome {
            Ok(_) => {
                if let Some(class) = op.class() {
                    tally.took(class, now - op.at);
                }
                Ok(())
            }
            Err(error) if self.all_succeed => {
                Err(broken(format!("it fails though nothing but frames was lost: {error}")))
            }
            Err(error) => {
                let region = &self.regions[op.region];
                // The region may have been replaced while the operation was in flight. The check then knows only the
                // new region, so `ended` makes it accept each error that the end of the old region can cause.
                let ended = region.place.is_some() && region.life != op.life;
                check_error(&op, error, region, around, &mut tally.figures, Moment { sent: true, ended })
                    .map_err(broken)
            }
        }
    }

    /// Compares all pools with the last writes, after a flush of the whole cache.
    pub(super) fn flushed(&mut self, around: NodeContext<'_>) -> Result<(), InvariantViolation> {
        for index in 0..self.layout.parts().len() {
            let part = self.layout.parts()[index];
            self.check_stored(part, around)?;
        }
        Ok(())
    }

    /// Compares a memory node's pool with the last writes to a region part (a region's memory on that node), whose
    /// cached lines must have been written back.
    pub(super) fn check_stored(
        &mut self,
        part: usize,
        around: NodeContext<'_>,
    ) -> Result<(), InvariantViolation> {
        // If programs have mapped the region, `finish` compares all of its pages together. If a fault is planted by which
        // another worker writes lines of the region too, the check of owners must reveal it.
        if self.paged.is_some() || self.mistake == Some(PlantedFault::SharesRegions) {
            return Ok(());
        }
        let region = &mut self.regions[part];
        let mn = around.node_of(region);
        if !region.lost && region.born == Some(mn.config.incarnation) && !around.is_taken_away(region) {
            for line in 0..self.shape.lines() {
                let broken = |why: String| {
                    InvariantViolation::Rule(format!("{}, {}: {why}", Name(self.name), Name(mn.mac)))
                };
                let data = mn.line(self.mac, region.cmem + self.shape.offset(line));
                let data = data.ok_or_else(|| broken(format!("line {line} has no memory")))?;
                region.registers.check_stored(line, &data).map_err(|why| broken(why.to_string()))?;
            }
        }
        region.registers.flushed();
        Ok(())
    }

    /// Starts the programs when the region that they map is attached, and requests the pages that their threads wait
    /// for. Returns the number of actions.
    pub(super) fn demand_pages(
        &mut self,
        engine: &mut Engine,
        now: Time,
        tx: &mut dyn Transmit,
        around: NodeContext<'_>,
    ) -> Result<usize, InvariantViolation> {
        let Some(paged) = &mut self.paged else { return Ok(0) };
        if let (None, Some(set)) = (paged.hpa, self.layout.sets().first()) {
            let base = set.base;
            // The initial content is written into the pools directly, so that the first touch of a page finds
            // it.
            for (page, content) in (0..).zip(paged.begin(base)) {
                for (line, data) in (0..).zip(content.as_chunks::<LINE_SIZE>().0) {
                    let hpa = base + page * PAGE + line * LINE_SIZE as u64;
                    let (part, dpa) = self.layout.place(hpa).expect("the region is large enough");
                    let region = &self.regions[part];
                    around.node_of(region).set_line(self.mac, region.cmem + dpa, data);
                }
            }
        }
        Ok(paged.demand(engine, now, tx))
    }

    /// Advances the programs with mapped memory, and their pager; returns the number of actions.
    pub(super) fn turn_pages(
        &mut self,
        engine: &mut Engine,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<usize, InvariantViolation> {
        let Some(paged) = &mut self.paged else { return Ok(0) };
        let work = paged.turn(engine, now, tx);
        match paged.broken() {
            Some(why) => Err(InvariantViolation::Rule(format!("{}: {why}", Name(self.name)))),
            None => Ok(work),
        }
    }
}

impl ComputeNode {
    /// Returns true if all programs with mapped memory are idle and all their writes are at the memory nodes.
    ///
    /// # Errors
    /// Returns a violation if a memory node lacks written data.
    pub fn finish(&mut self, now: Time, around: NodeContext<'_>) -> Result<bool, InvariantViolation> {
        let mut done = true;
        for worker in &mut self.workers {
            done &= worker.finish(now, around)?;
        }
        Ok(done)
    }

    /// Writes all cached lines of all workers back and compares them with the pools; call this when no operation is in
    /// flight. Returns true when both are done.
    ///
    /// # Errors
    /// Returns a violation if a pool lacks written data, or a line cannot be written back.
    pub fn flush(&mut self, now: Time, around: NodeContext<'_>) -> Result<bool, InvariantViolation> {
        let mut done = true;
        for worker in &mut self.workers {
            done &= worker.flush(now, around)?;
        }
        Ok(done)
    }
}

impl Worker {
    fn finish(&mut self, now: Time, around: NodeContext<'_>) -> Result<bool, InvariantViolation> {
        let Program { mac, name, layout, regions, paged, .. } = &mut self.program;
        let Some(paged) = paged else { return Ok(true) };
        if paged.is_finished() {
            return Ok(true);
        }
        self.waking.wake_soon(now);
        if !paged.finish() {
            return Ok(false);
        }
        let base = paged.hpa.unwrap_or_default();
        for (page, expected) in paged.expected() {
            let mut content = [0; PAGE as usize];
            for (line, data) in (0..).zip(content.as_chunks_mut::<LINE_SIZE>().0) {
                let hpa = base + u64::from(page) * PAGE + line * LINE_SIZE as u64;
                let (part, dpa) = layout.place(hpa).expect("the region is there");
                let region = &regions[part];
                let stored = around.node_of(region).line(*mac, region.cmem + dpa);
                *data = stored.ok_or_else(|| {
                    InvariantViolation::Rule(format!("{}: page {page} has no memory", Name(*name)))
                })?;
            }
            let found = words(&content);
            if found != expected {
                let name = Name(*name);
                return Err(InvariantViolation::Rule(format!(
                    "{name}: page {page} is {found:?} at its memory nodes, not {expected:?}"
                )));
            }
        }
        Ok(true)
    }

    fn flush(&mut self, now: Time, around: NodeContext<'_>) -> Result<bool, InvariantViolation> {
        if self.flushed {
            return Ok(true);
        }
        self.waking.wake_soon(now);
        let flushed = self.engine.flush(now, self.link.transmit());
        self.link.flush().expect("a simulated link");
        match flushed {
            Ok(true) => {
                self.flushed = true;
                self.program.flushed(around).map(|()| true)
            }
            Ok(false) | Err(EngineError::NotConnected(_)) => Ok(false),
            Err(error) => Err(InvariantViolation::Rule(format!(
                "{}: flush fails without reason: {error}",
                Name(self.program.name)
            ))),
        }
    }
}

//! The operations of a simulated program: each is drawn at random and submitted to the engine, which accepts, defers or
//! refuses it.

use std::time::Duration;

use cxloe_cn_core::engine::{
    BurstRead, Direction, Engine, EngineError, Read, RequestId, Segment, SegmentIter, Write,
};
use cxloe_wire::Transmit;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::machine::StateMachine;
use cxloe_wire::time::Time;

use super::Program;
use super::ownership::Structure;
use crate::node_context::NodeContext;
use crate::operation::{Operation, OperationKind, Purpose};
use crate::register::content;
use crate::tally::Tally;
use crate::trace::Name;
use crate::verdict::{Moment, check_error};
use crate::violation::InvariantViolation;

/// Minimum pause between two operations of a program.
const PAUSE_MIN: Duration = Duration::from_nanos(200);
/// Maximum interval between attempts to submit an operation while the engine has no room for it.
const BUSY_MAX: Duration = Duration::from_micros(100);
/// Pause between two operations of a program without pauses. It is not 0, because virtual time has to
/// advance.
const INSTANT: Duration = Duration::from_nanos(1);
/// Minimum wait of a program after the engine has refused an operation with an error.
const AFTER_ERROR: Duration = Duration::from_micros(500);

impl Program {
    /// Submits the next operation, or the deferred one if there is one.
    pub fn issue(
        &mut self,
        engine: &mut Engine,
        now: Time,
        tx: &mut dyn Transmit,
        around: NodeContext<'_>,
        tally: &mut Tally,
    ) -> Result<(), InvariantViolation> {
        let pause = self.random.below(self.pause.as_nanos() as u64);
        self.issue_at = now + PAUSE_MIN.min(self.pause).max(INSTANT) + Duration::from_nanos(pause);
        let mut op = match self.pending.take().or_else(|| self.parts.pop_front()) {
            Some(op) => op,
            None if self.quota > 0
                && self.under_way.len() < self.depth
                && !self.layout.parts().is_empty() =>
            {
                self.quota -= 1;
                if self.layout.is_spread() {
                    self.draw_parts(engine, now, tally)?
                } else {
                    let (parts, value) = (self.layout.parts(), &mut self.next_value);
                    let op = Operation::draw(&mut self.random, parts.len(), self.shape, value, now);
                    let region = parts[op.region];
                    Operation { region, life: self.regions[region].life, ..op }
                }
            }
            None => return Ok(()),
        };
        if !self.parts.is_empty() {
            // The operations into which one range is split are submitted directly one after the other, without pauses.
            self.issue_at = now + INSTANT;
        }
        if op.at == now {
            self.put_off = Duration::ZERO;
        }
        op.lost = self.regions[op.region].is_lost();
        let number = self.next_user;
        let user = u64::from(number);
        self.next_user += 1;
        match self.make(&op, number, engine, now, tx, around) {
            Ok(None) => {
                self.trace.log(now, Name(self.name), || format!("{op}: sent"));
                self.under_way.push((number, op));
            }
            Ok(Some(data)) => {
                self.trace.log(now, Name(self.name), || format!("{op}: done at once"));
                tally.figures.at_once += 1;
                tally.figures.flushes += u64::from(op.kind == OperationKind::Flush);
                if op.lost && op.kind != OperationKind::Flush {
                    return Err(InvariantViolation::at(
                        self.name,
                        &op,
                        "it was done at once, but its region is lost",
                    ));
                }
                if op.kind == OperationKind::Read {
                    let registers = &mut self.regions[op.region].registers;
                    let read = registers.read_ended(op.line, user, &data, false);
                    read.map_err(|why| InvariantViolation::at(self.name, &op, why))?;
                }
            }
            Err(IssueRefusal::Broken(broken)) => return Err(broken),
            Err(IssueRefusal::Error(error)) => {
                if op.is_read() {
                    op.lines().for_each(|line| self.regions[op.region].registers.read_failed(line, user));
                }
                if error == EngineError::Busy {
                    tally.figures.busy += 1;
                    if now - op.at > self.wait_limit {
                        let why = format!("it is refused as busy for {:?}", now - op.at);
                        return Err(InvariantViolation::at(self.name, &op, why));
                    }
                    self.pending = Some(op);
                    self.put_off = (self.put_off * 2).clamp(PAUSE_MIN, BUSY_MAX);
                    let again = now + self.put_off;
                    let due = engine.deadline().at;
                    // The engine may have room when its next timer has expired, so the next attempt is not later than
                    // that.
                    self.issue_at = if due > now { again.min(due) } else { again };
                } else {
                    self.trace.log(now, Name(self.name), || format!("{op}: refused, {error}"));
                    let (region, moment) = (&self.regions[op.region], Moment { sent: false, ended: false });
                    check_error(&op, error, region, around, &mut tally.figures, moment)
                        .map_err(|why| InvariantViolation::at(self.name, &op, why))?;
                    let wait = AFTER_ERROR.as_nanos() as u64;
                    self.issue_at = now + AFTER_ERROR + Duration::from_nanos(self.random.below(9 * wait));
                }
            }
        }
        Ok(())
    }

    /// Draws a range of HPA and the way in which it is used, and splits it into operations, each of which
    /// fits into a frame. Returns the first operation; the others are put into `parts`.
    fn draw_parts(
        &mut self,
        engine: &mut Engine,
        now: Time,
        tally: &mut Tally,
    ) -> Result<Operation, InvariantViolation> {
        let lines = (self.layout.parts().len() * self.shape.lines()) as u64;
        let (first, count, purpose) = Operation::draw_range(&mut self.random, lines, self.hot);
        let hpa = self.used(first);
        let op = |kind, region, line| Operation { kind, region, life: 0, line, at: now, lost: false };
        if purpose == Purpose::Flush {
            return Ok(op(OperationKind::Flush, self.layout.parts()[0], 0));
        }
        // A range must not go beyond the used lines of one interleave set, since those of the next set are
        // not adjacent.
        let count = (1..count).find(|n| self.used(first + n) != hpa + n * LINE_SIZE as u64).unwrap_or(count);
        let direction = if purpose == Purpose::WriteBurst { Direction::Write } else { Direction::Read };
        let mut walk = SegmentIter::new(hpa..hpa + count * LINE_SIZE as u64);
        let mut left = count;
        while let Some(piece) = walk.segment(engine, direction) {
            let (region, line) = self.locate(&piece)?;
            let n = piece.lines.min(self.shape.lines() - line);
            let kind = match purpose {
                Purpose::Read => OperationKind::Read,
                Purpose::Write => OperationKind::Write(self.next_value),
                Purpose::ReadBurst => OperationKind::BurstRead(n),
                // The mask has at least one line, since an operation has to write something.
                _ => OperationKind::BurstWrite(1 + self.random.below(u64::MAX >> (64 - n)), self.next_value),
            };
            self.next_value += n as u64;
            let life = self.regions[region].life;
            self.parts.push_back(Operation { life, ..op(kind, region, line) });
            left = left
                .checked_sub(piece.lines as u64)
                .ok_or_else(|| self.astray(&piece, "it leaves its range"))?;
            walk.advance(&piece);
        }
        if self.parts.len() > 1 {
            tally.figures.shared_parts += self.parts.len() as u64;
        }
        let why = || {
            InvariantViolation::Rule(format!(
                "{}: {left} lines from {hpa:#x} on are in no piece",
                Name(self.name)
            ))
        };
        self.parts.pop_front().filter(|_| left == 0).ok_or_else(why)
    }

    /// Returns the HPA of the line with this index among the used lines of all regions.
    fn used(&self, index: u64) -> u64 {
        let (mut index, each) = (index, self.shape.lines() as u64);
        for set in self.layout.sets() {
            let lines = set.parts.len() as u64 * each;
            if index < lines {
                return set.base + index * LINE_SIZE as u64;
            }
            index -= lines;
        }
        unreachable!("there are no more lines")
    }

    /// Returns the region part (a region's memory on one memory node) that contains all lines of `piece`, and the index
    /// of the first of these lines in the part.
    fn locate(&self, piece: &Segment) -> Result<(usize, usize), InvariantViolation> {
        let place = |line: usize| self.layout.place(piece.hpa + piece.offset(line));
        let (mn, dpa) = place(0).ok_or_else(|| self.astray(piece, "it begins nowhere"))?;
        // If a fault is planted, this check is off: the data of reads and writes must then reveal a wrong route.
        for line in (1..piece.lines).filter(|_| self.mistake.is_none()) {
            if place(line) != Some((mn, dpa + (line * LINE_SIZE) as u64)) {
                return Err(self.astray(piece, &format!("its line {line} lies elsewhere")));
            }
        }
        Ok((mn, dpa as usize / LINE_SIZE))
    }

    fn astray(&self, piece: &Segment, why: &str) -> InvariantViolation {
        InvariantViolation::Rule(format!("{}: {why}: {piece:?}", Name(self.name)))
    }

    /// Submits an operation to the engine. If the operation completes at once, returns the data of a read, or
    /// meaningless data for another operation. Returns `None` if the operation completes later, through the sink.
    fn make(
        &mut self,
        op: &Operation,
        number: u32,
        engine: &mut Engine,
        now: Time,
        tx: &mut dyn Transmit,
        around: NodeContext<'_>,
    ) -> Result<Option<[u8; LINE_SIZE]>, IssueRefusal> {
        let id = RequestId::Number(number);
        const NOTHING: [u8; LINE_SIZE] = [0; LINE_SIZE];
        let hpa = self.layout.hpa(op.region, self.shape.offset(op.line));
        if self.uses.are_recorded() {
            for line in op.lines() {
                let hpa = self.layout.hpa(op.region, self.shape.offset(line));
                self.uses.record(Structure::Line(hpa));
            }
        }
        let registers = &mut self.regions[op.region].registers;
        if op.is_read() {
            op.lines().for_each(|line| registers.read_issued(line, number.into()));
        }
        match op.kind {
            OperationKind::Read => match engine.read(hpa, id, now, tx)? {
                Read::Sent => Ok(None),
                Read::Hit(data) => Ok(Some(data)),
            },
            OperationKind::BurstRead(lines) => {
                let piece = engine.segment(hpa, lines);
                match engine.burst_read(&piece, id, now, tx)? {
                    BurstRead::Sent => Ok(None),
                    BurstRead::Alike(_) | BurstRead::Here(_) => {
                        Err(InvariantViolation::at(self.name, op, "somebody maps it").into())
                    }
                }
            }
            OperationKind::Write(value) => match engine.write(hpa, &content(value), id, now, tx)? {
                Write::Sent => {
                    registers.write_issued(op.line, value);
                    Ok(None)
                }
                Write::Done => {
                    registers.written(op.line, value);
                    Ok(Some(NOTHING))
                }
            },
            OperationKind::BurstWrite(mask, first) => {
                let values = (first..).take(mask.count_ones() as usize);
                let data: Vec<u8> = values.clone().flat_map(content).collect();
                let piece = engine.segment(hpa, (u64::BITS - mask.leading_zeros()) as usize);
                if engine.burst_write(&piece, mask, &data, id, now, tx)? == Write::Done {
                    return Err(InvariantViolation::at(self.name, op, "somebody maps it").into());
                }
                op.lines().zip(values).for_each(|(line, value)| registers.write_issued(line, value));
                Ok(None)
            }
            OperationKind::Flush => match engine.flush(now, tx)? {
                true => {
                    self.flushed(around)?;
                    Ok(Some(NOTHING))
                }
                false => Err(EngineError::Busy.into()),
            },
        }
    }
}

enum IssueRefusal {
    Error(EngineError),
    /// Violation found while the operation was being prepared.
    Broken(InvariantViolation),
}

impl From<EngineError> for IssueRefusal {
    fn from(error: EngineError) -> Self {
        IssueRefusal::Error(error)
    }
}

impl From<InvariantViolation> for IssueRefusal {
    fn from(broken: InvariantViolation) -> Self {
        IssueRefusal::Broken(broken)
    }
}

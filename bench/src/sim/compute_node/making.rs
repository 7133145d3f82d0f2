//! A program's operations on their way into the engine: made, put off, or refused.

use std::time::Duration;

use cxloe_cn::engine::{EngineError, Read, Write};
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::link::Link;
use cxloe_wire::time::Time;

use super::super::broken::Broken;
use super::super::memory_node::MemoryNode;
use super::super::operation::{Kind, Operation};
use super::super::region::SPACING;
use super::super::register::content;
use super::super::tally::Tally;
use super::super::trace::Name;
use super::super::verdict::check_error;
use super::ComputeNode;

/// The shortest time from one operation to the next.
const PAUSE_MIN: Duration = Duration::from_nanos(200);
/// The longest time from one attempt to make an operation to the next, while it is put off as busy.
const BUSY_MAX: Duration = Duration::from_micros(100);
/// Time has to pass between two operations even of a program that never pauses.
const INSTANT: Duration = Duration::from_nanos(1);
/// How long a program waits after an error that will not have gone in a moment, at least and at most.
const AFTER_ERROR: Duration = Duration::from_micros(500);

impl ComputeNode {
    /// Makes an operation, the one that was refused last time first.
    pub(super) fn issue(&mut self, now: Time, mns: &[MemoryNode], tally: &mut Tally) -> Result<(), Broken> {
        let pause = self.random.below(self.pause.as_nanos() as u64);
        self.issue_at = now + PAUSE_MIN.min(self.pause).max(INSTANT) + Duration::from_nanos(pause);
        let mut op = match self.pending.take() {
            Some(op) => op,
            None if self.quota > 0 && self.under_way.len() < self.depth => {
                self.quota -= 1;
                let (regions, value) = (self.regions.len(), &mut self.next_value);
                let op = Operation::draw(&mut self.random, regions, self.shape, value, now);
                Operation { life: self.regions[op.region].life, ..op }
            }
            None => return Ok(()),
        };
        if op.at == now {
            self.put_off = Duration::ZERO;
        }
        op.lost = self.regions[op.region].is_lost();
        let user = self.next_user;
        self.next_user += 1;
        match self.make(&op, user, now, mns, tally) {
            Ok(None) => {
                self.trace.say(now, Name(self.mac), || format!("{op}: sent"));
                self.under_way.push((user, op));
            }
            Ok(Some(data)) => {
                self.trace.say(now, Name(self.mac), || format!("{op}: done at once"));
                tally.figures.at_once += 1;
                if op.lost && op.kind != Kind::Flush {
                    return Err(Broken::at(self.mac, &op, "it was done at once, but its region is lost"));
                }
                if op.kind == Kind::Read {
                    let registers = &mut self.regions[op.region].registers;
                    let read = registers.read_ended(op.line, user, &data, false);
                    read.map_err(|why| Broken::at(self.mac, &op, why))?;
                }
            }
            Err(Refusal::Broken(broken)) => return Err(broken),
            Err(Refusal::Error(error)) => {
                if op.is_read() {
                    op.lines().for_each(|line| self.regions[op.region].registers.read_failed(line, user));
                }
                if error == EngineError::Busy {
                    tally.figures.busy += 1;
                    if now - op.at > self.patience {
                        let why = format!("it is refused as busy for {:?}", now - op.at);
                        return Err(Broken::at(self.mac, &op, why));
                    }
                    self.pending = Some(op);
                    self.put_off = (self.put_off * 2).clamp(PAUSE_MIN, BUSY_MAX);
                    let again = now + self.put_off;
                    let due = self.engine.deadline();
                    self.issue_at = if due > now { again.min(due) } else { again };
                } else {
                    self.trace.say(now, Name(self.mac), || format!("{op}: refused, {error}"));
                    check_error(&op, error, mns, &mut tally.figures, false)
                        .map_err(|why| Broken::at(self.mac, &op, why))?;
                    let wait = AFTER_ERROR.as_nanos() as u64;
                    self.issue_at = now + AFTER_ERROR + Duration::from_nanos(self.random.below(9 * wait));
                }
            }
        }
        Ok(())
    }

    /// Hands an operation to the engine; the data of a read that is done at once, nothing of another; `None` where the
    /// sink will be told.
    fn make(
        &mut self,
        op: &Operation,
        user: u64,
        now: Time,
        mns: &[MemoryNode],
        tally: &mut Tally,
    ) -> Result<Option<[u8; LINE_SIZE]>, Refusal> {
        const NOTHING: [u8; LINE_SIZE] = [0; LINE_SIZE];
        let hpa = op.region as u64 * SPACING + self.shape.offset(op.line);
        let tx = self.link.transmit();
        let registers = &mut self.regions[op.region].registers;
        if op.is_read() {
            op.lines().for_each(|line| registers.read_issued(line, user));
        }
        match op.kind {
            Kind::Read => match self.engine.read(hpa, user, now, tx)? {
                Read::Sent => Ok(None),
                Read::Hit(data) => Ok(Some(data)),
            },
            Kind::BurstRead(lines) => {
                self.engine.burst_read(hpa, lines, user, now, tx)?;
                Ok(None)
            }
            Kind::Write(value) => match self.engine.write(hpa, &content(value), user, now, tx)? {
                Write::Sent => {
                    registers.write_issued(op.line, value);
                    Ok(None)
                }
                Write::Done => {
                    registers.written(op.line, value);
                    Ok(Some(NOTHING))
                }
            },
            Kind::BurstWrite(mask, first) => {
                let values = (first..).take(mask.count_ones() as usize);
                let data: Vec<u8> = values.clone().flat_map(content).collect();
                self.engine.burst_write(hpa, mask, &data, user, now, tx)?;
                op.lines().zip(values).for_each(|(line, value)| registers.write_issued(line, value));
                Ok(None)
            }
            Kind::Flush => match self.engine.flush(now, tx)? {
                true => {
                    self.flushed(mns)?;
                    tally.figures.flushes += 1;
                    Ok(Some(NOTHING))
                }
                false => Err(EngineError::Busy.into()),
            },
        }
    }
}

/// Why an operation was not taken.
enum Refusal {
    /// The engine says so.
    Error(EngineError),
    /// Something else came to light on the way.
    Broken(Broken),
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Self {
        Refusal::Error(error)
    }
}

impl From<Broken> for Refusal {
    fn from(broken: Broken) -> Self {
        Refusal::Broken(broken)
    }
}

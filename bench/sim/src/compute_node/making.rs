//! A program's operations on their way into the engine: made, put off, or refused.

use std::time::Duration;

use cxloe_cn_core::engine::{BurstRead, Direction, EngineError, Read, Segment, SegmentIter, Write};
use cxloe_link::Link;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::time::Time;

use super::ComputeNode;
use crate::broken::Broken;
use crate::operation::{Kind, Operation, Purpose};
use crate::register::content;
use crate::surroundings::Surroundings;
use crate::tally::Tally;
use crate::trace::Name;
use crate::verdict::{Moment, check_error};

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
    pub(super) fn issue(
        &mut self,
        now: Time,
        around: Surroundings<'_>,
        tally: &mut Tally,
    ) -> Result<(), Broken> {
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
                    self.draw_parts(now, tally)?
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
            // All parts of a range are on their way at once.
            self.issue_at = now + INSTANT;
        }
        if op.at == now {
            self.put_off = Duration::ZERO;
        }
        op.lost = self.regions[op.region].is_lost();
        let user = self.next_user;
        self.next_user += 1;
        match self.make(&op, user, now, around, tally) {
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
                    let (region, moment) = (&self.regions[op.region], Moment { sent: false, ended: false });
                    check_error(&op, error, region, around, &mut tally.figures, moment)
                        .map_err(|why| Broken::at(self.mac, &op, why))?;
                    let wait = AFTER_ERROR.as_nanos() as u64;
                    self.issue_at = now + AFTER_ERROR + Duration::from_nanos(self.random.below(9 * wait));
                }
            }
        }
        Ok(())
    }

    /// Draws a range of HPA and what is done with it: an operation for each of the pieces that one frame carries. The
    /// first is the one to make now; the others wait in `parts`.
    fn draw_parts(&mut self, now: Time, tally: &mut Tally) -> Result<Operation, Broken> {
        let lines = (self.layout.parts().len() * self.shape.lines()) as u64;
        let (first, count, purpose) = Operation::draw_range(&mut self.random, lines, self.hot);
        let hpa = self.used(first);
        let op = |kind, region, line| Operation { kind, region, life: 0, line, at: now, lost: false };
        if purpose == Purpose::Flush {
            return Ok(op(Kind::Flush, self.layout.parts()[0], 0));
        }
        // The end of what is used of a set is not the beginning of the next one.
        let count = (1..count).find(|n| self.used(first + n) != hpa + n * LINE_SIZE as u64).unwrap_or(count);
        let direction = if purpose == Purpose::WriteBurst { Direction::Write } else { Direction::Read };
        let mut walk = SegmentIter::new(hpa..hpa + count * LINE_SIZE as u64);
        let mut left = count;
        while let Some(piece) = walk.segment(&mut self.engine, direction) {
            let (region, line) = self.locate(&piece)?;
            let n = piece.lines.min(self.shape.lines() - line);
            let kind = match purpose {
                Purpose::Read => Kind::Read,
                Purpose::Write => Kind::Write(self.next_value),
                Purpose::ReadBurst => Kind::BurstRead(n),
                // At least one line of each, or nothing would be written.
                _ => Kind::BurstWrite(1 + self.random.below(u64::MAX >> (64 - n)), self.next_value),
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
        let why =
            || Broken::Rule(format!("{}: {left} lines from {hpa:#x} on are in no piece", Name(self.mac)));
        self.parts.pop_front().filter(|_| left == 0).ok_or_else(why)
    }

    /// The HPA of the `index`-th line that is used, of all regions together.
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

    /// The memory node that all lines of a piece lie on, and the number of the first there.
    fn locate(&self, piece: &Segment) -> Result<(usize, usize), Broken> {
        let place = |line: usize| self.layout.place(piece.hpa + piece.offset(line));
        let (mn, dpa) = place(0).ok_or_else(|| self.astray(piece, "it begins nowhere"))?;
        // Told something wrong, it goes astray; what it then reads or writes is to show that, not its shape.
        for line in (1..piece.lines).filter(|_| self.mistake.is_none()) {
            if place(line) != Some((mn, dpa + (line * LINE_SIZE) as u64)) {
                return Err(self.astray(piece, &format!("its line {line} lies elsewhere")));
            }
        }
        Ok((mn, dpa as usize / LINE_SIZE))
    }

    fn astray(&self, piece: &Segment, why: &str) -> Broken {
        Broken::Rule(format!("{}: {why}: {piece:?}", Name(self.mac)))
    }

    /// Hands an operation to the engine; the data of a read that is done at once, nothing of another; `None` where the
    /// sink will be told.
    fn make(
        &mut self,
        op: &Operation,
        user: u64,
        now: Time,
        around: Surroundings<'_>,
        tally: &mut Tally,
    ) -> Result<Option<[u8; LINE_SIZE]>, Refusal> {
        const NOTHING: [u8; LINE_SIZE] = [0; LINE_SIZE];
        let hpa = self.layout.hpa(op.region, self.shape.offset(op.line));
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
                let piece = self.engine.segment(hpa, lines);
                match self.engine.burst_read(&piece, user, now, tx)? {
                    BurstRead::Sent => Ok(None),
                    BurstRead::Alike(_) | BurstRead::Here(_) => {
                        Err(Broken::at(self.mac, op, "somebody maps it").into())
                    }
                }
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
                let piece = self.engine.segment(hpa, (u64::BITS - mask.leading_zeros()) as usize);
                if self.engine.burst_write(&piece, mask, &data, user, now, tx)? == Write::Done {
                    return Err(Broken::at(self.mac, op, "somebody maps it").into());
                }
                op.lines().zip(values).for_each(|(line, value)| registers.write_issued(line, value));
                Ok(None)
            }
            Kind::Flush => match self.engine.flush(now, tx)? {
                true => {
                    self.flushed(around)?;
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

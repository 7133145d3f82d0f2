//! An operation of the program that a simulated compute node runs.

use std::fmt;

use cxloe_wire::random::Random;
use cxloe_wire::time::Time;

use crate::register::Shape;
use crate::tally::Class;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read a line.
    Read,
    /// Fill a line with a value.
    Write(u64),
    /// Read so many lines.
    BurstRead(usize),
    /// Fill the lines of a mask with values from the number on.
    BurstWrite(u64, u64),
    /// Bring everything modified to the memory nodes.
    Flush,
}

/// Lines that half of the operations on a spread region are drawn from.
const HOT: u64 = 24;

/// What is done with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Read its only line, through the cache.
    Read,
    /// Write its only line, through the cache.
    Write,
    /// Read it, a burst for each piece.
    ReadBurst,
    /// Write it, a burst for each piece.
    WriteBurst,
    /// Nothing: flush.
    Flush,
}

/// An operation on its way, or one to be made.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// What is done.
    pub kind: Kind,
    /// To which region, or to what part of one: the number of its memory node.
    pub region: usize,
    /// To which life of it.
    pub life: u64,
    /// From which line on.
    pub line: usize,
    /// Made first at.
    pub at: Time,
    /// The region was known to be lost by then.
    pub lost: bool,
}

impl Operation {
    /// What a program does next. Values of writes are drawn from `next_value` on.
    pub fn draw(r: &mut Random, regions: usize, shape: Shape, next_value: &mut u64, at: Time) -> Operation {
        let region = r.below(regions as u64) as usize;
        let line = r.below(shape.lines() as u64) as usize;
        let left = shape.rest_of_page(line);
        let first = *next_value;
        let kind = match r.below(100) {
            0..40 => Kind::Read,
            40..78 => Kind::Write(first),
            78..88 => Kind::BurstRead(1 + r.below(left as u64) as usize),
            88..98 => Kind::BurstWrite(1 + r.below(u64::MAX >> (64 - left)), first),
            _ => Kind::Flush,
        };
        *next_value += shape.page_lines as u64;
        Operation { kind, region, life: 0, line, at, lost: false }
    }

    /// What a program does next in a region that is spread over memory nodes: a range of HPA, and what is done with it.
    pub fn draw_range(r: &mut Random, lines: u64, hot: u64) -> (u64, u64, Purpose) {
        // Half of them close together, so that they meet.
        let first = if r.below(2) == 0 { r.below(lines) } else { (hot + r.below(HOT)) % lines };
        let (purpose, most) = match r.below(100) {
            0..35 => (Purpose::Read, 1),
            35..70 => (Purpose::Write, 1),
            70..84 => (Purpose::ReadBurst, 1 << (1 + r.below(7))),
            84..98 => (Purpose::WriteBurst, 1 << (1 + r.below(7))),
            _ => (Purpose::Flush, 1),
        };
        let count = (1 + r.below(most)).min(lines - first);
        (first, count, purpose)
    }

    /// The lines it touches, in order.
    pub fn lines(&self) -> impl Iterator<Item = usize> + use<> {
        let mask = match self.kind {
            Kind::Read | Kind::Write(_) => 1,
            Kind::BurstRead(lines) => u64::MAX >> (64 - lines),
            Kind::BurstWrite(mask, _) => mask,
            Kind::Flush => 0,
        };
        let first = self.line;
        (0..64).filter(move |i| mask >> i & 1 == 1).map(move |i| first + i)
    }

    /// Whether it brings data.
    pub fn is_read(&self) -> bool {
        matches!(self.kind, Kind::Read | Kind::BurstRead(_))
    }

    /// Whose latencies its own belongs to; `None` for a flush, which takes as long as there is to write.
    pub fn class(&self) -> Option<Class> {
        match self.kind {
            Kind::Read => Some(Class::Read),
            Kind::Write(_) => Some(Class::Write),
            Kind::BurstRead(_) | Kind::BurstWrite(..) => Some(Class::Burst),
            Kind::Flush => None,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { kind, region, line, .. } = self;
        match kind {
            Kind::Read => write!(f, "read mn{region} line {line}"),
            Kind::Write(value) => write!(f, "write mn{region} line {line} := {value:#x}"),
            Kind::BurstRead(n) => write!(f, "read mn{region} lines {line} to {}", line + n - 1),
            Kind::BurstWrite(mask, first) => {
                let lines: Vec<_> = self.lines().collect();
                write!(f, "write mn{region} lines {lines:?} := {first:#x} to {:#x}", {
                    first + u64::from(mask.count_ones()) - 1
                })
            }
            Kind::Flush => f.write_str("flush"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_stay_within_their_page() {
        let mut random = Random::new(7);
        let shape = Shape { pages: 3, page_lines: 64 };
        let mut value = 1;
        for _ in 0..10_000 {
            let op = Operation::draw(&mut random, 2, shape, &mut value, Time::ZERO);
            let lines: Vec<_> = op.lines().collect();
            let page = op.line / 64;
            assert!(lines.iter().all(|line| line / 64 == page && *line < shape.lines()), "{op}");
            assert_eq!(lines.is_empty(), op.kind == Kind::Flush);
        }
    }

    #[test]
    fn operations_are_told_in_words() {
        let op =
            |kind| Operation { kind, region: 1, life: 0, line: 3, at: Time::ZERO, lost: false }.to_string();
        assert_eq!(op(Kind::Read), "read mn1 line 3");
        assert_eq!(op(Kind::BurstRead(2)), "read mn1 lines 3 to 4");
        assert_eq!(op(Kind::BurstWrite(0b101, 16)), "write mn1 lines [3, 5] := 0x10 to 0x11");
    }
}

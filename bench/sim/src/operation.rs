//! Operations that the program of a simulated compute node submits.

use std::fmt;

use cxloe_wire::random::Random;
use cxloe_wire::time::Time;

use crate::register::Shape;
use crate::tally::Class;

/// Kind of an operation, with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    Read,
    /// Fill the line with this value.
    Write(u64),
    /// Read this number of consecutive lines.
    BurstRead(usize),
    /// Fill the lines in the mask (first field) with consecutive values, beginning with the second field.
    BurstWrite(u64, u64),
    /// Write all modified lines back to the memory nodes.
    Flush,
}

/// Number of adjacent lines among which half of the operations on an interleaved region begin.
const HOT: u64 = 24;

/// Kind of access that a program makes to a range of HPA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Read the only line of the range, through the cache.
    Read,
    /// Write the only line of the range, through the cache.
    Write,
    /// Read the range by bursts, one for each piece.
    ReadBurst,
    /// Write the range by bursts, one for each piece.
    WriteBurst,
    /// Flush the cache; the range is unused.
    Flush,
}

#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub kind: OperationKind,
    /// Index of the part of a region; without a manager, the number of its memory node.
    pub region: usize,
    /// Life of the part at the time of submission; a part gets another life when its region is replaced or its content
    /// lost.
    pub life: u64,
    /// Index of the operation's first line in the part.
    pub line: usize,
    /// Time of the first attempt to submit the operation.
    pub at: Time,
    /// True if the loss of the part's content had been reported when the operation was submitted.
    pub lost: bool,
}

impl Operation {
    /// Draws the next operation of a program. Values to write begin with `next_value`.
    pub fn draw(r: &mut Random, regions: usize, shape: Shape, next_value: &mut u64, at: Time) -> Operation {
        let region = r.below(regions as u64) as usize;
        let line = r.below(shape.lines() as u64) as usize;
        let left = shape.rest_of_page(line);
        let first = *next_value;
        let kind = match r.below(100) {
            0..40 => OperationKind::Read,
            40..78 => OperationKind::Write(first),
            78..88 => OperationKind::BurstRead(1 + r.below(left as u64) as usize),
            88..98 => OperationKind::BurstWrite(1 + r.below(u64::MAX >> (64 - left)), first),
            _ => OperationKind::Flush,
        };
        *next_value += shape.page_lines as u64;
        Operation { kind, region, life: 0, line, at, lost: false }
    }

    /// Draws the next access of a program to an interleaved region: first line, number of lines, and kind of
    /// access.
    pub fn draw_range(r: &mut Random, lines: u64, hot: u64) -> (u64, u64, Purpose) {
        // Half of the accesses are close to each other, so that they collide.
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

    /// Returns the lines that the operation accesses, in order.
    pub fn lines(&self) -> impl Iterator<Item = usize> + use<> {
        let mask = match self.kind {
            OperationKind::Read | OperationKind::Write(_) => 1,
            OperationKind::BurstRead(lines) => u64::MAX >> (64 - lines),
            OperationKind::BurstWrite(mask, _) => mask,
            OperationKind::Flush => 0,
        };
        let first = self.line;
        (0..64).filter(move |i| mask >> i & 1 == 1).map(move |i| first + i)
    }

    pub fn is_read(&self) -> bool {
        matches!(self.kind, OperationKind::Read | OperationKind::BurstRead(_))
    }

    /// Returns the class in which the operation's latency is counted; `None` for a flush, whose latency
    /// depends on the amount of modified data.
    pub fn class(&self) -> Option<Class> {
        match self.kind {
            OperationKind::Read => Some(Class::Read),
            OperationKind::Write(_) => Some(Class::Write),
            OperationKind::BurstRead(_) | OperationKind::BurstWrite(..) => Some(Class::Burst),
            OperationKind::Flush => None,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { kind, region, line, .. } = self;
        match kind {
            OperationKind::Read => write!(f, "read mn{region} line {line}"),
            OperationKind::Write(value) => write!(f, "write mn{region} line {line} := {value:#x}"),
            OperationKind::BurstRead(n) => write!(f, "read mn{region} lines {line} to {}", line + n - 1),
            OperationKind::BurstWrite(mask, first) => {
                let lines: Vec<_> = self.lines().collect();
                write!(f, "write mn{region} lines {lines:?} := {first:#x} to {:#x}", {
                    first + u64::from(mask.count_ones()) - 1
                })
            }
            OperationKind::Flush => f.write_str("flush"),
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
            assert_eq!(lines.is_empty(), op.kind == OperationKind::Flush);
        }
    }

    #[test]
    fn operations_are_described() {
        let op =
            |kind| Operation { kind, region: 1, life: 0, line: 3, at: Time::ZERO, lost: false }.to_string();
        assert_eq!(op(OperationKind::Read), "read mn1 line 3");
        assert_eq!(op(OperationKind::BurstRead(2)), "read mn1 lines 3 to 4");
        assert_eq!(op(OperationKind::BurstWrite(0b101, 16)), "write mn1 lines [3, 5] := 0x10 to 0x11");
    }
}

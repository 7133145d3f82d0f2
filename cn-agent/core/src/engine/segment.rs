//! What one frame carries of a range of HPA: lines that lie one behind the other in one memory node's CMem. In HPA they
//! are chunks of one interleave granularity, a turn apart, so whoever sends or receives a segment gathers or scatters.
//!
//! ```text
//!   HPA      | A | B | C | D | A | B | C | D | A ...      four ways; the segment is what A has of it
//!   CMem, A  | A | A | A |
//! ```

use cxloe_fabric::hdm::{Decoder, Granularity, Ways};
use cxloe_wire::frame::LINE_SIZE;

const LINE: u64 = LINE_SIZE as u64;

/// Lines of one memory node, consecutive in its CMem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// HPA of the first line.
    pub hpa: u64,
    /// How many lines, 1 to 64 if a frame is to carry them.
    pub lines: usize,
    spread: Spread,
}

/// How consecutive lines of one memory node lie in HPA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spread {
    ways: Ways,
    granularity: Granularity,
    /// Bytes of the first line's chunk before that line.
    skip: u32,
}

impl Spread {
    #[inline]
    pub fn of(decoder: &Decoder, hpa: u64) -> Spread {
        let Decoder { base, ways, granularity, .. } = *decoder;
        let skip = hpa.wrapping_sub(base) as u32 & (granularity.bytes() - 1);
        Spread { ways, granularity, skip }
    }

    /// Without interleaving, so that lines follow one another.
    const STRAIGHT: Spread = Spread { ways: Ways::One, granularity: Granularity::PAGE, skip: 0 };
}

/// Lines of a segment that are consecutive in HPA, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which line of the segment is its first.
    pub first: usize,
    /// How many lines.
    pub lines: usize,
    /// From the segment's HPA to the run's, in bytes.
    pub offset: u64,
}

impl Segment {
    pub(super) fn new(hpa: u64, lines: usize, spread: Spread) -> Segment {
        Segment { hpa, lines, spread }
    }

    /// Lines that follow one another in HPA, as they do in a region of one way.
    #[inline]
    pub fn straight(hpa: u64, lines: usize) -> Segment {
        Segment { hpa, lines, spread: Spread::STRAIGHT }
    }

    /// Whether its lines follow one another in HPA, wherever it begins.
    pub(super) fn is_straight(&self) -> bool {
        self.spread.ways == Ways::One
    }

    /// Whether it was made for an interleave set like this.
    #[inline]
    pub(super) fn fits(&self, decoder: &Decoder) -> bool {
        match (self.spread.ways, decoder.ways) {
            (Ways::One, Ways::One) => true,
            _ => self.spread == Spread::of(decoder, self.hpa),
        }
    }

    /// From the segment's HPA to that of its `line`-th line, in bytes.
    #[inline]
    pub fn offset(&self, line: usize) -> u64 {
        let Spread { ways, granularity, skip } = self.spread;
        let skip = u64::from(skip);
        let along = skip + line as u64 * LINE;
        let chunk = along >> granularity.shift();
        along + chunk * u64::from((ways.count() - 1) * granularity.bytes()) - skip
    }

    /// From the segment's HPA to the end of its last line, in bytes.
    #[inline]
    pub fn extent(&self) -> u64 {
        self.lines.checked_sub(1).map_or(0, |last| self.offset(last) + LINE)
    }

    /// Its runs, by ascending HPA.
    #[inline]
    pub fn spans(&self) -> impl Iterator<Item = Span> + use<> {
        let segment = *self;
        let mut first = 0;
        core::iter::from_fn(move || {
            let left = segment.lines.checked_sub(first).filter(|left| *left > 0)?;
            let Spread { ways, granularity, skip } = segment.spread;
            let grain = granularity.bytes() as usize;
            let lines = if ways == Ways::One {
                left
            } else {
                left.min((grain - (skip as usize + first * LINE_SIZE) % grain).div_ceil(LINE_SIZE))
            };
            let run = Span { first, lines, offset: segment.offset(first) };
            first += lines;
            Some(run)
        })
    }

    /// Copies the lines' `data`, in their order in the segment, to where they belong in `out`, whose first byte is the
    /// segment's. `false`, and nothing is copied, if either is too short.
    pub fn scatter(&self, data: &[u8], out: &mut [u8]) -> bool {
        let enough = data.len() >= self.lines * LINE_SIZE && out.len() as u64 >= self.extent();
        if enough {
            for Span { first, lines, offset } in self.spans() {
                let from = &data[first * LINE_SIZE..(first + lines) * LINE_SIZE];
                out[offset as usize..][..from.len()].copy_from_slice(from);
            }
        }
        enough
    }

    /// The reverse of [`scatter`](Self::scatter): the lines' data in their order in the segment, from `from`, whose first
    /// byte is the segment's. What is in one segment already is not copied; `room` takes the rest. `None` if either is too
    /// short.
    pub fn gather<'a>(&self, from: &'a [u8], room: &'a mut [u8]) -> Option<&'a [u8]> {
        let bytes = self.lines * LINE_SIZE;
        if self.extent() == bytes as u64 {
            return from.get(..bytes);
        }
        let room = room.get_mut(..bytes).filter(|_| from.len() as u64 >= self.extent())?;
        for Span { first, lines, offset } in self.spans() {
            let to = &mut room[first * LINE_SIZE..(first + lines) * LINE_SIZE];
            to.copy_from_slice(&from[offset as usize..][..to.len()]);
        }
        Some(room)
    }
}

//! Segments. A segment is the part of a range of HPA that one frame carries: lines that are contiguous in one
//! memory node's CMem. In HPA these lines are chunks of one interleave granularity, one interleave round
//! apart, so sending gathers them and receiving scatters them.
//!
//! ```text
//!   HPA      | A | B | C | D | A | B | C | D | A ...      four ways; the segment is A's part
//!   CMem, A  | A | A | A |
//! ```

use cxloe_fabric::hdm::{Decoder, Granularity, Ways};
use cxloe_wire::frame::LINE_SIZE;

use super::location::Location;

const LINE: u64 = LINE_SIZE as u64;

/// Lines of one memory node, consecutive in its CMem, with their decoded address, which can become stale
/// (`Location`). A segment is used only with the engine that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// HPA of the first line.
    pub hpa: u64,
    /// Number of lines; 1 to 64 to fit a frame.
    pub lines: usize,
    spread: Spread,
    pub(super) location: Location,
}

/// Layout in HPA of lines that are consecutive on one memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spread {
    ways: Ways,
    granularity: Granularity,
    /// Number of bytes of the first line's chunk that lie before that line.
    skip: u32,
}

impl Spread {
    #[inline]
    pub fn of(decoder: &Decoder, hpa: u64) -> Spread {
        let Decoder { base, ways, granularity, .. } = *decoder;
        let skip = hpa.wrapping_sub(base) as u32 & (granularity.bytes() - 1);
        Spread { ways, granularity, skip }
    }

    /// The layout without interleaving: lines follow one another.
    pub const STRAIGHT: Spread = Spread { ways: Ways::One, granularity: Granularity::PAGE, skip: 0 };
}

/// Lines of a segment that are consecutive in HPA as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index in the segment of the span's first line.
    pub first: usize,
    pub lines: usize,
    /// Distance in bytes of the span's HPA from the segment's.
    pub offset: u64,
}

impl Segment {
    pub(super) fn new(hpa: u64, lines: usize, spread: Spread, location: Location) -> Segment {
        Segment { hpa, lines, spread, location }
    }

    /// Returns a segment whose lines follow one another in HPA, as in a region of one way. The engine decodes
    /// the segment's address when it is used.
    #[inline]
    pub fn straight(hpa: u64, lines: usize) -> Segment {
        Segment { hpa, lines, spread: Spread::STRAIGHT, location: Location::UNDECODED }
    }

    /// Whether the segment's lines follow one another in HPA, as without interleaving.
    pub(super) fn is_straight(&self) -> bool {
        self.spread.ways == Ways::One
    }

    /// Whether the segment was made for an interleave set with the ways and granularity of `decoder`.
    #[inline]
    pub(super) fn fits(&self, decoder: &Decoder) -> bool {
        match (self.spread.ways, decoder.ways) {
            (Ways::One, Ways::One) => true,
            _ => self.spread == Spread::of(decoder, self.hpa),
        }
    }

    /// Distance in bytes of the HPA of line `line` from the segment's HPA.
    #[inline]
    pub fn offset(&self, line: usize) -> u64 {
        let Spread { ways, granularity, skip } = self.spread;
        let skip = u64::from(skip);
        let along = skip + line as u64 * LINE;
        let chunk = along >> granularity.shift();
        along + chunk * u64::from((ways.count() - 1) * granularity.bytes()) - skip
    }

    /// Distance in bytes of the end of the last line from the segment's HPA.
    #[inline]
    pub fn extent(&self) -> u64 {
        self.lines.checked_sub(1).map_or(0, |last| self.offset(last) + LINE)
    }

    /// The segment's spans, by ascending HPA.
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

    /// Copies the lines' `data` from their order in the segment to their positions in `out`, which begins at the
    /// segment's HPA. Returns `false`, and copies nothing, if `data` or `out` is too short.
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

    /// The reverse of [`scatter`](Self::scatter): returns the lines' data in the order of the segment. The data is
    /// taken from `from`, which begins at the segment's HPA. Contiguous data is not copied; other data is gathered in
    /// `room`. `None` if `from` or `room` is too short.
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

//! A segment_iter over a range of HPA in segments that one frame each can carry.
//!
//! Each segment is as long as its memory node's CMem page and the frames of its session allow, whatever the granularity:
//! a long range takes no more frames interleaved than it does in a straight line. Pieces come by rows: row `r` is the
//! `r`-th CMem page of every position, and within a row the positions follow one another, so that requests go to all
//! memory nodes in turn.
//!
//! ```text
//!              position 0    1    2    3
//!   row 0           | 1 |  | 2 |  | 3 |  | 4 |       numbers: the order of the segment_iter
//!   row 1           | 5 |  | 6 |  | 7 |  | 8 |
//! ```
//!
//! A segment_iter knows where it is; how many lines the next frame takes is asked anew each time, because a session may be
//! replaced by one with smaller frames while the segment_iter waits.

use core::ops::Range;

use cxloe_fabric::hdm::{Decoder, Granularity, Ways};
use cxloe_wire::frame::{BURST_LINES_MAX, LINE_SIZE};

use super::Engine;
use super::routes::Routes;
use super::segment::{Segment, Spread};

const LINE: u64 = LINE_SIZE as u64;
const PAGE: u64 = BURST_LINES_MAX as u64 * LINE;

/// What the segments are for: the frames of a session carry more lines one way than the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Burst reads.
    Read,
    /// Burst writes.
    Write,
}

/// A segment_iter over a range of HPA. Every line of the range is in exactly one segment.
#[derive(Clone, Debug)]
pub struct SegmentIter {
    /// What no route was looked up for so far.
    left: Range<u64>,
    part: Option<Part>,
}

/// The part of a range that one route holds, or none.
#[derive(Clone, Debug)]
struct Part {
    decoder: Decoder,
    /// Offsets from the decoder's base.
    range: Range<u64>,
    rows: Range<u64>,
    position: u32,
    /// What is left of the row's page at this position, as DPA.
    page: Range<u64>,
}

/// How many bytes of the share of `position` lie before `offset`.
fn share_before(decoder: &Decoder, position: u32, offset: u64) -> u64 {
    let (at, dpa) = decoder.decode_offset(offset);
    let grain = u64::from(decoder.granularity.bytes());
    let turn = dpa & !(grain - 1);
    match position.cmp(&at) {
        core::cmp::Ordering::Less => turn + grain,
        core::cmp::Ordering::Equal => dpa,
        core::cmp::Ordering::Greater => turn,
    }
}

impl Part {
    /// `None` if the range is empty.
    fn new(decoder: Decoder, range: Range<u64>) -> Option<Part> {
        let positions = 0..decoder.ways.count();
        let starts = positions.clone().map(|p| share_before(&decoder, p, range.start));
        let ends = positions.map(|p| share_before(&decoder, p, range.end));
        let rows = starts.min()? / PAGE..ends.max()?.div_ceil(PAGE);
        let mut part = Part { decoder, range, rows, position: 0, page: 0..0 };
        part.page = part.page_here();
        part.settle().then_some(part)
    }

    fn page_here(&self) -> Range<u64> {
        let row = self.rows.start * PAGE;
        let before = |offset| share_before(&self.decoder, self.position, offset);
        before(self.range.start).max(row)..before(self.range.end).min(row + PAGE)
    }

    /// Goes on to the next position that has something, if this one has nothing left; `false` at the end.
    fn settle(&mut self) -> bool {
        while self.page.is_empty() {
            self.position += 1;
            if self.position == self.decoder.ways.count() {
                self.position = 0;
                self.rows.start += 1;
            }
            if self.rows.is_empty() {
                return false;
            }
            self.page = self.page_here();
        }
        true
    }

    /// As many lines as there are here and as `most` says that a frame carries.
    fn segment(&self, most: impl FnOnce(u64) -> usize) -> Segment {
        let hpa = self.decoder.base + self.decoder.encode_offset(self.position, self.page.start);
        let left = ((self.page.end - self.page.start) / LINE) as usize;
        // At least one, so that an engine without a session is asked and says so.
        Segment::new(hpa, left.min(most(hpa)).max(1), Spread::of(&self.decoder, hpa))
    }
}

impl SegmentIter {
    /// From the first line of `range`, whose ends are multiples of 64, to the last.
    #[inline]
    pub fn new(range: Range<u64>) -> SegmentIter {
        SegmentIter { left: range, part: None }
    }

    /// The segment to carry next; `None` at the end. The same again, unless a session has changed, until
    /// [`advance`](Self::advance).
    #[inline]
    pub fn segment(&mut self, engine: &mut Engine, direction: Direction) -> Option<Segment> {
        let part = self.part(&mut engine.routes)?;
        Some(part.segment(|hpa| match direction {
            Direction::Read => engine.burst_read_lines_max(hpa),
            Direction::Write => engine.burst_write_lines_max(hpa),
        }))
    }

    #[inline]
    fn part(&mut self, routes: &mut Routes) -> Option<&Part> {
        if self.part.is_none() {
            self.part = self.next_part(routes);
        }
        self.part.as_ref()
    }

    /// Goes on behind `segment`, which is the one that was carried.
    #[inline]
    pub fn advance(&mut self, segment: &Segment) {
        let Some(part) = &mut self.part else { return };
        part.page.start += segment.lines as u64 * LINE;
        if !part.settle() {
            self.part = None;
        }
    }

    fn next_part(&mut self, routes: &mut Routes) -> Option<Part> {
        let Range { start, end } = self.left;
        if start >= end {
            return None;
        }
        let (decoder, until) = match routes.find(start) {
            Some(route) => {
                let decoder = route.decoder;
                (decoder, decoder.base + decoder.size)
            }
            // Nobody's: as a region of one way, up to the next that is somebody's.
            None => {
                let (base, until) = (start & !(PAGE - 1), routes.next_start(start).unwrap_or(end));
                let straight = Decoder { base, size: 0, ways: Ways::One, granularity: Granularity::PAGE };
                (straight, until)
            }
        };
        self.left.start = end.min(until);
        Part::new(decoder, start - decoder.base..self.left.start - decoder.base)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::routes::{Route, Target};
    use super::*;

    fn route(base: u64, turns: u64, ways: Ways, granularity: Granularity) -> Route {
        let size = turns * u64::from(ways.count()) * u64::from(granularity.bytes().max(4096));
        let target = |peer| Target { peer, cmem: 0, incarnation: None };
        let targets = (0..ways.count() as usize).map(target).collect();
        Route { decoder: Decoder { base, size, ways, granularity }, targets }
    }

    /// All segments of a range, and how many lines each frame was to carry at most.
    fn segment_iter(routes: &mut Routes, range: Range<u64>, mut most: impl FnMut() -> usize) -> Vec<Segment> {
        let mut segment_iter = SegmentIter::new(range);
        let mut segments = Vec::new();
        while let Some(part) = segment_iter.part(routes) {
            let most = most();
            let segment = part.segment(|_| most);
            assert!((1..=most).contains(&segment.lines));
            segment_iter.advance(&segment);
            segments.push(segment);
        }
        segments
    }

    /// Position and DPA by the definition of interleaving, not by the code under test.
    fn place(routes: &[Route], hpa: u64) -> Option<(usize, u64, u64)> {
        routes.iter().enumerate().find_map(|(index, route)| {
            let Decoder { base, size, ways, granularity } = route.decoder;
            let (ways, grain) = (u64::from(ways.count()), u64::from(granularity.bytes()));
            let offset = hpa.checked_sub(base).filter(|offset| *offset < size)?;
            Some((index, offset / grain % ways, offset / grain / ways * grain + offset % grain))
        })
    }

    fn any_routes() -> impl Strategy<Value = Vec<Route>> {
        let one = (
            0_u64..3,
            1_u64..6,
            prop::sample::select(Ways::ALL.to_vec()),
            prop::sample::select(Granularity::all().collect::<Vec<_>>()),
        );
        prop::collection::vec(one, 1..4).prop_map(|routes| {
            let mut base = 0;
            let place = |(gap, turns, ways, granularity)| {
                let route = route(base + gap * 4096, turns, ways, granularity);
                base = route.decoder.base + route.decoder.size;
                route
            };
            routes.into_iter().map(place).collect()
        })
    }

    proptest! {
        #[test]
        fn every_line_is_in_one_piece_and_every_piece_in_one_page_of_cmem(
            list in any_routes(),
            start in 0_u64..4000,
            lines in 0_u64..6000,
            limits in prop::collection::vec(1_usize..=64, 1..8),
        ) {
            let mut routes = Routes::default();
            list.iter().for_each(|route| routes.add(route.clone()).unwrap());
            let range = start * LINE..(start + lines) * LINE;
            let mut limits = limits.iter().cycle();
            let mut seen = vec![0_u8; lines as usize];
            for segment in segment_iter(&mut routes, range.clone(), || *limits.next().unwrap()) {
                let first = place(&list, segment.hpa);
                for i in 0..segment.lines {
                    let hpa = segment.hpa + segment.offset(i);
                    prop_assert!(range.contains(&hpa));
                    seen[((hpa - range.start) / LINE) as usize] += 1;
                    let along = i as u64 * LINE;
                    match (first, place(&list, hpa)) {
                        (None, None) => prop_assert!(hpa == segment.hpa + along && hpa / PAGE == segment.hpa / PAGE),
                        (Some((route, position, dpa)), now) => {
                            prop_assert_eq!(now, Some((route, position, dpa + along)));
                            prop_assert_eq!((dpa + along) / PAGE, dpa / PAGE);
                        }
                        (None, Some(_)) => prop_assert!(false, "it runs from nowhere into a route"),
                    }
                }
            }
            prop_assert!(seen.iter().all(|times| *times == 1));
        }

        #[test]
        fn scattering_and_gathering_are_inverse(
            ways in prop::sample::select(Ways::ALL.to_vec()),
            granularity in prop::sample::select(Granularity::all().collect::<Vec<_>>()),
            line in 0_u64..700,
            lines in 1_usize..=64,
        ) {
            let route = route(0x4000, 3, ways, granularity);
            let hpa = 0x4000 + line * LINE;
            let segment = Segment::new(hpa, lines, Spread::of(&route.decoder, hpa));
            let data: Vec<u8> = (0..lines * LINE_SIZE).map(|i| (i / LINE_SIZE + 1) as u8).collect();
            let mut out = vec![0; segment.extent() as usize];
            prop_assert!(segment.scatter(&data, &mut out));
            for (i, found) in out.chunks(LINE_SIZE).enumerate() {
                let expected = (0..lines).find(|l| segment.offset(*l) == i as u64 * LINE).map_or(0, |l| l as u8 + 1);
                prop_assert!(found.iter().all(|byte| *byte == expected));
            }
            let mut room = [0; PAGE as usize];
            prop_assert_eq!(segment.gather(&out, &mut room), Some(data.as_slice()));
            prop_assert_eq!(segment.spans().map(|span| span.lines).sum::<usize>(), lines);
            // Too short by a line.
            let less = out.len() - LINE_SIZE;
            prop_assert!(!segment.scatter(&data, &mut out[..less]));
            prop_assert_eq!(segment.gather(&out[..less], &mut room), None);
        }
    }

    /// However fine the granularity, a long range takes as many frames as it would in a straight line.
    #[test]
    fn interleaving_costs_no_frames() {
        for (ways, granularity) in Ways::ALL.into_iter().flat_map(|w| Granularity::all().map(move |g| (w, g)))
        {
            let route = route(0, 8, ways, granularity);
            let size = route.decoder.size;
            let mut routes = Routes::default();
            routes.add(route).unwrap();
            let frames = |most| size / PAGE * PAGE.div_ceil(most * LINE);
            for most in [23, 64] {
                let segments = segment_iter(&mut routes, 0..size, || most as usize);
                assert_eq!(segments.len() as u64, frames(most), "{ways} ways of {granularity}");
            }
        }
    }

    /// A page over four memory nodes is four frames of 1 KiB, whose chunks are gathered.
    #[test]
    fn the_chunks_of_a_page_are_gathered() {
        let mut routes = Routes::default();
        routes.add(route(0, 1, Ways::Four, Granularity::MIN)).unwrap();
        let segments = segment_iter(&mut routes, 0..PAGE, || 23);
        assert_eq!(
            segments.iter().map(|p| (p.hpa, p.lines)).collect::<Vec<_>>(),
            [(0, 16), (256, 16), (512, 16), (768, 16)]
        );
        let runs: Vec<_> = segments[1].spans().map(|span| (span.first, span.lines, span.offset)).collect();
        assert_eq!(runs, [(0, 4, 0), (4, 4, 1024), (8, 4, 2048), (12, 4, 3072)]);
    }
}

//! An iterator over a range of HPA in segments that one frame each can carry.
//!
//! Each segment is as long as its memory node's CMem page and the frames of its session allow, whatever the
//! granularity: a long range takes no more frames with interleaving than without. Segments are returned row
//! by row: row `r` is the `r`-th CMem page of every position, and within a row the positions follow one
//! another, so that requests go to all memory nodes alike.
//!
//! ```text
//!              position 0    1    2    3
//!   row 0           | 1 |  | 2 |  | 3 |  | 4 |       numbers: the order of the iterator
//!   row 1           | 5 |  | 6 |  | 7 |  | 8 |
//! ```
//!
//! An iterator decodes the first address of each route that the range touches, and derives the locations of all
//! segments from it. It keeps only its position; the number of lines of the next frame is determined anew each time,
//! because a session may be replaced by one with smaller frames between two segments.

use core::ops::Range;

use cxloe_fabric::hdm::{Decoder, Granularity, Ways};
use cxloe_wire::frame::{BURST_LINES_MAX, LINE_SIZE};

use super::Engine;
use super::location::Location;
use super::routes::Routes;
use super::segment::{Segment, Spread};

const LINE: u64 = LINE_SIZE as u64;
const PAGE: u64 = BURST_LINES_MAX as u64 * LINE;

/// Direction of a transfer: a frame can carry different numbers of lines in the two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From a memory node, in burst reads.
    Read,
    /// To a memory node, in burst writes.
    Write,
}

/// An iterator over a range of HPA. Every line of the range is in exactly one segment.
#[derive(Clone, Debug)]
pub struct SegmentIter {
    /// Part of the range for which no route was looked up yet.
    left: Range<u64>,
    part: Option<RoutePart>,
}

/// The part of a range within one route.
#[derive(Clone, Debug)]
struct RoutePart {
    decoder: Decoder,
    /// A location in the route, from which the locations of all segments are derived; for a part without a route, the
    /// location of a line in it.
    anchor: Location,
    /// Range of the part, as offsets from the decoder's base.
    range: Range<u64>,
    rows: Range<u64>,
    position: u32,
    /// Range of DPA in the present CMem page of `position` that is still to be returned.
    page: Range<u64>,
}

/// Number of bytes at `position` that lie before `offset`, an offset in the route.
fn share_before(decoder: &Decoder, position: u32, offset: u64) -> u64 {
    if decoder.ways == Ways::One {
        return offset;
    }
    let (at, dpa) = decoder.decode_offset(offset);
    let grain = u64::from(decoder.granularity.bytes());
    let turn = dpa & !(grain - 1);
    match position.cmp(&at) {
        core::cmp::Ordering::Less => turn + grain,
        core::cmp::Ordering::Equal => dpa,
        core::cmp::Ordering::Greater => turn,
    }
}

impl RoutePart {
    /// Returns the part, positioned at its first segment; `None` if the range is empty.
    fn new(decoder: Decoder, anchor: Location, range: Range<u64>) -> Option<RoutePart> {
        let positions = 0..decoder.ways.count();
        let starts = positions.clone().map(|p| share_before(&decoder, p, range.start));
        let ends = positions.map(|p| share_before(&decoder, p, range.end));
        let rows = starts.min()? / PAGE..ends.max()?.div_ceil(PAGE);
        let mut part = RoutePart { decoder, anchor, range, rows, position: 0, page: 0..0 };
        part.page = part.page_here();
        part.settle().then_some(part)
    }

    fn page_here(&self) -> Range<u64> {
        let row = self.rows.start * PAGE;
        let before = |offset| share_before(&self.decoder, self.position, offset);
        before(self.range.start).max(row)..before(self.range.end).min(row + PAGE)
    }

    /// Advances to the next position with lines left, if the present one has none; `false` at the end.
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

    /// Segment of all lines left in the row's page at this position.
    #[inline]
    fn segment(&mut self, routes: &mut Routes) -> Segment {
        let hpa = self.decoder.base + self.decoder.encode_offset(self.position, self.page.start);
        let lines = ((self.page.end - self.page.start) / LINE) as usize;
        let spread = Spread::of(&self.decoder, hpa);
        if !routes.is_current(&self.anchor) {
            let now = routes.locate(hpa);
            let is_same =
                routes.route(&now).map_or(self.decoder.size == 0, |route| route.decoder == self.decoder);
            if !is_same {
                // The engine decodes the segment's address when it is used, and refuses the segment if it does not
                // fit.
                return Segment::new(hpa, lines, spread, Location::UNDECODED);
            }
            self.anchor = now;
        }
        Segment::new(hpa, lines, spread, routes.locate_beside(&self.anchor, self.position, self.page.start))
    }
}

impl SegmentIter {
    /// Returns an iterator over `range`, whose ends must be multiples of 64.
    #[inline]
    pub fn new(range: Range<u64>) -> SegmentIter {
        SegmentIter { left: range, part: None }
    }

    /// Returns the next segment; `None` at the end. Repeated calls return the same segment until
    /// [`advance`](Self::advance), unless a session has changed.
    #[inline]
    pub fn segment(&mut self, engine: &mut Engine, direction: Direction) -> Option<Segment> {
        let mut segment = self.part(&mut engine.routes)?.segment(&mut engine.routes);
        let most = engine.segment_lines_max(&segment, direction);
        // A segment has at least one line even without a session: the engine then returns the session's error for the
        // segment.
        segment.lines = segment.lines.min(most).max(1);
        Some(segment)
    }

    #[inline]
    fn part(&mut self, routes: &mut Routes) -> Option<&mut RoutePart> {
        if self.part.is_none() {
            self.part = self.next_part(routes);
        }
        self.part.as_mut()
    }

    /// Advances past `segment`, which the caller has sent.
    #[inline]
    pub fn advance(&mut self, segment: &Segment) {
        let Some(part) = &mut self.part else { return };
        part.page.start += segment.lines as u64 * LINE;
        if !part.settle() {
            self.part = None;
        }
    }

    fn next_part(&mut self, routes: &mut Routes) -> Option<RoutePart> {
        let Range { start, end } = self.left;
        if start >= end {
            return None;
        }
        let anchor = routes.locate(start);
        let (decoder, until) = match routes.route(&anchor) {
            Some(route) => {
                let decoder = route.decoder;
                (decoder, decoder.base + decoder.size)
            }
            // Addresses without a route are divided like a region of one way, up to the next route.
            None => {
                let (base, until) = (start & !(PAGE - 1), routes.next_start(start).unwrap_or(end));
                let straight = Decoder { base, size: 0, ways: Ways::One, granularity: Granularity::PAGE };
                (straight, until)
            }
        };
        self.left.start = end.min(until);
        RoutePart::new(decoder, anchor, start - decoder.base..self.left.start - decoder.base)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::routes::{Route, RouteTarget};
    use super::*;

    fn route(base: u64, turns: u64, ways: Ways, granularity: Granularity) -> Route {
        let size = turns * u64::from(ways.count()) * u64::from(granularity.bytes().max(4096));
        let target = |peer| RouteTarget { peer, cmem: 0, incarnation: None, mirror: None };
        let targets = (0..ways.count() as usize).map(target).collect();
        Route { decoder: Decoder { base, size, ways, granularity }, targets }
    }

    /// Returns all segments of a range; `most` gives the maximum number of lines of each frame.
    fn segment_iter(routes: &mut Routes, range: Range<u64>, mut most: impl FnMut() -> usize) -> Vec<Segment> {
        let mut segment_iter = SegmentIter::new(range);
        let mut segments = Vec::new();
        while let Some(part) = segment_iter.part(routes) {
            let mut segment = part.segment(routes);
            assert_eq!(segment.location, routes.locate(segment.hpa), "its location is that of its address");
            assert!(segment.lines >= 1);
            segment.lines = segment.lines.min(most());
            segment_iter.advance(&segment);
            segments.push(segment);
        }
        segments
    }

    /// Returns the route, position and DPA of an address by the definition of interleaving, not by the code
    /// under test.
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
            let segment = Segment::new(hpa, lines, Spread::of(&route.decoder, hpa), Location::UNDECODED);
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
            // Output that is one line too short is refused.
            let less = out.len() - LINE_SIZE;
            prop_assert!(!segment.scatter(&data, &mut out[..less]));
            prop_assert_eq!(segment.gather(&out[..less], &mut room), None);
        }
    }

    /// Tests that a long range takes as many frames as without interleaving, at any granularity.
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

    /// Tests that a page over four memory nodes takes four frames of 1 KiB, each with the chunks of one
    /// memory node.
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

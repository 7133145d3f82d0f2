//! Bursts: segments of one page of a memory node, read and written without the line cache, in one frame each.
//!
//! The page's stream keeps cached lines and bursts in order: dirty lines of the range are sent first, on the
//! same stream, so that a burst read returns them and a burst write replaces them. A burst write also removes
//! its lines from the cache; the next read of these lines is sent to the memory node behind the burst. So if
//! a burst fails because its session ended, no line stays in the cache that the memory node does not have.

use cxloe_wire::Transmit;
use cxloe_wire::frame::{BURST_LINES_MAX, LINE_SIZE, burst_fits_page};
use cxloe_wire::time::Time;

use super::completer::Op;
use super::location::Location;
use super::segment::Spread;
use super::{
    BurstRead, Direction, Engine, EngineError, PeerSession, RequestId, Segment, Write, page_and_mask,
};
use crate::cache::LineState;

impl Engine {
    /// Returns the segment (lines that are contiguous on one memory node) of the `lines` lines from `hpa` on. It may be
    /// longer than one frame; [`SegmentIter`](super::SegmentIter) takes that into account.
    pub fn segment(&mut self, hpa: u64, lines: usize) -> Segment {
        let location = self.routes.locate(hpa);
        let route = self.routes.route(&location);
        let spread = route.map_or(Spread::STRAIGHT, |route| Spread::of(&route.decoder, hpa));
        Segment::new(hpa, lines, spread, location)
    }

    /// Index of the memory node of a segment, if a route exists; callers may keep one queue per index.
    #[inline]
    pub fn peer_of(&mut self, segment: &Segment) -> Option<usize> {
        let location = self.current(segment);
        self.routes.target(&location).map(|target| target.peer)
    }

    /// Location of a segment. It is computed again if the routes have changed since the segment was made.
    #[inline]
    fn current(&mut self, segment: &Segment) -> Location {
        if self.routes.is_current(&segment.location) {
            segment.location
        } else {
            self.routes.locate(segment.hpa)
        }
    }

    /// Maximum number of lines of a burst at a segment's address in one frame.
    #[inline]
    pub(super) fn segment_lines_max(&mut self, segment: &Segment, direction: Direction) -> usize {
        let location = self.current(segment);
        self.burst_lines_max(&location, direction)
    }

    /// Maximum number of lines of a burst at a current location in one frame; 0 without a session. Without a
    /// route no frame is sent, so the maximum is the number of lines in a page.
    #[inline]
    fn burst_lines_max(&self, location: &Location, direction: Direction) -> usize {
        let Some(target) = self.routes.target(location) else { return BURST_LINES_MAX };
        let most = self.session_lines_max(target.peer, location.cmem, direction);
        match target.mirror.and_then(|number| self.core.mirrors.places(number)) {
            // A write goes to both legs, and a read that one of them does not answer goes to the other.
            Some(places) => places.into_iter().fold(most, |most, (peer, cmem)| {
                let at = cmem + (location.cmem - target.cmem);
                // A leg without a session is not written.
                Some(self.session_lines_max(peer, at, direction))
                    .filter(|lines| *lines > 0)
                    .map_or(most, |lines| most.min(lines))
            }),
            None => most,
        }
    }

    /// Maximum number of lines of a burst in one frame of the session for the page of `cmem`; `first` is the first
    /// session with the same memory node.
    #[inline]
    fn session_lines_max(&self, first: usize, cmem: u64, direction: Direction) -> usize {
        let requester = &self.peers[self.session_of(first, cmem)].requester;
        match direction {
            Direction::Read => requester.burst_read_lines_max(),
            Direction::Write => requester.burst_write_lines_max(),
        }
    }

    /// Maximum number of lines of a burst read at `hpa` in one frame; 0 without a session. Without a route no
    /// frame is sent, so the maximum is the number of lines in a page.
    pub fn burst_read_lines_max(&mut self, hpa: u64) -> usize {
        let location = self.routes.locate(hpa);
        self.burst_lines_max(&location, Direction::Read)
    }

    /// Maximum number of lines of a burst write at `hpa` in one frame; the other cases are those of
    /// [`burst_read_lines_max`](Self::burst_read_lines_max).
    pub fn burst_write_lines_max(&mut self, hpa: u64) -> usize {
        let location = self.routes.locate(hpa);
        self.burst_lines_max(&location, Direction::Write)
    }

    /// Reads the lines of `segment` without the line cache; dirty lines among them are sent first. The sink gets all
    /// lines in one call, unless they are available at once: see [`BurstRead`].
    ///
    /// # Errors
    /// [`EngineError::Busy`] while another read of one of the lines is in flight or a window is full. Any other error
    /// gives the reason why the lines cannot be read.
    pub fn burst_read(
        &mut self,
        segment: &Segment,
        id: RequestId,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<BurstRead<'_>, EngineError> {
        let Segment { hpa, lines, .. } = *segment;
        let Some((peer, cmem)) = self.route_burst(segment, lines)? else {
            return self.burst_read_unrouted(segment);
        };
        let (page, mask) = page_and_mask(peer, cmem, lines);
        if self.core.inflight.overlaps(page, mask) || self.core.ops.is_full() {
            return Err(EngineError::Busy);
        }
        self.check_written_back(hpa, lines)?;
        self.settle(peer, cmem, segment, lines, now, tx)?;
        if self.core.mirrors.owes() {
            self.send_owed(now, tx)?;
        }
        // The write-backs above may have used the last free slots for operations.
        if self.core.ops.is_full() {
            return Err(EngineError::Busy);
        }
        self.may_send(peer, now)?;
        let token = self.core.ops.insert(Op::Read { id, hpa, page, mask, place: None });
        let stream = self.stream_of(cmem);
        let PeerSession { requester, queue, .. } = &mut self.peers[peer];
        tx.steer(*queue);
        if let Err(rejected) = requester.burst_read(stream, cmem, lines as u8, token, now, tx) {
            self.core.ops.remove(token);
            return Err(self.rejected(peer, hpa, rejected));
        }
        self.core.inflight.start(page, mask);
        self.core.counters.burst_reads += 1;
        self.sent(peer);
        Ok(BurstRead::Sent)
    }

    /// Writes the lines of `segment` that `mask` selects; `data` holds them in order. [`Write::Done`] means
    /// that the lines are in local memory, or that the addresses are unmapped and the write was dropped; the
    /// sink is not called then.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while a read of one of the lines is in flight or a window is full. Any other
    /// error gives the reason why the lines cannot be written.
    pub fn burst_write(
        &mut self,
        segment: &Segment,
        mask: u64,
        data: &[u8],
        id: RequestId,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Write, EngineError> {
        let hpa = segment.hpa;
        let span = (u64::BITS - mask.leading_zeros()) as usize;
        self.sealed.check(hpa, segment.extent())?;
        let Some((peer, cmem)) = self.route_burst(segment, span)? else {
            return self.burst_write_unrouted(segment, mask, data);
        };
        let (page, span_mask) = page_and_mask(peer, cmem, span);
        if self.core.inflight.overlaps(page, span_mask) || self.core.ops.is_full() {
            return Err(EngineError::Busy);
        }
        self.settle(peer, cmem, segment, span, now, tx)?;
        if self.core.ops.is_full() {
            return Err(EngineError::Busy);
        }
        let op = Op::Write { id, hpa };
        if let Some(at) = self.mirror_at(hpa) {
            self.send_mirrored(at, mask, data, op, now, tx)?;
        } else {
            self.may_send(peer, now)?;
            let token = self.core.ops.insert(op);
            let stream = self.stream_of(cmem);
            let PeerSession { requester, queue, .. } = &mut self.peers[peer];
            tx.steer(*queue);
            if let Err(rejected) = requester.burst_write(stream, cmem, mask, data, token, now, tx) {
                self.core.ops.remove(token);
                return Err(self.rejected(peer, hpa, rejected));
            }
        }
        // The burst replaces these lines, so their cached content is outdated.
        if let Some(cache) = self.core.cache.as_mut().filter(|c| c.used() > 0) {
            for index in (0..span).filter(|i| mask >> i & 1 == 1) {
                if let Some(place) = cache.find((hpa + segment.offset(index)) / LINE_SIZE as u64) {
                    cache.set_state(place, LineState::Invalid);
                }
            }
        }
        self.core.counters.burst_writes += 1;
        self.sent(peer);
        Ok(Write::Sent)
    }

    /// Returns the peer and the CMem address of the first `lines` lines of a segment, all in one page of
    /// CMem; `None` without a route.
    fn route_burst(&mut self, segment: &Segment, lines: usize) -> Result<Option<(usize, u64)>, EngineError> {
        let hpa = segment.hpa;
        if !hpa.is_multiple_of(LINE_SIZE as u64) {
            return Err(EngineError::Unaligned(hpa));
        }
        if lines == 0 || lines > segment.lines {
            return Err(EngineError::BadBurst(hpa));
        }
        let location = self.current(segment);
        if location != segment.location
            && self.routes.route(&location).is_some_and(|route| !segment.fits(&route.decoder))
        {
            return Err(EngineError::BadBurst(hpa));
        }
        self.check_open(hpa)?;
        let routed = self.open_location(&location)?;
        // Routes, local memory and miss policies consist of whole pages, so one lookup covers all lines of a
        // burst within a page.
        if !burst_fits_page(routed.map_or(hpa, |(_, cmem)| cmem), lines - 1) {
            return Err(EngineError::BadBurst(hpa));
        }
        Ok(routed)
    }

    /// Sends dirty cached lines of the range, and lines of the range whose write-back failed in an earlier session. The
    /// burst follows on the same stream, so it is executed after them.
    fn settle(
        &mut self,
        peer: usize,
        cmem: u64,
        segment: &Segment,
        lines: usize,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), EngineError> {
        if self.core.is_stranded(peer, cmem, lines) {
            self.send_stranded(now, tx);
            if self.core.is_stranded(peer, cmem, lines) {
                return Err(self.not_now(peer));
            }
        }
        for line in 0..lines {
            let Some(cache) = self.core.cache.as_ref().filter(|c| c.used() > 0) else { return Ok(()) };
            if let Some(place) = cache.find((segment.hpa + segment.offset(line)) / LINE_SIZE as u64)
                && cache.state(place) == LineState::Modified
            {
                self.write_back(place, now, tx)?;
            }
        }
        Ok(())
    }
}

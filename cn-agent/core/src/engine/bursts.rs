//! Bursts: segments of a memory node's page, read and written past the cache, in one frame each.
//!
//! The cache and a burst meet in the page's stream: what the cache has modified of the lines goes out first,
//! on the same stream, so that the burst finds it or replaces it. A burst write takes its lines out of the
//! cache; whoever reads them next asks the memory node, behind the burst. So a burst that fails with its
//! session leaves nothing behind that the memory node does not have.

use cxloe_wire::Transmit;
use cxloe_wire::frame::{BURST_LINES_MAX, LINE_SIZE, burst_fits_page};
use cxloe_wire::session::Requester;
use cxloe_wire::time::Time;

use super::completer::Op;
use super::segment::Spread;
use super::{BurstRead, Engine, EngineError, Peer, Segment, Write, page_and_mask};
use crate::cache::State;

impl Engine {
    /// The `lines` lines from `hpa` on that lie one behind the other on its memory node. Whether a frame carries them is
    /// another matter: a [`SegmentIter`](super::SegmentIter) asks.
    pub fn segment(&mut self, hpa: u64, lines: usize) -> Segment {
        let spread = self.routes.find(hpa).map(|route| Spread::of(&route.decoder, hpa));
        spread.map_or(Segment::straight(hpa, lines), |spread| Segment::new(hpa, lines, spread))
    }

    /// The peer that has the line at `hpa`, if a route leads there: for queues of its own.
    #[inline]
    pub fn peer_of(&mut self, hpa: u64) -> Option<usize> {
        self.routes.find(hpa).map(|route| route.locate(hpa).0.peer)
    }

    /// The session that has the line at `hpa`, if a route leads there.
    fn session_at(&mut self, hpa: u64) -> Option<&Requester> {
        let (target, _, cmem) = self.routes.find(hpa)?.locate(hpa);
        let first = target.peer;
        let session = self.session_of(first, cmem);
        Some(&self.peers[session].requester)
    }

    /// Most lines of a burst read at `hpa` in one frame; 0 without a session. Where there is no route, and so no frame,
    /// as many as a page has.
    pub fn burst_read_lines_max(&mut self, hpa: u64) -> usize {
        let requester = self.session_at(hpa);
        requester.map_or(BURST_LINES_MAX, Requester::burst_read_lines_max)
    }

    /// Most lines of a burst write at `hpa` in one frame; otherwise as
    /// [`burst_read_lines_max`](Self::burst_read_lines_max).
    pub fn burst_write_lines_max(&mut self, hpa: u64) -> usize {
        let requester = self.session_at(hpa);
        requester.map_or(BURST_LINES_MAX, Requester::burst_write_lines_max)
    }

    /// Reads the lines of `segment`, past the cache but not missing what it has modified. The sink gets all of them in
    /// one call, unless they are here at once: see [`BurstRead`].
    ///
    /// # Errors
    /// [`EngineError::Busy`] while another read of one of the lines is on its way or a window is full; all
    /// others say why there is nothing to read.
    pub fn burst_read(
        &mut self,
        segment: &Segment,
        user: u64,
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
        self.settle(peer, cmem, segment, lines, now, tx)?;
        if self.core.ops.is_full() {
            return Err(EngineError::Busy);
        }
        self.may_send(peer, now)?;
        let token = self.core.ops.insert(Op::Read { user, hpa, page, mask, place: None });
        let stream = self.stream_of(cmem);
        let Peer { requester, queue, .. } = &mut self.peers[peer];
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

    /// Writes those lines of `segment` that `mask` names; `data` holds them in order. [`Write::Done`]: memory of
    /// this machine has them, or nobody maps them and nothing was written; the sink is not told.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while a read of one of the lines is on its way or a window is full; all others
    /// say why they cannot be written.
    pub fn burst_write(
        &mut self,
        segment: &Segment,
        mask: u64,
        data: &[u8],
        user: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Write, EngineError> {
        let hpa = segment.hpa;
        let span = (u64::BITS - mask.leading_zeros()) as usize;
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
        self.may_send(peer, now)?;
        let token = self.core.ops.insert(Op::Write { user, hpa });
        let stream = self.stream_of(cmem);
        let Peer { requester, queue, .. } = &mut self.peers[peer];
        tx.steer(*queue);
        if let Err(rejected) = requester.burst_write(stream, cmem, mask, data, token, now, tx) {
            self.core.ops.remove(token);
            return Err(self.rejected(peer, hpa, rejected));
        }
        if let Some(cache) = self.core.cache.as_mut().filter(|c| c.used() > 0) {
            for index in (0..span).filter(|i| mask >> i & 1 == 1) {
                if let Some(place) = cache.find((hpa + segment.offset(index)) / LINE_SIZE as u64) {
                    cache.set_state(place, State::Invalid);
                }
            }
        }
        self.core.counters.burst_writes += 1;
        self.sent(peer);
        Ok(Write::Sent)
    }

    /// Where the first `lines` lines of a segment are, all of them in one page of CMem; `None` where there is no route.
    fn route_burst(&mut self, segment: &Segment, lines: usize) -> Result<Option<(usize, u64)>, EngineError> {
        let hpa = segment.hpa;
        if !hpa.is_multiple_of(LINE_SIZE as u64) {
            return Err(EngineError::Unaligned(hpa));
        }
        let fits = self.routes.find(hpa).is_none_or(|route| segment.fits(&route.decoder));
        if !fits || lines == 0 || lines > segment.lines {
            return Err(EngineError::BadBurst(hpa));
        }
        let routed = self.route_open(hpa)?;
        // Routes, local memory and miss policies are of whole pages, so what does not leave its page has one answer throughout.
        if !burst_fits_page(routed.map_or(hpa, |(_, cmem)| cmem), lines - 1) {
            return Err(EngineError::BadBurst(hpa));
        }
        Ok(routed)
    }

    /// Sends what is newer here than at the memory node of these lines, ahead of a burst on the same stream.
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
                && cache.state(place) == State::Modified
            {
                self.write_back(place, now, tx)?;
            }
        }
        Ok(())
    }
}

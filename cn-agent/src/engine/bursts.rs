//! Bursts: stretches of lines within a page, read and written past the cache, in one frame each.
//!
//! The cache and a burst meet in the page's stream: what the cache has modified of the lines goes out first,
//! on the same stream, so that the burst finds it or replaces it. A burst write takes its lines out of the
//! cache; whoever reads them next asks the memory node, behind the burst. So a burst that fails with its
//! session leaves nothing behind that the memory node does not have.

use cxloe_wire::frame::{BURST_LINES_MAX, LINE_SIZE, burst_fits_page};
use cxloe_wire::link::Transmit;
use cxloe_wire::time::Time;

use super::completer::Op;
use super::{Engine, EngineError, page_and_mask, stream_of};
use crate::cache::State;

/// What stands before the lines of a burst: their number in a response, their mask in a request.
const BURST_READ_HEAD: usize = 1;
const BURST_WRITE_HEAD: usize = 8;

impl Engine {
    /// Most lines of a burst read at `hpa` in one frame; 0 without a session.
    pub fn burst_read_lines_max(&mut self, hpa: u64) -> usize {
        self.routes.find(hpa).map_or(0, |r| self.peers[r.peer].requester.burst_read_lines_max())
    }

    /// Most lines of a burst write at `hpa` in one frame; 0 without a session.
    pub fn burst_write_lines_max(&mut self, hpa: u64) -> usize {
        self.routes.find(hpa).map_or(0, |r| self.peers[r.peer].requester.burst_write_lines_max())
    }

    /// Reads `lines` lines from `hpa` on, past the cache but not missing what it has modified. The sink gets
    /// all of them in one call.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while another read of one of the lines is on its way or a window is full; all
    /// others say why there is nothing to read.
    pub fn burst_read(
        &mut self,
        hpa: u64,
        lines: usize,
        user: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), EngineError> {
        check_burst(hpa, lines)?;
        let (peer, cmem) = self.route(hpa)?;
        let (page, mask) = page_and_mask(hpa, lines);
        if self.core.inflight.overlaps(page, mask) || self.core.ops.is_full() {
            return Err(EngineError::Busy);
        }
        self.settle(peer, cmem, hpa, lines, now, tx)?;
        if self.core.ops.is_full() {
            return Err(EngineError::Busy);
        }
        self.may_send(peer, now)?;
        let token = self.core.ops.insert(Op::Read { user, hpa, lines: lines as u8, place: None });
        let requester = &mut self.peers[peer].requester;
        if let Err(rejected) = requester.burst_read(stream_of(cmem), cmem, lines as u8, token, now, tx) {
            self.core.ops.remove(token);
            return Err(self.rejected(peer, hpa, rejected));
        }
        self.core.inflight.start(page, mask);
        self.core.counters.burst_reads += 1;
        self.sent(peer, BURST_READ_HEAD + lines * LINE_SIZE);
        Ok(())
    }

    /// Writes the lines that `mask` names relative to `hpa`; `data` holds them in order.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while a read of one of the lines is on its way or a window is full; all others
    /// say why they cannot be written.
    pub fn burst_write(
        &mut self,
        hpa: u64,
        mask: u64,
        data: &[u8],
        user: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), EngineError> {
        let span = (u64::BITS - mask.leading_zeros()) as usize;
        check_burst(hpa, span)?;
        let (peer, cmem) = self.route(hpa)?;
        let (page, span_mask) = page_and_mask(hpa, span);
        if self.core.inflight.overlaps(page, span_mask) || self.core.ops.is_full() {
            return Err(EngineError::Busy);
        }
        self.settle(peer, cmem, hpa, span, now, tx)?;
        if self.core.ops.is_full() {
            return Err(EngineError::Busy);
        }
        self.may_send(peer, now)?;
        let token = self.core.ops.insert(Op::Write { user });
        let requester = &mut self.peers[peer].requester;
        if let Err(rejected) = requester.burst_write(stream_of(cmem), cmem, mask, data, token, now, tx) {
            self.core.ops.remove(token);
            return Err(self.rejected(peer, hpa, rejected));
        }
        if let Some(cache) = self.core.cache.as_mut().filter(|c| c.used() > 0) {
            for index in (0..span as u64).filter(|i| mask >> i & 1 == 1) {
                if let Some(place) = cache.find(hpa / LINE_SIZE as u64 + index) {
                    cache.set_state(place, State::Invalid);
                }
            }
        }
        self.core.counters.burst_writes += 1;
        self.sent(peer, BURST_WRITE_HEAD + data.len());
        Ok(())
    }

    /// Sends what is newer here than at the memory node of these lines, ahead of a burst on the same stream.
    fn settle(
        &mut self,
        peer: usize,
        cmem: u64,
        hpa: u64,
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
        for line in 0..lines as u64 {
            let Some(cache) = self.core.cache.as_ref().filter(|c| c.used() > 0) else { return Ok(()) };
            if let Some(place) = cache.find(hpa / LINE_SIZE as u64 + line)
                && cache.state(place) == State::Modified
            {
                self.write_back(place, now, tx)?;
            }
        }
        Ok(())
    }
}

fn check_burst(hpa: u64, lines: usize) -> Result<(), EngineError> {
    if !hpa.is_multiple_of(LINE_SIZE as u64) {
        return Err(EngineError::Unaligned(hpa));
    }
    if lines == 0 || lines > BURST_LINES_MAX || !burst_fits_page(hpa, lines - 1) {
        return Err(EngineError::BadBurst(hpa));
    }
    Ok(())
}

//! Line reads and writes: the cache first, then the memory node.
//!
//! A line that has no place in the cache, because every way of its set is being filled or holds what cannot
//! leave at this moment, goes past it: what one memory node does not take never holds up another's lines.

use cxloe_wire::Transmit;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::time::Time;

use super::completer::Op;
use super::{Engine, EngineError, Read, Write, page_and_mask, stream_of};
use crate::cache::{Line, Place, State};

impl Engine {
    /// The line at `hpa` if the cache has it: a read that needs neither the time nor a link.
    #[inline]
    pub fn read_cached(&mut self, hpa: u64) -> Option<&Line> {
        let cache = self.core.cache.as_mut()?;
        let place = cache.find(hpa / LINE_SIZE as u64)?;
        if !hpa.is_multiple_of(LINE_SIZE as u64) || cache.state(place) == State::Filling {
            return None;
        }
        self.core.counters.read_hits += 1;
        Some(cache.read(place))
    }

    /// Writes the line at `hpa` if the cache has a place for it already.
    #[inline]
    pub fn write_cached(&mut self, hpa: u64, data: &Line) -> bool {
        let Some(cache) = self.core.cache.as_mut() else { return false };
        let Some(place) = cache.find(hpa / LINE_SIZE as u64) else { return false };
        if !hpa.is_multiple_of(LINE_SIZE as u64) {
            return false;
        }
        // Also while it is being filled: the write came after the read, so what the fill brings goes to the
        // reader only.
        cache.write(place, data);
        self.core.counters.write_hits += 1;
        true
    }

    /// Reads the line at `hpa`.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while another read of the line is on its way or a window is full; all others say
    /// why there is nothing to read.
    #[inline]
    pub fn read(
        &mut self,
        hpa: u64,
        user: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Read, EngineError> {
        if let Some(line) = self.read_cached(hpa) {
            return Ok(Read::Hit(*line));
        }
        self.read_miss(hpa, user, now, tx)
    }

    fn read_miss(
        &mut self,
        hpa: u64,
        user: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Read, EngineError> {
        if !hpa.is_multiple_of(LINE_SIZE as u64) {
            return Err(EngineError::Unaligned(hpa));
        }
        let Some((peer, cmem)) = self.route_open(hpa)? else { return self.read_unrouted(hpa) };
        if let Some(data) = self.core.find_stranded(peer, cmem) {
            return Ok(Read::Hit(data));
        }
        let (page, mask) = page_and_mask(peer, cmem, 1);
        if self.core.inflight.overlaps(page, mask) || self.core.ops.is_full() {
            // Also where the cache is being filled with this line for somebody else.
            return Err(EngineError::Busy);
        }
        let line = hpa / LINE_SIZE as u64;
        let place = self.make_place(line, now, tx);
        self.may_send(peer, now)?;
        let token = self.core.ops.insert(Op::Read { user, hpa, page, mask, place });
        let requester = &mut self.peers[peer].requester;
        if let Err(rejected) = requester.read(stream_of(cmem), cmem, token, now, tx) {
            self.core.ops.remove(token);
            return Err(self.rejected(peer, hpa, rejected));
        }
        if let (Some(place), Some(cache)) = (place, &mut self.core.cache) {
            cache.assign(place, line, State::Filling);
        }
        self.core.inflight.start(page, mask);
        self.core.counters.read_misses += 1;
        self.sent(peer, LINE_SIZE);
        Ok(Read::Sent)
    }

    /// Writes the line at `hpa`.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while a read of the line is on its way or a window is full; all others say why
    /// it cannot be written.
    #[inline]
    pub fn write(
        &mut self,
        hpa: u64,
        data: &Line,
        user: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Write, EngineError> {
        if self.write_cached(hpa, data) {
            return Ok(Write::Done);
        }
        self.write_miss(hpa, data, user, now, tx)
    }

    fn write_miss(
        &mut self,
        hpa: u64,
        data: &Line,
        user: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Write, EngineError> {
        if !hpa.is_multiple_of(LINE_SIZE as u64) {
            return Err(EngineError::Unaligned(hpa));
        }
        let Some((peer, cmem)) = self.route_open(hpa)? else { return self.write_unrouted(hpa, data) };
        if self.core.rewrite_stranded(peer, cmem, data) {
            return Ok(Write::Done);
        }
        let line = hpa / LINE_SIZE as u64;
        if let Some(place) = self.make_place(line, now, tx)
            && let Some(cache) = &mut self.core.cache
        {
            // The paper's rule: straight into the cache, without a fetch, and done.
            cache.assign(place, line, State::Modified);
            cache.write(place, data);
            self.core.counters.write_misses += 1;
            return Ok(Write::Done);
        }
        self.send_write(peer, cmem, hpa, data, Op::Write { user, hpa }, now, tx)?;
        self.core.counters.write_misses += 1;
        Ok(Write::Sent)
    }

    /// A place for `line`, its victim written back; `None` where there is no cache, all ways are filling, or
    /// the victim cannot be written back now.
    #[inline]
    fn make_place(&mut self, line: u64, now: Time, tx: &mut dyn Transmit) -> Option<Place> {
        let cache = self.core.cache.as_ref()?;
        let place = cache.victim(line)?;
        if cache.state(place) == State::Modified {
            self.write_back(place, now, tx).ok()?;
        }
        Some(place)
    }
}

//! Line reads and writes: the cache first, then the memory node.
//!
//! A line bypasses the cache if every way of its set is being filled or holds a line that cannot be written back now.
//! So a memory node that accepts no requests never delays lines of another one.

use cxloe_wire::Transmit;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::time::Time;

use super::completer::Op;
use super::{Engine, EngineError, PeerSession, Read, RequestId, Write, page_and_mask};
use crate::cache::{Line, LineState, Lookup, WayIndex};

/// A cache miss found by [`Engine::read_here`] or [`Engine::write_here`], so that the operation can continue without a
/// second lookup.
#[derive(Clone, Copy, Debug)]
pub struct CacheMiss {
    hpa: u64,
    /// Way to use for the line; `None` if no way can be used.
    place: Option<WayIndex>,
    /// The cache's use counter at the time of the miss.
    tick: u64,
}

impl Engine {
    /// Returns the line at `hpa` if it is cached. Such a read sends no frame, so it needs no link and no present time.
    ///
    /// # Errors
    /// [`CacheMiss`], to be passed to [`read_missed`](Self::read_missed).
    #[inline]
    pub fn read_here(&mut self, hpa: u64) -> Result<&Line, CacheMiss> {
        let Some(cache) = self.core.cache.as_mut() else {
            return Err(CacheMiss { hpa, place: None, tick: 0 });
        };
        let tick = cache.tick();
        match cache.look_up(hpa / LINE_SIZE as u64) {
            Lookup::Here(place)
                if hpa.is_multiple_of(LINE_SIZE as u64) && cache.state(place) != LineState::Filling =>
            {
                self.core.counters.read_hits += 1;
                Ok(cache.read(place))
            }
            // A way is already being filled with this line, so this read gets no way of its own.
            Lookup::Here(_) => Err(CacheMiss { hpa, place: None, tick }),
            Lookup::Absent(place) => Err(CacheMiss { hpa, place, tick }),
        }
    }

    /// Writes the line at `hpa` if it has a way in the cache already.
    ///
    /// # Errors
    /// [`CacheMiss`], to be passed to [`write_missed`](Self::write_missed).
    #[inline]
    pub fn write_here(&mut self, hpa: u64, data: &Line) -> Result<(), CacheMiss> {
        let Some(cache) = self.core.cache.as_mut() else {
            return Err(CacheMiss { hpa, place: None, tick: 0 });
        };
        let tick = cache.tick();
        match cache.look_up(hpa / LINE_SIZE as u64) {
            Lookup::Here(place)
                if hpa.is_multiple_of(LINE_SIZE as u64)
                    && self.sealed.check(hpa, LINE_SIZE as u64).is_ok() =>
            {
                // The write is allowed while a read fills the way: the read began earlier, so its data goes to the
                // reader only.
                cache.write(place, data);
                self.core.counters.write_hits += 1;
                Ok(())
            }
            Lookup::Here(_) => Err(CacheMiss { hpa, place: None, tick }),
            Lookup::Absent(place) => Err(CacheMiss { hpa, place, tick }),
        }
    }

    /// Whether the cache is unchanged since the miss, so that the way found at the miss can still be used.
    #[inline]
    fn is_fresh(&self, missed: &CacheMiss) -> bool {
        self.core.cache.as_ref().is_none_or(|cache| cache.tick() == missed.tick)
    }

    /// Reads the line at `hpa`, from the cache if possible.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while another read of the line is in flight or a window is full. Any other error
    /// gives the reason why the line cannot be read.
    #[inline]
    pub fn read(
        &mut self,
        hpa: u64,
        id: RequestId,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Read, EngineError> {
        let missed = match self.read_here(hpa) {
            Ok(line) => return Ok(Read::Hit(*line)),
            Err(missed) => missed,
        };
        self.read_missed(missed, id, now, tx)
    }

    /// Reads a line after a cache miss. If the cache has changed since the miss, the line is looked up again.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn read_missed(
        &mut self,
        missed: CacheMiss,
        id: RequestId,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Read, EngineError> {
        let hpa = missed.hpa;
        if !self.is_fresh(&missed) {
            return self.read(hpa, id, now, tx);
        }
        if !hpa.is_multiple_of(LINE_SIZE as u64) {
            return Err(EngineError::Unaligned(hpa));
        }
        let Some((peer, cmem)) = self.route_open(hpa)? else { return self.read_unrouted(hpa) };
        // The session ended during a write-back of the line: the value kept here is newer than the memory node's.
        if let Some(data) = self.core.find_stranded(peer, cmem) {
            return Ok(Read::Hit(data));
        }
        let (page, mask) = page_and_mask(peer, cmem, 1);
        if self.core.inflight.overlaps(page, mask) || self.core.ops.is_full() {
            // A read of this line is in flight already, or there is no slot for another operation.
            return Err(EngineError::Busy);
        }
        self.check_written_back(hpa, 1)?;
        let line = hpa / LINE_SIZE as u64;
        let place = self.make_room(missed.place, now, tx);
        if self.core.mirrors.owes() {
            self.send_owed(now, tx)?;
        }
        self.may_send(peer, now)?;
        let token = self.core.ops.insert(Op::Read { id, hpa, page, mask, place });
        let stream = self.stream_of(cmem);
        let PeerSession { requester, queue, .. } = &mut self.peers[peer];
        tx.steer(*queue);
        if let Err(rejected) = requester.read(stream, cmem, token, now, tx) {
            self.core.ops.remove(token);
            return Err(self.rejected(peer, hpa, rejected));
        }
        if let (Some(place), Some(cache)) = (place, &mut self.core.cache) {
            cache.assign(place, line, LineState::Filling);
        }
        self.core.inflight.start(page, mask);
        self.core.counters.read_misses += 1;
        self.sent(peer);
        Ok(Read::Sent)
    }

    /// Writes the line at `hpa`, into the cache if possible.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while a read of the line is in flight or a window is full. Any other error gives
    /// the reason why the line cannot be written.
    #[inline]
    pub fn write(
        &mut self,
        hpa: u64,
        data: &Line,
        id: RequestId,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Write, EngineError> {
        match self.write_here(hpa, data) {
            Ok(()) => Ok(Write::Done),
            Err(missed) => self.write_missed(missed, data, id, now, tx),
        }
    }

    /// Writes a line after a cache miss. If the cache has changed since the miss, the line is looked up again.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn write_missed(
        &mut self,
        missed: CacheMiss,
        data: &Line,
        id: RequestId,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Write, EngineError> {
        let hpa = missed.hpa;
        if !self.is_fresh(&missed) {
            return self.write(hpa, data, id, now, tx);
        }
        if !hpa.is_multiple_of(LINE_SIZE as u64) {
            return Err(EngineError::Unaligned(hpa));
        }
        self.sealed.check(hpa, LINE_SIZE as u64)?;
        let Some((peer, cmem)) = self.route_open(hpa)? else { return self.write_unrouted(hpa, data) };
        if self.core.rewrite_stranded(peer, cmem, data) {
            return Ok(Write::Done);
        }
        let line = hpa / LINE_SIZE as u64;
        if let Some(place) = self.make_room(missed.place, now, tx)
            && let Some(cache) = &mut self.core.cache
        {
            // The paper's rule: a written line goes into the cache without a fetch, and the write is done.
            cache.assign(place, line, LineState::Modified);
            cache.write(place, data);
            self.core.counters.write_misses += 1;
            return Ok(Write::Done);
        }
        self.send_write(peer, cmem, hpa, data, Op::Write { id, hpa }, now, tx)?;
        self.core.counters.write_misses += 1;
        Ok(Write::Sent)
    }

    /// Writes back the content of `place` if it is modified, and returns `place`. Returns `None` if `place` is `None`,
    /// or if the content cannot be written back now.
    #[inline]
    fn make_room(&mut self, place: Option<WayIndex>, now: Time, tx: &mut dyn Transmit) -> Option<WayIndex> {
        let place = place?;
        if self.core.cache.as_ref()?.state(place) == LineState::Modified {
            self.write_back(place, now, tx).ok()?;
        }
        Some(place)
    }
}

//! Line reads and writes: the cache first, then the memory node.
//!
//! A line that has no place in the cache, because every way of its set is being filled or holds what cannot
//! leave at this moment, goes past it: what one memory node does not take never holds up another's lines.

use cxloe_wire::Transmit;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::time::Time;

use super::completer::Op;
use super::{Engine, EngineError, Peer, Read, Write, page_and_mask};
use crate::cache::{Line, Lookup, Place, State};

/// What a look into the cache found of a line that it does not have: made by [`Engine::read_here`] and
/// [`Engine::write_here`], so that whoever goes on with it looks no second time.
#[derive(Clone, Copy, Debug)]
pub struct Missed {
    /// The line.
    hpa: u64,
    /// The place that it should take.
    place: Option<Place>,
    /// When that was so, as the cache counts.
    tick: u64,
}

impl Engine {
    /// The line at `hpa` if the cache has it: a read that needs neither the time nor a link.
    ///
    /// # Errors
    /// [`Missed`], to go on with by [`read_missed`](Self::read_missed).
    #[inline]
    pub fn read_here(&mut self, hpa: u64) -> Result<&Line, Missed> {
        let Some(cache) = self.core.cache.as_mut() else { return Err(Missed { hpa, place: None, tick: 0 }) };
        let tick = cache.tick();
        match cache.look_up(hpa / LINE_SIZE as u64) {
            Lookup::Here(place)
                if hpa.is_multiple_of(LINE_SIZE as u64) && cache.state(place) != State::Filling =>
            {
                self.core.counters.read_hits += 1;
                Ok(cache.read(place))
            }
            // It has a place already, and is on its way.
            Lookup::Here(_) => Err(Missed { hpa, place: None, tick }),
            Lookup::Absent(place) => Err(Missed { hpa, place, tick }),
        }
    }

    /// The line at `hpa` if the cache has it.
    pub fn read_cached(&mut self, hpa: u64) -> Option<&Line> {
        self.read_here(hpa).ok()
    }

    /// Writes the line at `hpa` if the cache has a place for it already.
    ///
    /// # Errors
    /// [`Missed`], to go on with by [`write_missed`](Self::write_missed).
    #[inline]
    pub fn write_here(&mut self, hpa: u64, data: &Line) -> Result<(), Missed> {
        let Some(cache) = self.core.cache.as_mut() else { return Err(Missed { hpa, place: None, tick: 0 }) };
        let tick = cache.tick();
        match cache.look_up(hpa / LINE_SIZE as u64) {
            Lookup::Here(place) if hpa.is_multiple_of(LINE_SIZE as u64) => {
                // Also while it is being filled: the write came after the read, so what the fill brings goes to the
                // reader only.
                cache.write(place, data);
                self.core.counters.write_hits += 1;
                Ok(())
            }
            Lookup::Here(_) => Err(Missed { hpa, place: None, tick }),
            Lookup::Absent(place) => Err(Missed { hpa, place, tick }),
        }
    }

    /// Whether a line's place in the cache is still what was found.
    #[inline]
    fn is_fresh(&self, missed: &Missed) -> bool {
        self.core.cache.as_ref().is_none_or(|cache| cache.tick() == missed.tick)
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
        let missed = match self.read_here(hpa) {
            Ok(line) => return Ok(Read::Hit(*line)),
            Err(missed) => missed,
        };
        self.read_missed(missed, user, now, tx)
    }

    /// Reads a line that the cache did not have. If the cache has changed since, it is looked for again.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn read_missed(
        &mut self,
        missed: Missed,
        user: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Read, EngineError> {
        let hpa = missed.hpa;
        if !self.is_fresh(&missed) {
            return self.read(hpa, user, now, tx);
        }
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
        let place = self.make_room(missed.place, now, tx);
        self.may_send(peer, now)?;
        let token = self.core.ops.insert(Op::Read { user, hpa, page, mask, place });
        let stream = self.stream_of(cmem);
        let Peer { requester, queue, .. } = &mut self.peers[peer];
        tx.steer(*queue);
        if let Err(rejected) = requester.read(stream, cmem, token, now, tx) {
            self.core.ops.remove(token);
            return Err(self.rejected(peer, hpa, rejected));
        }
        if let (Some(place), Some(cache)) = (place, &mut self.core.cache) {
            cache.assign(place, line, State::Filling);
        }
        self.core.inflight.start(page, mask);
        self.core.counters.read_misses += 1;
        self.sent(peer);
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
        match self.write_here(hpa, data) {
            Ok(()) => Ok(Write::Done),
            Err(missed) => self.write_missed(missed, data, user, now, tx),
        }
    }

    /// Writes a line that the cache did not have. If the cache has changed since, it is looked for again.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn write_missed(
        &mut self,
        missed: Missed,
        data: &Line,
        user: u64,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<Write, EngineError> {
        let hpa = missed.hpa;
        if !self.is_fresh(&missed) {
            return self.write(hpa, data, user, now, tx);
        }
        if !hpa.is_multiple_of(LINE_SIZE as u64) {
            return Err(EngineError::Unaligned(hpa));
        }
        let Some((peer, cmem)) = self.route_open(hpa)? else { return self.write_unrouted(hpa, data) };
        if self.core.rewrite_stranded(peer, cmem, data) {
            return Ok(Write::Done);
        }
        let line = hpa / LINE_SIZE as u64;
        if let Some(place) = self.make_room(missed.place, now, tx)
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

    /// Writes back what is at the place that a line should take; `None` where there is no place, or what is there cannot
    /// be written back now.
    #[inline]
    fn make_room(&mut self, place: Option<Place>, now: Time, tx: &mut dyn Transmit) -> Option<Place> {
        let place = place?;
        if self.core.cache.as_ref()?.state(place) == State::Modified {
            self.write_back(place, now, tx).ok()?;
        }
        Some(place)
    }
}

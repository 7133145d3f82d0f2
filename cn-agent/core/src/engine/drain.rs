//! Closing a range of HPA: no new operation on it goes to a memory node, and what the cache has modified of it goes
//! back, while everything else goes on as ever. Afterwards its routes can be taken away without losing a write.
//!
//! ```text
//!   close: clean lines leave the cache, reads on their way fill it no more
//!     |
//!     v
//!   write_back_range, call by call: modified lines leave it, each as it is sent    -- reads, writes that miss: refused
//!     |
//!     v
//!   nothing modified, stranded or on its way to a memory node: done
//! ```
//!
//! Lines that are still modified go on being read and written in the cache: no line becomes modified anew, so that this
//! ends. Nothing here costs an operation on other addresses more than one comparison, and that only when it misses.

use alloc::vec::Vec;
use core::ops::Range;

use cxloe_wire::Transmit;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::time::Time;

use super::completer::Op;
use super::{Engine, EngineError};
use crate::cache::State;

/// Places of the cache looked at in one call: some microseconds' work.
const PLACES_PER_CALL: usize = 4096;

/// Why a range is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainReason {
    /// The manager has asked for it back: operations fail.
    Draining,
    /// Its content is about to be elsewhere: operations wait.
    Moving,
}

/// The closed ranges, few and seldom any.
#[derive(Debug, Default)]
pub(super) struct DrainingRanges {
    ranges: Vec<(Range<u64>, DrainReason)>,
    /// All addresses are.
    in_reset: bool,
}

impl DrainingRanges {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && !self.in_reset
    }

    /// Whether an operation at `hpa` may be made.
    #[cold]
    pub fn check(&self, hpa: u64) -> Result<(), EngineError> {
        if self.in_reset {
            return Err(EngineError::InReset(hpa));
        }
        match self.ranges.iter().find(|(range, _)| range.contains(&hpa)) {
            Some((_, DrainReason::Draining)) => Err(EngineError::Draining(hpa)),
            Some((_, DrainReason::Moving)) => Err(EngineError::Busy),
            None => Ok(()),
        }
    }
}

/// How far the modified lines of a closed range have gone back.
#[derive(Clone, Debug)]
pub struct WriteBackRange {
    range: Range<u64>,
    /// The place of the cache to look at next.
    at: usize,
    /// Why lines were passed over since the first place.
    passed_over: Option<EngineError>,
}

impl Engine {
    /// Closes a range, or changes why it is closed, and begins to write it back.
    pub fn begin_drain(&mut self, range: Range<u64>, why: DrainReason) -> WriteBackRange {
        self.end_drain(range.start);
        self.draining.ranges.push((range.clone(), why));
        self.clear(&range);
        for op in self.core.ops.iter_mut() {
            match op {
                Op::Read { hpa, place, .. } if range.contains(hpa) => *place = None,
                _ => {}
            }
        }
        WriteBackRange { range, at: 0, passed_over: None }
    }

    /// Opens the range that begins at `start` again, if it is closed.
    pub fn end_drain(&mut self, start: u64) {
        self.draining.ranges.retain(|(range, _)| range.start != start);
    }

    /// Whether this compute node is held in reset: all addresses are closed then.
    pub fn set_in_reset(&mut self, in_reset: bool) {
        self.draining.in_reset = in_reset;
    }

    /// Goes on writing back, as far as windows allow and some microseconds reach. `true` once nothing of the range is
    /// modified, and all that was sent of it, writes of programs included, has been answered; after `false`, poll and
    /// call again. Lines whose memory node has lost its content are given up.
    ///
    /// # Errors
    /// What keeps lines here at present, most likely [`EngineError::NotConnected`]; call again as after `false`.
    pub fn write_back_range(
        &mut self,
        work: &mut WriteBackRange,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<bool, EngineError> {
        self.send_stranded(now, tx);
        let places = self.core.cache.as_ref().map(|cache| cache.places_from(work.at));
        for (count, place) in places.into_iter().flatten().enumerate() {
            if count == PLACES_PER_CALL {
                work.at += count;
                return Ok(false);
            }
            let modified = self.core.cache.as_ref().is_some_and(|cache| {
                cache.state(place) == State::Modified
                    && work.range.contains(&(cache.line(place) * LINE_SIZE as u64))
            });
            if !modified {
                continue;
            }
            match self.write_back(place, now, tx) {
                Err(error @ (EngineError::Busy | EngineError::NotConnected(_))) => {
                    let known = work.passed_over.filter(|known| *known != EngineError::Busy);
                    work.passed_over = known.or(Some(error));
                }
                // Sent, or nowhere to send it to any more.
                Ok(()) | Err(_) => {
                    if let Some(cache) = &mut self.core.cache {
                        cache.set_state(place, State::Invalid);
                    }
                }
            }
        }
        work.at = 0;
        match work.passed_over.take() {
            Some(EngineError::Busy) => Ok(false),
            Some(error) => Err(error),
            None if self.clear(&work.range) => self.is_quiet(&work.range),
            None => Ok(false),
        }
    }

    /// Whether the cache has nothing of `range` that is modified; it has nothing else of it either, from here on. A
    /// flush or an eviction that did not come about may have left a line there that was written again since.
    fn clear(&mut self, range: &Range<u64>) -> bool {
        let Some(cache) = &mut self.core.cache else { return true };
        let mut clear = true;
        for place in cache.places() {
            let state = cache.state(place);
            if state != State::Invalid && range.contains(&(cache.line(place) * LINE_SIZE as u64)) {
                match state {
                    State::Modified => clear = false,
                    _ => cache.set_state(place, State::Invalid),
                }
            }
        }
        clear
    }

    /// Whether nothing of `range` is on its way to a memory node or waits for one.
    fn is_quiet(&mut self, range: &Range<u64>) -> Result<bool, EngineError> {
        let stranded = self.core.stranded.iter().find(|(_, line)| range.contains(&line.hpa));
        if let Some(((peer, _), _)) = stranded {
            return match self.not_now(*peer) {
                EngineError::Busy => Ok(false),
                error => Err(error),
            };
        }
        let mut ops = self.core.ops.iter_mut();
        Ok(!ops.any(|op| match op {
            Op::WriteBack { hpa, .. } | Op::Write { hpa, .. } => range.contains(hpa),
            Op::Read { .. } | Op::Nothing => false,
        }))
    }
}

//! Closing a range of HPA. No new operation on the range goes to a memory node, and the dirty lines of the
//! range are written back, while operations on all other addresses continue. Afterwards the routes of the
//! range can be removed without losing a write.
//!
//! ```text
//!   close: clean lines are dropped from the cache, and reads in flight no longer fill it
//!     |
//!     v
//!   write_back_range, repeated: a modified line leaves the cache when sent; misses are refused
//!     |
//!     v
//!   done: no line is modified, stranded or in flight to a memory node
//! ```
//!
//! Lines that are still modified can be read and written in the cache. No further line becomes modified, so
//! the drain ends. Operations on other addresses cost one comparison more, and only on a miss.

use alloc::vec::Vec;
use core::ops::Range;

use cxloe_wire::Transmit;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::time::Time;

use super::completer::Op;
use super::{Engine, EngineError};
use crate::cache::LineState;

/// Maximum number of ways of the cache examined in one call, which takes some microseconds.
const PLACES_PER_CALL: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainReason {
    /// The manager reclaims the region: operations fail.
    Draining,
    /// The region moves, or is being copied, and comes back at the same addresses: operations are to be retried.
    Moving,
}

/// The closed ranges, usually none.
#[derive(Debug, Default)]
pub(super) struct DrainingRanges {
    ranges: Vec<(Range<u64>, DrainReason)>,
    /// Whether this compute node is suspended, which closes all addresses.
    in_reset: bool,
}

impl DrainingRanges {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && !self.in_reset
    }

    /// Checks that no drain or reset forbids an operation at `hpa`.
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

/// Progress of writing back a closed range.
#[derive(Clone, Debug)]
pub struct WriteBackRange {
    range: Range<u64>,
    /// Index of the next way of the cache to be examined.
    at: usize,
    /// Reason why lines were skipped in this pass over the cache, if any were.
    passed_over: Option<EngineError>,
}

impl Engine {
    /// Closes a range, or changes the reason, and begins to write it back.
    pub fn begin_drain(&mut self, range: Range<u64>, why: DrainReason) -> WriteBackRange {
        self.end_drain(range.start);
        self.draining.ranges.push((range.clone(), why));
        self.clear(&range);
        for op in self.core.ops.iter_mut() {
            match op {
                // The data of a read in flight goes to the reader only, so that no line of the closed range enters the
                // cache.
                Op::Read { hpa, place, .. } if range.contains(hpa) => *place = None,
                _ => {}
            }
        }
        WriteBackRange { range, at: 0, passed_over: None }
    }

    /// Reopens the range that begins at `start`, if it is closed.
    pub fn end_drain(&mut self, start: u64) {
        self.draining.ranges.retain(|(range, _)| range.start != start);
    }

    /// Changes the reason of the closed range that begins at `start` to [`DrainReason::Draining`].
    pub fn refuse_drained(&mut self, start: u64) {
        if let Some((_, why)) = self.draining.ranges.iter_mut().find(|(range, _)| range.start == start) {
            *why = DrainReason::Draining;
        }
    }

    /// Sets whether this compute node is suspended: all addresses are closed then.
    pub fn set_in_reset(&mut self, in_reset: bool) {
        self.draining.in_reset = in_reset;
    }

    /// Continues writing back, as far as the windows (limits of requests in flight) permit and for some microseconds.
    /// Returns `true` when no line of the range is modified and all requests sent for the range, including programs'
    /// writes, are answered; after `false`, poll and call again. Lines whose memory node has lost its content are
    /// dropped.
    ///
    /// # Errors
    /// The reason why lines cannot be written back now, most likely [`EngineError::NotConnected`]. Call again, as after
    /// `false`.
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
                cache.state(place) == LineState::Modified
                    && work.range.contains(&(cache.line(place) * LINE_SIZE as u64))
            });
            if !modified {
                continue;
            }
            match self.write_back(place, now, tx) {
                Err(error @ (EngineError::Busy | EngineError::NotConnected(_))) => {
                    // A missing session takes precedence as the reason: a full window becomes free by itself.
                    let known = work.passed_over.filter(|known| *known != EngineError::Busy);
                    work.passed_over = known.or(Some(error));
                }
                // The line was sent, or its memory node has lost the content.
                Ok(()) | Err(_) => {
                    if let Some(cache) = &mut self.core.cache {
                        cache.set_state(place, LineState::Invalid);
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

    /// Removes the clean lines of `range` from the cache; returns whether no modified line is left. A modified line is
    /// left if its flush or eviction failed and the line was then written again.
    fn clear(&mut self, range: &Range<u64>) -> bool {
        let Some(cache) = &mut self.core.cache else { return true };
        let mut clear = true;
        for place in cache.places() {
            let state = cache.state(place);
            if state != LineState::Invalid && range.contains(&(cache.line(place) * LINE_SIZE as u64)) {
                match state {
                    LineState::Modified => clear = false,
                    _ => cache.set_state(place, LineState::Invalid),
                }
            }
        }
        clear
    }

    /// Whether no write to `range` is in flight, and no line of it is stranded (waits for its memory node after a
    /// failed write-back).
    fn is_quiet(&mut self, range: &Range<u64>) -> Result<bool, EngineError> {
        let stranded = self.core.stranded.iter().find(|(_, line)| range.contains(&line.hpa));
        if let Some(((peer, _), _)) = stranded {
            return match self.not_now(*peer) {
                EngineError::Busy => Ok(false),
                error => Err(error),
            };
        }
        if self.core.any_pair(|hpa| range.contains(&hpa)) {
            return Ok(false);
        }
        let mut ops = self.core.ops.iter_mut();
        Ok(!ops.any(|op| match op {
            Op::WriteBack { hpa, .. } | Op::Write { hpa, .. } => range.contains(hpa),
            Op::Read { .. } | Op::Side { .. } | Op::Fill { .. } | Op::Nothing => false,
        }))
    }
}

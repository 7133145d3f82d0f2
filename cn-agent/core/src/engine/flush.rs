//! A flush that blocks no other operation: all lines that were dirty at its start reach the memory nodes, while writes
//! continue.
//!
//! The flush goes through the cache once and sends the dirty lines, then waits for every write-back made so far.
//! Write-backs made after that belong to another epoch, for which the flush does not wait. Two epochs alternate: an
//! epoch begins again only when all write-backs of its last use have been answered.

use cxloe_wire::Transmit;
use cxloe_wire::time::Time;

use super::{Core, Engine, EngineError};
use crate::cache::LineState;

/// Maximum number of ways of the cache examined in one call, which takes some microseconds.
const PLACES_PER_CALL: usize = 4096;

/// A flush in progress. An engine has at most one.
#[derive(Clone, Debug, Default)]
pub struct Flush {
    /// Index of the next way of the cache to be examined.
    at: usize,
    /// Epoch whose write-backs the flush waits for; `None` until all dirty lines have been sent.
    sealed: Option<bool>,
    /// Error of lines that could not be written back, if any.
    failed: Option<EngineError>,
}

impl Engine {
    /// Continues a flush, as far as the windows (limits of requests in flight) permit and for some microseconds.
    /// Returns `true` when every line that was dirty at the start of the flush has been acknowledged; after `false`,
    /// poll and call again.
    ///
    /// # Errors
    /// [`EngineError::NotConnected`] when only lines of a silent memory node are still to be written back.
    pub fn flush_on(
        &mut self,
        flush: &mut Flush,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<bool, EngineError> {
        self.send_stranded(now, tx);
        if flush.sealed.is_none() && self.send_modified(flush, now, tx) {
            flush.sealed = self.core.next_epoch();
        }
        let Some(sealed) = flush.sealed else { return Ok(false) };
        if self.core.write_backs[usize::from(sealed)] > 0 {
            return Ok(false);
        }
        let stuck = self.core.stranded.keys().map(|(peer, _)| *peer).next();
        match stuck.map(|peer| self.not_now(peer)) {
            // Stranded lines (those of a failed write-back) are sent again in the present epoch, so the flush has to
            // wait for that epoch too.
            Some(EngineError::Busy) => {
                flush.sealed = None;
                return Ok(false);
            }
            error => flush.failed = flush.failed.or(error),
        }
        match flush.failed {
            Some(error) => {
                self.core.counters.failures += 1;
                Err(error)
            }
            None => Ok(true),
        }
    }

    /// Sends dirty lines, way by way; returns whether all ways have been examined.
    fn send_modified(&mut self, flush: &mut Flush, now: Time, tx: &mut dyn Transmit) -> bool {
        let places = self.core.cache.as_ref().map(|cache| cache.places_from(flush.at));
        for place in places.into_iter().flatten().take(PLACES_PER_CALL) {
            if self.core.cache.as_ref().is_some_and(|cache| cache.state(place) == LineState::Modified) {
                match self.write_back(place, now, tx) {
                    Ok(()) => {}
                    Err(EngineError::Busy) => return false,
                    Err(error) => flush.failed = flush.failed.or(Some(error)),
                }
            }
            flush.at += 1;
        }
        self.core.cache.as_ref().is_none_or(|cache| cache.places_from(flush.at).next().is_none())
    }
}

impl Core {
    /// Begins the next epoch of write-backs, unless write-backs of its last use are still in flight. Returns the
    /// epoch that ends.
    fn next_epoch(&mut self) -> Option<bool> {
        let ended = self.epoch;
        let free = self.write_backs[usize::from(!ended)] == 0;
        self.epoch ^= free;
        free.then_some(ended)
    }
}

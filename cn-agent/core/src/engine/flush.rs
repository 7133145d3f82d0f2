//! A flush that holds up nobody: what was modified when it began reaches the memory nodes, whatever is written meanwhile.
//!
//! It goes through the cache once and sends what it finds modified, then waits for every write-back made so far. Those
//! made later, for lines that others have written since, belong to another epoch and are not waited for. There are two
//! epochs, taken by turns: before the second time of one begins, all write-backs of its first have been answered.

use cxloe_wire::Transmit;
use cxloe_wire::time::Time;

use super::{Core, Engine, EngineError};
use crate::cache::State;

/// Places of the cache looked at in one call: some microseconds' work.
const PLACES_PER_CALL: usize = 4096;

/// A flush under way. One at a time.
#[derive(Clone, Debug, Default)]
pub struct Flush {
    /// The place of the cache to look at next.
    at: usize,
    /// The epoch whose write-backs it waits for, once it has sent its own.
    sealed: Option<bool>,
    /// What could not be written back.
    failed: Option<EngineError>,
}

impl Engine {
    /// Goes on with a flush, as far as windows allow and some microseconds reach. `true` once everything that was
    /// modified when it began has been acknowledged; after `false`, poll and call again.
    ///
    /// # Errors
    /// [`EngineError::NotConnected`] once everything that can be written back has been, and the rest waits for a memory
    /// node that does not answer.
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
            // They are sent in the present epoch.
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

    /// Sends what is modified, place by place; whether all places have been looked at.
    fn send_modified(&mut self, flush: &mut Flush, now: Time, tx: &mut dyn Transmit) -> bool {
        let places = self.core.cache.as_ref().map(|cache| cache.places_from(flush.at));
        for place in places.into_iter().flatten().take(PLACES_PER_CALL) {
            if self.core.cache.as_ref().is_some_and(|cache| cache.state(place) == State::Modified) {
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
    /// Begins the next epoch of write-backs, unless some of its last time are still on their way. Returns the one that
    /// ends.
    fn next_epoch(&mut self) -> Option<bool> {
        let ended = self.epoch;
        let free = self.write_backs[usize::from(!ended)] == 0;
        self.epoch ^= free;
        free.then_some(ended)
    }
}

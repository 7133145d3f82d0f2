//! Path of modified lines to their memory node.
//!
//! ```text
//!   cache: Modified --write_back--> retry buffer --acknowledged--> done
//!                                     |      ^
//!                        session dies v      | session opens
//!                                     stranded
//! ```
//!
//! A modified line was acknowledged to its writer, so it outlives the session. If the session dies, the line
//! is *stranded*: it answers reads, and later writes replace it. Only the last value of a stranded line is
//! kept. That value is sent before any other operation on the line; the stream keeps their order.

use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

use cxloe_wire::Transmit;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::machine::Deadline;
use cxloe_wire::time::Time;

use super::completer::Op;
use super::{Core, Engine, EngineError, PeerSession, page_and_mask};
use crate::cache::{Line, LineCache, LineState, WayIndex};

/// Pause before stranded lines for which there was no room are sent again.
const STRANDED_RETRY_INTERVAL: Duration = Duration::from_micros(100);

/// A modified line whose write-back failed because its session died.
pub(super) struct FailedWriteBack {
    pub hpa: u64,
    pub data: Line,
    /// Serial number of the write-back, or of the write that has replaced its data since.
    pub serial: u64,
}

impl Engine {
    /// Number of dirty lines that wait for their memory node to return.
    pub fn stranded(&self) -> usize {
        self.core.stranded.len()
    }

    /// Writes dirty lines back, as far as the windows (limits of requests in flight) permit. Returns `true` when
    /// nothing is dirty and every write-back has been acknowledged; after `false`, poll and call again.
    ///
    /// # Errors
    /// [`EngineError::NotConnected`] when only lines of a silent memory node are still to be written back.
    pub fn flush(&mut self, now: Time, tx: &mut dyn Transmit) -> Result<bool, EngineError> {
        self.send_stranded(now, tx);
        let mut busy = false;
        let mut failed = None;
        let stuck: Option<usize> = self.core.stranded.keys().map(|(peer, _)| *peer).next();
        if let Some(peer) = stuck {
            match self.not_now(peer) {
                EngineError::Busy => busy = true,
                error => failed = Some(error),
            }
        }
        let places = self.core.cache.as_ref().map(LineCache::places);
        for place in places.into_iter().flatten() {
            if self.core.cache.as_ref().is_some_and(|c| c.state(place) == LineState::Modified) {
                match self.write_back(place, now, tx) {
                    Ok(()) => {}
                    Err(EngineError::Busy) => busy = true,
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        match failed {
            _ if busy || self.core.write_backs != [0; 2] => Ok(false),
            Some(error) => {
                self.core.counters.failures += 1;
                Err(error)
            }
            None => Ok(true),
        }
    }

    /// Sends the modified line at `place`. The session keeps the line in its retry buffer until the memory node
    /// acknowledges it. In the cache, the line's state becomes exclusive.
    pub(super) fn write_back(
        &mut self,
        place: WayIndex,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), EngineError> {
        let Some(cache) = &self.core.cache else { return Ok(()) };
        let hpa = cache.line(place) * LINE_SIZE as u64;
        let data = *cache.peek(place);
        let (peer, cmem) = self.route(hpa)?.ok_or(EngineError::Unmapped(hpa))?;
        // An older stranded value is replaced, so that it is never sent after this one.
        if !self.core.rewrite_stranded(peer, cmem, &data) {
            if !self.peers[peer].requester.is_open() {
                return Err(self.not_now(peer));
            }
            let (epoch, serial) = (self.core.epoch, self.core.next_serial());
            let op = Op::WriteBack { peer, cmem, hpa, epoch, serial };
            self.send_write(peer, cmem, hpa, &data, op, now, tx)?;
            self.core.write_backs[usize::from(epoch)] += 1;
            self.core.counters.write_backs += 1;
        }
        if let Some(cache) = &mut self.core.cache {
            cache.set_state(place, LineState::Exclusive);
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one request")]
    pub(super) fn send_write(
        &mut self,
        peer: usize,
        cmem: u64,
        hpa: u64,
        data: &Line,
        op: Op,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), EngineError> {
        let (page, mask) = page_and_mask(peer, cmem, 1);
        if let Some(at) = self.mirror_at(hpa) {
            if self.core.inflight.overlaps(page, mask) {
                return Err(EngineError::Busy);
            }
            return self.send_mirrored(at, 1, data, op, now, tx);
        }
        if self.core.inflight.overlaps(page, mask) || self.core.ops.is_full() {
            return Err(EngineError::Busy);
        }
        self.may_send(peer, now)?;
        let token = self.core.ops.insert(op);
        let stream = self.stream_of(cmem);
        let PeerSession { requester, queue, .. } = &mut self.peers[peer];
        tx.steer(*queue);
        if let Err(rejected) = requester.write(stream, cmem, data, token, now, tx) {
            self.core.ops.remove(token);
            return Err(self.rejected(peer, hpa, rejected));
        }
        self.sent(peer);
        Ok(())
    }

    /// Sends stranded lines of dead sessions to memory nodes that have returned. Lines for which there is no room are
    /// retried soon.
    #[cold]
    pub(super) fn send_stranded(&mut self, now: Time, tx: &mut dyn Transmit) {
        for peer in 0..self.peers.len() {
            if !self.peers[peer].requester.is_open() {
                continue;
            }
            let addresses: Vec<u64> =
                self.core.stranded.range((peer, 0)..=(peer, u64::MAX)).map(|((_, cmem), _)| *cmem).collect();
            for cmem in addresses {
                let Some(line) = self.core.stranded.remove(&(peer, cmem)) else {
                    continue;
                };
                let FailedWriteBack { hpa, data, serial } = line;
                let epoch = self.core.epoch;
                let op = Op::WriteBack { peer, cmem, hpa, epoch, serial };
                if self.send_write(peer, cmem, hpa, &data, op, now, tx).is_ok() {
                    self.core.write_backs[usize::from(epoch)] += 1;
                } else {
                    self.core.stranded.insert((peer, cmem), line);
                    let again = now + STRANDED_RETRY_INTERVAL;
                    self.deadline.keep_earlier(Deadline::new(again, "dirty lines without room"));
                }
            }
        }
    }
}

impl Core {
    /// Serial number of the next write-back, or of the next write to a stranded line.
    pub fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Keeps a line until its memory node returns. If several write-backs of one line fail, the last value is kept: writes
    /// to a mirror may fail in another order than that in which they were made.
    pub fn keep_failed_write(&mut self, peer: usize, cmem: u64, line: FailedWriteBack) {
        let known = self.stranded.get(&(peer, cmem));
        if known.is_none_or(|known| known.serial < line.serial) {
            self.stranded.insert((peer, cmem), line);
        }
    }

    /// Returns the value of a stranded line; `None` if the line is not stranded.
    #[inline]
    pub fn find_stranded(&self, peer: usize, cmem: u64) -> Option<Line> {
        if self.stranded.is_empty() {
            return None;
        }
        self.stranded.get(&(peer, cmem)).map(|s| s.data)
    }

    /// Moves the stranded lines of a leg (a copy on a memory node) to the leg that replaces it: `place` returns the
    /// session and the CMem address there of an offset in the leg.
    #[cold]
    pub fn move_stranded(
        &mut self,
        peers: Range<usize>,
        cmem: u64,
        bytes: u64,
        place: impl Fn(u64) -> (usize, u64),
    ) {
        let is_of = |(peer, at): &(usize, u64)| peers.contains(peer) && at.wrapping_sub(cmem) < bytes;
        let keys: Vec<(usize, u64)> = self.stranded.keys().filter(|key| is_of(key)).copied().collect();
        for key in keys {
            if let Some(line) = self.stranded.remove(&key) {
                let (peer, at) = place(key.1 - cmem);
                self.keep_failed_write(peer, at, line);
            }
        }
    }

    /// Replaces the value of a stranded line; `false` if the line is not stranded.
    #[inline]
    pub fn rewrite_stranded(&mut self, peer: usize, cmem: u64, data: &Line) -> bool {
        if self.stranded.is_empty() {
            return false;
        }
        let serial = self.serial + 1;
        let Some(line) = self.stranded.get_mut(&(peer, cmem)) else { return false };
        (line.data, line.serial) = (*data, serial);
        self.serial = serial;
        true
    }

    /// Whether any of `lines` lines from `cmem` on is stranded.
    #[inline]
    pub fn is_stranded(&self, peer: usize, cmem: u64, lines: usize) -> bool {
        let end = cmem + (lines * LINE_SIZE) as u64;
        !self.stranded.is_empty() && self.stranded.range((peer, cmem)..(peer, end)).next().is_some()
    }
}

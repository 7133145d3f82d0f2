//! Writes to both legs of a mirror, and reads that are sent again to the other leg.
//!
//! A write is accepted for both memory nodes or for neither. If the transmit ring then has room for only one
//! of the two frames, the other one is *owed*: it is sent before any other write to a mirror, and before any read, which
//! could otherwise overtake it on the leg to read from.

use alloc::boxed::Box;
use alloc::vec::Vec;

use cxloe_wire::Transmit;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::machine::Deadline;
use cxloe_wire::session::{OpError, Rejected};
use cxloe_wire::time::Time;

use super::super::completer::{Op, outlives};
use super::super::write_back::FailedWriteBack;
use super::super::{Core, Engine, EngineError, EngineEvent, PeerSession, RequestId, Sink, page_and_mask};
use super::{MirrorAt, Mirrors};
use crate::cache::Line;

/// Reason of the deadline of an owed request.
const OWED: &str = "room for the second copy of a write";
/// Maximum number of writes to mirrors in flight.
const PAIRS_MAX: usize = 4096;

/// A write to both legs, in flight.
#[derive(Clone, Copy, Debug)]
struct Pair {
    /// Write or write-back that ends once both legs have acknowledged it.
    origin: Op,
    mirror: u16,
    offset: u64,
    /// Legs that the write was sent to and that have not left the mirror since, one bit each.
    sent: u8,
    /// Legs that the write waits for, one bit each.
    left: u8,
    /// Legs on which the write has failed, one bit each; a subset of `left`.
    failed: u8,
    /// Legs on which it would fail again, one bit each; a subset of `failed`.
    refused: u8,
    error: EngineError,
    /// Time of the first failure.
    since: Time,
    /// Content of a write-back that has failed on a leg.
    line: Option<Line>,
}

impl Pair {
    /// Whether the line of a write-back has failed on one of the legs that `sides` selects, one bit each.
    fn lacks_line(&self, sides: u8) -> bool {
        self.failed & sides != 0 && matches!(self.origin, Op::WriteBack { .. })
    }
}

#[derive(Default)]
pub(super) struct Pairs {
    slots: Vec<Option<Pair>>,
    free: Vec<u16>,
    /// Write-backs that have failed on a leg and wait for the manager's decision; may list some that have ended.
    failed_lines: Vec<u16>,
}

impl Pairs {
    /// Makes room for the maximum number of mirrored writes; to be called before the first such write.
    pub fn reserve(&mut self) {
        if self.slots.is_empty() {
            self.slots.resize(PAIRS_MAX, None);
            self.failed_lines.reserve(PAIRS_MAX);
            self.free = (0..PAIRS_MAX as u16).rev().collect();
        }
    }

    pub fn has_any(&self) -> bool {
        self.free.len() < self.slots.len()
    }

    /// Whether a write in flight refers to this mirror, or to a former one of the number.
    pub fn refer_to(&self, mirror: u16) -> bool {
        self.slots.iter().flatten().any(|pair| pair.mirror == mirror)
    }

    /// Whether a write-back of one of `lines` lines from `at` on has failed on one of the legs that `sides` selects,
    /// and waits for the manager's decision.
    #[inline]
    fn lack(&self, at: MirrorAt, lines: usize, sides: u8) -> bool {
        let range = at.offset..at.offset + (lines * LINE_SIZE) as u64;
        self.failed_lines.iter().any(|number| {
            self.slots[usize::from(*number)].as_ref().is_some_and(|pair| {
                pair.lacks_line(sides) && pair.mirror == at.number && range.contains(&pair.offset)
            })
        })
    }

    fn get_mut(&mut self, pair: u16) -> Option<&mut Pair> {
        self.slots.get_mut(usize::from(pair))?.as_mut()
    }

    fn insert(&mut self, pair: Pair) -> Option<u16> {
        let number = self.free.pop()?;
        self.slots[usize::from(number)] = Some(pair);
        Some(number)
    }

    fn take(&mut self, number: u16) -> Option<Pair> {
        let pair = self.slots.get_mut(usize::from(number))?.take()?;
        self.free.push(number);
        Some(pair)
    }
}

/// Second request of a mirrored write, for which the transmit ring had no room.
pub(super) struct Owed {
    pair: u16,
    side: u8,
    /// Index of the session.
    peer: usize,
    cmem: u64,
    mask: u64,
    data: Box<[u8]>,
}

/// A read that a leg did not answer or refused, to be sent again.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrphanedRead {
    id: RequestId,
    hpa: u64,
    lines: u8,
    /// Index of the session that did not answer, or refused.
    peer: usize,
    error: EngineError,
    since: Time,
}

impl Engine {
    /// Returns the mirror of the line at `hpa`; `None` if the line is not mirrored.
    #[inline]
    pub(in super::super) fn mirror_at(&mut self, hpa: u64) -> Option<MirrorAt> {
        if self.core.mirrors.is_empty() {
            return None;
        }
        let location = self.routes.locate(hpa);
        let target = self.routes.target(&location)?;
        Some(MirrorAt { number: target.mirror?, offset: location.cmem - target.cmem })
    }

    /// Checks that the leg to read from has acknowledged all write-backs of `lines` lines from `hpa` on, whose writers
    /// have received their acknowledgement already.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while a write-back that has failed there waits for the manager's decision.
    #[inline]
    pub(in super::super) fn check_written_back(&mut self, hpa: u64, lines: usize) -> Result<(), EngineError> {
        if self.core.mirrors.pairs.failed_lines.is_empty() {
            return Ok(());
        }
        let Some(at) = self.mirror_at(hpa) else { return Ok(()) };
        let reads = self.core.mirrors.get(at.number).map_or(0, |mirror| mirror.reads);
        if self.core.mirrors.pairs.lack(at, lines, 1 << reads) { Err(EngineError::Busy) } else { Ok(()) }
    }

    /// Sends a write of the lines that `mask` selects to the legs of a mirror. `origin` ends once all legs
    /// have acknowledged the write.
    ///
    /// # Errors
    /// As for any write; [`EngineError::Busy`] also while the page is being copied to the other leg, and while an
    /// earlier write-back of one of the lines waits for the manager's decision: it may be sent again.
    #[allow(clippy::too_many_arguments, reason = "the parts of one request")]
    pub(in super::super) fn send_mirrored(
        &mut self,
        at: MirrorAt,
        mask: u64,
        data: &[u8],
        origin: Op,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), EngineError> {
        if self.core.mirrors.owes() {
            self.send_owed(now, tx)?;
        }
        let page = at.offset >> 12;
        if self.core.mirrors.pairs.lack(at, (u64::BITS - mask.leading_zeros()) as usize, 0b11) {
            return Err(EngineError::Busy);
        }
        let Some(mirror) = self.core.mirrors.get_mut(at.number) else { return Err(EngineError::Busy) };
        let written = [0, 1].map(|side| mirror.legs[side].is_written(page));
        if written != [true; 2] {
            if written == [false; 2] {
                let mac = self.peers[mirror.legs[mirror.reads].peer].mac;
                return Err(EngineError::NotConnected(mac));
            }
            // The leg to which this write is not sent misses the page from now on.
            let missing = usize::from(written[0]);
            mirror.legs[missing].missed.insert(page);
        }
        if self.core.mirrors.fill.locks(at.number, page) || self.core.ops.free() < 2 {
            return Err(EngineError::Busy);
        }
        let mut way = [(0, 0); 2];
        for side in (0..2).filter(|side| written[*side]) {
            let Some(mirror) = self.core.mirrors.get(at.number) else { return Err(EngineError::Busy) };
            let cmem = mirror.legs[side].cmem + at.offset;
            let peer = self.session_of(mirror.legs[side].peer, cmem);
            let stream = self.stream_of(cmem);
            way[side] = (peer, cmem);
            if !self.peers[peer].requester.has_room_to_write(stream) {
                // Without a session the leg cannot be written, so the manager has to decide about it.
                if !self.peers[peer].requester.is_open() {
                    self.core.mirrors.leg_fails(at.number, side, now);
                }
                return Err(self.not_now(peer));
            }
            self.may_send(peer, now)?;
        }
        let left = u8::from(written[0]) | u8::from(written[1]) << 1;
        let error = EngineError::Busy;
        let pair = Pair {
            origin,
            mirror: at.number,
            offset: at.offset,
            sent: left,
            left,
            failed: 0,
            refused: 0,
            error,
            since: now,
            line: None,
        };
        let Some(number) = self.core.mirrors.pairs.insert(pair) else { return Err(EngineError::Busy) };
        let mut sent = false;
        for side in (0..2).filter(|side| written[*side]) {
            let (peer, cmem) = way[side];
            match self.send_side(number, side as u8, peer, cmem, mask, data, now, tx) {
                Ok(()) => sent = true,
                Err(_) if sent => {
                    // The write was already sent to the first leg, so this request must be sent before any
                    // other write, and before any read.
                    let (side, data) = (side as u8, data.into());
                    self.core.mirrors.owed = Some(Owed { pair: number, side, peer, cmem, mask, data });
                    self.core.mirrors.pending = true;
                    self.deadline.keep_earlier(Deadline::new(now, OWED));
                }
                Err(error) => {
                    self.core.mirrors.pairs.take(number);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one request")]
    fn send_side(
        &mut self,
        pair: u16,
        side: u8,
        peer: usize,
        cmem: u64,
        mask: u64,
        data: &[u8],
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), EngineError> {
        let token = self.core.ops.insert(Op::Side { pair, side });
        let stream = self.stream_of(cmem);
        let PeerSession { requester, queue, .. } = &mut self.peers[peer];
        tx.steer(*queue);
        let sent = match data.first_chunk::<LINE_SIZE>().filter(|_| mask == 1 && data.len() == LINE_SIZE) {
            Some(line) => requester.write(stream, cmem, line, token, now, tx),
            None => requester.burst_write(stream, cmem, mask, data, token, now, tx),
        };
        if let Err(rejected) = sent {
            self.core.ops.remove(token);
            return Err(match rejected {
                Rejected::Busy => EngineError::Busy,
                _ => EngineError::NotConnected(self.peers[peer].mac),
            });
        }
        self.sent(peer);
        Ok(())
    }

    /// Sends the owed request of a write, if there is one.
    ///
    /// # Errors
    /// [`EngineError::Busy`] if there is still no room for the request.
    #[cold]
    pub(in super::super) fn send_owed(
        &mut self,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), EngineError> {
        let Some(owed) = self.core.mirrors.owed.take() else { return Ok(()) };
        // The leg may have been removed meanwhile, so that the write does not wait for it any more.
        let waits =
            self.core.mirrors.pairs.get_mut(owed.pair).is_some_and(|pair| pair.left >> owed.side & 1 == 1);
        if !waits {
            return Ok(());
        }
        match self.send_side(owed.pair, owed.side, owed.peer, owed.cmem, owed.mask, &owed.data, now, tx) {
            Ok(()) => Ok(()),
            Err(EngineError::Busy) => {
                (self.core.mirrors.owed, self.core.mirrors.pending) = (Some(owed), true);
                self.deadline.keep_earlier(Deadline::new(now, OWED));
                Err(EngineError::Busy)
            }
            Err(error) => {
                self.core.side_failed(owed.pair, owed.side, error, &owed.data, now);
                Ok(())
            }
        }
    }

    /// Sends reads that a leg did not answer to the leg from which the mirror is read now.
    pub(super) fn send_orphans(&mut self, now: Time, tx: &mut dyn Transmit, sink: &mut dyn Sink) {
        let mut at = 0;
        while let Some(orphan) = self.core.mirrors.orphans.get(at).copied() {
            let OrphanedRead { id, hpa, peer, error, since, .. } = orphan;
            let mirror = self.mirror_at(hpa);
            // A read is sent again if its leg was removed meanwhile, even when only one leg is left: the
            // removed leg may be unmapped already, so its refusal is not an answer.
            let answered = mirror.is_none() && error != EngineError::Busy && !self.has_left(hpa, peer);
            let sent = if answered { Err(error) } else { self.send_orphan(mirror, &orphan, now, tx) };
            let is_late = now - since > self.peers[peer].requester.timing().dead_after;
            match sent {
                Ok(()) => {
                    self.core.mirrors.orphans.swap_remove(at);
                }
                Err(lost @ EngineError::DataLost(_)) => {
                    self.core.mirrors.orphans.swap_remove(at);
                    sink.failed(id, lost);
                }
                Err(_) if answered || is_late => {
                    self.core.mirrors.orphans.swap_remove(at);
                    let silent = EngineError::NotConnected(self.peers[peer].mac);
                    sink.failed(id, if error == EngineError::Busy { silent } else { error });
                }
                Err(_) => at += 1,
            }
        }
    }

    /// Whether the line at `hpa` is no longer on the memory node of session `peer`.
    fn has_left(&mut self, hpa: u64, peer: usize) -> bool {
        let location = self.routes.locate(hpa);
        let target = self.routes.target(&location);
        target.is_some_and(|target| self.peers[target.peer].mac != self.peers[peer].mac)
    }

    /// Sends a read to the leg from which the mirror is read now. If that leg has refused this read, or has no session,
    /// the leg counts as failing instead, and the manager decides about it.
    fn send_orphan(
        &mut self,
        mirror: Option<MirrorAt>,
        orphan: &OrphanedRead,
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), EngineError> {
        let OrphanedRead { id, hpa, lines, peer: former, error, .. } = *orphan;
        let location = self.routes.locate(hpa);
        let target = *self.routes.target(&location).ok_or(EngineError::Unmapped(hpa))?;
        let (first, cmem) = (target.peer, location.cmem);
        let peer = self.session_of(first, cmem);
        if target.is_lost(self.peers[first].incarnation) {
            let Some(at) = mirror.filter(|at| self.core.mirrors.has_content(at.number)) else {
                return Err(EngineError::DataLost(self.peers[first].mac));
            };
            // The other leg has the content, but the manager has not yet made it the leg to read from.
            self.core.mirrors.read_leg_fails(at.number, false, now);
            return Err(EngineError::Busy);
        }
        let refused =
            matches!(error, EngineError::Failed { error: OpError::Fault(_) | OpError::DataLost, .. });
        if let Some(at) = mirror.filter(|_| peer == former)
            && (refused || !self.peers[peer].requester.is_open())
        {
            self.core.mirrors.read_leg_fails(at.number, refused, now);
            return Err(EngineError::Busy);
        }
        let (page, mask) = page_and_mask(peer, cmem, lines.into());
        self.check_written_back(hpa, lines.into())?;
        let busy = self.core.mirrors.owes() || self.core.inflight.overlaps(page, mask);
        if busy || self.core.ops.is_full() {
            return Err(EngineError::Busy);
        }
        self.may_send(peer, now)?;
        let token = self.core.ops.insert(Op::Read { id, hpa, page, mask, place: None });
        let stream = self.stream_of(cmem);
        let PeerSession { requester, queue, .. } = &mut self.peers[peer];
        tx.steer(*queue);
        let sent = match lines {
            1 => requester.read(stream, cmem, token, now, tx),
            lines => requester.burst_read(stream, cmem, lines, token, now, tx),
        };
        if sent.is_err() {
            self.core.ops.remove(token);
            return Err(EngineError::Busy);
        }
        self.core.inflight.start(page, mask);
        self.sent(peer);
        Ok(())
    }

    /// Ends writes that no longer wait for a leg. Fails writes that wait for a failed leg about which the manager has
    /// not decided within a session's time-out.
    pub(super) fn end_pairs(&mut self, now: Time, sink: &mut dyn Sink) {
        self.core.mirrors.ended = false;
        self.core.mirrors.pairs.failed_lines.clear();
        let Some(limit) = self.peers.first().map(|peer| peer.requester.timing().dead_after) else { return };
        for number in 0..self.core.mirrors.pairs.slots.len() as u16 {
            let Some(pair) = self.core.mirrors.pairs.get_mut(number) else { continue };
            let pair = *pair;
            if pair.left == 0 {
                self.core.finish_pair(number, sink);
                continue;
            }
            // If only one leg has failed, the manager's decision may still complete the write.
            let decided = pair.failed != 0 && pair.left == pair.failed;
            let gone = self.core.mirrors.get(pair.mirror).is_none();
            if decided
                && (pair.failed == 3 || gone || now - pair.since > limit)
                && let Some(pair) = self.core.mirrors.pairs.take(number)
            {
                let place = self.present_place(&pair.origin);
                self.core.give_up(pair, place, sink);
            } else if pair.lacks_line(0b11) {
                self.core.mirrors.pairs.failed_lines.push(number);
            }
        }
    }

    /// Session and CMem address at which the line of a write-back belongs now: the leg that the write-back was made for
    /// may have left. `None` for other operations, and for a line without a route.
    fn present_place(&mut self, origin: &Op) -> Option<(usize, u64)> {
        let Op::WriteBack { hpa, .. } = *origin else { return None };
        let location = self.routes.locate(hpa);
        let first = self.routes.target(&location)?.peer;
        Some((self.session_of(first, location.cmem), location.cmem))
    }
}

impl Core {
    /// Records that a leg has acknowledged the write; with the last leg, the write ends.
    #[inline]
    pub(in super::super) fn side_written(&mut self, number: u16, side: u8, sink: &mut dyn Sink) {
        let Some(pair) = self.mirrors.pairs.get_mut(number) else { return };
        pair.left &= !(1 << side);
        if pair.left == 0 {
            self.finish_pair(number, sink);
        } else if pair.left == pair.failed {
            self.mirrors.pending = true;
        }
    }

    fn finish_pair(&mut self, number: u16, sink: &mut dyn Sink) {
        let Some(pair) = self.mirrors.pairs.take(number) else { return };
        match pair.origin {
            Op::Write { id, .. } => sink.written(id),
            Op::WriteBack { epoch, .. } => self.write_backs[usize::from(epoch)] -= 1,
            _ => {}
        }
    }

    /// Records that the write has failed on a leg. The manager then decides whether the leg becomes stale.
    #[cold]
    pub(in super::super) fn side_failed(
        &mut self,
        number: u16,
        side: u8,
        error: EngineError,
        data: &[u8],
        now: Time,
    ) {
        let Some(pair) = self.mirrors.pairs.get_mut(number) else { return };
        if pair.left >> side & 1 == 0 {
            return;
        }
        if let Some(mirror) = self.mirrors.list.get_mut(usize::from(pair.mirror)).and_then(Option::as_mut)
            && !mirror.legs[usize::from(side)].must_have()
        {
            // The leg is being filled, and a write does not wait for it: its page is copied again.
            mirror.legs[usize::from(side)].missed.insert(pair.offset >> 12);
            pair.sent &= !(1 << side);
            pair.left &= !(1 << side);
            (self.mirrors.ended, self.mirrors.pending) = (true, true);
            return;
        }
        let is_first = pair.failed == 0;
        if is_first {
            pair.since = now;
        }
        pair.failed |= 1 << side;
        pair.refused |= u8::from(!outlives(&error)) << side;
        pair.error = error;
        if matches!(pair.origin, Op::WriteBack { .. }) {
            pair.line = data.first_chunk::<LINE_SIZE>().copied().or(pair.line);
        }
        let (mirror, lacks_line) = (pair.mirror, pair.lacks_line(0b11));
        if is_first && lacks_line {
            self.mirrors.pairs.failed_lines.push(number);
        }
        self.mirrors.pending = true;
        self.mirrors.leg_fails(mirror, usize::from(side), now);
        if let Some(mirror) = self.mirrors.get_mut(mirror) {
            mirror.legs[usize::from(side)].missed_write = mirror.legs[usize::from(side)].must_have();
        }
    }

    /// Fails the owed request of a mirror that is removed with its route, because its memory may soon belong to another
    /// region.
    pub(super) fn drop_owed(&mut self, mirror: u16) {
        let Mirrors { owed, pairs, pending, .. } = &mut self.mirrors;
        let Some(Owed { pair, side, .. }) = *owed else { return };
        if let Some(pair) = pairs.get_mut(pair).filter(|pair| pair.mirror == mirror) {
            pair.failed |= pair.left & 1 << side;
            if let Op::Write { hpa, .. } = pair.origin {
                pair.error = EngineError::Unmapped(hpa);
            }
            (*owed, *pending) = (None, true);
        }
    }

    /// Keeps a failed read, to be sent again to the other leg.
    #[cold]
    pub(in super::super) fn read_failed(
        &mut self,
        id: RequestId,
        hpa: u64,
        page: u64,
        mask: u64,
        error: EngineError,
        now: Time,
    ) {
        let (peer, lines) = ((page >> 36) as usize, mask.count_ones() as u8);
        self.mirrors.orphans.push(OrphanedRead { id, hpa, lines, peer, error, since: now });
        self.mirrors.pending = true;
    }

    /// Fails a write that has reached at most one leg; the other one misses its page, even if the manager decides about
    /// it later. The line of a write-back is kept for its `place`, because its writer has already received the
    /// acknowledgement, unless no leg will ever take it.
    fn give_up(&mut self, pair: Pair, place: Option<(usize, u64)>, sink: &mut dyn Sink) {
        self.counters.failures += 1;
        if let Some(mirror) = self.mirrors.get_mut(pair.mirror) {
            for side in (0..2).filter(|side| pair.failed >> side & 1 == 1) {
                mirror.miss(side, pair.offset >> 12);
            }
        }
        match pair.origin {
            Op::Write { id, .. } => sink.failed(id, pair.error),
            Op::WriteBack { hpa, epoch, serial, .. } => {
                self.write_backs[usize::from(epoch)] -= 1;
                if pair.refused == pair.sent {
                    self.event(EngineEvent::WriteBackRefused { hpa, error: pair.error });
                } else if let (Some(data), Some((peer, cmem))) = (pair.line, place) {
                    self.keep_failed_write(peer, cmem, FailedWriteBack { hpa, data, serial });
                }
            }
            _ => {}
        }
    }

    /// Lets all writes complete without a leg; the leg misses their pages from now on.
    pub(super) fn abandon_side(&mut self, mirror: u16, side: usize) {
        for number in 0..self.mirrors.pairs.slots.len() as u16 {
            let Some(pair) = self.mirrors.pairs.get_mut(number) else { continue };
            if pair.mirror != mirror || pair.left >> side & 1 == 0 {
                continue;
            }
            pair.sent &= !(1 << side);
            pair.left &= !(1 << side);
            pair.failed &= !(1 << side);
            pair.refused &= !(1 << side);
            let (left, page) = (pair.left, pair.offset >> 12);
            if let Some(mirror) = self.mirrors.get_mut(mirror) {
                mirror.legs[side].missed.insert(page);
            }
            self.mirrors.ended |= left == 0;
        }
        let Core { ops, mirrors, .. } = self;
        for op in ops.iter_mut() {
            if let Op::Side { pair, side } = *op
                && mirrors.pairs.get_mut(pair).is_none_or(|pair| pair.left >> side & 1 == 0)
            {
                *op = Op::Nothing;
            }
        }
    }

    /// Takes over the reads in flight to a leg, to be sent to the mirror's other leg; later answers to them are
    /// ignored.
    pub(super) fn orphan_reads(&mut self, peers: core::ops::Range<usize>, cmem: u64, bytes: u64, now: Time) {
        let mut taken = Vec::new();
        for op in self.ops.iter_mut() {
            if let Op::Read { id, hpa, page, mask, place } = *op
                && peers.contains(&((page >> 36) as usize))
                && ((page & ((1 << 36) - 1)) << 12).wrapping_sub(cmem) < bytes
            {
                *op = Op::Nothing;
                taken.push((id, hpa, page, mask, place));
            }
        }
        for (id, hpa, page, mask, place) in taken {
            self.inflight.finish(page, mask);
            self.end_filling(place);
            let error = EngineError::Busy;
            self.read_failed(id, hpa, page, mask, error, now);
        }
    }

    /// Takes write-backs to a removed route out of the counts that flushes wait for; the legs' answers are
    /// ignored.
    pub(in super::super) fn forget_pairs(&mut self, covers: impl Fn(u64) -> bool) {
        let Core { mirrors, write_backs, .. } = self;
        for pair in mirrors.pairs.slots.iter_mut().flatten() {
            if let Op::WriteBack { hpa, epoch, .. } = pair.origin
                && covers(hpa)
            {
                pair.origin = Op::Nothing;
                write_backs[usize::from(epoch)] -= 1;
            }
        }
    }

    /// Whether a mirrored write to an address that `covers` selects is in flight.
    pub(in super::super) fn any_pair(&self, covers: impl Fn(u64) -> bool) -> bool {
        self.mirrors.pairs.slots.iter().flatten().any(|pair| match pair.origin {
            Op::WriteBack { hpa, .. } | Op::Write { hpa, .. } => covers(hpa),
            _ => false,
        })
    }
}

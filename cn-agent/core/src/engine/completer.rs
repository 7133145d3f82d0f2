//! Completion of requests: the operations in flight, and what follows from their success or failure.

use alloc::vec;
use alloc::vec::Vec;
use cxloe_wire::frame::{LINE_SIZE, Mac, PfcVector};
use cxloe_wire::session::{Completions, OpError};
use cxloe_wire::time::Time;

use super::pacing::pauses;
use super::{Core, EngineError, EngineEvent, FailedWriteBack, RequestId, Sink};
use crate::cache::{LineState, WayIndex};

#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    /// A read at `hpa`, of a line or a burst. A line fills the way `place`; `page` and `mask` give the lines
    /// in CMem.
    Read { id: RequestId, hpa: u64, page: u64, mask: u64, place: Option<WayIndex> },
    /// A write of a line or a burst, at `hpa`.
    Write { id: RequestId, hpa: u64 },
    /// A write-back of a modified line; `epoch` selects the counter that a flush waits for, and `serial` orders the
    /// write-backs of one line.
    WriteBack { peer: usize, cmem: u64, hpa: u64, epoch: bool, serial: u64 },
    /// One of the two requests of a write to mirrored memory: `side` selects the memory node, `pair` identifies the
    /// write.
    Side { pair: u16, side: u8 },
    /// A request that copies a page to the memory node of a stale copy: `lines` lines from line `first` of the page on.
    Fill { copy: u8, first: u8, lines: u8 },
    /// A free slot, or a write-back whose region was removed.
    Nothing,
}

/// Operations in flight, by token.
pub(super) struct Ops {
    slots: Vec<Op>,
    free: Vec<u32>,
    /// By token: whether the operation is [marked](Ops::mark) and has not ended.
    marked: Vec<bool>,
    marks: usize,
}

impl Ops {
    pub fn new(count: usize) -> Ops {
        let (slots, free) = (vec![Op::Nothing; count], (0..count as u32).rev().collect());
        Ops { slots, free, marked: vec![false; count], marks: 0 }
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Stores `op` and returns its token; the caller has checked that there is room.
    #[inline]
    pub fn insert(&mut self, op: Op) -> u64 {
        let index = self.free.pop().expect("is_full was asked");
        self.slots[index as usize] = op;
        u64::from(index)
    }

    #[inline]
    pub fn remove(&mut self, token: u64) -> Op {
        self.free.push(token as u32);
        if self.marks > 0 && core::mem::take(&mut self.marked[token as usize]) {
            self.marks -= 1;
        }
        core::mem::replace(&mut self.slots[token as usize], Op::Nothing)
    }

    /// All slots, including free ones.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Op> {
        self.slots.iter_mut()
    }

    #[inline]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Marks the operations that are in flight now; earlier marks are removed. [`marks`](Ops::marks) counts the marked
    /// operations that have not ended.
    #[cold]
    pub fn mark(&mut self) {
        self.marked.fill(true);
        self.free.iter().for_each(|free| self.marked[*free as usize] = false);
        self.marks = self.used();
    }

    pub fn marks(&self) -> usize {
        self.marks
    }
}

/// Whether a write that failed with this error may succeed when it is sent again.
pub(super) fn outlives(error: &EngineError) -> bool {
    match error {
        EngineError::Failed { error, .. } => matches!(error, OpError::SessionDead | OpError::FrameTooLarge),
        _ => true,
    }
}

/// Applies the completions of one requester.
pub(super) struct Completer<'a> {
    pub core: &'a mut Core,
    pub mac: Mac,
    pub now: Time,
    pub sink: &'a mut dyn Sink,
}

impl Core {
    /// Frees the way that is reserved for the line of a failed read.
    #[cold]
    pub fn end_filling(&mut self, place: Option<WayIndex>) {
        if let (Some(place), Some(cache)) = (place, &mut self.cache)
            && cache.state(place) == LineState::Filling
        {
            cache.set_state(place, LineState::Invalid);
        }
    }
}

impl Completions for Completer<'_> {
    #[inline]
    fn read(&mut self, token: u64, data: &[u8]) {
        let (id, page, mask, place) = match self.core.ops.remove(token) {
            Op::Read { id, page, mask, place, .. } => (id, page, mask, place),
            Op::Fill { copy, first, .. } => return self.core.copy_read(copy, first, data),
            _ => return,
        };
        self.core.inflight.finish(page, mask);
        if let (Some(place), Some(cache)) = (place, &mut self.core.cache)
            && cache.state(place) == LineState::Filling
            && let Some(line) = data.first_chunk::<LINE_SIZE>()
        {
            cache.put(place, line, LineState::Exclusive);
        }
        self.sink.read(id, data);
    }

    #[inline]
    fn written(&mut self, token: u64) {
        match self.core.ops.remove(token) {
            Op::Write { id, .. } => self.sink.written(id),
            Op::WriteBack { epoch, .. } => self.core.write_backs[usize::from(epoch)] -= 1,
            Op::Side { pair, side } => self.core.side_written(pair, side, self.sink),
            Op::Fill { copy, lines, .. } => self.core.copy_written(copy, lines, self.now),
            Op::Read { .. } | Op::Nothing => {}
        }
    }

    #[cold]
    fn congested(&mut self, vector: &PfcVector) {
        self.core.congested |= self.core.class.is_some_and(|class| pauses(vector, class));
    }

    #[cold]
    fn failed(&mut self, token: u64, error: OpError, data: &[u8]) {
        let failed = EngineError::Failed { mac: self.mac, error };
        self.core.counters.failures += 1;
        match self.core.ops.remove(token) {
            Op::Read { id, hpa, page, mask, place } => {
                self.core.inflight.finish(page, mask);
                self.core.end_filling(place);
                if self.core.mirrors.is_empty() {
                    self.sink.failed(id, failed);
                } else {
                    self.core.read_failed(id, hpa, page, mask, failed, self.now);
                }
            }
            Op::Side { pair, side } => self.core.side_failed(pair, side, failed, data, self.now),
            Op::Fill { copy, .. } => self.core.copy_failed(copy),
            Op::Write { id, .. } => self.sink.failed(id, failed),
            Op::Nothing => {}
            Op::WriteBack { peer, cmem, hpa, epoch, serial } => {
                self.core.write_backs[usize::from(epoch)] -= 1;
                // The write that made the line dirty was already acknowledged to its writer, so the line must survive
                // the end of the session.
                match data.first_chunk::<LINE_SIZE>() {
                    Some(data) if outlives(&failed) => {
                        self.core.keep_failed_write(peer, cmem, FailedWriteBack { hpa, data: *data, serial })
                    }
                    _ => self.core.event(EngineEvent::WriteBackRefused { hpa, error: failed }),
                }
            }
        }
    }
}

//! From a request's answer to the operation that caused it: what is on its way, and what its end changes.

use alloc::vec;
use alloc::vec::Vec;
use cxloe_wire::frame::{LINE_SIZE, Mac, PfcVector};
use cxloe_wire::session::{Completions, OpError};

use super::pacing::pauses;
use super::{Core, EngineError, EngineEvent, Sink, Stranded};
use crate::cache::{Place, State};

/// An operation on its way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    /// A line (`place`: where it goes in the cache) or a burst, at `hpa`; lines of a page of CMem.
    Read { user: u64, hpa: u64, page: u64, mask: u64, place: Option<Place> },
    /// A line or a burst, at `hpa`.
    Write { user: u64, hpa: u64 },
    /// A modified line of the cache; flushes wait by `epoch`.
    WriteBack { peer: usize, cmem: u64, hpa: u64, epoch: bool },
    /// A free slot, or a write-back whose region is gone.
    Nothing,
}

/// Operations on their way, by token.
pub(super) struct Ops {
    slots: Vec<Op>,
    free: Vec<u32>,
    /// Those that were there when they were marked, and have not ended.
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

    /// Keeps `op`; the caller has checked that there is room.
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

    /// All slots, free ones included.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Op> {
        self.slots.iter_mut()
    }

    pub fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Marks all that are there.
    #[cold]
    pub fn mark(&mut self) {
        self.marked.fill(true);
        self.free.iter().for_each(|free| self.marked[*free as usize] = false);
        self.marks = self.used();
    }

    /// How many of those marked have not ended.
    pub fn marks(&self) -> usize {
        self.marks
    }
}

/// Applies the completions of one requester.
pub(super) struct Completer<'a> {
    pub core: &'a mut Core,
    pub mac: Mac,
    pub sink: &'a mut dyn Sink,
}

impl Completions for Completer<'_> {
    #[inline]
    fn read(&mut self, token: u64, data: &[u8]) {
        let Op::Read { user, page, mask, place, .. } = self.core.ops.remove(token) else { return };
        self.core.inflight.finish(page, mask);
        if let (Some(place), Some(cache)) = (place, &mut self.core.cache)
            && cache.state(place) == State::Filling
            && let Some(line) = data.first_chunk::<LINE_SIZE>()
        {
            cache.put(place, line, State::Exclusive);
        }
        self.sink.read(user, data);
    }

    #[inline]
    fn written(&mut self, token: u64) {
        match self.core.ops.remove(token) {
            Op::Write { user, .. } => self.sink.written(user),
            Op::WriteBack { epoch, .. } => self.core.write_backs[usize::from(epoch)] -= 1,
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
            Op::Read { user, page, mask, place, .. } => {
                self.core.inflight.finish(page, mask);
                if let (Some(place), Some(cache)) = (place, &mut self.core.cache)
                    && cache.state(place) == State::Filling
                {
                    cache.set_state(place, State::Invalid);
                }
                self.sink.failed(user, failed);
            }
            Op::Write { user, .. } => self.sink.failed(user, failed),
            Op::Nothing => {}
            Op::WriteBack { peer, cmem, hpa, epoch } => {
                self.core.write_backs[usize::from(epoch)] -= 1;
                // Acknowledged to whoever wrote it, so it must not be lost with the session.
                let survives = matches!(error, OpError::SessionDead | OpError::FrameTooLarge);
                match data.first_chunk::<LINE_SIZE>() {
                    Some(data) if survives => self.core.strand(peer, cmem, Stranded { hpa, data: *data }),
                    _ => self.core.event(EngineEvent::WriteBackRefused { hpa, error: failed }),
                }
            }
        }
    }
}

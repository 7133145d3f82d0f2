//! The requests in progress of one client, without I/O: many at once, each cut into *parts*. A part is one operation of
//! the agent's port.
//!
//! ```text
//!   begin --> queue --cut, a run of blocks each--> filling --> ready --next--> the port
//!             (in order)                           (writes: payload)             |
//!                                                                resting <--failed, ended
//!                                                                                |
//!   client <-- Output <-- answers, data straight from the blocks <---------------+
//! ```
//!
//! Data lies in the port's data area, whose blocks are taken when a part is cut and freed when its data has been sent
//! or written, so that no client uses more than the area. A read that must be answered in one chunk and is longer than
//! a part *holds* its blocks until it is complete; one longer than half of the area is *staged* in memory of this
//! process. Blocks are taken in the order of requests, and a request that holds some never waits for a later one.
//!
//! A part that fails for a reason that may be temporary *rests*, and is then retried, until its request has waited long
//! enough. A retry is safe because the request was not answered: reads change nothing, and a write done twice leaves
//! the same result.

mod held_data;
mod part;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use cxloe_wire::frame::LINE_SIZE;

use held_data::HELD_MAX;
use part::{DataHandling, LINE, PartState, RequestPart, Slot};
pub use part::{PortOrder, RetryLimit};

use super::blocks::{BLOCK, Blocks, RUN_MAX, Run};
use super::conversation::{ExportCommand, ExportRequest, LENGTH_MAX};
use super::output::Output;
use super::wire::Errno;
use cxloe_client::memory::SharedMemory;
use cxloe_client::ring::{ENTRIES, Lines, Operation};

/// Maximum number of a client's requests in progress.
const REQUESTS_MAX: usize = 128;
/// Maximum number of a client's parts: the operations that a port takes.
const PARTS_MAX: usize = ENTRIES;
/// Maximum number of bytes of answers, not counting data, that wait for a client to read them; with more, no
/// further request is read from the client.
const WAITING_MAX: usize = 64 << 10;
/// Maximum number of bytes staged for reads that must be answered in one chunk.
const STAGED_MAX: usize = LENGTH_MAX as usize;
/// Number of bytes zeroed by one part, a multiple of the page size.
const ZERO_PART: u64 = 1 << 20;
/// Maximum number of bytes that one request reads ahead; the rest of a longer request is ignored.
const READ_AHEAD_MAX: u32 = LENGTH_MAX;
/// Pause before a failed part is retried.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// All requests in progress of one client. See the [module](self).
#[derive(Debug)]
pub struct Requests {
    slots: Vec<Option<Slot>>,
    free: Vec<u16>,
    /// Requests that are not completely cut into parts.
    queue: VecDeque<u16>,
    parts: Vec<Option<RequestPart>>,
    free_parts: Vec<u16>,
    blocks: Blocks,
    /// Parts whose payload is expected, in order; `filled` is the number of bytes received for the first of them.
    filling: VecDeque<u16>,
    filled: usize,
    ready: VecDeque<u16>,
    resting: VecDeque<(Instant, u16)>,
    given: usize,
    given_bytes: u64,
    staged: usize,
}

impl Default for Requests {
    fn default() -> Requests {
        Requests {
            slots: (0..REQUESTS_MAX).map(|_| None).collect(),
            free: (0..REQUESTS_MAX as u16).rev().collect(),
            queue: VecDeque::with_capacity(REQUESTS_MAX),
            parts: vec![None; PARTS_MAX],
            free_parts: (0..PARTS_MAX as u16).rev().collect(),
            blocks: Blocks::default(),
            filling: VecDeque::with_capacity(PARTS_MAX),
            filled: 0,
            ready: VecDeque::with_capacity(PARTS_MAX),
            resting: VecDeque::with_capacity(PARTS_MAX),
            given: 0,
            given_bytes: 0,
            staged: 0,
        }
    }
}

impl Requests {
    /// Whether another request may begin.
    pub fn has_room(&self, output: &Output) -> bool {
        !self.free.is_empty() && output.waiting() < WAITING_MAX
    }

    /// Whether no request is in progress.
    pub fn is_empty(&self) -> bool {
        self.free.len() == REQUESTS_MAX
    }

    /// Number of operations in flight at the port.
    pub fn given(&self) -> usize {
        self.given
    }

    /// Sum of the lengths in bytes of the operations in flight.
    pub fn given_bytes(&self) -> u64 {
        self.given_bytes
    }

    /// Whether a part waits to be submitted.
    pub fn is_waiting(&self) -> bool {
        !self.ready.is_empty() || !self.resting.is_empty()
    }

    /// Time of the next retry of a failed part; `None` if no part rests.
    pub fn due(&self) -> Option<Instant> {
        self.resting.front().map(|(at, _)| *at)
    }

    /// Offsets in the data area of the blocks in use.
    pub fn used_blocks(&self) -> impl Iterator<Item = usize> + use<> {
        self.blocks.used()
    }

    /// Begins a request. Requires [room](Self::has_room).
    pub fn begin(&mut self, request: ExportRequest, output: &mut Output) {
        let ExportRequest { cookie, command } = request;
        let (way, offset, length) = match command {
            ExportCommand::Read { length: 0, .. } => return output.nothing(cookie),
            ExportCommand::Read { offset, length, whole } => {
                let one = offset % LINE + u64::from(length) <= BLOCK as u64;
                let piecemeal = one || (output.is_structured() && !whole);
                let way = match () {
                    () if piecemeal => DataHandling::Read,
                    () if u64::from(length) <= HELD_MAX => DataHandling::HeldRead,
                    () => DataHandling::StagedRead,
                };
                (way, offset, length)
            }
            ExportCommand::Write { length: 0, .. }
            | ExportCommand::WriteZeroes { length: 0, .. }
            | ExportCommand::Cache { length: 0, .. } => return output.done(cookie),
            ExportCommand::Write { offset, length } => (DataHandling::Write, offset, length),
            ExportCommand::WriteZeroes { offset, length } => (DataHandling::Zero, offset, length),
            ExportCommand::Cache { offset, length } => {
                (DataHandling::ReadAhead, offset, length.min(READ_AHEAD_MAX))
            }
            ExportCommand::BlockStatus { length } => return output.allocated(cookie, length),
            // Nothing to do for a flush, because each write had reached its memory node when it was answered, nor for a
            // trim, because a part of a region cannot be given back.
            ExportCommand::Flush | ExportCommand::Trim { .. } => return output.done(cookie),
        };
        let Some(at) = self.free.pop() else { return };
        self.slots[usize::from(at)] = Some(Slot {
            cookie,
            way,
            offset,
            length: length.into(),
            cut: 0,
            parts: 0,
            staged: Vec::new(),
            failed: None,
            until: None,
            mute: false,
        });
        self.queue.push_back(at);
    }

    /// Cuts requests into parts, as far as there are free blocks.
    pub fn cut(&mut self, output: &mut Output) {
        while let Some(at) = self.queue.front().copied() {
            let Some(slot) = &mut self.slots[usize::from(at)] else { return };
            // No further part of a failed request is cut, except for a write, whose payload still has to be received.
            if slot.failed.is_some() && slot.way != DataHandling::Write {
                slot.cut = slot.length;
            }
            if slot.cut == slot.length {
                self.queue.pop_front();
                self.settle(at, output);
            } else if !self.cut_part(at) {
                return;
            }
        }
    }

    /// Cuts the next part off a request; `false` without room for the part.
    fn cut_part(&mut self, at: u16) -> bool {
        let Some(slot) = &mut self.slots[usize::from(at)] else { return false };
        let Some(tag) = self.free_parts.last().copied() else { return false };
        if slot.way == DataHandling::StagedRead && slot.staged.is_empty() {
            // The limit does not apply to the only staged read: a read longer than the limit would otherwise never be
            // served.
            if self.staged > 0 && self.staged + slot.length as usize > STAGED_MAX {
                return false;
            }
            self.staged += slot.length as usize;
            slot.staged = vec![0; slot.length as usize];
        }
        let (offset, left) = (slot.offset + slot.cut, slot.length - slot.cut);
        let within = offset % LINE;
        let most = match slot.way {
            DataHandling::Zero => ZERO_PART,
            _ => RUN_MAX as u64 * BLOCK as u64,
        };
        // Parts end at a line boundary. A request that fits into one block is not divided, because it is answered in
        // one chunk.
        let one = slot.offset % LINE + slot.length <= BLOCK as u64;
        let stretch = if one { left } else { left.min(most - offset % most) };
        let length = if slot.way.is_read() {
            stretch
        } else if within != 0 {
            left.min(LINE - within)
        } else if stretch >= LINE {
            stretch - stretch % LINE
        } else {
            stretch
        };
        let mut part = RequestPart { slot: at, offset, length, run: None, state: PartState::Waiting };
        if slot.way != DataHandling::Zero {
            let want = (within + length).div_ceil(BLOCK as u64) as u32;
            let Some(run) = self.blocks.take(want) else { return false };
            part.run = Some(run);
            part.length = length.min(run.bytes() as u64 - within);
        }
        slot.cut += part.length;
        slot.parts += 1;
        self.free_parts.pop();
        if slot.way == DataHandling::Write {
            part.state = PartState::Filling;
            self.filling.push_back(tag);
        } else {
            self.ready.push_back(tag);
        }
        self.parts[usize::from(tag)] = Some(part);
        true
    }

    fn part(&self, tag: u16) -> Option<&RequestPart> {
        self.parts.get(usize::from(tag))?.as_ref()
    }

    /// Destinations of the expected payload, as offset and length in the data area.
    pub fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        let parts = self.filling.iter().filter_map(|tag| self.part(*tag));
        parts.enumerate().map(|(index, part)| {
            let filled = if index == 0 { self.filled } else { 0 };
            (part.at() + filled, part.length as usize - filled)
        })
    }

    /// Records that `bytes` bytes of payload were received into [`places`](Self::places).
    pub fn fill(&mut self, mut bytes: usize, output: &mut Output) {
        while let Some(tag) = self.filling.front().copied() {
            let Some(RequestPart { slot, length, .. }) = self.part(tag).copied() else { return };
            let missing = length as usize - self.filled;
            if bytes < missing {
                self.filled += bytes;
                return;
            }
            bytes -= missing;
            self.filled = 0;
            self.filling.pop_front();
            let failed = self.slots[usize::from(slot)].as_ref().is_none_or(|slot| slot.failed.is_some());
            if failed {
                self.end_part(tag, output);
            } else {
                self.wait(tag);
            }
        }
    }

    fn wait(&mut self, tag: u16) {
        if let Some(part) = &mut self.parts[usize::from(tag)] {
            part.state = PartState::Waiting;
            self.ready.push_back(tag);
        }
    }

    /// Ends the write whose payload is incomplete, after the client hung up: the rest of the payload will not arrive.
    pub fn hang_up(&mut self, output: &mut Output) {
        let filling = self.filling.front().and_then(|tag| self.part(*tag)).map(|part| part.slot);
        let Some(at) = filling.or(self.queue.back().copied()) else { return };
        let Some(slot) = &mut self.slots[usize::from(at)] else { return };
        if slot.way != DataHandling::Write || (filling.is_none() && slot.cut == slot.length) {
            return;
        }
        (slot.mute, slot.cut, self.filled) = (true, slot.length, 0);
        slot.failed.get_or_insert_default();
        while let Some(tag) = self.filling.pop_front() {
            self.end_part(tag, output);
        }
        self.settle(at, output);
    }

    /// Takes the next operation to submit to the port.
    pub fn next(&mut self, now: Instant) -> Option<PortOrder> {
        while self.resting.front().is_some_and(|(at, _)| *at <= now) {
            let (_, tag) = self.resting.pop_front()?;
            self.ready.push_back(tag);
        }
        let tag = self.ready.pop_front()?;
        let part = self.parts[usize::from(tag)].as_mut()?;
        part.state = PartState::Given;
        self.given += 1;
        self.given_bytes += part.length;
        let part = *part;
        let way = self.slots[usize::from(part.slot)].as_ref()?.way;
        let lines = Lines { at: (part.run.map_or(0, Run::at) / LINE_SIZE) as u32, count: part.lines() };
        let whole = part.within() == 0 && part.length.is_multiple_of(LINE);
        let operation = match way {
            way if way.is_read() => Operation::ReadBytes(lines),
            DataHandling::Write if whole => Operation::WriteBytes(lines),
            DataHandling::Zero if whole => Operation::Zero(lines.count),
            // A patch leaves the other bytes of the line unchanged, because other clients may write these at the same
            // time.
            _ => Operation::Patch(u64::MAX >> (LINE - part.length) << part.within()),
        };
        let line = part.run.map(Run::at);
        Some(PortOrder { tag: tag.into(), offset: part.line(), operation, line })
    }

    /// Completes the operation `tag`; `false` if there is none. `base` is the offset of the data area in `memory`.
    pub fn ended(&mut self, tag: u32, memory: &SharedMemory, base: usize, output: &mut Output) -> bool {
        let Some((tag, part)) = self.take_given(tag) else { return false };
        let Some(slot) = &mut self.slots[usize::from(part.slot)] else { return true };
        match slot.way {
            DataHandling::Read if !slot.mute => {
                slot.parts -= 1;
                let last = slot.parts == 0 && slot.cut == slot.length && slot.failed.is_none();
                output.part(slot.cookie, last, part.offset, tag, part.at(), part.length as usize);
                if let Some(part) = &mut self.parts[usize::from(tag)] {
                    part.state = PartState::Sending;
                }
                if last {
                    self.release(part.slot);
                } else {
                    self.settle(part.slot, output);
                }
                return true;
            }
            DataHandling::HeldRead => {
                self.hold(tag, part.slot, output);
                return true;
            }
            DataHandling::StagedRead => {
                let from = (part.offset - slot.offset) as usize;
                memory.take(base + part.at(), &mut slot.staged[from..from + part.length as usize]);
            }
            _ => {}
        }
        self.end_part(tag, output);
        true
    }

    /// Fails the operation `tag`. Returns whether its request is given up; a failure that `is_transient` is retried
    /// within `retry_limit` instead. `None` if there is no such operation.
    pub fn failed(
        &mut self,
        tag: u32,
        why: &dyn std::fmt::Display,
        is_transient: bool,
        retry_limit: RetryLimit,
        output: &mut Output,
    ) -> Option<bool> {
        let (tag, part) = self.take_given(tag)?;
        let slot = self.slots[usize::from(part.slot)].as_mut()?;
        // The time limit of a request counts from its first failure; during shutdown the limit is zero.
        let until = retry_limit.now + retry_limit.most;
        let until = (*slot.until.get_or_insert(until)).min(until);
        if is_transient && retry_limit.now < until && slot.failed.is_none() {
            self.resting.push_back((retry_limit.now + RETRY_INTERVAL, tag));
            if let Some(part) = &mut self.parts[usize::from(tag)] {
                part.state = PartState::Waiting;
            }
            return Some(false);
        }
        self.give_up(tag, why, output);
        Some(true)
    }

    /// Handles the loss of the port: all operations in flight wait for the next port, within `retry_limit`.
    pub fn lost(&mut self, retry_limit: RetryLimit) {
        for tag in 0..PARTS_MAX as u16 {
            if self.part(tag).is_some_and(|part| part.state == PartState::Given) {
                self.wait(tag);
            }
        }
        (self.given, self.given_bytes) = (0, 0);
        self.away(retry_limit);
    }

    /// Starts the time limit of all requests in progress, because there is no port at present.
    pub fn away(&mut self, retry_limit: RetryLimit) {
        for slot in self.slots.iter_mut().flatten() {
            slot.until.get_or_insert(retry_limit.now + retry_limit.most);
        }
    }

    /// Fails the requests that have waited too long for a port; with `no_use`, all waiting requests. Returns whether
    /// any request failed.
    pub fn expire(
        &mut self,
        why: &dyn std::fmt::Display,
        no_use: bool,
        now: Instant,
        output: &mut Output,
    ) -> bool {
        let mut expired = false;
        for tag in 0..PARTS_MAX as u16 {
            let Some(part) = self.part(tag).filter(|part| part.state == PartState::Waiting) else { continue };
            let slot = self.slots[usize::from(part.slot)].as_ref();
            if no_use || slot.is_none_or(|slot| slot.until.is_some_and(|until| until <= now)) {
                self.ready.retain(|other| *other != tag);
                self.resting.retain(|(_, other)| *other != tag);
                self.give_up(tag, why, output);
                expired = true;
            }
        }
        expired
    }

    /// Frees the part `tag`, whose data has been sent.
    pub fn sent(&mut self, tag: u16) {
        self.free_part(tag);
    }

    pub fn staged_sent(&mut self, bytes: usize) {
        self.staged -= bytes;
    }

    fn take_given(&mut self, tag: u32) -> Option<(u16, RequestPart)> {
        let tag = u16::try_from(tag).ok()?;
        let part = self.part(tag).copied().filter(|part| part.state == PartState::Given)?;
        self.given -= 1;
        self.given_bytes -= part.length;
        Some((tag, part))
    }

    fn give_up(&mut self, tag: u16, why: &dyn std::fmt::Display, output: &mut Output) {
        let Some(part) = self.part(tag).copied() else { return };
        if let Some(slot) = &mut self.slots[usize::from(part.slot)] {
            slot.failed.get_or_insert_with(|| why.to_string());
        }
        self.end_part(tag, output);
    }

    fn free_part(&mut self, tag: u16) {
        if let Some(part) = self.parts[usize::from(tag)].take() {
            part.run.inspect(|run| self.blocks.give(*run));
            self.free_parts.push(tag);
        }
    }

    /// Ends a part that has no data to send.
    fn end_part(&mut self, tag: u16, output: &mut Output) {
        let Some(part) = self.part(tag).copied() else { return };
        self.free_part(tag);
        if let Some(slot) = &mut self.slots[usize::from(part.slot)] {
            slot.parts -= 1;
        }
        self.settle(part.slot, output);
    }

    /// Answers a request and frees its slot if all of its parts have ended; otherwise does nothing.
    fn settle(&mut self, at: u16, output: &mut Output) {
        let Some(slot) = &mut self.slots[usize::from(at)] else { return };
        let stopped = slot.failed.is_some() && slot.way != DataHandling::Write;
        if slot.parts > 0 || (slot.cut < slot.length && !stopped) {
            return;
        }
        let staged = std::mem::take(&mut slot.staged);
        match &slot.failed {
            _ if slot.mute => self.staged -= staged.len(),
            Some(why) => {
                output.error(slot.cookie, Errno::Io, why);
                self.staged -= staged.len();
            }
            None => match slot.way {
                DataHandling::StagedRead => output.staged(slot.cookie, slot.offset, staged),
                DataHandling::HeldRead => {
                    output.data_header(slot.cookie, true, slot.offset, slot.length as usize);
                    self.send_held(at, output);
                }
                DataHandling::Write | DataHandling::Zero | DataHandling::ReadAhead => {
                    output.done(slot.cookie)
                }
                // Nothing to send: the last part of the read's data completed the answer.
                DataHandling::Read => {}
            },
        }
        self.free_held(at);
        self.release(at);
    }

    fn release(&mut self, at: u16) {
        self.queue.retain(|other| *other != at);
        self.slots[usize::from(at)] = None;
        self.free.push(at);
    }
}

#[cfg(test)]
mod tests;

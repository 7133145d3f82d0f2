//! The requests of one client that are under way, without I/O: many at once, each cut into *parts*, which are operations of
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
//! Data lies in the port's data area, whose blocks are taken when a part is cut and given back when its data has been sent
//! or written, so that no client keeps more than the area. A read whose answer has to be in one piece and is longer than a
//! part *holds* its blocks until it is whole; one that is longer than half of the area is *staged* until then, in memory of
//! this process. Blocks are taken in the order of requests, and whoever holds some never waits for a later request.
//!
//! A part that fails for a reason that may pass rests and is tried again, until its request has waited long enough. That
//! may be done because it was not answered: reads change nothing, and a write that is made twice leaves what it would have
//! left once.

mod held;
mod part;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use cxloe_wire::frame::LINE_SIZE;

use held::HELD_MAX;
use part::{LINE, Part, Slot, State, Way};
pub use part::{Order, Patience};

use super::blocks::{BLOCK, Blocks, RUN_MAX, Run};
use super::conversation::{Command, LENGTH_MAX, Request};
use super::output::Output;
use super::wire::Errno;
use cxloe_client::memory::SharedMemory;
use cxloe_client::ring::{ENTRIES, Lines, Operation};

/// Requests of a client under way at once.
const REQUESTS_MAX: usize = 128;
/// Parts at once: operations of a port.
const PARTS_MAX: usize = ENTRIES;
/// Bytes of answers that wait for a client to take them, data not counted, beyond which no request of it is read.
const WAITING_MAX: usize = 64 << 10;
/// Bytes staged for reads whose answer has to be in one piece.
const STAGED_MAX: usize = LENGTH_MAX as usize;
/// Bytes zeroed by one part, a multiple of the page.
const ZERO_PART: u64 = 1 << 20;
/// The pause before a part that failed is tried again.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The requests of a client. See the [module](self).
#[derive(Debug)]
pub struct Requests {
    slots: Vec<Option<Slot>>,
    free: Vec<u16>,
    /// Those not wholly cut into parts.
    queue: VecDeque<u16>,
    parts: Vec<Option<Part>>,
    free_parts: Vec<u16>,
    blocks: Blocks,
    /// Parts whose payload is to come, and how much of the first has.
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
    /// Whether another may begin.
    pub fn has_room(&self, output: &Output) -> bool {
        !self.free.is_empty() && output.waiting() < WAITING_MAX
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.free.len() == REQUESTS_MAX
    }

    /// Operations that the port has been given.
    pub fn given(&self) -> usize {
        self.given
    }

    /// How many bytes those are about.
    pub fn given_bytes(&self) -> u64 {
        self.given_bytes
    }

    /// Whether something waits to be given to the port.
    pub fn is_waiting(&self) -> bool {
        !self.ready.is_empty() || !self.resting.is_empty()
    }

    /// When something that rests is due.
    pub fn due(&self) -> Option<Instant> {
        self.resting.front().map(|(at, _)| *at)
    }

    /// The first bytes of blocks that hold something.
    pub fn used_blocks(&self) -> impl Iterator<Item = usize> + use<> {
        self.blocks.used()
    }

    /// Begins a request. There has to be [room](Self::has_room).
    pub fn begin(&mut self, request: Request, output: &mut Output) {
        let Request { cookie, command } = request;
        let (way, offset, length) = match command {
            Command::Read { length: 0, .. } => return output.nothing(cookie),
            Command::Read { offset, length, whole } => {
                let one = offset % LINE + u64::from(length) <= BLOCK as u64;
                let piecemeal = one || (output.is_structured() && !whole);
                let way = match () {
                    () if piecemeal => Way::Read,
                    () if u64::from(length) <= HELD_MAX => Way::HeldRead,
                    () => Way::StagedRead,
                };
                (way, offset, length)
            }
            Command::Write { length: 0, .. } | Command::WriteZeroes { length: 0, .. } => {
                return output.done(cookie);
            }
            Command::Write { offset, length } => (Way::Write, offset, length),
            Command::WriteZeroes { offset, length } => (Way::Zero, offset, length),
            // Each write was at its memory node before it was answered; and there is no giving back a part of a region.
            Command::Flush | Command::Trim { .. } => return output.done(cookie),
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

    /// Cuts requests into parts, as far as there is room for them.
    pub fn cut(&mut self, output: &mut Output) {
        while let Some(at) = self.queue.front().copied() {
            let Some(slot) = &mut self.slots[usize::from(at)] else { return };
            // What has failed goes no further; but the payload of a write has to be taken.
            if slot.failed.is_some() && slot.way != Way::Write {
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

    /// Cuts the next part off a request; `false` if there is no room for it.
    fn cut_part(&mut self, at: u16) -> bool {
        let Some(slot) = &mut self.slots[usize::from(at)] else { return false };
        let Some(tag) = self.free_parts.last().copied() else { return false };
        if slot.way == Way::StagedRead && slot.staged.is_empty() {
            // The first one may, however long it is.
            if self.staged > 0 && self.staged + slot.length as usize > STAGED_MAX {
                return false;
            }
            self.staged += slot.length as usize;
            slot.staged = vec![0; slot.length as usize];
        }
        let (offset, left) = (slot.offset + slot.cut, slot.length - slot.cut);
        let within = offset % LINE;
        let reads = matches!(slot.way, Way::Read | Way::HeldRead | Way::StagedRead);
        let most = match slot.way {
            Way::Zero => ZERO_PART,
            _ => RUN_MAX as u64 * BLOCK as u64,
        };
        // Up to where the next part begins well; but what fits one part is one, for its answer is in one piece.
        let one = slot.offset % LINE + slot.length <= BLOCK as u64;
        let stretch = if one { left } else { left.min(most - offset % most) };
        let length = if reads {
            stretch
        } else if within != 0 {
            left.min(LINE - within)
        } else if stretch >= LINE {
            stretch - stretch % LINE
        } else {
            stretch
        };
        let mut part = Part { slot: at, offset, length, run: None, state: State::Waiting };
        if slot.way != Way::Zero {
            let want = (within + length).div_ceil(BLOCK as u64) as u32;
            let Some(run) = self.blocks.take(want) else { return false };
            part.run = Some(run);
            part.length = length.min(run.bytes() as u64 - within);
        }
        slot.cut += part.length;
        slot.parts += 1;
        self.free_parts.pop();
        if slot.way == Way::Write {
            part.state = State::Filling;
            self.filling.push_back(tag);
        } else {
            self.ready.push_back(tag);
        }
        self.parts[usize::from(tag)] = Some(part);
        true
    }

    fn part(&self, tag: u16) -> Option<&Part> {
        self.parts.get(usize::from(tag))?.as_ref()
    }

    /// Where the payload that is to come goes: first byte and length, in the data area.
    pub fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        let parts = self.filling.iter().filter_map(|tag| self.part(*tag));
        parts.enumerate().map(|(index, part)| {
            let filled = if index == 0 { self.filled } else { 0 };
            (part.at() + filled, part.length as usize - filled)
        })
    }

    /// So many bytes of payload have come to where [`places`](Self::places) said.
    pub fn fill(&mut self, mut bytes: usize, output: &mut Output) {
        while let Some(tag) = self.filling.front().copied() {
            let Some(Part { slot, length, .. }) = self.part(tag).copied() else { return };
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
            part.state = State::Waiting;
            self.ready.push_back(tag);
        }
    }

    /// The client has gone in the middle: what of its last request has not come never will.
    pub fn hang_up(&mut self, output: &mut Output) {
        let filling = self.filling.front().and_then(|tag| self.part(*tag)).map(|part| part.slot);
        let Some(at) = filling.or(self.queue.back().copied()) else { return };
        let Some(slot) = &mut self.slots[usize::from(at)] else { return };
        if slot.way != Way::Write || (filling.is_none() && slot.cut == slot.length) {
            return;
        }
        (slot.mute, slot.cut, self.filled) = (true, slot.length, 0);
        slot.failed.get_or_insert_default();
        while let Some(tag) = self.filling.pop_front() {
            self.end_part(tag, output);
        }
        self.settle(at, output);
    }

    /// The next operation for the port.
    pub fn next(&mut self, now: Instant) -> Option<Order> {
        while self.resting.front().is_some_and(|(at, _)| *at <= now) {
            let (_, tag) = self.resting.pop_front()?;
            self.ready.push_back(tag);
        }
        let tag = self.ready.pop_front()?;
        let part = self.parts[usize::from(tag)].as_mut()?;
        part.state = State::Given;
        self.given += 1;
        self.given_bytes += part.length;
        let part = *part;
        let way = self.slots[usize::from(part.slot)].as_ref()?.way;
        let lines = Lines { at: (part.run.map_or(0, Run::at) / LINE_SIZE) as u32, count: part.lines() };
        let whole = part.within() == 0 && part.length.is_multiple_of(LINE);
        let operation = match way {
            Way::Read | Way::HeldRead | Way::StagedRead => Operation::ReadBytes(lines),
            Way::Write if whole => Operation::WriteBytes(lines),
            Way::Zero if whole => Operation::Zero(lines.count),
            Way::Write | Way::Zero => Operation::Patch(u64::MAX >> (LINE - part.length) << part.within()),
        };
        let line = part.run.map(Run::at);
        Some(Order { tag: tag.into(), offset: part.line(), operation, line })
    }

    /// The operation with this tag is done; `false` if there is none. `base` is the byte of `memory` at which the data area
    /// begins.
    pub fn ended(&mut self, tag: u32, memory: &SharedMemory, base: usize, output: &mut Output) -> bool {
        let Some((tag, part)) = self.take_given(tag) else { return false };
        let Some(slot) = &mut self.slots[usize::from(part.slot)] else { return true };
        match slot.way {
            Way::Read if !slot.mute => {
                slot.parts -= 1;
                let last = slot.parts == 0 && slot.cut == slot.length && slot.failed.is_none();
                output.part(slot.cookie, last, part.offset, tag, part.at(), part.length as usize);
                if let Some(part) = &mut self.parts[usize::from(tag)] {
                    part.state = State::Sending;
                }
                if last {
                    self.release(part.slot);
                } else {
                    self.settle(part.slot, output);
                }
                return true;
            }
            Way::HeldRead => {
                self.hold(tag, part.slot, output);
                return true;
            }
            Way::StagedRead => {
                let from = (part.offset - slot.offset) as usize;
                memory.take(base + part.at(), &mut slot.staged[from..from + part.length as usize]);
            }
            _ => {}
        }
        self.end_part(tag, output);
        true
    }

    /// The operation with this tag failed; `None` if there is none. If that `may_pass` it is tried again for as long as
    /// `patience` has it, and the answer is no.
    pub fn failed(
        &mut self,
        tag: u32,
        why: &dyn std::fmt::Display,
        may_pass: bool,
        patience: Patience,
        output: &mut Output,
    ) -> Option<bool> {
        let (tag, part) = self.take_given(tag)?;
        let slot = self.slots[usize::from(part.slot)].as_mut()?;
        let until = patience.now + patience.most;
        let until = (*slot.until.get_or_insert(until)).min(until);
        if may_pass && patience.now < until && slot.failed.is_none() {
            self.resting.push_back((patience.now + RETRY_INTERVAL, tag));
            if let Some(part) = &mut self.parts[usize::from(tag)] {
                part.state = State::Waiting;
            }
            return Some(false);
        }
        self.give_up(tag, why, output);
        Some(true)
    }

    /// The port is away, and what it was given with it: all of that waits for the next one, `patience` long.
    pub fn lost(&mut self, patience: Patience) {
        for tag in 0..PARTS_MAX as u16 {
            if self.part(tag).is_some_and(|part| part.state == State::Given) {
                self.wait(tag);
            }
        }
        (self.given, self.given_bytes) = (0, 0);
        self.away(patience);
    }

    /// The port is away: from now on, what waits for it waits `patience` long.
    pub fn away(&mut self, patience: Patience) {
        for slot in self.slots.iter_mut().flatten() {
            slot.until.get_or_insert(patience.now + patience.most);
        }
    }

    /// Gives up what waits for a port and has waited long enough, or, if it is no use, everything that waits. Whether there
    /// was any.
    pub fn expire(
        &mut self,
        why: &dyn std::fmt::Display,
        no_use: bool,
        now: Instant,
        output: &mut Output,
    ) -> bool {
        let mut expired = false;
        for tag in 0..PARTS_MAX as u16 {
            let Some(part) = self.part(tag).filter(|part| part.state == State::Waiting) else { continue };
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

    /// The data of this part has been sent.
    pub fn sent(&mut self, tag: u16) {
        self.free_part(tag);
    }

    /// So many staged bytes have been sent.
    pub fn staged_sent(&mut self, bytes: usize) {
        self.staged -= bytes;
    }

    fn take_given(&mut self, tag: u32) -> Option<(u16, Part)> {
        let tag = u16::try_from(tag).ok()?;
        let part = self.part(tag).copied().filter(|part| part.state == State::Given)?;
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

    /// A part is over, and has nothing to send.
    fn end_part(&mut self, tag: u16, output: &mut Output) {
        let Some(part) = self.part(tag).copied() else { return };
        self.free_part(tag);
        if let Some(slot) = &mut self.slots[usize::from(part.slot)] {
            slot.parts -= 1;
        }
        self.settle(part.slot, output);
    }

    /// Answers a request that is over.
    fn settle(&mut self, at: u16, output: &mut Output) {
        let Some(slot) = &mut self.slots[usize::from(at)] else { return };
        let stopped = slot.failed.is_some() && slot.way != Way::Write;
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
                Way::StagedRead => output.staged(slot.cookie, slot.offset, staged),
                Way::HeldRead => {
                    output.data_header(slot.cookie, true, slot.offset, slot.length as usize);
                    self.send_held(at, output);
                }
                Way::Write | Way::Zero => output.done(slot.cookie),
                // Answered with its last data.
                Way::Read => {}
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

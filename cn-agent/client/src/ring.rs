//! Two rings in shared memory, submissions one way and completions the other, each with one writer and one
//! reader; and behind them the data of operations on more than a line.
//!
//! ```text
//!   word 0    16       32       48        512             512 + 16 N
//!   | magic | agent  | client | CQ head | N submissions | N completions | data |
//!   |       |        |        | client  | 128 bytes     | 128 bytes     |      |
//! ```
//!
//! A line travels in its entry. The data of [`Operation::ReadBytes`] and [`Operation::WriteBytes`] is a stretch of lines
//! of the data area that the submission names: the client says which are whose, the agent checks only that they are
//! there. Nobody but the client depends on what is in them when.
//!
//! The first word of an entry has a *phase* bit, which changes with each lap of the ring: a writer fills an entry, then
//! stores that word (release); a reader that finds the phase of its lap there has all of the entry (acquire). So an
//! entry crosses from one CPU's cache to the other's once, and no index has to follow it. Each end keeps its own indices
//! in private memory. An entry is copied out once: what it asks for, where and with which line, is checked in the copy and done
//! from the copy, however often it has to be tried, and whatever the other end makes of its place meanwhile.
//!
//! A client has no more operations under way than the rings have entries, so that it never writes an entry that was not
//! taken. That it takes completions too it says in "CQ head", which the agent looks at now and then, and checks
//! ([`RingBroken`]).
//!
//! Each end says in its word on which CPU it was last ("agent", "client"), and whether it sleeps. Who waits on the other's
//! CPU yields instead of spinning, for nothing can come before the other runs. Who runs out of work says that it sleeps,
//! looks once more, and sleeps; who gives it work clears the bit and wakes it ([`AgentEnd::wake_wanted`],
//! [`ClientEnd::wake_wanted`]). Both sides put a full fence between their write and their look, so that one of the two
//! sees the other.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::fence;

use cxloe_wire::frame::LINE_SIZE;

use super::memory::SharedMemory;
use super::status::Status;
use cxloe_cn_core::cache::Line;

/// Places of each ring, a power of two: as many requests as one stream's window takes.
pub const ENTRIES: usize = 256;
/// Lines of a port's data area: some times what is on its way to memory nodes at once. Memory that nobody has touched
/// costs nothing.
pub const DATA_LINES: usize = 64 << 10;
/// Bytes of it.
pub const DATA_BYTES: usize = DATA_LINES * LINE_SIZE;
/// Most lines of an operation without data in the data area: 16 MiB.
pub const ZERO_LINES_MAX: u32 = 256 << 10;
/// Bytes of the shared memory of a port.
pub const PORT_BYTES: usize = DATA + DATA_BYTES;

const MAGIC: u64 = 0x4358_4C6F_4550_0003;
const AGENT: usize = 16;
const CLIENT: usize = 32;
const CQ_HEAD: usize = 48;
const SUBMISSIONS: usize = 512;
const COMPLETIONS: usize = SUBMISSIONS + ENTRIES * ENTRY;
/// The first byte of the data area, the beginning of a page.
const DATA: usize = ((SUBMISSIONS + 2 * ENTRIES * ENTRY) * 8).next_multiple_of(4096);
/// Words of an entry: three of description at its start, the line in its second half.
const ENTRY: usize = 16;
const LINE: usize = 8;
/// The phase in the first word of an entry, whose lower bits are a number and whose upper half is the tag.
const PHASE: u64 = 1 << 31;
/// In the word of an end: it sleeps, and has to be woken.
const ASLEEP: u64 = 1 << 63;
/// Completions after which the agent looks where the client's head is.
const HEAD_INTERVAL: u64 = ENTRIES as u64 / 4;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The line at an HPA.
    Read,
    /// To write the line at an HPA.
    Write,
    /// To write back everything modified, whoever wrote it, after everything submitted before.
    Flush,
    /// The lines from an HPA on, past the cache but not missing what it has modified.
    ReadBytes(Lines),
    /// To write the lines from an HPA on; done when memory nodes have them.
    WriteBytes(Lines),
    /// To make so many lines from an HPA on zero, up to [`ZERO_LINES_MAX`]; done when memory nodes have that.
    Zero(u32),
    /// To write those bytes of the line at an HPA that have a bit here, and leave the others as they are, whoever writes
    /// them meanwhile; done when the memory node has it.
    Patch(u64),
    /// A number without a meaning.
    Unknown(u32),
}

/// Lines of the data area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    /// The first.
    pub at: u32,
    /// How many.
    pub count: u32,
}

impl Lines {
    fn encode(self) -> u64 {
        u64::from(self.at) << 32 | u64::from(self.count)
    }

    fn decode(word: u64) -> Lines {
        Lines { at: (word >> 32) as u32, count: word as u32 }
    }

    /// Whether there are such lines.
    fn is_there(self) -> bool {
        self.count > 0 && self.at as usize + self.count as usize <= DATA_LINES
    }
}

impl Operation {
    /// Its number, and what else there is to say.
    fn encode(self) -> (u32, u64) {
        match self {
            Operation::Read => (1, 0),
            Operation::Write => (2, 0),
            Operation::Flush => (3, 0),
            Operation::ReadBytes(lines) => (4, lines.encode()),
            Operation::WriteBytes(lines) => (5, lines.encode()),
            Operation::Zero(count) => (6, count.into()),
            Operation::Patch(bytes) => (7, bytes),
            Operation::Unknown(code) => (code, 0),
        }
    }

    /// What these say; whatever makes no sense is unknown.
    fn decode(code: u32, more: u64) -> Operation {
        match code {
            1 => Operation::Read,
            2 => Operation::Write,
            3 => Operation::Flush,
            4 if Lines::decode(more).is_there() => Operation::ReadBytes(Lines::decode(more)),
            5 if Lines::decode(more).is_there() => Operation::WriteBytes(Lines::decode(more)),
            6 if (1..=u64::from(ZERO_LINES_MAX)).contains(&more) => Operation::Zero(more as u32),
            7 => Operation::Patch(more),
            code => Operation::Unknown(code),
        }
    }
}

/// A request of a client, without its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The client's number for it, which its completion repeats.
    pub tag: u32,
    /// What to do.
    pub operation: Operation,
    /// Where.
    pub hpa: u64,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number of the submission.
    pub tag: u32,
    /// How it ended.
    pub status: Status,
}

/// The other end has written an index that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an index of the shared ring is out of range: {ahead} entries ahead of a ring of {ENTRIES}")]
pub struct RingBroken {
    ahead: u64,
}

/// How a CPU is written: 0 is none.
#[inline]
fn said(cpu: u32) -> u64 {
    u64::from(cpu) + 1
}

/// Entries between `from` and `to`, which the other end wrote.
#[inline]
fn distance(to: u64, from: u64) -> Result<usize, RingBroken> {
    match to.wrapping_sub(from) {
        ahead if ahead > ENTRIES as u64 => Err(RingBroken { ahead }),
        ahead => Ok(ahead as usize),
    }
}

/// The phase of entry `index`: that of memory that was never written is the one before.
#[inline]
fn phase(index: u64) -> u64 {
    if index & ENTRIES as u64 == 0 { PHASE } else { 0 }
}

/// The first word of an entry.
#[inline]
fn first_word(tag: u32, number: u32, index: u64) -> u64 {
    u64::from(tag) << 32 | u64::from(number) & (PHASE - 1) | phase(index)
}

/// The number in the first word of an entry.
#[inline]
fn number(what: u64) -> u32 {
    (what & (PHASE - 1)) as u32
}

/// The first word of the entry `index` of the ring at `base`, if it was written in this lap.
#[inline]
fn arrived(memory: &SharedMemory, base: usize, index: u64) -> Option<u64> {
    let [what] = memory.untrusted(place(base, index)).acquire();
    (what & PHASE == phase(index)).then_some(what)
}

/// Clears that the end of this word sleeps; whether it did.
#[inline]
fn rouse(memory: &SharedMemory, end: usize) -> bool {
    let [state] = memory.untrusted(end).copy_out();
    state & ASLEEP != 0 && memory.clear_bits(end, ASLEEP) != 0
}

#[inline]
fn place(base: usize, index: u64) -> usize {
    base + (index as usize & (ENTRIES - 1)) * ENTRY
}

fn put_line(memory: &SharedMemory, entry: usize, line: &Line) {
    for (i, word) in line.as_chunks::<8>().0.iter().enumerate() {
        memory.store(entry + LINE + i, u64::from_ne_bytes(*word), Relaxed);
    }
}

fn take_line(memory: &SharedMemory, entry: usize) -> Line {
    let words: [u64; LINE_SIZE / 8] = memory.untrusted(entry + LINE).copy_out();
    let mut line = [0; LINE_SIZE];
    for (to, word) in line.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.to_ne_bytes();
    }
    line
}

/// The agent's end.
#[derive(Debug)]
pub struct AgentEnd {
    memory: SharedMemory,
    sq_head: u64,
    /// The submission at the head, once it was copied out, and the line that came with it if it writes one.
    front: Option<Submission>,
    front_line: Line,
    /// The first submission that was not looked at, at or behind the head.
    sq_seen: u64,
    cq_tail: u64,
    /// The client's head when it was looked at last.
    cq_seen: u64,
    /// Completions published until it is looked at again.
    unseen: u64,
    /// The CPU that was last said, and whether the agent sleeps.
    state: u64,
}

impl AgentEnd {
    /// Over fresh memory of [`PORT_BYTES`] bytes.
    pub fn new(memory: SharedMemory) -> AgentEnd {
        memory.store(1, ENTRIES as u64, Relaxed);
        memory.store(0, MAGIC, Release);
        AgentEnd {
            memory,
            sq_head: 0,
            front: None,
            front_line: [0; LINE_SIZE],
            sq_seen: 0,
            cq_tail: 0,
            cq_seen: 0,
            unseen: 0,
            state: 0,
        }
    }

    /// The memory, to be sent to the client.
    #[inline]
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// The oldest submission that was not [released](Self::release), if there is one: as it was when this was asked for the
    /// first time, whatever the client has written there since.
    #[inline]
    pub fn front(&mut self) -> Option<Submission> {
        if self.front.is_none() {
            self.front = self.copy_front();
        }
        self.front
    }

    #[inline]
    fn copy_front(&mut self) -> Option<Submission> {
        let what = arrived(&self.memory, SUBMISSIONS, self.sq_head)?;
        self.sq_seen = self.sq_seen.max(self.sq_head + 1);
        let entry = place(SUBMISSIONS, self.sq_head);
        let [hpa, more] = self.memory.untrusted(entry + 1).copy_out();
        let operation = Operation::decode(number(what), more);
        if matches!(operation, Operation::Write | Operation::Patch(_)) {
            self.front_line = take_line(&self.memory, entry);
        }
        Some(Submission { tag: (what >> 32) as u32, operation, hpa })
    }

    /// The line that the submission at the [front](Self::front) writes, as it was copied out with it.
    #[inline]
    pub fn front_line(&self) -> &Line {
        &self.front_line
    }

    /// Goes on to the next submission.
    #[inline]
    pub fn release(&mut self) {
        self.front = None;
        self.sq_head += 1;
        self.sq_seen = self.sq_seen.max(self.sq_head);
    }

    /// Whether there is a place for the completion of another operation, beside those of `in_flight`.
    ///
    /// # Errors
    /// [`RingBroken`]; give the client up.
    #[inline]
    pub fn has_room(&mut self, in_flight: usize) -> Result<bool, RingBroken> {
        let is_full = |seen| Ok(distance(self.cq_tail, seen)? + in_flight >= ENTRIES);
        if self.unseen >= HEAD_INTERVAL || is_full(self.cq_seen)? {
            [self.cq_seen] = self.memory.untrusted(CQ_HEAD).acquire();
            self.unseen = 0;
            return is_full(self.cq_seen).map(|full| !full);
        }
        Ok(true)
    }

    /// Publishes a completion; whoever takes submissions has seen to it that there is room.
    #[inline]
    pub fn complete(&mut self, completion: Completion, line: Option<&Line>) {
        let entry = place(COMPLETIONS, self.cq_tail);
        let (code, detail) = completion.status.encode();
        if let Some(line) = line {
            put_line(&self.memory, entry, line);
        }
        self.memory.store(entry + 1, detail, Relaxed);
        self.memory.store(entry, first_word(completion.tag, code, self.cq_tail), Release);
        self.cq_tail = self.cq_tail.wrapping_add(1);
        self.unseen += 1;
    }

    /// Puts `bytes` into the data area, from its byte `at` on.
    ///
    /// # Panics
    /// If there is not so much of it: whoever takes submissions has checked.
    #[inline]
    pub fn put(&self, at: usize, bytes: &[u8]) {
        self.memory.put(DATA + at, bytes);
    }

    /// Copies what the data area has from byte `at` on.
    ///
    /// # Panics
    /// As [`put`](Self::put).
    #[inline]
    pub fn copy(&self, at: usize, bytes: &mut [u8]) {
        self.memory.take(DATA + at, bytes);
    }

    /// Says on which CPU the agent runs.
    #[inline]
    pub fn set_cpu(&mut self, cpu: u32) {
        self.state = said(cpu) | self.state & ASLEEP;
        self.memory.store(AGENT, self.state, Relaxed);
    }

    /// The CPU on which the client waited last, if it has, and is awake.
    #[inline]
    pub fn client_cpu(&self) -> Option<u32> {
        let [said] = self.memory.untrusted(CLIENT).copy_out();
        u32::try_from(said.checked_sub(1)?).ok()
    }

    /// Says that the agent is about to sleep, or is awake again. Look at [`news`](Self::news) in between.
    #[inline]
    pub fn set_asleep(&mut self, asleep: bool) {
        self.state = self.state & !ASLEEP | if asleep { ASLEEP } else { 0 };
        self.memory.store(AGENT, self.state, Relaxed);
    }

    /// Whether there are submissions that were not looked at, by this either: those that wait for something else are no
    /// reason to stay awake. After a full fence, if the client is to see that the agent sleeps.
    #[inline]
    pub fn news(&mut self) -> bool {
        let before = self.sq_seen;
        while self.sq_seen - self.sq_head < ENTRIES as u64
            && arrived(&self.memory, SUBMISSIONS, self.sq_seen).is_some()
        {
            self.sq_seen += 1;
        }
        self.sq_seen != before
    }

    /// Whether the client sleeps and has to be woken; asked once after completions were published, behind a
    /// full fence.
    #[inline]
    pub fn wake_wanted(&self) -> bool {
        rouse(&self.memory, CLIENT)
    }
}

/// The client's end.
#[derive(Debug)]
pub struct ClientEnd {
    memory: SharedMemory,
    sq_tail: u64,
    cq_head: u64,
    /// The CPU that was last said, and whether the client sleeps.
    state: u64,
}

impl ClientEnd {
    /// Over memory that an agent made; `None` if it is none of this version's.
    pub fn new(memory: SharedMemory) -> Option<ClientEnd> {
        let known = memory.untrusted(0).acquire() == [MAGIC, ENTRIES as u64];
        known.then_some(ClientEnd { memory, sq_tail: 0, cq_head: 0, state: 0 })
    }

    /// Submits; the caller never has more than [`ENTRIES`] operations without a completion taken.
    #[inline]
    pub fn submit(&mut self, submission: Submission, line: Option<&Line>) {
        let entry = place(SUBMISSIONS, self.sq_tail);
        let Submission { tag, operation, hpa } = submission;
        let (code, more) = operation.encode();
        self.memory.store(entry + 1, hpa, Relaxed);
        self.memory.store(entry + 2, more, Relaxed);
        if let Some(line) = line {
            put_line(&self.memory, entry, line);
        }
        self.memory.store(entry, first_word(tag, code, self.sq_tail), Release);
        self.sq_tail = self.sq_tail.wrapping_add(1);
    }

    /// Takes the oldest completion; `line` gets the line of a read that is done.
    #[inline]
    pub fn take(&mut self, line: &mut Line) -> Option<Completion> {
        let what = arrived(&self.memory, COMPLETIONS, self.cq_head)?;
        let entry = place(COMPLETIONS, self.cq_head);
        let [detail] = self.memory.untrusted(entry + 1).copy_out();
        let status = Status::decode(number(what), detail);
        if status == Status::Done {
            *line = take_line(&self.memory, entry);
        }
        self.cq_head = self.cq_head.wrapping_add(1);
        self.memory.store(CQ_HEAD, self.cq_head, Release);
        Some(Completion { tag: (what >> 32) as u32, status })
    }

    /// Says on which CPU the client waits; whether the agent is on the same and awake.
    #[inline]
    pub fn shares_cpu(&mut self, cpu: u32) -> bool {
        let state = said(cpu) | self.state & ASLEEP;
        if self.state != state {
            self.state = state;
            self.memory.store(CLIENT, state, Relaxed);
        }
        self.memory.untrusted(AGENT).copy_out() == [said(cpu)]
    }

    /// The shared memory, and the byte of it that is the data area's first.
    #[inline]
    pub fn data(&self) -> (&SharedMemory, usize) {
        (&self.memory, DATA)
    }

    /// Whether a completion is there.
    #[inline]
    pub fn news(&self) -> bool {
        arrived(&self.memory, COMPLETIONS, self.cq_head).is_some()
    }

    /// Says that the client is about to sleep, or is awake again; a fence, then look at [`news`](Self::news).
    #[inline]
    pub fn set_asleep(&mut self, asleep: bool) {
        self.state = self.state & !ASLEEP | if asleep { ASLEEP } else { 0 };
        self.memory.store(CLIENT, self.state, Relaxed);
        fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// Whether the agent sleeps and has to be woken; asked once after submitting.
    #[inline]
    pub fn wake_wanted(&self) -> bool {
        fence(std::sync::atomic::Ordering::SeqCst);
        rouse(&self.memory, AGENT)
    }

    /// The memory, for tests that play a hostile client.
    #[cfg(test)]
    #[inline]
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }
}

#[cfg(test)]
mod tests;

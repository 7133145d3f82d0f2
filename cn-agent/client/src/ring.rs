//! Two rings in shared memory, for submissions and for completions, each with one writer and one reader; behind them
//! the data area for operations on more than a line.
//!
//! ```text
//!   word 0    16       32       48        512             512 + 16 N
//!   | magic | agent  | client | CQ head | N submissions | N completions | data |
//!   |       |        |        | client  | 128 bytes     | 128 bytes     |      |
//! ```
//!
//! An entry contains the line of its operation. [`Operation::ReadBytes`] and [`Operation::WriteBytes`] use a range of
//! lines of the data area that the submission names: the client allocates these lines, the agent only checks that they
//! exist. Only the client depends on their content.
//!
//! The first word of an entry has a *phase* bit, which changes with each lap of the ring: a writer fills an entry, and
//! then stores that word (release); a reader that finds the phase of its lap in the word can read the whole entry
//! (acquire). So an entry crosses once from one CPU's cache to the other's, and no shared index is needed. Each end
//! keeps its own indices in private memory. The agent copies an entry out once: it checks operation, address and line
//! in the copy, and executes the copy, however often it retries, and whatever the client writes over the entry.
//!
//! A client has no more operations in flight than the rings have entries, so that it never overwrites an entry that was
//! not taken. It publishes in "CQ head" how many completions it has taken; the agent reads that word at intervals and
//! checks it ([`RingBroken`]).
//!
//! Each end publishes, in its own word ("agent", "client"), the CPU on which it last ran, and whether it sleeps. An end
//! that waits on the other end's CPU yields instead of spinning, because nothing can arrive before the other end runs.
//! An end without work publishes that it sleeps, polls once more, and sleeps; the end that submits or completes an
//! operation clears the bit and wakes the sleeper ([`AgentEnd::wake_wanted`], [`ClientEnd::wake_wanted`]). Both ends
//! put a full fence between their write and their read, so that at least one of the two reads the other's write.

use std::sync::atomic::Ordering::{Relaxed, Release};

use cxloe_wire::frame::LINE_SIZE;

use super::memory::SharedMemory;
use super::ring_memory::RingMemory;
use super::status::Status;
use cxloe_cn_core::cache::Line;

/// Number of entries of each ring, a power of two: as many requests as the window of one stream.
pub const ENTRIES: usize = 256;
/// Number of lines of a port's data area: several times the data in flight to memory nodes. Untouched memory takes no
/// space.
pub const DATA_LINES: usize = 64 << 10;
/// Size of the data area in bytes.
pub const DATA_BYTES: usize = DATA_LINES * LINE_SIZE;
/// Limit of the lines of an operation that carries no data: 16 MiB.
pub const ZERO_LINES_MAX: u32 = 256 << 10;
/// Size of the shared memory of a port in bytes.
pub const PORT_BYTES: usize = DATA + DATA_BYTES;

const MAGIC: u64 = 0x4358_4C6F_4550_0003;
const AGENT: usize = 16;
const CLIENT: usize = 32;
const CQ_HEAD: usize = 48;
const SUBMISSIONS: usize = 512;
const COMPLETIONS: usize = SUBMISSIONS + ENTRIES * ENTRY;
/// Offset of the data area in bytes, a multiple of the page size.
const DATA: usize = ((SUBMISSIONS + 2 * ENTRIES * ENTRY) * 8).next_multiple_of(4096);
/// Number of words of an entry: three words of description at its start, the line in its second half.
const ENTRY: usize = 16;
const LINE: usize = 8;
/// Phase bit in the first word of an entry. The bits below hold a number, the upper half holds the tag.
const PHASE: u64 = 1 << 31;
/// Bit in the word of an end, set while the end sleeps and has to be woken.
const ASLEEP: u64 = 1 << 63;
/// Number of completions after which the agent reads the client's head again.
const HEAD_INTERVAL: u64 = ENTRIES as u64 / 4;

/// Operation that a client submits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read the line at an HPA through the agent's cache.
    Read,
    /// Write the line at an HPA into the agent's cache.
    Write,
    /// Write back the dirty lines of all clients, after all operations submitted before this one.
    Flush,
    /// Read lines from an HPA on without the cache; dirty lines in the cache are taken into account.
    ReadBytes(Lines),
    /// Write lines from an HPA on; completed when memory nodes have them.
    WriteBytes(Lines),
    /// Set this many lines from an HPA on to zero, at most [`ZERO_LINES_MAX`]; completed when memory nodes have done
    /// so.
    Zero(u32),
    /// Write the bytes of the line at an HPA whose bit is set in this mask, and preserve the other bytes even if they
    /// are written concurrently; completed when the memory node has the line.
    Patch(u64),
    /// A code to which this release assigns no operation.
    Unknown(u32),
}

/// A range of lines of the data area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    /// Index of the first line in the data area.
    pub at: u32,
    /// Number of lines, at least 1.
    pub count: u32,
}

impl Lines {
    fn encode(self) -> u64 {
        u64::from(self.at) << 32 | u64::from(self.count)
    }

    fn decode(word: u64) -> Lines {
        Lines { at: (word >> 32) as u32, count: word as u32 }
    }

    /// Whether the range is not empty and lies in the data area.
    fn is_there(self) -> bool {
        self.count > 0 && self.at as usize + self.count as usize <= DATA_LINES
    }
}

impl Operation {
    /// Code of the operation, and its argument.
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

    /// Decodes a code and its argument; anything invalid gives [`Operation::Unknown`].
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

/// A submission of a client, without the line that it may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submission {
    /// Number that the client chooses, repeated in the completion.
    pub tag: u32,
    /// Operation, with its arguments other than the address.
    pub operation: Operation,
    /// Host physical address of the first byte.
    pub hpa: u64,
}

/// Completion of an operation, without the line that it may have read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Tag of the operation's submission.
    pub tag: u32,
    /// Result of the operation; only after success does the completion have a line.
    pub status: Status,
}

/// Error: the other end has written an impossible index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an index of the shared ring is out of range: {ahead} entries ahead of a ring of {ENTRIES}")]
pub struct RingBroken {
    ahead: u64,
}

/// Encodes a CPU as its number plus one, since 0 stands for none.
#[inline]
fn encode_cpu(cpu: u32) -> u64 {
    u64::from(cpu) + 1
}

/// Number of entries between two indices, one of which the other end wrote.
#[inline]
fn distance(to: u64, from: u64) -> Result<usize, RingBroken> {
    match to.wrapping_sub(from) {
        ahead if ahead > ENTRIES as u64 => Err(RingBroken { ahead }),
        ahead => Ok(ahead as usize),
    }
}

/// Phase of the entry `index`, which changes with each lap of the ring. Memory that was never written has the phase of
/// a lap before the first.
#[inline]
fn phase(index: u64) -> u64 {
    if index & ENTRIES as u64 == 0 { PHASE } else { 0 }
}

/// Encodes the first word of the entry `index`.
#[inline]
fn first_word(tag: u32, number: u32, index: u64) -> u64 {
    u64::from(tag) << 32 | u64::from(number) & (PHASE - 1) | phase(index)
}

/// Decodes the number in the first word of an entry.
#[inline]
fn number(what: u64) -> u32 {
    (what & (PHASE - 1)) as u32
}

/// First word of the entry `index` of the ring at `base`, if the entry was written in this lap.
#[inline]
fn arrived(memory: &impl RingMemory, base: usize, index: u64) -> Option<u64> {
    let [what] = memory.acquire(place(base, index));
    (what & PHASE == phase(index)).then_some(what)
}

/// Clears the sleep bit of an end; returns whether it was set.
#[inline]
fn clear_sleep_bit(memory: &impl RingMemory, end: usize) -> bool {
    let [state] = memory.copy_out(end);
    state & ASLEEP != 0 && memory.clear_bits(end, ASLEEP) != 0
}

#[inline]
fn place(base: usize, index: u64) -> usize {
    base + (index as usize & (ENTRIES - 1)) * ENTRY
}

fn put_line(memory: &impl RingMemory, entry: usize, line: &Line) {
    for (i, word) in line.as_chunks::<8>().0.iter().enumerate() {
        memory.store(entry + LINE + i, u64::from_ne_bytes(*word), Relaxed);
    }
}

fn take_line(memory: &impl RingMemory, entry: usize) -> Line {
    let words: [u64; LINE_SIZE / 8] = memory.copy_out(entry + LINE);
    let mut line = [0; LINE_SIZE];
    for (to, word) in line.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.to_ne_bytes();
    }
    line
}

/// The agent's end of a port, which reads submissions and writes completions.
#[derive(Debug)]
pub struct AgentEnd<M = SharedMemory> {
    memory: M,
    sq_head: u64,
    /// Copy of the submission at the head; `None` before it is copied. If it writes a line, that line is in
    /// `front_line`.
    front: Option<Submission>,
    front_line: Line,
    /// Index of the first submission that was not polled yet, at or behind the head.
    sq_seen: u64,
    cq_tail: u64,
    /// The client's completion head as last read.
    cq_seen: u64,
    /// Number of completions to publish before the client's head is read again.
    unseen: u64,
    /// The published word: the agent's CPU, and whether the agent sleeps.
    state: u64,
}

impl<M: RingMemory> AgentEnd<M> {
    /// Lays out new memory of [`PORT_BYTES`] bytes, and returns the agent's end.
    pub fn new(memory: M) -> AgentEnd<M> {
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

    /// The shared memory, to be sent to the client.
    #[inline]
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The oldest submission that was not [released](Self::release), as copied at the first call: later writes of the
    /// client have no effect on it.
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
        let [hpa, more] = self.memory.copy_out(entry + 1);
        let operation = Operation::decode(number(what), more);
        if matches!(operation, Operation::Write | Operation::Patch(_)) {
            self.front_line = take_line(&self.memory, entry);
        }
        Some(Submission { tag: (what >> 32) as u32, operation, hpa })
    }

    /// The line that the submission at the [front](Self::front) writes, copied out together with it.
    #[inline]
    pub fn front_line(&self) -> &Line {
        &self.front_line
    }

    /// Advances to the next submission, and drops the copy of the present one.
    #[inline]
    pub fn release(&mut self) {
        self.front = None;
        self.sq_head += 1;
        self.sq_seen = self.sq_seen.max(self.sq_head);
    }

    /// Whether the completion ring has room for one more completion, in addition to the completions of `in_flight`
    /// operations.
    ///
    /// # Errors
    /// [`RingBroken`]; then the client has to be disconnected.
    #[inline]
    pub fn has_room(&mut self, in_flight: usize) -> Result<bool, RingBroken> {
        let is_full = |seen| Ok(distance(self.cq_tail, seen)? + in_flight >= ENTRIES);
        if self.unseen >= HEAD_INTERVAL || is_full(self.cq_seen)? {
            [self.cq_seen] = self.memory.acquire(CQ_HEAD);
            self.unseen = 0;
            return is_full(self.cq_seen).map(|full| !full);
        }
        Ok(true)
    }

    /// Publishes a completion. The caller must have checked [`has_room`](Self::has_room) before it took the submission.
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

    /// Publishes to the client the CPU on which the agent runs.
    #[inline]
    pub fn set_cpu(&mut self, cpu: u32) {
        self.state = encode_cpu(cpu) | self.state & ASLEEP;
        self.memory.store(AGENT, self.state, Relaxed);
    }

    /// CPU on which the client last waited; `None` if the client sleeps or has published none.
    #[inline]
    pub fn client_cpu(&self) -> Option<u32> {
        let [said] = self.memory.copy_out(CLIENT);
        u32::try_from(said.checked_sub(1)?).ok()
    }

    /// Publishes whether the agent is about to sleep. Check [`news`](Self::news) between publishing and sleeping.
    #[inline]
    pub fn set_asleep(&mut self, asleep: bool) {
        self.state = self.state & !ASLEEP | if asleep { ASLEEP } else { 0 };
        self.memory.store(AGENT, self.state, Relaxed);
    }

    /// Whether there are submissions that neither [`front`](Self::front) nor an earlier call has polled. A submission
    /// that was polled and has to wait does not keep the agent awake. A full fence must precede the call, so that a
    /// client that submits later reads that the agent sleeps.
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

    /// Whether the client sleeps and has to be woken. To be called once after publishing completions and a full fence.
    #[inline]
    pub fn wake_wanted(&self) -> bool {
        clear_sleep_bit(&self.memory, CLIENT)
    }
}

impl AgentEnd {
    /// Copies `bytes` into the data area, from byte `at` on.
    ///
    /// # Panics
    /// If the range exceeds the data area; the caller has checked the submission.
    #[inline]
    pub fn put(&self, at: usize, bytes: &[u8]) {
        self.memory.put(DATA + at, bytes);
    }

    /// Copies the data area into `bytes`, from byte `at` on.
    ///
    /// # Panics
    /// As [`put`](Self::put).
    #[inline]
    pub fn copy(&self, at: usize, bytes: &mut [u8]) {
        self.memory.take(DATA + at, bytes);
    }
}

/// The client's end of a port, which writes submissions and reads completions.
#[derive(Debug)]
pub struct ClientEnd<M = SharedMemory> {
    memory: M,
    sq_tail: u64,
    cq_head: u64,
    /// The published word: the client's CPU, and whether the client sleeps.
    state: u64,
}

impl<M: RingMemory> ClientEnd<M> {
    /// Returns the client's end over memory that an agent created; `None` if the memory has another version's
    /// layout.
    pub fn new(memory: M) -> Option<ClientEnd<M>> {
        let known = memory.acquire(0) == [MAGIC, ENTRIES as u64];
        known.then_some(ClientEnd { memory, sq_tail: 0, cq_head: 0, state: 0 })
    }

    /// Writes a submission. The caller keeps at most [`ENTRIES`] operations whose completions are not taken.
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

    /// Takes the oldest completion, if any; `line` receives the line of a completed read.
    #[inline]
    pub fn take(&mut self, line: &mut Line) -> Option<Completion> {
        let what = arrived(&self.memory, COMPLETIONS, self.cq_head)?;
        let entry = place(COMPLETIONS, self.cq_head);
        let [detail] = self.memory.copy_out(entry + 1);
        let status = Status::decode(number(what), detail);
        if status == Status::Done {
            *line = take_line(&self.memory, entry);
        }
        self.cq_head = self.cq_head.wrapping_add(1);
        self.memory.store(CQ_HEAD, self.cq_head, Release);
        Some(Completion { tag: (what >> 32) as u32, status })
    }

    /// Publishes the CPU on which the client waits. Returns whether the agent is awake on the same CPU.
    #[inline]
    pub(crate) fn shares_cpu(&mut self, cpu: u32) -> bool {
        let state = encode_cpu(cpu) | self.state & ASLEEP;
        if self.state != state {
            self.state = state;
            self.memory.store(CLIENT, state, Relaxed);
        }
        self.memory.copy_out(AGENT) == [encode_cpu(cpu)]
    }

    /// Whether a completion can be taken.
    #[inline]
    pub fn news(&self) -> bool {
        arrived(&self.memory, COMPLETIONS, self.cq_head).is_some()
    }

    /// Publishes whether the client is about to sleep, with a full fence. Check [`news`](Self::news) before sleeping.
    #[inline]
    pub fn set_asleep(&mut self, asleep: bool) {
        self.state = self.state & !ASLEEP | if asleep { ASLEEP } else { 0 };
        self.memory.store(CLIENT, self.state, Relaxed);
        self.memory.fence();
    }

    /// Whether the agent sleeps and has to be woken. To be called once after submitting.
    #[inline]
    pub fn wake_wanted(&self) -> bool {
        self.memory.fence();
        clear_sleep_bit(&self.memory, AGENT)
    }
}

impl ClientEnd {
    /// The shared memory, and the offset of the data area in that memory.
    #[inline]
    pub fn data(&self) -> (&SharedMemory, usize) {
        (&self.memory, DATA)
    }

    /// The shared memory, for tests that act as a hostile client.
    #[cfg(test)]
    #[inline]
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }
}

#[cfg(test)]
mod tests;

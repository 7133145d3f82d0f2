//! Two rings in shared memory, submissions one way and completions the other, each with one writer and one
//! reader.
//!
//! ```text
//!   word 0    16       32       48       64       80           96            512             512 + 16 N
//!   | magic | SQ tail | SQ head | CQ tail | CQ head | agent    | client   | N submissions | N completions |
//!   |       | client  | agent   | agent   | client  | sleeps   | sleeps   | 128 bytes     | 128 bytes     |
//! ```
//!
//! Each index stands alone in its pair of cache lines and counts up for ever; its low bits are the place. A
//! writer fills a place, then stores its tail (release); a reader loads the tail (acquire), reads, then stores
//! its head. Each end keeps its own indices in private memory and only publishes them, so that the other end
//! can spoil nothing but what it is told; the index of the other end is checked when it is read
//! ([`RingBroken`]), and entries are copied out before they are looked at.
//!
//! Who runs out of work says so in its `sleeps` word, looks once more, and sleeps; who gives it work clears the
//! word and wakes it ([`AgentEnd::wake_wanted`], [`ClientEnd::wake_wanted`]). Both sides put a full fence
//! between their write and their look, so that one of the two sees the other.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;

use cxloe_wire::frame::LINE_SIZE;

use super::memory::SharedMemory;
use super::status::Status;
use crate::cache::Line;

/// Places of each ring, a power of two: as many requests as one stream's window takes.
pub const ENTRIES: usize = 256;
/// Bytes of the shared memory of a port.
pub const PORT_BYTES: usize = (SUBMISSIONS + 2 * ENTRIES * ENTRY) * 8;

const MAGIC: u64 = 0x4358_4C6F_4550_0001;
const SQ_TAIL: usize = 16;
const SQ_HEAD: usize = 32;
const CQ_TAIL: usize = 48;
const CQ_HEAD: usize = 64;
const AGENT_SLEEPS: usize = 80;
const CLIENT_SLEEPS: usize = 96;
const SUBMISSIONS: usize = 512;
const COMPLETIONS: usize = SUBMISSIONS + ENTRIES * ENTRY;
/// Words of an entry: two of description at its start, the line in its second half.
const ENTRY: usize = 16;
const DATA: usize = 8;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The line at an HPA.
    Read,
    /// To write the line at an HPA.
    Write,
    /// To write back everything modified, whoever wrote it, after everything submitted before.
    Flush,
    /// A number without a meaning.
    Unknown(u32),
}

impl Operation {
    fn code(self) -> u32 {
        match self {
            Operation::Read => 1,
            Operation::Write => 2,
            Operation::Flush => 3,
            Operation::Unknown(code) => code,
        }
    }

    fn from_code(code: u32) -> Operation {
        match code {
            1 => Operation::Read,
            2 => Operation::Write,
            3 => Operation::Flush,
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

/// Entries between `from` and `to`, which the other end wrote.
#[inline]
fn distance(to: u64, from: u64) -> Result<usize, RingBroken> {
    match to.wrapping_sub(from) {
        ahead if ahead > ENTRIES as u64 => Err(RingBroken { ahead }),
        ahead => Ok(ahead as usize),
    }
}

#[inline]
fn place(base: usize, index: u64) -> usize {
    base + (index as usize & (ENTRIES - 1)) * ENTRY
}

fn put_line(memory: &SharedMemory, entry: usize, line: &Line) {
    for (i, word) in line.as_chunks::<8>().0.iter().enumerate() {
        memory.word(entry + DATA + i).store(u64::from_ne_bytes(*word), Relaxed);
    }
}

fn take_line(memory: &SharedMemory, entry: usize) -> Line {
    let mut line = [0; LINE_SIZE];
    for (i, word) in line.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = memory.word(entry + DATA + i).load(Relaxed).to_ne_bytes();
    }
    line
}

/// The agent's end.
#[derive(Debug)]
pub struct AgentEnd {
    memory: SharedMemory,
    sq_head: u64,
    /// The client's tail when it was looked at last.
    sq_seen: u64,
    cq_tail: u64,
}

impl AgentEnd {
    /// Over fresh memory of [`PORT_BYTES`] bytes.
    pub fn new(memory: SharedMemory) -> AgentEnd {
        memory.word(1).store(ENTRIES as u64, Relaxed);
        memory.word(0).store(MAGIC, Release);
        AgentEnd { memory, sq_head: 0, sq_seen: 0, cq_tail: 0 }
    }

    /// The memory, to be sent to the client.
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Submissions not yet taken.
    ///
    /// # Errors
    /// [`RingBroken`]; give the client up.
    #[inline]
    pub fn pending(&mut self) -> Result<usize, RingBroken> {
        self.sq_seen = self.memory.word(SQ_TAIL).load(Acquire);
        distance(self.sq_seen, self.sq_head)
    }

    /// The oldest submission; valid if [`pending`](Self::pending) is not 0.
    #[inline]
    pub fn front(&self) -> Submission {
        let entry = place(SUBMISSIONS, self.sq_head);
        let what = self.memory.word(entry).load(Relaxed);
        Submission {
            tag: (what >> 32) as u32,
            operation: Operation::from_code(what as u32),
            hpa: self.memory.word(entry + 1).load(Relaxed),
        }
    }

    /// The line that the oldest submission brings.
    #[inline]
    pub fn front_line(&self) -> Line {
        take_line(&self.memory, place(SUBMISSIONS, self.sq_head))
    }

    /// Gives the place of the oldest submission back.
    #[inline]
    pub fn release(&mut self) {
        self.sq_head = self.sq_head.wrapping_add(1);
        self.memory.word(SQ_HEAD).store(self.sq_head, Release);
    }

    /// Free places for completions.
    ///
    /// # Errors
    /// [`RingBroken`]; give the client up.
    #[inline]
    pub fn room(&self) -> Result<usize, RingBroken> {
        let head = self.memory.word(CQ_HEAD).load(Acquire);
        Ok(ENTRIES - distance(self.cq_tail, head)?)
    }

    /// Publishes a completion; whoever takes submissions has seen to it that there is room.
    #[inline]
    pub fn complete(&mut self, completion: Completion, line: Option<&Line>) {
        let entry = place(COMPLETIONS, self.cq_tail);
        let (code, detail) = completion.status.encode();
        if let Some(line) = line {
            put_line(&self.memory, entry, line);
        }
        self.memory.word(entry).store(u64::from(completion.tag) << 32 | u64::from(code), Relaxed);
        self.memory.word(entry + 1).store(detail, Relaxed);
        self.cq_tail = self.cq_tail.wrapping_add(1);
        self.memory.word(CQ_TAIL).store(self.cq_tail, Release);
    }

    /// Says that the agent is about to sleep, or is awake again. Look at [`news`](Self::news) in between.
    pub fn set_asleep(&self, asleep: bool) {
        self.memory.word(AGENT_SLEEPS).store(u64::from(asleep), Relaxed);
    }

    /// Whether something was submitted since [`pending`](Self::pending). After a full fence.
    pub fn news(&self) -> bool {
        self.memory.word(SQ_TAIL).load(Acquire) != self.sq_seen
    }

    /// Whether the client sleeps and has to be woken; asked once after completions were published, behind a
    /// full fence.
    #[inline]
    pub fn wake_wanted(&self) -> bool {
        let asleep = self.memory.word(CLIENT_SLEEPS);
        asleep.load(Relaxed) != 0 && asleep.swap(0, Relaxed) != 0
    }
}

/// The client's end.
#[derive(Debug)]
pub struct ClientEnd {
    memory: SharedMemory,
    sq_tail: u64,
    cq_head: u64,
}

impl ClientEnd {
    /// Over memory that an agent made; `None` if it is none of this version's.
    pub fn new(memory: SharedMemory) -> Option<ClientEnd> {
        let known = memory.word(0).load(Acquire) == MAGIC && memory.word(1).load(Relaxed) == ENTRIES as u64;
        known.then_some(ClientEnd { memory, sq_tail: 0, cq_head: 0 })
    }

    /// Submits; the caller never has more than [`ENTRIES`] operations without a completion taken.
    #[inline]
    pub fn submit(&mut self, submission: Submission, line: Option<&Line>) {
        let entry = place(SUBMISSIONS, self.sq_tail);
        let Submission { tag, operation, hpa } = submission;
        self.memory.word(entry).store(u64::from(tag) << 32 | u64::from(operation.code()), Relaxed);
        self.memory.word(entry + 1).store(hpa, Relaxed);
        if let Some(line) = line {
            put_line(&self.memory, entry, line);
        }
        self.sq_tail = self.sq_tail.wrapping_add(1);
        self.memory.word(SQ_TAIL).store(self.sq_tail, Release);
    }

    /// Takes the oldest completion; `line` gets the line of a read that is done.
    ///
    /// # Errors
    /// [`RingBroken`]; give the agent up.
    #[inline]
    pub fn take(&mut self, line: &mut Line) -> Result<Option<Completion>, RingBroken> {
        if distance(self.memory.word(CQ_TAIL).load(Acquire), self.cq_head)? == 0 {
            return Ok(None);
        }
        let entry = place(COMPLETIONS, self.cq_head);
        let what = self.memory.word(entry).load(Relaxed);
        let status = Status::decode(what as u32, self.memory.word(entry + 1).load(Relaxed));
        if status == Status::Done {
            *line = take_line(&self.memory, entry);
        }
        self.cq_head = self.cq_head.wrapping_add(1);
        self.memory.word(CQ_HEAD).store(self.cq_head, Release);
        Ok(Some(Completion { tag: (what >> 32) as u32, status }))
    }

    /// Whether a completion is there.
    #[inline]
    pub fn news(&self) -> bool {
        self.memory.word(CQ_TAIL).load(Acquire) != self.cq_head
    }

    /// Says that the client is about to sleep, or is awake again; a fence, then look at [`news`](Self::news).
    pub fn set_asleep(&self, asleep: bool) {
        self.memory.word(CLIENT_SLEEPS).store(u64::from(asleep), Relaxed);
        fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// Whether the agent sleeps and has to be woken; asked once after submitting.
    #[inline]
    pub fn wake_wanted(&self) -> bool {
        fence(std::sync::atomic::Ordering::SeqCst);
        let asleep = self.memory.word(AGENT_SLEEPS);
        asleep.load(Relaxed) != 0 && asleep.swap(0, Relaxed) != 0
    }

    /// The memory, for tests that play a hostile client.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.memory
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::thread;

    use cxloe_wire::frame::Mac;
    use proptest::prelude::*;

    use super::*;
    use crate::engine::EngineError;

    fn pair() -> (AgentEnd, ClientEnd) {
        let agent = AgentEnd::new(SharedMemory::create(PORT_BYTES).unwrap());
        let copy = agent.memory().descriptor().try_clone_to_owned().unwrap();
        let client = ClientEnd::new(SharedMemory::open(copy, PORT_BYTES).unwrap()).unwrap();
        (agent, client)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Submit(Operation, u64, u8),
        Serve,
        Complete(Status),
        Take,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let operation = prop_oneof![
            Just(Operation::Read),
            Just(Operation::Write),
            Just(Operation::Flush),
            (4..u32::MAX).prop_map(Operation::Unknown)
        ];
        let status = prop_oneof![
            Just(Status::Done),
            Just(Status::BadOperation),
            any::<u64>().prop_map(|hpa| Status::Failed(EngineError::Unmapped(hpa))),
            Just(Status::Failed(EngineError::NotConnected(Mac([2, 0, 0, 0, 0, 1])))),
        ];
        let step = prop_oneof![
            4 => (operation, any::<u64>(), any::<u8>()).prop_map(|(o, h, b)| Step::Submit(o, h, b)),
            3 => Just(Step::Serve),
            3 => status.prop_map(Step::Complete),
            3 => Just(Step::Take),
        ];
        proptest::collection::vec(step, 0..3000)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Whatever the order of steps, both rings hand over everything, once, in order, unchanged.
        #[test]
        fn both_rings_are_queues(steps in steps()) {
            let (mut agent, mut client) = pair();
            let mut submitted = VecDeque::new();
            let mut served = VecDeque::new();
            let mut completed = VecDeque::new();
            let (mut next_tag, mut unfinished) = (0_u32, 0);
            for step in steps {
                match step {
                    Step::Submit(operation, hpa, byte) if unfinished < ENTRIES => {
                        let submission = Submission { tag: next_tag, operation, hpa };
                        client.submit(submission, Some(&[byte; LINE_SIZE]));
                        submitted.push_back((submission, byte));
                        next_tag = next_tag.wrapping_add(1);
                        unfinished += 1;
                    }
                    Step::Serve => {
                        prop_assert_eq!(agent.pending().unwrap(), submitted.len());
                        if let Some((submission, byte)) = submitted.pop_front() {
                            prop_assert_eq!(agent.front(), submission);
                            prop_assert_eq!(agent.front_line(), [byte; LINE_SIZE]);
                            agent.release();
                            served.push_back((submission.tag, byte));
                        }
                    }
                    Step::Complete(status) => {
                        if let Some((tag, byte)) = served.pop_front() {
                            prop_assert!(agent.room().unwrap() > 0);
                            agent.complete(Completion { tag, status }, Some(&[!byte; LINE_SIZE]));
                            completed.push_back((Completion { tag, status }, !byte));
                        }
                    }
                    Step::Take => {
                        let mut line = [0; LINE_SIZE];
                        prop_assert_eq!(client.news(), !completed.is_empty());
                        let taken = client.take(&mut line).unwrap();
                        let expected = completed.pop_front();
                        prop_assert_eq!(taken, expected.map(|(completion, _)| completion));
                        if let Some((Completion { status: Status::Done, .. }, byte)) = expected {
                            prop_assert_eq!(line, [byte; LINE_SIZE]);
                        }
                        unfinished -= usize::from(taken.is_some());
                    }
                    Step::Submit(..) => {}
                }
            }
        }

        /// A client may write what it likes: the agent says "broken" or finds entries to copy, never more
        /// than the ring has.
        #[test]
        fn a_hostile_client_is_only_ever_wrong(
            writes in proptest::collection::vec((0..PORT_BYTES / 8, any::<u64>()), 0..200),
            tail: u64,
            head: u64,
        ) {
            let (mut agent, client) = pair();
            for (word, value) in writes {
                client.memory().word(word).store(value, Relaxed);
            }
            client.memory().word(SQ_TAIL).store(tail, Relaxed);
            client.memory().word(CQ_HEAD).store(head, Relaxed);
            match agent.pending() {
                Ok(pending) => {
                    prop_assert!(pending <= ENTRIES && pending as u64 == tail);
                    for _ in 0..pending {
                        let _ = (agent.front(), agent.front_line());
                        agent.release();
                    }
                    prop_assert_eq!(agent.pending(), Ok(0));
                }
                Err(RingBroken { ahead }) => prop_assert_eq!(ahead, tail),
            }
            let consistent = 0_u64.wrapping_sub(head) <= ENTRIES as u64;
            prop_assert_eq!(agent.room().is_ok(), consistent);
        }
    }

    #[test]
    fn two_threads_lose_nothing() {
        const COUNT: u32 = 200_000;
        let (mut agent, mut client) = pair();
        let echo = thread::spawn(move || {
            let mut done = 0;
            while done < COUNT {
                if agent.pending().unwrap() == 0 {
                    thread::yield_now();
                    continue;
                }
                let (tag, line) = (agent.front().tag, agent.front_line());
                agent.release();
                agent.complete(Completion { tag, status: Status::Done }, Some(&line));
                done += 1;
            }
        });
        let (mut sent, mut got) = (0_u32, 0_u32);
        let mut line = [0; LINE_SIZE];
        while got < COUNT {
            while sent < COUNT && sent - got < ENTRIES as u32 {
                let submission = Submission { tag: sent, operation: Operation::Read, hpa: 0 };
                client.submit(submission, Some(&[sent as u8; LINE_SIZE]));
                sent += 1;
            }
            match client.take(&mut line).unwrap() {
                Some(Completion { tag, .. }) => {
                    assert_eq!((tag, line), (got, [got as u8; LINE_SIZE]));
                    got += 1;
                }
                None => thread::yield_now(),
            }
        }
        echo.join().unwrap();
    }

    #[test]
    fn a_sleeper_is_woken_once() {
        let (mut agent, mut client) = pair();
        assert!(!client.wake_wanted() && !agent.wake_wanted());
        assert_eq!(agent.pending(), Ok(0));
        agent.set_asleep(true);
        assert!(!agent.news());
        client.submit(Submission { tag: 1, operation: Operation::Flush, hpa: 0 }, None);
        assert!(agent.news() && client.wake_wanted() && !client.wake_wanted());
        client.set_asleep(true);
        agent.complete(Completion { tag: 1, status: Status::Done }, None);
        assert!(client.news() && agent.wake_wanted() && !agent.wake_wanted());
    }
}

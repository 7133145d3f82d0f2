//! Operations on more than a line: one by one, for those who keep many under way themselves, and as calls that move bytes.

use std::os::fd::{AsFd, BorrowedFd};

use cxloe_wire::frame::LINE_SIZE;

use super::{Client, ClientError};
use crate::memory::SharedMemory;
use crate::ring::{Completion, DATA_BYTES, Lines, Operation, Submission};
use crate::status::Status;
use cxloe_cn_core::cache::Line;
use cxloe_cn_core::engine::EngineError;

/// Bytes of one operation of a call: a part of the data area, so that copying and moving go on side by side.
const SHARE: usize = 128 << 10;
/// Operations of a call at once.
const SHARES: usize = DATA_BYTES / SHARE;

/// An operation's tag, and how it ended.
pub type Ended = (u32, Result<(), EngineError>);

/// Which way the bytes of a call go.
enum Bytes<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

impl Bytes<'_> {
    fn len(&self) -> usize {
        match self {
            Bytes::Read(out) => out.len(),
            Bytes::Write(data) => data.len(),
        }
    }
}

impl Client {
    /// Reads `out.len()` bytes (whole lines) from `hpa` on.
    ///
    /// # Errors
    /// As [`read`](Self::read); `out` may have been changed in part.
    ///
    /// # Panics
    /// If they are not whole lines.
    pub fn read_bytes(&mut self, hpa: u64, out: &mut [u8]) -> Result<(), ClientError> {
        self.move_bytes(hpa, Bytes::Read(out))
    }

    /// Writes `data` (whole lines) from `hpa` on. Done means that memory nodes have it.
    ///
    /// # Errors
    /// As [`read`](Self::read); a part may have been written.
    ///
    /// # Panics
    /// If they are not whole lines.
    pub fn write_bytes(&mut self, hpa: u64, data: &[u8]) -> Result<(), ClientError> {
        self.move_bytes(hpa, Bytes::Write(data))
    }

    /// The first error is returned once all that were begun have ended.
    fn move_bytes(&mut self, hpa: u64, mut bytes: Bytes<'_>) -> Result<(), ClientError> {
        assert!(bytes.len().is_multiple_of(LINE_SIZE), "whole lines");
        if self.gone {
            return Err(ClientError::AgentGone(self.path.clone()));
        }
        // What the share with this number, which is its operation's tag as well, carries.
        let mut carried = [(0, 0); SHARES];
        let mut free = u32::MAX >> (u32::BITS as usize - SHARES);
        let all = free;
        let (mut begun, mut error) = (0, None);
        loop {
            let before = begun;
            while begun < bytes.len() && free != 0 && error.is_none() {
                let share = free.trailing_zeros();
                let place = share as usize * SHARE;
                let length = SHARE.min(bytes.len() - begun);
                let lines = Lines { at: (place / LINE_SIZE) as u32, count: (length / LINE_SIZE) as u32 };
                let operation = match &bytes {
                    Bytes::Read(_) => Operation::ReadBytes(lines),
                    Bytes::Write(data) => {
                        let (memory, base) = self.data();
                        memory.put(base + place, &data[begun..begun + length]);
                        Operation::WriteBytes(lines)
                    }
                };
                self.submit(Submission { tag: share, operation, hpa: hpa.wrapping_add(begun as u64) }, None);
                carried[share as usize] = (begun, length);
                free &= !(1 << share);
                begun += length;
            }
            if free == all {
                return error.map_or(Ok(()), |error: EngineError| Err(error.into()));
            }
            if begun > before {
                self.kick()?;
            }
            if bytes.len() <= SHARE {
                self.wait()?;
            // What takes longer is slept for: spinning takes the processor from those who move it.
            } else if !self.news() {
                self.wait_longer()?;
            }
            while let Some((share, outcome)) = self.take()? {
                if share >= SHARES as u32 || free >> share & 1 == 1 {
                    return Err(
                        self.broken(format!("a completion of operation {share}, which is none of mine"))
                    );
                }
                free |= 1 << share;
                match (outcome, &mut bytes) {
                    (Ok(()), Bytes::Read(out)) => {
                        let (from, length) = carried[share as usize];
                        let (memory, base) = self.data();
                        memory.take(base + share as usize * SHARE, &mut out[from..from + length]);
                    }
                    (Ok(()), Bytes::Write(_)) => {}
                    (Err(failed), _) => drop(error.get_or_insert(failed)),
                }
            }
        }
    }

    /// Submits an operation; there are never more than [`ENTRIES`](crate::ring::ENTRIES) without a completion taken.
    pub fn submit(&mut self, submission: Submission, line: Option<&Line>) {
        self.end.submit(submission, line);
    }

    /// Wakes the agent, if it sleeps, for what was submitted.
    pub fn kick(&mut self) -> Result<(), ClientError> {
        if self.end.wake_wanted() { self.wake_agent() } else { Ok(()) }
    }

    /// The oldest completion: the operation's tag, and how it ended.
    pub fn take(&mut self) -> Result<Option<Ended>, ClientError> {
        let mut line = [0; LINE_SIZE];
        let Some(Completion { tag, status }) = self.end.take(&mut line) else { return Ok(None) };
        match status {
            Status::Done => Ok(Some((tag, Ok(())))),
            Status::Failed(error) => Ok(Some((tag, Err(error)))),
            Status::BadOperation => Err(self.broken("it does not know the operation")),
            Status::Unknown(code) => Err(self.broken(format!("status {code}"))),
        }
    }

    /// The shared memory, and the byte of it that is the data area's first.
    pub fn data(&self) -> (&SharedMemory, usize) {
        self.end.data()
    }

    /// Whether a completion is there.
    pub fn news(&self) -> bool {
        self.end.news()
    }

    /// Says that the client is about to sleep on its descriptor, or is awake again. Look at [`news`](Self::news) in
    /// between.
    pub fn set_asleep(&mut self, asleep: bool) {
        self.end.set_asleep(asleep);
    }

    /// Takes what has woken the client off its descriptor.
    pub fn hear(&mut self) -> Result<(), ClientError> {
        self.take_wakes()
    }

    /// An error of an agent that has said nothing for too long; nothing works any more.
    pub fn silent(&mut self) -> ClientError {
        self.gone = true;
        ClientError::Silent { path: self.path.clone(), limit: super::OPERATION_TIMEOUT }
    }
}

/// What to wait on for completions; who waits says so first.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

//! Operations on more than a line: calls that move bytes, and single operations for callers that keep many in flight.

use std::os::fd::{AsFd, BorrowedFd};

use cxloe_wire::frame::LINE_SIZE;

use super::Port;
use crate::client::{ClientError, OPERATION_TIMEOUT};
use crate::memory::SharedMemory;
use crate::ring::{Completion, DATA_BYTES, Lines, Operation, Submission};
use crate::status::Status;
use cxloe_cn_core::cache::Line;
use cxloe_cn_core::engine::EngineError;

/// Number of bytes of one operation of a call. Each operation uses one share of the data area, so that copying and
/// transfer overlap.
const SHARE: usize = 128 << 10;
/// Maximum number of operations of a call in flight, each with one share of the data area.
const SHARES: usize = DATA_BYTES / SHARE;

/// Tag of an operation, and its result.
pub type BulkCompletion = (u32, Result<(), EngineError>);

/// Direction of a call, with the caller's buffer.
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

impl Port {
    /// Reads `out.len()` bytes (whole lines) from `hpa` on.
    ///
    /// # Errors
    /// As [`read`](Self::read); `out` may have been changed in part.
    ///
    /// # Panics
    /// If the length is not a multiple of the line size.
    pub fn read_bytes(&mut self, hpa: u64, out: &mut [u8]) -> Result<(), ClientError> {
        self.move_bytes(hpa, Bytes::Read(out))
    }

    /// Writes `data` (whole lines) from `hpa` on, and returns once memory nodes have the data.
    ///
    /// # Errors
    /// As [`read`](Self::read); a part may have been written.
    ///
    /// # Panics
    /// If the length is not a multiple of the line size.
    pub fn write_bytes(&mut self, hpa: u64, data: &[u8]) -> Result<(), ClientError> {
        self.move_bytes(hpa, Bytes::Write(data))
    }

    /// Transfers all bytes between the caller's buffer and remote memory. After an error, no further operation is
    /// begun, and the first error is returned when those in flight have ended.
    fn move_bytes(&mut self, hpa: u64, mut bytes: Bytes<'_>) -> Result<(), ClientError> {
        assert!(bytes.len().is_multiple_of(LINE_SIZE), "whole lines");
        if self.gone {
            return Err(ClientError::AgentGone(self.path.clone()));
        }
        // Range of bytes that each share carries; the index of the share is also the tag of its operation.
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
            // A long transfer sleeps: spinning would take the processor from the agent that performs the transfer.
            } else if !self.news() {
                self.wait_longer()?;
            }
            while let Some((share, outcome)) = self.take()? {
                if share >= SHARES as u32 || free >> share & 1 == 1 {
                    return Err(self.broken(format!("unknown operation tag {share}")));
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

    /// Submits an operation. At most [`ENTRIES`](crate::ring::ENTRIES) operations may have a completion that is not
    /// taken.
    pub fn submit(&mut self, submission: Submission, line: Option<&Line>) {
        self.end.submit(submission, line);
    }

    /// Wakes the agent if it sleeps. To be called after submissions.
    pub fn kick(&mut self) -> Result<(), ClientError> {
        if self.end.wake_wanted() { self.wake_agent() } else { Ok(()) }
    }

    /// Takes the oldest completion, if any: the operation's tag and its result.
    pub fn take(&mut self) -> Result<Option<BulkCompletion>, ClientError> {
        let mut line = [0; LINE_SIZE];
        let Some(Completion { tag, status }) = self.end.take(&mut line) else { return Ok(None) };
        match status {
            Status::Done => Ok(Some((tag, Ok(())))),
            Status::Failed(error) => Ok(Some((tag, Err(error)))),
            Status::BadOperation => Err(self.broken("it does not know the operation")),
            Status::Unknown(code) => Err(self.broken(format!("status {code}"))),
        }
    }

    /// The shared memory, and the offset of the port's data area in that memory.
    pub fn data(&self) -> (&SharedMemory, usize) {
        self.end.data()
    }

    /// Whether a completion can be taken.
    pub fn news(&self) -> bool {
        self.end.news()
    }

    /// Publishes that the client is about to sleep on its descriptor, or is awake again. Check [`news`](Self::news)
    /// between publishing and sleeping.
    pub fn set_asleep(&mut self, asleep: bool) {
        self.end.set_asleep(asleep);
    }

    /// Removes wake-ups from the descriptor, so that the next poll waits.
    pub fn drain_wakeups(&mut self) -> Result<(), ClientError> {
        self.take_wakes()
    }

    /// Marks the port as unusable because the agent has not answered in time, and returns the error.
    pub fn silent(&mut self) -> ClientError {
        self.gone = true;
        ClientError::Silent { path: self.path.clone(), limit: OPERATION_TIMEOUT }
    }
}

/// Descriptor to poll for completions; call [`Port::set_asleep`] before polling.
impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

//! An entry of the retry buffer: a request from its sending to its answer.

use crate::frame::{FaultStatus, LINE_SIZE};
use crate::session::slab::{Handle, NONE, Slab};
use crate::time::Time;

/// What an entry asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Read,
    Write,
    BurstRead { lines: u8 },
    BurstWrite { mask: u64 },
}

impl Op {
    #[inline]
    pub fn is_read(self) -> bool {
        matches!(self, Op::Read | Op::BurstRead { .. })
    }

    /// Bytes of line data that travel with it, one way or the other.
    #[inline]
    pub fn data_len(self) -> usize {
        LINE_SIZE
            * match self {
                Op::Read | Op::Write => 1,
                Op::BurstRead { lines } => usize::from(lines),
                Op::BurstWrite { mask } => mask.count_ones() as usize,
            }
    }

    /// Whether `answer` is one to it.
    #[inline]
    pub fn fits(self, answer: Answer<'_>) -> bool {
        match answer {
            Answer::Data(data) => self.is_read() && data.len() == self.data_len(),
            Answer::Done => !self.is_read(),
            Answer::Fault(_) => true,
        }
    }

    /// Bytes behind the header of its frame or of its answer's, whichever has more (R13).
    #[inline]
    pub fn payload_len(self) -> usize {
        self.data_len()
            + match self {
                Op::Read | Op::Write => 0,
                Op::BurstRead { .. } => 1,
                Op::BurstWrite { .. } => 8,
            }
    }
}

/// What has come back for an entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer<'a> {
    Data(&'a [u8]),
    Done,
    Fault(FaultStatus),
}

/// An answer that waits for earlier ones (R2).
#[derive(Clone, Copy, Debug)]
pub(super) enum Early {
    None,
    Data(Handle),
    Done,
    Fault(FaultStatus),
}

impl Early {
    #[inline]
    pub fn is_none(&self) -> bool {
        matches!(self, Early::None)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub op: Op,
    pub addr: u64,
    pub token: u64,
    /// Data of a write, for sending again.
    pub payload: Handle,
    pub last_sent: Time,
    /// Transmissions in this session.
    pub sends: u32,
    /// The memory node has it in its reorder buffer (R5).
    pub sacked: bool,
    pub early: Early,
}

impl Entry {
    pub const EMPTY: Entry = Entry {
        op: Op::Read,
        addr: 0,
        token: 0,
        payload: NONE,
        last_sent: Time::ZERO,
        sends: 0,
        sacked: false,
        early: Early::None,
    };

    /// What it is to write; empty for a read.
    #[inline]
    pub fn data<'a>(&self, buffers: &'a Buffers) -> &'a [u8] {
        if self.payload == NONE { &[] } else { buffers.writes.get(self.payload, self.op.data_len()) }
    }
}

/// Buffers shared by the streams of a session.
pub(super) struct Buffers {
    /// Data of writes not yet answered.
    pub writes: Slab,
    /// Answers that came early (R2).
    pub early: Slab,
}

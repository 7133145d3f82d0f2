//! Entry of the retry buffer: a request from its transmission to its answer.

use crate::frame::{FaultStatus, LINE_SIZE};
use crate::session::slab::{Handle, NONE, Slab};
use crate::time::Time;

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

    /// Number of bytes of line data: in the request frame of a write, in the answer of a read.
    #[inline]
    pub fn data_len(self) -> usize {
        LINE_SIZE
            * match self {
                Op::Read | Op::Write => 1,
                Op::BurstRead { lines } => usize::from(lines),
                Op::BurstWrite { mask } => mask.count_ones() as usize,
            }
    }

    /// Whether `answer` has the form that this operation needs.
    #[inline]
    pub fn fits(self, answer: EntryAnswer<'_>) -> bool {
        match answer {
            EntryAnswer::Data(data) => self.is_read() && data.len() == self.data_len(),
            EntryAnswer::Done => !self.is_read(),
            EntryAnswer::Fault(_) => true,
        }
    }

    /// Number of payload bytes of the request frame or of the answer, whichever has more (R13).
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

#[derive(Clone, Copy, Debug)]
pub(super) enum EntryAnswer<'a> {
    Data(&'a [u8]),
    Done,
    Fault(FaultStatus),
}

/// Answer that came early, kept until the answers to all earlier requests have come (R2).
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
    /// Buffer with the data of a write, needed if the write must be sent again.
    pub payload: Handle,
    pub last_sent: Time,
    /// Number of times that the request was sent in this session; only a request sent once gives a sample of the round
    /// trip.
    pub sends: u32,
    /// True if a SACK has shown that the request is in the memory node's reorder buffer (R5).
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

    #[inline]
    pub fn data<'a>(&self, buffers: &'a Buffers) -> &'a [u8] {
        if self.payload == NONE { &[] } else { buffers.writes.get(self.payload, self.op.data_len()) }
    }
}

/// Buffers that all streams of a session share.
pub(super) struct Buffers {
    /// Data of unanswered writes.
    pub writes: Slab,
    /// Data of early answers (R2).
    pub early: Slab,
}

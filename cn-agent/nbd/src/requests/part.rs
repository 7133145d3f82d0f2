//! Types for requests and their parts.

use std::time::{Duration, Instant};

use cxloe_wire::frame::LINE_SIZE;

use super::super::blocks::Run;
use cxloe_client::ring::Operation;

pub(super) const LINE: u64 = LINE_SIZE as u64;

/// An operation to be submitted to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortOrder {
    /// Number by which the completion is recognised.
    pub tag: u32,
    /// Offset of the first byte in the region, a multiple of the line size.
    pub offset: u64,
    pub operation: Operation,
    /// Offset in the data area of the line that a patch writes; `None` for zeros.
    pub line: Option<usize>,
}

/// Maximum wait of a request, counted from `now`.
#[derive(Clone, Copy, Debug)]
pub struct RetryLimit {
    pub now: Instant,
    /// Longest wait.
    pub most: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataHandling {
    /// A read whose data is sent part by part, as it arrives, or fits into one block.
    Read,
    /// A read whose data stays in its blocks until all of it has arrived.
    HeldRead,
    /// A read whose data is collected in memory of this process, because it is longer than half of the data area.
    StagedRead,
    /// A read whose data goes nowhere: it makes memory nodes fetch what their pools keep on disks.
    ReadAhead,
    Write,
    Zero,
}

impl DataHandling {
    pub fn is_read(self) -> bool {
        !matches!(self, DataHandling::Write | DataHandling::Zero)
    }
}

#[derive(Debug)]
pub(super) struct Slot {
    pub cookie: u64,
    pub way: DataHandling,
    pub offset: u64,
    pub length: u64,
    /// Number of bytes of the request that have been cut into parts.
    pub cut: u64,
    pub parts: u16,
    pub staged: Vec<u8>,
    pub failed: Option<String>,
    /// Time at which a waiting request fails; `None` if the request has not had to wait yet.
    pub until: Option<Instant>,
    /// Whether the client has gone, so that no answer is sent.
    pub mute: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartState {
    Filling,
    /// The part is to be submitted, now or later.
    Waiting,
    Given,
    /// The data of the part has arrived, and is kept until the data of the request's other parts has arrived.
    Held,
    /// The part's data is being sent.
    Sending,
}

/// A part of a request: one operation of the port.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestPart {
    pub slot: u16,
    pub offset: u64,
    pub length: u64,
    pub run: Option<Run>,
    pub state: PartState,
}

impl RequestPart {
    /// Offset in the region of the line that holds the part's first byte.
    pub fn line(&self) -> u64 {
        self.offset - self.within() as u64
    }

    /// Offset of the part's first byte in its line.
    pub fn within(&self) -> usize {
        (self.offset % LINE) as usize
    }

    pub fn lines(&self) -> u32 {
        (self.within() as u64 + self.length).div_ceil(LINE) as u32
    }

    /// Offset of the part's data in the data area.
    pub fn at(&self) -> usize {
        self.run.map_or(0, Run::at) + self.within()
    }
}

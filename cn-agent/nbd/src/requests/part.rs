//! What requests and their parts are.

use std::time::{Duration, Instant};

use cxloe_wire::frame::LINE_SIZE;

use super::super::blocks::Run;
use cxloe_client::ring::Operation;

/// Bytes of a line.
pub(super) const LINE: u64 = LINE_SIZE as u64;

/// An operation for the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// By which its end is known.
    pub tag: u32,
    /// The first byte, a line's.
    pub offset: u64,
    /// What to do.
    pub operation: Operation,
    /// Of a patch: where in the data area its line is, unless it is zeros.
    pub line: Option<usize>,
}

/// How long requests may wait, and since when.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// What time it is.
    pub now: Instant,
    /// How long.
    pub most: Duration,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Data is answered as it comes, or a whole answer fits a part.
    Read,
    /// Data stays in its blocks until all of it is there.
    HeldRead,
    /// The same of what is too long for that: data is collected in memory of this process.
    StagedRead,
    Write,
    Zero,
}

/// A request.
#[derive(Debug)]
pub(super) struct Slot {
    pub cookie: u64,
    pub way: Way,
    pub offset: u64,
    pub length: u64,
    /// How much of it has been cut into parts.
    pub cut: u64,
    /// Parts that have not ended.
    pub parts: u16,
    pub staged: Vec<u8>,
    pub failed: Option<String>,
    /// When it has waited long enough, once it waits.
    pub until: Option<Instant>,
    /// The client is not there any more to be answered.
    pub mute: bool,
}

/// Where a part stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Filling,
    /// To be given to the port, now or later.
    Waiting,
    Given,
    /// Its data waits for that of the other parts.
    Held,
    /// Its data is being sent.
    Sending,
}

/// A part of a request: one operation of the port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub slot: u16,
    pub offset: u64,
    pub length: u64,
    pub run: Option<Run>,
    pub state: State,
}

impl Part {
    /// Where its line begins in which its first byte is.
    pub fn line(&self) -> u64 {
        self.offset - self.within() as u64
    }

    /// Where it begins in its first line.
    pub fn within(&self) -> usize {
        (self.offset % LINE) as usize
    }

    pub fn lines(&self) -> u32 {
        (self.within() as u64 + self.length).div_ceil(LINE) as u32
    }

    /// The first byte of its data in the data area.
    pub fn at(&self) -> usize {
        self.run.map_or(0, Run::at) + self.within()
    }
}

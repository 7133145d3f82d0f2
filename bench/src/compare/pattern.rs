//! What is done to every peer alike: six access patterns, and how much of each.

use std::time::Duration;

/// Bytes of a line.
pub const LINE: usize = 64;
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of a block in which memory is moved in bulk where a peer moves it block by block.
pub const BLOCK: usize = 65536;

/// An access pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// One random line read at a time, until its bytes are here: a round trip.
    Read64,
    /// One random line written at a time, until it is known to have arrived: a round trip.
    Write64,
    /// One random page read at a time.
    Read4k,
    /// Random lines read with many requests in flight.
    Stream64,
    /// All memory read in order, as fast as it comes.
    BulkRead,
    /// All memory written in order, until the last byte is known to have arrived.
    BulkWrite,
}

impl Pattern {
    /// All of them, in the order of reports.
    pub const ALL: [Pattern; 6] = [
        Pattern::Read64,
        Pattern::Write64,
        Pattern::Read4k,
        Pattern::Stream64,
        Pattern::BulkRead,
        Pattern::BulkWrite,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Read64 => "read64",
            Pattern::Write64 => "write64",
            Pattern::Read4k => "read4k",
            Pattern::Stream64 => "stream64",
            Pattern::BulkRead => "bulk_read",
            Pattern::BulkWrite => "bulk_write",
        }
    }

    /// Whether it is timed operation by operation; the others are rates.
    pub fn is_time(self) -> bool {
        matches!(self, Pattern::Read64 | Pattern::Write64 | Pattern::Read4k)
    }

    /// Bytes of one operation.
    pub fn bytes(self) -> usize {
        match self {
            Pattern::Read64 | Pattern::Write64 | Pattern::Stream64 => LINE,
            Pattern::Read4k => PAGE,
            Pattern::BulkRead | Pattern::BulkWrite => BLOCK,
        }
    }
}

/// How much of each pattern a trial has.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Bytes of memory, a multiple of [`BLOCK`].
    pub bytes: usize,
    /// At most so many single operations.
    pub operations: u64,
    /// Or operations for about so long, whichever comes first.
    pub each: Duration,
    /// Requests in flight in streams.
    pub depth: usize,
}

/// Fewest operations that a pattern has, however long they take.
pub const OPERATIONS_MIN: u64 = 20;

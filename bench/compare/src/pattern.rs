//! Access patterns that every peer runs, and the numbers of their operations.

use std::time::Duration;

use super::trace::AccessTrace;

/// Bytes of a line, as in CXL and in a processor's cache.
pub const LINE: usize = 64;
/// Bytes of a page, the unit of page faults.
pub const PAGE: usize = 4096;
/// Bytes of a block, the unit of bulk transfers of a peer that cannot transfer all at once.
pub const BLOCK: usize = 65536;

cxloe_wire::named! {
    /// Access pattern, the same for all peers, in the order of reports. A trace is measured only if a file has one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Pattern {
        /// Reads of random lines, one at a time: each is a round trip that ends when its bytes have arrived.
        Read64 = "read64",
        /// Writes of random lines, one at a time: each is a round trip that ends with the acknowledgement.
        Write64 = "write64",
        /// Reads of random pages, one at a time.
        Read4k = "read4k",
        /// Reads of random lines with many requests in flight.
        Stream64 = "stream64",
        /// Read of the whole memory in order, as fast as possible.
        BulkRead = "bulk_read",
        /// Write of the whole memory in order, until the last byte is acknowledged.
        BulkWrite = "bulk_write",
        /// Accesses of a recorded trace in their order, one at a time, each in whole lines.
        Trace = "trace",
    }
}

impl Pattern {
    /// True if each operation is timed; the results of other patterns are rates.
    #[cfg(test)]
    pub(crate) fn is_time(self) -> bool {
        matches!(self, Pattern::Read64 | Pattern::Write64 | Pattern::Read4k | Pattern::Trace)
    }

    /// Bytes that one operation transfers; of a trace, at least.
    pub fn bytes(self) -> usize {
        match self {
            Pattern::Read64 | Pattern::Write64 | Pattern::Stream64 | Pattern::Trace => LINE,
            Pattern::Read4k => PAGE,
            Pattern::BulkRead | Pattern::BulkWrite => BLOCK,
        }
    }
}

/// Parameters of a trial, the same for all peers.
#[derive(Debug)]
pub struct Plan {
    /// Size of the memory in bytes, a multiple of [`BLOCK`].
    pub bytes: usize,
    /// Maximum number of single operations of a pattern.
    pub operations: u64,
    /// Approximate duration of a pattern; the pattern ends earlier if it completes `operations` operations.
    pub each: Duration,
    /// Number of requests in flight in a stream, and in an access of a trace that needs several.
    pub depth: usize,
    /// Trace to be replayed, all of it in each trial.
    pub trace: Option<AccessTrace>,
}

/// Minimum number of operations of a pattern, whatever time they take.
pub(crate) const OPERATIONS_MIN: u64 = 20;

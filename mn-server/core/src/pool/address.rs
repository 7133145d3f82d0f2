//! Addresses inside a pool. An MPMem address counts bytes from the start of the first extent; the superblock and the
//! page table before it have no MPMem address, so that no request can reach them.

use std::fmt;

/// Length of a line in bytes: CXL.mem transfers 64 bytes per access.
pub const LINE_BYTES: usize = 64;

/// A byte address in the memory pool (the paper's MPMem), from 0 to the pool's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MpAddr(pub u64);

impl fmt::Display for MpAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Number of an extent of the memory pool, from 0 to [`Pool::extents`](super::Pool::extents). Extents are the unit of
/// allocation: each belongs to at most one CN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MpExtent(pub u32);

impl fmt::Display for MpExtent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

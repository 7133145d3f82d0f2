//! Addresses inside a pool. An MPMem address counts bytes from the start of the first extent; the superblock
//! and the page table in front of it have no MPMem address, so that nothing a CN asks for can reach them.

use std::fmt;

/// Bytes in a line, the unit of every access (CXL.mem transfers 64 bytes).
pub const LINE_BYTES: usize = 64;

/// A byte address in the memory pool (the paper's MPMem), from 0 to the pool's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MpAddr(pub u64);

impl fmt::Display for MpAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The number of an extent of the memory pool, from 0 to [`Pool::extents`](super::Pool::extents). Extents
/// are the unit of allocation: one belongs to one CN at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MpExtent(pub u32);

impl fmt::Display for MpExtent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

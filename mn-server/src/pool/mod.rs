//! The pool: the memory that this node lends to compute nodes.
//!
//!
//!
//! A pool is one contiguous mapping of memory, huge pages, a file or a device ([`PoolSpec`]), laid out as superblock,
//! page table and extents. [`open()`] creates a pool or opens an existing one, checks that it fits the machine, and
//! populates its pages. When it has returned, the data path makes no system call for memory.
//!
//!
//!
//! [`cxloe_mn_core::pool`] is the pool as workers and the control thread use it.

mod file;
mod former;
mod host;
mod mapping;
mod open;

pub use cxloe_mn_core::pool::*;
pub use former::{Former, check as check_former};
pub use host::Host;
pub use open::{POOL_BYTES_DEFAULT, PoolOptions, memory_bytes, open};

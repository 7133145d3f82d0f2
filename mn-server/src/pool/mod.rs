//! The pool: the memory that this node lends to compute nodes.
//!
//! One contiguous mapping of anonymous memory, huge pages, a memfd, a file or a device ([`PoolSpec`]), laid
//! out as superblock, page table and extents. [`open()`] makes it or finds it again, checks that it fits
//! the machine, and brings its pages in; after that nothing on the data path asks the kernel for anything.
//!
//! The pool itself, as workers and control use it, is [`cxloe_mn_core::pool`].

mod file;
mod host;
mod mapping;
mod open;

pub use cxloe_mn_core::pool::*;
pub use host::Host;
pub use open::{POOL_BYTES_DEFAULT, PoolOptions, adopt, open};

//! Why a pool could not be opened or an extent not be readied. Each message says what to do.

use std::io;
use std::path::PathBuf;

use cxloe_fabric::model::ByteSize;

use super::spec::PoolSpec;

/// What can go wrong with a pool. Sizes are in bytes.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The size asked for is not a number of extents.
    #[error("a pool of {size} is not a whole number of {extent} extents; choose a multiple of {extent}")]
    Size {
        /// The size asked for.
        size: ByteSize,
        /// The extent size.
        extent: ByteSize,
    },
    /// The extent size is not a power of two in range.
    #[error("an extent of {0} is not possible; choose a power of two from 64KiB to 1GiB (2MiB is usual)")]
    ExtentSize(ByteSize),
    /// More extents than can be numbered.
    #[error("a pool of {size} has more extents than can be numbered; choose a larger --extent-size")]
    TooManyExtents {
        /// The size asked for.
        size: ByteSize,
    },
    /// Nothing is left beside the page table.
    #[error("{size} is too small: the page table takes at least 2MiB of it and an extent takes {extent}")]
    TooSmall {
        /// All there is.
        size: ByteSize,
        /// The extent size.
        extent: ByteSize,
    },
    /// More memory than there is.
    #[error(
        "a pool of {} needs more memory than the {} available here; choose a smaller --pool-size, stop other \
         programs, or put the pool into a file (--pool file:/path)",
        ByteSize(*.needed).approximate(), ByteSize(*.available).approximate()
    )]
    Memory {
        /// Bytes needed.
        needed: u64,
        /// Bytes available without swapping.
        available: u64,
    },
    /// More disk than there is.
    #[error(
        "the pool file {} needs {} more on its file system, which has {} free; choose a smaller --pool-size \
         or another file system", .path.display(), ByteSize(*.needed).approximate(), ByteSize(*.available).approximate()
    )]
    Disk {
        /// The pool's file.
        path: PathBuf,
        /// Bytes not yet allocated to it.
        needed: u64,
        /// Bytes free.
        available: u64,
    },
    /// Not enough pages in the kernel's reserve.
    #[error(
        "{pool} needs {needed} huge pages of {page} and {free} are free; reserve more: \
         `echo {reserve} > {knob}` (for 1 GiB pages at boot: hugepagesz=1G hugepages={reserve}), or use --pool anon"
    )]
    HugePages {
        /// The pool asked for.
        pool: PoolSpec,
        /// The size of a page.
        page: ByteSize,
        /// Pages needed.
        needed: u64,
        /// Pages free.
        free: u64,
        /// What to write into the reserve's size.
        reserve: u64,
        /// The file to write to.
        knob: PathBuf,
    },
    /// Another process serves this pool.
    #[error("{} is in use by another process (it holds the lock); stop it, or use another pool", .path.display())]
    Locked {
        /// The pool's file or device.
        path: PathBuf,
    },
    /// The file holds something else.
    #[error(
        "{} holds data that is not a memory pool and is left alone; name another file, or remove it",
        .path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The pool's description does not check out.
    #[error(
        "the superblock of {} is damaged or of another version ({why}); nothing in this pool can be trusted: \
         remove it to start an empty one", .path.display()
    )]
    Superblock {
        /// The pool's file or device.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The pool exists with another geometry.
    #[error(
        "{} is a pool of {found_size} in extents of {found_extent}, not of {size} in extents of {extent}; \
         drop --pool-size and --extent-size to use it as it is, or name another file", .path.display()
    )]
    Geometry {
        /// The pool's file or device.
        path: PathBuf,
        /// Its size.
        found_size: ByteSize,
        /// Its extent size.
        found_extent: ByteSize,
        /// The size asked for.
        size: ByteSize,
        /// The extent size asked for.
        extent: ByteSize,
    },
    /// A path of the wrong kind.
    #[error("{} is not {expected}", .path.display())]
    Kind {
        /// The path.
        path: PathBuf,
        /// What it should be.
        expected: &'static str,
    },
    /// No such NUMA node.
    #[error("there is no NUMA node {node} here ({online} are online); drop --numa-node or name one of those")]
    NumaNode {
        /// The node asked for.
        node: u32,
        /// The kernel's list.
        online: String,
    },
    /// Locking was refused.
    #[error(
        "cannot lock {} into memory: {source}; raise the limit (`ulimit -l unlimited`, LimitMEMLOCK=infinity) \
         or drop --mlock", ByteSize(*.bytes).approximate()
    )]
    Mlock {
        /// Bytes to lock.
        bytes: u64,
        /// The kernel's answer.
        source: io::Error,
    },
    /// An extent number that the pool does not have.
    #[error("extent {extent} does not exist: the pool has {extents}")]
    NoSuchExtent {
        /// The number asked for.
        extent: u32,
        /// How many there are.
        extents: u32,
    },
    /// Any other failure of a system call.
    #[error("cannot {what} for pool {pool}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The pool.
        pool: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

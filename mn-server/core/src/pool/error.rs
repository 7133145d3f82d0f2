//! Errors of opening a pool or preparing an extent. Each message names a remedy.

use std::io;
use std::path::{Path, PathBuf};

use cxloe_fabric::model::ByteSize;

use super::spec::PoolSpec;

const GIB: u64 = 1 << 30;

/// Errors of pools. Sizes are in bytes.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The size asked for is not a number of extents.
    #[error("a pool of {size} is not a whole number of {extent} extents; choose a multiple of {extent}")]
    Size {
        /// Size requested.
        size: ByteSize,
        /// Extent size of the pool.
        extent: ByteSize,
    },
    /// The extent size is not a power of two in range.
    #[error("an extent of {0} is not possible; choose a power of two from 64KiB to 1GiB (2MiB is usual)")]
    ExtentSize(ByteSize),
    /// More extents than can be numbered.
    #[error("a pool of {size} has more extents than can be numbered; choose a larger --extent-size")]
    TooManyExtents {
        /// Size requested.
        size: ByteSize,
    },
    /// The page table leaves no room for an extent.
    #[error("{size} is too small: the page table takes at least 2MiB of it and an extent takes {extent}")]
    TooSmall {
        /// Total size requested, head included.
        size: ByteSize,
        /// Extent size requested.
        extent: ByteSize,
    },
    /// More memory than there is.
    #[error(
        "a pool of {} needs more memory than the {} available here; choose a smaller --pool-size, stop other \
         programs, or put the pool into a file (--pool file:/path)",
        ByteSize(*.needed).approximate(), ByteSize(*.available).approximate()
    )]
    Memory {
        /// Bytes that the pool needs.
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
        /// Path of the pool file.
        path: PathBuf,
        /// Bytes that the file needs and has not been allocated yet.
        needed: u64,
        /// Bytes free on its file system.
        available: u64,
    },
    /// Not enough pages in the kernel's reserve.
    #[error(
        "{pool} needs {needed} huge pages of {page} and {free} are free; reserve more: \
         {}, or use --pool anon", reserving(*.page, *.reserve, .knob)
    )]
    HugePages {
        /// Kind of pool requested.
        pool: PoolSpec,
        /// Size of a huge page.
        page: ByteSize,
        /// Huge pages that the pool needs.
        needed: u64,
        /// Huge pages free on the machine.
        free: u64,
        /// Number of huge pages to write into `knob`.
        reserve: u64,
        /// File in `/sys` or `/proc` that sets the kernel's reserve.
        knob: PathBuf,
    },
    /// Another process serves this pool.
    #[error("{} is in use by another process (it holds the lock); stop it, or use another pool", .path.display())]
    Locked {
        /// Path of the pool's file or device.
        path: PathBuf,
    },
    /// The file holds something else.
    #[error(
        "{} holds data that is not a memory pool and is left alone; name another file, or remove it",
        .path.display()
    )]
    Foreign {
        /// Path of the file.
        path: PathBuf,
    },
    /// The superblock is not valid.
    #[error(
        "the superblock of {} is damaged or of another version ({why}); nothing in this pool can be trusted: \
         remove it to start an empty one", .path.display()
    )]
    Superblock {
        /// Path of the pool's file or device.
        path: PathBuf,
        /// Reason why the superblock is invalid.
        why: String,
    },
    /// The pool exists with another geometry.
    #[error(
        "{} is a pool of {found_size} in extents of {found_extent}, not of {size} in extents of {extent}; \
         drop --pool-size and --extent-size to use it as it is, or name another file", .path.display()
    )]
    Geometry {
        /// Path of the pool's file or device.
        path: PathBuf,
        /// Size of the existing pool.
        found_size: ByteSize,
        /// Extent size of the existing pool.
        found_extent: ByteSize,
        /// Size requested.
        size: ByteSize,
        /// Extent size requested.
        extent: ByteSize,
    },
    /// The memory that was kept from an earlier process is not what was asked for.
    #[error(
        "the memory kept from an earlier process is not what the options ask for: {why}; give the options it was made \
         with, or --pool-discard, which frees it with all that is in it"
    )]
    Kept {
        /// Difference between the kept memory and the options.
        why: String,
    },
    /// Regions lie in the pool that the node served before.
    #[error(
        "{} of regions lie in {former}, the pool that this node served before, and --pool {pool} would leave them \
         behind; give --pool {former}, empty the node first (gmm drain), or give up that content with --pool-discard",
        ByteSize(*.bytes)
    )]
    Former {
        /// Pool served before.
        former: PoolSpec,
        /// Bytes of extents mapped there.
        bytes: u64,
        /// Pool requested.
        pool: PoolSpec,
    },
    /// A path of the wrong kind.
    #[error("{} is not {expected}", .path.display())]
    Kind {
        /// Path given in `--pool`.
        path: PathBuf,
        /// Kind of file that the path has to name.
        expected: &'static str,
    },
    /// No such NUMA node.
    #[error("there is no NUMA node {node} here ({online} are online); drop --numa-node or name one of those")]
    NumaNode {
        /// Number of the NUMA node requested.
        node: u32,
        /// NUMA nodes online, as the kernel lists them.
        online: String,
    },
    /// Locking was refused.
    #[error(
        "cannot lock {} into memory: {source}; raise the limit (`ulimit -l unlimited`, LimitMEMLOCK=infinity) \
         or drop --mlock", ByteSize(*.bytes).approximate()
    )]
    Mlock {
        /// Bytes that were to be locked.
        bytes: u64,
        /// Error of the system call.
        source: io::Error,
    },
    /// An extent number that the pool does not have.
    #[error("extent {extent} does not exist: the pool has {extents}")]
    NoSuchExtent {
        /// Number of the extent requested.
        extent: u32,
        /// Number of extents of the pool.
        extents: u32,
    },
    /// Any other failure of a system call.
    #[error("cannot {what} for pool {pool}: {source}")]
    Io {
        /// System call or other operation that failed.
        what: &'static str,
        /// Pool, as given in `--pool`.
        pool: String,
        /// Error of the system call.
        source: io::Error,
    },
}

impl PoolError {
    /// Whether the next start with the same options ends the same way, so that a service manager need not try.
    pub fn is_lasting(&self) -> bool {
        match self {
            PoolError::Size { .. }
            | PoolError::ExtentSize(_)
            | PoolError::TooManyExtents { .. }
            | PoolError::TooSmall { .. }
            | PoolError::Foreign { .. }
            | PoolError::Superblock { .. }
            | PoolError::Geometry { .. }
            | PoolError::Kept { .. }
            | PoolError::Former { .. }
            | PoolError::Kind { .. }
            | PoolError::NumaNode { .. } => true,
            // Other programs may leave memory, disk and locks, and an administrator raises limits without a new
            // configuration.
            PoolError::Memory { .. }
            | PoolError::Disk { .. }
            | PoolError::HugePages { .. }
            | PoolError::Locked { .. }
            | PoolError::Mlock { .. }
            | PoolError::NoSuchExtent { .. }
            | PoolError::Io { .. } => false,
        }
    }
}

/// Commands that reserve `reserve` huge pages of `page`.
fn reserving(page: ByteSize, reserve: u64, knob: &Path) -> String {
    let now = format!("`echo {reserve} > {}`", knob.display());
    match page {
        // While the machine runs, hardly any GiB of memory is in one piece.
        ByteSize(GIB) => format!("{now}, or at boot hugepagesz=1G hugepages={reserve}"),
        _ => now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_gib_are_reserved_at_boot_and_smaller_ones_are_not_counted_as_such() {
        let reserving = |page, count| reserving(ByteSize(page), count, Path::new("/knob"));
        assert_eq!(reserving(GIB, 1), "`echo 1 > /knob`, or at boot hugepagesz=1G hugepages=1");
        assert_eq!(reserving(2 << 20, 513), "`echo 513 > /knob`");
    }
}

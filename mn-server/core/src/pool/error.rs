//! Errors of opening a pool or preparing an extent. Each message names a remedy.

use std::io;
use std::path::{Path, PathBuf};

use cxloe_fabric::model::ByteSize;

use super::spec::PoolSpec;

const GIB: u64 = 1 << 30;

#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("a pool of {size} is not a whole number of {extent} extents; choose a multiple of {extent}")]
    Size { size: ByteSize, extent: ByteSize },
    #[error("an extent of {0} is not possible; choose a power of two from 64KiB to 1GiB (2MiB is usual)")]
    ExtentSize(ByteSize),
    #[error("a pool of {size} has more extents than can be numbered; choose a larger --extent-size")]
    TooManyExtents { size: ByteSize },
    #[error("{size} is too small: the page table takes at least 2MiB of it and an extent takes {extent}")]
    TooSmall {
        /// Total size requested, head included.
        size: ByteSize,
        extent: ByteSize,
    },
    #[error(
        "a pool of {} needs more memory than the {} available here; choose a smaller --pool-size, stop other \
         programs, or put the pool into a file (--pool file:/path)",
        ByteSize(*.needed).approximate(), ByteSize(*.available).approximate()
    )]
    Memory {
        needed: u64,
        /// Bytes available without swapping.
        available: u64,
    },
    #[error(
        "the pool file {} needs {} more on its file system, which has {} free; choose a smaller --pool-size \
         or another file system", .path.display(), ByteSize(*.needed).approximate(), ByteSize(*.available).approximate()
    )]
    Disk {
        path: PathBuf,
        /// Bytes that still have to be allocated for the file.
        needed: u64,
        available: u64,
    },
    #[error(
        "{pool} needs {needed} huge pages of {page} and {free} are free; reserve more: \
         {}, or use --pool anon", reserving(*.page, *.reserve, .knob)
    )]
    HugePages {
        pool: PoolSpec,
        page: ByteSize,
        needed: u64,
        free: u64,
        /// Number of huge pages to write into `knob`.
        reserve: u64,
        /// File in `/sys` or `/proc` that sets the kernel's reserve.
        knob: PathBuf,
    },
    #[error("{} is in use by another process (it holds the lock); stop it, or use another pool", .path.display())]
    Locked { path: PathBuf },
    #[error(
        "{} holds data that is not a memory pool and is left alone; name another file, or remove it",
        .path.display()
    )]
    Foreign { path: PathBuf },
    #[error(
        "the superblock of {} is damaged or of another version ({why}); nothing in this pool can be trusted: \
         remove it to start an empty one", .path.display()
    )]
    Superblock { path: PathBuf, why: String },
    #[error(
        "{} is a pool of {found_size} in extents of {found_extent}, not of {size} in extents of {extent}; \
         drop --pool-size and --extent-size to use it as it is, or name another file", .path.display()
    )]
    Geometry { path: PathBuf, found_size: ByteSize, found_extent: ByteSize, size: ByteSize, extent: ByteSize },
    #[error(
        "the memory kept from an earlier process is not what the options ask for: {why}; give the options it was made \
         with, or --pool-discard, which frees it with all that is in it"
    )]
    Kept {
        /// Difference between the kept memory and the options.
        why: String,
    },
    #[error(
        "{} of regions lie in {former}, the pool that this node served before, and --pool {pool} would leave them \
         behind; give --pool {former}, empty the node first (gmm drain), or give up that content with --pool-discard",
        ByteSize(*.bytes)
    )]
    Former {
        former: PoolSpec,
        /// Bytes of extents mapped in the former pool.
        bytes: u64,
        pool: PoolSpec,
    },
    #[error("{} is not {expected}", .path.display())]
    Kind {
        path: PathBuf,
        /// Required kind of file, for example "a directory".
        expected: &'static str,
    },
    #[error("there is no NUMA node {node} here ({online} are online); drop --numa-node or name one of those")]
    NumaNode {
        node: u32,
        /// NUMA nodes online, as the kernel lists them.
        online: String,
    },
    #[error(
        "cannot lock {} into memory: {source}; raise the limit (`ulimit -l unlimited`, LimitMEMLOCK=infinity) \
         or drop --mlock", ByteSize(*.bytes).approximate()
    )]
    Mlock { bytes: u64, source: io::Error },
    #[error("extent {extent} does not exist: the pool has {extents}")]
    NoSuchExtent { extent: u32, extents: u32 },
    #[error("cannot {what} for pool {pool}: {source}")]
    Io {
        /// Operation that failed, as in "cannot {what}".
        what: &'static str,
        pool: String,
        source: io::Error,
    },
}

impl PoolError {
    /// Whether a restart with the same options fails again, so that a service manager need not restart the
    /// node.
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
            // A later start may succeed: other programs may free memory, disk space and locks, and an administrator may
            // raise limits. The options of the node need not change for that.
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
        // On a running machine hardly any contiguous GiB of memory is free, so a reservation at boot is
        // suggested as well.
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

//! Mapped memory of a pool, together with the file, memfd or device that is mapped.

#![expect(unsafe_code, reason = "a backing promises that its memory stays mapped")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::ptr::NonNull;

use cxloe_mn_core::pool::{Backing, PoolError, PoolSpec};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, Flock, fallocate};
use nix::sys::statvfs::fstatvfs;

use super::mapping::Mapping;

/// Memory of a pool in this process's address space.
#[derive(Debug)]
pub(super) struct Mapped {
    pub spec: PoolSpec,
    pub mapping: Mapping,
    /// File, memfd or device behind the mapping, locked while the pool is open.
    pub file: Option<Flock<File>>,
}

impl Mapped {
    /// Calls `fallocate`. Returns `false` if there is no file, or its file system does not support it.
    fn allocate(&self, offset: u64, len: u64, how: FallocateFlags) -> Result<bool, PoolError> {
        let (PoolSpec::File(path), Some(file)) = (&self.spec, &self.file) else { return Ok(false) };
        match fallocate(file.as_fd(), how, offset as i64, len as i64) {
            Ok(()) => Ok(true),
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(false),
            Err(Errno::ENOSPC) => Err(disk_full(path, file, len)),
            Err(errno) => Err(PoolError::Io {
                what: "reserve disk blocks",
                pool: self.spec.to_string(),
                source: errno.into(),
            }),
        }
    }
}

// SAFETY: the mapping belongs to this process, is page aligned, and stays at one address with one length until it is
// dropped; only this value gives out its address, and the lock on the file keeps other pools out.
unsafe impl Backing for Mapped {
    fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    fn len(&self) -> usize {
        self.mapping.len()
    }

    fn sync(&self, len: usize) -> io::Result<()> {
        if self.spec.is_memory() { Ok(()) } else { self.mapping.sync(0, len) }
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<(), PoolError> {
        self.allocate(offset, len, FallocateFlags::empty()).map(drop)
    }

    fn zero(&self, offset: u64, len: u64) -> Result<bool, PoolError> {
        if self.allocate(offset, len, FallocateFlags::FALLOC_FL_ZERO_RANGE)? {
            return Ok(true);
        }
        // The caller writes the zeros; disk space is reserved first, so that no write finds the disk full.
        self.reserve(offset, len)?;
        Ok(false)
    }

    fn memory_fd(&self) -> Option<BorrowedFd<'_>> {
        match (&self.spec, &self.file) {
            (spec, Some(file)) if spec.is_memory() => Some(file.as_fd()),
            _ => None,
        }
    }
}

/// Free bytes of the file system that has `file`.
pub(super) fn free_disk(file: &File) -> Option<u64> {
    let stat = fstatvfs(file.as_fd()).ok()?;
    Some(stat.blocks_available() * stat.fragment_size())
}

pub(super) fn disk_full(path: &Path, file: &File, needed: u64) -> PoolError {
    PoolError::Disk { path: path.into(), needed, available: free_disk(file).unwrap_or(0) }
}

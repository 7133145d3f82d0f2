//! The pool: the memory that this node lends to compute nodes.
//!
//! One contiguous mapping of anonymous memory, huge pages, a memfd, a file or a device ([`PoolSpec`]), laid
//! out as superblock, page table and extents. [`Pool::open`] makes it or finds it again, checks that it fits
//! the machine, and brings its pages in; after that nothing on the data path asks the kernel for anything.
//!
//! Data passes through [`Pool::read_lines`] and [`Pool::write_lines`], called by the workers with addresses
//! that the page table (`translation`) has given them. Extents change hands through
//! [`Pool::prepare_extent`] and [`Pool::zero_extent`], called by the control thread.
//!
//! # Incarnation
//! [`Pool::incarnation`] tells a CN that comes back whether its data is still here. It is random, never 0,
//! and new whenever content may have been lost:
//!
//! | pool | keeps its incarnation when |
//! |---|---|
//! | anon, huge2m, huge1g | never: the memory goes with the process |
//! | memfd | a successor takes the descriptor over ([`Pool::adopt`]) |
//! | file | opened again in the same boot (the page cache has everything, whatever became of the process), or in another boot after [`Pool::close`], which waits until all of it has reached the disk |
//! | dax | opened again in the same boot; what the device holds after a boot is not trusted |

mod address;
mod error;
mod host;
mod layout;
mod lines;
mod mapping;
mod open;
mod spec;
mod superblock;

pub use address::{LINE_BYTES, MpAddr, MpExtent};
pub use cxloe_fabric::model::ByteSize;
pub use error::PoolError;
pub use host::Host;
pub use layout::{EXTENT_BYTES_DEFAULT, EXTENT_BYTES_MAX, EXTENT_BYTES_MIN};
pub(crate) use lines::Slot;
pub use lines::prefetch_bytes;
pub use open::{POOL_BYTES_DEFAULT, PoolOptions};
pub use spec::{PoolSpec, PoolSpecError};

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, Flock, fallocate};

use layout::{Layout, SUPERBLOCK_BYTES};
use mapping::Mapping;
use superblock::Superblock;

/// The memory this node lends, shared by all of its threads.
#[derive(Debug)]
pub struct Pool {
    spec: PoolSpec,
    mapping: Mapping,
    layout: Layout,
    /// Extent 0 in the mapping.
    data: NonNull<u8>,
    /// The same as `layout.served_bytes()`, at hand for the data path's bounds check.
    served_bytes: u64,
    /// The file, memfd or device behind the mapping, locked for as long as the pool is open.
    file: Option<Flock<File>>,
    incarnation: u64,
    boot_id: u128,
    retained: bool,
    /// One bit per extent.
    known_zero: Vec<AtomicU64>,
}

// SAFETY: `data` points into `mapping`, which is Send and Sync and lives as long; what threads may do
// through it at the same time is argued in `lines`.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// What the pool is made of.
    pub fn spec(&self) -> &PoolSpec {
        &self.spec
    }

    /// Bytes that CNs can be given: [`extents`](Self::extents) x [`extent_bytes`](Self::extent_bytes).
    pub fn bytes(&self) -> u64 {
        self.served_bytes
    }

    /// Bytes of one extent, a power of two from 64 KiB to 1 GiB.
    pub fn extent_bytes(&self) -> u64 {
        self.layout.extent_bytes
    }

    /// The number of extents, at least 1.
    pub fn extents(&self) -> u32 {
        self.layout.extents
    }

    /// What a pool that serves `bytes` in extents of `extent_bytes` holds besides them, in bytes: its superblock and the
    /// page table.
    ///
    /// # Errors
    /// [`PoolError`] when there is no such pool.
    pub fn overhead_bytes(bytes: u64, extent_bytes: u64) -> Result<u64, PoolError> {
        Ok(Layout::serving(bytes, extent_bytes)?.head_bytes)
    }

    /// The address of an extent's first byte.
    #[inline]
    pub fn extent_start(&self, extent: MpExtent) -> MpAddr {
        MpAddr(u64::from(extent.0) << self.layout.extent_bytes.trailing_zeros())
    }

    /// Changes whenever content may have been lost; never 0. See the table at the top of the module.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Whether the content of an earlier run is still here, mappings included.
    pub fn retained(&self) -> bool {
        self.retained
    }

    /// The id of the boot this pool is served in, as the kernel tells it.
    pub fn boot_id(&self) -> u128 {
        self.boot_id
    }

    /// The descriptor of a memfd pool, to be handed to a successor for [`Pool::adopt`].
    pub fn memory_fd(&self) -> Option<BorrowedFd<'_>> {
        match (&self.spec, &self.file) {
            (PoolSpec::Memfd, Some(file)) => Some(file.as_fd()),
            _ => None,
        }
    }

    /// Writes everything to the pool's file and marks it clean, so that even another boot finds the content
    /// as it is. To be called when the workers have stopped: what they wrote later could be lost unnoticed.
    /// Of no effect for pools without a file.
    pub fn close(&self) -> Result<(), PoolError> {
        if self.file.is_none() {
            return Ok(());
        }
        self.sync(self.mapping.len())?;
        self.store_superblock(true)
    }

    fn store_superblock(&self, clean: bool) -> Result<(), PoolError> {
        let superblock =
            Superblock { layout: self.layout, incarnation: self.incarnation, boot_id: self.boot_id, clean };
        self.put_superblock(&superblock.emit());
        match self.file {
            Some(_) => self.sync(SUPERBLOCK_BYTES as usize),
            None => Ok(()),
        }
    }

    fn sync(&self, len: usize) -> Result<(), PoolError> {
        self.mapping.sync(0, len).map_err(|source| self.io("write the pool back to its file", source))
    }

    /// Reserves disk blocks for an extent of a pool file.
    fn reserve(&self, extent: MpExtent) -> Result<(), PoolError> {
        self.allocate(extent, FallocateFlags::empty()).map(|_| ())
    }

    /// Has the file system make an extent of a pool file read as zeros, its blocks reserved; `false` where
    /// there is no file or its file system cannot, and the bytes have to be written.
    fn zero_blocks(&self, extent: MpExtent) -> Result<bool, PoolError> {
        Ok(self.allocate(extent, FallocateFlags::FALLOC_FL_ZERO_RANGE)? || {
            self.reserve(extent)?;
            false
        })
    }

    fn allocate(&self, extent: MpExtent, how: FallocateFlags) -> Result<bool, PoolError> {
        let (PoolSpec::File(path), Some(file)) = (&self.spec, &self.file) else { return Ok(false) };
        let offset = self.layout.head_bytes + self.extent_start(extent).0;
        match fallocate(file.as_fd(), how, offset as i64, self.layout.extent_bytes as i64) {
            Ok(()) => Ok(true),
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(false),
            Err(Errno::ENOSPC) => Err(open::disk_full(path, file, self.layout.extent_bytes)),
            Err(errno) => Err(self.io("reserve disk blocks", errno.into())),
        }
    }

    fn io(&self, what: &'static str, source: std::io::Error) -> PoolError {
        PoolError::Io { what, pool: self.spec.to_string(), source }
    }
}

//! The pool: the memory that a node lends, in extents, with the page table in front of them.
//!
//! Workers copy data by [`Pool::read_lines`] and [`Pool::write_lines`], at addresses from the page table
//! ([`crate::translation`]). The control thread prepares and zeroes extents by [`Pool::prepare_extent`] and
//! [`Pool::zero_extent`] when they change owners. The I/O code provides the memory, as a [`Backing`].
//!
//! # Incarnation
//! A CN that reconnects compares [`Pool::incarnation`] to detect whether its data is still here. The number is random,
//! never 0, and changes whenever content may have been lost:
//!
//! | pool | keeps its incarnation when |
//! |---|---|
//! | anon, huge2m, huge1g | the next process gets the descriptor from its keeper (`cxloe_mn::keeper`) |
//! | file | opened again in the same boot (the page cache has everything, whatever became of the process), or in another boot after [`Pool::close`], which waits until all of it has reached the disk |
//! | dax | opened again in the same boot; what the device holds after a boot is not trusted |

mod address;
mod backing;
mod error;
mod heap;
mod layout;
mod lines;
mod spec;
mod superblock;

pub use address::{LINE_BYTES, MpAddr, MpExtent};
pub use backing::Backing;
pub use cxloe_fabric::model::ByteSize;
pub use error::PoolError;
pub use layout::{EXTENT_BYTES_DEFAULT, EXTENT_BYTES_MIN, HEAD_ALIGN, Layout, PAGE_BYTES, SUPERBLOCK_BYTES};
pub(crate) use lines::Slot;
pub(crate) use lines::prefetch_bytes;
pub use spec::{PoolSpec, PoolSpecError};
pub use superblock::{BadSuperblock, Superblock};

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Description of the memory that a new [`Pool`] starts with.
#[derive(Debug, Clone, Copy)]
pub struct Content {
    pub layout: Layout,
    /// Value of [`Pool::incarnation`]; never 0.
    pub incarnation: u64,
    pub boot_id: u128,
    /// Whether the content of an earlier run is still valid.
    pub retained: bool,
    /// Whether everything after the superblock is certain to be zero.
    pub zero: bool,
}

/// Memory that this node lends to compute nodes, shared by all of this node's threads.
#[derive(Debug)]
pub struct Pool {
    spec: PoolSpec,
    backing: Box<dyn Backing>,
    layout: Layout,
    data: NonNull<u8>,
    /// Copy of `layout.served_bytes()` for the data path's bounds check.
    served_bytes: u64,
    incarnation: u64,
    boot_id: u128,
    retained: bool,
    /// One bit per extent: whether it is known to be zero.
    known_zero: Vec<AtomicU64>,
}

#[expect(unsafe_code, reason = "a pool has a raw pointer into its backing")]
// SAFETY: `data` points into `backing`, which is Send and Sync and lives as long as the pool; `lines` explains which
// accesses threads may make at the same time.
unsafe impl Send for Pool {}
#[expect(unsafe_code, reason = "a pool has a raw pointer into its backing")]
// SAFETY: the same reasons as for `Send`.
unsafe impl Sync for Pool {}

impl Pool {
    /// Starts a pool in `backing`. Content that is neither retained nor zero is discarded: the page table is cleared,
    /// then the superblock is stored.
    ///
    /// # Errors
    /// [`PoolError::Io`] if the superblock cannot be written to the file.
    ///
    /// # Panics
    /// If the backing is smaller than the layout.
    #[expect(unsafe_code, reason = "the data's address is computed from that of the backing")]
    pub fn start(spec: PoolSpec, backing: Box<dyn Backing>, content: Content) -> Result<Pool, PoolError> {
        let layout = content.layout;
        assert!(layout.total_bytes() <= backing.len() as u64, "the backing is smaller than the layout");
        let words = layout.extents.div_ceil(64) as usize;
        // SAFETY: by the layout the head lies within the backing, as just checked.
        let data = unsafe { backing.base().add(layout.head_bytes as usize) };
        let pool = Pool {
            spec,
            backing,
            layout,
            data,
            served_bytes: layout.served_bytes(),
            incarnation: content.incarnation,
            boot_id: content.boot_id,
            retained: content.retained,
            known_zero: (0..words).map(|_| AtomicU64::new(if content.zero { u64::MAX } else { 0 })).collect(),
        };
        if !content.retained && !content.zero {
            // Entries of an earlier page table must not be served. The superblock is still the earlier one, so if the
            // machine crashes during this loop, the next start clears the table again.
            pool.table().iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
            let extents = (0..layout.extents).map(MpExtent);
            extents
                .flat_map(|extent| pool.copy_record(extent))
                .for_each(|word| word.store(0, Ordering::Relaxed));
            pool.backing.sync(layout.head_bytes as usize).map_err(|error| pool.written_back(error))?;
        }
        // The pool is marked as not clean while workers write, because the file may lack some of their writes after a
        // crash of the machine.
        pool.store_superblock(false)?;
        Ok(pool)
    }

    /// Makes a pool on the heap with `bytes` for extents of `extent_bytes`, all zero.
    ///
    /// # Errors
    /// [`PoolError::Size`] and others if no layout fits these sizes.
    pub fn on_heap(bytes: u64, extent_bytes: u64, incarnation: u64) -> Result<Pool, PoolError> {
        let layout = Layout::serving(bytes, extent_bytes)?;
        let backing = Box::new(heap::HeapMemory::zeroed(layout.total_bytes() as usize));
        let content = Content { layout, incarnation, boot_id: 0, retained: false, zero: true };
        Pool::start(PoolSpec::Anon, backing, content)
    }

    pub fn spec(&self) -> &PoolSpec {
        &self.spec
    }

    /// Bytes of all extents together, head excluded.
    pub fn bytes(&self) -> u64 {
        self.served_bytes
    }

    /// Bytes of one extent, a power of two from 64 KiB to 1 GiB.
    pub fn extent_bytes(&self) -> u64 {
        self.layout.extent_bytes
    }

    pub fn extents(&self) -> u32 {
        self.layout.extents
    }

    /// Length in bytes of the head (superblock, page table, records of copies) of a pool with `bytes` in
    /// extents of `extent_bytes`.
    ///
    /// # Errors
    /// [`PoolError`] if no layout fits these sizes.
    pub fn overhead_bytes(bytes: u64, extent_bytes: u64) -> Result<u64, PoolError> {
        Ok(Layout::serving(bytes, extent_bytes)?.head_bytes)
    }

    #[inline]
    pub fn extent_start(&self, extent: MpExtent) -> MpAddr {
        MpAddr(u64::from(extent.0) << self.layout.extent_bytes.trailing_zeros())
    }

    /// Incarnation: random, new whenever content may have been lost; never 0.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub fn retained(&self) -> bool {
        self.retained
    }

    pub fn boot_id(&self) -> u128 {
        self.boot_id
    }

    /// Descriptor by which the next process can take over a pool of kind `anon`, `huge2m` or `huge1g`.
    pub fn memory_fd(&self) -> Option<BorrowedFd<'_>> {
        self.backing.memory_fd()
    }

    /// Writes everything to the pool's file and marks it clean, so that its content is valid even after a reboot.
    /// Call it after the workers have stopped: later writes could be lost undetected. No effect for pools without a
    /// file.
    ///
    /// # Errors
    /// [`PoolError::Io`] when the file cannot be written.
    pub fn close(&self) -> Result<(), PoolError> {
        self.backing.sync(self.backing.len()).map_err(|error| self.written_back(error))?;
        self.store_superblock(true)
    }

    fn store_superblock(&self, clean: bool) -> Result<(), PoolError> {
        let superblock =
            Superblock { layout: self.layout, incarnation: self.incarnation, boot_id: self.boot_id, clean };
        self.put_superblock(&superblock.emit());
        self.backing.sync(SUPERBLOCK_BYTES as usize).map_err(|error| self.written_back(error))
    }

    fn written_back(&self, source: std::io::Error) -> PoolError {
        PoolError::Io { what: "write the pool back to its file", pool: self.spec.to_string(), source }
    }

    /// Offset and length of an extent in the backing, in bytes.
    fn place(&self, extent: MpExtent) -> (u64, u64) {
        (self.layout.head_bytes + self.extent_start(extent).0, self.layout.extent_bytes)
    }
}

//! The pool as workers and control see it: lines, extents, and the memory of the page table.
//!
//! Data passes through [`Pool::read_lines`] and [`Pool::write_lines`], called by the workers with addresses that the page
//! table ([`crate::translation`]) has given them. Extents change hands through [`Pool::prepare_extent`] and
//! [`Pool::zero_extent`], called by the control thread. Where the memory comes from is the shell's business: it hands over
//! a [`Backing`].
//!
//! # Incarnation
//! [`Pool::incarnation`] tells a CN that comes back whether its data is still here. It is random, never 0,
//! and new whenever content may have been lost:
//!
//! | pool | keeps its incarnation when |
//! |---|---|
//! | anon, huge2m, huge1g | never: the memory goes with the process |
//! | memfd | a successor takes the descriptor over (`cxloe_mn::pool::adopt`) |
//! | file | opened again in the same boot (the page cache has everything, whatever became of the process), or in another boot after [`Pool::close`], which waits until all of it has reached the disk |
//! | dax | opened again in the same boot; what the device holds after a boot is not trusted |

mod address;
mod backing;
mod error;
mod layout;
mod lines;
mod spec;
mod superblock;

pub use address::{LINE_BYTES, MpAddr, MpExtent};
pub use backing::Backing;
pub use cxloe_fabric::model::ByteSize;
pub use error::PoolError;
pub use layout::{
    EXTENT_BYTES_DEFAULT, EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, HEAD_ALIGN, Layout, SLOT_BYTES,
    SUPERBLOCK_BYTES,
};
pub(crate) use lines::Slot;
pub use lines::prefetch_bytes;
pub use spec::{PoolSpec, PoolSpecError};
pub use superblock::{BadSuperblock, Superblock};

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the memory of a new [`Pool`] holds.
#[derive(Debug, Clone, Copy)]
pub struct Content {
    /// Where things lie in it.
    pub layout: Layout,
    /// Changes whenever content may have been lost; never 0.
    pub incarnation: u64,
    /// The boot that the pool is served in.
    pub boot_id: u128,
    /// The content of an earlier run is still here.
    pub retained: bool,
    /// Everything behind the superblock is certain to be zero.
    pub zero: bool,
}

/// The memory this node lends, shared by all of its threads.
#[derive(Debug)]
pub struct Pool {
    spec: PoolSpec,
    backing: Box<dyn Backing>,
    layout: Layout,
    /// Extent 0 in the backing.
    data: NonNull<u8>,
    /// The same as `layout.served_bytes()`, at hand for the data path's bounds check.
    served_bytes: u64,
    incarnation: u64,
    boot_id: u128,
    retained: bool,
    /// One bit per extent.
    known_zero: Vec<AtomicU64>,
}

// SAFETY: `data` points into `backing`, which is Send and Sync and lives as long; what threads may do
// through it at the same time is argued in `lines`.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool in `backing`. Content that is neither retained nor zero is lost: the page table is cleared, and then the
    /// superblock stored.
    ///
    /// # Errors
    /// [`PoolError::Io`] when the backing cannot be written back.
    ///
    /// # Panics
    /// If the backing is smaller than the layout.
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
            // Nobody may be served from what an earlier page table says. The superblock still is the earlier one, so a
            // crash in the middle of this leads here again.
            pool.table().iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
            pool.backing.sync(layout.head_bytes as usize).map_err(|error| pool.written_back(error))?;
        }
        pool.store_superblock(false)?;
        Ok(pool)
    }

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

    /// The descriptor of a memfd pool, to be handed to a successor.
    pub fn memory_fd(&self) -> Option<BorrowedFd<'_>> {
        self.backing.memory_fd()
    }

    /// Writes everything to the pool's file and marks it clean, so that even another boot finds the content
    /// as it is. To be called when the workers have stopped: what they wrote later could be lost unnoticed.
    /// Of no effect for pools without a file.
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

    /// Where an extent lies in the backing: offset and length in bytes.
    fn place(&self, extent: MpExtent) -> (u64, u64) {
        (self.layout.head_bytes + self.extent_start(extent).0, self.layout.extent_bytes)
    }
}

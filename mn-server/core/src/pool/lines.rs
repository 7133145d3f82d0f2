//! The data path of a pool: several worker threads copy lines at once, without a lock and without allocation.
//!
//! Soundness: the bytes of an extent are accessed through raw pointers only, never through Rust references, so it
//! suffices that no two threads access one line at the same time. An extent belongs to one CN (the manager never gives
//! it to two); requests for one line of a CN always use the same stream of a session (R12); one worker serves a stream;
//! and a new session of a CN starts after every worker has dropped the old one. An extent that is filled from another
//! memory node is mapped for this node's own address, under which nobody gets a session here meanwhile; the one worker
//! that has taken the order writes it (see `fill::FillBoard`). The control thread zeroes only extents that no page
//! table entry names and that no worker uses any more (see `translation::Generation`). A page is copied to another
//! extent by the one thread that has claimed it, before its source is written and before its target is used (see
//! `translation::ExtentCopy`).

#![expect(unsafe_code, reason = "several threads copy lines at once, by raw pointers")]

use std::sync::atomic::{AtomicU64, Ordering};

use super::address::{LINE_BYTES, MpAddr, MpExtent};
use super::layout::{PAGE_BYTES, SUPERBLOCK_BYTES};
use super::superblock::USED_BYTES;
use super::{Pool, PoolError};

/// Bytes zeroed between two calls of `keep_going`; zeroing them takes a tenth of a millisecond.
const ZERO_SLICE: u64 = 1 << 20;

/// A slot of the page table: four 64-bit words, always read and written atomically.
pub(crate) type Slot = [AtomicU64; 4];

/// Prefetches all of `bytes` into the cache of this core, for example if another core has written them.
#[inline]
pub(crate) fn prefetch_bytes(bytes: &[u8]) {
    bytes.chunks(LINE_BYTES).for_each(|line| hint(line.as_ptr()));
}

/// Prefetches the cache line at `at`, which may be any address.
#[inline]
fn hint(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads no value and faults on no address. SSE is part of x86_64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch reads no value and faults on no address.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

impl Pool {
    /// Pointer to `len` bytes at `mp`, all of them in the pool's extents.
    ///
    /// # Panics
    /// If the bytes are outside the extents, which is a defect of this program: addresses come from the page
    /// table.
    #[inline(always)]
    fn at(&self, mp: MpAddr, len: usize) -> *mut u8 {
        let served = self.served_bytes as usize;
        let offset = mp.0 as usize;
        assert!(len <= served && offset <= served - len, "{len} bytes at MPMem {mp} are outside the pool");
        debug_assert!(offset.is_multiple_of(LINE_BYTES) && len.is_multiple_of(LINE_BYTES));
        // SAFETY: `data` points to `served` mapped bytes, and `offset` was just checked against that.
        unsafe { self.data.as_ptr().add(offset) }
    }

    /// Copies whole lines from the pool. `mp` and `out.len()` are multiples of 64 bytes.
    ///
    /// # Panics
    /// If the lines are not all inside the pool.
    #[inline]
    pub fn read_lines(&self, mp: MpAddr, out: &mut [u8]) {
        let from = self.at(mp, out.len());
        // SAFETY: `at` has checked that the source is mapped pool memory; `out` is a Rust slice, so it
        // cannot overlap memory of which no Rust reference exists. No other thread writes these lines now
        // (see the top of this file). A single line, the usual case, is copied without a call.
        unsafe {
            match out.len() {
                LINE_BYTES => from.copy_to_nonoverlapping(out.as_mut_ptr(), LINE_BYTES),
                len => from.copy_to_nonoverlapping(out.as_mut_ptr(), len),
            }
        }
    }

    /// Copies whole lines to the pool. `mp` and `data.len()` are multiples of 64 bytes.
    ///
    /// # Panics
    /// If the lines are not all inside the pool.
    #[inline]
    pub fn write_lines(&self, mp: MpAddr, data: &[u8]) {
        let to = self.at(mp, data.len());
        // SAFETY: as in `read_lines`, with source and destination exchanged.
        unsafe {
            match data.len() {
                LINE_BYTES => to.copy_from_nonoverlapping(data.as_ptr(), LINE_BYTES),
                len => to.copy_from_nonoverlapping(data.as_ptr(), len),
            }
        }
    }

    /// Prefetches the line at `mp`; the call takes about a nanosecond.
    #[inline]
    pub fn prefetch(&self, mp: MpAddr) {
        if mp.0 < self.served_bytes {
            hint(self.data.as_ptr().wrapping_add(mp.0 as usize));
        }
    }

    /// Prepares an extent for its next owner, so that it reads as zeros. An extent known to be zero is skipped; blocks
    /// of a pool file are reserved, so that no later write finds the disk full.
    ///
    /// The extent must not be mapped, and every worker must have passed the generation in which its mapping was
    /// removed.
    ///
    /// It works in slices: `keep_going` gets the bytes done since the last call, and stops the work by returning `false`.
    /// Returns whether the extent is ready.
    pub fn prepare_extent(
        &self,
        extent: MpExtent,
        mut keep_going: impl FnMut(u64) -> bool,
    ) -> Result<bool, PoolError> {
        if self.is_known_zero(extent)? {
            {
                let (offset, len) = self.place(extent);
                self.backing.reserve(offset, len)?;
            }
            keep_going(self.layout.extent_bytes);
        } else if !self.fill_with_zeros(extent, &mut keep_going)? {
            return Ok(false);
        }
        self.no_longer_zero(extent);
        Ok(true)
    }

    /// Notes that the extent no longer counts as known to be zero, because its owner may write to it at any time.
    ///
    /// # Panics
    /// If the pool has no such extent.
    pub(crate) fn no_longer_zero(&self, extent: MpExtent) {
        self.known_zero[extent.0 as usize / 64].fetch_and(!(1 << (extent.0 % 64)), Ordering::Relaxed);
    }

    /// Zeroes an extent without an owner, unless it is known to be zero. Conditions and slices are those of
    /// [`prepare_extent`](Self::prepare_extent). Returns whether the extent is zero.
    pub fn zero_extent(
        &self,
        extent: MpExtent,
        mut keep_going: impl FnMut(u64) -> bool,
    ) -> Result<bool, PoolError> {
        if self.is_known_zero(extent)? {
            keep_going(self.layout.extent_bytes);
        } else if self.fill_with_zeros(extent, &mut keep_going)? {
            self.known_zero[extent.0 as usize / 64].fetch_or(1 << (extent.0 % 64), Ordering::Relaxed);
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Whether the extent certainly reads as zeros: it was zero at first or was zeroed, and no CN got it afterwards.
    pub fn is_known_zero(&self, extent: MpExtent) -> Result<bool, PoolError> {
        if extent.0 >= self.layout.extents {
            return Err(PoolError::NoSuchExtent { extent: extent.0, extents: self.layout.extents });
        }
        Ok(self.known_zero[extent.0 as usize / 64].load(Ordering::Relaxed) >> (extent.0 % 64) & 1 == 1)
    }

    /// Zeroes an extent in slices; returns `false` if `keep_going` stopped it.
    fn fill_with_zeros(
        &self,
        extent: MpExtent,
        keep_going: &mut impl FnMut(u64) -> bool,
    ) -> Result<bool, PoolError> {
        let (start, len) = (self.extent_start(extent), self.layout.extent_bytes);
        if self.backing.zero(self.place(extent).0, len)? {
            keep_going(len);
            return Ok(true);
        }
        for offset in (0..len).step_by(ZERO_SLICE as usize) {
            let slice = ZERO_SLICE.min(len - offset);
            let to = self.at(MpAddr(start.0 + offset), slice as usize);
            // SAFETY: `at` has checked the range, and the caller ensures that no code uses this extent.
            unsafe { to.write_bytes(0, slice as usize) };
            if !keep_going(slice) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Slots of the page table; all zeros in a fresh pool.
    pub(crate) fn table(&self) -> &[Slot] {
        let offset = SUPERBLOCK_BYTES as usize;
        // SAFETY: by the layout the slots lie between superblock and head, inside the mapping, which lives as long as
        // `self`; the address is 4 KiB aligned; and all code accesses these bytes as atomics.
        unsafe {
            let slots = self.backing.base().as_ptr().add(offset).cast::<Slot>();
            std::slice::from_raw_parts(slots, self.layout.slots as usize)
        }
    }

    /// Record of the copy that fills `extent`: a word for its source, then one bit for each page copied; all zeros in a
    /// fresh pool.
    pub(crate) fn copy_record(&self, extent: MpExtent) -> &[AtomicU64] {
        assert!(extent.0 < self.layout.extents, "extent {extent} is outside the pool");
        let words = self.layout.record_words() as usize;
        let offset = self.layout.records_offset() as usize + extent.0 as usize * words * size_of::<u64>();
        // SAFETY: by the layout the records lie between page table and head, inside the mapping, which lives as long as
        // `self`; the address is a multiple of 8; and all code accesses these bytes as atomics.
        unsafe {
            let first = self.backing.base().as_ptr().add(offset).cast::<AtomicU64>();
            std::slice::from_raw_parts(first, words)
        }
    }

    /// Copies page `page` of an extent to the same place in another one. The caller ensures that no thread
    /// writes the page of `from`, and that no other thread uses the page of `to`.
    pub(crate) fn copy_page(&self, from: MpExtent, to: MpExtent, page: u64) {
        let at =
            |extent| self.at(MpAddr(self.extent_start(extent).0 + page * PAGE_BYTES), PAGE_BYTES as usize);
        // SAFETY: `at` has checked both ranges, which lie in different extents; the caller has claimed the page.
        unsafe { at(to).copy_from_nonoverlapping(at(from), PAGE_BYTES as usize) };
    }

    /// Writes the superblock to memory; [`Backing::sync`](super::Backing::sync) writes it to the file.
    pub(super) fn put_superblock(&self, bytes: &[u8; USED_BYTES]) {
        // SAFETY: the first 4 KiB of the mapping are the superblock's; only the thread that opens or closes the pool
        // calls this.
        unsafe { self.backing.base().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), USED_BYTES) };
    }
}

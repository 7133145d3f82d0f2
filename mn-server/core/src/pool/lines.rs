//! The data path's side of a pool: lines out of it and into it, by several worker threads at once, without a
//! lock and without allocating.
//!
//! Why that is sound: the bytes of an extent are touched through raw pointers only, never through Rust
//! references, so that the sole question is whether two threads touch one line at the same moment. They do
//! not. An extent belongs to one CN (the manager never gives it to two), a line of a CN always travels in
//! the same stream of a session (R12), a stream is served by one worker, and a new session of a CN starts
//! after every worker has dropped the old one. The control thread zeroes extents that no page table entry
//! names and that every worker has let go of (see `translation::Generation`).

use std::sync::atomic::{AtomicU64, Ordering};

use super::address::{LINE_BYTES, MpAddr, MpExtent};
use super::layout::SUPERBLOCK_BYTES;
use super::superblock::USED_BYTES;
use super::{Pool, PoolError};

/// Bytes zeroed between two looks at whether to go on: a tenth of a millisecond's work.
const ZERO_SLICE: u64 = 1 << 20;

/// A slot of the page table: four 64-bit words, always read and written atomically.
pub(crate) type Slot = [AtomicU64; 4];

/// Hints that all of `bytes` will be read soon, as when another core has just written them.
#[inline]
pub fn prefetch_bytes(bytes: &[u8]) {
    bytes.chunks(LINE_BYTES).for_each(|line| hint(line.as_ptr()));
}

/// Asks the processor to fetch the cache line at `at`, wherever that points.
#[inline]
fn hint(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it reads nothing and faults on no address. SSE is part of x86_64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint; it reads nothing and faults on no address.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

impl Pool {
    /// The address of `len` bytes at `mp`, all of them in the pool's extents.
    ///
    /// # Panics
    /// If they are not: addresses come out of the page table, so that is a defect of this program.
    #[inline(always)]
    fn at(&self, mp: MpAddr, len: usize) -> *mut u8 {
        let served = self.served_bytes as usize;
        let offset = mp.0 as usize;
        assert!(len <= served && offset <= served - len, "{len} bytes at MPMem {mp} are outside the pool");
        debug_assert!(offset.is_multiple_of(LINE_BYTES) && len.is_multiple_of(LINE_BYTES));
        // SAFETY: `data` points at `served` mapped bytes, and `offset` is within them, as just checked.
        unsafe { self.data.as_ptr().add(offset) }
    }

    /// Copies whole lines out of the pool. `mp` and `out.len()` are multiples of 64 bytes; all of the lines
    /// lie in the pool (in practice: in one extent, for it is translated as one).
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

    /// Copies whole lines into the pool. `mp` and `data.len()` are multiples of 64 bytes.
    ///
    /// # Panics
    /// If the lines are not all inside the pool.
    #[inline]
    pub fn write_lines(&self, mp: MpAddr, data: &[u8]) {
        let to = self.at(mp, data.len());
        // SAFETY: as in `read_lines`, with the roles exchanged.
        unsafe {
            match data.len() {
                LINE_BYTES => to.copy_from_nonoverlapping(data.as_ptr(), LINE_BYTES),
                len => to.copy_from_nonoverlapping(data.as_ptr(), len),
            }
        }
    }

    /// Hints that the line at `mp` will be asked for soon. Costs about a nanosecond and changes nothing.
    #[inline]
    pub fn prefetch(&self, mp: MpAddr) {
        if mp.0 < self.served_bytes {
            hint(self.data.as_ptr().wrapping_add(mp.0 as usize));
        }
    }

    /// Readies an extent for its next owner: it reads as zeros afterwards. Extents known to be zero are
    /// passed over; blocks of a pool file are reserved, so that no later write can find the disk full.
    ///
    /// The extent must not be mapped, and every worker must have passed the generation in which it ceased to be.
    pub fn prepare_extent(&self, extent: MpExtent) -> Result<(), PoolError> {
        self.prepare_extent_while(extent, |_| true).map(drop)
    }

    /// [`prepare_extent`](Self::prepare_extent) bit by bit: `go_on` hears how many bytes were done since it was asked
    /// last, and may end it. Returns whether the extent is ready.
    pub fn prepare_extent_while(
        &self,
        extent: MpExtent,
        mut go_on: impl FnMut(u64) -> bool,
    ) -> Result<bool, PoolError> {
        if self.is_known_zero(extent)? {
            {
                let (offset, len) = self.place(extent);
                self.backing.reserve(offset, len)?;
            }
            go_on(self.layout.extent_bytes);
        } else if !self.fill_with_zeros(extent, &mut go_on)? {
            return Ok(false);
        }
        self.known_zero[extent.0 as usize / 64].fetch_and(!(1 << (extent.0 % 64)), Ordering::Relaxed);
        Ok(true)
    }

    /// Zeroes an extent that lost its owner, unless it is known to be zero.
    ///
    /// The extent must not be mapped, and every worker must have passed the generation in which it ceased to be.
    pub fn zero_extent(&self, extent: MpExtent) -> Result<(), PoolError> {
        self.zero_extent_while(extent, |_| true).map(drop)
    }

    /// [`zero_extent`](Self::zero_extent) bit by bit: `go_on` hears how many bytes were done since it was asked last,
    /// and may end it. Returns whether the extent is zero.
    pub fn zero_extent_while(
        &self,
        extent: MpExtent,
        mut go_on: impl FnMut(u64) -> bool,
    ) -> Result<bool, PoolError> {
        if self.is_known_zero(extent)? {
            go_on(self.layout.extent_bytes);
        } else if self.fill_with_zeros(extent, &mut go_on)? {
            self.known_zero[extent.0 as usize / 64].fetch_or(1 << (extent.0 % 64), Ordering::Relaxed);
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Whether the extent is certain to read as zeros: never given to anyone since the memory was fresh, or
    /// zeroed since.
    pub fn is_known_zero(&self, extent: MpExtent) -> Result<bool, PoolError> {
        if extent.0 >= self.layout.extents {
            return Err(PoolError::NoSuchExtent { extent: extent.0, extents: self.layout.extents });
        }
        Ok(self.known_zero[extent.0 as usize / 64].load(Ordering::Relaxed) >> (extent.0 % 64) & 1 == 1)
    }

    /// `false` if `go_on` ended it.
    fn fill_with_zeros(
        &self,
        extent: MpExtent,
        go_on: &mut impl FnMut(u64) -> bool,
    ) -> Result<bool, PoolError> {
        let (start, len) = (self.extent_start(extent), self.layout.extent_bytes);
        if self.backing.zero(self.place(extent).0, len)? {
            go_on(len);
            return Ok(true);
        }
        for offset in (0..len).step_by(ZERO_SLICE as usize) {
            let slice = ZERO_SLICE.min(len - offset);
            let to = self.at(MpAddr(start.0 + offset), slice as usize);
            // SAFETY: `at` has checked the range, and the caller that nobody uses this extent.
            unsafe { to.write_bytes(0, slice as usize) };
            if !go_on(slice) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The memory of the page table; all zeros in a fresh pool.
    pub(crate) fn table(&self) -> &[Slot] {
        let offset = SUPERBLOCK_BYTES as usize;
        // SAFETY: by the layout the slots lie between superblock and head, inside the mapping, which lives
        // as long as `self`; the address is 4 KiB aligned; and nobody touches this memory but as atomics.
        unsafe {
            let slots = self.backing.base().as_ptr().add(offset).cast::<Slot>();
            std::slice::from_raw_parts(slots, self.layout.slots as usize)
        }
    }

    /// Stores the superblock in memory (not yet in the file).
    pub(super) fn put_superblock(&self, bytes: &[u8; USED_BYTES]) {
        // SAFETY: the first 4 KiB of the mapping are the superblock's; only the thread that opens or closes
        // the pool comes here.
        unsafe { self.backing.base().as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), USED_BYTES) };
    }
}

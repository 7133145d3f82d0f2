//! The receiving half of a packet ring. The kernel fills the slots in order; the status word of a slot states
//! its owner, the kernel or this process.

#![expect(unsafe_code, reason = "rings shared with the kernel are mapped memory")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::MmapRaw;

pub(crate) struct RxRing {
    base: NonNull<u8>,
    slot: usize,
    next: usize,
    /// Number of slots, a power of two, minus one.
    mask: usize,
    /// Mapping of the slots. All pointers into it belong to this ring, so it is dropped last.
    _map: MmapRaw,
}

// SAFETY: the link's owner owns the ring. Only the kernel uses it too, and each slot belongs to one side at a
// time, as its status word states.
unsafe impl Send for RxRing {}

impl RxRing {
    /// Makes a ring of `slots` slots of `slot` bytes at the start of `map`, a mapping of the socket's ring.
    ///
    /// # Panics
    /// If the number of slots is not a power of two, or the mapping is smaller than the slots.
    pub fn new(map: MmapRaw, slot: usize, slots: usize) -> RxRing {
        assert!(slots.is_power_of_two() && map.len() >= slot * slots);
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at 0");
        RxRing { base, slot, next: 0, mask: slots - 1, _map: map }
    }

    #[inline]
    fn status(&self, index: usize) -> &AtomicU32 {
        debug_assert!(index <= self.mask);
        // SAFETY: the index is below the number of slots, so the slot lies in the mapping. A slot is 16-byte
        // aligned and starts with the u32 status word, which the kernel writes concurrently.
        unsafe { self.base.add(index * self.slot).cast::<AtomicU32>().as_ref() }
    }

    /// Returns the oldest frame, if one has arrived. `Some(None)` stands for a truncated frame, which must be
    /// skipped.
    #[inline]
    pub fn front(&mut self) -> Option<Option<&mut [u8]>> {
        self.ahead(0)
    }

    /// Returns the frame `ahead` places after the oldest, as [`front`](Self::front) does for the oldest. The frame may
    /// be used until it is released.
    #[inline]
    pub fn ahead(&mut self, ahead: usize) -> Option<Option<&mut [u8]>> {
        let index = (self.next + ahead) & self.mask;
        let status = self.status(index).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the status word states that the slot is this process's until it is released. The kernel has
        // written a tpacket2_hdr at its start.
        let slot = unsafe { self.base.add(index * self.slot) };
        // SAFETY: as for `slot`: the header is initialised and does not change.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().as_ref() };
        let (offset, len) = (header.tp_mac as usize, header.tp_snaplen as usize);
        if header.tp_len != header.tp_snaplen || offset + len > self.slot {
            return Some(None);
        }
        // SAFETY: offset and length were checked to lie in the slot, which this side owns exclusively.
        Some(Some(unsafe { std::slice::from_raw_parts_mut(slot.as_ptr().add(offset), len) }))
    }

    #[inline]
    pub fn release(&mut self) {
        self.status(self.next).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) & self.mask;
    }

    /// Whether at least `count` frames (at most the number of slots) have arrived and were not released.
    #[inline]
    pub fn holds(&self, count: usize) -> bool {
        // Slots fill in order, so if this slot is full, those before it are too.
        let last = count.clamp(1, self.mask + 1) - 1;
        let status = self.status((self.next + last) & self.mask).load(Ordering::Acquire);
        status & libc::TP_STATUS_USER != 0
    }
}

//! The receiving half of a packet ring: the kernel fills the slots in order; the status word of each states its owner,
//! kernel or user.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::MmapRaw;

/// A receive ring of TPACKET_V2.
pub(crate) struct RxRing {
    base: NonNull<u8>,
    slot: usize,
    next: usize,
    /// Number of slots, a power of two, minus one.
    mask: usize,
    /// Mapping of the slots, and perhaps of a transmit ring; its link owns all pointers into it, and drops the mapping
    /// last.
    _map: MmapRaw,
}

// SAFETY: the link's owner owns the ring. The kernel alone uses it too, and each slot belongs to one side at a time, by
// its status word.
unsafe impl Send for RxRing {}

impl RxRing {
    /// Makes a ring of `slots` slots of `slot` bytes at the start of `map`, a mapping of the socket's ring.
    ///
    /// # Panics
    /// If the number of slots is no power of two, or the mapping is smaller than the slots.
    pub fn new(map: MmapRaw, slot: usize, slots: usize) -> RxRing {
        assert!(slots.is_power_of_two() && map.len() >= slot * slots);
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at 0");
        RxRing { base, slot, next: 0, mask: slots - 1, _map: map }
    }

    #[inline]
    fn status(&self, index: usize) -> &AtomicU32 {
        debug_assert!(index <= self.mask);
        // SAFETY: the index is below the number of slots, so the slot lies in the mapping; a slot is 16-byte
        // aligned and starts with the u32 status word that the kernel writes concurrently.
        unsafe { self.base.add(index * self.slot).cast::<AtomicU32>().as_ref() }
    }

    /// Oldest frame, if one has arrived; `Some(None)` for a truncated frame, which must be skipped.
    #[inline]
    pub fn front(&mut self) -> Option<Option<&mut [u8]>> {
        self.ahead(0)
    }

    /// Frame `ahead` places behind the oldest, in the same form. It is the user's until it is released.
    #[inline]
    pub fn ahead(&mut self, ahead: usize) -> Option<Option<&mut [u8]>> {
        let index = (self.next + ahead) & self.mask;
        let status = self.status(index).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: by its status word the slot is the user's until it is released; the kernel has written a tpacket2_hdr
        // at its start.
        // tpacket2_hdr at its start.
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

    /// Whether at least `count` frames have arrived and were not released; at most the ring's slots.
    #[inline]
    pub fn holds(&self, count: usize) -> bool {
        // Slots fill in order: if this slot is full, so are those before it.
        let last = count.clamp(1, self.mask + 1) - 1;
        let status = self.status((self.next + last) & self.mask).load(Ordering::Acquire);
        status & libc::TP_STATUS_USER != 0
    }
}

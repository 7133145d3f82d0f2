//! The receiving half of a packet ring: slots that the kernel fills in order, each with a status word that says
//! whose it is.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::MmapRaw;

/// A receive ring of TPACKET_V2.
pub(crate) struct RxRing {
    base: NonNull<u8>,
    slot: usize,
    next: usize,
    /// Slots less one; their number is a power of two.
    mask: usize,
    /// What the slots lie in, perhaps a transmit ring too; nothing outlives it, as its link owns everything that points into it.
    _map: MmapRaw,
}

// SAFETY: the ring is owned by whoever owns the link; the kernel is the only other party, and each slot
// belongs to one side at a time, as its status word says.
unsafe impl Send for RxRing {}

impl RxRing {
    /// The ring of `slots` slots of `slot` bytes at the start of `map`, a mapping of the socket they belong to.
    ///
    /// # Panics
    /// If the number of slots is no power of two, or the mapping is smaller than they are.
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

    /// The oldest frame, if one has arrived; `Some(None)` for one that must be skipped (cut off).
    #[inline]
    pub fn front(&mut self) -> Option<Option<&mut [u8]>> {
        self.ahead(0)
    }

    /// The frame `ahead` places behind the oldest, likewise. It stays ours until it is released.
    #[inline]
    pub fn ahead(&mut self, ahead: usize) -> Option<Option<&mut [u8]>> {
        let index = (self.next + ahead) & self.mask;
        let status = self.status(index).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the status word says the slot is ours until we give it back; the kernel has written a
        // tpacket2_hdr at its start.
        let slot = unsafe { self.base.add(index * self.slot) };
        // SAFETY: as above, the header is initialised and stable.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().as_ref() };
        let (offset, len) = (header.tp_mac as usize, header.tp_snaplen as usize);
        if header.tp_len != header.tp_snaplen || offset + len > self.slot {
            return Some(None);
        }
        // SAFETY: offset and length were checked to lie in the slot, which is exclusively ours.
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
        // Slots fill in order: if that one has, so have those before it.
        let last = count.clamp(1, self.mask + 1) - 1;
        let status = self.status((self.next + last) & self.mask).load(Ordering::Acquire);
        status & libc::TP_STATUS_USER != 0
    }
}

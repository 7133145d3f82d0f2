//! Memory that an AF_XDP socket shares with the kernel: the chunks for frames ([`Umem`]) and the four
//! single-producer single-consumer rings that pass the chunks back and forth ([`Ring`]).

#![expect(unsafe_code, reason = "rings shared with the kernel are mapped memory")]

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use crate::socket::{get_option, set_option};

pub(super) struct Umem {
    map: MmapRaw,
    chunk: usize,
}

impl Umem {
    /// Maps `chunks` chunks and registers the memory with the socket.
    pub fn register(socket: &OwnedFd, chunk: usize, chunks: u32) -> io::Result<Umem> {
        let len = chunk * chunks as usize;
        let map = MmapOptions::new().len(len).populate().map_anon()?.into();
        let umem = Umem { map, chunk };
        // SAFETY: xdp_umem_reg is plain data for which all zeros is valid.
        let mut reg: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
        reg.addr = umem.map.as_ptr() as u64;
        reg.len = len as u64;
        reg.chunk_size = chunk as u32;
        set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &reg)?;
        Ok(umem)
    }

    #[cfg(test)]
    pub fn of(chunk: usize, chunks: usize) -> Umem {
        let map = MmapOptions::new().len(chunk * chunks).map_anon().expect("memory").into();
        Umem { map, chunk }
    }

    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Returns the bytes at `addr`, or `None` if they do not lie within one chunk. The caller may dereference the
    /// pointer only if it owns that chunk.
    #[inline]
    pub fn slice(&self, addr: u64, len: usize) -> Option<*mut [u8]> {
        let start = addr as usize;
        let within = start & (self.chunk - 1);
        if start >= self.map.len() || within + len > self.chunk {
            return None;
        }
        // SAFETY: start was checked to lie inside the mapping.
        let at = unsafe { self.map.as_mut_ptr().add(start) };
        Some(std::ptr::slice_from_raw_parts_mut(at, len))
    }

    /// Returns the bytes at `addr`, which may span adjacent chunks, or `None` if they do not lie within the memory. The
    /// caller may dereference the pointer only if it owns all these chunks.
    #[inline]
    pub fn span(&self, addr: u64, len: usize) -> Option<*mut [u8]> {
        let start = addr as usize;
        if start.checked_add(len)? > self.map.len() {
            return None;
        }
        // SAFETY: start was checked to lie inside the mapping.
        let at = unsafe { self.map.as_mut_ptr().add(start) };
        Some(std::ptr::slice_from_raw_parts_mut(at, len))
    }
}

/// Entry of the fill and completion rings: the address of a chunk.
pub(super) type Addresses = u64;
/// Entry of the receive and transmit rings: address, length and options of a chunk.
pub(super) type Descriptors = libc::xdp_desc;

/// One of the four rings. This process is its producer (fill, transmit) or its consumer (receive,
/// completion), never both.
pub(super) struct Ring<T> {
    /// Mapping that the pointers below point into.
    _map: MmapRaw,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
    /// Index of this end: entries produced or consumed, including those not published yet.
    local: u32,
    /// Index of the kernel's end, as last read.
    remote: u32,
}

// SAFETY: the link owns the ring. The only other user of the memory is the kernel, which follows the ring's protocol.
unsafe impl<T> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `entries` entries (a power of two) with its parts at `offsets`.
    pub fn map(
        socket: &OwnedFd,
        offsets: &libc::xdp_ring_offset,
        entries: u32,
        page_offset: u64,
    ) -> io::Result<Ring<T>> {
        let len = offsets.desc as usize + entries as usize * size_of::<T>();
        let map = MmapOptions::new().len(len).offset(page_offset).populate().map_raw(socket)?;
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at 0");
        // SAFETY: the kernel's offsets lie in the mapping just made, aligned for their types.
        let (producer, consumer, entries_at) = unsafe {
            (
                base.add(offsets.producer as usize).cast(),
                base.add(offsets.consumer as usize).cast(),
                base.add(offsets.desc as usize).cast(),
            )
        };
        Ok(Ring {
            _map: map,
            producer,
            consumer,
            entries: entries_at,
            mask: entries - 1,
            local: 0,
            remote: 0,
        })
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: the pointer is into the mapping, which lives as long as self; the kernel accesses the word
        // atomically.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as for producer().
        unsafe { self.consumer.as_ref() }
    }

    pub fn entries(&self) -> u32 {
        self.mask + 1
    }

    /// Consumer: number of entries that can be popped.
    #[inline]
    pub fn readable(&mut self) -> u32 {
        // The kernel's index is read again only when all known entries are used up.
        if self.remote == self.local {
            self.remote = self.producer().load(Ordering::Acquire);
        }
        self.remote.wrapping_sub(self.local)
    }

    /// Consumer: returns the entry `ahead` places after the next one; `ahead` must be less than the result of
    /// [`readable`](Ring::readable).
    #[inline]
    pub fn at(&self, ahead: u32) -> T {
        debug_assert!(ahead < self.remote.wrapping_sub(self.local));
        // SAFETY: the index is masked to the ring's size, and the kernel has published this entry.
        unsafe { *self.entries.add((self.local.wrapping_add(ahead) & self.mask) as usize).as_ref() }
    }

    /// Consumer: removes and returns the next entry, which must be [`readable`](Ring::readable).
    #[inline]
    pub fn pop(&mut self) -> T {
        let entry = self.at(0);
        self.local = self.local.wrapping_add(1);
        entry
    }

    /// Consumer: returns popped entries to the kernel.
    #[inline]
    pub fn consume(&mut self) {
        self.consumer().store(self.local, Ordering::Release);
    }

    /// Producer: writes the next entry. A ring is never full, because it has as many entries as there are
    /// chunks for it.
    #[inline]
    pub fn push(&mut self, entry: T) {
        // SAFETY: the index is masked to the ring's size, and the kernel reads the entry only after it has been
        // published.
        unsafe { self.entries.add((self.local & self.mask) as usize).write(entry) };
        self.local = self.local.wrapping_add(1);
    }

    /// Producer: makes pushed entries visible to the kernel.
    #[inline]
    pub fn publish(&mut self) {
        self.producer().store(self.local, Ordering::Release);
    }

    /// Producer: whether the kernel has taken all published entries.
    pub fn is_drained(&self) -> bool {
        self.consumer().load(Ordering::Acquire) == self.local
    }
}

/// Sets the sizes of all four rings, and returns the offsets of their parts.
pub(super) fn sizes_and_offsets(
    socket: &OwnedFd,
    rx_entries: u32,
    tx_entries: u32,
) -> io::Result<libc::xdp_mmap_offsets> {
    for (name, entries) in [
        (libc::XDP_UMEM_FILL_RING, rx_entries),
        (libc::XDP_UMEM_COMPLETION_RING, tx_entries),
        (libc::XDP_RX_RING, rx_entries),
        (libc::XDP_TX_RING, tx_entries),
    ] {
        set_option(socket, libc::SOL_XDP, name, &entries)?;
    }
    get_option(socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)
}

/// Number of frames dropped because a ring or the memory was full. A frame that finds the fill ring empty is in two
/// counters of the kernel (empty fill ring, dropped frame); only the second is used here.
pub(super) fn dropped(socket: &OwnedFd) -> u64 {
    let statistics = get_option::<libc::xdp_statistics>(socket, libc::SOL_XDP, libc::XDP_STATISTICS);
    statistics.map_or(0, |s| s.rx_dropped + s.rx_ring_full)
}

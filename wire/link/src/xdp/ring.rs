//! The memory an AF_XDP socket shares with the kernel: the chunks that hold frames ([`Umem`]) and the four
//! single-producer single-consumer rings that pass them back and forth ([`Ring`]).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use crate::interface::set_option;

/// Memory for frames, in chunks of equal size.
pub(super) struct Umem {
    map: MmapRaw,
    chunk: usize,
}

impl Umem {
    /// Maps `chunks` chunks and registers them with the socket.
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

    /// Size of a chunk in bytes.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// The bytes at `addr`, or `None` if they do not lie within one chunk. Dereferencing needs ownership
    /// of that chunk.
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
}

/// Entries of the fill and completion rings.
pub(super) type Addresses = u64;
/// Entries of the receive and transmit rings.
pub(super) type Descriptors = libc::xdp_desc;

/// One ring. We are its producer (fill, transmit) or its consumer (receive, completion), never both.
pub(super) struct Ring<T> {
    /// What the pointers below point into.
    _map: MmapRaw,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
    /// Our own end: what we have produced (or consumed) and perhaps not yet published.
    local: u32,
    /// What we last saw of the other end.
    remote: u32,
}

// SAFETY: a ring is owned by its link; the kernel is the only other party and follows the same protocol.
unsafe impl<T> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `entries` (a power of two) whose parts lie at `offsets`.
    pub fn map(
        socket: &OwnedFd,
        offsets: &libc::xdp_ring_offset,
        entries: u32,
        page_offset: u64,
    ) -> io::Result<Ring<T>> {
        let len = offsets.desc as usize + entries as usize * size_of::<T>();
        let map = MmapOptions::new().len(len).offset(page_offset).populate().map_raw(socket)?;
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at 0");
        // SAFETY: the kernel's offsets lie in the mapping just made, aligned for what they point to.
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
        // SAFETY: points into the mapping, which lives as long as self; the kernel accesses it atomically.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as for producer().
        unsafe { self.consumer.as_ref() }
    }

    /// Consumer: how many entries can be popped.
    #[inline]
    pub fn readable(&mut self) -> u32 {
        if self.remote == self.local {
            self.remote = self.producer().load(Ordering::Acquire);
        }
        self.remote.wrapping_sub(self.local)
    }

    /// Consumer: the entry `ahead` places behind the next, which [`readable`](Ring::readable) said is there.
    #[inline]
    pub fn at(&self, ahead: u32) -> T {
        debug_assert!(ahead < self.remote.wrapping_sub(self.local));
        // SAFETY: the index is masked to the ring's size, and the kernel has published this entry.
        unsafe { *self.entries.add((self.local.wrapping_add(ahead) & self.mask) as usize).as_ref() }
    }

    /// Consumer: takes the next entry; only after [`readable`](Ring::readable) said there is one.
    #[inline]
    pub fn pop(&mut self) -> T {
        let entry = self.at(0);
        self.local = self.local.wrapping_add(1);
        entry
    }

    /// Consumer: gives what was popped back to the kernel.
    #[inline]
    pub fn consume(&mut self) {
        self.consumer().store(self.local, Ordering::Release);
    }

    /// Producer: writes the next entry. There is always room: a ring is as large as the number of chunks
    /// that can be in it.
    #[inline]
    pub fn push(&mut self, entry: T) {
        // SAFETY: the index is masked to the ring's size, and the kernel reads it only once published.
        unsafe { self.entries.add((self.local & self.mask) as usize).write(entry) };
        self.local = self.local.wrapping_add(1);
    }

    /// Producer: shows the kernel what was pushed.
    #[inline]
    pub fn publish(&mut self) {
        self.producer().store(self.local, Ordering::Release);
    }

    /// Producer: whether the kernel has taken everything published.
    pub fn is_drained(&self) -> bool {
        self.consumer().load(Ordering::Acquire) == self.local
    }
}

/// Sets the sizes of all four rings and asks where their parts are.
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
    // SAFETY: xdp_mmap_offsets is plain data for which all zeros is valid.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    get_option(socket, libc::XDP_MMAP_OFFSETS, &mut offsets)?;
    Ok(offsets)
}

/// Frames dropped because a ring or the memory was full. An empty fill ring is counted by the kernel twice, by itself
/// and as the loss it causes; here once.
pub(super) fn dropped(socket: &OwnedFd) -> u64 {
    // SAFETY: xdp_statistics is plain data for which all zeros is valid.
    let mut s: libc::xdp_statistics = unsafe { std::mem::zeroed() };
    match get_option(socket, libc::XDP_STATISTICS, &mut s) {
        Ok(()) => s.rx_dropped + s.rx_ring_full,
        Err(_) => 0,
    }
}

fn get_option<T>(socket: &OwnedFd, name: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `value`; both outlive the call.
    let rc = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, name, std::ptr::from_mut(value).cast(), &mut len)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

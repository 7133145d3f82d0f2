//! Memory that two mutually distrusting processes share: a memfd with a sealed size, which both map, and read and write
//! as 64-bit atomic words only. A value that the other process may write at any time is copied out once ([`Untrusted`])
//! and then checked; it never causes undefined behaviour, and a mapping never shrinks while it is used.
//!
//! All unsafe code of ports is in this file and in [`vectored`](super::vectored): the view of a mapping as words, and
//! the transfer of bytes between a mapping and a socket.

#![expect(unsafe_code, reason = "memory shared with another process is mapped, and read as atomic words")]

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{self, Relaxed};

use cxloe_cn_core::untrusted::Untrusted;
use cxloe_member::socket::{Descriptors, receive_some};
use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// A mapping of a memfd that two processes share.
#[derive(Debug)]
pub struct SharedMemory {
    map: MmapRaw,
    file: File,
}

const WORD: usize = size_of::<AtomicU64>();

const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

impl SharedMemory {
    /// Creates zeroed memory of `bytes` bytes, with its size sealed.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create(bytes: usize) -> io::Result<SharedMemory> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"cxloe-port", flags)?);
        file.set_len(bytes as u64)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
        Self::map(file, bytes)
    }

    /// Maps memory that another process created.
    ///
    /// # Errors
    /// The kernel's error; [`io::ErrorKind::InvalidData`] if the size is different or can still change.
    pub fn open(fd: OwnedFd, bytes: usize) -> io::Result<SharedMemory> {
        let file = File::from(fd);
        let sealed = SealFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GET_SEALS)?);
        if !sealed.contains(SEALS) || file.metadata()?.len() != bytes as u64 {
            let what = "the shared memory has another size than announced, or its size is not sealed";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Self::map(file, bytes)
    }

    fn map(file: File, bytes: usize) -> io::Result<SharedMemory> {
        let map = MmapOptions::new().len(bytes).map_raw(&file)?;
        Ok(SharedMemory { map, file })
    }

    /// The `N` words from index `first` on, to be copied out.
    ///
    /// # Panics
    /// If the memory has no such words.
    #[inline]
    pub fn untrusted<const N: usize>(&self, first: usize) -> Untrusted<'_, N> {
        Untrusted::new(self.words(first, N))
    }

    /// Stores `value` in the word `index`, where the other process can read and overwrite it.
    ///
    /// # Panics
    /// If the memory has no such word.
    #[inline]
    pub fn store(&self, index: usize, value: u64, order: Ordering) {
        self.words(index, 1)[0].store(value, order);
    }

    /// Clears `bits` in the word `index`; returns their former values.
    ///
    /// # Panics
    /// If the memory has no such word.
    #[inline]
    pub(crate) fn clear_bits(&self, index: usize, bits: u64) -> u64 {
        self.words(index, 1)[0].fetch_and(!bits, Relaxed) & bits
    }

    /// The `count` words from index `first` on.
    #[inline]
    fn words(&self, first: usize, count: usize) -> &[AtomicU64] {
        let all = self.map.len() / size_of::<AtomicU64>();
        assert!(first <= all && count <= all - first);
        // SAFETY: the mapping begins at a page boundary, so words are aligned; they lie inside it (checked above); it
        // stays mapped while `self` is borrowed, and its size is sealed. This process accesses it only by these
        // atomics; writes of the kernel and other processes cannot break Rust's rules.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast::<AtomicU64>().add(first), count) }
    }

    /// Copies `bytes` into the memory, from byte `at` on.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    #[inline]
    pub fn put(&self, at: usize, bytes: &[u8]) {
        let (first, within) = (at / WORD, at % WORD);
        if within != 0 {
            let (head, rest) = bytes.split_at(bytes.len().min(WORD - within));
            self.put_part(first, within, head);
            if !rest.is_empty() {
                self.put((first + 1) * WORD, rest);
            }
            return;
        }
        let (whole, tail) = bytes.as_chunks::<WORD>();
        for (to, from) in self.words(first, whole.len()).iter().zip(whole) {
            to.store(u64::from_ne_bytes(*from), Relaxed);
        }
        if !tail.is_empty() {
            self.put_part(first + whole.len(), 0, tail);
        }
    }

    /// Changes some bytes of a word; the caller must be the only writer of that word during the call.
    fn put_part(&self, index: usize, within: usize, bytes: &[u8]) {
        let [word] = self.untrusted(index).copy_out();
        let mut all = word.to_ne_bytes();
        all[within..within + bytes.len()].copy_from_slice(bytes);
        self.store(index, u64::from_ne_bytes(all), Relaxed);
    }

    /// Copies the memory into `bytes`, from byte `at` on.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    #[inline]
    pub fn take(&self, at: usize, bytes: &mut [u8]) {
        let (first, within) = (at / WORD, at % WORD);
        if within != 0 {
            let head = bytes.len().min(WORD - within);
            let (head, rest) = bytes.split_at_mut(head);
            let [word] = self.untrusted(first).copy_out();
            head.copy_from_slice(&word.to_ne_bytes()[within..within + head.len()]);
            if !rest.is_empty() {
                self.take((first + 1) * WORD, rest);
            }
            return;
        }
        let (whole, tail) = bytes.as_chunks_mut::<WORD>();
        for (from, to) in self.words(first, whole.len()).iter().zip(whole.iter_mut()) {
            *to = from.load(Relaxed).to_ne_bytes();
        }
        if !tail.is_empty() {
            let [word] = self.untrusted(first + whole.len()).copy_out();
            tail.copy_from_slice(&word.to_ne_bytes()[..tail.len()]);
        }
    }

    /// Address of the `length` bytes from byte `at` on, for system calls.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub(super) fn bytes(&self, at: usize, length: usize) -> *mut u8 {
        assert!(at <= self.map.len() && length <= self.map.len() - at);
        self.map.as_mut_ptr().wrapping_add(at)
    }

    /// The memfd, to be sent to the other process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Sends `bytes` and a copy of `fd`, without waiting: fails if the receiver has left no room.
///
/// # Errors
/// The kernel's error; [`io::ErrorKind::WriteZero`] if only a part of `bytes` was sent.
pub fn send_with_descriptor(socket: &UnixStream, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<()> {
    let descriptors = [fd.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let sent = sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], &rights, flags, None)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives at most `bytes.len()` bytes, and the descriptor attached to them, if any. Waits up to the time-out of the
/// socket.
///
/// # Errors
/// The kernel's error.
pub fn receive_with_descriptor(
    socket: &UnixStream,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut descriptors = Descriptors::new();
    let length = receive_some(socket.as_fd(), bytes, &mut descriptors, 0)?;
    Ok((length, descriptors.take()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::thread::JoinHandleExt;
    use std::path::{Path, PathBuf};
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    /// File of `/proc` with the number of this thread's sleeps.
    fn status() -> PathBuf {
        Path::new("/proc").join(fs::read_link("/proc/thread-self").unwrap()).join("status")
    }

    fn sleeps(status: &Path) -> Option<u64> {
        let status = fs::read_to_string(status).ok()?;
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        count.trim().parse().ok()
    }

    #[test]
    fn both_ends_see_one_memory() {
        let (a, b) = UnixStream::pair().unwrap();
        let here = SharedMemory::create(8192).unwrap();
        send_with_descriptor(&a, b"take it", here.descriptor()).unwrap();
        let mut text = [0; 16];
        let (length, fd) = receive_with_descriptor(&b, &mut text).unwrap();
        assert_eq!(&text[..length], b"take it");
        let there = SharedMemory::open(fd.unwrap(), 8192).unwrap();
        here.store(1023, 0b1110, Relaxed);
        assert_eq!(there.clear_bits(1023, 0b0101), 0b0100);
        assert_eq!(there.untrusted(1023).copy_out(), [0b1010]);
    }

    #[test]
    fn a_signal_does_not_end_the_wait_for_memory() {
        extern "C" fn ignore(_: libc::c_int) {}

        let (a, b) = UnixStream::pair().unwrap();
        b.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(libc::SIGUSR1, ignore as *const () as libc::sighandler_t) };
        let (tell, told) = mpsc::channel();
        let receiver = thread::spawn(move || {
            let status = status();
            tell.send((sleeps(&status).unwrap(), status)).unwrap();
            receive_with_descriptor(&b, &mut [0; 4])
        });
        let (before, status) = told.recv().unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        // The thread sleeps in the system call, and then again or not at all.
        for times in 1..=2 {
            while !receiver.is_finished() && sleeps(&status).is_none_or(|sleeps| sleeps < before + times) {
                assert!(Instant::now() < until, "the thread neither waits nor ends");
                thread::yield_now();
            }
            if times == 1 {
                // SAFETY: the thread was not joined, so its number is still its own.
                unsafe { libc::pthread_kill(receiver.as_pthread_t(), libc::SIGUSR1) };
            }
        }
        let memory = SharedMemory::create(4096).unwrap();
        send_with_descriptor(&a, b"take", memory.descriptor()).unwrap();
        let (length, fd) = receiver.join().unwrap().unwrap();
        assert_eq!((length, fd.is_some()), (4, true));
    }

    #[test]
    fn its_size_cannot_change_and_is_checked() {
        let memory = SharedMemory::create(4096).unwrap();
        assert!(memory.file.set_len(0).is_err() && memory.file.set_len(8192).is_err());
        let copy = memory.file.try_clone().unwrap();
        assert!(SharedMemory::open(copy.into(), 8192).is_err(), "another size than announced");
        let open = File::from(memfd_create(c"unsealed", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        open.set_len(4096).unwrap();
        assert!(SharedMemory::open(open.into(), 4096).is_err(), "not sealed");
    }

    #[test]
    fn bytes_are_copied_from_anywhere_to_anywhere() {
        let memory = SharedMemory::create(4096).unwrap();
        let mut expected = vec![0; 4096];
        for (at, length) in [(0, 8), (1, 3), (5, 3), (6, 20), (24, 24), (4090, 6), (8, 4088), (63, 1), (9, 0)]
        {
            let bytes: Vec<u8> = (0..length).map(|i| (at * 7 + i) as u8 | 1).collect();
            memory.put(at, &bytes);
            expected[at..at + length].copy_from_slice(&bytes);
            let mut back = vec![0; length];
            memory.take(at, &mut back);
            assert_eq!(back, bytes, "{length} bytes at {at}");
        }
        let mut all = vec![0; 4096];
        memory.take(0, &mut all);
        assert!(all == expected);
    }

    #[test]
    #[should_panic]
    fn no_word_beyond_the_end() {
        let _ = SharedMemory::create(4096).unwrap().untrusted::<1>(512);
    }
}

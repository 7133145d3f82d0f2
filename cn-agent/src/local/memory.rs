//! Memory that two processes share and neither trusts: a memfd whose size is sealed, mapped by both, read and
//! written as 64-bit atomic words only. Whatever the other process writes, and whenever, is a value to check;
//! it is never undefined behaviour, and a mapping never shrinks under its user.
//!
//! Everything unsafe about ports is in this file: the view of a mapping as words, and the descriptors that
//! come with a message.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU64;

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// A mapping of shared memory.
#[derive(Debug)]
pub struct SharedMemory {
    map: MmapRaw,
    file: File,
}

const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

impl SharedMemory {
    /// Makes `bytes` bytes of zeros whose size cannot change any more.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create(bytes: usize) -> io::Result<SharedMemory> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"cxloe-port", flags)?);
        file.set_len(bytes as u64)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
        Self::map(file, bytes)
    }

    /// Maps what another process made.
    ///
    /// # Errors
    /// What the kernel says; [`io::ErrorKind::InvalidData`] when its size is another or can still change.
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

    /// The word with this number.
    ///
    /// # Panics
    /// If the memory has no such word.
    #[inline]
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.map.len() / size_of::<AtomicU64>());
        // SAFETY: the mapping begins at a page boundary, so every word is aligned; the word lies inside it (checked
        // above); it stays mapped as long as `self` is borrowed, and its size is sealed. All accesses in this process
        // are atomic, because this is the only way to it; those of other processes cannot break Rust's rules.
        unsafe { &*self.map.as_ptr().cast::<AtomicU64>().add(index) }
    }

    /// The descriptor to pass on.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Sends `bytes` and a copy of `fd`, without waiting: a receiver that does not read gets an error.
///
/// # Errors
/// What the kernel says; [`io::ErrorKind::WriteZero`] if it took a part only.
pub fn send_with_descriptor(socket: &UnixStream, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<()> {
    let descriptors = [fd.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let sent = sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], &rights, flags, None)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives what there is, at most `bytes.len()`, and the descriptor that came with it, if one did. Waits as
/// the socket's time-out says.
///
/// # Errors
/// What the kernel says.
pub fn receive_with_descriptor(
    socket: &UnixStream,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = nix::cmsg_space!([std::os::fd::RawFd; 1]);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let mut received = None;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            for fd in descriptors {
                // SAFETY: the kernel has just made this descriptor for us; nobody else knows its number.
                received = Some(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    Ok((message.bytes, received))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn both_ends_see_one_memory() {
        let (a, b) = UnixStream::pair().unwrap();
        let here = SharedMemory::create(8192).unwrap();
        send_with_descriptor(&a, b"take it", here.descriptor()).unwrap();
        let mut text = [0; 16];
        let (length, fd) = receive_with_descriptor(&b, &mut text).unwrap();
        assert_eq!(&text[..length], b"take it");
        let there = SharedMemory::open(fd.unwrap(), 8192).unwrap();
        here.word(1023).store(42, Relaxed);
        assert_eq!(there.word(1023).load(Relaxed), 42);
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
    #[should_panic]
    fn no_word_beyond_the_end() {
        SharedMemory::create(4096).unwrap().word(512);
    }
}

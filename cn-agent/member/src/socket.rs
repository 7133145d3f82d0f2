//! A connection to the agent's socket, over which descriptors are sent beside bytes. All functions make
//! system calls on values of the caller, and allocate nothing.

#![expect(unsafe_code, reason = "calls on sockets take raw pointers, also those with control messages")]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use libc::{c_int, c_void};

/// Maximum number of descriptors in one message that is sent.
pub const DESCRIPTORS_MAX: usize = 4;
/// Maximum number of descriptors in one message that is received: the kernel's own (`SCM_MAX_FD`). With less
/// room, the kernel would close the surplus descriptors, and the receiver would have to wait for that.
const RECEIVED_MAX: usize = 253;

/// Address of a Unix socket, kept in the form of `connect(2)` so that connecting allocates nothing.
#[derive(Clone, Copy)]
pub struct SocketPath(libc::sockaddr_un);

impl std::fmt::Debug for SocketPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for byte in self.bytes() {
            std::fmt::Write::write_char(f, char::from(*byte))?;
        }
        Ok(())
    }
}

impl SocketPath {
    /// Path of at most 107 bytes, none of which is zero; `None` for any other.
    pub fn new(path: &[u8]) -> Option<SocketPath> {
        // SAFETY: all zeros are a valid address, of no family.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let fits = !path.is_empty() && path.len() < address.sun_path.len() && !path.contains(&0);
        fits.then(|| {
            for (place, byte) in address.sun_path.iter_mut().zip(path) {
                *place = *byte as libc::c_char;
            }
            SocketPath(address)
        })
    }

    /// Bytes of the path, without the terminating zero.
    pub fn bytes(&self) -> &[u8] {
        let path = &self.0.sun_path;
        let length = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
        // SAFETY: `c_char` is a byte, and the first `length` of the array are initialized.
        unsafe { std::slice::from_raw_parts(path.as_ptr().cast(), length) }
    }
}

/// Descriptors received with a message; those not taken are closed.
#[derive(Debug)]
pub struct Descriptors([Option<OwnedFd>; RECEIVED_MAX]);

impl Default for Descriptors {
    fn default() -> Descriptors {
        Descriptors::new()
    }
}

impl Descriptors {
    pub const fn new() -> Descriptors {
        Descriptors([const { None }; RECEIVED_MAX])
    }

    /// Takes the next descriptor, in the order in which they were sent.
    pub fn take(&mut self) -> Option<OwnedFd> {
        self.0.iter_mut().find_map(Option::take)
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Adds a descriptor; one for which there is no room is closed.
    pub fn keep(&mut self, fd: OwnedFd) {
        if let Some(place) = self.0.iter_mut().find(|place| place.is_none()) {
            *place = Some(fd);
        }
    }
}

/// Buffer for control messages with [`DESCRIPTORS_MAX`] descriptors, aligned as the kernel requires.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Buffer for control messages with [`RECEIVED_MAX`] descriptors.
#[repr(C, align(8))]
struct ReceivedControl([u8; 1040]);

const _: () = assert!(
    // SAFETY: the macro only computes a size.
    unsafe { libc::CMSG_SPACE((RECEIVED_MAX * size_of::<c_int>()) as u32) } as usize
        <= size_of::<ReceivedControl>()
);

const _: () = assert!(
    // SAFETY: the macro only computes a size.
    unsafe { libc::CMSG_SPACE((DESCRIPTORS_MAX * size_of::<c_int>()) as u32) } as usize
        <= size_of::<Control>()
);

#[derive(Debug)]
pub struct Socket(OwnedFd);

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Socket {
    fn from(fd: OwnedFd) -> Socket {
        Socket(fd)
    }
}

impl Socket {
    /// Connects to `path`; reads and writes of the connection wait for at most `limit`.
    ///
    /// # Errors
    /// Errors of the system call.
    pub fn connect(path: &SocketPath, limit: Duration) -> io::Result<Socket> {
        // SAFETY: plain values.
        let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
        let socket = Socket(unsafe { OwnedFd::from_raw_fd(fd) });
        let time = libc::timeval {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_usec: libc::suseconds_t::from(limit.subsec_micros() as i32),
        };
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            let (value, length) = (std::ptr::from_ref(&time).cast(), size_of::<libc::timeval>());
            // SAFETY: the kernel reads `length` bytes of a live value.
            let set =
                unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, value, length as libc::socklen_t) };
            if set != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let (address, length) = (std::ptr::from_ref(&path.0).cast(), size_of::<libc::sockaddr_un>());
        // SAFETY: the kernel reads `length` bytes of a live value.
        if unsafe { libc::connect(fd, address, length as libc::socklen_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(socket)
    }

    /// Sends all of `bytes`, with copies of `descriptors` attached to the first byte.
    ///
    /// # Errors
    /// The system call's error; [`io::ErrorKind::InvalidInput`] for more than [`DESCRIPTORS_MAX`] descriptors.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut sent = 0;
        let mut descriptors = descriptors;
        while sent < bytes.len() {
            sent += send_some(self.0.as_fd(), &bytes[sent..], descriptors, 0)?;
            descriptors = &[];
        }
        Ok(())
    }

    /// Receives the bytes that have arrived, at most `bytes.len()`, and adds descriptors that come with them to
    /// `descriptors`. Returns 0 if the peer has closed the connection.
    ///
    /// # Errors
    /// The system call's error; [`io::ErrorKind::WouldBlock`] after the limit.
    pub fn receive(&self, bytes: &mut [u8], descriptors: &mut Descriptors) -> io::Result<usize> {
        receive_some(self.0.as_fd(), bytes, descriptors, 0)
    }

    /// Receives the bytes that have arrived, without waiting.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn try_receive(&self, bytes: &mut [u8], descriptors: &mut Descriptors) -> io::Result<usize> {
        receive_some(self.0.as_fd(), bytes, descriptors, libc::MSG_DONTWAIT)
    }

    /// Sends all of `bytes` without waiting; [`io::ErrorKind::WriteZero`] if only a part was sent, so that the peer
    /// gets no whole message.
    ///
    /// # Errors
    /// Errors of the system call.
    pub fn try_send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let sent = send_some(self.0.as_fd(), bytes, descriptors, libc::MSG_DONTWAIT)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Receives exactly `bytes.len()` bytes.
    ///
    /// # Errors
    /// The system call's error; [`io::ErrorKind::UnexpectedEof`] if the peer closes the connection before.
    pub fn receive_exact(&self, bytes: &mut [u8], descriptors: &mut Descriptors) -> io::Result<()> {
        let mut got = 0;
        while got < bytes.len() {
            match self.receive(&mut bytes[got..], descriptors)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => got += more,
            }
        }
        Ok(())
    }
}

/// Sends a part of `bytes`, and all of `descriptors`, to any socket. Returns the number of bytes sent.
///
/// # Errors
/// Errors of the system call.
pub fn send_some(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: c_int,
) -> io::Result<usize> {
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr() as *mut c_void, iov_len: bytes.len() };
    // SAFETY: all zeros are a valid header of an empty message.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
    if !descriptors.is_empty() {
        let length = (descriptors.len().min(DESCRIPTORS_MAX) * size_of::<RawFd>()) as u32;
        // SAFETY: the control buffer is aligned and has room for a header and this many descriptors (asserted above);
        // `CMSG_FIRSTHDR` and `CMSG_DATA` point into it.
        unsafe {
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(length) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(length) as _;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            for (index, fd) in descriptors.iter().take(DESCRIPTORS_MAX).enumerate() {
                data.add(index).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    loop {
        // SAFETY: the header points to live buffers of the lengths in it.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags | libc::MSG_NOSIGNAL) };
        match usize::try_from(sent) {
            Ok(sent) => return Ok(sent),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Receives the bytes that have arrived on any socket, and the descriptors of one message.
///
/// # Errors
/// Errors of the system call.
pub fn receive_some(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptors: &mut Descriptors,
    flags: c_int,
) -> io::Result<usize> {
    let mut control = ReceivedControl([0; 1040]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros are a valid header of an empty message.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = size_of::<ReceivedControl>() as _;
    let got = loop {
        // SAFETY: the header points to live buffers of the lengths in it.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags | libc::MSG_CMSG_CLOEXEC) };
        match usize::try_from(got) {
            Ok(got) => break got,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    };
    // SAFETY: the kernel has set the length of the data it wrote into the control buffer; the macros walk within it.
    // Each number in an SCM_RIGHTS message is a descriptor newly made for this process.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                let length = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for index in 0..length / size_of::<RawFd>() {
                    descriptors.keep(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn descriptors_come_beside_bytes() {
        let (a, b) = UnixStream::pair().unwrap();
        let (a, b) = (Socket::from(OwnedFd::from(a)), Socket::from(OwnedFd::from(b)));
        let zero = File::open("/dev/zero").unwrap();
        a.send(b"three", &[zero.as_fd(), zero.as_fd(), zero.as_fd()]).unwrap();
        a.send(b"none", &[]).unwrap();
        let (mut bytes, mut descriptors) = ([0; 5], Descriptors::new());
        b.receive_exact(&mut bytes, &mut descriptors).unwrap();
        assert_eq!(&bytes, b"three");
        let taken: Vec<_> = std::iter::from_fn(|| descriptors.take()).collect();
        assert_eq!(taken.len(), 3);
        File::from(taken.into_iter().next().unwrap()).read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [0; 5]);
        b.receive_exact(&mut bytes[..4], &mut descriptors).unwrap();
        assert!(descriptors.take().is_none());
        assert_eq!(
            b.try_receive(&mut bytes, &mut descriptors).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(a);
        assert_eq!(b.receive(&mut bytes, &mut descriptors).unwrap(), 0);
    }

    #[test]
    fn a_path_is_connected_to() {
        let path = std::env::temp_dir().join(format!("cxloe-member-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let place = SocketPath::new(path.as_os_str().as_encoded_bytes()).unwrap();
        assert_eq!(place.bytes(), path.as_os_str().as_encoded_bytes());
        let socket = Socket::connect(&place, Duration::from_secs(5)).unwrap();
        socket.send(b"hi", &[]).unwrap();
        let mut said = [0; 2];
        listener.accept().unwrap().0.read_exact(&mut said).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(Socket::connect(&place, Duration::from_secs(5)).is_err());
        assert!(SocketPath::new(&[b'x'; 108]).is_none() && SocketPath::new(b"").is_none());
    }
}

//! Socket of a `udp` link, its options, and addresses in the kernel's form.

#![expect(unsafe_code, reason = "socket addresses in the kernel's form are unions")]

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::socket::{owned, set_option};

/// Socket options of `linux/udp.h`, which the libc crate does not define for every C library.
pub(super) const UDP_SEGMENT: libc::c_int = 103;
pub(super) const UDP_GRO: libc::c_int = 104;

/// Length of the receive queue in bytes; without CAP_NET_ADMIN the kernel limits it to `net.core.rmem_max`.
const RECEIVE_QUEUE_BYTES: libc::c_int = 8 << 20;
/// Length of the send queue in bytes.
const SEND_QUEUE_BYTES: libc::c_int = 4 << 20;

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union RawAddress {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawAddress {
    /// Makes an empty address for the kernel to fill in.
    pub const fn empty() -> RawAddress {
        // SAFETY: every member is plain data for which all zeros is valid.
        unsafe { std::mem::zeroed() }
    }

    /// Length in bytes of an address of this family.
    pub fn len(&self) -> libc::socklen_t {
        // SAFETY: the family is at the same place in both structures, and set or zero.
        let len = match libc::c_int::from(unsafe { self.family }) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            _ => size_of::<libc::sockaddr_in6>(),
        };
        len as libc::socklen_t
    }

    /// Returns the address that the kernel has filled in, or `None` for an unknown family.
    #[inline]
    pub fn get(&self) -> Option<SocketAddr> {
        // SAFETY: the family is at the same place in both structures, and set or zero.
        match libc::c_int::from(unsafe { self.family }) {
            libc::AF_INET => {
                // SAFETY: the field belongs to the family.
                let v4 = unsafe { self.v4 };
                let ip = u32::from_be(v4.sin_addr.s_addr).into();
                Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))))
            }
            libc::AF_INET6 => {
                // SAFETY: the field belongs to the family.
                let v6 = unsafe { self.v6 };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id)))
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for RawAddress {
    fn from(address: SocketAddr) -> RawAddress {
        let mut raw = RawAddress::empty();
        match address {
            SocketAddr::V4(address) => {
                raw.v4.sin_family = libc::AF_INET as libc::sa_family_t;
                raw.v4.sin_port = address.port().to_be();
                raw.v4.sin_addr.s_addr = u32::from(*address.ip()).to_be();
            }
            SocketAddr::V6(address) => {
                raw.v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                raw.v6.sin6_port = address.port().to_be();
                raw.v6.sin6_addr.s6_addr = address.ip().octets();
                raw.v6.sin6_scope_id = address.scope_id();
            }
        }
        raw
    }
}

/// Makes a datagram socket for addresses like `address`. It never fragments.
pub(super) fn new(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: creates a socket; the result is checked.
    let socket = owned(unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    match address.ip() {
        IpAddr::V4(_) => {
            set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_DO)?;
        }
        IpAddr::V6(_) => {
            set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1)?;
            // The constant has the same value for IPv4 and IPv6.
            set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &libc::IP_PMTUDISC_DO)?;
            set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, &1)?;
        }
    }
    Ok(socket)
}

/// Offloads that the kernel supports on a link's socket.
pub(super) struct Offloads {
    /// True if the kernel cuts messages into datagrams (UDP_SEGMENT).
    pub segments: bool,
    /// True if the kernel joins datagrams into messages (UDP_GRO).
    pub joins: bool,
    /// Length of the receive queue in bytes, as the kernel counts it.
    pub receive_queue: usize,
}

/// Sets the options of a link's socket before it is bound: queue lengths, segmentation, traffic class, and
/// sharing between the workers of a node.
pub(super) fn prepare(
    socket: &OwnedFd,
    own: SocketAddr,
    priority: Option<u8>,
    shared: bool,
) -> io::Result<Offloads> {
    for (force, plain, bytes) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RECEIVE_QUEUE_BYTES),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_QUEUE_BYTES),
    ] {
        // This option ignores the system's limit of the queue, but needs CAP_NET_ADMIN.
        if set_option(socket, libc::SOL_SOCKET, force, &bytes).is_err() {
            set_option(socket, libc::SOL_SOCKET, plain, &bytes)?;
        }
    }
    if let Some(priority) = priority {
        // Class selector: the three high bits of the DSCP, which is the six high bits of the octet.
        let class = libc::c_int::from(priority) << 5;
        match own.ip() {
            IpAddr::V4(_) => set_option(socket, libc::IPPROTO_IP, libc::IP_TOS, &class)?,
            IpAddr::V6(_) => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class)?,
        }
    }
    if shared {
        set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1)?;
    }
    // The segment size of the socket is 0, because each message has its own segment size.
    let segments = set_option(socket, libc::SOL_UDP, UDP_SEGMENT, &0).is_ok();
    let joins = set_option(socket, libc::SOL_UDP, UDP_GRO, &1).is_ok();
    let receive_queue = option::<libc::c_int>(socket, libc::SOL_SOCKET, libc::SO_RCVBUF)? as usize;
    Ok(Offloads { segments, joins, receive_queue })
}

/// Maximum wait for an address that is in use. If the io_uring of a killed process referred to its sockets, the kernel
/// closes them only some time after the end of the process.
const RELEASE_MAX: Duration = Duration::from_secs(1);
const RELEASE_INTERVAL: Duration = Duration::from_millis(10);

/// Makes a socket bound to `own`. With `shared`, other sockets of this user may bind to it too.
pub(crate) fn bound(own: SocketAddr, shared: bool) -> io::Result<OwnedFd> {
    let socket = new(own)?;
    if shared {
        set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1)?;
    }
    bind(&socket, own)?;
    Ok(socket)
}

/// Binds to `own`. Waits up to [`RELEASE_MAX`] while the address is in use.
pub(super) fn bind(socket: &OwnedFd, own: SocketAddr) -> io::Result<()> {
    let raw = RawAddress::from(own);
    let until = Instant::now() + RELEASE_MAX;
    loop {
        // SAFETY: pointer and length describe `raw`, which outlives the call.
        let rc = unsafe { libc::bind(fd(socket), std::ptr::from_ref(&raw).cast(), raw.len()) };
        let error = if rc == 0 { return Ok(()) } else { io::Error::last_os_error() };
        if error.raw_os_error() != Some(libc::EADDRINUSE) || Instant::now() >= until {
            return Err(error);
        }
        std::thread::sleep(RELEASE_INTERVAL);
    }
}

/// Connects to `peer`; for UDP this sends no packet.
pub(super) fn connect(socket: &OwnedFd, peer: SocketAddr) -> io::Result<()> {
    let raw = RawAddress::from(peer);
    // SAFETY: pointer and length describe `raw`, which outlives the call.
    let rc = unsafe { libc::connect(fd(socket), std::ptr::from_ref(&raw).cast(), raw.len()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads a socket option that is an integer or an array of integers.
pub(super) fn option<T: Copy + Default>(
    socket: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `value`; both outlive the call, and the callers use
    // integers, for which every bit pattern is valid.
    let rc =
        unsafe { libc::getsockopt(fd(socket), level, name, std::ptr::from_mut(&mut value).cast(), &mut len) };
    if rc == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Number of datagrams that the kernel dropped because the receive queue was full.
pub(super) fn dropped(socket: &OwnedFd) -> u64 {
    // SK_MEMINFO_DROPS is the last of the nine values.
    option::<[u32; 9]>(socket, libc::SOL_SOCKET, libc::SO_MEMINFO).map_or(0, |info| u64::from(info[8]))
}

fn fd(socket: &OwnedFd) -> libc::c_int {
    std::os::fd::AsRawFd::as_raw_fd(socket)
}

//! The socket: its options, and addresses as the kernel has them.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::OwnedFd;

use crate::socket::{owned, set_option};

/// From `linux/udp.h`; not in the libc crate for every C library.
pub(super) const UDP_SEGMENT: libc::c_int = 103;
pub(super) const UDP_GRO: libc::c_int = 104;

/// What the receive queue may hold, as far as `net.core.rmem_max` or CAP_NET_ADMIN lets it.
const RECEIVE_QUEUE_BYTES: libc::c_int = 8 << 20;
/// What may be on its way out.
const SEND_QUEUE_BYTES: libc::c_int = 4 << 20;

/// An address as system calls take it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union RawAddress {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawAddress {
    /// An empty one, to be filled by the kernel.
    pub const fn empty() -> RawAddress {
        // SAFETY: every member is plain data for which all zeros is valid.
        unsafe { std::mem::zeroed() }
    }

    /// Bytes that hold the address.
    pub fn len(&self) -> libc::socklen_t {
        // SAFETY: the family is in the same place in both, and set or zero.
        let len = match libc::c_int::from(unsafe { self.family }) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            _ => size_of::<libc::sockaddr_in6>(),
        };
        len as libc::socklen_t
    }

    /// What the kernel has filled in; `None` if it is of no family that is known here.
    #[inline]
    pub fn get(&self) -> Option<SocketAddr> {
        // SAFETY: the family is in the same place in both, and set or zero.
        match libc::c_int::from(unsafe { self.family }) {
            libc::AF_INET => {
                // SAFETY: the family says which it is.
                let v4 = unsafe { self.v4 };
                let ip = u32::from_be(v4.sin_addr.s_addr).into();
                Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))))
            }
            libc::AF_INET6 => {
                // SAFETY: the family says which it is.
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

/// A datagram socket for addresses like `address` that never fragments.
pub(super) fn new(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: plain socket creation; the result is checked.
    let socket = owned(unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    match address.ip() {
        IpAddr::V4(_) => {
            set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_DO)?;
        }
        IpAddr::V6(_) => {
            set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1)?;
            // The same number as for IPv4.
            set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &libc::IP_PMTUDISC_DO)?;
            set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, &1)?;
        }
    }
    Ok(socket)
}

/// What the kernel does for a link's socket.
pub(super) struct Offloads {
    /// It cuts messages into datagrams.
    pub segments: bool,
    /// It puts datagrams together.
    pub joins: bool,
    /// What the receive queue holds in bytes, as the kernel counts them.
    pub receive_queue: usize,
}

/// Readies a link's socket, before it is bound: queues, segmentation, class, sharing between the workers of a node.
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
        if set_option(socket, libc::SOL_SOCKET, force, &bytes).is_err() {
            set_option(socket, libc::SOL_SOCKET, plain, &bytes)?;
        }
    }
    if let Some(priority) = priority {
        // Class selector: the three high bits of the six of DSCP, which are the six high ones of the octet.
        let class = libc::c_int::from(priority) << 5;
        match own.ip() {
            IpAddr::V4(_) => set_option(socket, libc::IPPROTO_IP, libc::IP_TOS, &class)?,
            IpAddr::V6(_) => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class)?,
        }
    }
    if shared {
        set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1)?;
    }
    // 0 on the socket: each message says for itself.
    let segments = set_option(socket, libc::SOL_UDP, UDP_SEGMENT, &0).is_ok();
    let joins = set_option(socket, libc::SOL_UDP, UDP_GRO, &1).is_ok();
    let receive_queue = option::<libc::c_int>(socket, libc::SOL_SOCKET, libc::SO_RCVBUF)? as usize;
    Ok(Offloads { segments, joins, receive_queue })
}

/// A plain socket at `own`, perhaps shared with others of this user.
pub(crate) fn bound(own: SocketAddr, shared: bool) -> io::Result<OwnedFd> {
    let socket = new(own)?;
    if shared {
        set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1)?;
    }
    bind(&socket, own)?;
    Ok(socket)
}

/// Binds to `own`.
pub(super) fn bind(socket: &OwnedFd, own: SocketAddr) -> io::Result<()> {
    let raw = RawAddress::from(own);
    // SAFETY: pointer and length describe `raw`, which outlives the call.
    let rc = unsafe { libc::bind(fd(socket), std::ptr::from_ref(&raw).cast(), raw.len()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Connects to `peer`, which sends nothing.
pub(super) fn connect(socket: &OwnedFd, peer: SocketAddr) -> io::Result<()> {
    let raw = RawAddress::from(peer);
    // SAFETY: pointer and length describe `raw`, which outlives the call.
    let rc = unsafe { libc::connect(fd(socket), std::ptr::from_ref(&raw).cast(), raw.len()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads a socket option of a plain integer type, or an array of them.
pub(super) fn option<T: Copy + Default>(
    socket: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `value`; both outlive the call, and every bit pattern is valid
    // for the integers it is used with.
    let rc =
        unsafe { libc::getsockopt(fd(socket), level, name, std::ptr::from_mut(&mut value).cast(), &mut len) };
    if rc == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Datagrams that the kernel dropped for want of room.
pub(super) fn dropped(socket: &OwnedFd) -> u64 {
    // SK_MEMINFO_DROPS is the last of nine.
    option::<[u32; 9]>(socket, libc::SOL_SOCKET, libc::SO_MEMINFO).map_or(0, |info| u64::from(info[8]))
}

fn fd(socket: &OwnedFd) -> libc::c_int {
    std::os::fd::AsRawFd::as_raw_fd(socket)
}

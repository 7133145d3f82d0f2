//! Longest frame of a `udp` link: the MTU of the interface, or of the path to a peer, minus the headers.

use std::io;
use std::net::SocketAddr;

use cxloe_wire::frame::{HEADER_LEN, LINE_SIZE};

use super::socket;

/// Length limit of a frame on any path: somewhat more than Ethernet carries with an MTU of 9,000.
pub(super) const FRAME_MAX: usize = 9_216;
/// Minimum length of the longest frame: header, one line and a trailer of 16 bytes.
pub(crate) const FRAME_MIN: usize = HEADER_LEN + LINE_SIZE + 16;

/// Socket options of `linux/in.h` and `linux/in6.h`.
const IP_MTU: libc::c_int = 14;
const IPV6_MTU: libc::c_int = 24;

/// Length in bytes of the IP and UDP headers before a frame.
pub(super) fn headers(own: SocketAddr) -> usize {
    if own.is_ipv4() { 20 + 8 } else { 40 + 8 }
}

/// Length of the longest frame in IP packets of `mtu` bytes.
pub(crate) fn frame_limit(mtu: usize, own: SocketAddr) -> usize {
    mtu.min(usize::from(u16::MAX)).saturating_sub(headers(own)).min(FRAME_MAX)
}

/// Returns the kernel's MTU of the path to `peer`: that of the route, or a smaller one that a router on the
/// path has reported.
///
/// # Errors
/// There is no route to `peer`.
pub(super) fn path_mtu(peer: SocketAddr) -> io::Result<usize> {
    // A connected socket has the kernel's path MTU; connecting a UDP socket sends nothing.
    let socket = socket::new(peer)?;
    socket::connect(&socket, peer)?;
    let (level, name) =
        if peer.is_ipv4() { (libc::IPPROTO_IP, IP_MTU) } else { (libc::IPPROTO_IPV6, IPV6_MTU) };
    socket::option::<libc::c_int>(&socket, level, name).map(|mtu| mtu as usize)
}

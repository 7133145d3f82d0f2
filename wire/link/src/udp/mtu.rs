//! How long a frame may be: what the MTU of the interface, and of the path to a peer, leaves beside the headers.

use std::io;
use std::net::SocketAddr;

use cxloe_wire::frame::{HEADER_LEN, LINE_SIZE};

use super::socket;

/// The longest frame, whatever the path carries: as on Ethernet with an MTU of 9,000, and some.
pub(super) const FRAME_MAX: usize = 9_216;
/// Header, one line and the longest trailer.
pub(crate) const FRAME_MIN: usize = HEADER_LEN + LINE_SIZE + 16;

/// From `linux/in.h` and `linux/in6.h`.
const IP_MTU: libc::c_int = 14;
const IPV6_MTU: libc::c_int = 24;

/// Bytes of the IP and UDP headers in front of a frame.
pub(super) fn headers(own: SocketAddr) -> usize {
    if own.is_ipv4() { 20 + 8 } else { 40 + 8 }
}

/// The longest frame in IP packets of `mtu` bytes.
pub(crate) fn frame_limit(mtu: usize, own: SocketAddr) -> usize {
    mtu.min(usize::from(u16::MAX)).saturating_sub(headers(own)).min(FRAME_MAX)
}

/// The MTU of the path to `peer`, as far as the kernel knows it: the route's, or what a router on the way has said.
///
/// # Errors
/// No route there.
pub(super) fn path_mtu(peer: SocketAddr) -> io::Result<usize> {
    let socket = socket::new(peer)?;
    socket::connect(&socket, peer)?;
    let (level, name) =
        if peer.is_ipv4() { (libc::IPPROTO_IP, IP_MTU) } else { (libc::IPPROTO_IPV6, IPV6_MTU) };
    socket::option::<libc::c_int>(&socket, level, name).map(|mtu| mtu as usize)
}

//! Outer addresses: destinations and permitted sources of a `udp` link's frames. This module does no I/O; the
//! [`udp`](crate::udp) link applies the addresses.
//!
//! | file | content |
//! |---|---|
//! | `address` | [`UdpAddress`]: local address of a node |
//! | `peers` | [`Peer`], [`Peers`]: outer address of each MAC |

mod address;
mod peers;

pub(crate) use address::UDP_PORT_DEFAULT;
pub use address::{UdpAddress, UdpAddressError};
pub(crate) use peers::shard_port;
pub use peers::{Peer, PeerError, Peers};

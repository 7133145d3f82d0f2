//! Outer addresses: where the frames of a `udp` link go, and where they may come from. Values without I/O; the
//! [`udp`](crate::udp) link acts by them.
//!
//! | file | what it holds |
//! |---|---|
//! | `address` | [`UdpAddress`]: where a node is to listen |
//! | `peers` | [`Peer`], [`Peers`]: which address speaks for which MAC |

mod address;
mod peers;

pub use address::{UDP_PORT_DEFAULT, UdpAddress, UdpAddressError};
pub(crate) use peers::shard_port;
pub use peers::{Peer, PeerError, Peers};

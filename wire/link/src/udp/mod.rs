//! UDP: whole frames inside datagrams, for networks that drop unknown EtherTypes, for routed ones, and for users
//! without the right to open raw sockets.
//!
//! ```text
//!   IP | UDP, port 63669 | destination MAC, source MAC, EtherType, command ... trailer
//!        outer             inner: the same bytes that a raw link carries, one frame to a datagram
//! ```
//!
//! The MACs of the inner frame stay the identities of nodes. The outer address of each MAC comes from the manager, with
//! which nodes register theirs, or from a static list ([`Peers`](crate::outer::Peers)); it is never learned from frames
//! received. A frame whose outer address is not the one registered for its source MAC is dropped and counted before any
//! further processing, a Hello like any other. An address can be forged where the network permits it: sealed sessions
//! are the protection there.
//!
//! Frames of one length to one peer, as bursts are, leave as one message that the kernel cuts into datagrams
//! (UDP_SEGMENT), and arrive as one that it has put together (UDP_GRO), up to 64 KiB in one piece; messages go in
//! batches (`sendmmsg`, `recvmmsg`). The frame limit follows from the MTU of the path, and datagrams are never
//! fragmented: a frame that is too long is an error with both figures. There is no PFC: pauses come from the memory
//! nodes' Congestion frames only. A priority is carried as the DSCP class selector of that number.
//!
//! | file | content |
//! |---|---|
//! | `address` | the address a node has ([`own_address`]), and its MAC |
//! | `routes` | the link's own copy of the table of peers |
//! | `socket` | the socket and its options, addresses as the kernel has them |
//! | `mtu` | the MTU of an interface's route to a peer, the frame limit that follows |
//! | `transmit`, `receive` | batches of segmented messages, out and in |
//! | `link` | [`UdpLink`] |

mod address;
mod link;
mod mtu;
mod receive;
mod routes;
mod socket;
mod transmit;

pub(crate) use address::station;
pub use address::{own_address, own_mac};
pub use link::UdpLink;
pub(crate) use mtu::{FRAME_MIN, frame_limit};
pub(crate) use socket::bound as bound_socket;

#[cfg(test)]
mod tests;

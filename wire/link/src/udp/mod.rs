//! UDP: whole frames inside datagrams, for networks that drop unknown EtherTypes, for routed networks, and for users
//! without the right to open raw sockets.
//!
//! ```text
//!   IP | UDP, port 63669 | destination MAC, source MAC, EtherType, command ... trailer
//!        outer             inner: the same bytes that a raw link carries, one frame to a datagram
//! ```
//!
//! The MACs of the inner frame remain the identities of nodes. The outer address of each MAC comes from the manager,
//! with which nodes register their addresses, or from a static list ([`Peers`](crate::outer::Peers)). It is never
//! learned from received frames. A frame, even a Hello, that comes from another outer address than the one registered
//! for its source MAC is dropped and counted before any further processing. If the network lets a host forge its outer
//! address, only sealed sessions give protection.
//!
//! Frames of one length to one peer, such as those of bursts, are sent as one message, which the kernel cuts into
//! datagrams (UDP_SEGMENT). They arrive as one message that the kernel has joined (UDP_GRO), up to 64 KiB in one piece.
//! Messages are passed in batches (`sendmmsg`, `recvmmsg`). The frame limit follows from the MTU of the path, and
//! datagrams are never fragmented: a frame that is too long is an error that states both lengths. There is no PFC, so
//! pauses come only from the Congestion frames of memory nodes. A priority is sent as the DSCP class selector of that
//! number.
//!
//! | file | content |
//! |---|---|
//! | `address` | the address of a node ([`own_address`]), and its MAC |
//! | `routes` | the link's own copy of the table of peers |
//! | `socket` | the socket and its options, addresses in the kernel's form |
//! | `mtu` | the MTU of an interface's route to a peer, and the frame limit that follows |
//! | `transmit`, `receive` | batches of segmented messages, sent and received |
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

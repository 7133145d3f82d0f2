//! Frames: the bytes on the wire. No state, no clock, no sockets.
//!
//! A received frame passes through this layer in four steps; none of them can panic or allocate:
//!
//! 1. The link removes an 802.1Q tag ([`vlan::strip`]).
//! 2. [`FrameView::new_checked`] finds from the command ([`opcode`]) where the frame's data ends and its
//!    trailer begins. A frame of unknown length is dropped here.
//! 3. [`FrameView::open`] verifies the trailer and, in a sealed session, decrypts the frame in place. A frame
//!    that fails is dropped as if it had been lost on the wire.
//! 4. [`FrameView::message`] returns the [`Message`], or an error for a malformed frame
//!    ([`FrameError::is_malformed`]), which rule R9 answers with a [`FaultStatus::Malformed`].
//!
//! On the way out, [`Message::emit`] writes header and payload into a transmit slot of [`frame_len`] bytes,
//! and [`Seal::seal`] adds the trailer and zeroes the padding. `PROTOCOL.md` beside this crate specifies
//! every byte.

pub mod keyed;
pub mod opcode;
pub mod vlan;

mod aead;
mod command;
mod crc;
mod error;
mod extent;
mod fault;
mod gcm;
mod handshake;
mod header;
mod limits;
mod mac;
mod message;
mod multi;
mod pfc;
mod public_key;
mod session_key;
mod trailer;
mod view;

pub use aead::{Aead, AeadError};
pub use command::{Direction, Space};
pub use error::FrameError;
pub use extent::{body_len, clear_len, destination, source};
pub use fault::FaultStatus;
pub use gcm::Gcm;
pub use handshake::{Hello, HelloAck, HelloStatus, Integrity};
pub use header::{Axi, ETHERTYPE_DEFAULT, HEADER_LEN, Header, LINE_SIZE, MIN_FRAME, PAGE_LINES, field};
pub use limits::{
    BURST_LINES_MAX, MAX_FRAME_LIMIT, WIRE_OVERHEAD, burst_fits_page, burst_read_lines_max,
    burst_write_lines_max, frame_len, long_burst_parts,
};
pub use mac::{Mac, ParseMacError};
pub use message::Message;
pub use multi::{
    ADDRESS_LEN, MULTI_LINES_MAX, MULTI_LINES_MIN, address_bytes, address_of, multi_read_lines_max,
    multi_write_lines_max,
};
pub use opcode::Command;
pub use pfc::{ETHERTYPE_MAC_CONTROL, PFC_DESTINATION, PfcVector};
pub use public_key::{ParsePublicKeyError, PublicKey};
pub use trailer::Seal;
pub use view::FrameView;

/// Feature bit of Hello and HelloAck: one frame may carry many lines, at any addresses.
pub const FEATURE_MULTI: u32 = 1;
/// Feature bit of Hello and HelloAck: a CN may have several sessions, each with its own address and queue.
pub const FEATURE_SHARDS: u32 = 2;
/// Feature bit of Hello and HelloAck: a burst read may ask for more lines than one answer carries. It then
/// takes one sequence number for each answer ([`long_burst_parts`]).
pub const FEATURE_LONG_BURSTS: u32 = 4;
/// Feature bit of Hello and HelloAck: one acknowledgement may cover several writes of consecutive numbers
/// that came in separate frames.
pub const FEATURE_JOINT_ACKS: u32 = 8;
/// All features that this crate supports; a Hello asks for them unless limited.
pub const FEATURES: u32 = FEATURE_MULTI | FEATURE_SHARDS | FEATURE_LONG_BURSTS | FEATURE_JOINT_ACKS;

/// Maximum number of sessions of one CN with one memory node, including the session of shard 0.
pub const SHARDS_MAX: u8 = 16;

/// Newest version of the protocol without keys.
pub const PROTOCOL_VERSION: u16 = 1;
/// Oldest version supported, so that nodes of two releases work together during an upgrade.
pub(crate) const PROTOCOL_VERSION_OLDEST: u16 = 1;
/// Version of the protocol with keys: both nodes prove their keys, and frames are sealed under keys of this
/// session.
pub const PROTOCOL_VERSION_KEYED: u16 = 2;

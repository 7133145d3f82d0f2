//! Frames: the bytes on the wire. No state, no clock, no sockets.
//!
//! A received frame passes through this layer in four steps, none of which can panic or allocate:
//!
//! 1. the link takes an 802.1Q tag off ([`vlan::strip`]);
//! 2. [`FrameView::new_checked`] finds by the command ([`opcode`]) where the frame's data ends and its trailer begins; a frame
//!    that cannot be delimited is dropped here;
//! 3. [`FrameView::open`] verifies the trailer (and decrypts in place where the session is sealed); a frame that
//!    fails is dropped exactly as if the wire had lost it;
//! 4. [`FrameView::message`] gives the [`Message`], or an error for a malformed one ([`FrameError::is_malformed`]),
//!    which rule R9 answers with a [`FaultStatus::Malformed`].
//!
//! On the way out [`Message::emit`] writes header and payload into a transmit slot of [`frame_len`] bytes and
//! [`Seal::seal`] adds the trailer and zeroes the padding. `PROTOCOL.md` beside this crate gives every byte.

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

/// Feature bit of Hello and HelloAck: frames of many lines at any addresses.
pub const FEATURE_MULTI: u32 = 1;
/// Feature bit of Hello and HelloAck: a CN has several sessions, each with an address and a queue of its own.
pub const FEATURE_SHARDS: u32 = 2;
/// Feature bit of Hello and HelloAck: a burst read may have more lines than an answer carries, and takes one number for
/// each answer ([`long_burst_parts`]).
pub const FEATURE_LONG_BURSTS: u32 = 4;
/// Feature bit of Hello and HelloAck: one acknowledgement may cover several writes of consecutive numbers that came in
/// separate frames.
pub const FEATURE_JOINT_ACKS: u32 = 8;
/// Features that this crate supports.
pub const FEATURES: u32 = FEATURE_MULTI | FEATURE_SHARDS | FEATURE_LONG_BURSTS | FEATURE_JOINT_ACKS;

/// Most sessions of a CN with one memory node, that of shard 0 included.
pub const SHARDS_MAX: u8 = 16;

/// Newest version of the protocol without keys.
pub const PROTOCOL_VERSION: u16 = 1;
/// Oldest version supported, so that nodes of two releases work together during an upgrade.
pub(crate) const PROTOCOL_VERSION_OLDEST: u16 = 1;
/// Version of the protocol between ends with keys: frames are sealed under keys of these two ends alone.
pub const PROTOCOL_VERSION_KEYED: u16 = 2;

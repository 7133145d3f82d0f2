//! Frames: the bytes that travel, and nothing else. No state, no clock, no sockets.
//!
//! A received frame passes through this layer in four steps, none of which can panic or allocate:
//!
//! 1. the link takes an 802.1Q tag off ([`vlan::strip`]);
//! 2. [`body_len`] tells from the command where the frame's data ends and its trailer begins; a frame that
//!    cannot be delimited is dropped here;
//! 3. [`Seal::open`] verifies the trailer (and decrypts in place where the session is sealed); a frame that
//!    fails is dropped exactly as if the wire had lost it;
//! 4. [`Message::parse`] gives the [`Header`] and the [`Message`], or says what is malformed
//!    ([`FrameError::is_malformed`]), which rule R9 answers with a [`FaultStatus::Malformed`].
//!
//! On the way out [`Message::emit`] writes header and payload into a transmit slot of [`frame_len`] bytes and
//! [`Seal::seal`] adds the trailer and zeroes the padding. `PROTOCOL.md` beside this crate gives every byte.

pub mod keyed;
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
pub use command::{Command, Direction, Space};
pub use error::FrameError;
pub use extent::{body_len, clear_len, destination, source};
pub use fault::FaultStatus;
pub use gcm::Gcm;
pub use handshake::{Hello, HelloAck, HelloStatus, Integrity};
pub use header::{Axi, ETHERTYPE_DEFAULT, HEADER_LEN, Header, LINE_SIZE, MIN_FRAME, PAGE_LINES};
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
pub use pfc::{ETHERTYPE_MAC_CONTROL, PFC_DESTINATION, PFC_FRAME_LEN, PFC_OPCODE, PfcVector};
pub use public_key::{ParsePublicKeyError, PublicKey};
pub use trailer::Seal;
pub use view::FrameView;

/// Feature of a session, a bit of Hello and HelloAck: frames that name many lines of any addresses.
pub const FEATURE_MULTI: u32 = 1;
/// Feature of a session, likewise: it is one of several of a CN, each of which has an address and a queue of its own.
pub const FEATURE_SHARDS: u32 = 2;
/// Feature of a session, likewise: a burst read may have more lines than an answer carries, and takes a number for each
/// answer ([`long_burst_parts`]).
pub const FEATURE_LONG_BURSTS: u32 = 4;
/// Feature of a session, likewise: an acknowledgement may stand for several writes of consecutive numbers, though each came
/// in a frame of its own.
pub const FEATURE_JOINT_ACKS: u32 = 8;
/// The features this crate knows.
pub const FEATURES: u32 = FEATURE_MULTI | FEATURE_SHARDS | FEATURE_LONG_BURSTS | FEATURE_JOINT_ACKS;

/// Sessions with one memory node that a CN may have at most, its first included.
pub const SHARDS_MAX: u8 = 16;

/// The newest version of the protocol that this crate speaks without keys, and the one it speaks with who speaks it too.
pub const PROTOCOL_VERSION: u16 = 1;
/// The oldest version it speaks, so that nodes of two releases can work together while one takes the place of the other.
pub const PROTOCOL_VERSION_OLDEST: u16 = 1;
/// The version that ends with keys speak with each other: sealed, under keys that nobody else knows.
pub const PROTOCOL_VERSION_KEYED: u16 = 2;

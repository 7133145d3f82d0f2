//! The frames of the handshake of version 2: a Hello and a HelloAck as in version 1, with their checksum, and behind it what
//! only ends with keys understand. So an end that has none answers by name, and a dissector shows the fields.
//!
//! | Hello, from | bytes | | HelloAck, from | bytes | |
//! |---|---|---|---|---|---|
//! | 0 | 65 | header and Hello | 0 | 89 | header and HelloAck |
//! | 65 | 4 | CRC-32C | 89 | 4 | CRC-32C |
//! | 69 | 108 | message 1: ephemeral key (32), key (32 + 16), time stamp (12 + 16) | 93 | 48 | message 2: ephemeral key (32), tag (16) |
//! | 177 | 16 | mac1, over 0 to 176 | 141 | 16 | mac, over 0 to 140 |
//! | 193 | 16 | mac2, over 0 to 192; or zeros | | | |

use super::{HEADER_LEN, Hello, HelloAck, Seal};

/// Bytes of a time stamp: TAI64N.
pub const STAMP_LEN: usize = 12;
/// Bytes of message 1.
pub const CALL_LEN: usize = 32 + (32 + 16) + (STAMP_LEN + 16);
/// Bytes of message 2.
pub const ANSWER_LEN: usize = 32 + 16;
/// Bytes of mac1 and of mac2.
pub const MAC_LEN: usize = 16;
/// Bytes of the mac behind a HelloAck.
pub const ACK_MAC_LEN: usize = MAC_LEN;
/// Bytes of a cookie.
pub const COOKIE_LEN: usize = 16;
/// Bytes of a cookie on its way: nonce, cookie, tag.
pub const COOKIE_SEALED_LEN: usize = 12 + COOKIE_LEN + 16;

/// Where message 1 begins.
pub const CALL_AT: usize = HEADER_LEN + Hello::LEN + Seal::PLAIN_LEN;
/// Where mac1 stands.
pub const MAC1_AT: usize = CALL_AT + CALL_LEN;
/// Where mac2 stands.
pub const MAC2_AT: usize = MAC1_AT + MAC_LEN;
/// Bytes of a Hello of version 2.
pub const HELLO_FRAME_LEN: usize = MAC2_AT + MAC_LEN;

/// Where message 2 begins.
pub const ANSWER_AT: usize = HEADER_LEN + HelloAck::LEN + Seal::PLAIN_LEN;
/// Bytes of a HelloAck of version 2 up to its mac.
pub const ACK_SIGNED_LEN: usize = ANSWER_AT + ANSWER_LEN;
/// Bytes of a HelloAck of version 2.
pub const ACK_FRAME_LEN: usize = ACK_SIGNED_LEN + ACK_MAC_LEN;
/// Bytes of a HelloAck that brings a cookie ([`HelloStatus::Cookie`](super::HelloStatus::Cookie)): it stands where message 2
/// would.
pub const COOKIE_FRAME_LEN: usize = ANSWER_AT + COOKIE_SEALED_LEN;

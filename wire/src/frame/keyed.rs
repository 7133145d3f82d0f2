//! Layout of the handshake frames of version 2: Hello and HelloAck as in version 1, with their checksum,
//! followed by a part that only nodes with keys read. So a node without a key can still answer with a status,
//! and a dissector can show the fields.
//!
//! | Hello, from | bytes | | HelloAck, from | bytes | |
//! |---|---|---|---|---|---|
//! | 0 | 65 | header and Hello | 0 | 89 | header and HelloAck |
//! | 65 | 4 | CRC-32C | 89 | 4 | CRC-32C |
//! | 69 | 108 | message 1: ephemeral key (32), key (32 + 16), time stamp (12 + 16) | 93 | 48 | message 2: ephemeral key (32), tag (16) |
//! | 177 | 16 | mac1, over 0 to 176 | 141 | 16 | mac, over 0 to 140 |
//! | 193 | 16 | mac2, over 0 to 192; or zeros | | | |

use super::{HEADER_LEN, Hello, HelloAck, Seal};

/// Length in bytes of a time stamp in TAI64N format.
pub(crate) const STAMP_LEN: usize = 12;
/// Length in bytes of Noise message 1.
pub(crate) const CALL_LEN: usize = 32 + (32 + 16) + (STAMP_LEN + 16);
/// Length in bytes of Noise message 2.
pub(crate) const ANSWER_LEN: usize = 32 + 16;
/// Length in bytes of mac1 and of mac2, each the first half of an HMAC-SHA256.
pub const MAC_LEN: usize = 16;
/// Length in bytes of the mac after a HelloAck.
pub(crate) const ACK_MAC_LEN: usize = MAC_LEN;
/// Length in bytes of a cookie before its encryption.
pub(crate) const COOKIE_LEN: usize = 16;
/// Length in bytes of an encrypted cookie: nonce, cookie, tag.
pub(crate) const COOKIE_SEALED_LEN: usize = 12 + COOKIE_LEN + 16;

/// Offset of Noise message 1 in the Hello, right after the checksum.
pub const CALL_AT: usize = HEADER_LEN + Hello::LEN + Seal::PLAIN_LEN;
/// Offset of mac1 in the Hello; mac1 covers all bytes before it.
pub const MAC1_AT: usize = CALL_AT + CALL_LEN;
/// Offset of mac2 in the Hello; mac2 covers all bytes before it.
pub const MAC2_AT: usize = MAC1_AT + MAC_LEN;
/// Length in bytes of every Hello of version 2, with or without a cookie.
pub const HELLO_FRAME_LEN: usize = MAC2_AT + MAC_LEN;

/// Offset of Noise message 2 in the HelloAck.
pub(crate) const ANSWER_AT: usize = HEADER_LEN + HelloAck::LEN + Seal::PLAIN_LEN;
/// Number of bytes of a HelloAck of version 2 that its mac covers: all bytes before the mac.
pub(crate) const ACK_SIGNED_LEN: usize = ANSWER_AT + ANSWER_LEN;
/// Length in bytes of a HelloAck of version 2 that has message 2: an offer or an authenticated refusal.
pub const ACK_FRAME_LEN: usize = ACK_SIGNED_LEN + ACK_MAC_LEN;
/// Length in bytes of a HelloAck that has a cookie instead of Noise message 2
/// ([`HelloStatus::Cookie`](super::HelloStatus::Cookie)).
pub const COOKIE_FRAME_LEN: usize = ANSWER_AT + COOKIE_SEALED_LEN;

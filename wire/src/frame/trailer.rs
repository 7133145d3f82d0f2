//! Integrity trailer: verifies that a frame is undamaged and belongs to this session.
//!
//! Besides the frame itself the trailer covers values that are not in the frame: the session id, all 64 bits
//! of the sequence number (R11), the space of that number, and the direction. So a frame of an earlier
//! session, or of an earlier cycle of the 16-bit number, fails just as a damaged frame does.

use super::command::place;
use super::header::field;
use super::limits::TRAILER_MAX;
use super::{Aead, Direction, Gcm, Space, clear_len, crc};

const _: () = assert!(Gcm::TRAILER_LEN == TRAILER_MAX && Aead::TAG_LEN <= TRAILER_MAX);

/// Integrity trailer of a session's frames, with the session's keys.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a session begins where nothing may be allocated: in a signal handler"
)]
pub enum Seal {
    /// CRC-32C, 4 bytes: protects against damage and mix-ups, not against an attacker.
    Plain {
        /// Session id; 0 outside any session.
        session: u64,
    },
    /// AES-128-GCM-SIV under keys from a pre-shared key: a tag of 16 bytes, payload encrypted. Protects
    /// against attackers too.
    Aead(Aead),
    /// AES-128-GCM under keys from a handshake between nodes' keys: tag and counter, 22 bytes, payload
    /// encrypted.
    Gcm(Gcm),
}

impl Seal {
    /// Trailer of Hello and HelloAck, which belong to no session. Use it with [`Space::Control`] and sequence
    /// number 0.
    pub const OUTSIDE: Self = Self::Plain { session: 0 };
    /// Length in bytes of the plain trailer, a CRC-32C.
    pub const PLAIN_LEN: usize = 4;

    /// Returns the length of the trailer in bytes: 4, 16 or 22.
    #[inline]
    pub const fn len(&self) -> usize {
        match self {
            Self::Plain { .. } => Self::PLAIN_LEN,
            Self::Aead(_) => Aead::TAG_LEN,
            Self::Gcm(_) => Gcm::TRAILER_LEN,
        }
    }

    /// Whether the trailer protects against an attacker.
    #[inline]
    pub(crate) const fn is_sealed(&self) -> bool {
        !matches!(self, Self::Plain { .. })
    }

    /// Returns `false`: every session has a trailer. Clippy asks for this beside `len`.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the trailer after the first `body_len` bytes of `frame` and zeroes the rest, so that the
    /// padding does not reveal earlier content of the buffer. A sealed session encrypts the payload in place.
    ///
    /// # Panics
    /// If `frame` has no room for the trailer, or `body_len` is less than a base header.
    #[inline]
    pub fn seal(&self, direction: Direction, space: Space, frame: &mut [u8], body_len: usize, seq: u64) {
        let (body, rest) = frame.split_at_mut(body_len);
        match self {
            Self::Plain { session } => {
                let (trailer, padding) = rest.split_at_mut(Self::PLAIN_LEN);
                trailer.copy_from_slice(&checksum(*session, direction, space, seq, body).to_be_bytes());
                zero(padding);
            }
            Self::Aead(aead) => {
                let (trailer, padding) = rest.split_at_mut(Aead::TAG_LEN);
                seal_by(aead, direction, space, body, seq, trailer);
                zero(padding);
            }
            Self::Gcm(gcm) => {
                let (trailer, padding) = rest.split_first_chunk_mut().expect("room for the trailer");
                gcm.seal(direction, space, body, seq, trailer);
                zero(padding);
            }
        }
    }

    /// Verifies the trailer of `frame`, whose data ends at `body_len`; a sealed session decrypts the payload
    /// in place. If this returns `false`, the payload is undefined: drop the frame.
    /// [`FrameView::open`](super::FrameView::open) does the same for a delimited frame.
    #[inline]
    #[must_use]
    pub fn open(
        &self,
        direction: Direction,
        space: Space,
        frame: &mut [u8],
        body_len: usize,
        seq: u64,
    ) -> bool {
        let clear = frame.get(field::COMMAND).map_or(0, |code| clear_len(*code));
        self.open_delimited(direction, space, frame, body_len, clear, seq)
    }

    /// [`open`](Self::open) for callers that have already computed the number of readable bytes, `clear_len`.
    #[inline]
    pub(super) fn open_delimited(
        &self,
        direction: Direction,
        space: Space,
        frame: &mut [u8],
        body_len: usize,
        clear_len: usize,
        seq: u64,
    ) -> bool {
        let Some((body, rest)) = frame.split_at_mut_checked(body_len) else { return false };
        match self {
            Self::Plain { session } => rest.first_chunk().is_some_and(|trailer| {
                u32::from_be_bytes(*trailer) == checksum(*session, direction, space, seq, body)
            }),
            Self::Aead(aead) => rest
                .first_chunk()
                .is_some_and(|tag| open_by(aead, direction, space, body, clear_len, seq, tag)),
            Self::Gcm(gcm) => rest
                .first_chunk()
                .is_some_and(|trailer| gcm.open(direction, space, body, clear_len, seq, trailer)),
        }
    }
}

/// Zeroes the bytes after a trailer. Usual lengths of padding take two overlapping stores, without a call of
/// `memset`.
#[inline(always)]
fn zero(padding: &mut [u8]) {
    fn both_ends<const N: usize>(padding: &mut [u8]) {
        if let Some(first) = padding.first_chunk_mut() {
            *first = [0; N];
        }
        if let Some(last) = padding.last_chunk_mut() {
            *last = [0; N];
        }
    }
    match padding.len() {
        0 => {}
        8..=16 => both_ends::<8>(padding),
        17..=32 => both_ends::<16>(padding),
        _ => padding.fill(0),
    }
}

/// Seals by AES-GCM-SIV. Not inlined, so that plain frames do not pay for the cipher's stack frame.
#[inline(never)]
fn seal_by(aead: &Aead, direction: Direction, space: Space, body: &mut [u8], seq: u64, trailer: &mut [u8]) {
    trailer.copy_from_slice(&aead.seal(direction, space, body, seq));
}

/// Opens by AES-GCM-SIV. Not inlined, for the same reason as [`seal_by`].
#[inline(never)]
fn open_by(
    aead: &Aead,
    direction: Direction,
    space: Space,
    body: &mut [u8],
    clear_len: usize,
    seq: u64,
    tag: &[u8; Aead::TAG_LEN],
) -> bool {
    aead.open(direction, space, body, clear_len, seq, tag)
}

#[inline]
fn checksum(session: u64, direction: Direction, space: Space, seq: u64, body: &[u8]) -> u32 {
    crc::checksum(session, seq, place(direction, space), body)
}

//! The integrity trailer: what tells a frame of this session, unharmed, from everything else.
//!
//! Besides the frame itself it covers what the frame does not carry: the session id, all 64 bits of the sequence
//! number (R11), whose number it is and which way the frame travels. So a frame of an earlier session or of an
//! earlier turn of the 16-bit counter fails just as a damaged one does.

use super::command::place;
use super::header::field;
use super::{Aead, Direction, Gcm, Space, clear_len, crc};

/// How frames of a session are sealed and opened.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a session begins where nothing may be allocated: in a signal handler"
)]
pub enum Seal {
    /// CRC-32C, 4 bytes: against damage and mix-ups, not against an attacker.
    Plain {
        /// The session id; 0 outside any session.
        session: u64,
    },
    /// An AEAD tag, 16 bytes, payload encrypted: against an attacker too. The session id is part of what the
    /// keys are derived from.
    Aead(Aead),
    /// The same between keys of nodes, with a counter behind the tag: 22 bytes.
    Gcm(Gcm),
}

impl Seal {
    /// For Hello and HelloAck, which travel outside any session: use [`Space::Control`] and sequence number 0.
    pub const OUTSIDE: Self = Self::Plain { session: 0 };
    /// Bytes of the plain trailer.
    pub const PLAIN_LEN: usize = 4;

    /// Bytes of the trailer.
    #[inline]
    pub const fn len(&self) -> usize {
        match self {
            Self::Plain { .. } => Self::PLAIN_LEN,
            Self::Aead(_) => Aead::TAG_LEN,
            Self::Gcm(_) => Gcm::TRAILER_LEN,
        }
    }

    /// Whether it withstands an attacker.
    #[inline]
    pub const fn is_sealed(&self) -> bool {
        !matches!(self, Self::Plain { .. })
    }

    /// Never: every session has a trailer.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the trailer behind the first `body_len` bytes of `frame` and zeroes what follows it, so that
    /// padding never carries what the buffer held before. A sealed session encrypts the payload in place.
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

    /// Whether `frame`, whose data ends at `body_len`, carries the trailer it should; a sealed session decrypts
    /// the payload in place. If not, the payload is worth nothing: drop the frame. For who has no
    /// [`FrameView`](super::FrameView), which [opens](super::FrameView::open) without being told lengths.
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

    /// The same, when it is known that a sealed session leaves `clear_len` bytes readable.
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

/// Zeroes what is behind a trailer: nothing, or what a short frame lacks, which is done without a call.
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

/// Not inlined: the room that a cipher needs on the stack is not to be made for every plain frame.
#[inline(never)]
fn seal_by(aead: &Aead, direction: Direction, space: Space, body: &mut [u8], seq: u64, trailer: &mut [u8]) {
    trailer.copy_from_slice(&aead.seal(direction, space, body, seq));
}

/// As [`seal_by`].
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

/// CRC-32C over pseudo-header and frame.
#[inline]
fn checksum(session: u64, direction: Direction, space: Space, seq: u64, body: &[u8]) -> u32 {
    crc::checksum(session, seq, place(direction, space), body)
}

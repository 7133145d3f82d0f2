//! The trailer between keys of nodes: AES-128-GCM (NIST SP 800-38D) with a counter in the frame, under keys of this session
//! alone.
//!
//! GCM is several times as quick as GCM-SIV, and must never see a nonce twice under one key. A frame's place in the session
//! is no such nonce: one request may be answered with different bytes. So each frame that leaves takes the next number of a
//! counter along, 48 bits behind the tag, and the nonce is direction, space and that number. The place is authenticated
//! with the readable part of the frame, as the checksum has it. A session gets new keys after 2^32 frames, long before the
//! counter ends; at its end nothing leaves that could be opened.
//!
//! A frame that was sent before opens again, as it would under any cipher: its place says that it was.

use core::cell::Cell;

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};

use super::command::place;
use super::header::field;
use super::{Direction, Hello, HelloAck, Mac, Space, clear_len, session_key};

/// What keys of this use are told apart by from any other use of the same secret.
const CONTEXT: &[u8] = b"cxloe 2 aes-128-gcm";
/// The first number that a counter does not have.
const COUNTER_END: u64 = 1 << 48;
/// Bytes of the longest readable part: that of a burst written.
const CLEAR_MAX: usize = super::HEADER_LEN + 8;
/// Bytes of a place: direction and space, sequence number.
const PLACE_LEN: usize = 4 + 8;

/// The keys of a session, and how many frames this end has sealed. Not to be copied: a copy would use a nonce again.
pub struct Gcm {
    to_mn: LessSafeKey,
    to_cn: LessSafeKey,
    sealed: Cell<u64>,
}

impl Gcm {
    /// Bytes of the tag.
    pub const TAG_LEN: usize = 16;
    /// Bytes of the counter.
    pub const COUNTER_LEN: usize = 6;
    /// Bytes of both.
    pub const TRAILER_LEN: usize = Self::TAG_LEN + Self::COUNTER_LEN;

    /// Derives the keys of the session `hello` and `ack` agree on, between the CN at `cn` and the memory node at `mn`, from
    /// the secret of the handshake.
    pub fn derive(secret: &[u8], cn: Mac, mn: Mac, hello: &Hello, ack: &HelloAck) -> Self {
        let [to_mn, to_cn] = session_key::derive(CONTEXT, secret, (cn, mn), hello, ack).map(|key| {
            LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).expect("AES-128 has keys of 16 bytes"))
        });
        Self { to_mn, to_cn, sealed: Cell::new(0) }
    }

    /// Encrypts what follows the readable part of `body`, and writes tag and counter.
    ///
    /// # Panics
    /// If `body` is shorter than its readable part.
    #[inline]
    pub(super) fn seal(
        &self,
        direction: Direction,
        space: Space,
        body: &mut [u8],
        seq: u64,
        trailer: &mut [u8; Self::TRAILER_LEN],
    ) {
        let counter = self.sealed.get();
        let (clear, secret) = body.split_at_mut(clear_len(body[field::COMMAND]));
        let (aad, len) = authenticated(direction, space, seq, clear);
        *trailer = [0; Self::TRAILER_LEN];
        if counter >= COUNTER_END {
            secret.fill(0);
            return;
        }
        self.sealed.set(counter + 1);
        let nonce = nonce(direction, space, counter);
        let tag = self.key(direction).seal_in_place_separate_tag(nonce, Aad::from(&aad[..len]), secret);
        let tag = tag.expect("a frame is far shorter than the 64 GiB the cipher takes");
        trailer[..Self::TAG_LEN].copy_from_slice(tag.as_ref());
        trailer[Self::TAG_LEN..].copy_from_slice(&counter.to_be_bytes()[2..]);
    }

    /// Decrypts what follows the first `clear_len` bytes in place and says whether the tag is right.
    #[inline]
    pub(super) fn open(
        &self,
        direction: Direction,
        space: Space,
        body: &mut [u8],
        clear_len: usize,
        seq: u64,
        trailer: &[u8; Self::TRAILER_LEN],
    ) -> bool {
        let Some((clear, secret)) = body.split_at_mut_checked(clear_len) else { return false };
        if clear.len() > CLEAR_MAX {
            return false;
        }
        let (tag, number) = trailer.split_at(Self::TAG_LEN);
        let (Ok(tag), Ok(number)) = (<[u8; Self::TAG_LEN]>::try_from(tag), number.try_into()) else {
            return false;
        };
        let [a, b, c, d, e, f]: [u8; Self::COUNTER_LEN] = number;
        let counter = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        let (aad, len) = authenticated(direction, space, seq, clear);
        let (nonce, aad) = (nonce(direction, space, counter), Aad::from(&aad[..len]));
        self.key(direction).open_in_place_separate_tag(nonce, aad, Tag::from(tag), secret, 0..).is_ok()
    }

    #[inline]
    fn key(&self, direction: Direction) -> &LessSafeKey {
        match direction {
            Direction::ToMn => &self.to_mn,
            Direction::ToCn => &self.to_cn,
        }
    }
}

/// Direction and space, then the counter.
#[inline]
fn nonce(direction: Direction, space: Space, counter: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&place(direction, space));
    nonce[4..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// What is authenticated and not encrypted: the place of the frame, and its readable part, of at most [`CLEAR_MAX`] bytes.
#[inline]
fn authenticated(
    direction: Direction,
    space: Space,
    seq: u64,
    clear: &[u8],
) -> ([u8; PLACE_LEN + CLEAR_MAX], usize) {
    let mut aad = [0; PLACE_LEN + CLEAR_MAX];
    aad[..4].copy_from_slice(&place(direction, space));
    aad[4..PLACE_LEN].copy_from_slice(&seq.to_be_bytes());
    let len = PLACE_LEN + clear.len();
    aad[PLACE_LEN..len].copy_from_slice(clear);
    (aad, len)
}

impl core::fmt::Debug for Gcm {
    /// Never shows the keys.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Gcm").field("sealed", &self.sealed.get()).finish_non_exhaustive()
    }
}

//! Trailer of sessions between nodes' keys: AES-128-GCM (NIST SP 800-38D) with a counter in the frame, under
//! keys of one session.
//!
//! GCM is several times as fast as GCM-SIV, but no nonce may repeat under one key. A frame's place in the
//! session is not unique, because one request may be answered with different bytes. So each frame sent takes
//! the next number of a 48-bit counter, which follows the tag, and the nonce is direction, space and that
//! number. The place is authenticated together with the readable part of the frame. A session gets new keys
//! after 2^32 frames, long before the counter ends. Once it has ended, frames are sent with a trailer of
//! zeros, which no receiver accepts.
//!
//! A replayed frame passes this check, as it would under any cipher: the session detects it by its sequence
//! number.
//!
//! Short frames, most of all a header alone or with one line, are sealed and opened by [`short`] if the
//! processor has the instructions, all others by `ring`. The bytes are the same; each is the faster one at
//! its lengths.

#[cfg(target_arch = "x86_64")]
mod short;
#[cfg(test)]
mod tests;

use core::cell::Cell;

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use zeroize::Zeroize;

use super::command::place;
use super::header::field;
use super::session_key::{self, KEY_LEN};
use super::{Direction, Hello, HelloAck, Mac, Space, clear_len};

/// HKDF info that separates these keys from any other use of the same secret.
const CONTEXT: &[u8] = b"cxloe 2 aes-128-gcm";
/// First number beyond the 48-bit range of the counter.
const COUNTER_END: u64 = 1 << 48;
/// Maximum length in bytes of a readable part: that of a burst write, with its mask.
const CLEAR_MAX: usize = super::HEADER_LEN + 8;
/// Length in bytes of a frame's encoded place: direction and space, sequence number.
const PLACE_LEN: usize = 4 + 8;

/// Keys of a session, and the number of frames that this end has sealed. Not `Clone`: a copy would reuse
/// nonces.
pub struct Gcm {
    to_mn: Key,
    to_cn: Key,
    sealed: Cell<u64>,
}

/// Place of a frame in its session, and the bytes of the frame that are authenticated but not encrypted.
#[derive(Clone, Copy)]
struct FramePlace<'a> {
    /// Direction and space, encoded by [`place`].
    place: [u8; 4],
    counter: u64,
    seq: u64,
    clear: &'a [u8],
}

/// Key of one direction, expanded for short frames and for `ring`.
struct Key {
    any: LessSafeKey,
    #[cfg(target_arch = "x86_64")]
    short: Option<short::Short>,
}

impl Key {
    fn new(mut key: [u8; KEY_LEN]) -> Self {
        let any = UnboundKey::new(&AES_128_GCM, &key).expect("AES-128 has keys of 16 bytes");
        let made = Self {
            any: LessSafeKey::new(any),
            #[cfg(target_arch = "x86_64")]
            short: short::Short::new(&key),
        };
        key.zeroize();
        made
    }

    /// Encrypts `secret` and returns the tag.
    #[inline]
    fn seal(&self, place: FramePlace<'_>, secret: &mut [u8]) -> [u8; Gcm::TAG_LEN] {
        #[cfg(target_arch = "x86_64")]
        if let Some(short) = &self.short
            && short::Short::takes(place.clear, secret)
        {
            return short.seal(place, secret);
        }
        self.seal_any(place, secret)
    }

    /// Decrypts `secret` and returns whether `tag` is right. If it is not, the content of `secret` is
    /// undefined.
    #[inline]
    fn open(&self, place: FramePlace<'_>, secret: &mut [u8], tag: &[u8; Gcm::TAG_LEN]) -> bool {
        #[cfg(target_arch = "x86_64")]
        if let Some(short) = &self.short
            && short::Short::takes(place.clear, secret)
        {
            return short.open(place, secret, tag);
        }
        self.open_any(place, secret, tag)
    }

    /// [`seal`](Self::seal) for any length. Not inlined, so that short frames do not pay for its stack space.
    #[inline(never)]
    fn seal_any(&self, place: FramePlace<'_>, secret: &mut [u8]) -> [u8; Gcm::TAG_LEN] {
        let (aad, len) = place.authenticated();
        let tag = self.any.seal_in_place_separate_tag(place.nonce(), Aad::from(&aad[..len]), secret);
        let tag = tag.expect("a frame is far shorter than the 64 GiB the cipher takes");
        tag.as_ref().try_into().expect("a tag of 16 bytes")
    }

    /// [`open`](Self::open) for any length.
    #[inline(never)]
    fn open_any(&self, place: FramePlace<'_>, secret: &mut [u8], tag: &[u8; Gcm::TAG_LEN]) -> bool {
        let (aad, len) = place.authenticated();
        let (nonce, aad) = (place.nonce(), Aad::from(&aad[..len]));
        self.any.open_in_place_separate_tag(nonce, aad, Tag::from(*tag), secret, 0..).is_ok()
    }
}

impl FramePlace<'_> {
    /// Nonce of the cipher: direction and space, then the counter.
    #[inline]
    fn nonce(&self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&self.place);
        nonce[4..].copy_from_slice(&self.counter.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    /// Bytes that are authenticated but not encrypted, and their number: the place of the frame, and its
    /// readable part of at most [`CLEAR_MAX`] bytes.
    #[inline]
    fn authenticated(&self) -> ([u8; PLACE_LEN + CLEAR_MAX], usize) {
        let mut aad = [0; PLACE_LEN + CLEAR_MAX];
        aad[..4].copy_from_slice(&self.place);
        aad[4..PLACE_LEN].copy_from_slice(&self.seq.to_be_bytes());
        let len = PLACE_LEN + self.clear.len();
        aad[PLACE_LEN..len].copy_from_slice(self.clear);
        (aad, len)
    }
}

impl Gcm {
    /// Length of the tag in bytes; not truncated.
    pub const TAG_LEN: usize = 16;
    /// Length in bytes of the counter, which follows the tag.
    pub const COUNTER_LEN: usize = 6;
    /// Length of tag and counter in bytes.
    pub const TRAILER_LEN: usize = Self::TAG_LEN + Self::COUNTER_LEN;

    /// Derives the keys of the session that `hello` and `ack` agree on, between the CN at `cn` and the memory
    /// node at `mn`, from the secret of the handshake.
    pub fn derive(secret: &[u8], cn: Mac, mn: Mac, hello: &Hello, ack: &HelloAck) -> Self {
        let [to_mn, to_cn] = session_key::derive(CONTEXT, secret, (cn, mn), hello, ack).map(Key::new);
        Self { to_mn, to_cn, sealed: Cell::new(0) }
    }

    /// Encrypts the bytes of `body` that follow its readable part, and writes tag and counter.
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
        // Further frames would repeat a nonce, which breaks GCM. The zeros neither open at the peer nor
        // reveal the payload.
        if counter >= COUNTER_END {
            *trailer = [0; Self::TRAILER_LEN];
            secret.fill(0);
            return;
        }
        self.sealed.set(counter + 1);
        let place = FramePlace { place: place(direction, space), counter, seq, clear };
        let tag = self.key(direction).seal(place, secret);
        trailer[..Self::TAG_LEN].copy_from_slice(&tag);
        trailer[Self::TAG_LEN..].copy_from_slice(&counter.to_be_bytes()[2..]);
    }

    /// Decrypts the bytes after the first `clear_len` in place. Returns whether the tag is right.
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
        let Some((tag, [a, b, c, d, e, f])) = trailer.split_first_chunk() else { return false };
        let counter = u64::from_be_bytes([0, 0, *a, *b, *c, *d, *e, *f]);
        let place = FramePlace { place: place(direction, space), counter, seq, clear };
        self.key(direction).open(place, secret, tag)
    }

    #[inline]
    fn key(&self, direction: Direction) -> &Key {
        match direction {
            Direction::ToMn => &self.to_mn,
            Direction::ToCn => &self.to_cn,
        }
    }
}

impl core::fmt::Debug for Gcm {
    /// Omits the keys, which must not appear in logs.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Gcm").field("sealed", &self.sealed.get()).finish_non_exhaustive()
    }
}

//! The sealed trailer: AES-128-GCM-SIV (RFC 8452) under keys of one session.
//!
//! The SIV form is needed because nonces may repeat. The nonce of a frame is its place in the session:
//! direction, space and full sequence number. A response has the number of its request, and one request may
//! be answered more than once with different bytes: first by a SackNak, later by the data, and after a
//! retransmission by a line that is read again (R7). Under plain GCM, two plaintexts with one nonce reveal
//! their difference and the authentication key. GCM-SIV derives the key stream from the plaintext as well. So
//! a repeated nonce reveals only whether two frames are equal, which a retransmission reveals anyway. GCM-SIV
//! also needs no counter in the frame.
//!
//! The keys come from the pre-shared key (`session_key`). If a byte of the handshake was changed on its way,
//! the two ends derive different keys, and Start, the first sealed frame, fails.

use aes_gcm_siv::aead::{AeadInOut, KeyInit};
use aes_gcm_siv::{Aes128GcmSiv, Nonce, Tag};

use super::command::place;
use super::header::field;
use super::{Direction, Hello, HelloAck, Mac, Space, clear_len, session_key};

/// HKDF info that separates these keys from any other use of the same pre-shared key.
const CONTEXT: &[u8] = b"cxloe 1 aes-128-gcm-siv";

/// Error: the pre-shared key is too short to protect anything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the pre-shared key has {have} bytes: give at least {}, from a random source such as /dev/urandom",
    Aead::KEY_LEN_MIN
)]
pub struct AeadError {
    /// Length in bytes of the key given.
    pub have: usize,
}

/// Keys of a session, one for each direction.
#[derive(Clone)]
pub struct Aead {
    to_mn: Aes128GcmSiv,
    to_cn: Aes128GcmSiv,
}

impl Aead {
    /// Length of the tag in bytes, without truncation.
    pub const TAG_LEN: usize = 16;
    /// The shortest pre-shared key accepted, in bytes.
    pub const KEY_LEN_MIN: usize = 16;

    /// Derives the keys of the session that `hello` and `ack` agree on, between the CN at `cn` and the memory
    /// node at `mn`.
    ///
    /// # Errors
    /// If `pre_shared` is shorter than [`Aead::KEY_LEN_MIN`].
    pub fn derive(
        pre_shared: &[u8],
        cn: Mac,
        mn: Mac,
        hello: &Hello,
        ack: &HelloAck,
    ) -> Result<Self, AeadError> {
        if pre_shared.len() < Self::KEY_LEN_MIN {
            return Err(AeadError { have: pre_shared.len() });
        }
        let keys = session_key::derive(CONTEXT, pre_shared, (cn, mn), hello, ack);
        let [to_mn, to_cn] = keys.map(|key| Aes128GcmSiv::new(&key.into()));
        Ok(Self { to_mn, to_cn })
    }

    /// Encrypts the bytes of `body` that follow its readable part, and returns the tag over all of `body`.
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
    ) -> [u8; Self::TAG_LEN] {
        let (clear, secret) = body.split_at_mut(clear_len(body[field::COMMAND]));
        self.cipher(direction)
            .encrypt_inout_detached(&nonce(direction, space, seq), clear, secret.into())
            .expect("a frame is far shorter than the 64 GiB the cipher takes")
            .into()
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
        tag: &[u8; Self::TAG_LEN],
    ) -> bool {
        let Some((clear, secret)) = body.split_at_mut_checked(clear_len) else { return false };
        self.cipher(direction)
            .decrypt_inout_detached(&nonce(direction, space, seq), clear, secret.into(), &Tag::from(*tag))
            .is_ok()
    }

    #[inline]
    fn cipher(&self, direction: Direction) -> &Aes128GcmSiv {
        match direction {
            Direction::ToMn => &self.to_mn,
            Direction::ToCn => &self.to_cn,
        }
    }
}

/// Encodes the place of a frame in its session as 12 bytes: direction and space, then the sequence number.
#[inline]
fn nonce(direction: Direction, space: Space, seq: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&place(direction, space));
    nonce[4..].copy_from_slice(&seq.to_be_bytes());
    nonce.into()
}

impl core::fmt::Debug for Aead {
    /// Omits the keys, which must not appear in logs.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Aead").finish_non_exhaustive()
    }
}

//! Derivation of a session's keys, for any cipher: HKDF-SHA256 (RFC 5869). Both nonces are the salt; both
//! addresses and both handshake payloads are the context. So the keys are new in every session and differ for
//! each direction. If a byte of the handshake was changed on its way, the two ends derive different keys.

use hkdf::Hkdf;
use sha2::Sha256;

use super::{Direction, Hello, HelloAck, Mac};

/// Length in bytes of a key for AES-128.
pub(super) const KEY_LEN: usize = 16;

/// Derives the keys of the session that `hello` and `ack` agree on between the CN at `cn` and the memory node
/// at `mn`. Returns the key for frames to the MN, then the key for frames to the CN. `context` separates
/// these keys from any other use of `secret`.
pub(super) fn derive(
    context: &[u8],
    secret: &[u8],
    (cn, mn): (Mac, Mac),
    hello: &Hello,
    ack: &HelloAck,
) -> [[u8; KEY_LEN]; 2] {
    let mut salt = [0; 16];
    salt[..8].copy_from_slice(&hello.nonce.to_be_bytes());
    salt[8..].copy_from_slice(&ack.nonce.to_be_bytes());
    let hkdf = Hkdf::<Sha256>::new(Some(&salt), secret);
    [Direction::ToMn, Direction::ToCn].map(|direction| {
        let info = [context, &[direction as u8], &cn.0, &mn.0, &hello.to_bytes(), &ack.to_bytes()];
        let mut key = [0; KEY_LEN];
        hkdf.expand_multi_info(&info, &mut key).expect("HKDF-SHA256 gives up to 8160 bytes");
        key
    })
}

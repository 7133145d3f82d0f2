//! Cheap checks of a Hello before any expensive work, as in WireGuard. mac1 proves that the sender has the
//! memory node's public key; mac2 proves that the sender receives frames at the address it claims.

use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes256Gcm, Tag};
use hmac::{Hmac, Mac as _};
use sha2::{Digest, Sha256};

use crate::frame::keyed::{COOKIE_LEN, COOKIE_SEALED_LEN, MAC_LEN};
use crate::frame::{Mac, PublicKey};
use crate::session::entropy::Nonces;
use crate::time::Time;

/// Label for the derivation of mac1's key.
const MAC1: &[u8] = b"mac1----";
/// Label for the derivation of the key that encrypts cookies.
const COOKIE: &[u8] = b"cookie--";
/// Shortest lifetime of a cookie; the longest is twice as long, because cookies made with the previous secret are still
/// accepted.
const COOKIE_AGE: core::time::Duration = core::time::Duration::from_secs(120);

/// Returns the first 16 bytes of HMAC-SHA256 under `key`.
pub(crate) fn keyed(key: &[u8], parts: &[&[u8]]) -> [u8; MAC_LEN] {
    truncated(parts.iter().fold(hmac(key), |mac, part| mac.chain_update(part)))
}

fn hmac(key: &[u8]) -> Hmac<Sha256> {
    <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length")
}

fn truncated(mac: Hmac<Sha256>) -> [u8; MAC_LEN] {
    let whole: [u8; 32] = mac.finalize().into_bytes().into();
    core::array::from_fn(|at| whole[at])
}

/// Whether `a` and `b` are equal. The time taken does not depend on the position of a difference.
pub(crate) fn equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

fn hashed(label: &[u8], key: &PublicKey) -> [u8; 32] {
    Sha256::new().chain_update(label).chain_update(key.0).finalize().into()
}

/// Computes mac1 of Hellos to one memory node.
#[derive(Clone)]
pub struct HelloMac(Hmac<Sha256>);

impl HelloMac {
    /// Derives the mac1 key of the memory node with this public key.
    pub fn new(responder: &PublicKey) -> Self {
        Self(hmac(&hashed(MAC1, responder)))
    }

    /// Returns mac1 of a Hello, where `hello` is all bytes before mac1.
    pub fn of(&self, hello: &[u8]) -> [u8; MAC_LEN] {
        truncated(self.0.clone().chain_update(hello))
    }
}

/// Cookies that a memory node gives to CNs. A cookie is derived from an address and a secret, so the node
/// does not store cookies. Values that do not depend on the Hello are computed once, because many cookies are
/// sent in a flood.
pub(crate) struct Cookies {
    sealing: Aes256Gcm,
    secret: Hmac<Sha256>,
    before: Hmac<Sha256>,
    since: Time,
    /// Nonce of the next encrypted cookie: random for the first one, then incremented.
    nonce: Option<u128>,
}

impl Cookies {
    pub fn new(own: &PublicKey, nonces: &mut Nonces) -> Self {
        Self {
            sealing: Aes256Gcm::new(&hashed(COOKIE, own).into()),
            secret: hmac(&nonces.bytes::<32>()),
            before: hmac(&nonces.bytes::<32>()),
            since: Time::ZERO,
            nonce: None,
        }
    }

    fn turn(&mut self, now: Time, nonces: &mut Nonces) {
        if now - self.since >= COOKIE_AGE {
            self.before = core::mem::replace(&mut self.secret, hmac(&nonces.bytes::<32>()));
            self.since = now;
        }
    }

    /// Whether the sender at `from` made `mac2` with a valid cookie; `hello` is all bytes before mac2.
    pub fn accept(&mut self, from: Mac, hello: &[u8], mac2: &[u8], now: Time, nonces: &mut Nonces) -> bool {
        // A sender without a cookie fills mac2 with zeros.
        if mac2.iter().all(|byte| *byte == 0) {
            return false;
        }
        self.turn(now, nonces);
        // A cookie given just before the secret changed must still be valid.
        [&self.secret, &self.before].into_iter().any(|secret| {
            let cookie: [u8; COOKIE_LEN] = cookie_for(from, secret);
            equal(&mac_of_cookie(&cookie, hello), mac2)
        })
    }

    /// Encrypts the cookie of address `from` for the sender of `mac1`. Returns nonce, encrypted cookie and
    /// tag.
    pub fn give(
        &mut self,
        from: Mac,
        mac1: &[u8],
        now: Time,
        nonces: &mut Nonces,
    ) -> [u8; COOKIE_SEALED_LEN] {
        self.turn(now, nonces);
        let mut cookie = cookie_for(from, &self.secret);
        let next = self.nonce.unwrap_or_else(|| u128::from_be_bytes(nonces.bytes()));
        self.nonce = Some(next.wrapping_add(1));
        let mut nonce = [0; 12];
        nonce.copy_from_slice(&next.to_be_bytes()[4..]);
        let tag = self
            .sealing
            .encrypt_inout_detached(&nonce.into(), mac1, cookie.as_mut_slice().into())
            .expect("a cookie is short");
        let mut sealed = [0; COOKIE_SEALED_LEN];
        sealed[..12].copy_from_slice(&nonce);
        sealed[12..12 + COOKIE_LEN].copy_from_slice(&cookie);
        sealed[12 + COOKIE_LEN..].copy_from_slice(&tag);
        sealed
    }
}

/// Derives the cookie of an address from a secret.
fn cookie_for(from: Mac, secret: &Hmac<Sha256>) -> [u8; COOKIE_LEN] {
    truncated(secret.clone().chain_update(from.0))
}

/// Returns mac2 of a Hello, where `hello` is all bytes before mac2.
pub(crate) fn mac_of_cookie(cookie: &[u8; COOKIE_LEN], hello: &[u8]) -> [u8; MAC_LEN] {
    keyed(cookie, &[hello])
}

/// Decrypts the cookie in `sealed` (nonce, cookie, tag), which `responder` sent in answer to a Hello with
/// this `mac1`.
pub(crate) fn open_cookie(
    responder: &PublicKey,
    sealed: &[u8; COOKIE_SEALED_LEN],
    mac1: &[u8; MAC_LEN],
) -> Option<[u8; COOKIE_LEN]> {
    let (nonce, rest) = sealed.split_first_chunk::<12>()?;
    let (cookie, tag) = rest.split_first_chunk::<COOKIE_LEN>()?;
    let tag: [u8; 16] = tag.try_into().ok()?;
    let (mut cookie, cipher) = (*cookie, Aes256Gcm::new(&hashed(COOKIE, responder).into()));
    cipher
        .decrypt_inout_detached(&(*nonce).into(), mac1, cookie.as_mut_slice().into(), &Tag::from(tag))
        .ok()
        .map(|()| cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEIGHBOUR: Mac = Mac([2, 0, 0, 0, 0, 9]);
    const CN: Mac = Mac([2, 0, 0, 0, 0, 2]);
    const MN_KEY: PublicKey = PublicKey([3; 32]);

    #[test]
    fn a_cookie_is_for_one_address_and_some_minutes() {
        let mut nonces = Nonces::new(7.into());
        let mut cookies = Cookies::new(&MN_KEY, &mut nonces);
        let (hello, mac1) = ([5; 193], [6; MAC_LEN]);
        let now = Time::ZERO + COOKIE_AGE;
        let sealed = cookies.give(CN, &mac1, now, &mut nonces);
        assert_eq!(open_cookie(&MN_KEY, &sealed, &[0; MAC_LEN]), None, "another Hello's");
        assert_eq!(open_cookie(&PublicKey([4; 32]), &sealed, &mac1), None, "another memory node's");
        let cookie = open_cookie(&MN_KEY, &sealed, &mac1).expect("a cookie");
        let mac2 = mac_of_cookie(&cookie, &hello);
        let mut accept =
            |from, hello: &[u8], mac2: &[u8], now| cookies.accept(from, hello, mac2, now, &mut nonces);
        assert!(accept(CN, &hello, &mac2, now));
        assert!(!accept(NEIGHBOUR, &hello, &mac2, now));
        assert!(!accept(CN, &hello[1..], &mac2, now));
        assert!(!accept(CN, &hello, &[1; MAC_LEN], now));
        assert!(!accept(CN, &hello, &[0; MAC_LEN], now), "none");
        assert!(accept(CN, &hello, &mac2, now + COOKIE_AGE), "the secret before");
        assert!(!accept(CN, &hello, &mac2, now + 2 * COOKIE_AGE));
    }
}

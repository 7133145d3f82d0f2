//! The primitives that the Noise library `snow` computes with: those that this crate uses anyway, and X25519.

use alloc::boxed::Box;

use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes256Gcm, Nonce, Tag};
use sha2::{Digest, Sha256};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use x25519_dalek::{PublicKey, StaticSecret};

/// Supplies `snow` with the primitives of this crate, and with one given ephemeral key as the only
/// randomness.
pub struct Primitives {
    /// Ephemeral private key of the handshake: random, and used only once.
    pub ephemeral: [u8; 32],
}

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Ephemeral(self.ephemeral)))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::new(X25519::unset()) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::SHA256).then(|| Box::new(Sha(Sha256::new())) as Box<dyn Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::AESGCM).then(|| Box::new(Gcm(None)) as Box<dyn Cipher>)
    }
}

/// Random source that returns the ephemeral key of one handshake, the only random value in it.
struct Ephemeral([u8; 32]);

impl Random for Ephemeral {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), snow::Error> {
        let bytes = self.0.get(..out.len()).ok_or(snow::Error::Rng)?;
        out.copy_from_slice(bytes);
        Ok(())
    }
}

struct X25519 {
    secret: StaticSecret,
    private: [u8; 32],
    public: [u8; 32],
}

impl X25519 {
    /// Returns the state before `snow` sets or generates the key. The public key is not computed, because this key is
    /// never used.
    fn unset() -> Self {
        Self { secret: StaticSecret::from([0; 32]), private: [0; 32], public: [0; 32] }
    }

    fn of(private: [u8; 32]) -> Self {
        let secret = StaticSecret::from(private);
        let public = PublicKey::from(&secret).to_bytes();
        Self { secret, private, public }
    }
}

impl Dh for X25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    fn set(&mut self, private: &[u8]) {
        *self = Self::of(private.try_into().unwrap_or_default());
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), snow::Error> {
        let mut private = [0; 32];
        random.try_fill_bytes(&mut private)?;
        *self = Self::of(private);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.private
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
        let public: [u8; 32] = public.get(..32).and_then(|key| key.try_into().ok()).ok_or(snow::Error::Dh)?;
        let shared = self.secret.diffie_hellman(&PublicKey::from(public));
        // A public key of low order would make the shared secret predictable.
        if !shared.was_contributory() {
            return Err(snow::Error::Dh);
        }
        out.get_mut(..32).ok_or(snow::Error::Dh)?.copy_from_slice(shared.as_bytes());
        Ok(())
    }
}

struct Sha(Sha256);

impl Hash for Sha {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0 = Sha256::new();
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        out[..32].copy_from_slice(&core::mem::take(&mut self.0).finalize());
    }
}

/// AES-256-GCM; `None` until `snow` sets the key.
struct Gcm(Option<Aes256Gcm>);

impl Gcm {
    fn nonce(number: u64) -> Nonce<aes_gcm::aead::consts::U12> {
        let mut nonce = [0; 12];
        // Noise: 4 bytes of zeros, then the counter (section 12.4 of the framework: big-endian for AESGCM).
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        nonce.into()
    }
}

impl Cipher for Gcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; 32]) {
        self.0 = Some(Aes256Gcm::new(&(*key).into()));
    }

    fn encrypt(&self, nonce: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        let cipher = self.0.as_ref().expect("snow sets the key before it encrypts");
        let (body, rest) = out.split_at_mut(plaintext.len());
        body.copy_from_slice(plaintext);
        let tag = cipher.encrypt_inout_detached(&Self::nonce(nonce), authtext, body.into());
        rest[..16].copy_from_slice(&tag.expect("a handshake message is short"));
        plaintext.len() + 16
    }

    fn decrypt(
        &self,
        nonce: u64,
        authtext: &[u8],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<usize, snow::Error> {
        let cipher = self.0.as_ref().ok_or(snow::Error::Decrypt)?;
        let (body, tag) = ciphertext.split_last_chunk::<16>().ok_or(snow::Error::Decrypt)?;
        let out = out.get_mut(..body.len()).ok_or(snow::Error::Decrypt)?;
        out.copy_from_slice(body);
        let opened =
            cipher.decrypt_inout_detached(&Self::nonce(nonce), authtext, out.into(), &Tag::from(*tag));
        opened.map(|()| body.len()).map_err(|_| snow::Error::Decrypt)
    }
}

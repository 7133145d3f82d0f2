//! A node's key: 32 random bytes, generated once; the private half never leaves the node.

use alloc::sync::Arc;
use core::fmt;

use x25519_dalek::StaticSecret;

use crate::frame::PublicKey;
use crate::session::entropy::{Entropy, Nonces};

/// The private half of a node's key (X25519), with its public half.
pub struct NodeKey {
    secret: StaticSecret,
    public: PublicKey,
}

impl NodeKey {
    /// Length in bytes of a private or public key (RFC 7748).
    pub const LEN: usize = 32;

    /// Makes a random key, for a node that has none yet.
    pub fn generate(entropy: Entropy) -> Self {
        Self::from_bytes(Nonces::new(entropy).bytes())
    }

    /// Makes the key from 32 bytes of a key file; any bytes are a valid key.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let secret = StaticSecret::from(bytes);
        let public = PublicKey(x25519_dalek::PublicKey::from(&secret).to_bytes());
        Self { secret, public }
    }

    /// Returns the private half, to be stored in a file that only the node can read.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        self.secret.to_bytes()
    }

    /// Returns the public half, which identifies the node to others.
    pub fn public(&self) -> PublicKey {
        self.public
    }
}

impl fmt::Debug for NodeKey {
    /// Shows only the public half, because keys may appear in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeKey").field("public", &self.public).finish_non_exhaustive()
    }
}

/// Keys for authenticated sessions (version 2) between a CN and one MN, as the CN has them.
#[derive(Clone, Debug)]
pub struct KeyPair {
    /// Key of this CN, private and public half.
    pub own: Arc<NodeKey>,
    /// Public key of the memory node.
    pub peer: PublicKey,
    /// Real-time clock at [`Time::ZERO`](crate::time::Time::ZERO), in nanoseconds since the Unix epoch. Each
    /// Hello has a time stamp, so that the memory node does not accept a Hello twice.
    pub epoch_ns: u64,
}

impl PartialEq for KeyPair {
    /// Compares the keys only, not the clock.
    fn eq(&self, other: &Self) -> bool {
        (self.own.public, self.peer) == (other.own.public, other.peer)
    }
}

//! The key of a node: 32 random bytes, made once and never shown.

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
    /// Length of a key in bytes.
    pub const LEN: usize = 32;

    /// Makes a random key.
    pub fn generate(entropy: Entropy) -> Self {
        Self::from_bytes(Nonces::new(entropy).bytes())
    }

    /// Makes the key of any 32 bytes.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let secret = StaticSecret::from(bytes);
        let public = PublicKey(x25519_dalek::PublicKey::from(&secret).to_bytes());
        Self { secret, public }
    }

    /// Bytes of the private half, to be kept in a file that only the node can read.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        self.secret.to_bytes()
    }

    /// The public key, which identifies the node to others.
    pub fn public(&self) -> PublicKey {
        self.public
    }
}

impl fmt::Debug for NodeKey {
    /// Shows the public half alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeKey").field("public", &self.public).finish_non_exhaustive()
    }
}

/// Keys that authenticate both ends of a session of version 2, as the compute node holds them.
#[derive(Clone, Debug)]
pub struct KeyPair {
    /// Key of this node, private and public half.
    pub own: Arc<NodeKey>,
    /// Public key of the memory node.
    pub peer: PublicKey,
    /// Real-time clock at [`Time::ZERO`](crate::time::Time::ZERO), in nanoseconds since the Unix epoch. A Hello carries
    /// a time stamp so that the memory node does not accept it twice.
    pub epoch_ns: u64,
}

impl PartialEq for KeyPair {
    /// Compares the keys, not the clocks.
    fn eq(&self, other: &Self) -> bool {
        (self.own.public, self.peer) == (other.own.public, other.peer)
    }
}

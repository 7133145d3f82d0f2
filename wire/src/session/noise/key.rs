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
    /// Bytes of a key.
    pub const LEN: usize = 32;

    /// A new key.
    pub fn generate(entropy: Entropy) -> Self {
        Self::from_bytes(Nonces::new(entropy).bytes())
    }

    /// The key of these bytes, any 32.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let secret = StaticSecret::from(bytes);
        let public = PublicKey(x25519_dalek::PublicKey::from(&secret).to_bytes());
        Self { secret, public }
    }

    /// Its bytes, to be kept in a file that nobody else reads.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        self.secret.to_bytes()
    }

    /// What others know the node by.
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

/// What a session of version 2 is between, as the compute node knows it.
#[derive(Clone, Debug)]
pub struct KeyPair {
    /// This node's key.
    pub own: Arc<NodeKey>,
    /// The other node's public key.
    pub peer: PublicKey,
    /// What the clock of the wall showed at [`Time::ZERO`](crate::time::Time::ZERO), in nanoseconds since the Unix epoch.
    /// Hellos carry the time so that none is taken twice.
    pub epoch_ns: u64,
}

impl PartialEq for KeyPair {
    /// Whether the keys are the same, whatever the clock.
    fn eq(&self, other: &Self) -> bool {
        (self.own.public, self.peer) == (other.own.public, other.peer)
    }
}

//! Which public key belongs to which compute node: who speaks for it has to show that key. Looked at when sessions are
//! agreed on and once in a while, never for a request.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use cxloe_wire::frame::{Mac, PublicKey};

/// The keys that this node admits, for all its workers.
#[derive(Debug, Default)]
pub struct AdmittedKeys(RwLock<BTreeMap<u64, PublicKey>>);

impl AdmittedKeys {
    /// These keys, and no others from now on.
    pub fn admit(&self, keys: impl IntoIterator<Item = (Mac, PublicKey)>) {
        let keys = keys.into_iter().map(|(mac, key)| (mac.to_u64(), key)).collect();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// The key of CN `cn`, its MAC as a number.
    pub fn of(&self, cn: u64) -> Option<PublicKey> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&cn).copied()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

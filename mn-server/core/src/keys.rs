//! Which public key belongs to which compute node: who speaks for it has to show that key. Looked at when sessions are
//! agreed on and once in a while, never for a request.
//!
//! A compute node that had a key does without one never again: its key was taken back, or it has no memory here any more, and
//! neither lets anybody speak in its name without a key. What belongs to it then is a key that nobody has.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use cxloe_wire::frame::{Mac, PublicKey};

/// Compute nodes remembered that had a key: as many as a fabric has.
const TAKEN_BACK_MAX: usize = 16_384;

/// The keys that this node admits, for all its workers.
#[derive(Debug, Default)]
pub struct AdmittedKeys {
    keys: RwLock<BTreeMap<u64, PublicKey>>,
    /// How often they have changed.
    changes: AtomicU64,
}

impl AdmittedKeys {
    /// These keys, and no others from now on. Whoever had one before and has none now is admitted no more, not even without
    /// a key.
    pub fn admit(&self, keys: impl IntoIterator<Item = (Mac, PublicKey)>) {
        let mut all = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        all.values_mut().for_each(|key| *key = PublicKey::NOBODY);
        all.extend(keys.into_iter().map(|(mac, key)| (mac.to_u64(), key)));
        let mut surplus = all.len().saturating_sub(TAKEN_BACK_MAX);
        all.retain(|_, key| {
            let goes = surplus > 0 && *key == PublicKey::NOBODY;
            surplus -= usize::from(goes);
            !goes
        });
        drop(all);
        self.changes.fetch_add(1, Ordering::Release);
    }

    fn all(&self) -> RwLockReadGuard<'_, BTreeMap<u64, PublicKey>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of CN `cn`, its MAC as a number; [`PublicKey::NOBODY`] if it was taken back.
    pub fn of(&self, cn: u64) -> Option<PublicKey> {
        self.all().get(&cn).copied()
    }

    /// The CNs that have a key.
    pub fn admitted(&self) -> Vec<Mac> {
        let all = self.all();
        all.iter().filter(|(_, key)| **key != PublicKey::NOBODY).map(|(cn, _)| Mac::from_u64(*cn)).collect()
    }

    /// The CNs that had a key once and have none now.
    pub fn taken_back(&self) -> Vec<Mac> {
        let all = self.all();
        all.iter().filter(|(_, key)| **key == PublicKey::NOBODY).map(|(cn, _)| Mac::from_u64(*cn)).collect()
    }

    /// How often they have changed.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all().values().filter(|key| **key != PublicKey::NOBODY).count()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_had_a_key_is_never_admitted_without_one() {
        let (one, other) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let keys = AdmittedKeys::default();
        keys.admit([(one, PublicKey([1; 32])), (other, PublicKey([2; 32]))]);
        assert_eq!((keys.len(), keys.changes()), (2, 1));
        keys.admit([(one, PublicKey([1; 32]))]);
        assert_eq!((keys.len(), keys.of(other.to_u64())), (1, Some(PublicKey::NOBODY)));
        assert_eq!(keys.taken_back(), [other]);
        keys.admit([]);
        assert!(keys.is_empty() && keys.taken_back() == [one, other]);
        keys.admit([(other, PublicKey([3; 32]))]);
        assert_eq!((keys.of(other.to_u64()), keys.taken_back()), (Some(PublicKey([3; 32])), vec![one]));
        assert_eq!(keys.of(77), None, "who never had one");
        // Bounded, and whoever has a key now stays.
        let many = |from: u64| (from..from + 20_000).map(|n| (Mac::from_u64(n), PublicKey([4; 32])));
        keys.admit(many(1 << 20));
        keys.admit(many(1 << 30).take(10));
        assert_eq!((keys.len(), keys.taken_back().len()), (10, TAKEN_BACK_MAX - 10));
    }
}

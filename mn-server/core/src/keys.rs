//! Public keys of compute nodes: a peer has to prove that it has the key of the compute node whose address it uses. The
//! keys are read when sessions are agreed on and at intervals, never for a request.
//!
//! | a compute node | is |
//! |---|---|
//! | that has memory here, and a key | admitted with that key |
//! | that has memory here, and whose key was taken back | refused: its key is withdrawn |
//! | that had a key and has no memory here any more | refused: it may not use any memory here |
//! | that never had a key | admitted without one |
//!
//! So a compute node that ever had a key is not admitted without one: if it has no key now,
//! [`AdmittedKeys::of`] returns a key that no node can prove.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use cxloe_wire::frame::{Mac, PublicKey};

/// Maximum number of compute nodes in the map, as many as a fabric has. Above this number, nodes without a key are
/// removed from the map.
const REMEMBERED_MAX: usize = 16_384;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyState {
    /// The node has to prove this key.
    Key(PublicKey),
    /// The key was withdrawn; the node has memory here.
    Withdrawn,
    /// The node had a key, and has no memory here any more.
    Absent,
}

/// Keys of compute nodes that this node admits, shared by all its workers.
#[derive(Debug, Default)]
pub struct AdmittedKeys {
    keys: RwLock<BTreeMap<u64, KeyState>>,
    /// Number of changes since the start. Workers compare the number to detect a change without a lock.
    changes: AtomicU64,
}

impl AdmittedKeys {
    /// Replaces the admitted keys by `keys`, in which [`PublicKey::NOBODY`] marks a withdrawn key. A compute node that
    /// had a key and is not listed is not admitted any more, not even without a key.
    pub fn set_admitted(&self, keys: impl IntoIterator<Item = (Mac, PublicKey)>) {
        let mut all = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        // Nodes that are not in `keys` stay in the map, so that they are not admitted without a key.
        all.values_mut().for_each(|state| *state = KeyState::Absent);
        for (mac, key) in keys {
            let cn = mac.to_u64();
            if key != PublicKey::NOBODY {
                all.insert(cn, KeyState::Key(key));
            } else if let Some(known) = all.get_mut(&cn) {
                // A mark for a withdrawn key has no effect on a node that never had a key.
                *known = KeyState::Withdrawn;
            }
        }
        self.changed(&mut all);
    }

    /// Marks compute nodes that had a key in an earlier run, so that they are not admitted without one.
    pub fn remember(&self, cns: impl IntoIterator<Item = Mac>) {
        let mut all = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        for cn in cns {
            all.entry(cn.to_u64()).or_insert(KeyState::Absent);
        }
        self.changed(&mut all);
    }

    fn changed(&self, all: &mut BTreeMap<u64, KeyState>) {
        let mut surplus = all.len().saturating_sub(REMEMBERED_MAX);
        all.retain(|_, state| {
            let goes = surplus > 0 && !matches!(state, KeyState::Key(_));
            surplus -= usize::from(goes);
            !goes
        });
        self.changes.fetch_add(1, Ordering::Release);
    }

    fn all(&self) -> RwLockReadGuard<'_, BTreeMap<u64, KeyState>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Key of CN `cn` (its MAC as a number); [`PublicKey::NOBODY`] if it had a key and has none now.
    pub fn of(&self, cn: u64) -> Option<PublicKey> {
        match *self.all().get(&cn)? {
            KeyState::Key(key) => Some(key),
            KeyState::Withdrawn | KeyState::Absent => Some(PublicKey::NOBODY),
        }
    }

    /// Whether the key of CN `cn` was withdrawn while it has memory here.
    pub(crate) fn is_withdrawn(&self, cn: u64) -> bool {
        self.all().get(&cn) == Some(&KeyState::Withdrawn)
    }

    pub fn admitted(&self) -> Vec<Mac> {
        self.those(|state| matches!(state, KeyState::Key(_)))
    }

    /// MAC addresses of CNs that had a key and have none now.
    pub fn former(&self) -> Vec<Mac> {
        self.those(|state| !matches!(state, KeyState::Key(_)))
    }

    fn those(&self, are: impl Fn(&KeyState) -> bool) -> Vec<Mac> {
        let all = self.all();
        all.iter().filter(|(_, state)| are(state)).map(|(cn, _)| Mac::from_u64(*cn)).collect()
    }

    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub fn len(&self) -> usize {
        self.all().values().filter(|state| matches!(state, KeyState::Key(_))).count()
    }

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
        keys.set_admitted([(one, PublicKey([1; 32])), (other, PublicKey([2; 32]))]);
        assert_eq!((keys.len(), keys.changes()), (2, 1));
        keys.set_admitted([(one, PublicKey([1; 32]))]);
        assert_eq!((keys.len(), keys.of(other.to_u64())), (1, Some(PublicKey::NOBODY)));
        assert_eq!(keys.former(), [other]);
        keys.set_admitted([]);
        assert!(keys.is_empty() && keys.former() == [one, other]);
        keys.set_admitted([(other, PublicKey([3; 32]))]);
        assert_eq!((keys.of(other.to_u64()), keys.former()), (Some(PublicKey([3; 32])), vec![one]));
        assert_eq!(keys.of(77), None, "who never had one");
        // The number of nodes in the map is limited; nodes that have a key now are never removed.
        let many = |from: u64| (from..from + 20_000).map(|n| (Mac::from_u64(n), PublicKey([4; 32])));
        keys.set_admitted(many(1 << 20));
        keys.set_admitted(many(1 << 30).take(10));
        assert_eq!((keys.len(), keys.former().len()), (10, REMEMBERED_MAX - 10));
    }

    #[test]
    fn a_revoked_key_and_lost_memory_have_different_errors() {
        let (one, other, stranger) =
            (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 3]));
        let keys = AdmittedKeys::default();
        keys.set_admitted([(one, PublicKey([1; 32])), (other, PublicKey([2; 32]))]);
        keys.set_admitted([(one, PublicKey::NOBODY), (stranger, PublicKey::NOBODY)]);
        assert!(keys.is_withdrawn(one.to_u64()) && !keys.is_withdrawn(other.to_u64()));
        assert_eq!(keys.of(other.to_u64()), Some(PublicKey::NOBODY), "nor without a key");
        assert_eq!(keys.of(stranger.to_u64()), None, "who never had a key has none taken back");
        keys.set_admitted([]);
        assert!(!keys.is_withdrawn(one.to_u64()));
        keys.remember([stranger, one]);
        assert_eq!(keys.former(), [one, other, stranger]);
        keys.set_admitted([(one, PublicKey([1; 32]))]);
        assert_eq!(keys.of(one.to_u64()), Some(PublicKey([1; 32])));
    }
}

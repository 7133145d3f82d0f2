//! The keys that this node admits, kept on disk: a node that starts while the manager is away knows its compute nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use cxloe_daemon::{Remembered, StateError, StateFile};
use cxloe_fabric::model::ComputeNodeKey;
use cxloe_mn_core::keys::AdmittedKeys;
use cxloe_wire::frame::{Mac, PublicKey};
use serde::{Deserialize, Serialize};

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptKeys {
    /// As the manager told them last.
    told: Vec<ComputeNodeKey>,
    /// Compute nodes that had a key and have none now: they are not served without one either.
    #[serde(default, alias = "taken_back")]
    former: Vec<Mac>,
}

impl Remembered for KeptKeys {
    const REMEDY: &str = "remove it: the manager tells the keys again";
}

/// The keys that were named to this node, and those that the manager told it.
#[derive(Clone, Debug)]
pub struct KeyRing {
    admitted: Arc<AdmittedKeys>,
    named: BTreeMap<Mac, PublicKey>,
    file: Option<StateFile<KeptKeys>>,
    kept: KeptKeys,
}

impl KeyRing {
    /// Admits what `named` says, which outweighs the manager, and what `file` has kept.
    ///
    /// # Errors
    /// Any [`StateError`].
    pub fn open(
        named: BTreeMap<Mac, PublicKey>,
        file: Option<StateFile<KeptKeys>>,
    ) -> Result<KeyRing, StateError> {
        let kept = file.as_ref().map(StateFile::load).transpose()?.unwrap_or_default();
        let ring = KeyRing { admitted: Arc::default(), named, file, kept };
        ring.admitted.remember(ring.kept.former.iter().copied());
        ring.admit();
        Ok(ring)
    }

    /// What workers look into.
    pub fn admitted(&self) -> Arc<AdmittedKeys> {
        Arc::clone(&self.admitted)
    }

    /// Admits these keys of the manager and no others of it, and keeps them.
    ///
    /// # Errors
    /// Any [`StateError`]; the keys are admitted all the same.
    pub fn tell(&mut self, told: &[ComputeNodeKey]) -> Result<(), StateError> {
        if self.kept.told == told {
            return Ok(());
        }
        self.kept.told = told.to_vec();
        self.admit();
        self.kept.former = self.admitted.former();
        self.file.as_ref().map_or(Ok(()), |file| file.store(&self.kept))
    }

    fn admit(&self) {
        let told = self.kept.told.iter().map(|told| (told.compute_node.mac(), told.key));
        self.admitted.admit(told.chain(self.named.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_outlive_the_process_and_named_ones_outweigh_the_manager() {
        let dir = tempfile::tempdir().unwrap();
        let file = || Some(StateFile::at(dir.path().join("keys.json")).unwrap());
        let (cn, other) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let told = |mac: Mac, key| ComputeNodeKey {
            compute_node: mac.try_into().unwrap(),
            key: PublicKey([key; 32]),
        };
        let mut ring = KeyRing::open(BTreeMap::new(), file()).unwrap();
        ring.tell(&[told(cn, 1), told(other, 2)]).unwrap();
        ring.tell(&[told(cn, 3)]).unwrap();
        assert_eq!((ring.admitted().of(cn.to_u64()), ring.admitted().len()), (Some(PublicKey([3; 32])), 1));
        let named = BTreeMap::from([(cn, PublicKey([4; 32]))]);
        let ring = KeyRing::open(named, file()).unwrap();
        assert_eq!(ring.admitted().of(cn.to_u64()), Some(PublicKey([4; 32])));
        let ring = KeyRing::open(BTreeMap::new(), file()).unwrap();
        assert_eq!(ring.admitted().of(cn.to_u64()), Some(PublicKey([3; 32])));
        assert!(!ring.admitted().is_empty());
        // What was taken back stays so, in the next process too.
        assert_eq!(ring.admitted().of(other.to_u64()), Some(PublicKey::NOBODY));
    }
}

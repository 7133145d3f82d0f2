//! Keys that this node admits, stored on disk, so that a node that starts while the manager is unreachable
//! has the keys of its compute nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use cxloe_daemon::{NodeState, StateError, StateFile};
use cxloe_fabric::model::ComputeNodeKey;
use cxloe_mn_core::keys::AdmittedKeys;
use cxloe_wire::frame::{Mac, PublicKey};
use serde::{Deserialize, Serialize};

/// Content of the state file: admitted keys, and compute nodes that had a key before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptKeys {
    told: Vec<ComputeNodeKey>,
    /// Compute nodes that had a key and have none now. They get no session, not even one without a key.
    #[serde(default, alias = "taken_back")]
    former: Vec<Mac>,
}

impl NodeState for KeptKeys {
    const REMEDY: &str = "remove it: the manager sends the keys again";
}

/// Admitted keys of compute nodes: those in this node's options, and those from the manager.
#[derive(Clone, Debug)]
pub struct KeyRing {
    admitted: Arc<AdmittedKeys>,
    named: BTreeMap<Mac, PublicKey>,
    file: Option<StateFile<KeptKeys>>,
    kept: KeptKeys,
    /// Whether `file` has `kept`.
    is_stored: bool,
}

impl KeyRing {
    /// Admits the keys in `named`, which override the manager's, and the keys stored in `file`.
    pub fn open(
        named: BTreeMap<Mac, PublicKey>,
        file: Option<StateFile<KeptKeys>>,
    ) -> Result<KeyRing, StateError> {
        let kept = file.as_ref().map(StateFile::load).transpose()?.unwrap_or_default();
        let ring = KeyRing { admitted: Arc::default(), named, file, kept, is_stored: true };
        ring.admitted.remember(ring.kept.former.iter().copied());
        ring.set_admitted();
        Ok(ring)
    }

    /// Map of the admitted keys, shared with the workers.
    pub fn admitted(&self) -> Arc<AdmittedKeys> {
        Arc::clone(&self.admitted)
    }

    /// Replaces the keys from the manager, and stores them.
    ///
    /// # Errors
    /// Any [`StateError`]; the keys are admitted nevertheless, and stored when they are set again.
    pub fn set_from_manager(&mut self, told: &[ComputeNodeKey]) -> Result<(), StateError> {
        if self.kept.told != told {
            self.kept.told = told.to_vec();
            self.set_admitted();
            self.kept.former = self.admitted.former();
            self.is_stored = false;
        }
        if let Some(file) = self.file.as_ref().filter(|_| !self.is_stored) {
            file.store(&self.kept)?;
        }
        self.is_stored = true;
        Ok(())
    }

    fn set_admitted(&self) {
        let told = self.kept.told.iter().map(|told| (told.compute_node.mac(), told.key));
        self.admitted.set_admitted(told.chain(self.named.clone()));
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
        ring.set_from_manager(&[told(cn, 1), told(other, 2)]).unwrap();
        ring.set_from_manager(&[told(cn, 3)]).unwrap();
        assert_eq!((ring.admitted().of(cn.to_u64()), ring.admitted().len()), (Some(PublicKey([3; 32])), 1));
        let named = BTreeMap::from([(cn, PublicKey([4; 32]))]);
        let ring = KeyRing::open(named, file()).unwrap();
        assert_eq!(ring.admitted().of(cn.to_u64()), Some(PublicKey([4; 32])));
        let ring = KeyRing::open(BTreeMap::new(), file()).unwrap();
        assert_eq!(ring.admitted().of(cn.to_u64()), Some(PublicKey([3; 32])));
        assert!(!ring.admitted().is_empty());
        // A withdrawn key stays withdrawn in the next process.
        assert_eq!(ring.admitted().of(other.to_u64()), Some(PublicKey::NOBODY));
    }

    #[test]
    fn keys_that_could_not_be_stored_are_stored_when_they_are_set_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state");
        let file = StateFile::at(folder.join("keys.json")).unwrap();
        let told =
            [ComputeNodeKey { compute_node: "02:00:00:00:00:01".parse().unwrap(), key: PublicKey([1; 32]) }];
        let mut ring = KeyRing::open(BTreeMap::new(), Some(file.clone())).unwrap();
        // With a file in the place of the folder, nothing can be stored.
        std::fs::remove_dir(&folder).unwrap();
        std::fs::write(&folder, "").unwrap();
        ring.set_from_manager(&told).unwrap_err();
        assert_eq!(ring.admitted().of(0x0200_0000_0001), Some(PublicKey([1; 32])));
        std::fs::remove_file(&folder).unwrap();
        ring.set_from_manager(&told).unwrap();
        let ring = KeyRing::open(BTreeMap::new(), Some(file)).unwrap();
        assert_eq!(ring.admitted().of(0x0200_0000_0001), Some(PublicKey([1; 32])));
    }
}

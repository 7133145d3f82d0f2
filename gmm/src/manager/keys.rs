//! Which key belongs to which node. The first registration with a key makes it the node's; another one is taken only after
//! somebody with the right to has said so, so that nobody takes a node's place by registering in its name.

use std::collections::BTreeSet;

use cxloe_fabric::api::Party;
use cxloe_fabric::model::{CnId, ComputeNodeKey, Mapping, Name, PublicKey};

use super::{Change, Manager, ManagerError};

/// The key of a node that was `known` with one and registers with another, or with none. A node that leaves its key out
/// keeps it: whoever knows the key goes on to ask for it.
pub(super) fn kept_key(
    node: &Party,
    known: Option<PublicKey>,
    registered: Option<PublicKey>,
) -> Result<Option<PublicKey>, ManagerError> {
    match (known, registered) {
        (Some(known), Some(new)) if known != new => {
            Err(ManagerError::KeyChanged { node: node.clone(), known, new })
        }
        (known, registered) => Ok(registered.or(known)),
    }
}

impl Manager {
    /// The keys of the compute nodes whose memory lies on `node`, by CN id; [`PublicKey::NOBODY`] of one that has none, or
    /// none any more. So a memory node can tell a key that was taken back from memory that is gone.
    pub fn cn_keys(&self, node: &Name) -> Vec<ComputeNodeKey> {
        let owners: BTreeSet<CnId> = self.legs_on(node).map(|(region, _)| region.owner).collect();
        let key_of = |cn: CnId| {
            let known = self.state.compute_nodes.get(&cn).and_then(|node| node.key);
            ComputeNodeKey { compute_node: cn, key: known.unwrap_or(PublicKey::NOBODY) }
        };
        owners.into_iter().map(key_of).collect()
    }

    /// The mapping with the key of its compute node.
    pub(super) fn with_key(&self, mapping: Mapping) -> Mapping {
        let cn_key = self.state.compute_nodes.get(&mapping.cn).and_then(|node| node.key);
        Mapping { cn_key, ..mapping }
    }

    /// A node joined anew with this key, or an administrator has its key forgotten (`None`): the next registration may
    /// bring another.
    pub(super) fn set_key(&mut self, node: &Party, key: Option<PublicKey>) -> Result<(), ManagerError> {
        match node {
            Party::MemoryNode(name) => {
                let known = self.state.memory_nodes.get(name).cloned();
                let mut known = known.ok_or_else(|| ManagerError::NoMemoryNode(name.clone()))?;
                known.key = key;
                self.put(Change::MemoryNode(known.clone()));
                self.refresh_legs(&known);
            }
            Party::ComputeNode(cn) => {
                let known = self.state.compute_nodes.get(cn).cloned();
                let mut known = known.ok_or_else(|| ManagerError::NoComputeNode(cn.to_string()))?;
                known.key = key;
                self.put(Change::ComputeNode(known));
                self.peer_changed(*cn);
            }
            // It has no sessions.
            Party::FmClient(_) => {}
        }
        Ok(())
    }
}

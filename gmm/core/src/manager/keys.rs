//! Session keys of nodes. A node's key is that of its first registration; another one is accepted only after a
//! permitted caller has allowed it, so that no node takes another's place by registering in its name.

use cxloe_fabric::api::Party;
use cxloe_fabric::model::{CnId, ComputeNodeKey, Mapping, Name, PublicKey};

use super::{Change, Manager, ManagerError};

/// Returns the key to record for a node whose recorded key is `known`. A node that registers without a key
/// keeps the recorded one, which its peers still require.
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
    /// Returns the keys of the compute nodes that use memory of `node`, by CN id, and of the memory nodes that memory of
    /// `node` is lent to. A node whose key is missing or revoked has [`PublicKey::NOBODY`], so that the memory node
    /// distinguishes a revoked key from removed memory.
    pub fn cn_keys(&self, node: &Name) -> Vec<ComputeNodeKey> {
        let key_of = |cn: CnId| {
            let known = self.state.compute_nodes.get(&cn).and_then(|node| node.key);
            ComputeNodeKey { compute_node: cn, key: known.unwrap_or(PublicKey::NOBODY) }
        };
        let mut keys: Vec<ComputeNodeKey> = self.users_of(node).into_iter().map(key_of).collect();
        // A memory node to which its own memory is lent is listed too: without a key for its address, another station
        // could have a session under that address.
        keys.extend(self.borrowers_of(node).into_iter().map(|(cn, borrower)| {
            let known = self.state.memory_nodes.get(&borrower).and_then(|node| node.key);
            ComputeNodeKey { compute_node: cn, key: known.unwrap_or(PublicKey::NOBODY) }
        }));
        keys
    }

    pub(super) fn with_key(&self, mapping: Mapping) -> Mapping {
        let cn_key = self.state.compute_nodes.get(&mapping.cn).and_then(|node| node.key);
        Mapping { cn_key, ..mapping }
    }

    /// Sets the key of a node that joined again. With `None`, by order of an administrator, the next
    /// registration sets the key.
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
            // An FM client has no sessions.
            Party::FmClient(_) => {}
        }
        Ok(())
    }
}

//! Declarations of the fabric file: regions are created as soon as their memory nodes and owners have registered, and
//! compute nodes held in reset are released when all of their regions exist.

use std::collections::BTreeSet;

use cxloe_fabric::api::Owner;
use cxloe_fabric::model::{CnId, EventKind, Name, RegionState};

use super::{Initialisation, Manager, ManagerError};

impl Manager {
    /// Creates the declared regions whose nodes have registered. Called again when another node registers.
    pub(super) fn realise_declared(&mut self) {
        if self.options.declared.regions.is_empty() && self.options.declared.quotas.is_empty() {
            return;
        }
        let declared = self.options.declared.clone();
        for quota in declared.quotas {
            if let Ok(node) = self.owner(&quota.compute_node) {
                let bytes = Some(quota.bytes.0);
                if self.state.compute_nodes.get(&node.cn_id).is_none_or(|known| known.quota != bytes) {
                    // Cannot fail: the compute node was found just before.
                    drop(self.set_quota(&Owner::CnId(node.cn_id), bytes));
                }
            }
        }
        for create in declared.regions {
            // The fabric file names every region: a nameless one would be created again at each registration.
            let Some(name) = create.name.clone() else { continue };
            if !self.state.regions.contains_key(&name)
                && let Err(error) = self.create_region(create)
            {
                tracing::debug!(region = %name, %error, "a declared region has to wait");
            }
        }
    }

    /// Releases from reset the compute nodes whose declared regions all exist.
    pub(super) fn release_ready(&mut self) {
        if self.options.initialisation != Initialisation::ManagerFirst {
            return;
        }
        let declared = &self.options.declared.regions;
        let mut waiting: BTreeSet<CnId> = BTreeSet::new();
        let mut ready: BTreeSet<CnId> = BTreeSet::new();
        for create in declared {
            let Ok(owner) = self.owner(&create.owner) else { continue };
            let region = create.name.as_ref().and_then(|name| self.state.regions.get(name));
            let there = region.is_some_and(|region| {
                matches!(region.state, RegionState::Active | RegionState::Exposed | RegionState::Degraded)
            });
            if there {
                ready.insert(owner.cn_id)
            } else {
                waiting.insert(owner.cn_id)
            };
        }
        let held =
            |cn: &&CnId| self.state.compute_nodes.get(cn).is_some_and(|cn| cn.held && !cn.held_by_hand);
        let ready: Vec<CnId> = ready.difference(&waiting).filter(held).copied().collect();
        ready.into_iter().for_each(|cn| self.hold(cn, false));
    }

    pub(super) fn set_quota(&mut self, owner: &Owner, bytes: Option<u64>) -> Result<(), ManagerError> {
        let mut node = self.owner(owner)?;
        node.quota = bytes;
        let compute_node = node.cn_id;
        self.put_owner(node);
        self.event(EventKind::QuotaSet { compute_node, bytes });
        Ok(())
    }

    /// Returns the first memory node that the file gives to two compute nodes, and the names of these two. In
    /// a static fabric a memory node belongs to one compute node, so the manager does not start with such a
    /// file.
    pub fn shared_nodes(declared: &super::Declared) -> Option<(Name, String)> {
        let mut owners: Vec<(&Name, &Owner)> = Vec::new();
        for create in &declared.regions {
            for node in &create.on {
                match owners.iter().find(|(known, _)| *known == node) {
                    Some((_, owner)) if *owner != &create.owner => {
                        return Some((node.clone(), format!("{owner} and {}", create.owner)));
                    }
                    Some(_) => {}
                    None => owners.push((node, &create.owner)),
                }
            }
        }
        None
    }
}

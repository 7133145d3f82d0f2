//! Bringing about what the fabric file declares: its regions are made as soon as their memory nodes and owners are known,
//! and compute nodes held in reset are released once they have all of theirs.

use std::collections::BTreeSet;

use cxloe_fabric::api::Owner;
use cxloe_fabric::model::{CnId, EventKind, Name, RegionState};

use super::{Change, Initialisation, Manager, ManagerError};

impl Manager {
    /// Makes what is declared and can be made now. What cannot yet is tried again when another node registers.
    pub(super) fn realise_declared(&mut self) {
        if self.options.declared.regions.is_empty() && self.options.declared.quotas.is_empty() {
            return;
        }
        let declared = self.options.declared.clone();
        for quota in declared.quotas {
            if let Ok(node) = self.owner(&quota.compute_node) {
                let bytes = Some(quota.bytes.0);
                if self.state.compute_nodes.get(&node.cn_id).is_none_or(|known| known.quota != bytes) {
                    drop(self.set_quota(&Owner::CnId(node.cn_id), bytes));
                }
            }
        }
        for create in declared.regions {
            if !self.state.regions.contains_key(&create.name)
                && let Err(error) = self.create_region(create.clone())
            {
                tracing::debug!(region = %create.name, %error, "a declared region has to wait");
            }
        }
    }

    /// Releases compute nodes whose declared regions are all there.
    pub(super) fn release_ready(&mut self) {
        if self.options.initialisation != Initialisation::ManagerFirst {
            return;
        }
        let declared = &self.options.declared.regions;
        let mut waiting: BTreeSet<CnId> = BTreeSet::new();
        let mut ready: BTreeSet<CnId> = BTreeSet::new();
        for create in declared {
            let Ok(owner) = self.owner(&create.owner) else { continue };
            let region = self.state.regions.get(&create.name);
            let there = region
                .is_some_and(|region| matches!(region.state, RegionState::Active | RegionState::Degraded));
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
        self.put(Change::ComputeNode(node));
        self.event(EventKind::QuotaSet { compute_node, bytes });
        Ok(())
    }

    /// Which memory nodes a static fabric gives to two compute nodes; such a file is refused at the start.
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

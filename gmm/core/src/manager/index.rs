//! Data derived from the state that is read often: regions by memory node and by owner, bytes of a memory
//! node by compute node, reserved capacity. It is updated with each change, so that no command walks all of a
//! hundred thousand regions.

use std::collections::{BTreeMap, BTreeSet};

use cxloe_fabric::model::{
    CnId, ComputeNode, LDS_MAX, Name, NodeAction, NodeCommand, Region, RegionState, VPPBS_MAX,
};

use super::mirror::is_live;
use super::{Change, FabricState};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Index {
    regions_on: BTreeMap<Name, BTreeSet<Name>>,
    regions_of: BTreeMap<CnId, BTreeSet<Name>>,
    regions_read_by: BTreeMap<CnId, BTreeSet<Name>>,
    regions_left_by: BTreeMap<CnId, BTreeSet<Name>>,
    used: BTreeMap<Name, BTreeMap<CnId, u64>>,
    zeroing: BTreeMap<Name, u64>,
    bytes_of: BTreeMap<CnId, u64>,
    idle: BTreeMap<Name, u64>,
    bound: BTreeMap<CnId, BTreeMap<Name, u16>>,
    vppbs: BTreeMap<(CnId, u8), (Name, u16)>,
    names: BTreeMap<Name, CnId>,
    /// Numbers of the commands without a result that end what a memory node serves at an address.
    ending: BTreeMap<Name, BTreeMap<Place, BTreeSet<u64>>>,
}

/// A compute node and the first CMem address of what it has there.
type Place = (CnId, u64);

/// Returns the address whose mapping or share a command ends; `None` if it ends none.
fn ended_by(action: &NodeAction) -> Option<Place> {
    match action {
        NodeAction::UnmapCmem(mapping) => Some((mapping.cn, mapping.cmem_base)),
        NodeAction::HandOver(order) => Some((order.former.cn, order.former.cmem_base)),
        NodeAction::Unshare(share) => Some((share.reader, share.reader_base)),
        NodeAction::MapCmem(_) | NodeAction::Share(_) | NodeAction::Clone(_) => None,
    }
}

impl Index {
    /// Derives the index from a whole state, at the start.
    pub fn new(state: &FabricState) -> Self {
        let mut index = Self::default();
        for node in state.compute_nodes.values() {
            index.add_records(state, &Change::ComputeNode(node.clone()));
        }
        for ld in state.logical_devices.values() {
            index.add_records(state, &Change::LogicalDevice(ld.clone()));
        }
        for region in state.regions.values() {
            index.add_records(state, &Change::Region(region.clone()));
        }
        for ((node, _), command) in &state.commands {
            index.add_command(node, command);
        }
        index
    }

    /// Removes the entries of the records that `change` replaces. Called with each change before it is applied.
    pub fn forget(&mut self, state: &FabricState, change: &Change) {
        match change {
            Change::Region(Region { name, .. }) | Change::RegionGone(name) => {
                if let Some(region) = state.regions.get(name) {
                    self.count(region, u64::wrapping_sub);
                    for leg in &region.legs {
                        remove(&mut self.regions_on, &leg.memory_node, name);
                    }
                    remove(&mut self.regions_of, &region.owner, name);
                    for reader in &region.readers {
                        remove(&mut self.regions_read_by, &reader.cn, name);
                    }
                    for former in region.legs.iter().filter_map(|leg| leg.former) {
                        remove(&mut self.regions_left_by, &former.cn, name);
                    }
                    region.legs.iter().for_each(|leg| self.refresh_idle(state, &leg.memory_node));
                }
            }
            Change::ComputeNode(ComputeNode { cn_id, .. }) | Change::ComputeNodeGone(cn_id) => {
                let before = state.compute_nodes.get(cn_id);
                if let Some(name) = before.and_then(|before| before.name.as_ref()) {
                    self.names.remove(name);
                }
            }
            Change::LogicalDevice(ld) => self.unbind(state, &ld.memory_node, ld.id),
            Change::LogicalDeviceGone(node, id) => self.unbind(state, node, *id),
            Change::CommandIssued(node, NodeCommand { seq, .. }) | Change::CommandAnswered(node, seq) => {
                if let Some(command) = state.commands.get(&(node.clone(), *seq)) {
                    self.remove_command(node, command);
                }
            }
            _ => {}
        }
    }

    /// Adds the entries of the new records. Called with each change after it is applied.
    pub fn add_records(&mut self, state: &FabricState, change: &Change) {
        match change {
            Change::Region(region) => {
                self.count(region, u64::wrapping_add);
                for leg in &region.legs {
                    let on = self.regions_on.entry(leg.memory_node.clone()).or_default();
                    on.insert(region.name.clone());
                }
                self.regions_of.entry(region.owner).or_default().insert(region.name.clone());
                for reader in &region.readers {
                    self.regions_read_by.entry(reader.cn).or_default().insert(region.name.clone());
                }
                for former in region.legs.iter().filter_map(|leg| leg.former) {
                    self.regions_left_by.entry(former.cn).or_default().insert(region.name.clone());
                }
                region.legs.iter().for_each(|leg| self.refresh_idle(state, &leg.memory_node));
            }
            Change::ComputeNode(node) => {
                if let Some(name) = &node.name {
                    self.names.insert(name.clone(), node.cn_id);
                }
            }
            Change::LogicalDevice(ld) => {
                if let Some(binding) = &ld.binding {
                    let bound = self.bound.entry(binding.compute_node).or_default();
                    bound.insert(ld.memory_node.clone(), ld.id);
                    if let Some(vppb) = binding.vppb {
                        let device = (ld.memory_node.clone(), ld.id);
                        self.vppbs.insert((binding.compute_node, vppb), device);
                    }
                }
                self.refresh_idle(state, &ld.memory_node);
            }
            Change::LogicalDeviceGone(node, _) => self.refresh_idle(state, node),
            Change::MemoryNodeGone(node) => drop(self.idle.remove(node)),
            Change::CommandIssued(node, command) => self.add_command(node, command),
            _ => {}
        }
    }

    fn add_command(&mut self, node: &Name, command: &NodeCommand) {
        if let Some(place) = ended_by(&command.action) {
            let on = self.ending.entry(node.clone()).or_default();
            on.entry(place).or_default().insert(command.seq);
        }
    }

    fn remove_command(&mut self, node: &Name, command: &NodeCommand) {
        let Some(place) = ended_by(&command.action) else { return };
        let Some(on) = self.ending.get_mut(node) else { return };
        if let Some(numbers) = on.get_mut(&place) {
            numbers.remove(&command.seq);
            if numbers.is_empty() {
                on.remove(&place);
            }
        }
        if on.is_empty() {
            self.ending.remove(node);
        }
    }

    /// Returns the commands to `node` without a result that end what it serves at the address of compute node `cn`.
    pub fn ending<'a>(
        &'a self,
        state: &'a FabricState,
        node: &'a Name,
        cn: CnId,
        cmem_base: u64,
    ) -> impl Iterator<Item = &'a NodeAction> {
        let numbers = self.ending.get(node).and_then(|on| on.get(&(cn, cmem_base))).into_iter().flatten();
        numbers.filter_map(move |seq| Some(&state.commands.get(&(node.clone(), *seq))?.action))
    }

    /// Returns true if the command to `node`, which ends what it serves at an address, has no result yet.
    pub fn is_pending(&self, state: &FabricState, node: &Name, action: &NodeAction) -> bool {
        let place = ended_by(action);
        place.is_some_and(|(cn, base)| self.ending(state, node, cn, base).any(|pending| pending == action))
    }

    pub fn regions_on(&self, node: &Name) -> impl Iterator<Item = &Name> {
        self.regions_on.get(node).into_iter().flatten()
    }

    pub fn regions_of(&self, cn: CnId) -> impl Iterator<Item = &Name> {
        self.regions_of.get(&cn).into_iter().flatten()
    }

    /// Returns the names of the sealed regions of other owners that `cn` may read.
    pub fn regions_read_by(&self, cn: CnId) -> impl Iterator<Item = &Name> {
        self.regions_read_by.get(&cn).into_iter().flatten()
    }

    /// Returns the names of the regions whose owner was `cn` and which a memory node may still map for `cn`.
    pub fn regions_left_by(&self, cn: CnId) -> impl Iterator<Item = &Name> {
        self.regions_left_by.get(&cn).into_iter().flatten()
    }

    /// Returns the bytes of `node` in regions of `cn`, without what is being zeroed.
    pub fn used(&self, node: &Name, cn: CnId) -> u64 {
        self.used.get(node).and_then(|used| used.get(&cn)).copied().unwrap_or_default()
    }

    /// Returns the bytes of `node` in regions that are being destroyed, and in parts that regions have left or given
    /// up: they belong to no compute node, and are free once zeroed.
    pub fn zeroing(&self, node: &Name) -> u64 {
        self.zeroing.get(node).copied().unwrap_or_default()
    }

    /// Returns the bytes of `node` by compute node, without what is being zeroed.
    pub fn used_by(&self, node: &Name) -> impl Iterator<Item = (CnId, u64)> {
        self.used.get(node).into_iter().flatten().map(|(cn, bytes)| (*cn, *bytes))
    }

    /// Returns the bytes of all regions of `cn` that are not being destroyed, with all copies.
    pub fn bytes_of(&self, cn: CnId) -> u64 {
        self.bytes_of.get(&cn).copied().unwrap_or_default()
    }

    /// Returns the bytes of `node` that are reserved for logical devices and not used by their regions. Never
    /// more than the bytes of `node` that are free or being zeroed.
    pub fn idle(&self, node: &Name) -> u64 {
        self.idle.get(node).copied().unwrap_or_default()
    }

    /// Returns the LD-ID of the LD of `node` that is bound to `cn`; `None` without a binding.
    pub fn ld_of(&self, cn: CnId, node: &Name) -> Option<u16> {
        self.bound.get(&cn)?.get(node).copied()
    }

    /// Returns memory node and LD-ID of each logical device bound to `cn`.
    pub fn devices_of(&self, cn: CnId) -> impl Iterator<Item = (&Name, u16)> {
        self.bound.get(&cn).into_iter().flatten().map(|(node, id)| (node, *id))
    }

    /// Returns memory node and LD-ID of the logical device at a vPPB.
    pub fn at_vppb(&self, cn: CnId, vppb: u8) -> Option<&(Name, u16)> {
        self.vppbs.get(&(cn, vppb))
    }

    /// Returns the number of the lowest free vPPB of `cn`; `None` if all are bound.
    pub fn free_vppb(&self, cn: CnId) -> Option<u8> {
        (0..VPPBS_MAX).find(|vppb| !self.vppbs.contains_key(&(cn, *vppb)))
    }

    /// Returns the lowest LD of `node` that has neither capacity nor a binding.
    pub fn free_ld(&self, state: &FabricState, node: &Name) -> Option<u16> {
        (0..LDS_MAX).find(|id| !state.logical_devices.contains_key(&(node.clone(), *id)))
    }

    pub fn named(&self, name: &Name) -> Option<CnId> {
        self.names.get(name).copied()
    }

    fn count(&mut self, region: &Region, add: fn(u64, u64) -> u64) {
        let going = region.state == RegionState::Draining;
        for leg in &region.legs {
            if going || !is_live(leg) {
                let zeroing = self.zeroing.entry(leg.memory_node.clone()).or_default();
                *zeroing = add(*zeroing, leg.bytes);
                if *zeroing == 0 {
                    self.zeroing.remove(&leg.memory_node);
                }
                continue;
            }
            let of_node = self.used.entry(leg.memory_node.clone()).or_default();
            let used = of_node.entry(region.owner).or_default();
            *used = add(*used, leg.bytes);
            if *used == 0 {
                of_node.remove(&region.owner);
            }
            if of_node.is_empty() {
                self.used.remove(&leg.memory_node);
            }
        }
        if !going {
            let bytes = self.bytes_of.entry(region.owner).or_default();
            *bytes = add(*bytes, region.bytes().saturating_mul(u64::from(region.protect.copies())));
            if *bytes == 0 {
                self.bytes_of.remove(&region.owner);
            }
        }
    }

    fn unbind(&mut self, state: &FabricState, node: &Name, id: u16) {
        let before = state.logical_devices.get(&(node.clone(), id));
        if let Some(binding) = before.and_then(|ld| ld.binding.as_ref()) {
            if let Some(bound) = self.bound.get_mut(&binding.compute_node) {
                bound.remove(node);
                if bound.is_empty() {
                    self.bound.remove(&binding.compute_node);
                }
            }
            if let Some(vppb) = binding.vppb {
                self.vppbs.remove(&(binding.compute_node, vppb));
            }
        }
    }

    fn refresh_idle(&mut self, state: &FabricState, node: &Name) {
        let idle = state.logical_devices_of(node).map(|ld| {
            let used = ld.binding.as_ref().map_or(0, |binding| self.used(node, binding.compute_node));
            ld.reserved.saturating_sub(used)
        });
        match idle.sum() {
            0 => drop(self.idle.remove(node)),
            idle => drop(self.idle.insert(node.clone(), idle)),
        }
    }
}

fn remove<K: Ord + Clone>(sets: &mut BTreeMap<K, BTreeSet<Name>>, key: &K, name: &Name) {
    if let Some(set) = sets.get_mut(key) {
        set.remove(name);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}

//! Logical devices: capacity reserved for them, their bindings to compute nodes, and unbinding. A change of
//! one logical device does not touch the mappings, sessions and links of the other logical devices on its
//! memory node.

use std::iter;

use cxloe_fabric::api::{Bind, CreateRegion, LogicalDeviceStatus, Owner, Unbind};
use cxloe_fabric::model::{
    Binding, ByteSize, CnId, ComputeNode, DeviceKind, EventKind, LD_UNIT, LDS_MAX, LogicalDevice, MemoryNode,
    Name, Region, RegionState, SWITCH_NODES, UnbindOption, Unbinding, VPPBS_MAX,
};

use super::cmem::CmemSpan;
use super::mirror::is_live;
use super::region_names::Nameless;
use super::regions::REGION_RECORD_BYTES;
use super::{Change, Manager, ManagerError};

impl Manager {
    /// Returns the kind of a memory node: allocated as a whole or in slices. A static fabric has no slices
    /// (CXL 2.0, static initialisation).
    pub fn kind_of(&self, node: &MemoryNode) -> DeviceKind {
        if self.options.initialisation.is_static() { DeviceKind::Sld } else { node.kind }
    }

    /// Returns the record of a registered memory node.
    ///
    /// # Errors
    /// [`ManagerError::NoMemoryNode`] if none has registered with this name.
    pub fn memory_node(&self, name: &Name) -> Result<&MemoryNode, ManagerError> {
        self.state.memory_nodes.get(name).ok_or_else(|| ManagerError::NoMemoryNode(name.clone()))
    }

    /// Returns the size of a logical device in bytes: its reserved capacity, or the bytes of its regions if
    /// these are more.
    pub fn capacity_of(&self, ld: &LogicalDevice) -> u64 {
        ld.reserved.max(self.used_by(ld))
    }

    /// Returns the bytes of a logical device in regions, without what is being zeroed.
    pub(crate) fn used_by(&self, ld: &LogicalDevice) -> u64 {
        ld.binding.as_ref().map_or(0, |binding| self.index.used(&ld.memory_node, binding.compute_node))
    }

    pub fn at_vppb(&self, cn: CnId, vppb: u8) -> Option<&LogicalDevice> {
        self.index.at_vppb(cn, vppb).and_then(|place| self.state.logical_devices.get(place))
    }

    pub fn devices_of(&self, cn: CnId) -> impl Iterator<Item = &LogicalDevice> {
        let places = self.index.devices_of(cn);
        places.filter_map(|(node, id)| self.state.logical_devices.get(&(node.clone(), id)))
    }

    /// Returns the regions of a logical device: all regions of its compute node with a leg on its memory node. A
    /// region whose part there has moved away, or was given up, does not count while this part is being zeroed.
    pub fn regions_of_device(&self, ld: &LogicalDevice) -> Vec<&Region> {
        let Some(binding) = &ld.binding else { return Vec::new() };
        let regions = self.index.regions_of(binding.compute_node);
        let regions = regions.filter_map(|name| self.state.regions.get(name));
        let belongs = |region: &&Region| {
            let mut here = region.legs.iter().filter(|leg| leg.memory_node == ld.memory_node);
            here.any(|leg| region.state == RegionState::Draining || is_live(leg))
        };
        regions.filter(belongs).collect()
    }

    /// Returns a logical device with the figures that follow from its regions.
    pub fn device_status(&self, ld: &LogicalDevice) -> LogicalDeviceStatus {
        let index = self.state.memory_nodes.get(&ld.memory_node).map(|node| node.index);
        LogicalDeviceStatus {
            switch: index.map(|index| index / SWITCH_NODES),
            port: index.map(|index| index % SWITCH_NODES),
            capacity: self.capacity_of(ld),
            used_bytes: self.used_by(ld),
            regions: self.regions_of_device(ld).into_iter().map(|region| region.name.clone()).collect(),
            unbound_percent: self.unbound_percent(ld),
            waits_for_owner: self.waits_for_owner(ld),
            device: ld.clone(),
        }
    }

    pub(super) fn device_on(&self, node: &Name, cn: CnId) -> Option<&LogicalDevice> {
        self.index.ld_of(cn, node).and_then(|id| self.state.logical_devices.get(&(node.clone(), id)))
    }

    fn logical_device(&self, node: &Name, id: u16) -> LogicalDevice {
        let known = self.state.logical_devices.get(&(node.clone(), id)).cloned();
        known.unwrap_or_else(|| LogicalDevice { memory_node: node.clone(), id, reserved: 0, binding: None })
    }

    /// Stores a logical device, or removes it if it has neither capacity nor a binding.
    fn store_device(&mut self, ld: LogicalDevice) {
        if ld.reserved == 0 && ld.binding.is_none() {
            self.put(Change::LogicalDeviceGone(ld.memory_node, ld.id));
        } else {
            self.put(Change::LogicalDevice(ld));
        }
    }

    pub(super) fn set_ld_allocations(
        &mut self,
        name: &Name,
        first: u16,
        reserved: &[ByteSize],
    ) -> Result<(), ManagerError> {
        let node = self.memory_node(name)?.clone();
        if self.kind_of(&node) == DeviceKind::Sld {
            return Err(ManagerError::WrongKind { node: name.clone(), kind: DeviceKind::Sld });
        }
        let of_node = |what: &str| format!("{what} of memory node {name}");
        if usize::from(first) + reserved.len() > usize::from(LDS_MAX) || reserved.is_empty() {
            let reason = format!("LD-IDs are 0 to {}, and one at least is to be named", LDS_MAX - 1);
            return Err(ManagerError::out_of_range(of_node("LDs"), reason));
        }
        if let Some(size) = reserved.iter().find(|size| !size.0.is_multiple_of(LD_UNIT)) {
            let reason = format!("{} bytes are not a multiple of {LD_UNIT}", size.0);
            return Err(ManagerError::out_of_range(of_node("capacity of an LD"), reason));
        }
        let new: Vec<LogicalDevice> = (first..)
            .zip(reserved)
            .map(|(id, size)| LogicalDevice { reserved: size.0, ..self.logical_device(name, id) })
            .collect();
        // Regions may use more than the reserved capacity, so only a reduction below their size is refused.
        for ld in &new {
            let (used, before) = (self.used_by(ld), self.logical_device(name, ld.id).reserved);
            if ld.reserved < before && ld.reserved < used {
                return Err(ManagerError::LdInUse {
                    node: name.clone(),
                    ld: ld.id,
                    used,
                    asked: ld.reserved,
                });
            }
        }
        let idle = |ld: &LogicalDevice| ld.reserved.saturating_sub(self.used_by(ld));
        let others = self.state.logical_devices_of(name).filter(|ld| !new.iter().any(|new| new.id == ld.id));
        let wanted = others.chain(&new).map(idle).fold(0, u64::saturating_add);
        // Memory that is being zeroed will be free, so it can be reserved already.
        let free = self.free_bytes(&node) + self.index.zeroing(name);
        if wanted > free {
            let total = reserved.iter().map(|size| size.0).fold(0, u64::saturating_add);
            let reason = format!("{total} bytes for LDs {first} and up are more than is free there: {free}");
            return Err(ManagerError::out_of_range(of_node("capacity"), reason));
        }
        for ld in new {
            if self.state.logical_devices.get(&(name.clone(), ld.id)).map_or(0, |ld| ld.reserved)
                != ld.reserved
            {
                let (memory_node, id, reserved) = (name.clone(), ld.id, ld.reserved);
                self.store_device(ld);
                self.event(EventKind::LdAllocated { memory_node, ld: id, reserved });
            }
        }
        Ok(())
    }

    /// Returns the vPPB for a binding of `cn`; `None` if the memory node and the compute node are on different
    /// switches, or if no vPPB is free.
    fn vppb_for(&self, node: &MemoryNode, cn: CnId) -> Option<u8> {
        let cn_index = self.state.compute_nodes.get(&cn).map(|cn| cn.index)?;
        let together = node.index / SWITCH_NODES == cn_index / SWITCH_NODES;
        together.then(|| self.index.free_vppb(cn)).flatten()
    }

    /// Binds `cn` to a free logical device of `node`. No effect if `cn` is bound to `node` already, or if no device is
    /// free.
    pub(super) fn ensure_bound(&mut self, node: &MemoryNode, cn: CnId) {
        if self.index.ld_of(cn, &node.name).is_some() {
            return;
        }
        let id = match self.kind_of(node) {
            DeviceKind::Sld => Some(0),
            DeviceKind::Mld => self.index.free_ld(&self.state, &node.name),
        };
        let Some(id) = id else { return };
        let vppb = self.vppb_for(node, cn);
        let ld = self.logical_device(&node.name, id);
        self.bind_device(ld, cn, vppb, None);
    }

    fn bind_device(&mut self, mut ld: LogicalDevice, cn: CnId, vppb: Option<u8>, region: Option<Name>) {
        let (memory_node, id) = (ld.memory_node.clone(), ld.id);
        ld.binding = Some(Binding { compute_node: cn, vppb, region, unbinding: None });
        self.put(Change::LogicalDevice(ld));
        self.region_event(cn, EventKind::LdBound { memory_node, ld: id, compute_node: cn, vppb });
    }

    /// Binds a logical device and creates a region of its reserved capacity. Returns the compute node and the
    /// LD-ID.
    pub(super) fn bind(&mut self, bind: &Bind) -> Result<(CnId, u16), ManagerError> {
        let owner = self.owner(&bind.compute_node)?;
        let (cn, node) = (owner.cn_id, self.memory_node(&bind.memory_node)?.clone());
        let kind = self.kind_of(&node);
        let ld = match (kind, bind.ld) {
            (DeviceKind::Sld, None) => {
                let whole = self.free_bytes(&node);
                LogicalDevice { reserved: whole, ..self.logical_device(&node.name, 0) }
            }
            (DeviceKind::Sld, Some(_)) => {
                return Err(ManagerError::WrongKind { node: node.name, kind });
            }
            (DeviceKind::Mld, None) => {
                let mut lds = self.state.logical_devices_of(&node.name);
                let ld = lds.find(|ld| ld.binding.is_none() && ld.reserved > 0).cloned();
                let none = || ManagerError::WrongKind { node: node.name.clone(), kind };
                ld.ok_or_else(none)?
            }
            (DeviceKind::Mld, Some(id)) => self.logical_device(&node.name, id),
        };
        let (node_name, id) = (node.name.clone(), ld.id);
        let bound = |what: String, holder: String| Err(ManagerError::Bound { what, holder });
        if id >= LDS_MAX {
            let reason = format!("LD-IDs are 0 to {}", LDS_MAX - 1);
            return Err(ManagerError::out_of_range(format!("LD {id} of memory node {node_name}"), reason));
        }
        if let Some(binding) = &ld.binding {
            let (cn, at) = (binding.compute_node, in_words(binding.vppb));
            return bound(format!("LD {id} of {node_name}"), format!("CN {cn}, {at}"));
        }
        if let Some(other) = self.index.ld_of(cn, &node_name) {
            let binding = self.logical_device(&node_name, other).binding;
            let at = in_words(binding.and_then(|binding| binding.vppb));
            return bound(format!("CN {cn}"), format!("LD {other} of {node_name}, {at}"));
        }
        if kind == DeviceKind::Sld && self.is_held(&node_name) {
            let holder = self.index.used_by(&node_name).next();
            let holder =
                holder.map_or_else(|| "another compute node".to_owned(), |(cn, _)| format!("CN {cn}"));
            return bound(format!("memory node {node_name}"), holder);
        }
        if kind == DeviceKind::Sld && self.is_in_use(&node_name) {
            let (name, size) = (
                self.free_region_name(Nameless::LogicalDevice(&node_name, id)),
                node.extent_count() * node.extent_bytes,
            );
            let held_back = self.index.zeroing(&node_name);
            return Err(ManagerError::NoSpace { name, size, free: ld.reserved, held_back });
        }
        if ld.reserved == 0 {
            let lacks = "has no capacity";
            return Err(ManagerError::NoLogicalDevice { node: node_name, ld: id, lacks });
        }
        let vppb = match bind.vppb {
            Some(vppb) if vppb >= VPPBS_MAX => {
                let reason = format!("they are 0 to {}", VPPBS_MAX - 1);
                return Err(ManagerError::out_of_range(format!("vPPB {vppb} of CN {cn}"), reason));
            }
            Some(vppb) if let Some((node, ld)) = self.index.at_vppb(cn, vppb) => {
                return bound(format!("vPPB {vppb} of CN {cn}"), format!("LD {ld} of {node}"));
            }
            Some(vppb) => Some(vppb),
            None => self.vppb_for(&node, cn),
        };
        let size = ld.reserved / node.extent_bytes * node.extent_bytes;
        if size == 0 {
            let lacks = "has less capacity than an extent";
            return Err(ManagerError::NoLogicalDevice { node: node_name, ld: id, lacks });
        }
        let name = self.free_region_name(Nameless::LogicalDevice(&node_name, id));
        let create =
            CreateRegion { on: vec![node_name.clone()], ..CreateRegion::new(name.clone(), size, cn) };
        // The region is checked before the LD is bound, so that a refusal changes nothing.
        self.check_region_on(&node, &ld, (&name, size), &owner)?;
        self.put_owner(owner);
        self.bind_device(ld, cn, vppb, Some(name));
        self.create_region(create)?;
        Ok((cn, id))
    }

    /// Returns the error that [`create_region`](Self::create_region) would give for the region that a binding creates.
    fn check_region_on(
        &self,
        node: &MemoryNode,
        ld: &LogicalDevice,
        (name, size): (&Name, u64),
        owner: &ComputeNode,
    ) -> Result<(), ManagerError> {
        self.check_new_region(name, owner, size)?;
        self.take_cmem(&mut owner.clone(), &[CmemSpan::on(node, size)])?;
        let set_aside =
            self.state.logical_devices.get(&(node.name.clone(), ld.id)).map_or(0, |ld| ld.reserved);
        let free = self.unreserved_bytes(node, set_aside);
        let there = self.takes_legs(node);
        if !there || free < size {
            let (name, zeroing) = (name.clone(), self.index.zeroing(&node.name));
            let (free, held_back) =
                if there { (free, zeroing) } else { (0, self.free_bytes(node) + zeroing) };
            return Err(ManagerError::NoSpace { name, size, free, held_back });
        }
        self.check_record(name, REGION_RECORD_BYTES, iter::once((&node.name, size / node.extent_bytes)))
    }

    pub(super) fn unbind(&mut self, unbind: &Unbind) -> Result<CnId, ManagerError> {
        let Unbind { memory_node, ld: id, option, wait_ms: _ } = unbind;
        self.memory_node(memory_node)?;
        let mut ld = self.logical_device(memory_node, *id);
        let used = self.used_by(&ld);
        let regions: Vec<Region> = self.regions_of_device(&ld).into_iter().cloned().collect();
        let Some(binding) = ld.binding.as_mut() else {
            let lacks = "is not bound";
            return Err(ManagerError::NoLogicalDevice { node: memory_node.clone(), ld: *id, lacks });
        };
        let cn = binding.compute_node;
        // A repeated request with another option replaces the earlier one.
        binding.unbinding = Some(Unbinding { option: *option, total: used });
        self.put(Change::LogicalDevice(ld));
        let event = EventKind::LdUnbinding {
            memory_node: memory_node.clone(),
            ld: *id,
            compute_node: cn,
            option: *option,
        };
        self.region_event(cn, event);
        for region in regions.into_iter().filter(|region| region.state != RegionState::Draining) {
            let reason = format!("LD {id} of memory node {memory_node} is being unbound");
            self.request_release(region, *option, true, Some(reason));
        }
        self.device_emptied(memory_node, cn);
        Ok(cn)
    }

    /// Ends the binding of a device that is being unbound or has no reserved capacity, if `cn` has no memory on `node`
    /// any more. Memory that is being zeroed does not count: it belongs to no compute node.
    pub(super) fn device_emptied(&mut self, node: &Name, cn: CnId) {
        let Some(id) = self.index.ld_of(cn, node).filter(|_| self.index.used(node, cn) == 0) else { return };
        let mut ld = self.logical_device(node, id);
        let unbinding = ld.binding.as_ref().is_some_and(|binding| binding.unbinding.is_some());
        let whole = self.state.memory_nodes.get(node).is_some_and(|n| self.kind_of(n) == DeviceKind::Sld);
        if !unbinding && ld.reserved > 0 {
            return;
        }
        if whole {
            ld.reserved = 0;
        }
        ld.binding = None;
        self.store_device(ld);
        let (memory_node, compute_node) = (node.clone(), cn);
        self.region_event(cn, EventKind::LdUnbound { memory_node, ld: id, compute_node });
    }

    pub(super) fn generate_aer(&mut self, owner: &Owner, vppb: u8, aer: u32) -> Result<(), ManagerError> {
        let cn = self.known_compute_node(owner)?.cn_id;
        let Some(_) = self.index.at_vppb(cn, vppb) else {
            let what = format!("vPPB {vppb} of CN {cn}");
            return Err(ManagerError::out_of_range(what, "nothing is bound to it"));
        };
        self.region_event(cn, EventKind::AerGenerated { compute_node: cn, vppb, aer });
        Ok(())
    }

    /// Begins to unbind the logical device whose binding was to create `region`, after the creation failed.
    pub(super) fn binding_failed(&mut self, region: &Region) {
        let made_for = |ld: &&LogicalDevice| {
            ld.binding.as_ref().is_some_and(|binding| binding.region.as_ref() == Some(&region.name))
        };
        let ld = region
            .legs
            .iter()
            .find_map(|leg| self.state.logical_devices_of(&leg.memory_node).find(made_for).cloned());
        if let Some(mut ld) = ld
            && let Some(binding) = &mut ld.binding
        {
            let (option, total) = (UnbindOption::Surprise, region.bytes());
            binding.unbinding = binding.unbinding.or(Some(Unbinding { option, total }));
            self.put(Change::LogicalDevice(ld));
        }
    }

    /// Returns true if an unbinding waits for the compute node to release regions.
    pub fn waits_for_owner(&self, ld: &LogicalDevice) -> bool {
        let waiting = |region: &&Region| region.state == RegionState::Releasing;
        ld.binding.as_ref().is_some_and(|binding| {
            binding.unbinding.is_some_and(|unbinding| unbinding.option != UnbindOption::Surprise)
        }) && self.regions_of_device(ld).iter().any(waiting)
    }
}

/// Place of a binding at its compute node.
fn in_words(vppb: Option<u8>) -> String {
    vppb.map_or_else(|| "at no vPPB".to_owned(), |vppb| format!("at vPPB {vppb}"))
}

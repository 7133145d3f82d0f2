//! Making regions, taking them down, and the one function that says what state a region is in.

use crate::api::{CreateRegion, Owner};
use crate::model::{
    CMEM_LIMIT, CnId, ComputeNode, EventKind, GRANULARITY_MAX, GRANULARITY_MIN, Health, Leg, LegState,
    MemoryNode, Name, NodeAction, Region, RegionState,
};

use super::compute_nodes::new_compute_node;
use super::memory_nodes::mapping_of;
use super::{Change, LEGS_MAX, Manager, ManagerError, REGIONS_MAX};

/// How much of a region goes onto which memory node, in the order of the region's addresses.
type Plan = Vec<(MemoryNode, u64)>;

impl Manager {
    /// Why a region left the state in which the event `after` found it, as the event log has it.
    pub fn reason_after(&self, region: &Name, after: u64) -> Option<&str> {
        self.state.events.iter().rev().take_while(|event| event.seq > after).find_map(|event| {
            match &event.kind {
                EventKind::RegionChanged { region: of, reason: Some(reason), .. } if of == region => {
                    Some(reason.as_str())
                }
                _ => None,
            }
        })
    }

    pub(super) fn create_region(&mut self, create: CreateRegion) -> Result<(), ManagerError> {
        check_request(&create)?;
        if let Some(region) = self.state.regions.get(&create.name) {
            return Err(ManagerError::RegionExists(create.name, region.state));
        }
        if self.state.regions.len() >= REGIONS_MAX {
            return Err(ManagerError::LimitReached { what: "regions", limit: REGIONS_MAX as u64 });
        }
        let mut owner = self.owner(&create.owner)?;
        let plan = self.plan(&create.name, create.size.0)?;
        let bases = cmem_bases(&owner, &plan)?;

        let (mut legs, mut offset) = (Vec::with_capacity(plan.len()), 0);
        for ((node, bytes), cmem_base) in plan.into_iter().zip(bases) {
            let extents = self.free.get_mut(&node.name).and_then(|free| free.take(bytes / node.extent_bytes));
            legs.push(Leg {
                memory_node: node.name,
                macs: node.macs,
                offset,
                cmem_base,
                bytes,
                extent_bytes: node.extent_bytes,
                extents: extents.unwrap_or_default(),
                incarnation: None,
                state: LegState::Mapping,
            });
            offset += bytes;
            owner.cmem_next = cmem_base + bytes;
        }
        let region = Region {
            name: create.name,
            owner: owner.cn_id,
            size: create.size.0,
            ways: create.ways,
            granularity: create.granularity,
            state: RegionState::Creating,
            legs,
            failure: None,
            created_ms: self.now_ms,
        };
        self.put(Change::ComputeNode(owner));
        self.store_region(region.clone(), None);
        for leg in &region.legs {
            self.issue(&leg.memory_node, NodeAction::MapCmem(mapping_of(&region, leg)));
        }
        Ok(())
    }

    fn owner(&self, owner: &Owner) -> Result<ComputeNode, ManagerError> {
        let known = match owner {
            Owner::CnId(id) => self.state.compute_nodes.get(id),
            Owner::Name(name) => self.compute_node_named(name),
        };
        match (known, owner) {
            (Some(node), _) => Ok(node.clone()),
            (None, Owner::CnId(id)) => self.check_room_for_compute_node().map(|()| new_compute_node(*id)),
            (None, Owner::Name(name)) => Err(ManagerError::NoOwner(name.clone())),
        }
    }

    /// Spreads `size` bytes over the reachable memory nodes, the one with the most free space first: a region goes onto
    /// one node where one has room for it, and different regions go onto different nodes.
    fn plan(&self, name: &Name, size: u64) -> Result<Plan, ManagerError> {
        let mut nodes: Vec<(&MemoryNode, u64)> = self
            .state
            .memory_nodes
            .values()
            .filter(|node| node.health == Health::Reachable)
            .map(|node| (node, self.free_bytes(node)))
            .filter(|(_, free)| *free > 0)
            .collect();
        nodes.sort_by(|(a, a_free), (b, b_free)| b_free.cmp(a_free).then_with(|| a.name.cmp(&b.name)));
        let (mut plan, mut remaining) = (Plan::new(), size);
        for (node, free) in &nodes {
            let bytes = (*free).min(remaining - remaining % node.extent_bytes);
            if bytes > 0 {
                plan.push(((*node).clone(), bytes));
                remaining -= bytes;
            }
        }
        if remaining == 0 {
            return if plan.len() <= LEGS_MAX {
                Ok(plan)
            } else {
                Err(ManagerError::LimitReached { what: "legs of a region", limit: LEGS_MAX as u64 })
            };
        }
        let free: u64 = nodes.iter().map(|(_, free)| free).sum();
        let smallest = nodes.iter().map(|(node, _)| node.extent_bytes).min().filter(|_| free >= size);
        Err(match smallest {
            Some(extent_bytes) => ManagerError::Unaligned { name: name.clone(), size, extent_bytes },
            None => ManagerError::NoSpace { name: name.clone(), size, free, held_back: self.held_back() },
        })
    }

    /// Bytes that nobody uses and that cannot be given away now.
    fn held_back(&self) -> u64 {
        let unreachable = self.state.memory_nodes.values().filter(|node| node.health != Health::Reachable);
        let legs = self.state.regions.values().flat_map(|region| &region.legs);
        let draining = legs.filter(|leg| leg.state == LegState::Unmapping);
        unreachable.map(|node| self.free_bytes(node)).sum::<u64>()
            + draining.map(|leg| leg.bytes).sum::<u64>()
    }

    pub(super) fn destroy_region(&mut self, name: &Name, force: bool) -> Result<(), ManagerError> {
        let region = self.region(name)?.clone();
        if region.state == RegionState::Draining {
            self.reissue_unmaps(&region, None);
            return Ok(());
        }
        let owner_there =
            self.state.compute_nodes.get(&region.owner).map(|cn| cn.health) == Some(Health::Reachable);
        if owner_there && !force {
            return Err(ManagerError::RegionInUse { name: name.clone(), owner: region.owner });
        }
        self.drain(region, None);
        Ok(())
    }

    pub(super) fn reset_region(&mut self, name: &Name) -> Result<(), ManagerError> {
        let mut region = self.region(name)?.clone();
        let refuse = |reason: String| {
            Err(ManagerError::WrongState { name: name.clone(), state: region.state, reason })
        };
        if region.state != RegionState::Lost {
            return refuse("only a lost region can be reset".to_owned());
        }
        let is_lost = |leg: &&Leg| leg.state == LegState::Lost;
        let silent = region.legs.iter().filter(is_lost).find(|leg| !self.is_reachable(&leg.memory_node));
        if let Some(leg) = silent {
            return refuse(format!("its memory node {} must be reachable", leg.memory_node));
        }
        let mut commands = Vec::new();
        for leg in region.legs.iter_mut().filter(|leg| leg.state == LegState::Lost) {
            leg.state = LegState::Mapping;
            commands.push(leg.clone());
        }
        self.settle(region.clone(), Some("reset: what it held is given up".to_owned()));
        for leg in commands {
            self.issue(&leg.memory_node, NodeAction::MapCmem(mapping_of(&region, &leg)));
        }
        Ok(())
    }

    fn is_reachable(&self, node: &Name) -> bool {
        self.state.memory_nodes.get(node).is_some_and(|node| node.health == Health::Reachable)
    }

    /// Begins to take a region down: nobody may use it from here on, its memory nodes remove and zero it.
    pub(super) fn drain(&mut self, mut region: Region, reason: Option<String>) {
        region.state = RegionState::Draining;
        region.legs.iter_mut().for_each(|leg| leg.state = LegState::Unmapping);
        self.store_region(region.clone(), reason);
        self.reissue_unmaps(&region, None);
    }

    /// Tells memory nodes (or the one given) to unmap what is to be unmapped and they have no command for: at first, and
    /// again after one failed.
    pub(super) fn reissue_unmaps(&mut self, region: &Region, only: Option<&Name>) {
        for leg in region.legs.iter().filter(|leg| leg.state == LegState::Unmapping) {
            let action = NodeAction::UnmapCmem(mapping_of(region, leg));
            let wanted = only.is_none_or(|node| *node == leg.memory_node);
            if wanted && !self.state.commands_of(&leg.memory_node).any(|command| command.action == action) {
                self.issue(&leg.memory_node, action);
            }
        }
    }

    /// Stores a region whose legs or nodes changed, in the state that follows from them.
    pub(super) fn settle(&mut self, mut region: Region, reason: Option<String>) {
        let any = |state| region.legs.iter().any(|leg| leg.state == state);
        region.state = if region.state == RegionState::Draining {
            RegionState::Draining
        } else if any(LegState::Lost) {
            RegionState::Lost
        } else if any(LegState::Mapping) {
            RegionState::Creating
        } else if !region.legs.iter().all(|leg| self.is_reachable(&leg.memory_node)) {
            RegionState::Degraded
        } else {
            RegionState::Active
        };
        self.store_region(region, reason);
    }

    /// Stores a region if it changed; a change its owner has to know of is an event.
    fn store_region(&mut self, region: Region, reason: Option<String>) {
        let before = self.state.regions.get(&region.name);
        if before == Some(&region) {
            return;
        }
        let (name, owner, state) = (region.name.clone(), region.owner, region.state);
        let told = reason.is_some() || before.is_none_or(|before| before.state != state);
        self.put(Change::Region(region));
        if told {
            self.region_event(owner, EventKind::RegionChanged { region: name, owner, state, reason });
        }
    }

    pub(super) fn region_gone(&mut self, region: &Region) {
        let (name, owner) = (region.name.clone(), region.owner);
        self.put(Change::RegionGone(name.clone()));
        self.region_event(owner, EventKind::RegionDestroyed { region: name, owner });
    }

    fn region_event(&mut self, owner: CnId, kind: EventKind) {
        let seq = self.event(kind);
        if let Some(mut owner) = self.state.compute_nodes.get(&owner).cloned() {
            owner.regions_event = seq;
            self.put(Change::ComputeNode(owner));
        }
    }
}

fn check_request(create: &CreateRegion) -> Result<(), ManagerError> {
    let out_of_range = |what: &str, reason: String| {
        Err(ManagerError::out_of_range(format!("{what} of region {}", create.name), reason))
    };
    if create.size.0 == 0 {
        return out_of_range("size", "it must not be 0".to_owned());
    }
    if create.ways != 1 {
        return out_of_range(
            "interleave ways",
            format!("{} ways cannot be had; this version maps 1 way", create.ways),
        );
    }
    let granularity = create.granularity;
    if !granularity.is_power_of_two() || !(GRANULARITY_MIN..=GRANULARITY_MAX).contains(&granularity) {
        let reason =
            format!("{granularity} is not a power of two from {GRANULARITY_MIN} to {GRANULARITY_MAX}");
        return out_of_range("interleave granularity", reason);
    }
    Ok(())
}

/// A CMem base for each part of a plan: above all the owner ever had, aligned to the node's extents.
fn cmem_bases(owner: &ComputeNode, plan: &Plan) -> Result<Vec<u64>, ManagerError> {
    let mut next = owner.cmem_next;
    let mut bases = Vec::with_capacity(plan.len());
    for (node, bytes) in plan {
        let base = next.next_multiple_of(node.extent_bytes);
        next = base.saturating_add(*bytes);
        if next > CMEM_LIMIT {
            return Err(ManagerError::LimitReached {
                what: "bytes of CMem handed out to a CN",
                limit: CMEM_LIMIT,
            });
        }
        bases.push(base);
    }
    Ok(bases)
}

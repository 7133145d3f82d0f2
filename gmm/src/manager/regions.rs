//! Making regions, letting them grow, taking them down, and the one function that says what state a region is in.

use std::collections::BTreeSet;

use cxloe_fabric::api::{CreateRegion, GrowRegion, Owner, RegionStatus};
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::{
    CnId, ComputeNode, EventKind, HdmDecoder, Health, Leg, LegState, Name, NodeAction, Region, RegionState,
    human_bytes,
};

use super::cmem::Piece;
use super::memory_nodes::mapping_of;
use super::placement::{Share, Wanted};
use super::{Change, DECODERS_MAX, Manager, ManagerError, REGIONS_MAX};

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

    /// Every region, by name, with how far its taking down has come.
    pub fn region_statuses(&self) -> Vec<RegionStatus> {
        self.state.regions.values().map(|region| self.region_status(region)).collect()
    }

    /// A region with how far its taking down has come.
    pub fn region_status(&self, region: &Region) -> RegionStatus {
        RegionStatus {
            zeroed_percent: self.zeroed_percent(region),
            owner_knows: self.knows_its_regions(region.owner),
            region: region.clone(),
        }
    }

    pub(super) fn create_region(&mut self, create: CreateRegion) -> Result<(), ManagerError> {
        let of_region = |what: &str| format!("{what} of region {}", create.name);
        if create.size.0 == 0 {
            return Err(ManagerError::out_of_range(of_region("size"), "it must not be 0"));
        }
        let ways = Ways::try_from(create.ways);
        let ways =
            ways.map_err(|e| ManagerError::out_of_range(of_region("interleave ways"), e.to_string()))?;
        let granularity = Granularity::try_from(create.granularity).map_err(|error| {
            ManagerError::out_of_range(of_region("interleave granularity"), error.to_string())
        })?;
        let owner = self.owner(&create.owner)?;
        self.check_new_region(&create.name, &owner, create.size.0)?;
        let (name, size, on) = (&create.name, create.size.0, &create.on[..]);
        let shares = self.place(Wanted { name, owner: owner.cn_id, size, ways, granularity, on })?;
        let mut region = Region {
            name: create.name,
            owner: owner.cn_id,
            size: 0,
            ways,
            granularity,
            state: RegionState::Creating,
            decoders: Vec::new(),
            legs: Vec::new(),
            unmapped: create.unmapped,
            release: None,
            failure: None,
            uid: create.uid,
            created_ms: self.now_ms,
        };
        self.add_legs(&mut region, owner, shares)?;
        self.map_new_legs(region, None);
        Ok(())
    }

    pub(super) fn grow_region(&mut self, name: &Name, grow: &GrowRegion) -> Result<(), ManagerError> {
        let mut region = self.region(name)?.clone();
        let refuse = |reason: String| {
            Err(ManagerError::WrongState { name: name.clone(), state: region.state, reason })
        };
        if !matches!(region.state, RegionState::Active | RegionState::Degraded) {
            return refuse("only an active region can grow".to_owned());
        }
        if region.growing() > 0 {
            return refuse("it is growing already".to_owned());
        }
        let Some(more) = grow.size.0.checked_sub(region.size).filter(|more| *more > 0) else {
            let reason = format!("{} is not more than the {} it has", grow.size.0, region.size);
            return Err(ManagerError::out_of_range(format!("size of region {name}"), reason));
        };
        let owner = self.owner(&Owner::CnId(region.owner))?;
        self.check_quota(&owner, more)?;
        let Region { ways, granularity, owner: cn, .. } = region;
        let shares = self.place(Wanted { name, owner: cn, size: more, ways, granularity, on: &grow.on })?;
        self.add_legs(&mut region, owner, shares)?;
        self.map_new_legs(region, Some(format!("growing by {}", human_bytes(more))));
        Ok(())
    }

    /// Adds a decoder for each share, and its legs; extents and CMem addresses are taken.
    fn add_legs(
        &mut self,
        region: &mut Region,
        mut owner: ComputeNode,
        shares: Vec<Share>,
    ) -> Result<(), ManagerError> {
        if region.decoders.len() + shares.len() > DECODERS_MAX {
            let limit = DECODERS_MAX as u64;
            return Err(ManagerError::LimitReached { what: "decoders of a region", limit });
        }
        let pieces = shares.iter().flat_map(|s| s.nodes.iter().map(|node| Piece::on(node, s.bytes)));
        let bases = self.take_cmem(&mut owner, &pieces.collect::<Vec<_>>())?;
        let cn = owner.cn_id;
        self.put(Change::ComputeNode(owner));
        let mut bases = bases.into_iter();
        for Share { nodes, bytes } in shares {
            let decoder = region.decoders.len() as u32;
            region.decoders.push(HdmDecoder {
                offset: region.bytes(),
                size: bytes * nodes.len() as u64,
                ways: region.ways,
                granularity: region.granularity,
                committed: false,
            });
            for ((position, node), cmem_base) in (0..).zip(nodes).zip(bases.by_ref()) {
                self.ensure_bound(&node, cn);
                let free = self.free.get_mut(&node.name);
                let extents = free.and_then(|free| free.take(bytes / node.extent_bytes));
                region.legs.push(Leg {
                    memory_node: node.name,
                    macs: node.macs,
                    udp: node.udp,
                    mn_key: node.key,
                    decoder,
                    position,
                    cmem_base,
                    bytes,
                    extent_bytes: node.extent_bytes,
                    extents: extents.unwrap_or_default(),
                    incarnation: None,
                    state: LegState::Mapping,
                });
            }
        }
        Ok(())
    }

    /// Stores a region with new legs and has their memory nodes map them.
    fn map_new_legs(&mut self, region: Region, reason: Option<String>) {
        self.store_region(region.clone(), reason);
        for leg in region.legs.iter().filter(|leg| !region.is_committed(leg)) {
            self.issue(&leg.memory_node, NodeAction::MapCmem(mapping_of(&region, leg)));
        }
    }

    pub(super) fn check_new_region(
        &self,
        name: &Name,
        owner: &ComputeNode,
        size: u64,
    ) -> Result<(), ManagerError> {
        if let Some(region) = self.state.regions.get(name) {
            return Err(ManagerError::RegionExists(name.clone(), region.state));
        }
        if self.state.regions.len() >= REGIONS_MAX {
            return Err(ManagerError::LimitReached { what: "regions", limit: REGIONS_MAX as u64 });
        }
        self.check_quota(owner, size)
    }

    fn check_quota(&self, owner: &ComputeNode, asked: u64) -> Result<(), ManagerError> {
        let used = self.index.bytes_of(owner.cn_id);
        match owner.quota {
            Some(quota) if used.saturating_add(asked) > quota => {
                Err(ManagerError::OverQuota { owner: owner.cn_id, quota, used, asked })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn destroy_region(
        &mut self,
        name: &Name,
        force: bool,
        created_ms: Option<u64>,
    ) -> Result<(), ManagerError> {
        let region = self.region(name)?.clone();
        if let Some(asked_ms) = created_ms.filter(|asked_ms| *asked_ms != region.created_ms) {
            let (name, created_ms) = (name.clone(), region.created_ms);
            return Err(ManagerError::OtherRegion { name, created_ms, asked_ms });
        }
        if region.state == RegionState::Draining {
            self.reissue_unmaps(&region, None);
            return Ok(());
        }
        let let_go = region.state == RegionState::Disabled;
        if self.is_owner_there(&region) && !let_go && !force {
            return Err(ManagerError::RegionInUse { name: name.clone(), owner: region.owner });
        }
        self.drain(region, None);
        Ok(())
    }

    pub(super) fn is_owner_there(&self, region: &Region) -> bool {
        self.state.compute_nodes.get(&region.owner).map(|cn| cn.health) == Some(Health::Reachable)
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

    pub(super) fn is_reachable(&self, node: &Name) -> bool {
        self.state.memory_nodes.get(node).is_some_and(|node| node.health == Health::Reachable)
    }

    /// Begins to take a region down: nobody may use it from here on, its memory nodes remove and zero it.
    pub(super) fn drain(&mut self, mut region: Region, reason: Option<String>) {
        region.state = RegionState::Draining;
        region.legs.iter_mut().for_each(|leg| leg.state = LegState::Unmapping);
        self.store_region(region.clone(), reason);
        self.reissue_unmaps(&region, None);
        let nodes: BTreeSet<&Name> = region.legs.iter().map(|leg| &leg.memory_node).collect();
        nodes.into_iter().for_each(|node| self.device_emptied(node, region.owner));
    }

    /// Gives up a growth: what was to be added is unmapped and zeroed, what was there before stays.
    pub(super) fn drain_growth(&mut self, mut region: Region, reason: String) {
        let decoders = region.decoders.clone();
        let added = |leg: &Leg| !decoders.get(leg.decoder as usize).is_some_and(|decoder| decoder.committed);
        let legs = region.legs.iter_mut().filter(|leg| added(leg));
        legs.for_each(|leg| leg.state = LegState::Unmapping);
        self.store_region(region.clone(), Some(format!("it did not grow: {reason}")));
        self.reissue_unmaps(&region, None);
    }

    /// A leg was unmapped and zeroed: its memory is free.
    pub(super) fn leg_gone(&mut self, mut region: Region, at: usize) {
        let leg = region.legs.remove(at);
        if let Some(free) = self.free.get_mut(&leg.memory_node) {
            free.give(&leg.extents);
        }
        let owner = region.owner;
        if region.legs.is_empty() {
            let name = region.name.clone();
            self.put(Change::RegionGone(name.clone()));
            self.region_event(owner, EventKind::RegionDestroyed { region: name, owner });
        } else {
            if region.legs.iter().all(|leg| region.is_committed(leg)) {
                region.decoders.retain(|decoder| decoder.committed);
            }
            self.put(Change::Region(region));
        }
        self.retire_cmem(owner, &leg);
        self.device_emptied(&leg.memory_node, owner);
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

    /// Stores a region whose legs or nodes changed, in the state that follows from them. Decoders all of whose legs are
    /// mapped are committed.
    pub(super) fn settle(&mut self, mut region: Region, mut reason: Option<String>) {
        let mapped = |region: &Region| {
            let added = region.legs.iter().filter(|leg| !region.is_committed(leg));
            let wanted = region.decoders.iter().filter(|decoder| !decoder.committed);
            let wanted: u32 = wanted.map(|decoder| decoder.ways.count()).sum();
            added.clone().all(|leg| leg.state == LegState::Mapped) && added.count() == wanted as usize
        };
        if region.state != RegionState::Draining {
            if region.growing() > 0 && mapped(&region) {
                region.decoders.iter_mut().for_each(|decoder| decoder.committed = true);
                if region.size > 0 {
                    reason = reason.or(Some(format!("grown to {}", human_bytes(region.bytes()))));
                }
                region.size = region.bytes();
            }
            region.state = self.state_of(&region);
        }
        self.store_region(region, reason);
    }

    fn state_of(&self, region: &Region) -> RegionState {
        let committed = || region.legs.iter().filter(|leg| region.is_committed(leg));
        let any = |state| committed().any(|leg| leg.state == state);
        if let Some(release) = region.release {
            if release.done { RegionState::Disabled } else { RegionState::Releasing }
        } else if any(LegState::Lost) {
            RegionState::Lost
        } else if any(LegState::Mapping) || region.size == 0 {
            RegionState::Creating
        } else if !committed().all(|leg| self.is_reachable(&leg.memory_node)) {
            RegionState::Degraded
        } else {
            RegionState::Active
        }
    }

    /// Stores a region if it changed; a change its owner has to know of is an event.
    pub(super) fn store_region(&mut self, region: Region, reason: Option<String>) {
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

    /// An event that a compute node has to hear of.
    pub(super) fn region_event(&mut self, owner: CnId, kind: EventKind) {
        let seq = self.event(kind);
        if let Some(mut owner) = self.state.compute_nodes.get(&owner).cloned() {
            owner.regions_event = seq;
            self.put(Change::ComputeNode(owner));
        }
    }
}

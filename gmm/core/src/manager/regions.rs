//! Creation, growth and destruction of regions, and the function from which a region's state follows.

use std::collections::{BTreeMap, BTreeSet};

use cxloe_fabric::api::{CreateRegion, GrowRegion, LabelRegion, Owner, RegionStatus};
use cxloe_fabric::model::{
    CnId, ComputeNode, EventKind, HdmDecoder, Health, Leg, LegState, Name, NodeAction, Protection, Region,
    RegionState, human_bytes,
};

use super::cmem::CmemSpan;
use super::memory_nodes::mapping_of;
use super::mirror::{live_positions, same_in_sync};
use super::placement::{InterleaveSet, PlacementRequest};
use super::region_names::Nameless;
use super::{Change, DECODERS_MAX, Manager, ManagerError, REGIONS_MAX};

/// Upper bounds in bytes of a region's record in the store without legs and labels, of a usual leg without its extents, and
/// of a run of extents.
pub(super) const REGION_RECORD_BYTES: u64 = 2048;
const LEG_RECORD_BYTES: u64 = 640;
const RUN_RECORD_BYTES: u64 = 48;

impl Manager {
    /// Returns the latest recorded reason for a change of a region's state after event `after`.
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

    pub fn region_statuses(&self) -> Vec<RegionStatus> {
        self.state.regions.values().map(|region| self.region_status(region)).collect()
    }

    /// Returns a region's record with the progress of its destruction.
    pub fn region_status(&self, region: &Region) -> RegionStatus {
        RegionStatus {
            zeroed_percent: self.zeroed_percent(region),
            owner_knows: self.knows_its_regions(region.owner),
            without_spare: self.lacks_spare(&region.name),
            at_rest: self.is_at_rest(region),
            copying: self.copying(region),
            region: region.clone(),
        }
    }

    pub(super) fn create_region(&mut self, create: CreateRegion) -> Result<(), ManagerError> {
        let CreateRegion { ways, granularity, protect, ref on, .. } = create;
        let (size, name) = (create.size.0, create.name);
        let name = name.unwrap_or_else(|| self.free_region_name(Nameless::Request));
        if size == 0 {
            let what = format!("size of region {name}");
            return Err(ManagerError::out_of_range(what, "it must not be 0"));
        }
        let owner = self.owner(&create.owner)?;
        self.check_new_region(&name, &owner, copied(size, protect))?;
        let shares = self.place(PlacementRequest {
            name: &name,
            owner: owner.cn_id,
            size,
            ways,
            granularity,
            protect,
            on,
        })?;
        let mut region = Region {
            name,
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
            protect: create.protect,
            sealed: false,
            readers: Vec::new(),
            labels: create.labels,
            origin: None,
            epoch: 0,
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
        if !matches!(region.state, RegionState::Active | RegionState::Exposed | RegionState::Degraded) {
            return refuse("only an active region can grow".to_owned());
        }
        if region.growing() > 0 {
            return refuse("it is growing already".to_owned());
        }
        Self::check_unsealed(&region)?;
        let Some(more) = grow.size.0.checked_sub(region.size).filter(|more| *more > 0) else {
            let reason = format!("{} is not more than the {} it has", grow.size.0, region.size);
            return Err(ManagerError::out_of_range(format!("size of region {name}"), reason));
        };
        let owner = self.owner(&Owner::CnId(region.owner))?;
        self.check_quota(&owner, copied(more, region.protect))?;
        let Region { ways, granularity, protect, owner: cn, .. } = region;
        let shares = self.place(PlacementRequest {
            name,
            owner: cn,
            size: more,
            ways,
            granularity,
            protect,
            on: &grow.on,
        })?;
        self.add_legs(&mut region, owner, shares)?;
        self.map_new_legs(region, Some(format!("growing by {}", human_bytes(more))));
        Ok(())
    }

    /// Changes the labels of a region. The region may be in any state, and sealed: labels are not part of the
    /// content.
    pub(super) fn label_region(&mut self, name: &Name, order: &LabelRegion) -> Result<(), ManagerError> {
        let mut region = self.region(name)?.clone();
        region.labels = region.labels.changed(&order.set, &order.remove).map_err(|error| {
            ManagerError::out_of_range(format!("labels of region {name}"), error.to_string())
        })?;
        let reason = match region.labels.is_empty() {
            true => "it has no labels".to_owned(),
            false => format!("its labels are {}", region.labels),
        };
        self.store_region(region, Some(reason));
        Ok(())
    }

    /// Adds one decoder with its legs for each interleave set in `shares`, and allocates the legs' extents
    /// and CMem addresses.
    pub(super) fn add_legs(
        &mut self,
        region: &mut Region,
        mut owner: ComputeNode,
        shares: Vec<InterleaveSet>,
    ) -> Result<(), ManagerError> {
        if region.decoders.len() + shares.len() > DECODERS_MAX {
            let limit = DECODERS_MAX as u64;
            return Err(ManagerError::LimitReached { what: "decoders of a region", limit });
        }
        let extents = shares.iter().flat_map(|set| {
            let nodes = set.nodes.iter().chain(&set.mirrors);
            nodes.map(|node| (&node.name, set.bytes / node.extent_bytes))
        });
        self.check_record(&region.name, record_bytes(region), extents)?;
        let pieces = shares
            .iter()
            .flat_map(|s| s.nodes.iter().chain(&s.mirrors).map(|node| CmemSpan::on(node, s.bytes)));
        let bases = self.take_cmem(&mut owner, &pieces.collect::<Vec<_>>())?;
        let cn = owner.cn_id;
        self.put_owner(owner);
        let mut bases = bases.into_iter();
        for InterleaveSet { nodes, mirrors, bytes } in shares {
            let decoder = region.decoders.len() as u32;
            region.decoders.push(HdmDecoder {
                offset: region.bytes(),
                size: bytes * nodes.len() as u64,
                ways: region.ways,
                granularity: region.granularity,
                committed: false,
            });
            let firsts = (0..).zip(nodes).map(|(position, node)| (0, position, node));
            let seconds = (0..).zip(mirrors).map(|(position, node)| (1, position, node));
            for ((copy, position, node), cmem_base) in firsts.chain(seconds).zip(bases.by_ref()) {
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
                    copy,
                    cmem_base,
                    bytes,
                    extent_bytes: node.extent_bytes,
                    extents: extents.unwrap_or_default(),
                    incarnation: None,
                    state: LegState::Mapping,
                    moves_to: None,
                    former: None,
                    lent: None,
                    succeeds: None,
                });
            }
        }
        Ok(())
    }

    /// Refuses to add legs to a region whose record has `present` bytes, each with this number of extents on a memory node,
    /// if the store might not take the region's record then: free memory may be in very many pieces.
    pub(super) fn check_record<'a>(
        &self,
        name: &Name,
        present: u64,
        legs: impl Iterator<Item = (&'a Name, u64)>,
    ) -> Result<(), ManagerError> {
        let Some(limit) = self.options.record_bytes_max else { return Ok(()) };
        let (mut count, mut wanted) = (0, BTreeMap::<&Name, u64>::new());
        for (node, extents) in legs {
            count += 1;
            *wanted.entry(node).or_default() += extents;
        }
        // Where legs of one memory node share a run, it is divided between them.
        let runs = |(node, extents): (&&Name, &u64)| self.free.get(*node).map_or(0, |f| f.runs_of(*extents));
        let pieces = count + wanted.iter().map(runs).sum::<u64>();
        let bytes = present + count * LEG_RECORD_BYTES + pieces * RUN_RECORD_BYTES;
        if bytes > limit {
            return Err(ManagerError::TooFragmented { name: name.clone(), pieces, bytes, limit });
        }
        Ok(())
    }

    /// Stores a region with new legs, and sends their memory nodes the commands to map them.
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

    pub(super) fn check_quota(&self, owner: &ComputeNode, asked: u64) -> Result<(), ManagerError> {
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
        // A disabled region is not in use, even while its owner runs. One that was released only for a clone, a move or
        // a seal is: a compute node gets it back.
        let comes_back = region.release.is_some_and(|release| release.copy || release.to.is_some());
        let let_go = region.state == RegionState::Disabled && !comes_back;
        if !force {
            Self::check_unshared(&region)?;
        }
        if self.is_owner_present(&region) && !let_go && !force {
            return Err(ManagerError::RegionInUse { name: name.clone(), owner: region.owner });
        }
        self.drain(region, None);
        Ok(())
    }

    pub(super) fn is_owner_present(&self, region: &Region) -> bool {
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
        Self::check_unsealed(&region)?;
        let mut again = Vec::new();
        for position in live_positions(&region) {
            let lost = |at: &&usize| region.legs[**at].state == LegState::Lost;
            if position.iter().any(|at| region.legs[*at].is_in_sync()) {
                continue;
            }
            let Some(first) = position.iter().find(lost) else { continue };
            let reachable = |at: &&usize| self.is_reachable(&region.legs[**at].memory_node);
            let Some(at) = position.iter().filter(lost).find(reachable) else {
                let node = &region.legs[*first].memory_node;
                return refuse(format!("its memory node {node} must be reachable"));
            };
            let leg = &region.legs[*at];
            if self.is_being_handed_over(leg) {
                return refuse(format!("its memory node {} must answer first", leg.memory_node));
            }
            again.push((*at, position.clone()));
        }
        let mut commands = Vec::new();
        for (at, position) in again {
            // Other copies have older content, so they are unmapped too; a repair makes new ones.
            position.iter().for_each(|at| region.legs[*at].state = LegState::Unmapping);
            (region.legs[at].state, region.legs[at].succeeds) = (LegState::Mapping, None);
            commands.push(region.legs[at].clone());
        }
        self.settle(region.clone(), Some("reset: its content is discarded".to_owned()));
        for leg in commands {
            // A memory node refuses to map extents that it still maps for the former owner.
            match leg.former {
                Some(_) => self.unmap_former(&region, &leg),
                None => self.issue(&leg.memory_node, NodeAction::MapCmem(mapping_of(&region, &leg))),
            }
        }
        self.reissue_unmaps(&region, None);
        Ok(())
    }

    pub(super) fn is_reachable(&self, node: &Name) -> bool {
        self.state.memory_nodes.get(node).is_some_and(|node| node.health == Health::Reachable)
    }

    /// Begins to destroy a region: its owner must no longer use it, and its memory nodes unmap and zero it.
    pub(super) fn drain(&mut self, mut region: Region, reason: Option<String>) {
        region.state = RegionState::Draining;
        region.legs.iter_mut().for_each(|leg| leg.state = LegState::Unmapping);
        region.readers.iter_mut().for_each(|reader| reader.ends = true);
        self.store_region(region.clone(), reason);
        self.reissue_unmaps(&region, None);
        let nodes: BTreeSet<&Name> = region.legs.iter().map(|leg| &leg.memory_node).collect();
        nodes.into_iter().for_each(|node| self.device_emptied(node, region.owner));
        if region.release.is_some_and(|release| release.copy) {
            self.fail_clones_of(&region.name, "its source is being destroyed");
        }
        if let Some(origin) = &region.origin {
            self.give_back_cloned(&origin.region);
        }
    }

    /// Abandons a growth: the added part is unmapped and zeroed; the earlier part stays.
    pub(super) fn drain_growth(&mut self, mut region: Region, reason: String) {
        let decoders = region.decoders.clone();
        let added = |leg: &Leg| !decoders.get(leg.decoder as usize).is_some_and(|decoder| decoder.committed);
        let legs = region.legs.iter_mut().filter(|leg| added(leg));
        legs.for_each(|leg| leg.state = LegState::Unmapping);
        self.store_region(region.clone(), Some(format!("it did not grow: {reason}")));
        self.reissue_unmaps(&region, None);
    }

    /// Frees the memory of a leg that was unmapped and zeroed.
    pub(super) fn leg_gone(&mut self, mut region: Region, at: usize) {
        let leg = region.legs.remove(at);
        // When the memory node unmapped the leg, it also ended the shares, by which other compute nodes read the leg.
        let mut read = Vec::new();
        for reader in &mut region.readers {
            if at < reader.legs.len() {
                read.push((reader.cn, reader.legs.remove(at).cmem_base));
            }
        }
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
            self.settle(region, None);
        }
        self.retire_cmem(owner, leg.cmem_base, leg.bytes);
        // The leg was unmapped for its owner, so it is not mapped for the former owner either: each extent has one
        // mapping.
        if let Some(former) = leg.former.filter(|_| leg.lent.is_none()) {
            self.retire_cmem(former.cn, former.cmem_base, leg.bytes);
        }
        read.into_iter().for_each(|(cn, cmem_base)| self.retire_cmem(cn, cmem_base, leg.bytes));
        self.device_emptied(&leg.memory_node, owner);
    }

    /// Sends unmap commands for the legs that are to be unmapped and have no pending command, because none
    /// was sent yet or the last one failed. `only` limits the commands to one memory node.
    pub(super) fn reissue_unmaps(&mut self, region: &Region, only: Option<&Name>) {
        for leg in region.legs.iter().filter(|leg| leg.state == LegState::Unmapping) {
            if only.is_some_and(|node| *node != leg.memory_node) {
                continue;
            }
            if leg.former.is_some() && !self.is_being_handed_over(leg) {
                self.unmap_former(region, leg);
                continue;
            }
            let action = NodeAction::UnmapCmem(mapping_of(region, leg));
            if !self.index.is_pending(&self.state, &leg.memory_node, &action) {
                self.issue(&leg.memory_node, action);
            }
        }
    }

    /// Derives the state of a region from its legs and nodes, and stores the region. Commits the new decoders if all
    /// their legs are mapped.
    pub(super) fn settle(&mut self, mut region: Region, mut reason: Option<String>) {
        let mapped = |region: &Region| {
            let added = region.legs.iter().filter(|leg| !region.is_committed(leg));
            let wanted = region.decoders.iter().filter(|decoder| !decoder.committed);
            let wanted: u32 =
                wanted.map(|decoder| decoder.ways.count() * u32::from(region.protect.copies())).sum();
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

    pub(super) fn state_of(&self, region: &Region) -> RegionState {
        if let Some(release) = region.release {
            if release.done { RegionState::Disabled } else { RegionState::Releasing }
        } else {
            self.state_of_legs(region)
        }
    }

    /// Stores a region if it has changed, and makes an event if the owner or a reader must receive the
    /// change.
    pub(super) fn store_region(&mut self, mut region: Region, reason: Option<String>) {
        let before = self.state.regions.get(&region.name);
        if let Some(before) = before {
            let changed = before.size > 0 && !same_in_sync(before, &region);
            region.epoch = before.epoch.max(region.epoch) + u64::from(changed);
        }
        if before == Some(&region) {
            // The record has not changed, but a memory node of the region may have become unreachable or drained, in
            // which case a repair is due.
            self.note_repair(&region);
            return;
        }
        let (name, owner, state) = (region.name.clone(), region.owner, region.state);
        let readers_before = before.into_iter().flat_map(|before| &before.readers);
        let readers: BTreeSet<CnId> = readers_before.chain(&region.readers).map(|reader| reader.cn).collect();
        let told =
            reason.is_some() || before.is_none_or(|before| before.state != state) || !readers.is_empty();
        self.note_repair(&region);
        self.put(Change::Region(region));
        if told {
            self.region_event(owner, EventKind::RegionChanged { region: name, owner, state, reason });
        }
        let seq = self.state.meta.last_event;
        readers.into_iter().for_each(|reader| self.regions_changed_at(reader, seq));
    }

    /// Makes an event for a compute node, and records its number as the latest change of that node's regions.
    pub(super) fn region_event(&mut self, owner: CnId, kind: EventKind) {
        let seq = self.event(kind);
        self.regions_changed_at(owner, seq);
    }

    fn regions_changed_at(&mut self, cn: CnId, seq: u64) {
        if let Some(mut node) = self.state.compute_nodes.get(&cn).cloned() {
            node.regions_event = seq;
            self.put(Change::ComputeNode(node));
        }
    }
}

/// Returns the bytes of memory nodes that a region of this size uses, with all copies.
fn copied(size: u64, protect: Protection) -> u64 {
    size.saturating_mul(u64::from(protect.copies()))
}

/// Upper bound of the size of a region's record in the store.
pub(super) fn record_bytes(region: &Region) -> u64 {
    let present = serde_json::to_vec(region).map_or(0, |record| record.len() as u64);
    present.max(REGION_RECORD_BYTES)
}

//! Repairs of regions. A repair adds a second copy to a region that is to be mirrored, a spare for a copy on a memory
//! node that stays unreachable, or a copy elsewhere for a leg (a region's part on one memory node) that must leave its
//! memory node (`moving`).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use cxloe_fabric::api::{Owner, ProtectRegion};
use cxloe_fabric::model::{
    DeviceKind, EventKind, Leg, LegState, Loan, MemoryNode, Name, NodeAction, Protection, Region, RegionState,
};

use super::cmem::CmemSpan;
use super::memory_nodes::mapping_of;
use super::mirror::{is_live, live_positions};
use super::regions::record_bytes;
use super::{Change, Manager, ManagerError};

/// Minimum time between two attempts to repair a region, in milliseconds. The registration of a memory node
/// ends the pause early.
const RETRY_MS: u64 = 30_000;
/// Maximum number of regions that one tick tries to repair; the rest waits for the next tick.
const REGIONS_PER_TICK: usize = 64;

/// Regions that lack a copy, or have one on a memory node that is unreachable or drained. Not stored.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    regions: BTreeMap<Name, PendingRepair>,
}

#[derive(Debug, Default)]
struct PendingRepair {
    /// For each leg on an unreachable memory node, by CMem address: time at which the memory node became unreachable,
    /// in milliseconds since the Unix epoch.
    away_since_ms: BTreeMap<u64, u64>,
    /// True if the repair starts without waiting for an unreachable memory node to return.
    at_once: bool,
    /// Time before which no attempt is made, in milliseconds since the Unix epoch.
    not_before_ms: u64,
    /// True if an event has reported that no memory node has room.
    reported: bool,
    /// True if memory nodes make the copy, because the region is at rest.
    by_nodes: bool,
}

impl PendingRepair {
    fn due_ms(&self, rebuild_after_ms: u64) -> Option<u64> {
        let away = self.away_since_ms.values().min().filter(|_| rebuild_after_ms > 0);
        let away = away.map(|since| since.saturating_add(rebuild_after_ms));
        let due = if self.at_once { Some(0) } else { away };
        due.map(|due| due.max(self.not_before_ms))
    }
}

/// Position in the interleave set of a region that is to get another leg (a copy of its part).
struct WantedCopy {
    /// Index, among the region's legs, of the leg of this position that stays.
    keeps: usize,
    /// Index of the leg that the new one replaces; `None` if the position has one leg only.
    replaces: Option<usize>,
}

impl Manager {
    /// Returns the time of the next attempt to repair a region, in milliseconds since the Unix epoch.
    pub(super) fn next_repair_ms(&self) -> Option<u64> {
        let after = self.options.rebuild_after_ms;
        self.repairs.regions.values().filter_map(|repair| repair.due_ms(after)).min()
    }

    /// Returns the names of the regions that lack a copy for which no memory node has room.
    pub fn without_spare(&self) -> impl Iterator<Item = &Name> {
        let reported = self.repairs.regions.iter().filter(|(_, repair)| repair.reported);
        reported.map(|(name, _)| name)
    }

    /// Returns true if no memory node has room for a copy that the region lacks.
    pub(super) fn lacks_spare(&self, region: &Name) -> bool {
        self.repairs.regions.get(region).is_some_and(|repair| repair.reported)
    }

    /// Records whether a region needs a repair. Called with each stored record of a region.
    pub(super) fn note_repair(&mut self, region: &Region) {
        self.fills.note_change(region);
        let (mut at_once, mut away) = (false, Vec::new());
        let concerned = may_need_repair(region) || region.legs.iter().any(|leg| self.leaves(leg));
        let by_nodes = concerned && self.nodes_copy(region);
        // No agent can fill a copy of a sealed region.
        let concerned = concerned && (!region.sealed || by_nodes);
        if concerned && region.state != RegionState::Draining {
            for position in live_positions(region) {
                at_once |= position.len() < usize::from(region.protect.copies());
                for at in &position {
                    let leg = &region.legs[*at];
                    at_once |= self.leaves(leg);
                    at_once |= position.len() > 1 && leg.state == LegState::Lost;
                    if position.len() > 1 && !self.is_reachable(&leg.memory_node) {
                        away.push(leg.cmem_base);
                    }
                }
            }
        }
        if !at_once && away.is_empty() {
            self.repairs.regions.remove(&region.name);
            return;
        }
        let repair = self.repairs.regions.entry(region.name.clone()).or_default();
        repair.at_once = at_once;
        if std::mem::replace(&mut repair.by_nodes, by_nodes) != by_nodes {
            repair.not_before_ms = 0;
        }
        repair.away_since_ms.retain(|base, _| away.contains(base));
        for base in away {
            repair.away_since_ms.entry(base).or_insert(self.now_ms);
        }
    }

    /// Records the repairs that regions need, after the whole state was replaced.
    pub(super) fn note_repairs(&mut self) {
        self.repairs.regions.retain(|name, _| self.state.regions.contains_key(name));
        let regions: Vec<Region> =
            self.state.regions.values().filter(|r| may_need_repair(r)).cloned().collect();
        regions.iter().for_each(|region| self.note_repair(region));
        let drained: Vec<Name> = self
            .state
            .memory_nodes
            .values()
            .filter(|node| node.draining)
            .map(|node| node.name.clone())
            .collect();
        for node in drained {
            self.regions_on(&node).iter().for_each(|region| self.note_repair(region));
        }
    }

    pub(super) fn repair_due(&mut self) {
        let (after, now_ms) = (self.options.rebuild_after_ms, self.now_ms);
        let due = |repair: &PendingRepair| repair.due_ms(after).is_some_and(|due| due <= now_ms);
        let due = self.repairs.regions.iter().filter(|(_, repair)| due(repair)).map(|(name, _)| name.clone());
        let due: Vec<Name> = due.take(REGIONS_PER_TICK).collect();
        for name in due {
            let no_room = self.repair(&name);
            let Some(repair) = self.repairs.regions.get_mut(&name) else { continue };
            repair.not_before_ms = now_ms.saturating_add(RETRY_MS);
            // One event for each time that room is missing, not one for each attempt.
            let first = no_room.is_some() && !repair.reported;
            repair.reported = no_room.is_some();
            if let Some(reason) = no_room.filter(|_| first)
                && let Some(owner) = self.state.regions.get(&name).map(|region| region.owner)
            {
                self.event(EventKind::SpareMissing { region: name, owner, reason });
            }
        }
    }

    /// Repairs one region as far as possible. Returns the reason if no memory node has room for a copy.
    fn repair(&mut self, name: &Name) -> Option<String> {
        let Some(region) = self.state.regions.get(name).cloned() else {
            self.repairs.regions.remove(name);
            return None;
        };
        let by_nodes = self.nodes_copy(&region);
        let in_use =
            matches!(region.state, RegionState::Active | RegionState::Exposed | RegionState::Degraded);
        let in_use = in_use || by_nodes && region.state == RegionState::Disabled;
        if !in_use || region.growing() > 0 || region.sealed && !by_nodes {
            return None;
        }
        let region = if by_nodes { self.drop_unfilled(region) } else { region };
        let mut no_room = None;
        for wanted in self.wanted_copies(&region) {
            let Some(region) = self.state.regions.get(name).cloned() else { break };
            let target = |at: usize| region.legs[at].moves_to.clone();
            let on = wanted.replaces.and_then(target).or_else(|| target(wanted.keeps));
            let on: Vec<Name> = on.into_iter().collect();
            if let Err(error) = self.make_copies(region, &[wanted], &on) {
                no_room = Some(error.to_string());
            }
        }
        no_room
    }

    /// Unmaps the stale legs with which the owner's agent was to move a region that is at rest now, and returns the
    /// region. Memory nodes fill only legs that no agent knows.
    fn drop_unfilled(&mut self, mut region: Region) -> Region {
        let mut dropped = Vec::new();
        for position in live_positions(&region) {
            let [one, other] = position[..] else { continue };
            let is_unfilled = |(at, keeps): &(usize, usize)| {
                let (leg, kept) = (&region.legs[*at], &region.legs[*keeps]);
                let unfilled = matches!(leg.state, LegState::Mapping | LegState::Stale) && leg.lent.is_none();
                unfilled && kept.is_in_sync() && self.leaves(kept) && self.is_reachable(&kept.memory_node)
            };
            let found = [(one, other), (other, one)].into_iter().find(is_unfilled);
            dropped.extend(found.map(|(at, _)| at));
        }
        if !dropped.is_empty() {
            dropped.iter().for_each(|at| region.legs[*at].state = LegState::Unmapping);
            self.settle(region.clone(), Some("memory nodes copy it, as nobody uses it".to_owned()));
            self.reissue_unmaps(&region, None);
        }
        region
    }

    /// Returns the copies that a region needs at present. Their indexes stay valid, because new legs are
    /// appended.
    fn wanted_copies(&self, region: &Region) -> Vec<WantedCopy> {
        let movable = self.is_owner_present(region) || self.nodes_copy(region);
        let leaves = |leg: &Leg| movable && self.leaves(leg);
        let since = self.repairs.regions.get(&region.name).map(|repair| &repair.away_since_ms);
        let after = self.options.rebuild_after_ms;
        let is_away = |leg: &Leg| {
            let since = since.and_then(|since| since.get(&leg.cmem_base));
            after > 0 && since.is_some_and(|since| since.saturating_add(after) <= self.now_ms)
        };
        let mut wanted = Vec::new();
        for position in live_positions(region) {
            match position[..] {
                [only]
                    if region.legs[only].is_in_sync()
                        && (region.protect == Protection::Mirror || leaves(&region.legs[only])) =>
                {
                    wanted.push(WantedCopy { keeps: only, replaces: None });
                }
                [one, other] => {
                    let replaceable = |(at, keeps): &(usize, usize)| {
                        let (leg, kept) = (&region.legs[*at], &region.legs[*keeps]);
                        // In a region with one copy, `drop_surplus` removes the leg that has moved.
                        let moved =
                            leaves(leg) && (region.protect == Protection::Mirror || !leg.is_in_sync());
                        // A copy was begun, and then the leg that it is made from was ordered to another node.
                        let misplaced = movable
                            && region.protect == Protection::None
                            && !leg.is_in_sync()
                            && kept.moves_to.as_ref().is_some_and(|to| *to != leg.memory_node);
                        kept.is_in_sync()
                            && self.is_reachable(&kept.memory_node)
                            && (is_away(leg) || moved || misplaced || leg.state == LegState::Lost)
                    };
                    let found = [(one, other), (other, one)].into_iter().find(replaceable);
                    wanted.extend(found.map(|(at, keeps)| WantedCopy { keeps, replaces: Some(at) }));
                }
                _ => {}
            }
        }
        wanted
    }

    /// Adds a leg to each of these positions, or to none if no memory node has room for one of them.
    fn make_copies(
        &mut self,
        mut region: Region,
        wanted: &[WantedCopy],
        on: &[Name],
    ) -> Result<(), ManagerError> {
        let mut taken: BTreeMap<Name, u64> = BTreeMap::new();
        let mut nodes = Vec::new();
        for copy in wanted {
            let node = self.node_for_copy(&region, copy, on, &taken)?;
            *taken.entry(node.name.clone()).or_default() += region.legs[copy.keeps].bytes;
            nodes.push(node);
        }
        let extents = wanted
            .iter()
            .zip(&nodes)
            .map(|(copy, node)| (&node.name, region.legs[copy.keeps].bytes / node.extent_bytes));
        self.check_record(&region.name, record_bytes(&region), extents)?;
        let mut owner = self.owner(&Owner::CnId(region.owner))?;
        let span =
            |(copy, node): (&WantedCopy, &MemoryNode)| CmemSpan::on(node, region.legs[copy.keeps].bytes);
        let spans: Vec<CmemSpan> = wanted.iter().zip(&nodes).map(span).collect();
        let bases = self.take_cmem(&mut owner, &spans)?;
        self.put(Change::ComputeNode(owner));
        let by_nodes = self.nodes_copy(&region);
        let mut added = Vec::new();
        for ((copy, node), cmem_base) in wanted.iter().zip(nodes).zip(bases) {
            self.ensure_bound(&node, region.owner);
            let kept = region.legs[copy.keeps].clone();
            let align = kept.extent_bytes.max(node.extent_bytes);
            let lent = self.borrower_id(&node).filter(|_| by_nodes).map(|cn| {
                let cmem_base = self.take_loan_base(&node.name, cn, kept.bytes, align);
                Loan { cn, cmem_base, ends: false }
            });
            let free = self.free.get_mut(&node.name);
            let extents = free.and_then(|free| free.take(kept.bytes / node.extent_bytes));
            let replaces = copy.replaces.map(|at| {
                region.legs[at].state = LegState::Unmapping;
                region.legs[at].memory_node.clone()
            });
            if region.protect == Protection::None
                && let Some(to) = &mut region.legs[copy.keeps].moves_to
            {
                // An order for the leg that is replaced leads elsewhere.
                to.clone_from(&node.name);
            }
            let leg = Leg {
                memory_node: node.name.clone(),
                macs: node.macs,
                udp: node.udp,
                mn_key: node.key,
                copy: 1 - kept.copy,
                cmem_base,
                extent_bytes: node.extent_bytes,
                extents: extents.unwrap_or_default(),
                incarnation: None,
                state: LegState::Mapping,
                moves_to: None,
                former: None,
                lent,
                succeeds: None,
                ..kept
            };
            added.push((leg.clone(), replaces));
            region.legs.push(leg);
        }
        self.settle(region.clone(), None);
        for (leg, replaces) in added {
            let (memory_node, owner) = (leg.memory_node.clone(), region.owner);
            self.issue(&memory_node, NodeAction::MapCmem(mapping_of(&region, &leg)));
            self.region_event(
                owner,
                EventKind::SpareAdded { region: region.name.clone(), owner, memory_node, replaces },
            );
        }
        self.reissue_unmaps(&region, None);
        Ok(())
    }

    /// Returns the memory node with the most free memory among those that can hold the copy.
    fn node_for_copy(
        &self,
        region: &Region,
        copy: &WantedCopy,
        on: &[Name],
        taken: &BTreeMap<Name, u64>,
    ) -> Result<MemoryNode, ManagerError> {
        if let Some(unknown) = on.iter().find(|name| !self.state.memory_nodes.contains_key(*name)) {
            return Err(ManagerError::NoMemoryNode(unknown.clone()));
        }
        let kept = &region.legs[copy.keeps];
        // Racks matter only between two copies: a leg that only moves may stay in its rack.
        let mirrored = region.protect == Protection::Mirror;
        let rack = self.rack_of(&kept.memory_node).filter(|_| mirrored);
        let there = |node: &MemoryNode| {
            let at_position = |leg: &&Leg| (leg.decoder, leg.position) == (kept.decoder, kept.position);
            region.legs.iter().filter(at_position).any(|leg| is_live(leg) && leg.memory_node == node.name)
        };
        let room = |node: &MemoryNode| {
            let available = self.available(node, region.owner);
            available.saturating_sub(taken.get(&node.name).copied().unwrap_or_default())
        };
        let nodes = self.state.memory_nodes.values().filter(|node| self.takes_legs(node));
        let nodes = nodes.filter(|node| on.is_empty() || on.contains(&node.name));
        let by_nodes = self.nodes_copy(region);
        let nodes = nodes.filter(|node| !by_nodes || self.borrower_id(node).is_some());
        let nodes = nodes.filter(|node| !there(node) && kept.bytes.is_multiple_of(node.extent_bytes));
        let nodes: Vec<&MemoryNode> = nodes.filter(|node| room(node) >= kept.bytes).collect();
        let apart = |node: &&&MemoryNode| {
            rack.is_none_or(|rack| node.rack.as_ref().is_none_or(|other| other != rack))
        };
        // The first use of a memory node without slices takes the whole of it, so such a node is chosen last.
        let fresh = |node: &MemoryNode| {
            self.kind_of(node) == DeviceKind::Sld && self.index.ld_of(region.owner, &node.name).is_none()
        };
        let best =
            nodes.iter().filter(apart).min_by_key(|node| (fresh(node), Reverse(room(node)), &node.name));
        best.map(|node| (*node).clone()).ok_or_else(|| ManagerError::NoOtherNode {
            name: region.name.clone(),
            bytes: kept.bytes,
            memory_node: kept.memory_node.clone(),
            one_rack: !nodes.is_empty(),
        })
    }

    pub(super) fn rack_of(&self, memory_node: &Name) -> Option<&Name> {
        self.state.memory_nodes.get(memory_node)?.rack.as_ref()
    }

    pub(super) fn protect_region(
        &mut self,
        name: &Name,
        protect: &ProtectRegion,
    ) -> Result<(), ManagerError> {
        let mut region = self.region(name)?.clone();
        let in_use =
            matches!(region.state, RegionState::Active | RegionState::Exposed | RegionState::Degraded);
        let refuse = |reason: &str| {
            Err(ManagerError::WrongState {
                name: name.clone(),
                state: region.state,
                reason: reason.to_owned(),
            })
        };
        if !in_use {
            return refuse("only a region in use can change its protection");
        }
        if region.growing() > 0 {
            return refuse("it is growing");
        }
        if region.protect == protect.protect {
            return Ok(());
        }
        Self::check_unsealed(&region)?;
        let owner = self.owner(&Owner::CnId(region.owner))?;
        if protect.protect == Protection::Mirror {
            self.check_quota(&owner, region.bytes())?;
            let mut wanted = Vec::new();
            for position in live_positions(&region) {
                match position[..] {
                    [only] if region.legs[only].is_in_sync() => {
                        wanted.push(WantedCopy { keeps: only, replaces: None });
                    }
                    [_, _] => {}
                    _ => return refuse("a part of it has no copy in sync"),
                }
            }
            region.protect = Protection::Mirror;
            self.make_copies(region, &wanted, &protect.on)?;
        } else {
            region.protect = Protection::None;
            self.settle(region, None);
            self.drop_surplus(name);
        }
        let (region, owner, protect) = (name.clone(), owner.cn_id, protect.protect);
        self.region_event(owner, EventKind::ProtectionChanged { region, owner, protect });
        Ok(())
    }

    /// Ends the pause between attempts to repair one region, because another order for it has come.
    pub(super) fn repair_now(&mut self, region: &Name) {
        if let Some(repair) = self.repairs.regions.get_mut(region) {
            repair.not_before_ms = 0;
        }
    }

    /// Ends the pause between attempts, because a memory node that registered may have room.
    pub(super) fn repair_again(&mut self) {
        self.repairs.regions.values_mut().for_each(|repair| repair.not_before_ms = 0);
    }

    /// Delays the repair of a region after a memory node refused to map a leg of it.
    pub(super) fn repair_later(&mut self, name: &Name) {
        if let Some(repair) = self.repairs.regions.get_mut(name) {
            repair.not_before_ms = self.now_ms.saturating_add(RETRY_MS);
        }
    }
}

/// Returns true if a region has or is to have two copies, even if only during a move.
fn may_need_repair(region: &Region) -> bool {
    region.protect == Protection::Mirror || region.legs.iter().any(|leg| leg.copy > 0 && is_live(leg))
}

//! Legs (parts of a region on one memory node) that leave their memory node while the region is used, by an order for
//! the region or because the node is drained. Such a leg gets a copy elsewhere (`repair`), which the owner's agent
//! fills, or its memory node if nobody uses the region (`node_fill`); then the leg is unmapped.

use cxloe_fabric::api::RelocateRegion;
use cxloe_fabric::model::{EventKind, Leg, LegState, MemoryNode, Name, Protection, Region, RegionState};

use super::mirror::{is_live, live_positions, other_is_in_sync};
use super::{Change, Manager, ManagerError};

impl Manager {
    /// For a region that is to have one copy: unmaps one leg of each position that has two, unless this leg is still
    /// being filled with the content of the other one, which is to leave its memory node. Chooses the leg that is not
    /// in sync, or else the one that no memory node serves at present, because what it has is out of reach once the
    /// other one is zeroed; or else the one that is to leave its memory node, or else copy 1.
    pub(super) fn drop_surplus(&mut self, name: &Name) {
        let Some(mut region) = self.state.regions.get(name).cloned() else { return };
        if region.protect != Protection::None || region.state == RegionState::Draining {
            return;
        }
        let mut surplus = Vec::new();
        for position in live_positions(&region) {
            let [one, other] = position[..] else { continue };
            let rank = |at: usize| {
                let leg = &region.legs[at];
                (!leg.is_in_sync(), !self.is_served(leg), self.leaves(leg), leg.copy)
            };
            let (at, stays) = if rank(one) > rank(other) { (one, other) } else { (other, one) };
            let (leg, kept) = (&region.legs[at], &region.legs[stays]);
            let moving = self.leaves(kept) && !leg.is_in_sync() && !self.leaves(leg);
            if other_is_in_sync(&region, at) && kept.former.is_none() && !moving {
                surplus.push(at);
            }
        }
        if surplus.is_empty() {
            return;
        }
        surplus.iter().for_each(|at| region.legs[*at].state = LegState::Unmapping);
        self.settle(region.clone(), Some("a copy of it is given up".to_owned()));
        self.reissue_unmaps(&region, None);
    }

    /// Returns true if a leg is to leave its memory node: by an order, or because the node is drained.
    pub(super) fn leaves(&self, leg: &Leg) -> bool {
        leg.moves_to.is_some()
            || self.state.memory_nodes.get(&leg.memory_node).is_some_and(|node| node.draining)
    }

    /// Begins to move a region's legs from one memory node to another, or stops the move.
    pub(super) fn relocate_region(
        &mut self,
        name: &Name,
        relocate: &RelocateRegion,
    ) -> Result<(), ManagerError> {
        let mut region = self.region(name)?.clone();
        let from = self.memory_node(&relocate.from)?.name.clone();
        let here = |leg: &Leg| leg.memory_node == from && is_live(leg);
        let legs: Vec<usize> = (0..region.legs.len()).filter(|at| here(&region.legs[*at])).collect();
        let to = relocate.to.as_ref().map(|to| self.memory_node(to)).transpose()?.cloned();
        if let Some(to) = &to {
            self.check_relocation(&region, &from, &legs, to)?;
        }
        let to = to.map(|node| node.name);
        if legs.iter().all(|at| region.legs[*at].moves_to == to) {
            return Ok(());
        }
        legs.iter().for_each(|at| region.legs[*at].moves_to.clone_from(&to));
        let (owner, stops) = (region.owner, to.is_none());
        self.settle(region, None);
        self.repair_now(name);
        if stops {
            self.drop_surplus(name);
        }
        let region = name.clone();
        self.region_event(owner, EventKind::RegionRelocating { region, owner, memory_node: from, to });
        Ok(())
    }

    fn check_relocation(
        &self,
        region: &Region,
        from: &Name,
        legs: &[usize],
        to: &MemoryNode,
    ) -> Result<(), ManagerError> {
        let refuse = |reason: String| {
            Err(ManagerError::WrongState { name: region.name.clone(), state: region.state, reason })
        };
        let in_use =
            matches!(region.state, RegionState::Active | RegionState::Exposed | RegionState::Degraded);
        let by_nodes = self.nodes_copy(region);
        let in_use = in_use || by_nodes && region.state == RegionState::Disabled;
        if !in_use || region.growing() > 0 {
            return refuse("only a region in use that does not grow can move".to_owned());
        }
        if !by_nodes {
            Self::check_unsealed(region)?;
        }
        if legs.is_empty() {
            return refuse(format!("no part of it lies on {from}"));
        }
        if !self.takes_legs(to) {
            return refuse(format!("{} takes no regions: it is unreachable, or is drained", to.name));
        }
        let position = |leg: &Leg| (leg.decoder, leg.position);
        let has_copy_of = |one: &Leg| {
            let mut there = region.legs.iter().filter(|leg| leg.memory_node == to.name && is_live(leg));
            there.any(|leg| position(leg) == position(one))
        };
        // A copy that this move has already begun to make is not an obstacle.
        let begun = |leg: &Leg| leg.moves_to.as_ref() == Some(&to.name);
        if legs.iter().map(|at| &region.legs[*at]).any(|leg| has_copy_of(leg) && !begun(leg)) {
            return refuse(format!("a copy of its part on {from} lies on {}", to.name));
        }
        let others = region.legs.iter().filter(|leg| is_live(leg) && leg.memory_node != *from);
        let mut others = others.filter(|leg| region.protect == Protection::Mirror && !begun(leg));
        let same_rack = |leg: &Leg| to.rack.is_some() && self.rack_of(&leg.memory_node) == to.rack.as_ref();
        let mirrors_one = |leg: &Leg| legs.iter().any(|at| position(&region.legs[*at]) == position(leg));
        if let Some(leg) = others.find(|leg| mirrors_one(leg) && same_rack(leg)) {
            return refuse(format!("its other copy, on {}, is in the rack of {}", leg.memory_node, to.name));
        }
        let missing = legs.iter().map(|at| &region.legs[*at]).filter(|leg| !has_copy_of(leg));
        let bytes: u64 = missing.map(|leg| leg.bytes).sum();
        let fits = legs.iter().all(|at| region.legs[*at].bytes.is_multiple_of(to.extent_bytes));
        let free = self.available(to, region.owner);
        if !fits || free < bytes {
            let (name, memory_node) = (region.name.clone(), to.name.clone());
            return Err(ManagerError::NoRoomThere {
                name,
                bytes,
                memory_node,
                free,
                extent: to.extent_bytes,
            });
        }
        Ok(())
    }

    /// Begins to move the legs on a memory node to others, or stops these moves.
    pub(super) fn drain_memory_node(&mut self, name: &Name, draining: bool) -> Result<(), ManagerError> {
        let mut node = self.memory_node(name)?.clone();
        if node.draining == draining {
            return Ok(());
        }
        node.draining = draining;
        self.put(Change::MemoryNode(node));
        let memory_node = name.clone();
        self.event(match draining {
            true => EventKind::MemoryNodeDraining { memory_node },
            false => EventKind::MemoryNodeDrainStopped { memory_node },
        });
        for region in self.regions_on(name) {
            self.note_repair(&region);
            if !draining {
                self.drop_surplus(&region.name);
            }
        }
        Ok(())
    }
}

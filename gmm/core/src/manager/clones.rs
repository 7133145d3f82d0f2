//! Clones and snapshots: regions that begin with the content of another one. Memory nodes copy it page by page, each
//! within its own pool, while both regions may be in use; each part of the clone is on the memory node of the part that
//! it copies.
//!
//! ```text
//!   source, in use:  Active -> Releasing (its owner writes back, detaches) -> Disabled ---------------------> Active
//!                                                                              |  each memory node: clone       ^
//!   clone:           Creating, waits ------------------------------------> Creating -- all have confirmed --> Active
//! ```
//!
//! A region that is sealed or disabled is cloned at once. A snapshot is a clone that is sealed from the beginning.
//! Until all memory nodes have confirmed, no compute node writes the source, so the clone has its content at one
//! moment.

use cxloe_fabric::api::{CloneRegion, Owner};
use cxloe_fabric::model::{
    CloneCmem, CnId, Labels, Leg, LegState, Name, NodeAction, Origin, Protection, Region, RegionState,
    Release, UnbindOption,
};

use super::hand_over::wrong_state;
use super::memory_nodes::mapping_of;
use super::placement::InterleaveSet;
use super::{Manager, ManagerError};

impl Manager {
    /// Creates a clone of a region. If the owner of the source may be writing to it, the owner releases the
    /// source first, and gets it back afterwards.
    pub(super) fn clone_region(&mut self, name: &Name, order: &CloneRegion) -> Result<(), ManagerError> {
        let mut source = self.region(name)?.clone();
        let owner = order.owner.clone().unwrap_or(Owner::CnId(source.owner));
        let owner = self.owner(&owner)?;
        let unwritten = self.check_clone(&source, order.force)?;
        self.check_new_region(&order.name, &owner, source.size)?;
        let sets = self.sets_like(&source, &order.name, owner.cn_id)?;
        let mut region = Region {
            name: order.name.clone(),
            owner: owner.cn_id,
            size: 0,
            state: RegionState::Creating,
            decoders: Vec::new(),
            legs: Vec::new(),
            release: None,
            failure: None,
            uid: order.uid.or(source.uid),
            protect: Protection::default(),
            sealed: order.sealed,
            readers: Vec::new(),
            labels: Labels::default(),
            origin: Some(Origin { region: name.clone(), waits: true }),
            epoch: 0,
            created_ms: self.now_ms,
            ..source.clone()
        };
        self.add_legs(&mut region, owner, sets)?;
        self.store_region(region, Some(format!("it is a clone of region {name}")));
        if is_still(&source) {
            self.begin_clone(&order.name);
            return Ok(());
        }
        if source.release.is_none() {
            if unwritten {
                self.writes_may_differ(name, "its owner stopped while it may have been writing");
                source = self.region(name)?.clone();
            }
            // If the owner's agent does not run, there is no release to wait for.
            let done = !self.is_owner_present(&source);
            let option = UnbindOption::Managed;
            source.release =
                Some(Release { option, destroy: false, done, to: None, seal: false, copy: true });
            self.settle(source, Some(format!("region {} is made from it", order.name)));
        }
        self.begin_clones_of(name);
        Ok(())
    }

    /// Checks that a region can be cloned. Returns true if the region's owner may have changes that are not
    /// written back yet.
    fn check_clone(&self, region: &Region, force: bool) -> Result<bool, ManagerError> {
        let refuse = |reason: &str| Err(wrong_state(region, reason.to_owned()));
        let ends = region.release.is_some_and(|release| release.destroy);
        if ends
            || matches!(region.state, RegionState::Draining | RegionState::Creating)
            || region.growing() > 0
        {
            return refuse("only a region in use that does not grow can be cloned");
        }
        match region.release {
            Some(Release { to: Some(_), .. }) => {
                return refuse("it moves to another compute node, or is being sealed");
            }
            Some(Release { done: false, copy: false, .. }) if !region.sealed => {
                return refuse("its owner has not released it yet: clone it once it is disabled");
            }
            _ => {}
        }
        let here =
            |decoder: u32, position: u32| region.legs.iter().any(|leg| is_source(leg, decoder, position));
        let decoders = (0..).zip(&region.decoders);
        let mut positions =
            decoders.flat_map(|(at, decoder)| (0..decoder.ways.count()).map(move |position| (at, position)));
        if !positions.all(|(decoder, position)| here(decoder, position)) {
            return refuse("parts of it are lost, or are being moved");
        }
        if is_still(region) || region.release.is_some() || self.is_owner_present(region) {
            return Ok(false);
        }
        let unwritten = !self.state.compute_nodes.get(&region.owner).is_some_and(|owner| owner.settled);
        if unwritten && !force {
            return Err(wrong_state(
                region,
                format!(
                    "the agent of its owner {} is unreachable and may have changes that it has not written back; `--force` \
                     clones what the memory nodes have",
                    region.owner
                ),
            ));
        }
        Ok(unwritten)
    }

    /// Returns the interleave sets of a clone, on the same memory nodes as `source`, after a check that each
    /// of these nodes has room for its part.
    fn sets_like(
        &self,
        source: &Region,
        name: &Name,
        owner: CnId,
    ) -> Result<Vec<InterleaveSet>, ManagerError> {
        let mut sets = Vec::new();
        for (at, decoder) in (0..).zip(&source.decoders) {
            let parts = (0..decoder.ways.count())
                .filter_map(|position| source.legs.iter().find(|leg| is_source(leg, at, position)));
            let nodes: Result<Vec<_>, ManagerError> =
                parts.map(|leg| self.memory_node(&leg.memory_node).cloned()).collect();
            sets.push(InterleaveSet {
                nodes: nodes?,
                mirrors: Vec::new(),
                bytes: decoder.size / u64::from(decoder.ways.count()),
            });
        }
        for node in sets.iter().flat_map(|set| &set.nodes) {
            let of_node = |set: &InterleaveSet| {
                set.nodes.iter().filter(|other| other.name == node.name).count() as u64 * set.bytes
            };
            let size = sets.iter().map(of_node).sum();
            let free = if self.takes_legs(node) { self.available(node, owner) } else { 0 };
            if free < size {
                let (region, node) = (name.clone(), node.name.clone());
                return Err(ManagerError::NoRoomForClone { region, node, size, free });
            }
        }
        Ok(sets)
    }

    /// Begins the clones that wait for `source`, if no compute node can write it any more.
    pub(super) fn begin_clones_of(&mut self, source: &Name) {
        if !self.state.regions.get(source).is_some_and(is_still) {
            return;
        }
        for name in self.waiting_for(source) {
            self.begin_clone(&name);
        }
        self.give_back_cloned(source);
    }

    /// Sends each memory node the command to clone its part of the source.
    fn begin_clone(&mut self, name: &Name) {
        let Some(mut region) = self.state.regions.get(name).cloned() else { return };
        let Some(source) = region.origin.as_mut().and_then(|origin| {
            origin.waits = false;
            self.state.regions.get(&origin.region).cloned()
        }) else {
            return;
        };
        let mut orders = Vec::new();
        for leg in &region.legs {
            let from = source.legs.iter().find(|from| {
                is_source(from, leg.decoder, leg.position)
                    && (&from.memory_node, from.bytes) == (&leg.memory_node, leg.bytes)
            });
            let Some((from, incarnation)) = from.and_then(|from| Some((from, from.incarnation?))) else {
                let reason =
                    format!("a part of region {} has left memory node {}", source.name, leg.memory_node);
                return self.clone_failed(region, reason);
            };
            let (mapping, source) = (mapping_of(&region, leg), mapping_of(&source, from));
            orders.push((leg.memory_node.clone(), CloneCmem { mapping, source, incarnation }));
        }
        self.store_region(region, None);
        orders.into_iter().for_each(|(node, clone)| self.issue(&node, NodeAction::Clone(clone)));
    }

    /// Gives a region back to the owner that released it for cloning, if no clone of the region is being made any more.
    pub(super) fn give_back_cloned(&mut self, source: &Name) {
        let released = self.state.regions.get(source).and_then(|region| region.release);
        if !released.is_some_and(|release| release.copy) {
            return;
        }
        if !self.is_being_cloned(source) {
            self.keep_owner(source, "it is cloned");
        }
    }

    /// Returns true while a memory node may still have to copy content of the region for a clone.
    fn is_being_cloned(&self, source: &Name) -> bool {
        let is_open = |region: &Region| {
            let origin = region.origin.as_ref().filter(|origin| &origin.region == source);
            let unmapped = || region.legs.iter().any(|leg| leg.state == LegState::Mapping);
            region.state == RegionState::Creating && origin.is_some_and(|origin| origin.waits || unmapped())
        };
        self.state.regions.values().any(is_open)
    }

    /// Refuses an order that would let a region be written before its clones have received its content.
    pub(super) fn check_uncloned(&self, region: &Region) -> Result<(), ManagerError> {
        let released = region.release.is_some();
        match released && self.is_being_cloned(&region.name) {
            true => {
                Err(wrong_state(region, "a clone is being made of it: wait, or destroy the clone".to_owned()))
            }
            false => Ok(()),
        }
    }

    /// Destroys the clones that still wait for the content of `source`.
    pub(super) fn fail_clones_of(&mut self, source: &Name, reason: &str) {
        for name in self.waiting_for(source) {
            if let Some(region) = self.state.regions.get(&name).cloned() {
                self.clone_failed(region, reason.to_owned());
            }
        }
    }

    /// Destroys a clone that cannot get the content of its source.
    pub(super) fn clone_failed(&mut self, mut region: Region, reason: String) {
        region.failure = Some(reason.clone());
        self.drain(region, Some(reason));
    }

    fn waiting_for(&self, source: &Name) -> Vec<Name> {
        let waits = |region: &&Region| {
            let origin = region.origin.as_ref();
            region.state == RegionState::Creating
                && origin.is_some_and(|origin| origin.waits && &origin.region == source)
        };
        self.state.regions.values().filter(waits).map(|region| region.name.clone()).collect()
    }
}

/// Returns true if no compute node writes the region: it is sealed, or its owner has released it.
fn is_still(region: &Region) -> bool {
    let released =
        region.release.is_some_and(|release| release.done && !release.destroy && release.to.is_none());
    region.state != RegionState::Draining && (region.sealed || released)
}

/// Returns true if the leg (a region's part on one memory node) has the content of this position of the decoder, and
/// can be cloned.
fn is_source(leg: &Leg, decoder: u32, position: u32) -> bool {
    (leg.decoder, leg.position) == (decoder, position)
        && leg.state == LegState::Mapped
        && leg.former.is_none()
}

//! Regions that move to another compute node. Their content stays where it is and is never zeroed: the owner releases
//! the region, one commit gives it to the other compute node, and the memory nodes replace the mappings.
//!
//! ```text
//!   owner cn0: Active -> Releasing (cn0 writes back, detaches) -> Disabled
//!                                                                    | one commit: the owner is cn1, at other addresses
//!   owner cn1:                                                    Creating -> Active
//!                                                                    each memory node: unmap for cn0, map for cn1
//! ```
//!
//! Sealing a region takes the same steps: the owner stays the same, and the region gets other addresses (`share`).
//!
//! After a failure before the commit, the region belongs to cn0, after a later failure to cn1; no memory node ever maps
//! it for both.

use cxloe_fabric::api::MoveRegion;
use cxloe_fabric::model::{
    CnId, ComputeNode, DeviceKind, EventKind, FormerOwner, HandOver, Leg, LegState, Mapping, Name,
    NodeAction, Region, RegionState, Release, UnbindOption,
};

use super::cmem::CmemSpan;
use super::memory_nodes::mapping_of;
use super::{Change, Manager, ManagerError};

impl Manager {
    /// Begins to move a region to another compute node, or stops a move that the owner has not completed.
    pub(super) fn move_region(&mut self, name: &Name, order: &MoveRegion) -> Result<(), ManagerError> {
        let region = self.region(name)?.clone();
        let Some(to) = &order.to else {
            if region.release.is_some_and(|release| release.to.is_some()) {
                self.keep_owner(name, "the move was stopped: its owner keeps it");
            }
            return Ok(());
        };
        let to = self.known_compute_node(to)?;
        let goes_to = region.release.and_then(|release| release.to).unwrap_or(region.owner);
        if goes_to == to.cn_id {
            return Ok(());
        }
        self.check_move(&region, &to)?;
        self.release_to(region, to.cn_id, order.force, false)
    }

    /// Asks the owner to release a region, which afterwards belongs to `to`. With `seal`, `to` is its owner, and the
    /// region is sealed.
    pub(super) fn release_to(
        &mut self,
        mut region: Region,
        to: CnId,
        force: bool,
        seal: bool,
    ) -> Result<(), ManagerError> {
        let name = region.name.clone();
        let present = self.is_owner_present(&region);
        let settled = self.state.compute_nodes.get(&region.owner).is_some_and(|owner| owner.settled);
        let released = region.release.is_some_and(|release| release.done);
        let unwritten = !present && !settled && !released;
        if unwritten && !force {
            return Err(wrong_state(
                &region,
                format!(
                    "the agent of its owner {} is unreachable and may have changes that it has not written back; `--force` \
                     gives them up",
                    region.owner
                ),
            ));
        }
        if unwritten {
            self.writes_may_differ(&name, "its owner stopped while it may have been writing");
            region = self.region(&name)?.clone();
        }
        // Without a running agent, there is no release to wait for.
        let done = released || !present;
        let option = UnbindOption::Managed;
        region.release = Some(Release { option, destroy: false, done, to: Some(to), seal, copy: false });
        let reason = if seal { "it is to be sealed".to_owned() } else { format!("it moves to CN {to}") };
        self.settle(region, Some(reason));
        self.hand_over_released(&name);
        Ok(())
    }

    /// Cancels the release of a region, so that the owner keeps the region. The event contains `reason`.
    pub(super) fn keep_owner(&mut self, name: &Name, reason: &str) {
        let Some(mut region) = self.state.regions.get(name).cloned() else { return };
        region.release = None;
        self.settle(region, Some(reason.to_owned()));
    }

    /// Cancels the releases that were ordered for a move or a clone, and that a former agent of the owner has
    /// not completed.
    pub(super) fn stop_moves_from(&mut self, cn: CnId) {
        let waits = |name: &&Name| {
            let release = self.state.regions.get(*name).and_then(|region| region.release);
            release.is_some_and(|release| (release.to.is_some() || release.copy) && !release.done)
        };
        let names: Vec<Name> = self.index.regions_of(cn).filter(waits).cloned().collect();
        for name in names {
            self.fail_clones_of(&name, "another agent of the owner of its source has started");
            self.keep_owner(&name, "another agent of its owner has started, which keeps it");
        }
    }

    /// Checks that a region can move to compute node `to`: its state, the quota, and the bindings on its
    /// memory nodes.
    fn check_move(&self, region: &Region, to: &ComputeNode) -> Result<(), ManagerError> {
        let ends =
            region.state == RegionState::Draining || region.release.is_some_and(|release| release.destroy);
        if ends || region.state == RegionState::Creating || region.growing() > 0 {
            let reason = "only a region in use that does not grow can move".to_owned();
            return Err(wrong_state(region, reason));
        }
        Self::check_unshared(region)?;
        self.check_uncloned(region)?;
        if let Some(leg) = region.legs.iter().find(|leg| self.is_stuck(leg)) {
            let reason = format!(
                "memory node {} did not give it to its new owner; `gmm reset-region` discards its content there",
                leg.memory_node
            );
            return Err(wrong_state(region, reason));
        }
        let bytes = region.bytes().saturating_mul(u64::from(region.protect.copies()));
        self.check_quota(to, bytes)?;
        for leg in &region.legs {
            let node = self.memory_node(&leg.memory_node)?;
            if let Some(ld) = self.device_on(&node.name, region.owner).filter(|ld| ld.reserved > 0) {
                let reason = format!(
                    "its part on {} is capacity set aside for logical device {}, which stays with CN {}",
                    node.name, ld.id, region.owner
                );
                return Err(wrong_state(region, reason));
            }
            let target = self.device_on(&node.name, to.cn_id);
            let binding = target.and_then(|ld| ld.binding.as_ref());
            if binding.is_some_and(|binding| binding.unbinding.is_some()) {
                let reason = format!("CN {} is being unbound from {}", to.cn_id, node.name);
                return Err(wrong_state(region, reason));
            }
            let whole = self.kind_of(node) == DeviceKind::Sld;
            let alone = self.index.regions_on(&node.name).all(|other| *other == region.name);
            if whole && target.is_none() && !alone {
                let reason = format!(
                    "{} belongs to one compute node at a time, and CN {} has other regions there",
                    node.name, region.owner
                );
                return Err(wrong_state(region, reason));
            }
        }
        Ok(())
    }

    /// Gives a region that its owner has released to the compute node that it moves to. Waits for legs that
    /// are being mapped or unmapped, because their commands name the present owner.
    pub(super) fn hand_over_released(&mut self, name: &Name) {
        let Some(region) = self.state.regions.get(name) else { return };
        let Some(Release { done: true, to: Some(to), .. }) = region.release else { return };
        let settling = |state| matches!(state, LegState::Mapping | LegState::Unmapping);
        let changing = |leg: &Leg| match leg.former {
            Some(_) if leg.state == LegState::Lost => leg.lent.is_none() && self.is_being_handed_over(leg),
            former => former.is_some() || leg.lent.is_some(),
        };
        let unsettled = region.legs.iter().any(|leg| settling(leg.state) || changing(leg));
        if region.state == RegionState::Draining || unsettled {
            return;
        }
        let region = region.clone();
        let seals = region.release.is_some_and(|release| release.seal);
        if let Err(error) = self.hand_over(region, to) {
            let failed = if seals { "it was not sealed" } else { "it did not move" };
            self.keep_owner(name, &format!("{failed}: {error}"));
        }
    }

    fn hand_over(&mut self, mut region: Region, to: CnId) -> Result<(), ManagerError> {
        let owner = self.state.compute_nodes.get(&to).cloned();
        let mut owner = owner.ok_or_else(|| ManagerError::NoComputeNode(to.to_string()))?;
        let seals = region.release.is_some_and(|release| release.seal);
        // Between the order and the release, the region or the quota may have changed.
        if seals {
            self.check_seal(&region)?;
        } else {
            self.check_move(&region, &owner)?;
        }
        let pieces = region.legs.iter().map(|leg| CmemSpan { bytes: leg.bytes, align: leg.extent_bytes });
        let bases = self.take_cmem(&mut owner, &pieces.collect::<Vec<_>>())?;
        self.put(Change::ComputeNode(owner));
        let from = std::mem::replace(&mut region.owner, to);
        region.release = None;
        region.sealed |= seals;
        let mut unserved = Vec::new();
        for (leg, base) in region.legs.iter_mut().zip(bases) {
            let cmem_base = std::mem::replace(&mut leg.cmem_base, base);
            leg.succeeds = None;
            // If the content of a lost leg (part of the region) returns, its mapping is that of the owner who had it last.
            // Nothing was mapped for owners in between.
            match leg.former {
                Some(_) => unserved.push((cmem_base, leg.bytes)),
                None => leg.former = Some(FormerOwner { cn: from, cmem_base }),
            }
        }
        let reason = if seals { "it is sealed".to_owned() } else { format!("it moved from CN {from}") };
        self.settle(region.clone(), Some(reason));
        if !seals {
            let (name, owner) = (region.name.clone(), region.owner);
            self.region_event(from, EventKind::RegionMoved { region: name, owner, from });
        }
        unserved.into_iter().for_each(|(base, bytes)| self.retire_cmem(from, base, bytes));
        for leg in &region.legs {
            self.device_emptied(&leg.memory_node, from);
            if let Some(node) = self.state.memory_nodes.get(&leg.memory_node).cloned() {
                self.ensure_bound(&node, to);
            }
            // A lost leg is handed over when its memory node returns with the content.
            if leg.state != LegState::Lost {
                self.send_hand_over(&region, leg);
            }
        }
        Ok(())
    }

    /// Orders the memory node of a leg to replace the former owner's mapping.
    pub(super) fn send_hand_over(&mut self, region: &Region, leg: &Leg) {
        let (Some(former), Some(incarnation)) = (leg.former, leg.incarnation) else { return };
        let hand_over = HandOver { mapping: mapping_of(region, leg), former, incarnation };
        self.issue(&leg.memory_node, NodeAction::HandOver(hand_over));
    }

    /// Returns true if the memory node of a leg has not answered the hand-over of the leg yet.
    pub(super) fn is_being_handed_over(&self, leg: &Leg) -> bool {
        let Some(FormerOwner { cn, cmem_base }) = leg.former else { return false };
        let mut pending = self.index.ending(&self.state, &leg.memory_node, cn, cmem_base);
        pending.any(
            |action| matches!(action, NodeAction::HandOver(order) if order.mapping.extents == leg.extents),
        )
    }

    /// Returns true if the memory node of a leg has its content, refused its hand-over, and may still map it for the former
    /// owner. A lost leg that is lent, or comes back from a loan, stays with its owner even without the content.
    fn is_stuck(&self, leg: &Leg) -> bool {
        let node = self.state.memory_nodes.get(&leg.memory_node);
        let has_content = node.is_some_and(|node| leg.incarnation == Some(node.incarnation));
        let refused = has_content && !self.is_being_handed_over(leg);
        leg.state == LegState::Lost && leg.former.is_some() && (refused || leg.lent.is_some())
    }

    /// Handles a memory node's result of a hand-over. After an error the leg is lost, and its memory node may still map
    /// it for the former owner: `Leg::former` stays set until the memory node has unmapped the leg for that owner.
    pub(super) fn handed_over(
        &mut self,
        mut region: Region,
        at: usize,
        hand_over: &HandOver,
        error: Option<String>,
    ) {
        let leg = &mut region.legs[at];
        if leg.former != Some(hand_over.former) {
            return;
        }
        let (node, bytes, loan) = (leg.memory_node.clone(), leg.bytes, leg.lent);
        let Some(error) = error else {
            (leg.former, leg.lent) = (None, loan.filter(|loan| !loan.ends));
            let name = region.name.clone();
            self.settle(region, None);
            match loan {
                None => self.retire_cmem(hand_over.former.cn, hand_over.former.cmem_base, bytes),
                Some(loan) => self.loan_settled(&name, at, loan),
            }
            return;
        };
        if let Some(loan) = loan.filter(|loan| !loan.ends && leg.is_in_sync()) {
            return self.loan_refused(region, at, loan, &error);
        }
        if matches!(leg.state, LegState::Mapped | LegState::Stale) {
            leg.state = LegState::Lost;
        }
        let reason = format!("memory node {node} did not give it to its new owner: {error}");
        self.settle(region.clone(), Some(reason));
        self.reissue_unmaps(&region, Some(&node));
    }

    /// Orders the memory node of a leg to unmap the leg for its former owner, unless such an order is pending already.
    pub(super) fn unmap_former(&mut self, region: &Region, leg: &Leg) {
        let Some(FormerOwner { cn, cmem_base }) = leg.former else { return };
        let action = NodeAction::UnmapCmem(Mapping { cn, cmem_base, ..mapping_of(region, leg) });
        if !self.index.is_pending(&self.state, &leg.memory_node, &action) {
            self.issue(&leg.memory_node, action);
        }
    }

    /// Handles a memory node's result of the command of [`unmap_former`](Self::unmap_former). Afterwards the leg is
    /// also unmapped for its present owner, or mapped with zeros, depending on its state.
    pub(super) fn former_unmapped(&mut self, mut region: Region, at: usize, error: Option<String>) {
        let leg = &mut region.legs[at];
        if let Some(error) = error {
            if leg.state == LegState::Mapping {
                leg.state = LegState::Lost;
                let reason = format!("memory node {} did not discard its content: {error}", leg.memory_node);
                self.settle(region, Some(reason));
            }
            return;
        }
        let Some(former) = leg.former.take() else { return };
        let loan = leg.lent.take();
        let leg = leg.clone();
        self.settle(region.clone(), None);
        if loan.is_none() {
            self.retire_cmem(former.cn, former.cmem_base, leg.bytes);
        }
        if leg.state == LegState::Mapping {
            self.issue(&leg.memory_node, NodeAction::MapCmem(mapping_of(&region, &leg)));
        }
        self.reissue_unmaps(&region, Some(&leg.memory_node));
    }
}

/// Returns the error for an order that the region's present state does not permit.
pub(super) fn wrong_state(region: &Region, reason: String) -> ManagerError {
    ManagerError::WrongState { name: region.name.clone(), state: region.state, reason }
}

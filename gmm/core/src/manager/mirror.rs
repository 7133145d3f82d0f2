//! Copies of mirrored regions: which legs (parts of a region on one memory node) are in sync, and how that changes.
//! Only the manager declares a leg stale. When that change is stored, a write counts as complete even if only the other
//! copy has received it.
//!
//! A leg is stale from the first write that may not have reached it until the owner's agent reports that it has filled
//! the leg. A leg in sync never becomes stale or unmapped unless another leg of the same position in the interleave set
//! is in sync.

use cxloe_fabric::api::{LegsFilled, LegsStale};
use cxloe_fabric::model::{EventKind, Health, Leg, LegState, Loan, Name, Region, RegionState};

use super::{Manager, ManagerError};

/// Numbers of legs of one position of a committed decoder, from which the state of the position follows.
#[derive(Debug, Clone, Copy, Default)]
struct PositionSummary {
    in_sync: u8,
    reachable: u8,
    lost: bool,
    mapping: bool,
}

impl PositionSummary {
    fn state(self, copies: u8) -> RegionState {
        match self {
            Self { in_sync: 0, lost: false, mapping: true, .. } => RegionState::Creating,
            Self { in_sync: 0, .. } => RegionState::Lost,
            Self { reachable: 0, .. } => RegionState::Degraded,
            Self { reachable, .. } if reachable < copies => RegionState::Exposed,
            _ => RegionState::Active,
        }
    }
}

/// Returns true if the other copy of the leg at index `at` is in sync.
pub(super) fn other_is_in_sync(region: &Region, at: usize) -> bool {
    let leg = &region.legs[at];
    region.legs.iter().any(|other| other.is_copy_of(leg) && other.is_in_sync())
}

/// Returns true if the leg is not being unmapped.
pub(super) fn is_live(leg: &Leg) -> bool {
    leg.state != LegState::Unmapping
}

/// Returns the state of a leg that a memory node has mapped with zeros: stale if another copy of the position
/// has the content or has lost it, otherwise in sync.
pub(super) fn state_once_mapped(region: &Region, at: usize) -> LegState {
    let leg = &region.legs[at];
    let has_content = |other: &Leg| matches!(other.state, LegState::Mapped | LegState::Lost);
    let elsewhere = region.legs.iter().any(|other| other.is_copy_of(leg) && has_content(other));
    if region.is_committed(leg) && elsewhere { LegState::Stale } else { LegState::Mapped }
}

/// Returns, for each position of the committed decoders, the indexes of its legs that are not being unmapped.
pub(super) fn live_positions(region: &Region) -> Vec<Vec<usize>> {
    let (firsts, count) = first_positions(region);
    let mut positions = vec![Vec::new(); count];
    for (at, leg) in region.legs.iter().enumerate().filter(|(_, leg)| is_live(leg)) {
        if region.is_committed(leg) {
            positions[firsts[leg.decoder as usize] + leg.position as usize].push(at);
        }
    }
    positions
}

/// Returns, for each decoder, the number of positions of the committed decoders before it; and the number of all these
/// positions.
fn first_positions(region: &Region) -> (Vec<usize>, usize) {
    let mut count = 0;
    let first = |decoder: &cxloe_fabric::model::HdmDecoder| {
        let first = count;
        count += if decoder.committed { decoder.ways.count() as usize } else { 0 };
        first
    };
    (region.decoders.iter().map(first).collect(), count)
}

/// Returns true if both records have the same owner and the same legs in sync, and those legs have the same
/// content.
pub(super) fn same_in_sync(before: &Region, after: &Region) -> bool {
    let legs = |region: &Region| {
        let legs = region.legs.iter().filter(|leg| leg.is_in_sync() && region.is_committed(leg));
        let mut legs: Vec<(u64, Option<u64>)> = legs.map(|leg| (leg.cmem_base, leg.incarnation)).collect();
        legs.sort_unstable();
        legs
    };
    before.owner == after.owner && legs(before) == legs(after)
}

/// Returns true if each copy of a position has at most one live leg, and the copies are on different memory
/// nodes.
pub(super) fn copies_fit(region: &Region) -> bool {
    let mut live: Vec<_> = region.legs.iter().filter(|leg| is_live(leg)).collect();
    live.sort_by_key(|leg| (leg.decoder, leg.position, leg.copy));
    let clash = |pair: &[&Leg]| {
        let same = (pair[0].decoder, pair[0].position) == (pair[1].decoder, pair[1].position);
        same && (pair[0].copy == pair[1].copy || pair[0].memory_node == pair[1].memory_node)
    };
    region.legs.iter().all(|leg| leg.copy < 2) && !live.windows(2).any(clash)
}

/// Adjusts the loan of a leg (a region's part on one memory node) whose memory node has lost its content; `elsewhere`
/// means that another copy is in sync.
pub(super) fn lose_loan(leg: &mut Leg, elsewhere: bool) {
    let Some(loan) = leg.lent else { return };
    match leg.state {
        // It is mapped again for the memory node that fills it.
        LegState::Stale => (leg.lent, leg.former) = (Some(Loan { ends: false, ..loan }), None),
        // It is mapped again for the owner, or no memory node has confirmed the loan.
        LegState::Mapped if elsewhere || !loan.ends && leg.former.is_some() => {
            (leg.lent, leg.former) = (None, None);
        }
        // If the memory node returns with the pool that has the content, the leg is handed back.
        LegState::Mapped => (leg.lent, leg.former) = (Some(Loan { ends: true, ..loan }), Some(loan.former())),
        _ => {}
    }
}

impl Manager {
    /// Returns the state of a region that is neither released nor destroyed: that of its worst position.
    pub(super) fn state_of_legs(&self, region: &Region) -> RegionState {
        let (firsts, count) = first_positions(region);
        let mut positions = vec![PositionSummary::default(); count];
        let rests = self.is_at_rest(region);
        for leg in region.legs.iter().filter(|leg| region.is_committed(leg)) {
            let position = &mut positions[firsts[leg.decoder as usize] + leg.position as usize];
            match leg.state {
                LegState::Lost => position.lost = true,
                LegState::Unmapping => {}
                // A loan matters only to an owner that wants to use the region.
                _ if leg.former.is_some() && !(rests && leg.lent.is_some()) => position.mapping = true,
                LegState::Mapped if leg.lent.is_some() && !rests => position.mapping = true,
                LegState::Mapped => {
                    position.in_sync += 1;
                    position.reachable += u8::from(self.is_reachable(&leg.memory_node));
                }
                LegState::Mapping => position.mapping = true,
                LegState::Stale => {}
            }
        }
        let copies = region.protect.copies();
        let states = positions.into_iter().map(|position| position.state(copies));
        states.max().unwrap_or(RegionState::Creating)
    }

    /// Returns true if each position of a region has all its copies in sync, on reachable memory nodes.
    pub fn is_protected(&self, region: &Region) -> bool {
        self.state_of_legs(region) == RegionState::Active
    }

    /// Declares stale the legs of a region on one memory node, by order of its owner's agent.
    pub(super) fn legs_stale(&mut self, name: &Name, stale: &LegsStale) -> Result<(), ManagerError> {
        let mut region = self.region_of_agent(name, stale.registration)?.clone();
        let concerned =
            |leg: &Leg| leg.is_in_sync() && leg.mac() == Some(stale.mac) && region.is_committed(leg);
        let legs: Vec<usize> = (0..region.legs.len()).filter(|at| concerned(&region.legs[*at])).collect();
        if legs.is_empty() {
            // No leg on this memory node is in sync: the report is a repetition, or the node has no part of the region
            // any more, or the agent has filled a leg that then failed. In the last case a report that the leg is
            // filled may still arrive: the new epoch makes that report invalid, and with it the agent's writes complete
            // without the leg. A repetition has an older epoch.
            let is_stale = |leg: &Leg| leg.state == LegState::Stale && leg.mac() == Some(stale.mac);
            if stale.epoch == region.epoch && region.legs.iter().any(is_stale) {
                region.epoch += 1;
                self.store_region(region, Some("its owner has reported a stale leg again".to_owned()));
            }
            return Ok(());
        }
        self.check_epoch(&region, stale.epoch)?;
        if let Some(at) = legs.iter().find(|at| !other_is_in_sync(&region, **at)) {
            let memory_node = region.legs[*at].memory_node.clone();
            return Err(ManagerError::OnlyCopy { name: name.clone(), memory_node });
        }
        let reason = format!("its owner {} does not reach it", region.owner);
        self.mark_stale(region, &legs, &reason);
        Ok(())
    }

    /// Records that a stale leg is in sync, because its owner's agent has filled it.
    pub(super) fn legs_filled(&mut self, name: &Name, filled: &LegsFilled) -> Result<(), ManagerError> {
        let mut region = self.region_of_agent(name, filled.registration)?.clone();
        let concerned = |leg: &Leg| leg.cmem_base == filled.cmem_base && leg.mac() == Some(filled.mac);
        let changed =
            || ManagerError::StaleEpoch { name: name.clone(), epoch: region.epoch, asked: filled.epoch };
        let Some(at) = region.legs.iter().position(concerned) else { return Err(changed()) };
        let node = self.state.memory_nodes.get(&region.legs[at].memory_node);
        let there = node.is_some_and(|node| region.legs[at].incarnation == Some(node.incarnation));
        if region.legs[at].is_in_sync() && there {
            return Ok(());
        }
        self.check_epoch(&region, filled.epoch)?;
        // A memory node fills what is lent to it, and the owner cannot write there.
        let fillable = region.legs[at].state == LegState::Stale && region.legs[at].lent.is_none();
        if !fillable || !there || !other_is_in_sync(&region, at) {
            return Err(changed());
        }
        region.legs[at].state = LegState::Mapped;
        let memory_node = region.legs[at].memory_node.clone();
        self.settle(region, None);
        self.leg_event(name, |owner, epoch| EventKind::LegFilled {
            region: name.clone(),
            owner,
            memory_node,
            epoch,
        });
        self.drop_surplus(name);
        Ok(())
    }

    /// Returns the region, if its owner's present agent has this registration.
    fn region_of_agent(&self, name: &Name, registration: u64) -> Result<&Region, ManagerError> {
        let region = self.region(name)?;
        let owner = self.state.compute_nodes.get(&region.owner);
        match owner.filter(|owner| owner.registration == registration && registration != 0) {
            Some(_) => Ok(region),
            None => {
                let who = format!("the owner {} of region {name}", region.owner);
                Err(ManagerError::NotRegistered { who, registration })
            }
        }
    }

    fn check_epoch(&self, region: &Region, asked: u64) -> Result<(), ManagerError> {
        if asked == region.epoch {
            return Ok(());
        }
        Err(ManagerError::StaleEpoch { name: region.name.clone(), epoch: region.epoch, asked })
    }

    /// Marks legs as stale. The other copy of each must be in sync.
    pub(super) fn mark_stale(&mut self, mut region: Region, legs: &[usize], reason: &str) {
        let mut nodes: Vec<Name> = legs.iter().map(|at| region.legs[*at].memory_node.clone()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        legs.iter().for_each(|at| region.legs[*at].state = LegState::Stale);
        let name = region.name.clone();
        self.settle(region, None);
        nodes.into_iter().for_each(|node| self.stale_event(&name, node, reason));
    }

    /// Records that legs on a memory node became stale.
    pub(super) fn stale_event(&mut self, name: &Name, memory_node: Name, reason: &str) {
        self.leg_event(name, |owner, epoch| {
            let (region, reason) = (name.clone(), reason.to_owned());
            EventKind::LegStale { region, owner, memory_node, epoch, reason }
        });
    }

    pub(super) fn leg_event(
        &mut self,
        name: &Name,
        kind: impl FnOnce(cxloe_fabric::model::CnId, u64) -> EventKind,
    ) {
        let Some((owner, epoch)) = self.state.regions.get(name).map(|region| (region.owner, region.epoch))
        else {
            return;
        };
        self.region_event(owner, kind(owner, epoch));
    }

    /// Handles the case that an owner stopped using a region without completing its writes, so that a write
    /// may have reached only one copy. One copy of each position is kept as it is, and the other becomes
    /// stale: copy 1, or copy 0 if no memory node serves copy 0 at present.
    pub(super) fn writes_may_differ(&mut self, name: &Name, reason: &str) {
        let Some(region) = self.state.regions.get(name).cloned() else { return };
        let unused = matches!(region.state, RegionState::Creating | RegionState::Draining);
        if unused || region.release.is_some_and(|release| release.done) {
            return;
        }
        let mut legs = Vec::new();
        for position in live_positions(&region) {
            let mut in_sync = position.into_iter().filter(|at| region.legs[*at].is_in_sync());
            let (Some(one), Some(other)) = (in_sync.next(), in_sync.next()) else { continue };
            let (low, high) =
                if region.legs[one].copy < region.legs[other].copy { (one, other) } else { (other, one) };
            let served = |at: usize| self.is_served(&region.legs[at]);
            legs.push(if served(low) || !served(high) { high } else { low });
        }
        if !legs.is_empty() {
            self.mark_stale(region, &legs, reason);
        }
    }

    /// Handles the start of a compute node's agent whose predecessor ended without notice.
    pub(super) fn agent_replaced(&mut self, cn: cxloe_fabric::model::CnId) {
        let names: Vec<Name> = self.index.regions_of(cn).cloned().collect();
        for name in names {
            self.writes_may_differ(&name, "its owner's agent ended while it may have been writing");
        }
    }

    /// Returns true if the owner can use the leg: its memory node is reachable, and does not map it for a former owner
    /// any more.
    pub(super) fn is_served(&self, leg: &Leg) -> bool {
        leg.former.is_none() && self.is_reachable(&leg.memory_node)
    }

    /// Returns true if new legs may be placed on the memory node: it is reachable and not drained.
    pub(super) fn takes_legs(&self, node: &cxloe_fabric::model::MemoryNode) -> bool {
        node.health == Health::Reachable && !node.draining
    }
}

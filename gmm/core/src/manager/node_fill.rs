//! Copies that memory nodes make of regions at rest: regions that no compute node uses or can have changes of. The
//! memory node of the new leg (a region's part on one memory node) reads the other leg as a compute node would.
//!
//! ```text
//!   owner        | leg S, in sync              | leg C, new
//!   -------------+-----------------------------+----------------------------------------------
//!   at rest      |                             | mapped for its own memory node D: lent to D
//!                | handed over to D, read-only |
//!                | ............................| D reads S, writes C, and reports its progress
//!                |                             | handed over to the owner; one commit: C is in sync
//!   then         | unmapped, or handed back    |
//!   ...or comes  | handed back                 | unmapped; the owner's agent fills another leg
//! ```
//!
//! Each extent is mapped for one node at a time, so no write of the owner can reach a leg that is copied: neither from
//! an agent that starts from its own state, without the manager, nor from one that is taken for ended. The owner gets a
//! region back only when the memory node of S has confirmed that S is mapped for it again; until then the region is
//! `creating`. If S stays beside C, it comes back at another address, because an agent that does not know C may not
//! write to S alone.

use std::collections::{BTreeMap, BTreeSet};

use cxloe_fabric::api::{CopyProgress, Owner};
use cxloe_fabric::model::{
    CMEM_LIMIT, CnId, EventKind, FillCmem, FillProgress, FillSource, FormerLeg, FormerOwner, Health, Leg,
    LegState, Loan, MemoryNode, Name, Region, RegionState,
};

use super::cmem::CmemSpan;
use super::memory_nodes::mapping_of;
use super::mirror::{is_live, other_is_in_sync};
use super::{Change, Manager};

/// Maximum number of orders that a memory node gets at a time; it carries them out one after the other.
const FILLS_MAX: usize = 16;

/// Copies that memory nodes make. Not stored: the orders follow from the loans of legs.
#[derive(Debug, Default)]
pub(super) struct NodeFills {
    /// Regions with lent legs that have changed, or whose owner or memory nodes have.
    changed: BTreeSet<Name>,
    /// Bytes copied, by memory node and first CMem address of the loan.
    progress: BTreeMap<Name, BTreeMap<u64, u64>>,
}

impl NodeFills {
    pub fn note_progress(&mut self, node: &Name, fills: &[FillProgress]) {
        if fills.is_empty() {
            self.progress.remove(node);
        } else {
            let done = fills.iter().map(|progress| (progress.cmem_base, progress.done)).collect();
            self.progress.insert(node.clone(), done);
        }
    }

    pub fn note_change(&mut self, region: &Region) {
        if region.legs.iter().any(|leg| leg.lent.is_some()) {
            self.changed.insert(region.name.clone());
        }
    }

    fn done(&self, node: &Name, cmem_base: u64) -> u64 {
        self.progress.get(node).and_then(|done| done.get(&cmem_base)).copied().unwrap_or_default()
    }
}

/// Returns the other leg of a copy that has the same loan, which may end.
fn counterpart<'a>(region: &'a Region, leg: &Leg, loan: &Loan) -> Option<&'a Leg> {
    let is_it = |other: &&Leg| {
        other.is_copy_of(leg) && is_live(other) && other.lent.is_some_and(|lent| lent.is_of(loan))
    };
    region.legs.iter().find(is_it)
}

/// Returns the leg that a lent leg is copied from, if its memory node has confirmed the loan.
fn source_of<'a>(region: &'a Region, leg: &Leg, loan: &Loan) -> Option<&'a Leg> {
    counterpart(region, leg, loan)
        .filter(|source| source.is_in_sync() && source.former.is_none() && source.loan().is_some())
}

/// Returns a leg as its owner's agent knows it.
fn as_former(leg: &Leg) -> Option<FormerLeg> {
    Some(FormerLeg { cmem_base: leg.cmem_base, incarnation: leg.incarnation? })
}

impl Manager {
    /// Returns true if no compute node uses a region, or has changes of it that are not written back: it is disabled,
    /// or its owner has no agent and the last one ended in order. A sealed region has no changes.
    pub fn is_at_rest(&self, region: &Region) -> bool {
        if region.state == RegionState::Draining || !region.readers.is_empty() {
            return false;
        }
        // A region that was released only for a clone comes back at once: its owner uses it as before.
        if let Some(release) = region.release.filter(|release| !release.copy) {
            return release.done && !release.destroy && release.to.is_none();
        }
        self.state.compute_nodes.get(&region.owner).is_none_or(|owner| {
            let unchanged = owner.registration == 0 || owner.settled || region.sealed;
            owner.health != Health::Reachable && unchanged
        })
    }

    /// Returns true if memory nodes, and not the owner's agent, copy the parts of a region that have to move.
    pub(super) fn nodes_copy(&self, region: &Region) -> bool {
        let mut nodes = self.state.memory_nodes.values();
        self.is_at_rest(region) && nodes.any(|node| self.takes_legs(node) && self.borrower_id(node).is_some())
    }

    /// Returns the CN id under which a memory node reads from others: the address of its first port. `None` if a
    /// compute node has this id, because both would answer to the same sessions.
    pub(super) fn borrower_id(&self, node: &MemoryNode) -> Option<CnId> {
        let id = CnId::new(*node.macs.first()?).ok()?;
        (!self.state.compute_nodes.contains_key(&id)).then_some(id)
    }

    /// Returns true if `cn` is the CN id under which the memory node of a leg reads from others.
    fn is_borrower(&self, leg: &Leg, cn: CnId) -> bool {
        let node = self.state.memory_nodes.get(&leg.memory_node);
        node.and_then(|node| self.borrower_id(node)) == Some(cn)
    }

    /// Returns the CMem ranges (first address, end) of the legs on `node` that are lent to `cn`, or were until now.
    fn loans_on(&self, node: &Name, cn: CnId) -> Vec<(u64, u64)> {
        let lent = self.legs_on(node).filter_map(|(_, leg)| Some((leg.lent?, leg.bytes)));
        let lent = lent.filter(|(loan, _)| loan.cn == cn);
        lent.map(|(loan, bytes)| (loan.cmem_base, loan.cmem_base.saturating_add(bytes))).collect()
    }

    /// Allocates CMem addresses under which both legs of a copy are lent to the memory node `node`. Addresses come
    /// again only after all others, so an order that was given up never names the memory of a later one.
    pub(super) fn take_loan_base(&mut self, node: &Name, cn: CnId, bytes: u64, align: u64) -> u64 {
        let taken = self.loans_on(node, cn);
        let mut base = self.state.meta.loan_next;
        // Each attempt passes one of the taken ranges, or begins again at 0 once.
        for _ in 0..2 * taken.len() + 2 {
            base = base.next_multiple_of(align);
            if base.saturating_add(bytes) > CMEM_LIMIT {
                base = 0;
            }
            match taken.iter().find(|(first, end)| base < *end && *first < base.saturating_add(bytes)) {
                Some((_, end)) => base = *end,
                None => break,
            }
        }
        self.state.meta.loan_next = base.saturating_add(bytes);
        base
    }

    /// Records that the agent of a compute node has come or gone, after which other nodes copy its regions.
    pub(super) fn owner_changed(&mut self, cn: CnId) {
        let mut names: BTreeSet<Name> = self.index.regions_of(cn).cloned().collect();
        // A memory node with the address of a compute node does not copy.
        let same = |node: &&MemoryNode| node.macs.first() == Some(&cn.mac());
        if let Some(node) = self.state.memory_nodes.values().find(same) {
            names.extend(self.index.regions_on(&node.name).cloned());
        }
        for name in names {
            if let Some(region) = self.state.regions.get(&name).cloned() {
                self.note_repair(&region);
            }
        }
    }

    /// Begins and ends loans of the regions that have changed.
    pub(super) fn follow_fills(&mut self) {
        // Each step stores the region, and so adds it to the list again, until there is nothing to do.
        while let Some(name) = self.fills.changed.pop_first() {
            self.follow_fill(&name);
        }
    }

    fn follow_fill(&mut self, name: &Name) {
        let Some(region) = self.state.regions.get(name).cloned() else { return };
        if region.state == RegionState::Draining {
            return;
        }
        if self.state_of(&region) != region.state {
            return self.settle(region, None);
        }
        let rests = self.is_at_rest(&region);
        if !self.give_up_fills(&region, rests) && !self.return_leg(&region, rests) && rests {
            self.lend_leg(&region);
        }
    }

    /// Unmaps the legs that memory nodes were to fill, if the region is used again, or if their memory nodes have other
    /// addresses now. Returns true if there are any.
    fn give_up_fills(&mut self, region: &Region, rests: bool) -> bool {
        let given_up = |at: &usize| {
            let leg = &region.legs[*at];
            let valid = |loan: &Loan| rests && self.is_borrower(leg, loan.cn);
            is_live(leg)
                && !leg.is_in_sync()
                && leg.lent.is_some_and(|loan| !valid(&loan))
                && other_is_in_sync(region, *at)
        };
        let given_up: Vec<usize> = (0..region.legs.len()).filter(given_up).collect();
        if given_up.is_empty() {
            return false;
        }
        let mut region = region.clone();
        given_up.iter().for_each(|at| region.legs[*at].state = LegState::Unmapping);
        self.settle(region.clone(), Some("a copy that a memory node made is given up".to_owned()));
        self.reissue_unmaps(&region, None);
        true
    }

    /// Hands one leg back to the owner that is not copied any more. Returns true if there was one.
    fn return_leg(&mut self, region: &Region, rests: bool) -> bool {
        let is_done = |leg: &Leg| {
            let is_copied = |loan: &Loan| {
                let target = counterpart(region, leg, loan).filter(|target| !target.is_in_sync());
                rests && target.is_some_and(|target| self.is_borrower(target, loan.cn))
            };
            let lent = leg.is_in_sync() && leg.former.is_none();
            leg.loan().is_some_and(|loan| lent && !is_copied(loan))
        };
        let Some(at) = region.legs.iter().position(is_done) else { return false };
        let mut region = region.clone();
        let Some(loan) = region.legs[at].lent else { return false };
        let (bytes, before) = (region.legs[at].bytes, region.legs[at].cmem_base);
        let beside_another = other_is_in_sync(&region, at);
        if beside_another {
            let Ok(mut owner) = self.owner(&Owner::CnId(region.owner)) else { return false };
            let span = CmemSpan { bytes, align: region.legs[at].extent_bytes };
            let Ok(bases) = self.take_cmem(&mut owner, &[span]) else { return false };
            let Some(base) = bases.first() else { return false };
            region.legs[at].succeeds = as_former(&region.legs[at]);
            region.legs[at].cmem_base = *base;
            self.put(Change::ComputeNode(owner));
        }
        let leg = &mut region.legs[at];
        (leg.lent, leg.former) = (Some(Loan { ends: true, ..loan }), Some(loan.former()));
        let leg = leg.clone();
        // The owner has to receive the change before its former address is used again.
        self.settle(region.clone(), Some(format!("memory node {} gives it back", leg.memory_node)));
        if beside_another {
            self.retire_cmem(region.owner, before, bytes);
        }
        self.send_hand_over(&region, &leg);
        true
    }

    /// Lends one leg to the memory node that is to copy it.
    fn lend_leg(&mut self, region: &Region) {
        let loan_for = |leg: &Leg| -> Option<Loan> {
            let ready = leg.is_in_sync() && leg.lent.is_none() && leg.former.is_none();
            let target = region.legs.iter().find(|target| {
                target.is_copy_of(leg) && target.state == LegState::Stale && target.former.is_none()
            })?;
            let loan = *target.loan()?;
            let end = loan.cmem_base.saturating_add(leg.bytes);
            let is_free = |(first, after): &(u64, u64)| end <= *first || *after <= loan.cmem_base;
            let place_is_free = self.loans_on(&leg.memory_node, loan.cn).iter().all(is_free);
            let reachable = self.is_reachable(&leg.memory_node) && self.is_reachable(&target.memory_node);
            (ready && place_is_free && reachable).then_some(loan)
        };
        let found = region.legs.iter().enumerate().find_map(|(at, leg)| Some((at, loan_for(leg)?)));
        let Some((at, loan)) = found else { return };
        let mut region = region.clone();
        let (owner, leg) = (region.owner, &mut region.legs[at]);
        (leg.lent, leg.former) = (Some(loan), Some(FormerOwner { cn: owner, cmem_base: leg.cmem_base }));
        let leg = leg.clone();
        self.settle(region.clone(), None);
        self.send_hand_over(&region, &leg);
    }

    /// Continues after a memory node has confirmed that a leg is mapped for the memory node that it is lent to, or for
    /// the owner again.
    pub(super) fn loan_settled(&mut self, name: &Name, at: usize, loan: Loan) {
        let Some(mut region) = self.state.regions.get(name).cloned() else { return };
        let Some(leg) = region.legs.get(at).cloned() else { return };
        let other = counterpart(&region, &leg, &loan);
        if !loan.ends {
            let borrower = other.and_then(|target| self.state.memory_nodes.get(&target.memory_node)).cloned();
            // The unchanged record is stored only because each change wakes the long poll of its memory node, which is
            // to receive the order to copy.
            borrower.into_iter().for_each(|node| self.put(Change::MemoryNode(node)));
            return;
        }
        let source = source_of(&region, &leg, &loan).filter(|_| leg.state == LegState::Stale);
        let Some(source) = source.filter(|_| self.is_at_rest(&region)) else { return };
        let succeeds = as_former(source);
        (region.legs[at].state, region.legs[at].succeeds) = (LegState::Mapped, succeeds);
        self.settle(region, None);
        self.leg_event(name, |owner, epoch| EventKind::LegFilled {
            region: name.clone(),
            owner,
            memory_node: leg.memory_node,
            epoch,
        });
        self.drop_surplus(name);
    }

    /// Handles the case that a memory node has refused to lend a leg: the leg is mapped for the owner again, and the
    /// copy is given up.
    pub(super) fn loan_refused(&mut self, mut region: Region, at: usize, loan: Loan, error: &str) {
        let source = region.legs[at].clone();
        for target in region.legs.iter_mut().filter(|leg| leg.is_copy_of(&source)) {
            if is_live(target) && target.lent.is_some_and(|lent| lent.is_of(&loan)) {
                target.state = LegState::Unmapping;
            }
        }
        let leg = &mut region.legs[at];
        (leg.lent, leg.former) = (Some(Loan { ends: true, ..loan }), Some(loan.former()));
        let leg = leg.clone();
        let reason = format!("memory node {} does not lend it: {error}", leg.memory_node);
        self.settle(region.clone(), Some(reason));
        self.send_hand_over(&region, &leg);
        self.reissue_unmaps(&region, None);
        self.repair_later(&region.name);
    }

    /// Handles a memory node's report of its progress. A leg that is copied completely is handed over to the owner.
    pub(super) fn filled_by_node(&mut self, node: &Name, progress: FillProgress) {
        let is_it = |leg: &Leg| {
            let loan = leg.loan().filter(|loan| loan.cmem_base == progress.cmem_base);
            let stale = leg.state == LegState::Stale && leg.former.is_none();
            &leg.memory_node == node && stale && loan.is_some() && progress.done >= leg.bytes
        };
        let found = self.legs_on(node).find(|(_, leg)| is_it(leg)).map(|(region, _)| region.clone());
        let Some(mut region) = found else { return };
        let Some(at) = region.legs.iter().position(is_it) else { return };
        let Some(loan) = region.legs[at].lent else { return };
        let incarnation = self.state.memory_nodes.get(node).map(|node| node.incarnation);
        let is_there = region.legs[at].incarnation == incarnation;
        if !is_there || source_of(&region, &region.legs[at], &loan).is_none() {
            return;
        }
        let leg = &mut region.legs[at];
        (leg.lent, leg.former) = (Some(Loan { ends: true, ..loan }), Some(loan.former()));
        let leg = leg.clone();
        self.settle(region.clone(), None);
        self.send_hand_over(&region, &leg);
    }

    /// Returns the orders to a memory node to copy from others: of each source in turn, so that the orders of one that
    /// does not answer do not fill the list, and those of unreachable ones last.
    pub fn fills_on(&self, node: &Name) -> Vec<FillCmem> {
        let (mut found, mut of_source) = (Vec::new(), BTreeMap::<&Name, usize>::new());
        for (region, leg) in self.legs_on(node).filter(|(_, leg)| leg.state == LegState::Stale) {
            let Some(source) = leg.loan().and_then(|loan| source_of(region, leg, loan)) else { continue };
            let turn = of_source.entry(&source.memory_node).or_default();
            found.push((!self.is_reachable(&source.memory_node), *turn, region, leg, source));
            *turn += 1;
        }
        found.sort_by_key(|(is_away, turn, ..)| (*is_away, *turn));
        let order = |(_, _, region, leg, source): (bool, usize, &Region, &Leg, &Leg)| {
            let (memory_node, mac, key) = (source.memory_node.clone(), source.mac()?, source.mn_key);
            let source = FillSource { memory_node, mac, key, incarnation: source.incarnation? };
            Some(FillCmem { mapping: mapping_of(region, leg), source })
        };
        found.into_iter().filter_map(order).take(FILLS_MAX).collect()
    }

    /// Returns the memory nodes that `node` exchanges frames with for copies.
    pub(super) fn fill_partners(&self, node: &Name) -> BTreeSet<Name> {
        let partner = |(region, leg): (&Region, &Leg)| {
            let other = counterpart(region, leg, leg.loan()?)?;
            Some(other.memory_node.clone())
        };
        self.legs_on(node).filter_map(partner).collect()
    }

    /// Returns the memory nodes that legs on `node` are lent to, by the CN id under which they send their requests.
    pub(super) fn borrowers_of(&self, node: &Name) -> BTreeMap<CnId, Name> {
        let borrower = |(region, leg): (&Region, &Leg)| {
            let loan = leg.loan()?;
            let target = if leg.is_in_sync() { counterpart(region, leg, loan)? } else { leg };
            Some((loan.cn, target.memory_node.clone()))
        };
        self.legs_on(node).filter_map(borrower).collect()
    }

    /// Returns the progress of the copies that memory nodes make of a region; `None` if they make none.
    pub(super) fn copying(&self, region: &Region) -> Option<CopyProgress> {
        let mut progress = CopyProgress { bytes: 0, done: 0 };
        for leg in region.legs.iter().filter(|leg| is_live(leg) && !leg.is_in_sync()) {
            if let Some(loan) = leg.lent {
                progress.bytes += leg.bytes;
                progress.done += self.fills.done(&leg.memory_node, loan.cmem_base).min(leg.bytes);
            }
        }
        (progress.bytes > 0).then_some(progress)
    }
}

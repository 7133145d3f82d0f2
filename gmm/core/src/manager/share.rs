//! Sealed regions: their content never changes again, and compute nodes other than the owner may read them.
//!
//! ```text
//!   seal:   Active -> Releasing (the owner writes back, detaches) -> one commit -> Creating -> Active, sealed
//!                                                                      each memory node: a sealed mapping for the owner
//!   share:  each memory node maps a range of the reader's CMem to the owner's sealed extents -> it may read
//!   end:    reader may not read -> each memory node confirms that it no longer serves it -> share removed
//! ```
//!
//! A sealed mapping has another address than before, so that no earlier write reaches it. A region with
//! readers stays on its memory nodes and keeps its owner, because memory nodes serve the readers from the
//! owner's mapping.

use cxloe_fabric::api::{SealRegion, ShareRegion};
use cxloe_fabric::model::{
    CnId, DeviceKind, EventKind, LegState, Name, NodeAction, Protection, Reader, ReaderLeg, Region,
    RegionState, Share, ShareState,
};

use super::cmem::CmemSpan;
use super::hand_over::wrong_state;
use super::memory_nodes::mapping_of;
use super::regions::record_bytes;
use super::{Change, Manager, ManagerError};

pub(super) const READERS_MAX: usize = 256;

impl Manager {
    pub(super) fn seal_region(&mut self, name: &Name, order: SealRegion) -> Result<(), ManagerError> {
        let region = self.region(name)?.clone();
        let begun = region.release.is_some_and(|release| release.seal);
        if region.sealed || begun {
            return Ok(());
        }
        self.check_seal(&region)?;
        let owner = region.owner;
        self.release_to(region, owner, order.force, true)
    }

    /// Checks that a region can be sealed: it is in use, has one copy, and no part of it is lost or moves.
    pub(super) fn check_seal(&self, region: &Region) -> Result<(), ManagerError> {
        let release = region.release;
        let ends = region.state == RegionState::Draining || release.is_some_and(|release| release.destroy);
        if ends || region.state == RegionState::Creating || region.growing() > 0 {
            let reason = "only a region in use that does not grow can be sealed".to_owned();
            return Err(wrong_state(region, reason));
        }
        if release.is_some_and(|release| release.to.is_some() && !release.seal) {
            let reason = "it moves to another compute node".to_owned();
            return Err(wrong_state(region, reason));
        }
        self.check_uncloned(region)?;
        let mapped = region.legs.iter().all(|leg| leg.state == LegState::Mapped && leg.former.is_none());
        if region.protect == Protection::Mirror {
            let reason = format!(
                "a sealed region has one copy, as nobody could fill another: `gmm protect {} none` first",
                region.name
            );
            return Err(wrong_state(region, reason));
        }
        if !mapped || region.legs.iter().any(|leg| leg.moves_to.is_some()) {
            let reason = "parts of it are lost, or are being moved".to_owned();
            return Err(wrong_state(region, reason));
        }
        Ok(())
    }

    /// Refuses an order that would change the content, the size, the copies or the memory nodes of a sealed
    /// region.
    pub(super) fn check_unsealed(region: &Region) -> Result<(), ManagerError> {
        match region.sealed {
            true => Err(wrong_state(region, "it is sealed: it can only be read, and destroyed".to_owned())),
            false => Ok(()),
        }
    }

    /// Refuses an order that would take a region from the compute nodes that read it.
    pub(super) fn check_unshared(region: &Region) -> Result<(), ManagerError> {
        let Some(reader) = region.readers.first() else { return Ok(()) };
        let (cn, name) = (reader.cn, &region.name);
        let reason = format!("CN {cn} reads it: `gmm share-region {name} --with {cn} --stop` first");
        Err(wrong_state(region, reason))
    }

    /// Lets a further compute node read a sealed region, or ends its share.
    pub(super) fn share_region(&mut self, name: &Name, order: &ShareRegion) -> Result<(), ManagerError> {
        let mut region = self.region(name)?.clone();
        let mut node = self.known_compute_node(&order.with)?;
        let cn = node.cn_id;
        let known = region.readers.iter().position(|reader| reader.cn == cn);
        if order.end {
            match known {
                Some(at) if !region.readers[at].ends => self.end_share(region, at),
                // A memory node may have failed to end it.
                Some(_) => self.reissue_unshares(&region, None),
                None => {}
            }
            return Ok(());
        }
        if let Some(reader) = known.map(|at| &region.readers[at]) {
            return match reader.ends {
                false if reader.uid == order.uid => Ok(()),
                false => Err(wrong_state(&region, format!("CN {cn} reads it already, for another user"))),
                true => {
                    Err(wrong_state(&region, format!("memory nodes still end the last share with CN {cn}")))
                }
            };
        }
        let mapped = region.legs.iter().all(|leg| leg.state == LegState::Mapped && leg.former.is_none());
        if !region.sealed || !mapped || region.state == RegionState::Draining {
            let reason = format!("only a sealed region can be shared: `gmm seal-region {name}` first");
            return Err(wrong_state(&region, reason));
        }
        if region.owner == cn {
            return Err(wrong_state(&region, format!("CN {cn} is its owner")));
        }
        if region.readers.len() >= READERS_MAX {
            let limit = READERS_MAX as u64;
            return Err(ManagerError::LimitReached { what: "readers of a region", limit });
        }
        for leg in &region.legs {
            let memory_node = self.memory_node(&leg.memory_node)?;
            if self.kind_of(memory_node) == DeviceKind::Sld {
                let reason = format!("{} belongs to one compute node at a time", leg.memory_node);
                return Err(wrong_state(&region, reason));
            }
        }
        let pieces = region.legs.iter().map(|leg| CmemSpan { bytes: leg.bytes, align: leg.extent_bytes });
        let bases = self.take_cmem(&mut node, &pieces.collect::<Vec<_>>())?;
        let legs = bases.into_iter().map(|cmem_base| ReaderLeg { cmem_base, state: ShareState::Pending });
        let reader = Reader { cn, uid: order.uid, legs: legs.collect(), ends: false };
        let shares = shares_of(&region, &reader);
        region.readers.push(reader);
        if let Some(limit) = self.options.record_bytes_max
            && record_bytes(&region) > limit
        {
            return Err(ManagerError::LimitReached {
                what: "bytes of a region's record with its readers",
                limit,
            });
        }
        self.put(Change::ComputeNode(node));
        self.store_region(region, None);
        shares.into_iter().for_each(|(node, share)| self.issue(&node, NodeAction::Share(share)));
        Ok(())
    }

    fn end_share(&mut self, mut region: Region, at: usize) {
        region.readers[at].ends = true;
        let (name, owner, reader) = (region.name.clone(), region.owner, region.readers[at].cn);
        self.store_region(region.clone(), None);
        self.event(EventKind::RegionUnshared { region: name, owner, reader });
        self.reissue_unshares(&region, None);
    }

    /// Orders memory nodes to end the shares that are to end, unless such an order is pending: none was sent yet, or the
    /// last one failed. `only` limits the orders to one memory node.
    pub(super) fn reissue_unshares(&mut self, region: &Region, only: Option<&Name>) {
        if region.state == RegionState::Draining {
            // The shares end with the mapping.
            return;
        }
        for reader in region.readers.iter().filter(|reader| reader.ends) {
            for ((node, share), read) in shares_of(region, reader).into_iter().zip(&reader.legs) {
                let action = NodeAction::Unshare(share);
                let concerned = read.state != ShareState::Ended && only.is_none_or(|only| *only == node);
                if concerned && !self.index.is_pending(&self.state, &node, &action) {
                    self.issue(&node, action);
                }
            }
        }
    }

    /// Handles a memory node's result of a `Share` or `Unshare`.
    pub(super) fn share_answered(
        &mut self,
        mut region: Region,
        at: usize,
        action: &NodeAction,
        failed: bool,
    ) {
        let (NodeAction::Share(share) | NodeAction::Unshare(share)) = action else { return };
        let is_it = |reader: &Reader| {
            reader.cn == share.reader
                && reader.legs.get(at).is_some_and(|leg| leg.cmem_base == share.reader_base)
        };
        let Some(place) = region.readers.iter().position(is_it) else { return };
        let reader = &mut region.readers[place];
        if let NodeAction::Share(_) = action {
            if reader.ends {
                return;
            }
            if failed {
                return self.end_share(region, place);
            }
            reader.legs[at].state = ShareState::Served;
            let (ready, cn) = (reader.is_ready(), reader.cn);
            let (name, owner) = (region.name.clone(), region.owner);
            self.store_region(region, None);
            if ready {
                self.event(EventKind::RegionShared { region: name, owner, reader: cn });
            }
            return;
        }
        if failed {
            // The memory node may still serve the reader: the addresses stay taken until it has ended the share.
            return;
        }
        reader.legs[at].state = ShareState::Ended;
        if !reader.legs.iter().all(|leg| leg.state == ShareState::Ended) {
            return self.store_region(region, None);
        }
        let reader = region.readers.remove(place);
        let bytes: Vec<u64> = region.legs.iter().map(|leg| leg.bytes).collect();
        self.store_region(region, None);
        for (leg, bytes) in reader.legs.iter().zip(bytes) {
            self.retire_cmem(reader.cn, leg.cmem_base, bytes);
        }
    }

    /// Returns the sealed regions of other owners that a compute node reads, with the reader's own addresses.
    pub(super) fn regions_read_by(&self, cn: CnId) -> impl Iterator<Item = Region> {
        let regions = self.index.regions_read_by(cn).filter_map(|name| self.state.regions.get(name));
        regions.filter_map(move |region| {
            let reader = region.readers.iter().find(|reader| reader.cn == cn && reader.is_ready())?;
            if region.state == RegionState::Draining {
                return None;
            }
            let mut seen = region.clone();
            // A reader receives neither the owner's release nor its user id nor the list of readers.
            (seen.release, seen.uid, seen.readers) = (None, reader.uid, Vec::new());
            seen.state = self.state_of_legs(region);
            for (leg, read) in seen.legs.iter_mut().zip(&reader.legs) {
                leg.cmem_base = read.cmem_base;
            }
            Some(seen)
        })
    }

    pub(super) fn shares_on(&self, node: &Name) -> Vec<Share> {
        let regions = self.index.regions_on(node).filter_map(|name| self.state.regions.get(name));
        let mut shares = Vec::new();
        for region in regions.filter(|region| region.sealed) {
            for reader in region.readers.iter().filter(|reader| !reader.ends) {
                let all = shares_of(region, reader).into_iter().zip(&region.legs).zip(&reader.legs);
                let served = all.filter(|(((on, _), leg), read)| {
                    on == node && leg.state == LegState::Mapped && read.state == ShareState::Served
                });
                shares.extend(served.map(|(((_, share), _), _)| share));
            }
        }
        shares
    }
}

/// Returns, for each leg of a region, the leg's memory node and the share of the leg with `reader`.
fn shares_of(region: &Region, reader: &Reader) -> Vec<(Name, Share)> {
    let legs = region.legs.iter().zip(&reader.legs);
    let share = |(leg, read): (&cxloe_fabric::model::Leg, &ReaderLeg)| {
        let mapping = mapping_of(region, leg);
        (leg.memory_node.clone(), Share { mapping, reader: reader.cn, reader_base: read.cmem_base })
    };
    legs.map(share).collect()
}

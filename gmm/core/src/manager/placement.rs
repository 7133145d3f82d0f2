//! Choice of memory nodes for a region: interleave sets over the memory nodes with the most free space.
//!
//! Until the region is placed, the `ways` nodes with the most free space give equal shares, each as large as
//! the least free space among them. So a region that fits is one set on these nodes; different regions are
//! placed on different nodes; and a region that does not fit in one set consists of several consecutive sets.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::{CnId, DeviceKind, Health, MemoryNode, Name, Protection};

use super::{DECODERS_MAX, Manager, ManagerError};

#[derive(Debug, Clone, Copy)]
pub(super) struct PlacementRequest<'a> {
    pub name: &'a Name,
    pub owner: CnId,
    /// Size to be placed, in bytes.
    pub size: u64,
    /// Interleave ways: 1, 2, 3, 4, 6, 8, 12 or 16.
    pub ways: Ways,
    /// Interleave granularity: 256 bytes to 16 KiB.
    pub granularity: Granularity,
    pub protect: Protection,
    /// The memory nodes to choose from; empty: all.
    pub on: &'a [Name],
}

/// One interleave set: `bytes` on each of these memory nodes, in the order of the ways.
#[derive(Debug, Clone)]
pub(super) struct InterleaveSet {
    pub nodes: Vec<MemoryNode>,
    /// The memory nodes of copy 1, in the order of the ways; empty without a second copy.
    pub mirrors: Vec<MemoryNode>,
    pub bytes: u64,
}

pub(super) struct Candidate<'a> {
    pub node: &'a MemoryNode,
    /// Bytes of the node that are not chosen yet.
    pub available: u64,
    /// True for an unbound single logical device, which is allocated as a whole.
    pub fresh: bool,
}

impl Manager {
    /// Chooses memory for a region, or for its growth.
    pub(super) fn place(&self, wanted: PlacementRequest<'_>) -> Result<Vec<InterleaveSet>, ManagerError> {
        if wanted.protect == Protection::Mirror {
            return self.place_mirrored(&wanted);
        }
        let ways = wanted.ways.count() as usize;
        let mut candidates: Vec<Candidate<'_>> = self.candidates(&wanted)?;
        let with_room = candidates.len();
        let (mut shares, mut remaining) = (Vec::new(), wanted.size);
        while remaining > 0 && candidates.len() >= ways {
            // The first use of a memory node without slices takes the whole of it, so such a node is chosen
            // last.
            candidates.sort_by_key(|candidate| {
                (candidate.fresh, Reverse(candidate.available), &candidate.node.name)
            });
            let chosen = &mut candidates[..ways];
            let unit = chosen.iter().map(|chosen| chosen.node.extent_bytes).max().unwrap_or(1);
            let unit = unit.max(u64::from(wanted.granularity.bytes()));
            let least = chosen.iter().map(|chosen| chosen.available).min().unwrap_or(0);
            let bytes = least.min(remaining / ways as u64) / unit * unit;
            if bytes == 0 {
                // Either the remaining size or the free space of one node is less than a unit. Continues
                // without one node: one with less than a unit free, or else the one with the largest extents.
                let worst = (0..ways).max_by_key(|at| {
                    let candidate = &chosen[*at];
                    (candidate.available < unit, candidate.node.extent_bytes)
                });
                candidates.remove(worst.unwrap_or(0));
                continue;
            }
            chosen.iter_mut().for_each(|chosen| chosen.available -= bytes);
            shares.push(InterleaveSet {
                nodes: chosen.iter().map(|chosen| chosen.node.clone()).collect(),
                mirrors: Vec::new(),
                bytes,
            });
            remaining -= bytes * ways as u64;
            if shares.len() > DECODERS_MAX {
                return Err(ManagerError::LimitReached {
                    what: "decoders of a region",
                    limit: DECODERS_MAX as u64,
                });
            }
        }
        if remaining == 0 { Ok(shares) } else { Err(self.no_capacity(&wanted, with_room)) }
    }

    /// Returns the memory nodes that have memory for a region.
    pub(super) fn candidates(
        &self,
        wanted: &PlacementRequest<'_>,
    ) -> Result<Vec<Candidate<'_>>, ManagerError> {
        let mut named = BTreeSet::new();
        if let Some(twice) = wanted.on.iter().find(|name| !named.insert(*name)) {
            let reason = format!("{twice} is named twice");
            return Err(ManagerError::out_of_range(
                format!("memory nodes of region {}", wanted.name),
                reason,
            ));
        }
        if let Some(unknown) = wanted.on.iter().find(|name| !self.state.memory_nodes.contains_key(*name)) {
            return Err(ManagerError::NoMemoryNode(unknown.clone()));
        }
        let nodes = self.state.memory_nodes.values();
        let nodes = nodes.filter(|node| self.takes_legs(node));
        let nodes = nodes.filter(|node| wanted.on.is_empty() || wanted.on.contains(&node.name));
        let candidates = nodes.filter_map(|node| {
            let available = self.available(node, wanted.owner);
            let whole = self.kind_of(node) == DeviceKind::Sld;
            let fresh = whole && self.index.ld_of(wanted.owner, &node.name).is_none();
            (available > 0).then_some(Candidate { node, available, fresh })
        });
        Ok(candidates.collect())
    }

    /// Returns the bytes of `node` available to `cn`: free and not reserved for others.
    pub(super) fn available(&self, node: &MemoryNode, cn: CnId) -> u64 {
        let own = self.device_on(&node.name, cn);
        if own.is_some_and(|ld| ld.binding.as_ref().is_some_and(|binding| binding.unbinding.is_some())) {
            return 0;
        }
        let whole = self.kind_of(node) == DeviceKind::Sld;
        if whole && own.is_none() && self.is_in_use(&node.name) {
            return 0;
        }
        let for_own = own.map_or(0, |ld| ld.reserved.saturating_sub(self.index.used(&node.name, cn)));
        self.unreserved_bytes(node, for_own)
    }

    /// Returns the free bytes of `node` that are not reserved for others. `own` is the part of the reserved
    /// capacity that belongs to the requester. Part of the reserved capacity may lie in memory that is still
    /// being zeroed, and that part does not count against the free bytes.
    pub(super) fn unreserved_bytes(&self, node: &MemoryNode, own: u64) -> u64 {
        let free = self.free_bytes(node);
        let to_be = free + self.index.zeroing(&node.name) + own;
        to_be.saturating_sub(self.index.idle(&node.name)).min(free)
    }

    /// Returns true if a compute node is bound to `node` or has a region on it, including one that is being
    /// zeroed.
    pub(super) fn is_in_use(&self, node: &Name) -> bool {
        self.index.regions_on(node).next().is_some() || self.is_held(node)
    }

    /// Returns true if a compute node is bound to `node` or has a region on it that is not being zeroed.
    pub(super) fn is_held(&self, node: &Name) -> bool {
        self.index.used_by(node).next().is_some()
            || self.state.logical_devices_of(node).any(|ld| ld.binding.is_some())
    }

    /// Returns the error that explains why no memory was found for a region.
    pub(super) fn no_capacity(&self, wanted: &PlacementRequest<'_>, with_room: usize) -> ManagerError {
        let PlacementRequest { name, size, ways, owner, .. } = *wanted;
        let (name, ways) = (name.clone(), ways.count());
        if with_room < ways as usize && with_room > 0 {
            return ManagerError::TooFewNodes { name, ways, nodes: with_room };
        }
        let reachable = self.state.memory_nodes.values().filter(|node| node.health == Health::Reachable);
        let reachable: Vec<_> = reachable.map(|node| (node, self.available(node, owner))).collect();
        let free: u64 = reachable.iter().map(|(_, free)| free).sum();
        let extents = reachable.iter().filter(|(_, free)| *free > 0).map(|(node, _)| node.extent_bytes);
        let unit = extents.min().map(|extent| extent * u64::from(ways));
        match unit {
            Some(unit) if free >= size && !size.is_multiple_of(unit) => {
                ManagerError::Unaligned { name, size, ways, unit }
            }
            _ => ManagerError::NoSpace { name, size, free, held_back: self.held_back() },
        }
    }

    /// Returns the free bytes that cannot be allocated at present: on unreachable nodes, or being zeroed.
    fn held_back(&self) -> u64 {
        let unreachable = self.state.memory_nodes.values().filter(|node| node.health != Health::Reachable);
        let unreachable: u64 = unreachable.map(|node| self.free_bytes(node)).sum();
        let draining = self.state.memory_nodes.keys().map(|node| self.draining_bytes(node));
        unreachable + draining.sum::<u64>()
    }
}

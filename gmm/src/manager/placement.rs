//! Where a region's memory comes from: interleave sets over the memory nodes with the most free space.
//!
//! As long as something is missing, the `ways` emptiest nodes give equal shares, as much as the fullest of them has. So
//! a region that fits is one set, over the emptiest nodes; different regions go to different nodes; and a region that
//! does not fit in one set is several, one behind the other.

use std::cmp::Reverse;

use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::{CnId, DeviceKind, Health, MemoryNode, Name};

use super::{DECODERS_MAX, Manager, ManagerError};

/// What is to be placed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// The region.
    pub name: &'a Name,
    /// Its owner.
    pub owner: CnId,
    /// Bytes.
    pub size: u64,
    /// Interleave ways.
    pub ways: Ways,
    /// Interleave granularity.
    pub granularity: Granularity,
    /// The memory nodes to choose from; empty: all.
    pub on: &'a [Name],
}

/// One interleave set: as many bytes from each of these memory nodes, by position.
#[derive(Debug, Clone)]
pub(super) struct Share {
    pub nodes: Vec<MemoryNode>,
    pub bytes: u64,
}

struct Candidate<'a> {
    node: &'a MemoryNode,
    available: u64,
    /// A single logical device that nobody has: taking of it takes it whole.
    fresh: bool,
}

impl Manager {
    /// Finds a place for a region, or for what is added to one.
    pub(super) fn place(&self, wanted: Wanted<'_>) -> Result<Vec<Share>, ManagerError> {
        let ways = wanted.ways.count() as usize;
        let mut candidates: Vec<Candidate<'_>> = self.candidates(&wanted)?;
        let with_room = candidates.len();
        let (mut shares, mut remaining) = (Vec::new(), wanted.size);
        while remaining > 0 && candidates.len() >= ways {
            candidates.sort_by_key(|candidate| {
                (candidate.fresh, Reverse(candidate.available), &candidate.node.name)
            });
            let chosen = &mut candidates[..ways];
            let unit = chosen.iter().map(|chosen| chosen.node.extent_bytes).max().unwrap_or(1);
            let unit = unit.max(u64::from(wanted.granularity.bytes()));
            let least = chosen.iter().map(|chosen| chosen.available).min().unwrap_or(0);
            let bytes = least.min(remaining / ways as u64) / unit * unit;
            if bytes == 0 {
                // What is left is less than their extents, or one of them has less than an extent: go on without it.
                let worst = (0..ways).max_by_key(|at| {
                    let candidate = &chosen[*at];
                    (candidate.available < unit, candidate.node.extent_bytes)
                });
                candidates.remove(worst.unwrap_or(0));
                continue;
            }
            chosen.iter_mut().for_each(|chosen| chosen.available -= bytes);
            shares.push(Share { nodes: chosen.iter().map(|chosen| chosen.node.clone()).collect(), bytes });
            remaining -= bytes * ways as u64;
            if shares.len() > DECODERS_MAX {
                return Err(ManagerError::LimitReached {
                    what: "decoders of a region",
                    limit: DECODERS_MAX as u64,
                });
            }
        }
        if remaining == 0 { Ok(shares) } else { Err(self.no_place(&wanted, with_room)) }
    }

    fn candidates(&self, wanted: &Wanted<'_>) -> Result<Vec<Candidate<'_>>, ManagerError> {
        if let Some(unknown) = wanted.on.iter().find(|name| !self.state.memory_nodes.contains_key(*name)) {
            return Err(ManagerError::NoMemoryNode(unknown.clone()));
        }
        let nodes = self.state.memory_nodes.values();
        let nodes = nodes.filter(|node| node.health == Health::Reachable);
        let nodes = nodes.filter(|node| wanted.on.is_empty() || wanted.on.contains(&node.name));
        let candidates = nodes.filter_map(|node| {
            let available = self.available(node, wanted.owner);
            let whole = self.kind_of(node) == DeviceKind::Sld;
            let fresh = whole && self.index.ld_of(wanted.owner, &node.name).is_none();
            (available > 0).then_some(Candidate { node, available, fresh })
        });
        Ok(candidates.collect())
    }

    /// Bytes of `node` that `cn` can have: what is free and not set aside for others.
    pub(super) fn available(&self, node: &MemoryNode, cn: CnId) -> u64 {
        let own = self.index.ld_of(cn, &node.name);
        let own = own.and_then(|id| self.state.logical_devices.get(&(node.name.clone(), id)));
        if own.is_some_and(|ld| ld.binding.as_ref().is_some_and(|binding| binding.unbinding.is_some())) {
            return 0;
        }
        let whole = self.kind_of(node) == DeviceKind::Sld;
        if whole && own.is_none() && self.is_in_use(&node.name) {
            return 0;
        }
        let for_own = own.map_or(0, |ld| ld.reserved.saturating_sub(self.index.used(&node.name, cn)));
        self.not_set_aside(node, for_own)
    }

    /// Free bytes of `node` that are not set aside for others, when `own` of what is set aside is not for others. What is
    /// set aside may be memory that is still being zeroed, so this keeps no more of the free memory back than it has to.
    pub(super) fn not_set_aside(&self, node: &MemoryNode, own: u64) -> u64 {
        let free = self.free_bytes(node);
        let to_be = free + self.index.zeroing(&node.name) + own;
        to_be.saturating_sub(self.index.idle(&node.name)).min(free)
    }

    /// Whether anyone is bound to `node` or has a region on it, be it one that is being zeroed.
    pub(super) fn is_in_use(&self, node: &Name) -> bool {
        self.index.regions_on(node).next().is_some() || self.is_held(node)
    }

    /// Whether anyone is bound to `node` or has a region on it.
    pub(super) fn is_held(&self, node: &Name) -> bool {
        self.index.used_by(node).next().is_some()
            || self.state.logical_devices_of(node).any(|ld| ld.binding.is_some())
    }

    fn no_place(&self, wanted: &Wanted<'_>, with_room: usize) -> ManagerError {
        let Wanted { name, size, ways, owner, .. } = *wanted;
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

    /// Bytes that nobody uses and that cannot be given away now.
    fn held_back(&self) -> u64 {
        let unreachable = self.state.memory_nodes.values().filter(|node| node.health != Health::Reachable);
        let unreachable: u64 = unreachable.map(|node| self.free_bytes(node)).sum();
        let draining = self.state.memory_nodes.keys().map(|node| self.draining_bytes(node));
        unreachable + draining.sum::<u64>()
    }
}

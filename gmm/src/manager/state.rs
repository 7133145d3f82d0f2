//! Everything the manager remembers, and the changes it is made by. The state is never altered but through a [`Change`],
//! and the store writes exactly these, so what is on disk and what is in memory cannot drift apart.

use std::collections::{BTreeMap, VecDeque};

use crate::model::{CMEM_LIMIT, CnId, ComputeNode, Event, MemoryNode, Name, NodeCommand, Region, Watermark};
use serde::{Deserialize, Serialize};

use super::pool::FreeExtents;

/// Counters of the fabric.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Term of the manager and revision of the store.
    pub watermark: Watermark,
    /// Number of the latest event; 0 before the first.
    pub last_event: u64,
    /// Number of the latest registration of any node; 0 before the first.
    pub last_registration: u64,
}

/// The whole state of a fabric.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Counters.
    pub meta: Meta,
    /// Memory nodes by name.
    pub memory_nodes: BTreeMap<Name, MemoryNode>,
    /// Compute nodes by CN id.
    pub compute_nodes: BTreeMap<CnId, ComputeNode>,
    /// Regions by name.
    pub regions: BTreeMap<Name, Region>,
    /// Commands without a result, by memory node and number.
    pub commands: BTreeMap<(Name, u64), NodeCommand>,
    /// The latest events, oldest first, without gaps.
    pub events: VecDeque<Event>,
}

/// One step from a state to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The counters are now these.
    Meta(Meta),
    /// A memory node is new or now so.
    MemoryNode(MemoryNode),
    /// A compute node is new or now so.
    ComputeNode(ComputeNode),
    /// A region is new or now so.
    Region(Region),
    /// A region is gone.
    RegionGone(Name),
    /// A memory node is to carry out a command.
    CommandIssued(Name, NodeCommand),
    /// A memory node gave the result of a command.
    CommandAnswered(Name, u64),
    /// Something happened.
    Event(Event),
    /// Events below this number are forgotten.
    EventsForgotten(u64),
}

/// A state that contradicts itself: the store was damaged, or written by something else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the state contradicts itself: {0}")]
pub struct Contradiction(pub String);

impl State {
    /// Takes one step.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Meta(meta) => self.meta = meta,
            Change::MemoryNode(node) => drop(self.memory_nodes.insert(node.name.clone(), node)),
            Change::ComputeNode(node) => drop(self.compute_nodes.insert(node.cn_id, node)),
            Change::Region(region) => drop(self.regions.insert(region.name.clone(), region)),
            Change::RegionGone(name) => drop(self.regions.remove(&name)),
            Change::CommandIssued(node, command) => drop(self.commands.insert((node, command.seq), command)),
            Change::CommandAnswered(node, seq) => drop(self.commands.remove(&(node, seq))),
            Change::Event(event) => self.events.push_back(event),
            Change::EventsForgotten(before) => {
                while self.events.front().is_some_and(|event| event.seq < before) {
                    self.events.pop_front();
                }
            }
        }
    }

    /// Commands of `node` without a result, by ascending number.
    pub fn commands_of<'a>(&'a self, node: &'a Name) -> impl Iterator<Item = &'a NodeCommand> {
        self.commands.range((node.clone(), 0)..=(node.clone(), u64::MAX)).map(|(_, command)| command)
    }

    /// The free extents of `node`: all of its pool that no leg of a region holds.
    ///
    /// # Errors
    /// [`Contradiction`] when two legs hold one extent, or a leg one the pool does not have.
    pub fn free_extents(&self, node: &MemoryNode) -> Result<FreeExtents, Contradiction> {
        let mut free = FreeExtents::all(node.extent_count());
        for (region, leg) in self.legs_on(&node.name) {
            for run in leg.extents.runs() {
                free.take_run(*run).map_err(|()| {
                    let (first, last) = (run.first, run.first.saturating_add(run.count).saturating_sub(1));
                    Contradiction(format!(
                        "extents {first}..={last} of memory node {} in region {} are not there or held twice",
                        node.name, region.name
                    ))
                })?;
            }
        }
        Ok(free)
    }

    /// Every leg that lies on `node`, with its region.
    pub fn legs_on<'a>(
        &'a self,
        node: &'a Name,
    ) -> impl Iterator<Item = (&'a Region, &'a crate::model::Leg)> {
        self.regions
            .values()
            .flat_map(|region| region.legs.iter().map(move |leg| (region, leg)))
            .filter(move |(_, leg)| &leg.memory_node == node)
    }

    /// Checks all that must hold between the records.
    ///
    /// # Errors
    /// [`Contradiction`] names the first rule that is broken and by what.
    pub fn verify(&self) -> Result<(), Contradiction> {
        let check = |holds: bool, broken: &dyn Fn() -> String| {
            if holds { Ok(()) } else { Err(Contradiction(broken())) }
        };
        for node in self.memory_nodes.values() {
            check(node.extent_bytes.is_power_of_two(), &|| {
                format!("memory node {} has extents of {} bytes", node.name, node.extent_bytes)
            })?;
            self.free_extents(node)?;
            check(node.acked_seq <= node.last_seq, &|| {
                format!("memory node {} is ahead of its commands", node.name)
            })?;
        }
        let mut cmem: BTreeMap<CnId, Vec<(u64, u64)>> = BTreeMap::new();
        for region in self.regions.values() {
            let owner = self.compute_nodes.get(&region.owner);
            check(owner.is_some(), &|| {
                format!("region {} has an unknown owner {}", region.name, region.owner)
            })?;
            for leg in &region.legs {
                check(self.memory_nodes.contains_key(&leg.memory_node), &|| {
                    format!("region {} lies on the unknown memory node {}", region.name, leg.memory_node)
                })?;
                let end = leg.cmem_base.saturating_add(leg.bytes);
                let fits = end <= CMEM_LIMIT && owner.is_some_and(|owner| end <= owner.cmem_next);
                check(
                    fits && leg.bytes > 0
                        && leg.extents.len().checked_mul(leg.extent_bytes) == Some(leg.bytes),
                    &|| {
                        format!(
                            "the leg of region {} at CMem 0x{:x} has impossible bounds",
                            region.name, leg.cmem_base
                        )
                    },
                )?;
                cmem.entry(region.owner).or_default().push((leg.cmem_base, end));
            }
        }
        for (cn, ranges) in &mut cmem {
            ranges.sort_unstable();
            check(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), &|| {
                format!("CMem ranges of CN {cn} overlap")
            })?;
        }
        for ((node, seq), command) in &self.commands {
            let issued =
                self.memory_nodes.get(node).is_some_and(|n| n.acked_seq < *seq && *seq <= n.last_seq);
            check(issued && command.seq == *seq, &|| {
                format!("command {seq} of memory node {node} was never issued")
            })?;
        }
        let numbered =
            self.events.iter().rev().zip(0..).all(|(event, back)| event.seq + back == self.meta.last_event);
        check(numbered, &|| "the event log has a gap".to_owned())
    }
}

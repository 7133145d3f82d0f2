//! The stored state of the manager, and its changes. Only a [`Change`] alters the state, and the store writes exactly
//! these changes, so the stored copy and the one in memory cannot differ.

use std::collections::{BTreeMap, VecDeque};

use cxloe_fabric::api::{Orphans, Party};
use cxloe_fabric::model::{
    CMEM_LIMIT, ClearedLog, CnId, ComputeNode, Event, LDS_MAX, LeaderTerm, LogicalDevice, MemoryNode, Name,
    NodeCommand, Operation, Qos, Region, Watermark,
};
use serde::{Deserialize, Serialize};

use super::pool::FreeExtents;
use super::tokens::{JoinedNode, TokenRecord};

/// Counters that every command may change, stored with each commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Term of the manager and revision of the store.
    pub watermark: Watermark,
    /// Number of the latest event; 0 before the first.
    pub last_event: u64,
    /// Number of the latest registration of any node; 0 before the first.
    pub last_registration: u64,
    /// Random number of the fabric; 0 before a manager first started on the store.
    #[serde(default)]
    pub fabric: u64,
    /// End of the CMem addresses that were allocated to removed compute nodes: addresses of new compute nodes begin
    /// here.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cmem_forgotten: u64,
    /// Next CMem address at which legs are mapped for a memory node that copies them. The addresses rise up to the end
    /// of CMem, and begin again at 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub loan_next: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FabricState {
    /// Watermark and counters; every commit changes them.
    pub meta: Meta,
    /// Recorded leader terms, by number of the term.
    pub leader_terms: BTreeMap<u64, LeaderTerm>,
    /// Orphans, by the name of the memory node that holds them.
    pub orphans: BTreeMap<Name, Orphans>,
    /// Tokens that are not revoked, by id.
    pub tokens: BTreeMap<String, TokenRecord>,
    pub joined: BTreeMap<Party, JoinedNode>,
    /// Memory nodes that have registered, reachable or not.
    pub memory_nodes: BTreeMap<Name, MemoryNode>,
    /// Compute nodes that have registered or were named as owners.
    pub compute_nodes: BTreeMap<CnId, ComputeNode>,
    /// Regions in every state, including those being destroyed.
    pub regions: BTreeMap<Name, Region>,
    /// Logical devices that have capacity or are bound, by memory node and LD-ID.
    pub logical_devices: BTreeMap<(Name, u16), LogicalDevice>,
    /// The latest background operation of each switch.
    pub operations: BTreeMap<u32, Operation>,
    /// Quality-of-service controls of memory nodes for which any were set.
    pub qos: BTreeMap<Name, Qos>,
    /// The last cleared event of each FM API event log, by switch, port and number of the log.
    pub cleared_logs: BTreeMap<(u32, Option<u8>, u8), ClearedLog>,
    /// Commands without a result, by memory node and number.
    pub commands: BTreeMap<(Name, u64), NodeCommand>,
    /// The latest events, oldest first, without gaps.
    pub events: VecDeque<Event>,
}

/// One change of the stored state. A variant with a record adds it, in place of any earlier record with the
/// same key; a variant `...Gone` removes a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Meta(Meta),
    MemoryNode(MemoryNode),
    ComputeNode(ComputeNode),
    ComputeNodeGone(CnId),
    Region(Region),
    /// Removes a region that has no legs (parts on memory nodes) any more.
    RegionGone(Name),
    /// Removes a memory node, with its quality-of-service controls and its list of orphans.
    MemoryNodeGone(Name),
    LogicalDevice(LogicalDevice),
    /// Removes a logical device that has neither capacity nor a binding, or whose memory node is removed.
    LogicalDeviceGone(Name, u16),
    /// The background operation replaces the earlier one of its switch.
    Operation(Operation),
    Qos(Qos),
    /// New end of the cleared part of an FM API event log.
    LogCleared(ClearedLog),
    /// The command is stored until its result arrives.
    CommandIssued(Name, NodeCommand),
    /// Removes the command of this number, whose result has arrived.
    CommandAnswered(Name, u64),
    /// Adds the event, whose number is one higher than that of the latest event.
    Event(Event),
    /// Removes the events below this number.
    EventsForgotten(u64),
    /// A manager began to lead, or gave up a history that this store does not contain.
    LeaderTerm(LeaderTerm),
    LeaderTermForgotten(u64),
    Orphans(Orphans),
    OrphansGone(Name),
    Token(TokenRecord),
    /// The token is revoked or has expired.
    TokenGone(String),
    Joined(JoinedNode),
    /// The node may no longer connect.
    JoinedGone(Party),
    /// Replaces the whole state (the first value) by a backup (the second value).
    Replaced(Box<FabricState>, Box<FabricState>),
}

/// A state that contradicts itself: the store was damaged, or written by something else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the state contradicts itself: {0}")]
pub struct Contradiction(pub String);

impl FabricState {
    /// Returns the changes that lead from an empty state to this one.
    pub fn changes(&self) -> Vec<Change> {
        let mut changes = vec![Change::Meta(self.meta)];
        changes.extend(self.leader_terms.values().cloned().map(Change::LeaderTerm));
        changes.extend(self.orphans.values().cloned().map(Change::Orphans));
        changes.extend(self.tokens.values().cloned().map(Change::Token));
        changes.extend(self.joined.values().cloned().map(Change::Joined));
        changes.extend(self.memory_nodes.values().cloned().map(Change::MemoryNode));
        changes.extend(self.compute_nodes.values().cloned().map(Change::ComputeNode));
        changes.extend(self.regions.values().cloned().map(Change::Region));
        changes.extend(self.logical_devices.values().cloned().map(Change::LogicalDevice));
        changes.extend(self.operations.values().cloned().map(Change::Operation));
        changes.extend(self.qos.values().cloned().map(Change::Qos));
        changes.extend(self.cleared_logs.values().cloned().map(Change::LogCleared));
        let commands = self.commands.iter();
        changes.extend(
            commands.map(|((node, _), command)| Change::CommandIssued(node.clone(), command.clone())),
        );
        changes.extend(self.events.iter().cloned().map(Change::Event));
        changes
    }

    /// Applies one change, without any check.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Replaced(_, after) => *self = *after,
            Change::Meta(meta) => self.meta = meta,
            Change::MemoryNode(node) => drop(self.memory_nodes.insert(node.name.clone(), node)),
            Change::ComputeNode(node) => drop(self.compute_nodes.insert(node.cn_id, node)),
            Change::ComputeNodeGone(cn) => drop(self.compute_nodes.remove(&cn)),
            Change::Region(region) => drop(self.regions.insert(region.name.clone(), region)),
            Change::RegionGone(name) => drop(self.regions.remove(&name)),
            Change::MemoryNodeGone(name) => {
                self.memory_nodes.remove(&name);
                self.qos.remove(&name);
                self.orphans.remove(&name);
            }
            Change::LogicalDevice(ld) => {
                drop(self.logical_devices.insert((ld.memory_node.clone(), ld.id), ld))
            }
            Change::LogicalDeviceGone(node, id) => drop(self.logical_devices.remove(&(node, id))),
            Change::Operation(operation) => drop(self.operations.insert(operation.switch, operation)),
            Change::Qos(qos) => drop(self.qos.insert(qos.memory_node.clone(), qos)),
            Change::LogCleared(log) => drop(self.cleared_logs.insert(log.place(), log)),
            Change::CommandIssued(node, command) => drop(self.commands.insert((node, command.seq), command)),
            Change::CommandAnswered(node, seq) => drop(self.commands.remove(&(node, seq))),
            Change::Event(event) => self.events.push_back(event),
            Change::EventsForgotten(before) => {
                while self.events.front().is_some_and(|event| event.seq < before) {
                    self.events.pop_front();
                }
            }
            Change::LeaderTerm(leader) => drop(self.leader_terms.insert(leader.term, leader)),
            Change::LeaderTermForgotten(term) => drop(self.leader_terms.remove(&term)),
            Change::Orphans(orphans) => drop(self.orphans.insert(orphans.memory_node.clone(), orphans)),
            Change::OrphansGone(name) => drop(self.orphans.remove(&name)),
            Change::Token(token) => drop(self.tokens.insert(token.id.clone(), token)),
            Change::TokenGone(id) => drop(self.tokens.remove(&id)),
            Change::Joined(joined) => drop(self.joined.insert(joined.node.clone(), joined)),
            Change::JoinedGone(node) => drop(self.joined.remove(&node)),
        }
    }

    /// Returns the commands of `node` without a result, by ascending number.
    pub fn commands_of<'a>(&'a self, node: &'a Name) -> impl Iterator<Item = &'a NodeCommand> {
        self.commands.range((node.clone(), 0)..=(node.clone(), u64::MAX)).map(|(_, command)| command)
    }

    /// Returns the logical devices of `node` that have capacity or are bound, by LD-ID.
    pub fn logical_devices_of<'a>(
        &'a self,
        node: &Name,
    ) -> impl Iterator<Item = &'a LogicalDevice> + use<'a> {
        self.logical_devices.range((node.clone(), 0)..(node.clone(), LDS_MAX)).map(|(_, ld)| ld)
    }

    /// Returns the free extents of each memory node: those of its pool that belong to no leg of a region and
    /// to no orphan.
    ///
    /// # Errors
    /// [`Contradiction`] if an extent belongs to two legs, or a leg has one that is outside the pool.
    pub(crate) fn free_extents(&self) -> Result<BTreeMap<Name, FreeExtents>, Contradiction> {
        let pools = self.memory_nodes.values();
        let mut free: BTreeMap<Name, FreeExtents> =
            pools.map(|node| (node.name.clone(), FreeExtents::all(node.extent_count()))).collect();
        for region in self.regions.values() {
            for leg in &region.legs {
                let node = &leg.memory_node;
                let Some(free) = free.get_mut(node) else {
                    let region = &region.name;
                    return Err(Contradiction(format!(
                        "region {region} lies on the unknown memory node {node}"
                    )));
                };
                for run in leg.extents.runs() {
                    free.take_run(*run).map_err(|()| {
                        let last = run.first.saturating_add(run.count).saturating_sub(1);
                        let (first, region) = (run.first, &region.name);
                        Contradiction(format!(
                            "extents {first}..={last} of memory node {node} in region {region} are not there or held twice"
                        ))
                    })?;
                }
            }
        }
        for (node, orphans) in &self.orphans {
            // An orphan may overlap a lost leg, whose extents are not free: only the free extents of the orphan are
            // withheld.
            if let Some(free) = free.get_mut(node) {
                orphans.orphans.iter().for_each(|orphan| free.withhold(&orphan.extents));
            }
        }
        Ok(free)
    }

    /// Checks the invariants between the records.
    ///
    /// # Errors
    /// [`Contradiction`] with the first violated invariant and the record that violates it.
    pub fn verify(&self) -> Result<(), Contradiction> {
        let check = |holds: bool, broken: &dyn Fn() -> String| {
            if holds { Ok(()) } else { Err(Contradiction(broken())) }
        };
        for node in self.memory_nodes.values() {
            check(node.extent_bytes.is_power_of_two(), &|| {
                format!("memory node {} has extents of {} bytes", node.name, node.extent_bytes)
            })?;
            check(node.acked_seq <= node.last_seq, &|| {
                format!("memory node {} is ahead of its commands", node.name)
            })?;
        }
        self.free_extents()?;
        let (term, revision) = (self.meta.watermark.term, self.meta.watermark.revision);
        let mut terms = self.leader_terms.values().map(|leader| (leader.term, leader.first));
        check(self.leader_terms.values().is_sorted_by_key(|leader| leader.first), &|| {
            "the managers that led it are out of order".to_owned()
        })?;
        check(terms.all(|(led, first)| led <= term && first <= revision), &|| {
            "managers led it that are yet to come".to_owned()
        })?;
        for name in self.orphans.keys() {
            check(self.memory_nodes.contains_key(name), &|| {
                format!("memory of the unknown memory node {name} is kept")
            })?;
        }
        for ld in self.logical_devices.values() {
            let bound = ld.binding.as_ref().is_none_or(|b| self.compute_nodes.contains_key(&b.compute_node));
            check(self.memory_nodes.contains_key(&ld.memory_node) && ld.id < LDS_MAX && bound, &|| {
                format!("LD {} of memory node {} cannot be", ld.id, ld.memory_node)
            })?;
        }
        let mut cmem: BTreeMap<CnId, Vec<(u64, u64)>> = BTreeMap::new();
        for region in self.regions.values() {
            let owner = self.compute_nodes.get(&region.owner);
            check(owner.is_some(), &|| {
                format!("region {} has an unknown owner {}", region.name, region.owner)
            })?;
            check(decoders_fit(region), &|| {
                format!("the decoders of region {} do not cover it", region.name)
            })?;
            check(super::mirror::copies_fit(region), &|| {
                format!("copies of a part of region {} clash", region.name)
            })?;
            let complete = region.readers.iter().all(|reader| reader.legs.len() == region.legs.len());
            check(region.readers.is_empty() || region.sealed && complete, &|| {
                format!("the readers of region {} cannot be", region.name)
            })?;
            for reader in &region.readers {
                for (read, leg) in reader.legs.iter().zip(&region.legs) {
                    let end = read.cmem_base.saturating_add(leg.bytes);
                    cmem.entry(reader.cn).or_default().push((read.cmem_base, end));
                }
            }
            for leg in &region.legs {
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
                // The place of a loan belongs to no compute node, and during a change to one the former place is this
                // leg's own.
                if let Some(former) = leg.former.filter(|_| leg.lent.is_none()) {
                    let end = former.cmem_base.saturating_add(leg.bytes);
                    cmem.entry(former.cn).or_default().push((former.cmem_base, end));
                }
            }
        }
        for node in self.compute_nodes.values().filter(|node| !node.retired.is_empty()) {
            let ranges = cmem.entry(node.cn_id).or_default();
            for range in &node.retired {
                let end = range.base.saturating_add(range.bytes);
                check(range.bytes > 0 && end <= node.cmem_next, &|| {
                    format!("CMem that CN {} had has impossible bounds", node.cn_id)
                })?;
                ranges.push((range.base, end));
            }
        }
        // An address must not lead to two regions, nor to a region and a range that is not reused yet.
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

/// Returns true if the decoders of a region are consecutive and interleave over exactly its legs.
fn decoders_fit(region: &Region) -> bool {
    let mut end = 0;
    let follow = region.decoders.iter().all(|decoder| {
        let starts = decoder.offset == end;
        end = decoder.offset.saturating_add(decoder.size);
        starts && decoder.size > 0
    });
    let committed: u64 = region.decoders.iter().filter(|d| d.committed).map(|d| d.size).sum();
    let legs_fit = region.legs.iter().all(|leg| {
        let decoder = region.decoders.get(leg.decoder as usize);
        decoder.is_some_and(|decoder| {
            leg.position < decoder.ways.count() && leg.bytes == decoder.size / u64::from(decoder.ways.count())
        })
    });
    follow && legs_fit && region.size == committed
}

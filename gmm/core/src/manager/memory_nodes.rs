//! Commands of memory nodes: registration, and delivery of commands to them. A memory node that returns under
//! its name receives the mappings that it has to serve, and every command that it has not confirmed.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use cxloe_fabric::api::{
    MemoryNodeRegistered, MemoryNodeStatus, MemoryNodeSynced, Party, RegisterMemoryNode,
};
use cxloe_fabric::model::{
    CloneCmem, CnId, EventKind, HandOver, Health, Leg, LegState, LogicalDevice, Mac, Mapping, MemoryNode,
    Name, NodeAction, NodeCommand, Region, RegionState, UdpPeer, Watermark,
};

use super::keys::kept_key;
use super::liveness::NodeKey;
use super::mirror::{is_live, lose_loan, other_is_in_sync};
use super::pool::FreeExtents;
use super::reports::SHOWN_MAX;
use super::{Change, MEMORY_NODES_MAX, Manager, ManagerError, PORTS_MAX};

/// The smallest extent in bytes: a page.
const EXTENT_BYTES_MIN: u64 = 4096;
/// The largest pool in bytes: the range of CMem addresses.
const POOL_BYTES_MAX: u64 = cxloe_fabric::model::CMEM_LIMIT;
/// Maximum number of commands in an answer. A memory node carries all of them out before it reports the results, which
/// have to fit into the body of one request.
const COMMANDS_PER_ANSWER_MAX: usize = 256;

impl Manager {
    /// Returns the answer to the registration of a memory node; `seen` is the latest watermark that the node
    /// has seen. `None` if no memory node has this name.
    pub fn memory_node_registered(&self, name: &Name, seen: Watermark) -> Option<MemoryNodeRegistered> {
        let node = self.state.memory_nodes.get(name)?;
        let served = self.legs_on(name).filter(|(_, leg)| {
            // A leg whose owner is changing is left out: its pending command maps it for the new owner.
            let mapped = matches!(leg.state, LegState::Mapped | LegState::Stale) && leg.former.is_none();
            mapped && leg.incarnation == Some(node.incarnation)
        });
        Some(MemoryNodeRegistered {
            registration: node.registration,
            watermark: self.watermark(),
            lineage: self.lineage_for(seen),
            heartbeat_ms: self.heartbeat_ms(),
            acked_seq: node.acked_seq,
            mappings: served.map(|(region, leg)| self.with_key(mapping_of(region, leg))).collect(),
            shares: self.shares_on(name),
            unowned: self.free.get(name).map(FreeExtents::extents).unwrap_or_default(),
            udp_peers: self.udp_peers(name),
            cn_keys: self.cn_keys(name),
        })
    }

    /// Returns the answer to a sync: the first commands to a memory node that have no result yet.
    pub fn memory_node_synced(&self, name: &Name) -> MemoryNodeSynced {
        let Watermark { term, revision, .. } = self.watermark();
        let commands = self.state.commands_of(name).take(COMMANDS_PER_ANSWER_MAX).map(|command| {
            let action = match command.action.clone() {
                NodeAction::MapCmem(mapping) => NodeAction::MapCmem(self.with_key(mapping)),
                other @ (NodeAction::UnmapCmem(_) | NodeAction::Share(_) | NodeAction::Unshare(_)) => other,
                NodeAction::Clone(order) => {
                    NodeAction::Clone(CloneCmem { mapping: self.with_key(order.mapping), ..order })
                }
                NodeAction::HandOver(order) => {
                    NodeAction::HandOver(HandOver { mapping: self.with_key(order.mapping), ..order })
                }
            };
            NodeCommand { seq: command.seq, term, revision, action }
        });
        MemoryNodeSynced {
            watermark: self.watermark(),
            heartbeat_ms: self.heartbeat_ms(),
            commands: commands.collect(),
            udp_peers: self.udp_peers(name),
            cn_keys: self.cn_keys(name),
            fills: self.fills_on(name),
        }
    }

    /// Returns the UDP addresses of the compute nodes that use the `udp` link and have memory on `node`, by
    /// CN id, and of the memory nodes that copy parts of regions from it or to it.
    pub fn udp_peers(&self, node: &Name) -> Vec<UdpPeer> {
        let peer = |cn: CnId| {
            let address = self.state.compute_nodes.get(&cn)?.udp?;
            Some(UdpPeer { compute_node: cn, address })
        };
        let mut peers: Vec<UdpPeer> = self.users_of(node).into_iter().filter_map(peer).collect();
        for name in self.fill_partners(node) {
            let partner = self.state.memory_nodes.get(&name);
            let id = partner.and_then(|partner| CnId::new(*partner.macs.first()?).ok());
            let address = partner.and_then(|partner| partner.udp);
            peers.extend(id.zip(address).map(|(compute_node, address)| UdpPeer { compute_node, address }));
        }
        peers
    }

    /// Returns the compute nodes that own regions on `node` or read sealed regions there.
    pub(super) fn users_of(&self, node: &Name) -> BTreeSet<CnId> {
        let users = |(region, _): (&Region, &Leg)| {
            let readers: Vec<CnId> = region.readers.iter().map(|reader| reader.cn).collect();
            readers.into_iter().chain([region.owner])
        };
        self.legs_on(node).flat_map(users).collect()
    }

    /// Makes the memory nodes that serve a compute node receive the compute node's new address or key.
    pub(super) fn peer_changed(&mut self, cn: CnId) {
        let nodes: BTreeSet<Name> = self
            .index
            .regions_of(cn)
            .chain(self.index.regions_read_by(cn))
            .filter_map(|name| self.state.regions.get(name))
            .flat_map(|region| region.legs.iter().map(|leg| leg.memory_node.clone()))
            .collect();
        for name in nodes {
            if let Some(node) = self.state.memory_nodes.get(&name).cloned() {
                // The unchanged record is stored only because each change wakes the long poll of its memory
                // node.
                self.put(Change::MemoryNode(node));
            }
        }
    }

    /// Returns every memory node with its use and its latest report. Reports that would make the answer too long are
    /// left out.
    pub fn memory_node_statuses(&self) -> Vec<MemoryNodeStatus> {
        let mut room = SHOWN_MAX;
        let status = |node: &MemoryNode| MemoryNodeStatus {
            free_bytes: self.free_bytes(node),
            reserved_bytes: self.index.idle(&node.name),
            draining_bytes: self.draining_bytes(&node.name),
            orphan_bytes: self.orphan_bytes(&node.name),
            pending_commands: self.state.commands_of(&node.name).count() as u64,
            stats: self.reports.within(&node.name, &mut room).cloned().unwrap_or_default(),
            node: node.clone(),
        };
        self.state.memory_nodes.values().map(status).collect()
    }

    /// Returns the latest report of a memory node; `None` if there is none since this manager started.
    pub fn stats_of(&self, name: &Name) -> Option<&serde_json::Value> {
        self.reports.get(name).map(|report| &report.stats)
    }

    pub(super) fn legs_on<'a>(&'a self, node: &'a Name) -> impl Iterator<Item = (&'a Region, &'a Leg)> {
        let regions = self.index.regions_on(node).filter_map(|name| self.state.regions.get(name));
        let legs = regions.flat_map(|region| region.legs.iter().map(move |leg| (region, leg)));
        legs.filter(move |(_, leg)| &leg.memory_node == node)
    }

    pub(super) fn draining_bytes(&self, node: &Name) -> u64 {
        let draining = self.legs_on(node).filter(|(_, leg)| leg.state == LegState::Unmapping);
        draining.map(|(_, leg)| leg.bytes).sum()
    }

    /// Returns the bytes of `node` that belong to no region and to no orphan.
    pub fn free_bytes(&self, node: &MemoryNode) -> u64 {
        self.free.get(&node.name).map_or(0, |free| free.count() * node.extent_bytes)
    }

    pub(super) fn register_memory_node(&mut self, register: RegisterMemoryNode) -> Result<(), ManagerError> {
        let known = self.state.memory_nodes.get(&register.name).cloned();
        self.check_registration(&register, known.as_ref())?;
        self.check_seen(&Party::MemoryNode(register.name.clone()), register.seen)?;
        let free_index = || {
            let taken: BTreeSet<u32> = self.state.memory_nodes.values().map(|node| node.index).collect();
            (0..).find(|index| !taken.contains(index)).unwrap_or(u32::MAX)
        };
        let index = known.as_ref().map_or_else(free_index, |known| known.index);
        let party = Party::MemoryNode(register.name.clone());
        let key = kept_key(&party, known.as_ref().and_then(|known| known.key), register.key)?;
        let RegisterMemoryNode {
            name,
            kind,
            macs,
            udp,
            key: _,
            rack,
            pool_bytes,
            extent_bytes,
            incarnation,
            instance_id,
            started_ms,
            mtu,
            seen: _,
        } = register;
        let node = MemoryNode {
            name: name.clone(),
            index,
            kind,
            macs,
            udp,
            key,
            rack,
            draining: known.as_ref().is_some_and(|known| known.draining),
            pool_bytes,
            extent_bytes,
            incarnation,
            instance_id,
            started_ms,
            mtu,
            registration: self.next_registration(),
            health: Health::Reachable,
            last_seq: known.as_ref().map_or(0, |known| known.last_seq),
            acked_seq: known.as_ref().map_or(0, |known| known.acked_seq),
        };
        self.put(Change::MemoryNode(node.clone()));
        self.progress.remove(&name);
        self.fills.note_progress(&name, &[]);
        if known.as_ref().is_none_or(|known| known.instance_id != instance_id) {
            self.superseded.succeed(&name, known.as_ref().map(|known| known.instance_id), self.now_ms);
        }
        if known.as_ref().is_none_or(|known| known.incarnation != incarnation) {
            self.orphans_lost(&name);
        }
        self.refresh_free(&node);
        self.liveness.heard(NodeKey::Memory(name.clone()), self.now_ms);
        self.event(EventKind::MemoryNodeRegistered { memory_node: name.clone(), incarnation, pool_bytes });
        self.refresh_legs(&node);
        self.repair_again();
        self.realise_declared();
        Ok(())
    }

    /// Computes the free extents of a memory node again, after a registration that may have changed its
    /// pool's size.
    pub(super) fn refresh_free(&mut self, node: &MemoryNode) {
        let mut free = FreeExtents::all(node.extent_count());
        let runs = self.legs_on(&node.name).flat_map(|(_, leg)| leg.extents.runs());
        // `check_geometry` has passed: the pool contains every allocated extent.
        runs.for_each(|run| free.take_run(*run).unwrap_or(()));
        self.orphans_on(&node.name).iter().for_each(|orphan| free.withhold(&orphan.extents));
        self.free.insert(node.name.clone(), free);
    }

    fn check_registration(
        &self,
        new: &RegisterMemoryNode,
        known: Option<&MemoryNode>,
    ) -> Result<(), ManagerError> {
        let out_of_range = |what: &str, reason: String| {
            Err(ManagerError::out_of_range(format!("{what} of memory node {}", new.name), reason))
        };
        let distinct: BTreeSet<Mac> = new.macs.iter().copied().collect();
        if new.macs.is_empty() || new.macs.len() > PORTS_MAX || distinct.len() != new.macs.len() {
            return out_of_range("addresses", format!("1 to {PORTS_MAX} distinct ones are needed"));
        }
        if let Some(mac) = new.macs.iter().find(|mac| !mac.is_unicast()) {
            return out_of_range("addresses", format!("{mac} is not a unicast address"));
        }
        if let Some(udp) = new.udp.filter(|udp| !is_single_address(udp)) {
            return out_of_range("UDP address", format!("{udp} is not one address and a port"));
        }
        if !new.extent_bytes.is_power_of_two() || new.extent_bytes < EXTENT_BYTES_MIN {
            let reason =
                format!("{} bytes are not a power of two of at least {EXTENT_BYTES_MIN}", new.extent_bytes);
            return out_of_range("extent size", reason);
        }
        if new.pool_bytes < new.extent_bytes || new.pool_bytes > POOL_BYTES_MAX {
            let reason = format!("{} bytes are not between one extent and {POOL_BYTES_MAX}", new.pool_bytes);
            return out_of_range("pool size", reason);
        }
        for other in self.state.memory_nodes.values().filter(|other| other.name != new.name) {
            if let Some(mac) = other.macs.iter().find(|mac| distinct.contains(mac)) {
                return Err(ManagerError::mac_taken(*mac, &new.name, &other.name));
            }
        }
        let Some(known) = known else {
            let full = self.state.memory_nodes.len() >= MEMORY_NODES_MAX;
            let limit = MEMORY_NODES_MAX as u64;
            return if full {
                Err(ManagerError::LimitReached { what: "memory nodes", limit })
            } else {
                Ok(())
            };
        };
        let attached = self.liveness.is_attached(&NodeKey::Memory(new.name.clone()));
        if attached && known.instance_id != new.instance_id {
            return Err(ManagerError::InUse { who: format!("memory node {}", new.name) });
        }
        // Registrations may arrive late: a process that started before the present one does not replace it.
        let before = known.instance_id != new.instance_id && (1..known.started_ms).contains(&new.started_ms);
        if self.superseded.has(&new.name, new.instance_id, self.now_ms)
            || before && self.superseded.is_fresh(&new.name, self.now_ms)
        {
            return Err(ManagerError::Succeeded { who: format!("memory node {}", new.name) });
        }
        self.check_geometry(new, known)
    }

    /// Refuses a registration whose pool has another extent size, or lacks an extent that is allocated. A pool may grow
    /// under its regions.
    fn check_geometry(&self, new: &RegisterMemoryNode, known: &MemoryNode) -> Result<(), ManagerError> {
        let orphans = self.orphans_on(&new.name).iter().flat_map(|orphan| orphan.extents.runs());
        // A pool with another incarnation has lost its orphans. With the same incarnation, the pool must still contain
        // their extents, as those of regions.
        let orphans = orphans.filter(|_| new.incarnation == known.incarnation);
        let ends = self.legs_on(&new.name).flat_map(|(_, leg)| leg.extents.runs()).chain(orphans);
        let Some(held_end) = ends.map(|run| run.first + run.count).max() else {
            return self.check_kind(new, known);
        };
        let refuse = |change| Err(ManagerError::GeometryChanged { node: new.name.clone(), change });
        if new.extent_bytes != known.extent_bytes {
            refuse(format!("extents of {} bytes instead of {}", new.extent_bytes, known.extent_bytes))
        } else if new.pool_bytes / new.extent_bytes < held_end {
            refuse(format!("a pool of {} bytes, less than its regions reach", new.pool_bytes))
        } else {
            self.check_kind(new, known)
        }
    }

    /// Refuses to change a memory node between allocation as a whole and in slices while a compute node uses it.
    fn check_kind(&self, new: &RegisterMemoryNode, known: &MemoryNode) -> Result<(), ManagerError> {
        if new.kind == known.kind || !self.is_in_use(&new.name) {
            return Ok(());
        }
        let change = format!("as {} instead of {}", new.kind, known.kind);
        Err(ManagerError::GeometryChanged { node: new.name.clone(), change })
    }

    /// Updates the legs (parts of regions) on a memory node that registered: address and key, lost content, pending
    /// unmaps.
    pub(super) fn refresh_legs(&mut self, node: &MemoryNode) {
        for mut region in self.regions_on(&node.name) {
            let (mut reason, mut again, mut outdated) = (None, Vec::new(), false);
            let mut hand_over = Vec::new();
            let (is_clone, mut cloned_in_vain) = (region.origin.is_some() && region.size == 0, false);
            let here = (0..region.legs.len()).filter(|at| region.legs[*at].memory_node == node.name);
            for at in here.collect::<Vec<_>>() {
                let committed = region.is_committed(&region.legs[at]);
                let elsewhere = committed && other_is_in_sync(&region, at);
                let leg = &mut region.legs[at];
                if leg.macs != node.macs || leg.udp != node.udp {
                    leg.macs.clone_from(&node.macs);
                    leg.udp = node.udp;
                    reason = Some(format!("memory node {} has other addresses", node.name));
                }
                if leg.mn_key != node.key {
                    leg.mn_key = node.key;
                    reason = Some(format!("memory node {} has another key", node.name));
                }
                let content_there = leg.incarnation == Some(node.incarnation);
                if !content_there {
                    lose_loan(leg, elsewhere);
                }
                match leg.state {
                    LegState::Mapped if !content_there && !committed && is_clone => cloned_in_vain = true,
                    LegState::Mapped if !content_there && !committed => {
                        // No content was written to this leg yet: it is mapped again.
                        (leg.state, leg.incarnation) = (LegState::Mapping, None);
                        again.push(leg.clone());
                    }
                    // The other copy has the content: this leg is mapped with zeros, and then filled.
                    LegState::Mapped if !content_there && elsewhere => {
                        (leg.state, leg.incarnation) = (LegState::Mapping, None);
                        again.push(leg.clone());
                        outdated = true;
                    }
                    LegState::Stale if !content_there => {
                        (leg.state, leg.incarnation) = (LegState::Mapping, None);
                        again.push(leg.clone());
                    }
                    LegState::Mapped if !content_there => {
                        leg.state = LegState::Lost;
                        reason = Some(format!(
                            "memory node {} lost the content of its pool; `gmm reset-region {}` gives the region back, \
                             with zeros there",
                            node.name, region.name
                        ));
                    }
                    // The memory node has returned with the pool that contains the leg's content.
                    LegState::Lost if content_there => {
                        leg.state = if elsewhere { LegState::Stale } else { LegState::Mapped };
                        if leg.former.is_some() {
                            hand_over.push(leg.clone());
                        }
                    }
                    _ => {}
                }
            }
            if cloned_in_vain && region.state != RegionState::Draining {
                self.clone_failed(region, format!("memory node {} lost the content of its pool", node.name));
                continue;
            }
            self.settle(region.clone(), reason);
            if outdated {
                self.stale_event(
                    &region.name,
                    node.name.clone(),
                    "its memory node lost the content of its pool",
                );
            }
            for leg in again {
                self.issue(&node.name, NodeAction::MapCmem(mapping_of(&region, &leg)));
            }
            for leg in hand_over.iter().filter(|leg| !self.is_being_handed_over(leg)).collect::<Vec<_>>() {
                self.send_hand_over(&region, leg);
            }
            self.reissue_unmaps(&region, Some(&node.name));
            self.reissue_unshares(&region, Some(&node.name));
        }
    }

    pub(super) fn memory_node_silent(&mut self, name: &Name) {
        self.memory_node_out_of_reach(name, &format!("memory node {name} is unreachable"));
    }

    /// Marks a node unreachable and records the reason. No effect on a node that is unreachable already.
    pub(super) fn memory_node_out_of_reach(&mut self, name: &Name, reason: &str) {
        let Some(mut node) = self.state.memory_nodes.get(name).cloned() else { return };
        if node.health == Health::Unreachable {
            return;
        }
        node.health = Health::Unreachable;
        self.put(Change::MemoryNode(node));
        self.event(EventKind::MemoryNodeUnreachable { memory_node: name.clone() });
        self.give_up_binding(name);
        for region in self.regions_on(name) {
            let degrades = matches!(region.state, RegionState::Active | RegionState::Exposed);
            self.settle(region, degrades.then(|| reason.to_owned()));
        }
    }

    pub(super) fn regions_on(&self, node: &Name) -> Vec<Region> {
        self.index.regions_on(node).filter_map(|name| self.state.regions.get(name)).cloned().collect()
    }

    /// Removes the record of a memory node that will not return. If it returns nevertheless, it registers as
    /// a new one: it serves none of its earlier mappings, and keeps their memory until its orphans are
    /// released.
    pub(super) fn forget_memory_node(&mut self, name: &Name, force: bool) -> Result<(), ManagerError> {
        let node = self.memory_node(name)?;
        let refuse =
            |reason: &str| Err(ManagerError::StillNeeded { node: name.clone(), reason: reason.to_owned() });
        if node.health == Health::Reachable {
            return refuse("it is there: end its mn-server first");
        }
        let lost_with_it = |region: &Region| region.state != RegionState::Draining && !outlives(region, name);
        if !force && self.regions_on(name).iter().any(lost_with_it) {
            return refuse("regions lie on it, and would be lost");
        }
        if !force && !self.orphans_on(name).is_empty() {
            return refuse("it holds orphaned memory, which would be recorded nowhere then");
        }
        for region in self.regions_on(name) {
            if lost_with_it(&region) {
                self.drain(region.clone(), Some(format!("memory node {name} is gone for good")));
            }
            if let Some(mut region) = self.state.regions.get(&region.name).cloned()
                && region.state != RegionState::Draining
            {
                let committed = region.decoders.clone();
                let here = |leg: &&mut Leg| {
                    let decoder = committed.get(leg.decoder as usize);
                    &leg.memory_node == name && decoder.is_some_and(|decoder| decoder.committed)
                };
                region.legs.iter_mut().filter(here).for_each(|leg| leg.state = LegState::Unmapping);
                self.settle(region, Some(format!("memory node {name} is gone for good")));
            }
            let growing = self.state.regions.get(&region.name).filter(|region| {
                region.state != RegionState::Draining
                    && region.legs.iter().any(|leg| &leg.memory_node == name && !region.is_committed(leg))
            });
            if let Some(growing) = growing.cloned() {
                self.drain_growth(growing, format!("memory node {name} is gone for good"));
            }
            while let Some(region) = self.state.regions.get(&region.name).cloned()
                && let Some(at) = region.legs.iter().position(|leg| &leg.memory_node == name)
            {
                self.leg_gone(region, at);
            }
            // A move of the region may have waited for the legs that were removed.
            self.hand_over_released(&region.name);
        }
        let pending: Vec<u64> = self.state.commands_of(name).map(|command| command.seq).collect();
        pending.into_iter().for_each(|seq| self.put(Change::CommandAnswered(name.clone(), seq)));
        let lds: Vec<LogicalDevice> = self.state.logical_devices_of(name).cloned().collect();
        for ld in lds {
            self.put(Change::LogicalDeviceGone(name.clone(), ld.id));
            if let Some(binding) = ld.binding {
                let (memory_node, compute_node) = (name.clone(), binding.compute_node);
                let unbound = EventKind::LdUnbound { memory_node, ld: ld.id, compute_node };
                self.region_event(compute_node, unbound);
            }
        }
        self.put(Change::MemoryNodeGone(name.clone()));
        self.free.remove(name);
        self.reports.forget(name);
        self.progress.remove(name);
        self.superseded.forget(name);
        self.liveness.forget(&NodeKey::Memory(name.clone()));
        self.event(EventKind::MemoryNodeForgotten { memory_node: name.clone() });
        Ok(())
    }
}

/// Returns true if a region's content survives the removal of `node`: each leg in use on `node` has another
/// copy in sync.
fn outlives(region: &Region, node: &Name) -> bool {
    let legs = (0..region.legs.len()).filter(|at| &region.legs[*at].memory_node == node);
    let mut legs = legs.filter(|at| is_live(&region.legs[*at]));
    region.size > 0 && legs.all(|at| !region.is_committed(&region.legs[at]) || other_is_in_sync(region, at))
}

/// Returns true if the address is that of a single node: neither unspecified nor multicast.
pub(super) fn is_single_address(address: &SocketAddr) -> bool {
    address.port() != 0 && !address.ip().is_unspecified() && !address.ip().is_multicast()
}

/// Returns the CN id and the first CMem address at which a leg is to be served: those of the region's owner, or of the
/// memory node that the leg is lent to.
pub(super) fn served_at(region: &Region, leg: &Leg) -> (CnId, u64) {
    leg.loan().map_or((region.owner, leg.cmem_base), |loan| (loan.cn, loan.cmem_base))
}

/// Returns the mapping that serves a leg, without the compute node's key, which is added at delivery.
pub(super) fn mapping_of(region: &Region, leg: &Leg) -> Mapping {
    let (cn, cmem_base) = served_at(region, leg);
    Mapping {
        cn,
        region: region.name.clone(),
        cmem_base,
        extent_bytes: leg.extent_bytes,
        extents: leg.extents.clone(),
        // A leg that is lent as the source of a copy is only read.
        sealed: if leg.loan().is_some() { leg.is_in_sync() } else { region.sealed },
        cn_key: None,
    }
}

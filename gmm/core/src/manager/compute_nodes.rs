//! Commands of compute nodes: registration, notification of changes to their regions, and their removal.

use cxloe_fabric::api::{
    ComputeNodeRegistered, ComputeNodeSync, ComputeNodeSynced, Owner, Party, RegisterComputeNode, VppbError,
};
use cxloe_fabric::model::{CnId, ComputeNode, Event, EventKind, Health, Name, Region, Retired, Watermark};

use super::keys::kept_key;
use super::liveness::NodeKey;
use super::memory_nodes::is_single_address;
use super::{COMPUTE_NODES_MAX, Change, EVENTS_PER_ANSWER_MAX, Initialisation, Manager, ManagerError};

impl Manager {
    /// Returns the answer to the registration of a compute node; `seen` is the latest watermark that the node
    /// has seen. `None` if no compute node has this id.
    pub fn compute_node_registered(&self, cn: CnId, seen: Watermark) -> Option<ComputeNodeRegistered> {
        let node = self.state.compute_nodes.get(&cn)?;
        Some(ComputeNodeRegistered {
            registration: node.registration,
            term: self.watermark().term,
            watermark: self.watermark(),
            lineage: self.lineage_for(seen),
            heartbeat_ms: self.heartbeat_ms(),
            after_event: node.regions_event,
            regions: self.regions_of(cn),
            devices: self.devices_of(cn).cloned().collect(),
            held: node.held,
        })
    }

    /// Returns true if a region of the compute node has changed after event `after_event`.
    pub fn regions_changed(&self, cn: CnId, after_event: u64) -> bool {
        self.state.compute_nodes.get(&cn).is_some_and(|node| node.regions_event != after_event)
    }

    /// Returns the answer to a sync, with the regions of the compute node if they changed since
    /// `after_event`.
    pub fn compute_node_synced(&self, cn: CnId, after_event: u64) -> ComputeNodeSynced {
        let changed = self.regions_changed(cn, after_event);
        ComputeNodeSynced {
            term: self.watermark().term,
            watermark: self.watermark(),
            heartbeat_ms: self.heartbeat_ms(),
            after_event: self.state.compute_nodes.get(&cn).map_or(after_event, |node| node.regions_event),
            regions: changed.then(|| self.regions_of(cn)),
            devices: if changed { self.devices_of(cn).cloned().collect() } else { Vec::new() },
            held: self.state.compute_nodes.get(&cn).is_some_and(|node| node.held),
            errors: if changed { self.errors_of(cn, after_event) } else { Vec::new() },
        }
    }

    fn errors_of(&self, cn: CnId, after_event: u64) -> Vec<VppbError> {
        let generated = |event: &Event| match event.kind {
            EventKind::AerGenerated { compute_node, vppb, aer } if compute_node == cn => {
                Some(VppbError { vppb, aer })
            }
            _ => None,
        };
        let events = self.events_that(after_event, EVENTS_PER_ANSWER_MAX, |event| generated(event).is_some());
        events.events.iter().filter_map(generated).collect()
    }

    /// Returns true if the agent of a compute node runs and has received the present state of its regions.
    pub fn knows_its_regions(&self, cn: CnId) -> bool {
        let node = self.state.compute_nodes.get(&cn).filter(|_| self.is_agent_running(cn));
        node.is_some_and(|node| self.heard.get(&cn) == Some(&node.regions_event))
    }

    pub fn is_agent_running(&self, cn: CnId) -> bool {
        self.state.compute_nodes.get(&cn).is_some_and(|node| node.health == Health::Reachable)
    }

    fn regions_of(&self, cn: CnId) -> Vec<Region> {
        let own = self.index.regions_of(cn).filter_map(|name| self.state.regions.get(name)).cloned();
        own.chain(self.regions_read_by(cn)).collect()
    }

    /// Returns the record of the compute node that `owner` identifies. For a CN id without a record, returns
    /// the record of a new compute node.
    pub(super) fn owner(&self, owner: &Owner) -> Result<ComputeNode, ManagerError> {
        match (self.find_compute_node(owner), owner) {
            (Some(node), _) => Ok(node.clone()),
            (None, Owner::CnId(id)) => {
                self.check_room_for_compute_node()?;
                Ok(self.new_compute_node(*id))
            }
            (None, Owner::Name(name)) => Err(ManagerError::NoOwner(name.clone())),
        }
    }

    /// Returns the record of the compute node that `owner` identifies.
    ///
    /// # Errors
    /// [`ManagerError::NoComputeNode`] if there is none with this name or CN id.
    pub fn known_compute_node(&self, owner: &Owner) -> Result<ComputeNode, ManagerError> {
        let known = self.find_compute_node(owner).cloned();
        known.ok_or_else(|| ManagerError::NoComputeNode(owner.to_string()))
    }

    fn find_compute_node(&self, owner: &Owner) -> Option<&ComputeNode> {
        match owner {
            Owner::CnId(id) => self.state.compute_nodes.get(id),
            Owner::Name(name) => self.compute_node_named(name),
        }
    }

    pub(super) fn register_compute_node(
        &mut self,
        register: RegisterComputeNode,
    ) -> Result<(), ManagerError> {
        let RegisterComputeNode { cn_id, name, udp, key, new_key, instance_id, seen } = register;
        if let Some(udp) = udp.filter(|udp| !is_single_address(udp)) {
            let reason = format!("{udp} is not one address and a port");
            return Err(ManagerError::out_of_range(format!("UDP address of compute node {cn_id}"), reason));
        }
        if let Some(holder) = self.compute_node_named(&name).filter(|holder| holder.cn_id != cn_id) {
            return Err(ManagerError::Taken {
                what: format!("name {name}"),
                who: format!("compute node {cn_id}"),
                holder: format!("compute node {}", holder.cn_id),
            });
        }
        let known = self.state.compute_nodes.get(&cn_id).cloned();
        let another = known.as_ref().is_some_and(|known| known.instance_id != instance_id);
        if another && self.liveness.is_attached(&NodeKey::Compute(cn_id)) {
            return Err(ManagerError::InUse { who: format!("compute node {cn_id}") });
        }
        if known.is_none() {
            self.check_room_for_compute_node()?;
        }
        self.check_seen(&Party::ComputeNode(cn_id), seen)?;
        let party = Party::ComputeNode(cn_id);
        // A joined node keeps the key that it joined with, so its registration cannot replace the key.
        let replaces = new_key && key.is_some() && !self.state.joined.contains_key(&party);
        let known_key = known.as_ref().and_then(|known| known.key).filter(|_| !replaces);
        let key = kept_key(&party, known_key, key)?;
        if known.is_none() {
            self.make_room_for_compute_node();
        }
        let mut node = known.unwrap_or_else(|| self.new_compute_node(cn_id));
        node.name = Some(name.clone());
        let moved = std::mem::replace(&mut node.udp, udp) != udp;
        let moved = std::mem::replace(&mut node.key, key) != key || moved;
        if node.instance_id != instance_id {
            self.registered_ms.insert(cn_id, self.now_ms);
        }
        // The former agent ended without a report that all its writes are complete.
        let unsettled = another && node.registration != 0 && !node.settled;
        (node.instance_id, node.settled) = (instance_id, false);
        node.registration = self.next_registration();
        node.health = Health::Reachable;
        self.put(Change::ComputeNode(node));
        self.liveness.heard(NodeKey::Compute(cn_id), self.now_ms);
        self.event(EventKind::ComputeNodeRegistered { compute_node: cn_id, name });
        if unsettled {
            self.agent_replaced(cn_id);
        }
        // The former agent will neither release a region nor write back, so the manager stops waiting for its releases.
        if another {
            self.stop_moves_from(cn_id);
            self.link_down(cn_id);
        }
        if moved {
            self.peer_changed(cn_id);
        }
        self.owner_changed(cn_id);
        self.realise_declared();
        Ok(())
    }

    pub(super) fn sync_compute_node(&mut self, cn: CnId, sync: &ComputeNodeSync) -> Result<(), ManagerError> {
        let registration = sync.registration;
        let node =
            self.state.compute_nodes.get(&cn).filter(|node| node.registration == registration).cloned();
        let Some(mut node) = node.filter(|node| node.registration != 0) else {
            return Err(ManagerError::NotRegistered { who: format!("compute node {cn}"), registration });
        };
        self.liveness.heard(NodeKey::Compute(cn), self.now_ms);
        self.heard.insert(cn, sync.after_event);
        if self.frozen().is_some() {
            return Ok(());
        }
        if node.health != Health::Reachable {
            node.health = Health::Reachable;
            self.put(Change::ComputeNode(node));
            self.event(EventKind::ComputeNodeReachable { compute_node: cn });
            self.owner_changed(cn);
        }
        self.record_quiet(cn, sync.quiet);
        self.released(cn, &sync.released);
        if let Some(mut node) =
            self.state.compute_nodes.get(&cn).filter(|node| sync.settled && !node.settled).cloned()
        {
            node.settled = true;
            self.put(Change::ComputeNode(node));
        }
        if sync.settled {
            // This is the last message of an agent that ends, so its successor may register at once.
            self.liveness.hung_up(&NodeKey::Compute(cn));
        }
        Ok(())
    }

    pub(super) fn compute_node_silent(&mut self, cn: CnId) {
        let Some(mut node) = self.state.compute_nodes.get(&cn).cloned() else { return };
        node.health = Health::Unreachable;
        self.put(Change::ComputeNode(node));
        self.event(EventKind::ComputeNodeUnreachable { compute_node: cn });
        self.end_release_waits(cn);
        self.owner_changed(cn);
    }

    pub(super) fn compute_node_named(&self, name: &Name) -> Option<&ComputeNode> {
        self.index.named(name).and_then(|cn| self.state.compute_nodes.get(&cn))
    }

    pub(super) fn check_room_for_compute_node(&self) -> Result<(), ManagerError> {
        let limit = COMPUTE_NODES_MAX as u64;
        let full = self.state.compute_nodes.len() >= COMPUTE_NODES_MAX && self.idle_compute_node().is_none();
        if full { Err(ManagerError::LimitReached { what: "compute nodes", limit }) } else { Ok(()) }
    }

    /// Returns the compute node whose record is removed to make room for another: of those without regions and
    /// bindings, the one that registered longest ago. So records for invented ids displace only one another.
    fn idle_compute_node(&self) -> Option<CnId> {
        let idle = self.state.compute_nodes.values().filter(|node| {
            let asked_for = node.quota.is_some() || node.held_by_hand || node.key.is_some();
            !asked_for && node.cmem_next == self.state.meta.cmem_forgotten && self.why_needed(node).is_none()
        });
        idle.min_by_key(|node| node.registration).map(|node| node.cn_id)
    }

    /// Removes an idle compute node if the table is full.
    fn make_room_for_compute_node(&mut self) {
        if self.state.compute_nodes.len() >= COMPUTE_NODES_MAX
            && let Some(idle) = self.idle_compute_node()
        {
            self.remove_compute_node(idle);
        }
    }

    /// Stores a record that [`owner`](Self::owner) returned. A new one takes an idle one's place if the table is full.
    pub(super) fn put_owner(&mut self, mut owner: ComputeNode) {
        if !self.state.compute_nodes.contains_key(&owner.cn_id) {
            self.make_room_for_compute_node();
            owner.index = self.free_index();
        }
        self.put(Change::ComputeNode(owner));
    }

    /// Returns the reason why a compute node cannot be forgotten; `None` if it can.
    fn why_needed(&self, node: &ComputeNode) -> Option<&'static str> {
        let cn = node.cn_id;
        let declared = || {
            let regions = self.options.declared.regions.iter().map(|region| &region.owner);
            let quotas = self.options.declared.quotas.iter().map(|quota| &quota.compute_node);
            regions.chain(quotas).any(|owner| match owner {
                Owner::CnId(id) => *id == cn,
                Owner::Name(name) => node.name.as_ref() == Some(name),
            })
        };
        let kept = || self.state.orphans.values().flat_map(|orphans| &orphans.orphans).any(|o| o.cn == cn);
        if node.health == Health::Reachable {
            Some("it is there: end its cn-agent first")
        } else if self.index.regions_of(cn).next().is_some() {
            Some("it has regions: destroy them first")
        } else if self.index.regions_read_by(cn).next().is_some() {
            Some("it reads sealed regions of others: end that first (`gmm share-region R --with CN --stop`)")
        } else if self.index.regions_left_by(cn).next().is_some() {
            Some(
                "memory nodes may still map a region that moved from it: wait for their answers, or reset the region",
            )
        } else if self.devices_of(cn).next().is_some() {
            Some("logical devices are bound to it: unbind them first")
        } else if kept() {
            Some(
                "memory nodes keep memory of it that no region has: release that first (`gmm release-orphans`)",
            )
        } else if declared() {
            Some("the fabric file declares something for it")
        } else {
            None
        }
    }

    /// Removes the record of a compute node that will not return. If the node returns nevertheless, it registers as a
    /// new one, without regions. It still accepts this manager, because it keeps the watermark that it has seen of this
    /// fabric.
    pub(super) fn forget_compute_node(&mut self, owner: &Owner) -> Result<(), ManagerError> {
        let node = self.known_compute_node(owner)?;
        if let Some(reason) = self.why_needed(&node) {
            let reason = reason.to_owned();
            return Err(ManagerError::ComputeNodeNeeded { compute_node: node.cn_id, reason });
        }
        self.remove_compute_node(node.cn_id);
        self.event(EventKind::ComputeNodeForgotten { compute_node: node.cn_id, name: node.name });
        Ok(())
    }

    fn remove_compute_node(&mut self, cn: CnId) {
        let Some(node) = self.state.compute_nodes.get(&cn) else { return };
        // If the compute node returns, its earlier agent may still make requests for these addresses, so no
        // compute node gets any of them again.
        let mut meta = self.state.meta;
        meta.cmem_forgotten = meta.cmem_forgotten.max(node.cmem_next);
        if meta != self.state.meta {
            self.put(Change::Meta(meta));
        }
        self.put(Change::ComputeNodeGone(cn));
        self.liveness.forget(&NodeKey::Compute(cn));
        self.heard.remove(&cn);
        self.registered_ms.remove(&cn);
    }

    /// Lowest index that no compute node has.
    fn free_index(&self) -> u32 {
        let count = self.state.compute_nodes.len();
        let mut taken = vec![false; count];
        for node in self.state.compute_nodes.values() {
            if let Some(place) = taken.get_mut(node.index as usize) {
                *place = true;
            }
        }
        taken.iter().position(|taken| !taken).unwrap_or(count) as u32
    }

    /// Returns a record for a compute node that was named as an owner and has not registered.
    fn new_compute_node(&self, cn_id: CnId) -> ComputeNode {
        let index = self.free_index();
        let used = self.state.meta.cmem_forgotten;
        // An earlier compute node with this id, whose record was removed, may have had any of these
        // addresses.
        let before = Retired { base: 0, bytes: used, instance_id: 0, event: u64::MAX };
        ComputeNode {
            cn_id,
            index,
            name: None,
            udp: None,
            key: None,
            instance_id: 0,
            registration: 0,
            settled: false,
            health: Health::Unregistered,
            quota: None,
            held: self.options.initialisation == Initialisation::ManagerFirst,
            held_by_hand: false,
            cmem_next: used,
            retired: if used > 0 { vec![before] } else { Vec::new() },
            quiet: 0,
            regions_event: 0,
        }
    }
}

//! Results of commands, as memory nodes send them. Only such a result lets the manager give memory to a
//! region, or free it.

use std::collections::BTreeSet;

use cxloe_fabric::api::MemoryNodeSync;
use cxloe_fabric::model::{EventKind, FormerOwner, Health, Leg, LegState, MemoryNode, Name, NodeAction};

use super::liveness::NodeKey;
use super::memory_nodes::served_at;
use super::mirror::{is_live, state_once_mapped};
use super::overview::link_down;
use super::{Change, Manager, ManagerError};

/// Maximum number of characters kept of a memory node's error message.
const ERROR_CHARS_MAX: usize = 400;

impl Manager {
    pub(super) fn sync_memory_node(&mut self, name: &Name, sync: MemoryNodeSync) -> Result<(), ManagerError> {
        let node =
            self.state.memory_nodes.get(name).filter(|node| node.registration == sync.registration).cloned();
        let Some(mut node) = node else {
            let (who, registration) = (format!("memory node {name}"), sync.registration);
            return Err(ManagerError::NotRegistered { who, registration });
        };
        self.check_results(&node, &sync)?;
        self.liveness.heard(NodeKey::Memory(name.clone()), self.now_ms);
        let no_link = link_down(&sync.stats);
        self.reports.keep(name, self.now_ms, sync.stats);
        match sync.progress {
            Some(progress) => drop(self.progress.insert(name.clone(), progress)),
            None => drop(self.progress.remove(name)),
        }
        let fills = sync.fills;
        self.fills.note_progress(name, &fills);
        if self.frozen().is_some() {
            // The node's health is recorded later, when the store can be written again.
        } else if let Some(why) = no_link {
            // The node reaches the manager over another network, but no compute node reaches the node.
            self.memory_node_out_of_reach(name, &format!("memory node {name} has no link: {why}"));
        } else if node.health != Health::Reachable {
            node.health = Health::Reachable;
            self.put(Change::MemoryNode(node.clone()));
            self.event(EventKind::MemoryNodeReachable { memory_node: name.clone() });
            self.regions_on(name).into_iter().for_each(|region| self.settle(region, None));
        }
        let mut results = sync.results;
        results.sort_by_key(|result| result.seq);
        for result in results {
            let Some(command) = self.state.commands.get(&(name.clone(), result.seq)).cloned() else {
                continue; // answered before: a repetition
            };
            if let Some(mut node) = self.state.memory_nodes.get(name).cloned() {
                node.acked_seq = result.seq;
                self.put(Change::MemoryNode(node));
            }
            self.put(Change::CommandAnswered(name.clone(), result.seq));
            let error = result.error.map(shortened);
            if let Some(error) = &error {
                let (region, error) = (command.action.mapping().region.clone(), error.clone());
                self.event(EventKind::MemoryNodeRefused {
                    memory_node: name.clone(),
                    region,
                    seq: result.seq,
                    error,
                });
            }
            self.command_answered(name, &command.action, error);
        }
        if self.frozen().is_none() {
            fills.into_iter().for_each(|progress| self.filled_by_node(name, progress));
        }
        Ok(())
    }

    /// Refuses a sync that lacks the result of a command up to `acked_seq`: memory is freed only on a result,
    /// never on a number alone.
    fn check_results(&self, node: &MemoryNode, sync: &MemoryNodeSync) -> Result<(), ManagerError> {
        let refuse = |reason: String| {
            let (node, acked_seq) = (node.name.clone(), sync.acked_seq);
            Err(ManagerError::BadAcknowledgement { node, acked_seq, reason })
        };
        if sync.acked_seq > node.last_seq {
            return refuse(format!("the last one issued is {}", node.last_seq));
        }
        let answered: BTreeSet<u64> = sync.results.iter().map(|result| result.seq).collect();
        if answered.last().is_some_and(|last| *last > sync.acked_seq) {
            return refuse("results go beyond that".to_owned());
        }
        let pending = self.state.commands_of(&node.name).take_while(|command| command.seq <= sync.acked_seq);
        match pending.map(|command| command.seq).find(|seq| !answered.contains(seq)) {
            Some(seq) => refuse(format!("the result of command {seq} is missing")),
            None => Ok(()),
        }
    }

    fn command_answered(&mut self, node: &Name, action: &NodeAction, error: Option<String>) {
        let Some(incarnation) = self.state.memory_nodes.get(node).map(|node| node.incarnation) else {
            return;
        };
        if self.orphan_answered(node, action, error.is_some()) {
            return;
        }
        let mapping = action.mapping();
        let Some(mut region) = self.state.regions.get(&mapping.region).cloned() else { return };
        let place = FormerOwner { cn: mapping.cn, cmem_base: mapping.cmem_base };
        let was_there = |leg: &Leg| leg.memory_node == *node && leg.former == Some(place);
        if let NodeAction::UnmapCmem(_) = action
            && let Some(at) = region.legs.iter().position(was_there)
        {
            self.former_unmapped(region, at, error);
            return self.hand_over_released(&mapping.region);
        }
        let place = (mapping.cn, mapping.cmem_base);
        let is_there = |leg: &Leg| leg.memory_node == *node && served_at(&region, leg) == place;
        let Some(at) = region.legs.iter().position(is_there) else { return };
        if let NodeAction::HandOver(hand_over) = action {
            self.handed_over(region, at, hand_over, error);
            // A further move of the region may have waited for this result.
            return self.hand_over_released(&mapping.region);
        }
        if let NodeAction::Share(_) | NodeAction::Unshare(_) = action {
            return self.share_answered(region, at, action, error.is_some());
        }
        let (state, committed) = (region.legs[at].state, region.is_committed(&region.legs[at]));
        match (action, state, error) {
            (NodeAction::MapCmem(_) | NodeAction::Clone(_), LegState::Mapping, None) => {
                let state = state_once_mapped(&region, at);
                let leg = &mut region.legs[at];
                (leg.state, leg.incarnation) = (state, Some(incarnation));
                // Each extent has one mapping, so the memory node does not map the leg for a former owner any more.
                let (former, bytes) = (leg.former.take().filter(|_| leg.lent.is_none()), leg.bytes);
                // The owner's agent has to fill a stale leg, so it must receive the change.
                let stale = state == LegState::Stale;
                self.settle(
                    region,
                    stale.then(|| format!("memory node {node} has mapped a copy to be filled")),
                );
                if let Some(former) = former {
                    self.retire_cmem(former.cn, former.cmem_base, bytes);
                }
            }
            (NodeAction::MapCmem(_) | NodeAction::Clone(_), LegState::Mapping, Some(error)) => {
                let reason = format!("memory node {node} refused to map it: {error}");
                let another = |other: &Leg| is_live(other) && other.is_copy_of(&region.legs[at]);
                if !committed && region.size > 0 {
                    self.drain_growth(region, reason);
                } else if committed && region.legs.iter().any(another) {
                    region.legs[at].state = LegState::Unmapping;
                    self.settle(region.clone(), Some(reason));
                    self.reissue_unmaps(&region, None);
                    self.repair_later(&region.name);
                } else if region.legs[at].incarnation.is_some() {
                    region.legs[at].state = LegState::Lost;
                    self.settle(region, Some(reason));
                } else {
                    region.failure = Some(reason.clone());
                    self.binding_failed(&region);
                    self.drain(region, Some(reason));
                }
            }
            (NodeAction::UnmapCmem(_), LegState::Unmapping, None) => self.leg_gone(region, at),
            // Nothing changes after a map command for a region that is being destroyed by now, or after an unmap that
            // failed: the extents stay allocated until an unmap succeeds.
            _ => {}
        }
        self.hand_over_released(&mapping.region);
        let origin = self.state.regions.get(&mapping.region).and_then(|region| region.origin.clone());
        if let Some(origin) = origin {
            self.give_back_cloned(&origin.region);
        }
    }
}

/// Cuts a memory node's error, which is kept in regions and events, to a readable length.
fn shortened(error: String) -> String {
    match error.char_indices().nth(ERROR_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &error[..end]),
        None => error,
    }
}

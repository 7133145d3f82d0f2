//! The leaders of this fabric by term, and the nodes that do not accept this manager. Such a node has seen changes of a
//! leader that the store does not contain, because an older copy of the store or another store was restored. The node
//! keeps its mappings unchanged. It is listed here until it accepts this manager, or until an administrator gives up
//! the missing history.

use std::collections::BTreeMap;

use cxloe_fabric::api::{AdoptFabric, Held, NotFollowed, Party, RefusedNode};
use cxloe_fabric::model::{CnId, EventKind, LeaderTerm, Name, Watermark, lineage};

use super::memory_nodes::served_at;
use super::{Change, Manager, ManagerError};

/// Maximum number of leader terms recorded: the first one and the latest ones.
const LEADER_TERMS_MAX: usize = 4096;
/// Maximum number of histories given up in one term.
const ADOPTED_MAX: usize = 4096;
/// Maximum number of listed nodes that do not accept this manager: one client may report many nodes.
const REFUSED_MAX: usize = 4096;
/// Maximum number of mappings listed per node; the next constant is the maximum for all nodes together.
const HELD_MAX: usize = 1024;
const HELD_BY_ALL_MAX: usize = 65_536;
/// Time without a report after which a node that does not accept this manager is removed from the list, in
/// milliseconds. Such a node reports every few seconds.
const REFUSED_FOR_MS: u64 = 120_000;

#[derive(Debug, Clone)]
pub(super) struct RefusedFollower {
    seen: Watermark,
    since_ms: u64,
    heard_ms: u64,
    holds: Vec<Held>,
}

impl Manager {
    /// Begins a leader term. Called once per term, before any other change.
    pub(super) fn begin_term(&mut self, watermark: Watermark) {
        let Watermark { term, revision, run } = watermark;
        self.put(Change::LeaderTerm(LeaderTerm { term, run, first: revision + 1, adopted: Vec::new() }));
        if self.state.leader_terms.len() > LEADER_TERMS_MAX
            // The first term is never removed: its run number identifies the fabric.
            && let Some(term) = self.state.leader_terms.keys().nth(1).copied()
        {
            self.put(Change::LeaderTermForgotten(term));
        }
    }

    /// Returns the number that identifies the fabric: the run number of its first manager; `None` if no manager has led
    /// yet.
    pub fn fabric(&self) -> Option<u64> {
        self.state.leader_terms.values().next().map(|leader| leader.run)
    }

    /// Returns the part of this store's history from which a node with the watermark `seen` decides whether it accepts
    /// this manager.
    pub(crate) fn lineage_for(&self, seen: Watermark) -> Vec<LeaderTerm> {
        lineage::excerpt(self.state.leader_terms.values(), seen)
    }

    /// Refuses a node that has seen changes which this store does not have, and lists it.
    pub(super) fn check_seen(&mut self, node: &Party, seen: Watermark) -> Result<(), ManagerError> {
        let (own, terms) = (self.watermark(), self.lineage_for(seen));
        if lineage::contains(&terms, own, seen) {
            self.refused.remove(node);
            return Ok(());
        }
        self.note_refused(node, seen, None);
        Err(ManagerError::Stale { node: node.clone(), seen, own })
    }

    /// Refuses to begin a fabric in a store that is probably the wrong one: the store has no region, and running nodes
    /// have accepted another manager.
    pub(super) fn check_fabric(&self) -> Result<(), ManagerError> {
        let now_ms = self.now_ms;
        let heard = |refused: &&RefusedFollower| refused.heard_ms.saturating_add(REFUSED_FOR_MS) > now_ms;
        let begun = self.options.anew || !self.state.regions.is_empty();
        let stranger = self.refused.iter().find(|(_, refused)| heard(refused)).filter(|_| !begun);
        match stranger {
            Some((node, RefusedFollower { seen, .. })) => {
                Err(ManagerError::OtherFabric { node: node.clone(), seen: *seen, own: self.watermark() })
            }
            None => Ok(()),
        }
    }

    pub(super) fn not_followed(&mut self, said: NotFollowed) -> Result<(), ManagerError> {
        let NotFollowed { node, seen, mut holds } = said;
        if lineage::contains(&self.lineage_for(seen), self.watermark(), seen) {
            let reason = "this manager has come as far".to_owned();
            return Err(ManagerError::out_of_range(format!("what {node} has seen"), reason));
        }
        holds.truncate(HELD_MAX);
        self.note_refused(&node, seen, Some(holds));
        Ok(())
    }

    fn note_refused(&mut self, node: &Party, seen: Watermark, holds: Option<Vec<Held>>) {
        let now_ms = self.now_ms;
        self.refused.retain(|_, refused| refused.heard_ms.saturating_add(REFUSED_FOR_MS) > now_ms);
        if self.refused.len() >= REFUSED_MAX && !self.refused.contains_key(node) {
            return;
        }
        let new = RefusedFollower { seen, since_ms: now_ms, heard_ms: now_ms, holds: Vec::new() };
        let refused = self.refused.entry(node.clone()).or_insert(new);
        (refused.seen, refused.heard_ms) = (seen, now_ms);
        if let Some(holds) = holds {
            refused.holds.clear();
            let others: usize = self.refused.values().map(|refused| refused.holds.len()).sum();
            if others + holds.len() <= HELD_BY_ALL_MAX
                && let Some(refused) = self.refused.get_mut(node)
            {
                refused.holds = holds;
            }
        }
    }

    /// Returns the nodes that were refused, or reported that they do not accept this manager, within the last two
    /// minutes.
    pub fn refused_nodes(&self, now_ms: u64) -> Vec<RefusedNode> {
        let heard = |(_, refused): &(&Party, &RefusedFollower)| {
            refused.heard_ms.saturating_add(REFUSED_FOR_MS) > now_ms
        };
        let shown = |(node, refused): (&Party, &RefusedFollower)| RefusedNode {
            node: node.clone(),
            seen: refused.seen,
            since_ms: refused.since_ms,
            heard_ms: refused.heard_ms,
            would_lose: self.not_listed(node, &refused.holds),
        };
        self.refused.iter().filter(heard).map(shown).collect()
    }

    /// Returns the memory in the report `holds` that this store does not list for the node.
    fn not_listed(&self, node: &Party, holds: &[Held]) -> Vec<Held> {
        match node {
            Party::MemoryNode(name) => {
                let listed = self.bytes_listed_on(name);
                let beyond = |held: &Held| {
                    let bytes = held.bytes.saturating_sub(listed.get(&held.compute_node).copied()?);
                    (bytes > 0).then(|| Held { bytes, ..held.clone() })
                };
                let unknown = |held: &Held| !listed.contains_key(&held.compute_node);
                holds
                    .iter()
                    .filter_map(|held| if unknown(held) { Some(held.clone()) } else { beyond(held) })
                    .collect()
            }
            Party::ComputeNode(cn) => {
                let listed = |held: &&Held| {
                    let region = held.region.as_ref().and_then(|name| self.state.regions.get(name));
                    region.is_some_and(|region| {
                        region.owner == *cn
                            && held.created_ms.is_none_or(|created| created == region.created_ms)
                            && region.bytes() >= held.bytes
                    })
                };
                holds.iter().filter(|held| !listed(held)).cloned().collect()
            }
            Party::FmClient(_) => Vec::new(),
        }
    }

    fn bytes_listed_on(&self, node: &Name) -> BTreeMap<CnId, u64> {
        let mut listed = BTreeMap::new();
        for (region, leg) in self.legs_on(node) {
            *listed.entry(served_at(region, leg).0).or_insert(0) += leg.bytes;
        }
        listed
    }

    /// Gives up the histories that `adopt` names, so that the nodes that have seen these histories accept this manager.
    pub(super) fn adopt(&mut self, adopt: &AdoptFabric) -> Result<(), ManagerError> {
        let known = |seen: &Watermark| self.refused.values().any(|refused| refused.seen == *seen);
        if adopt.seen.is_empty() || !adopt.seen.iter().all(known) {
            return Err(ManagerError::NobodyRefused);
        }
        let Some(mut leader) = self.state.leader_terms.values().next_back().cloned() else { return Ok(()) };
        for seen in &adopt.seen {
            leader.adopted.retain(|given_up| !seen.is_further_on_than(*given_up));
            if !leader.adopted.iter().any(|given_up| given_up.is_further_on_than(*seen)) {
                leader.adopted.push(*seen);
            }
        }
        if leader.adopted.len() > ADOPTED_MAX {
            return Err(ManagerError::LimitReached { what: "histories given up", limit: ADOPTED_MAX as u64 });
        }
        self.put(Change::LeaderTerm(leader));
        for seen in &adopt.seen {
            self.event(EventKind::FabricAdopted { term: seen.term, revision: seen.revision, run: seen.run });
        }
        Ok(())
    }
}

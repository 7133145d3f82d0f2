//! Summary of the fabric for display: totals, memory by compute node, and sums of memory nodes' reports. A
//! report is an array with one object per worker; a counter that a node of another version lacks counts as 0.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use cxloe_fabric::api::{
    ComputeNodeOverview, MemoryNodeOverview, Overview, REGIONS_PER_PAGE_DEFAULT, REGIONS_PER_PAGE_MAX,
    RegionOrder, RegionSummary, RegionTotal, RegionsPage, RegionsQuery, Share, Traffic,
};
use cxloe_fabric::model::{CnId, MemoryNode, Name, Region, RegionState};

use super::Manager;

/// Maximum number of characters kept of the reason why a node has no link.
const LINK_DOWN_CHARS_MAX: usize = 400;

impl Manager {
    /// Returns a summary of the fabric at `time_ms`; `leader` is the URL of the manager that serves it.
    pub fn overview(&self, leader: &str, time_ms: u64) -> Overview {
        let mut requests = BTreeMap::<CnId, u64>::new();
        let sessions = self.reports.values().flat_map(|report| workers(&report.stats)).flat_map(sessions_of);
        for session in sessions {
            if let Some(cn) = session["cn"].as_str().and_then(|cn| cn.parse().ok()) {
                let count: &mut u64 = requests.entry(cn).or_default();
                *count = count.saturating_add(counter(&session["counters"], "executed"));
            }
        }
        let compute_node = |node: &cxloe_fabric::model::ComputeNode| ComputeNodeOverview {
            cn_id: node.cn_id,
            name: node.name.clone(),
            health: node.health,
            held: node.held,
            quota: node.quota,
            bytes: self.index.bytes_of(node.cn_id),
            regions: self.index.regions_of(node.cn_id).count() as u64,
            requests: requests.get(&node.cn_id).copied(),
        };
        let mut totals = BTreeMap::<RegionState, RegionTotal>::new();
        for region in self.state.regions.values() {
            let state = region.state;
            let total = totals.entry(state).or_insert(RegionTotal { state, regions: 0, bytes: 0 });
            total.regions += 1;
            total.bytes = total.bytes.saturating_add(region.bytes());
        }
        Overview {
            time_ms,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            leader: leader.to_owned(),
            term: self.watermark().term,
            heartbeat_ms: self.heartbeat_ms(),
            newest_event: self.state.meta.last_event,
            memory_nodes: self.state.memory_nodes.values().map(|node| self.node_overview(node)).collect(),
            compute_nodes: self.state.compute_nodes.values().map(compute_node).collect(),
            regions: totals.into_values().collect(),
        }
    }

    fn node_overview(&self, node: &MemoryNode) -> MemoryNodeOverview {
        let report = self.reports.get(&node.name);
        MemoryNodeOverview {
            name: node.name.clone(),
            index: node.index,
            kind: node.kind,
            macs: node.macs.clone(),
            mtu: node.mtu,
            health: node.health,
            pool_bytes: node.extent_count() * node.extent_bytes,
            extent_bytes: node.extent_bytes,
            free_bytes: self.free_bytes(node),
            reserved_bytes: self.index.idle(&node.name),
            draining_bytes: self.draining_bytes(&node.name),
            pending_commands: self.state.commands_of(&node.name).count() as u64,
            regions: self.index.regions_on(&node.name).count() as u64,
            owners: self
                .index
                .used_by(&node.name)
                .map(|(compute_node, bytes)| Share { compute_node, bytes })
                .collect(),
            link_down: report.and_then(|report| link_down(&report.stats)),
            reported_ms: report.map(|report| report.at_ms),
            traffic: report.and_then(|report| traffic(&report.stats)),
        }
    }

    /// Returns number and total bytes of the regions that match `query`, and the first of these regions in
    /// the requested order.
    pub fn regions_page(&self, query: &RegionsQuery) -> RegionsPage {
        let limit = query.limit.unwrap_or(REGIONS_PER_PAGE_DEFAULT).min(REGIONS_PER_PAGE_MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut found: Vec<&Region> = self.matching_regions(query);
        let (matching, bytes) = (found.len() as u64, found.iter().map(|region| region.bytes()).sum());
        match query.sort {
            RegionOrder::Name => {}
            RegionOrder::Size => found.sort_by_key(|region| std::cmp::Reverse(region.size)),
            RegionOrder::Newest => found.sort_by_key(|region| std::cmp::Reverse(region.created_ms)),
        }
        RegionsPage {
            matching,
            bytes,
            regions: found.into_iter().take(limit).map(|region| self.summary(region)).collect(),
        }
    }

    fn matching_regions(&self, query: &RegionsQuery) -> Vec<&Region> {
        let owner = match &query.owner {
            None => None,
            Some(owner) => match self.known_compute_node(owner) {
                Ok(node) => Some(node.cn_id),
                Err(_) => return Vec::new(),
            },
        };
        let text = query.text.as_deref().unwrap_or_default().trim();
        let owners: BTreeSet<CnId> = self
            .state
            .compute_nodes
            .values()
            .filter(|node| {
                let named = node.name.as_ref().is_some_and(|name| contains(name.as_str(), text));
                named || contains(&node.cn_id.to_string(), text)
            })
            .map(|node| node.cn_id)
            .collect();
        let nodes: BTreeSet<&Name> =
            self.state.memory_nodes.keys().filter(|name| contains(name.as_str(), text)).collect();
        let wanted = |region: &&Region| {
            query.state.is_none_or(|state| region.state == state)
                && query.labels.as_ref().is_none_or(|labels| labels.selects(&region.labels))
                && owner.is_none_or(|owner| region.owner == owner)
                && query.memory_node.as_ref().is_none_or(|node| region.lies_on(node))
                && (contains(region.name.as_str(), text)
                    || contains(&region.labels.to_string(), text)
                    || owners.contains(&region.owner)
                    || region.legs.iter().any(|leg| nodes.contains(&leg.memory_node)))
        };
        self.state.regions.values().filter(wanted).collect()
    }

    fn summary(&self, region: &Region) -> RegionSummary {
        let owner = self.state.compute_nodes.get(&region.owner);
        let nodes: BTreeSet<&Name> = region.legs.iter().map(|leg| &leg.memory_node).collect();
        RegionSummary {
            name: region.name.clone(),
            owner: region.owner,
            owner_name: owner.and_then(|node| node.name.clone()),
            size: region.size,
            growing: region.growing(),
            state: region.state,
            ways: region.ways,
            granularity: region.granularity,
            decoders: region.decoders.len() as u64,
            memory_nodes: nodes.into_iter().cloned().collect(),
            failure: region.failure.clone(),
            labels: region.labels.clone(),
            zeroed_percent: self.zeroed_percent(region),
            created_ms: region.created_ms,
        }
    }
}

fn workers(stats: &Value) -> impl Iterator<Item = &Value> {
    stats.as_array().into_iter().flatten()
}

fn sessions_of(worker: &Value) -> impl Iterator<Item = &Value> {
    worker["sessions"].as_array().into_iter().flatten()
}

/// Returns the reason, from a node's report, why the node has no link, cut to a length that fits an event.
pub(super) fn link_down(stats: &Value) -> Option<String> {
    let why = workers(stats).find_map(|worker| worker["link_down"].as_str())?;
    Some(why.chars().take(LINK_DOWN_CHARS_MAX).collect())
}

fn counter(counters: &Value, name: &str) -> u64 {
    counters[name].as_u64().unwrap_or_default()
}

fn traffic(stats: &Value) -> Option<Traffic> {
    let mut total = Traffic::default();
    let mut any = false;
    for worker in workers(stats) {
        any = true;
        let (link, requests) = (&worker["link"], &worker["requests"]);
        let add = |sum: &mut u64, count: u64| *sum = sum.saturating_add(count);
        add(&mut total.rx_bytes, counter(link, "rx_bytes"));
        add(&mut total.tx_bytes, counter(link, "tx_bytes"));
        add(&mut total.requests, counter(requests, "executed"));
        add(&mut total.faults, counter(requests, "faults"));
        add(&mut total.repeats, counter(requests, "duplicates"));
        for reason in ["length", "trailer", "window", "full", "foreign"] {
            add(&mut total.dropped, counter(requests, &format!("dropped_{reason}")));
        }
        add(&mut total.dropped, counter(link, "rx_dropped"));
        add(&mut total.sessions, sessions_of(worker).count() as u64);
        total.congested |= worker["congested"].as_bool() == Some(true);
    }
    any.then_some(total)
}

/// Returns true if `whole` contains `part`, regardless of case.
fn contains(whole: &str, part: &str) -> bool {
    part.is_empty()
        || whole.as_bytes().windows(part.len()).any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counters_of_all_workers_come_together() {
        let worker = json!({
            "link": {"rx_bytes": 10, "tx_bytes": 20, "rx_dropped": 1},
            "requests": {"executed": 3, "faults": 1, "duplicates": 2, "dropped_length": 1, "dropped_foreign": 4},
            "congested": true,
            "sessions": [{"cn": "02:00:00:00:00:01"}],
        });
        let idle = json!({"link": {"rx_bytes": 1}, "congested": false, "later": "unknown"});
        let total = Traffic {
            rx_bytes: 11,
            tx_bytes: 20,
            requests: 3,
            faults: 1,
            repeats: 2,
            dropped: 6,
            sessions: 1,
            congested: true,
        };
        assert_eq!(traffic(&json!([worker, idle])), Some(total));
        for nothing in [json!(null), json!([]), json!({"sessions": 1}), json!("text")] {
            assert_eq!(traffic(&nothing), None, "{nothing}");
        }
        assert_eq!(traffic(&json!([17])), Some(Traffic::default()));
    }

    #[test]
    fn text_is_found_in_either_case() {
        assert!(contains("Heap-A", "heap") && contains("heap-a", "P-A") && contains("x", ""));
        assert!(!contains("heap", "heaps") && !contains("", "a"));
    }
}

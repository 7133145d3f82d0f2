//! The manager's metrics: figures of the fabric's state, and the number of answered requests. Only a leader has the
//! state; a follower serves its role and the number of requests.
//!
//! Memory nodes and compute nodes are labels, up to the maximum number in a fabric (`MEMORY_NODES_MAX`).
//! Regions are counted by state; only those that need attention are named, up to 1000.

use std::collections::BTreeMap;
use std::time::Duration;

use super::core::Core;
use super::leader_election::LeaderElection;
use cxloe_daemon::metrics::{Sample, Scrape};
use cxloe_fabric::model::{ComputeNode, Health, LegState, Protection, RegionState};
use cxloe_gmm_core::manager::Manager;

/// Maximum number of regions, and of compute nodes, that are named.
const NAMED_MAX: usize = 1000;
/// Maximum time for the core to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

cxloe_daemon::metrics_table! {
    /// Always 1; the label says which release this is.
    BUILD: Gauge "cxloe_gmm_build_info" ["version"];
    /// Whether this manager leads: of several that share a store, one does. Where it is 0, only this and the counts of
    /// requests are served.
    LEADER: Gauge "cxloe_gmm_leader" [];
    /// Requests of the REST interface answered, by the class of their status.
    REQUESTS: Counter "cxloe_gmm_http_requests_total" ["class"];
    /// Term of the manager: it grows by one each time a manager takes over.
    TERM: Gauge "cxloe_gmm_term" [];
    /// Whether the store can be written; where it is 0, nothing can be changed; reads and nodes continue.
    STORE_WRITABLE: Gauge "cxloe_gmm_store_writable" [];
    /// Nodes that do not follow this manager, because its store lacks changes they have seen.
    REFUSED: Gauge "cxloe_gmm_refused_nodes" [];
    /// Bytes that a memory node holds although they belong to no region.
    ORPHANS: Gauge "cxloe_gmm_memory_node_orphan_bytes" ["memory_node"];
    /// Events of the fabric since its store was made.
    EVENTS: Counter "cxloe_gmm_events_total" [];
    /// Registrations of nodes since the store was made; a node registers when it starts, and after it was unreachable.
    REGISTRATIONS: Counter "cxloe_gmm_registrations_total" [];
    /// Memory nodes, by health: reachable, unreachable.
    MEMORY_NODES: Gauge "cxloe_gmm_memory_nodes" ["health"];
    /// Compute nodes, by health: reachable, unreachable, or unregistered, if one was named and has never registered.
    COMPUTE_NODES: Gauge "cxloe_gmm_compute_nodes" ["health"];
    /// Regions, by state.
    REGIONS: Gauge "cxloe_gmm_regions" ["state"];
    /// Mirrored regions with fewer copies in sync on reachable memory nodes than they are to have.
    BELOW_PROTECTION: Gauge "cxloe_gmm_regions_below_protection" [];
    /// Regions for whose missing copy no memory node has room.
    WITHOUT_SPARE: Gauge "cxloe_gmm_regions_without_spare" [];
    /// Bytes of legs that lack content which the other copy has.
    STALE_BYTES: Gauge "cxloe_gmm_stale_bytes" [];
    /// Always 1, for each region that is neither active nor disabled: the labels give its name, owner and state.
    REGION_UNWELL: Gauge "cxloe_gmm_region_unwell" ["region", "compute_node", "state"];
    /// Whether a memory node sent a message within the node time-out.
    MEMORY_NODE_UP: Gauge "cxloe_gmm_memory_node_up" ["memory_node"];
    /// Bytes a memory node lends.
    POOL: Gauge "cxloe_gmm_memory_node_pool_bytes" ["memory_node"];
    /// Bytes of a memory node in no region.
    FREE: Gauge "cxloe_gmm_memory_node_free_bytes" ["memory_node"];
    /// Free bytes of a memory node that are reserved for logical devices.
    RESERVED: Gauge "cxloe_gmm_memory_node_reserved_bytes" ["memory_node"];
    /// Bytes of regions being taken down that a memory node has not confirmed as zeroed.
    DRAINING: Gauge "cxloe_gmm_memory_node_draining_bytes" ["memory_node"];
    /// Commands to a memory node that it has not answered.
    PENDING: Gauge "cxloe_gmm_memory_node_pending_commands" ["memory_node"];
    /// Whether a compute node sent a message within the node time-out.
    COMPUTE_NODE_UP: Gauge "cxloe_gmm_compute_node_up" ["compute_node"];
    /// Whether a compute node is suspended.
    HELD: Gauge "cxloe_gmm_compute_node_held" ["compute_node"];
    /// Bytes of all regions of a compute node.
    OWNED: Gauge "cxloe_gmm_compute_node_region_bytes" ["compute_node"];
    /// Quota of a compute node that has one: bytes that all its regions may have together.
    QUOTA: Gauge "cxloe_gmm_compute_node_quota_bytes" ["compute_node"];
    /// Logical devices, by whether they are bound to a compute node.
    DEVICES: Gauge "cxloe_gmm_logical_devices" ["bound"];
}

/// Returns the values for one scrape, with a reason if this manager is unhealthy.
pub async fn sample(election: LeaderElection) -> Sample {
    let mut scrape = Scrape::new();
    scrape.set(&BUILD, &[env!("CARGO_PKG_VERSION")], true);
    for (class, count) in election.answered() {
        scrape.set(&REQUESTS, &[class], count);
    }
    let unwell = match election.core() {
        Some(core) => match read_state(&core).await {
            Ok((fill, unwell)) => {
                scrape.set(&LEADER, &[], true);
                fill(&mut scrape);
                unwell
            }
            Err(reason) => {
                scrape.set(&LEADER, &[], false);
                Some(reason)
            }
        },
        None => {
            scrape.set(&LEADER, &[], false);
            // A follower is healthy; a manager is unhealthy while no manager leads.
            election.waits_for()
        }
    };
    Sample { scrape, unwell }
}

type Fill = Box<dyn FnOnce(&mut Scrape) + Send>;

/// Reads the state in one job of the core's thread. The text is made outside of that thread, which all
/// requests share.
async fn read_state(core: &Core) -> Result<(Fill, Option<String>), String> {
    match tokio::time::timeout(ANSWER_MAX, core.execute(|manager, now_ms, _| Fabric::of(manager, now_ms)))
        .await
    {
        Ok(Ok(fabric)) => {
            let unwell = fabric.frozen.clone();
            Ok((Box::new(move |scrape| fabric.fill(scrape)), unwell))
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("the manager has not answered within {}s", ANSWER_MAX.as_secs())),
    }
}

struct Node {
    name: String,
    up: bool,
    pool: u64,
    free: u64,
    reserved: u64,
    draining: u64,
    orphans: u64,
    pending: u64,
}

struct Owner {
    name: String,
    up: bool,
    held: bool,
    bytes: u64,
    quota: Option<u64>,
}

struct Fabric {
    term: u64,
    events: u64,
    registrations: u64,
    memory_nodes: Vec<Node>,
    compute_nodes: Vec<Owner>,
    compute_node_counts: BTreeMap<&'static str, u64>,
    regions: BTreeMap<&'static str, u64>,
    unwell: Vec<[String; 3]>,
    below_protection: u64,
    without_spare: usize,
    stale_bytes: u64,
    devices: [u64; 2],
    frozen: Option<String>,
    refused: usize,
}

const HEALTH: [&str; 3] = ["reachable", "unreachable", "unregistered"];
const STATES: [(RegionState, &str); 8] = [
    (RegionState::Active, "active"),
    (RegionState::Exposed, "exposed"),
    (RegionState::Degraded, "degraded"),
    (RegionState::Creating, "creating"),
    (RegionState::Lost, "lost"),
    (RegionState::Releasing, "releasing"),
    (RegionState::Disabled, "disabled"),
    (RegionState::Draining, "draining"),
];

fn name_of(node: &ComputeNode) -> String {
    node.name.as_ref().map_or_else(|| node.cn_id.to_string(), ToString::to_string)
}

impl Fabric {
    fn of(manager: &Manager, now_ms: u64) -> Fabric {
        let state = manager.state();
        let mut owned: BTreeMap<_, u64> = BTreeMap::new();
        let mut regions: BTreeMap<_, u64> = STATES.iter().map(|(_, state)| (*state, 0)).collect();
        let mut unwell = Vec::new();
        let (mut below_protection, mut stale_bytes) = (0, 0);
        for region in state.regions.values() {
            *owned.entry(region.owner).or_default() += region.bytes();
            let in_use = region.size > 0 && region.state != RegionState::Draining;
            if region.protect == Protection::Mirror && in_use && !manager.is_protected(region) {
                below_protection += 1;
            }
            let stale = region.legs.iter().filter(|leg| leg.state == LegState::Stale);
            stale_bytes += stale.map(|leg| leg.bytes).sum::<u64>();
            let Some((_, word)) = STATES.iter().find(|(state, _)| *state == region.state) else { continue };
            *regions.entry(*word).or_default() += 1;
            let well = matches!(region.state, RegionState::Active | RegionState::Disabled);
            if !well && unwell.len() < NAMED_MAX {
                let owner = state.compute_nodes.get(&region.owner).map(name_of).unwrap_or_default();
                unwell.push([region.name.to_string(), owner, (*word).to_owned()]);
            }
        }
        let memory_node = |status: cxloe_fabric::api::MemoryNodeStatus| Node {
            name: status.node.name.to_string(),
            up: status.node.health == Health::Reachable,
            pool: status.node.pool_bytes,
            free: status.free_bytes,
            reserved: status.reserved_bytes,
            draining: status.draining_bytes,
            orphans: status.orphan_bytes,
            pending: status.pending_commands,
        };
        let mut compute_node_counts: BTreeMap<_, u64> = HEALTH.iter().map(|word| (*word, 0)).collect();
        for node in state.compute_nodes.values() {
            *compute_node_counts.entry(HEALTH[health(node.health)]).or_default() += 1;
        }
        let compute_node = |node: &ComputeNode| Owner {
            name: name_of(node),
            up: node.health == Health::Reachable,
            held: node.held,
            bytes: owned.get(&node.cn_id).copied().unwrap_or_default(),
            quota: node.quota,
        };
        let bound = state.logical_devices.values().filter(|device| device.binding.is_some()).count() as u64;
        Fabric {
            term: state.meta.watermark.term,
            events: state.meta.last_event,
            registrations: state.meta.last_registration,
            memory_nodes: manager.memory_node_statuses().into_iter().map(memory_node).collect(),
            compute_nodes: state.compute_nodes.values().take(NAMED_MAX).map(compute_node).collect(),
            compute_node_counts,
            regions,
            unwell,
            below_protection,
            without_spare: manager.without_spare().count(),
            stale_bytes,
            devices: [state.logical_devices.len() as u64 - bound, bound],
            frozen: manager.frozen().map(str::to_owned),
            refused: manager.refused_nodes(now_ms).len(),
        }
    }

    fn fill(&self, scrape: &mut Scrape) {
        scrape.set(&TERM, &[], self.term);
        scrape.set(&STORE_WRITABLE, &[], self.frozen.is_none());
        scrape.set(&REFUSED, &[], self.refused);
        scrape.set(&EVENTS, &[], self.events);
        scrape.set(&REGISTRATIONS, &[], self.registrations);
        let up = self.memory_nodes.iter().filter(|node| node.up).count();
        scrape.set(&MEMORY_NODES, &["reachable"], up);
        scrape.set(&MEMORY_NODES, &["unreachable"], self.memory_nodes.len() - up);
        self.compute_node_counts.iter().for_each(|(word, count)| scrape.set(&COMPUTE_NODES, &[word], *count));
        self.regions.iter().for_each(|(word, count)| scrape.set(&REGIONS, &[word], *count));
        scrape.set(&BELOW_PROTECTION, &[], self.below_protection);
        scrape.set(&WITHOUT_SPARE, &[], self.without_spare);
        scrape.set(&STALE_BYTES, &[], self.stale_bytes);
        for [region, owner, state] in &self.unwell {
            scrape.set(&REGION_UNWELL, &[region, owner, state], true);
        }
        for node in &self.memory_nodes {
            let label: &[&str] = &[&node.name];
            scrape.set(&MEMORY_NODE_UP, label, node.up);
            scrape.set(&POOL, label, node.pool);
            scrape.set(&FREE, label, node.free);
            scrape.set(&RESERVED, label, node.reserved);
            scrape.set(&DRAINING, label, node.draining);
            scrape.set(&ORPHANS, label, node.orphans);
            scrape.set(&PENDING, label, node.pending);
        }
        for node in &self.compute_nodes {
            let label: &[&str] = &[&node.name];
            scrape.set(&COMPUTE_NODE_UP, label, node.up);
            scrape.set(&HELD, label, node.held);
            scrape.set(&OWNED, label, node.bytes);
            if let Some(quota) = node.quota {
                scrape.set(&QUOTA, label, quota);
            }
        }
        scrape.set(&DEVICES, &["false"], self.devices[0]);
        scrape.set(&DEVICES, &["true"], self.devices[1]);
    }
}

fn health(health: Health) -> usize {
    match health {
        Health::Reachable => 0,
        Health::Unreachable => 1,
        Health::Unregistered => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_called_as_they_are_everywhere() {
        assert!(STATES.iter().all(|(state, word)| state.to_string() == *word));
        for known in [Health::Reachable, Health::Unreachable, Health::Unregistered] {
            assert_eq!(HEALTH[health(known)], known.to_string());
        }
    }

    #[tokio::test]
    async fn who_does_not_lead_says_so_and_who_waits_is_unwell() {
        let election = LeaderElection::new(Default::default());
        let waiting = sample(election.clone()).await;
        assert!(waiting.unwell.is_some_and(|reason| reason.contains("just started")));
        election.follow("http://10.0.0.2:7440");
        let following = sample(election).await;
        assert_eq!(following.unwell, None);
        let text = following.scrape.encode().unwrap();
        assert!(text.contains("\ncxloe_gmm_leader 0\n") && !text.contains("cxloe_gmm_regions"), "{text}");
    }
}

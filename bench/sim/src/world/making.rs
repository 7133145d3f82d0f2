//! Construction of the nodes, the network and the manager of a run from its plan.

use std::time::Duration;

use cxloe_fabric::model::DeviceKind;
use cxloe_net::Link;
use cxloe_net::queues::join_simulated;
use cxloe_net::sim::SimNetwork;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
use cxloe_wire::random::Random;
use cxloe_wire::session::{Identity, PreSharedKey, RequesterConfig, ResponderConfig};
use cxloe_wire::time::Time;

use super::World;
use crate::compute_node::ComputeNode;
use crate::control::manager::ManagerNode;
use crate::control::network::{Conditions, ControlNetwork};
use crate::control::operator::Operator;
use crate::fabric::Fabric;
use crate::intruder::Intruder;
use crate::layout::Layout;
use crate::memory_node::MemoryNode;
use crate::node_keys;
use crate::plan::{CnPlan, Plan};
use crate::planted_fault::PlantedFault;
use crate::tally::Tally;
use crate::trace::{Name, Trace};

/// Time within which everything has to end after the last fault, in addition to the sessions' time-outs.
const SETTLE: Duration = Duration::from_secs(5);
/// Limit on the virtual time of a run, in addition to the time that its operations need.
const RUN_MAX: Duration = Duration::from_secs(600);

/// Distance between the labels of the random numbers of two workers, above those of all other parts of a run.
const WORKER_PART: u64 = 1_000_000;

/// Pre-shared key, for runs in which frames are sealed but nodes have no keys.
const KEY: &[u8] = b"sixteen bytes or more";

impl<'a> World<'a> {
    /// Makes nodes and network as planned. Events are counted in `tally` and written to `trace`.
    pub fn new(plan: &Plan, tally: &'a mut Tally, trace: Trace) -> World<'a> {
        let seed = plan.seed;
        let net = SimNetwork::new(seed);
        net.set_default_path(plan.path);
        if trace.is_on() {
            let trace = trace.clone();
            net.on_trace(move |frame| trace.frame(frame));
        }
        let maker = Maker {
            plan,
            net: &net,
            trace: &trace,
            mn_macs: (0..plan.mns.len()).map(Name::mn).collect(),
            cn_macs: (0..plan.cns.len()).map(Name::cn).collect(),
            key: (plan.sealed && !plan.keyed).then(|| KEY.into()),
        };
        let mns = (0..plan.mns.len()).map(|i| maker.memory_node(i)).collect();
        let cns: Vec<_> = (0..plan.cns.len()).map(|i| maker.compute_node(i)).collect();
        let conditions = plan.fabric.as_ref().map_or(Conditions::GOOD, |fabric| fabric.conditions);
        let control = ControlNetwork::new(Random::part(seed, 3000), conditions, trace.clone());
        let fabric = maker.fabric();
        // Nonces are checked in every run with keys, even if no unauthorised station is active.
        let intruder =
            plan.keyed.then(|| Intruder::new(&net, plan.intruder, plan.mistake, Random::part(seed, 7_100)));
        let paced = plan.cns.iter().any(|cn| cn.pacing.is_some());
        let mut random = Random::part(seed, 2);
        let fault_at = Time(random.below(5_000_000));
        World {
            net,
            random,
            mns,
            batch: plan.batch,
            control,
            fabric,
            intruder,
            accepts_unknown: plan.mistake == Some(PlantedFault::AcceptsUnknownKeys),
            max_frame: plan.max_frame,
            faults: plan.faults,
            settle: SETTLE + plan.timing.dead_after * 2,
            fault_at,
            healed_at: None,
            sample_at: if paced { Time::ZERO } else { Time(u64::MAX) },
            quotas: cns.iter().map(|cn| cn.quota()).collect(),
            cns,
            end: Time::ZERO + RUN_MAX + longest(plan),
            steps: 0,
            standing: 0,
            tally,
            trace,
        }
    }
}

/// Returns the maximum time that a compute node may need for its planned operations.
fn longest(plan: &Plan) -> Duration {
    let making = |cn: &CnPlan| (cn.pause * 4).saturating_mul(cn.operations.min(u32::MAX.into()) as u32);
    plan.cns.iter().map(making).max().unwrap_or_default()
}

/// Values from which all nodes of a run are constructed.
struct Maker<'a> {
    plan: &'a Plan,
    net: &'a SimNetwork,
    trace: &'a Trace,
    mn_macs: Vec<Mac>,
    cn_macs: Vec<Mac>,
    key: Option<PreSharedKey>,
}

impl Maker<'_> {
    fn memory_node(&self, i: usize) -> MemoryNode {
        let plan = self.plan;
        let (own, node) = (self.mn_macs[i], &plan.mns[i]);
        let link = self.net.attach(own, node.port).expect("a new address");
        let config = ResponderConfig {
            early_buffers: node.early_buffers,
            key: self.key.clone(),
            node_key: plan.keyed.then(|| node_keys::key_of(own)),
            ..ResponderConfig::new(own, plan.max_frame, 0, plan.seed ^ (0x100 + i as u64))
        };
        let mut mn = match &plan.fabric {
            None => MemoryNode::new(i, link, config, self.cn_macs.clone(), plan.shape),
            Some(fabric) => {
                let kind = if fabric.is_whole(i, plan) { DeviceKind::Sld } else { DeviceKind::Mld };
                let random = Random::part(plan.seed, 1000 + i as u64);
                let extents = fabric.pool_extents(plan);
                MemoryNode::managed(i, link, config, extents, kind, random, self.trace.clone())
            }
        };
        mn.slow_down(node.service);
        mn.watch_queue(node.congestion);
        mn.know_multi(node.multi);
        if plan.keyed {
            mn.set_admitted(node_keys::admitted(&self.cn_macs));
        }
        if plan.intruder {
            mn.take_time_for_handshakes();
        }
        plan.mistake.into_iter().for_each(|mistake| mn.plant(mistake));
        mn
    }

    fn compute_node(&self, i: usize) -> ComputeNode {
        let (plan, seed) = (self.plan, self.plan.seed);
        let (own, node) = (self.cn_macs[i], &plan.cns[i]);
        let link = |shard| self.net.attach(own.shard(shard), node.port).expect("a new address");
        let end = |worker: u8| {
            let shards = worker * node.queues..(worker + 1) * node.queues;
            let links = shards.map(|shard| Box::new(link(shard)) as Box<dyn Link>).collect();
            (join_simulated(links), self.random_of(10, i, worker.into()))
        };
        let ends = (0..node.workers).map(end).collect();
        let requesters = self.mn_macs.iter().map(|peer| self.requester(i, *peer)).collect();
        let layout = match &plan.fabric {
            None if node.workers > 1 => Layout::new(self.mn_macs.len(), plan.interleave, i).in_bands(),
            None => Layout::new(self.mn_macs.len(), plan.interleave, i),
            Some(_) => Layout::default(),
        };
        let mut cn = ComputeNode::new(i, ends, node, requesters, &layout, plan.shape, self.trace);
        if plan.all_succeed {
            cn.expect_success();
        }
        if plan.fabric.is_some() {
            cn.follow_manager(Random::part(seed, 2000 + i as u64), self.trace.clone());
        }
        if let Some(paging) = node.paging {
            cn.map(paging, |worker| (self.random_of(4000, i, worker), self.random_of(5200, i, worker)));
        }
        plan.mistake.into_iter().for_each(|mistake| cn.plant(mistake));
        cn
    }

    /// Returns the random numbers of a worker of compute node `cn` for the purpose `what`. The first worker has those
    /// that the node had before nodes could have several workers, so that each seed still gives the same run with one.
    fn random_of(&self, what: u64, cn: usize, worker: usize) -> Random {
        Random::part(self.plan.seed, what + cn as u64 + worker as u64 * WORKER_PART)
    }

    fn requester(&self, i: usize, peer: Mac) -> RequesterConfig {
        let (plan, own) = (self.plan, self.cn_macs[i]);
        RequesterConfig {
            identity: Identity { own, peer, ethertype: ETHERTYPE_DEFAULT },
            max_frame: plan.max_frame,
            streams: plan.cns[i].streams,
            instance: 1 + i as u64,
            key: self.key.clone(),
            keys: plan.keyed.then(|| node_keys::pair_of(own, peer)),
            timing: plan.timing,
            seed: (plan.seed ^ peer.to_u64().rotate_left(16)).into(),
        }
    }

    /// Makes the manager and the operator, if the plan has them.
    fn fabric(&self) -> Option<Fabric> {
        let (plan, seed) = (self.plan, self.plan.seed);
        let fabric = plan.fabric.as_ref()?;
        let mut manager = ManagerNode::new(seed, fabric.node_timeout_ms, self.trace.clone());
        plan.mistake.into_iter().for_each(|mistake| manager.plant(mistake));
        let wanted = fabric.desired_regions(plan);
        let random = Random::part(seed, 3001);
        let operator = Operator::new(wanted, fabric.orders, fabric.interval, random, self.trace.clone());
        Some(Fabric { manager, operator })
    }
}

//! Plans of runs with a manager: its network, the operator's orders, and programs that map regions.

use std::time::Duration;

use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::{CnId, Name as ModelName};
use cxloe_wire::random::Random;

use super::{MS, Plan, US, chance};
use crate::control::network::Conditions;
use crate::control::operator::DesiredRegion;
use crate::fault::{Fault, FaultPlan, pick};
use crate::kernel::MemorySharing;
use crate::layout::{Interleave, Layout, Set};
use crate::memory_node::{self, EXTENT};
use crate::trace::Name;

/// Parameters of the control plane of a run.
#[derive(Clone, Debug)]
pub struct FabricPlan {
    /// Delays and losses of messages to and from the manager.
    pub conditions: Conditions,
    /// Silence, in milliseconds, after which the manager regards a node as unreachable.
    pub node_timeout_ms: u64,
    /// Number of random orders that the operator sends.
    pub orders: u64,
    /// Average time between two random orders.
    pub interval: Duration,
    /// Number of extents of each memory node, few enough that space may run out.
    pub extents: u64,
    /// True if the last memory node is assigned as a whole, to one compute node.
    pub whole: bool,
    /// Initial size of a region's part on each memory node, in bytes.
    pub bytes: u64,
}

impl FabricPlan {
    /// Returns true if memory node `mn` is assigned as a whole.
    pub(crate) fn is_whole(&self, mn: usize, plan: &Plan) -> bool {
        self.whole && mn + 1 == plan.mns.len()
    }

    /// Returns the number of extents of each memory node in the run. Space is as scarce with several workers as with
    /// one.
    pub(crate) fn pool_extents(&self, plan: &Plan) -> u64 {
        self.extents * plan.workers_max() as u64
    }

    /// Returns the regions that the operator keeps in existence, in the order in which it makes them: one for each
    /// interleave set of each worker of each compute node.
    pub(crate) fn desired_regions(&self, plan: &Plan) -> Vec<DesiredRegion> {
        let mns = plan.mns.len() - usize::from(self.whole);
        let of = |worker: usize, cn: usize| {
            let layout = Layout::new(mns, plan.interleave, cn);
            let first = (worker * layout.sets().len()) as u32;
            let wanted = |(set, at): (&Set, u32)| DesiredRegion {
                name: ModelName::new(format!("cn{cn}-{at}")).expect("letters and digits"),
                owner: CnId::new(Name::cn(cn).0).expect("a unicast address"),
                ways: Ways::try_from(set.parts.len() as u32).expect("a plan has possible ways"),
                granularity: set.granularity,
                on: set.parts.iter().map(|mn| memory_node::name(*mn)).collect(),
                bytes: self.bytes,
                later: worker > 0,
            };
            layout.sets().iter().zip(first..).map(wanted).collect::<Vec<_>>()
        };
        let mut regions = Vec::new();
        for worker in 0..plan.workers_max() {
            let nodes = plan.cns.iter().enumerate().filter(|(_, cn)| worker < usize::from(cn.workers));
            nodes.for_each(|(cn, _)| regions.extend(of(worker, cn)));
        }
        regions
    }
}

/// Parameters of programs that map a region, instead of a program that submits operations.
#[derive(Clone, Copy, Debug)]
pub struct PagingPlan {
    /// Kind of memory that the programs map: shared or private.
    pub kind: MemorySharing,
    /// True if the region has content before programs begin.
    pub filled: bool,
    pub forks: u32,
    /// Probability, in tenths, that a thread continues its sequential scan.
    pub scanning: u32,
    /// Maximum number of resident pages of all views (tables of pages) together.
    pub limit: u32,
    /// Number of steps of threads and pager, after which the run begins to end.
    pub steps: u64,
    /// Time for which a memory node may be unreachable before pages on it count as lost.
    pub wait_limit: Duration,
}

/// Number of pages that each program maps.
pub const PAGES: u32 = 48;

impl PagingPlan {
    /// Returns the size of the region in bytes. It has the pages that programs map, or four times as many if
    /// processes have copies of their own.
    fn bytes(&self) -> u64 {
        let pages = match self.kind {
            MemorySharing::Shared => PAGES,
            MemorySharing::Private => PAGES * 4,
        };
        u64::from(pages) * 4096
    }
}

impl Plan {
    /// Plans regions that a manager assigns, and a control network that may lose messages.
    pub(super) fn manage(&mut self, r: &mut Random) {
        self.path.faults.drop = chance(r, &[0.0, 0.001, 0.01]);
        if r.below(3) == 0 {
            let ways = pick(r, &[Ways::Two, Ways::Two, Ways::Three]);
            self.spread(r, ways);
        }
        let whole = r.below(2) == 0;
        if whole {
            // The additional memory node is assigned as a whole to one compute node; no region is interleaved over it.
            self.mns.extend(self.mns.first().cloned());
        }
        for cn in &mut self.cns {
            cn.operations = 200 + r.below(300);
            cn.pause = pick(r, &[50 * US, 200 * US, 500 * US]);
        }
        self.fabric = Some(FabricPlan {
            conditions: Conditions {
                delay: pick(r, &[20 * US, 100 * US, 500 * US]),
                jitter: pick(r, &[Duration::ZERO, 100 * US, 2 * MS]),
                lose: chance(r, &[0.0, 0.01, 0.05, 0.15]),
                repeat: chance(r, &[0.0, 0.02, 0.1]),
                late: chance(r, &[0.0, 0.01, 0.1]),
            },
            node_timeout_ms: pick(r, &[30, 60, 120]),
            orders: 5 + r.below(25),
            interval: pick(r, &[MS, 3 * MS, 8 * MS]),
            extents: pick(r, &[8, 16, 32]),
            whole,
            bytes: EXTENT,
        });
    }

    /// Plans programs with mapped regions, a network that loses frames, and kills of agents.
    pub(super) fn page(&mut self, r: &mut Random) {
        self.manage(r);
        self.interleave = None;
        let nodes = pick(r, &[1, 1, 3]);
        let granularity = pick(r, &Granularity::all().collect::<Vec<_>>());
        let interleave = Interleave { ways: Ways::Three, granularity };
        self.set_interleave((nodes == 3).then_some(interleave), nodes);
        let kind = pick(r, &[MemorySharing::Shared, MemorySharing::Private]);
        let limits = &[cxloe_cn_core::pager::LIMIT_MIN, cxloe_cn_core::pager::LIMIT_MIN, 36];
        let paging = PagingPlan {
            kind,
            filled: kind == MemorySharing::Shared && r.below(2) == 0,
            forks: if kind == MemorySharing::Private { pick(r, &[0, 8, 12]) } else { 0 },
            scanning: pick(r, &[0, 0, 8]),
            limit: pick(r, limits),
            steps: 2000 + r.below(3000),
            wait_limit: pick(r, &[20 * MS, 60 * MS, 1000 * MS]),
        };
        self.cns.truncate(1 + r.below(2) as usize);
        for cn in &mut self.cns {
            (cn.operations, cn.paging) = (0, Some(paging));
        }
        if let Some(fabric) = &mut self.fabric {
            // Programs keep their region mapped throughout the run, so the operator sends no orders.
            (fabric.orders, fabric.whole, fabric.extents) = (0, false, 32);
            fabric.bytes = paging.bytes() / nodes as u64;
        }
        let kinds = &[
            Fault::Kill,
            Fault::Kill,
            Fault::Cut,
            Fault::RestartKept,
            Fault::Manager,
            Fault::ManagerAway,
            Fault::Pause,
            Fault::NetworkProfile,
        ];
        self.faults = FaultPlan { kinds, count: r.below(8) };
    }
}

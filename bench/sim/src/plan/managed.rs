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

/// Parameters of the control plane.
#[derive(Clone, Debug)]
pub struct FabricPlan {
    /// Delays and losses of messages to and from the manager.
    pub conditions: Conditions,
    /// Silence after which the manager regards a node as unreachable, in milliseconds.
    pub node_timeout_ms: u64,
    /// Number of orders that the operator sends.
    pub orders: u64,
    /// Mean time between two orders.
    pub interval: Duration,
    /// Number of extents of each memory node.
    pub extents: u64,
    /// Set if the last memory node is assigned as a whole, to one compute node.
    pub whole: bool,
    /// Initial bytes of a region on each memory node.
    pub bytes: u64,
}

impl FabricPlan {
    /// True if memory node `mn` is assigned as a whole.
    pub(crate) fn is_whole(&self, mn: usize, plan: &Plan) -> bool {
        self.whole && mn + 1 == plan.mns.len()
    }

    /// Regions that the operator is to maintain.
    pub(crate) fn desired_regions(&self, plan: &Plan) -> Vec<DesiredRegion> {
        let mns = plan.mns.len() - usize::from(self.whole);
        let of = |cn: usize| {
            let layout = Layout::new(mns, plan.interleave, cn);
            let wanted = |(set, at): (&Set, u32)| DesiredRegion {
                name: ModelName::new(format!("cn{cn}-{at}")).expect("letters and digits"),
                owner: CnId::new(Name::cn(cn).0).expect("a unicast address"),
                ways: Ways::try_from(set.parts.len() as u32).expect("a plan has possible ways"),
                granularity: set.granularity,
                on: set.parts.iter().map(|mn| memory_node::name(*mn)).collect(),
                bytes: self.bytes,
            };
            layout.sets().iter().zip(0..).map(wanted).collect::<Vec<_>>()
        };
        (0..plan.cns.len()).flat_map(of).collect()
    }
}

/// Programs that map a region, in place of a program that submits operations.
#[derive(Clone, Copy, Debug)]
pub struct PagingPlan {
    /// Sharing of the region's pages between processes.
    pub kind: MemorySharing,
    /// Set if the region has content before programs start.
    pub filled: bool,
    /// Largest number of forks in the run.
    pub forks: u32,
    /// Probability, in tenths, that a thread continues a sequential scan.
    pub scanning: u32,
    /// Largest number of resident pages.
    pub limit: u32,
    /// Number of steps of threads and pager.
    pub steps: u64,
    /// Time for which a memory node may be unreachable before its pages count as lost.
    pub wait_limit: Duration,
}

/// Number of pages that each program maps.
pub const PAGES: u32 = 48;

impl PagingPlan {
    /// Bytes of the region: the pages that programs map, or more if each process has its own copies.
    fn bytes(&self) -> u64 {
        let pages = match self.kind {
            MemorySharing::Shared => PAGES,
            MemorySharing::Private => PAGES * 4,
        };
        u64::from(pages) * 4096
    }
}

impl Plan {
    /// Plans regions assigned by a manager, whose messages may be lost.
    pub(super) fn manage(&mut self, r: &mut Random) {
        self.path.faults.drop = chance(r, &[0.0, 0.001, 0.01]);
        if r.below(3) == 0 {
            let ways = pick(r, &[Ways::Two, Ways::Two, Ways::Three]);
            self.spread(r, ways);
        }
        let whole = r.below(2) == 0;
        if whole {
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

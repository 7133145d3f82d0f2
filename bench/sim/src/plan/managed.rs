//! Runs with a manager: how it is reached, what the operator asks for, and programs that have regions mapped.

use std::time::Duration;

use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::{CnId, Name as ModelName};
use cxloe_wire::random::Random;

use super::{MS, Plan, US, chance};
use crate::control::network::Conditions;
use crate::control::operator::Wanted;
use crate::kernel::Kind;
use crate::layout::{Interleave, Layout, Set};
use crate::memory_node::{self, EXTENT};
use crate::trace::Name;
use crate::trouble::{Trouble, Troubles, pick};

/// The control plane.
#[derive(Clone, Debug)]
pub struct FabricPlan {
    /// How its messages travel.
    pub conditions: Conditions,
    /// Silence after which a node counts as unreachable, in milliseconds.
    pub node_timeout_ms: u64,
    /// Orders that the operator gives.
    pub orders: u64,
    /// From one of them to the next, in the mean.
    pub interval: Duration,
    /// Extents of each memory node.
    pub extents: u64,
    /// The last memory node is given away whole.
    pub whole: bool,
    /// Bytes of each part of a region at first.
    pub bytes: u64,
}

impl FabricPlan {
    /// Whether a memory node is given away whole.
    pub(crate) fn is_whole(&self, mn: usize, plan: &Plan) -> bool {
        self.whole && mn + 1 == plan.mns.len()
    }

    /// The regions that compute nodes are to have.
    pub(crate) fn wanted(&self, plan: &Plan) -> Vec<Wanted> {
        let mns = plan.mns.len() - usize::from(self.whole);
        let of = |cn: usize| {
            let layout = Layout::new(mns, plan.interleave, cn);
            let wanted = |(set, at): (&Set, u32)| Wanted {
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

/// Programs that have a region mapped, instead of one that reads and writes its lines.
#[derive(Clone, Copy, Debug)]
pub struct PagingPlan {
    /// Whose the memory is.
    pub kind: Kind,
    /// Whether the region has content from before.
    pub filled: bool,
    /// Forks at most.
    pub forks: u32,
    /// Threads that go through memory page by page, out of ten.
    pub scanning: u32,
    /// Pages that may be in memory.
    pub limit: u32,
    /// Steps that threads and pager make.
    pub steps: u64,
    /// How long memory nodes may be away before pages are given up.
    pub patience: Duration,
}

/// Pages that programs see.
pub const PAGES: u32 = 48;

impl PagingPlan {
    /// Bytes of the region: a page of it for each that programs see, or more where each process has its own.
    fn bytes(&self) -> u64 {
        let pages = match self.kind {
            Kind::Shared => PAGES,
            Kind::Private => PAGES * 4,
        };
        u64::from(pages) * 4096
    }
}

impl Plan {
    /// Regions come from a manager, to which messages get lost.
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

    /// Programs have regions mapped, whose pages come and go over a network that loses frames, while agents are killed.
    pub(super) fn page(&mut self, r: &mut Random) {
        self.manage(r);
        self.interleave = None;
        let nodes = pick(r, &[1, 1, 3]);
        let granularity = pick(r, &Granularity::all().collect::<Vec<_>>());
        let interleave = Interleave { ways: Ways::Three, granularity };
        self.set_interleave((nodes == 3).then_some(interleave), nodes);
        let kind = pick(r, &[Kind::Shared, Kind::Private]);
        let limits = &[cxloe_cn_core::pager::LIMIT_MIN, cxloe_cn_core::pager::LIMIT_MIN, 36];
        let paging = PagingPlan {
            kind,
            filled: kind == Kind::Shared && r.below(2) == 0,
            forks: if kind == Kind::Private { pick(r, &[0, 8, 12]) } else { 0 },
            scanning: pick(r, &[0, 0, 8]),
            limit: pick(r, limits),
            steps: 2000 + r.below(3000),
            patience: pick(r, &[20 * MS, 60 * MS, 1000 * MS]),
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
            Trouble::Kill,
            Trouble::Kill,
            Trouble::Cut,
            Trouble::RestartKept,
            Trouble::Manager,
            Trouble::ManagerAway,
            Trouble::Pause,
            Trouble::Weather,
        ];
        self.troubles = Troubles { kinds, count: r.below(8) };
    }
}

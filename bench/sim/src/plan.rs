//! All parameters of a run, drawn from its seed. The [`Scenario`] determines what can be drawn; values that
//! the user sets take precedence.

mod interleaved;
mod managed;
mod network_profile;
mod queues;
mod workers;

use std::time::Duration;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{BUCKET_DEFAULT, Pacing};
use cxloe_fabric::hdm::Ways;
use cxloe_mn_core::congestion::CongestionConfig;
use cxloe_net::impairment::Burst;
use cxloe_net::rate::Rate;
use cxloe_net::sim::{Path, PortConfig};
use cxloe_net::wait::WaitStyle;
use cxloe_wire::random::{Probability, Random};
use cxloe_wire::session::Timing;

use crate::fault::{self, Fault, FaultPlan, pick};
use crate::layout::Interleave;
use crate::planted_fault::PlantedFault;
use crate::register::Shape;
use crate::scenario::Scenario;

pub use managed::{FabricPlan, PAGES, PagingPlan};
use network_profile::chance;
pub(crate) use network_profile::{network_profile, overload};

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);

/// One of this number of mixed runs exhausts the sequence numbers. Such a run costs as much as a hundred
/// others.
const LATE_ONE_IN: u64 = 512;
/// Each of the [`SPECIAL`] scenarios is selected for one of this number of mixed runs.
const SPECIAL_ONE_IN: u64 = 12;
const SPECIAL: [Scenario; 5] =
    [Scenario::Control, Scenario::Managers, Scenario::Sessions, Scenario::Paging, Scenario::Intruders];
/// One of this number of runs has nodes with keys, except in scenarios that determine this themselves.
const KEYED_ONE_IN: u64 = 4;
/// Number of operations in a run that exhausts the sequence numbers: more than 16 bits can count.
const LATE_OPERATIONS: u64 = 72_000;

/// All parameters of a run; the same plan always gives the same run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed from which all other values are drawn.
    pub seed: u64,
    /// Scenario of the run; for a mixed run, the one that the seed has selected.
    pub scenario: Scenario,
    /// Lines of each region that programs use.
    pub shape: Shape,
    /// Compute nodes, by their numbers.
    pub cns: Vec<CnPlan>,
    /// Memory nodes, by their numbers.
    pub mns: Vec<MnPlan>,
    /// Interleaving of regions over the first memory nodes; `None` if each region is on one memory node.
    pub interleave: Option<Interleave>,
    /// Delays, losses and other faults of the network at the beginning of the run.
    pub path: Path,
    /// Maximum length of a frame on every link, in bytes.
    pub max_frame: usize,
    /// Maximum number of frames that a node handles in one round.
    pub batch: usize,
    /// Time-outs of the nodes' sessions.
    pub timing: Timing,
    /// True if frames are sealed with a pre-shared key.
    pub sealed: bool,
    /// True if nodes have keys: each session is sealed under keys of its own, which are replaced every 40 ms.
    /// Takes precedence over `sealed`.
    pub keyed: bool,
    /// True if an unauthorised station in the network is active, which requires that nodes have keys.
    pub intruder: bool,
    pub faults: FaultPlan,
    /// True if no planned fault can make an operation fail, so that a failed operation is a violation.
    pub all_succeed: bool,
    /// Rule that the nodes break on purpose; `None` in an ordinary run.
    pub mistake: Option<PlantedFault>,
    /// The manager and the operator's orders; `None` with static maps.
    pub fabric: Option<FabricPlan>,
}

/// Parameters of a compute node, and of its program.
#[derive(Clone, Debug)]
pub struct CnPlan {
    /// Rates and queue lengths of the node's port.
    pub port: PortConfig,
    /// Number of streams in each of the node's sessions.
    pub streams: u8,
    /// Size and associativity of the node's line cache.
    pub cache: CacheConfig,
    pub operations: u64,
    /// Maximum pause between two operations.
    pub pause: Duration,
    pub depth: usize,
    /// Rate control of the node; `None` if disabled.
    pub pacing: Option<Pacing>,
    /// Programs that map the node's region; `None` for a program that submits operations.
    pub paging: Option<PagingPlan>,
    /// True if the node requests frames of many lines.
    pub multi: bool,
    /// Maximum number of operations that the program submits in direct succession.
    pub together: usize,
    /// Number of the queues of a worker's link, a power of two; each queue has a MAC address and sessions of its own.
    pub queues: u8,
    /// Wait style of the thread that calls the node's engine.
    pub wait: WaitStyle,
    /// True if the program itself calls the engine, through a port; otherwise an agent's worker does. Without effect at a
    /// node with several workers.
    pub by_port: bool,
    /// Number of workers, each with an engine and `queues` queues of its own.
    pub workers: u8,
}

#[derive(Clone, Debug)]
pub struct MnPlan {
    /// Rates and queue lengths of the node's port.
    pub port: PortConfig,
    /// Maximum number of writes that a session keeps because they came too early.
    pub early_buffers: usize,
    /// Time that the node takes for each frame.
    pub service: Duration,
    /// Length of the receive queue from which the node signals congestion.
    pub congestion: CongestionConfig,
    /// True if the node accepts frames of many lines: before its first restart, and after.
    pub multi: [bool; 2],
}

impl Plan {
    /// Draws the parameters of the run of `seed` in `scenario`.
    pub fn draw(scenario: Scenario, seed: u64) -> Plan {
        let mut random = Random::part(seed, 1);
        let r = &mut random;
        // This value is drawn from a separate random sequence, so that each seed still gives the same other values as
        // before this value was introduced.
        let special = SPECIAL.get(Random::part(seed, 3).below(SPECIAL_ONE_IN) as usize);
        let (scenario, everything) = match scenario {
            Scenario::Mixed if let Some(special) = special => (*special, false),
            Scenario::Mixed => match r.below(LATE_ONE_IN) {
                0 => (Scenario::Late, false),
                n if n % 2 == 0 => (Scenario::Mixed, true),
                _ => (pick(r, &NAMED), false),
            },
            named => (named, false),
        };
        let mut plan = if everything { Plan::everything(seed, r) } else { Plan::plain(seed, scenario, r) };
        plan.specialise(r);
        // These values are drawn from separate random sequences, so that each seed still gives the same other values as
        // before these were introduced.
        plan.pack(&mut Random::part(seed, 4));
        plan.give_queues(&mut Random::part(seed, 6));
        plan.vary_waiting(&mut Random::part(seed, 8));
        plan.give_workers(&mut Random::part(seed, 9));
        // These scenarios test the sequence numbers of a single session. With keys, rekeying would replace
        // that session.
        let one_session = matches!(plan.scenario, Scenario::Calm | Scenario::Late | Scenario::Congested);
        plan.keyed |= !one_session && Random::part(seed, 7).below(KEYED_ONE_IN) == 0;
        plan
    }

    /// Draws which nodes accept many lines in a frame, and how many operations programs submit at once to fill such
    /// frames.
    fn pack(&mut self, r: &mut Random) {
        let mut knows = || r.below(4) > 0;
        for cn in &mut self.cns {
            cn.multi = knows();
        }
        for mn in &mut self.mns {
            mn.multi = [knows(), knows()];
        }
        for cn in &mut self.cns {
            // While the manager withdraws regions, operations are submitted one by one.
            cn.together = if self.scenario == Scenario::Control { 1 } else { pick(r, &[1, 1, 4, 40]) };
        }
    }

    /// Draws the wait styles of compute nodes, and the threads that call their engines. Most threads sleep
    /// whenever they can, since polling would hide a missing wake-up.
    fn vary_waiting(&mut self, r: &mut Random) {
        for cn in &mut self.cns {
            cn.wait = pick(r, &[WaitStyle::Sleep, WaitStyle::Sleep, WaitStyle::default()]);
            // A node with a manager or with mapped memory needs an agent.
            cn.by_port = r.below(3) == 0 && self.fabric.is_none() && cn.paging.is_none();
        }
    }

    /// Draws a plan with all variations of nodes and network.
    fn everything(seed: u64, r: &mut Random) -> Plan {
        let tx_slots = pick(r, &[2, 4, 64, 2048]);
        let fifo_capacity = pick(r, &[4, 16, 512]);
        let port = PortConfig { tx_slots, fifo_capacity, ..PortConfig::default() };
        // A low rate lets the transmit ring fill up.
        let slow = PortConfig { egress: Rate::bits_per_s(1_000_000_000), ..port };
        let mns = (0..1 + r.below(2))
            .map(|_| MnPlan {
                port,
                early_buffers: pick(r, &[2, 16, 128]),
                service: pick(r, &[Duration::ZERO, Duration::ZERO, Duration::from_nanos(300), 5 * US]),
                congestion: CongestionConfig {
                    threshold: pick(r, &[4, 64, 0]),
                    class: CLASS,
                    ..CongestionConfig::default()
                },
                multi: [true; 2],
            })
            .collect();
        let cns = (0..1 + r.below(2))
            .map(|_| CnPlan {
                port: pick(r, &[port, slow]),
                streams: 1 + r.below(3) as u8,
                cache: pick(r, &CACHES),
                operations: 200 + r.below(600),
                pause: pick(r, &[2 * US, 20 * US, 200 * US]),
                depth: 24,
                pacing: pick(r, &[None, Some(paced())]),
                paging: None,
                multi: true,
                together: 1,
                queues: 1,
                wait: WaitStyle::Sleep,
                by_port: false,
                workers: 1,
            })
            .collect();
        Plan {
            cns,
            mns,
            path: network_profile(r),
            max_frame: pick(r, &[FRAME_SMALL, FRAME_SMALL, FRAME_MTU]),
            batch: pick(r, &[1, 4, 64]),
            faults: FaultPlan { count: r.below(8), kinds: fault::ALL },
            all_succeed: false,
            ..Plan::plain(seed, Scenario::Mixed, r)
        }
    }

    /// Draws a plan of two compute nodes and one or two memory nodes, in a network without faults.
    fn plain(seed: u64, scenario: Scenario, r: &mut Random) -> Plan {
        let port = PortConfig::default();
        let congestion = CongestionConfig { threshold: 0, class: CLASS, ..CongestionConfig::default() };
        let mn =
            |_| MnPlan { port, early_buffers: 128, service: Duration::ZERO, congestion, multi: [true; 2] };
        let mns = (0..1 + r.below(2)).map(mn).collect();
        let cn = |_| CnPlan {
            port,
            streams: 1 + r.below(3) as u8,
            cache: pick(r, &CACHES),
            operations: 400 + r.below(600),
            pause: pick(r, &[US, 2 * US, 20 * US]),
            depth: 24,
            pacing: None,
            paging: None,
            multi: true,
            together: 1,
            queues: 1,
            wait: WaitStyle::Sleep,
            by_port: false,
            workers: 1,
        };
        Plan {
            seed,
            scenario,
            shape: Shape { pages: 2, page_lines: 5 },
            mns,
            interleave: None,
            cns: (0..2).map(cn).collect(),
            path: Path::default(),
            max_frame: FRAME_SMALL,
            batch: 64,
            timing: TIMING,
            sealed: false,
            keyed: false,
            intruder: false,
            faults: FaultPlan::NONE,
            all_succeed: scenario.is_harmless(),
            mistake: None,
            fabric: None,
        }
    }

    /// Changes the values by which the scenario differs from others.
    fn specialise(&mut self, r: &mut Random) {
        let faults = &mut self.path.faults;
        let some = |r: &mut Random| FaultPlan { count: 2 + r.below(6), kinds: &[] };
        match self.scenario {
            Scenario::Calm => {}
            Scenario::Mixed => {
                if self.mns.len() > 1 && r.below(2) == 0 {
                    self.spread(r, Ways::Two);
                }
            }
            Scenario::Interleaved => {
                let ways = pick(r, &interleaved::WAYS);
                self.path = network_profile(r);
                let kinds = &[
                    Fault::Cut,
                    Fault::RestartKept,
                    Fault::RestartLost,
                    Fault::Kill,
                    Fault::Replace,
                    Fault::NetworkProfile,
                ];
                self.faults = FaultPlan { kinds, ..some(r) };
                self.spread(r, ways);
            }
            Scenario::Lossy => faults.drop = chance(r, &[0.001, 0.005, 0.01, 0.02]),
            Scenario::Bursty => {
                let (enter, leave) = (chance(r, &[0.001, 0.01]), chance(r, &[0.5, 0.2, 0.1]));
                faults.burst = Some(Burst { enter, leave, loss: Probability::ALWAYS });
            }
            Scenario::Reordering => {
                faults.reorder = chance(r, &[0.01, 0.05, 0.1]);
                faults.duplicate = chance(r, &[0.0, 0.01, 0.1]);
                faults.gap = 1 + r.below(10) as u32;
                faults.hold = pick(r, &[50 * US, MS]);
                self.path.jitter = pick(r, &[Duration::ZERO, 2 * US]);
            }
            Scenario::Hostile => {
                self.path = network_profile(r);
                self.faults = FaultPlan { kinds: &[Fault::NetworkProfile], ..some(r) };
            }
            Scenario::Partitions => {
                faults.drop = chance(r, &[0.0, 0.001]);
                self.faults = FaultPlan { kinds: &[Fault::Cut], ..some(r) };
            }
            Scenario::Restarts => {
                let kinds = &[Fault::RestartKept, Fault::RestartLost, Fault::Kill, Fault::Replace];
                self.faults = FaultPlan { kinds, ..some(r) };
            }
            Scenario::Pauses => self.faults = FaultPlan { kinds: &[Fault::Pause], ..some(r) },
            Scenario::Congested => self.congest(r),
            Scenario::Sessions => self.vary_sessions(r),
            Scenario::Intruders => self.intrude(r),
            Scenario::Control => {
                self.manage(r);
                let kinds = &[Fault::ManagerAway, Fault::RestartKept, Fault::Kill, Fault::RestartLost];
                self.faults = FaultPlan { kinds, count: r.below(4) };
            }
            Scenario::Managers => {
                self.manage(r);
                self.faults = FaultPlan { kinds: fault::MANAGED, ..some(r) };
            }
            Scenario::Paging => self.page(r),
            Scenario::Late => {
                self.path.late = chance(r, &[0.001, 0.003]);
                faults.drop = chance(r, &[0.0, 0.0001]);
                self.mns.truncate(1);
                self.cns.truncate(1);
                for cn in &mut self.cns {
                    cn.streams = 1;
                    cn.cache = CacheConfig::OFF;
                    cn.operations = LATE_OPERATIONS;
                    cn.pause = Duration::from_nanos(100);
                }
            }
        }
    }

    /// Plans sessions without caches, with parameters that vary widely.
    fn vary_sessions(&mut self, r: &mut Random) {
        let mtu = pick(r, &[1500, 1500, 9000]);
        let (tx_slots, fifo_capacity) = (pick(r, &[8, 64, 2048]), pick(r, &[16, 512]));
        let port = PortConfig { mtu, tx_slots, fifo_capacity, ..PortConfig::default() };
        // A low rate lets the transmit ring fill up.
        let slow = PortConfig { egress: Rate::bits_per_s(1_000_000_000), ..port };
        self.max_frame = mtu + 14;
        self.shape = Shape { pages: 6, page_lines: 12 };
        self.path = overload(r);
        self.batch = pick(r, &[1, 8, 64]);
        self.sealed = r.below(6) == 0;
        // This value is drawn from a separate random sequence, so that each seed still gives the same other values as
        // before this value was introduced.
        self.keyed = Random::part(self.seed, 7_001).below(6) == 0;
        self.timing = pick(r, &[Timing::default(), TIMING, TIMING]);
        for mn in &mut self.mns {
            mn.port = pick(r, &[port, port, slow]);
            mn.early_buffers = pick(r, &[2, 16, 128]);
        }
        let cn = self.cns[0].clone();
        self.cns = vec![cn; 1 + r.below(3) as usize];
        let operations = 1200 / self.cns.len() as u64;
        for cn in &mut self.cns {
            cn.port = pick(r, &[port, port, slow]);
            cn.streams = 1 + r.below(4) as u8;
            cn.cache = CacheConfig::OFF;
            (cn.depth, cn.operations) = (pick(r, &[1, 4, 32, 150]), operations);
        }
        let kinds = &[
            Fault::Cut,
            Fault::CutOff,
            Fault::Kill,
            Fault::RestartKept,
            Fault::RestartLost,
            Fault::Goodbye,
            Fault::Overload,
        ];
        self.faults = FaultPlan { kinds, count: r.below(5) };
    }

    /// Plans nodes with keys, frequent rekeying, and an active unauthorised station.
    fn intrude(&mut self, r: &mut Random) {
        if r.below(2) == 0 {
            self.path = network_profile(r);
        }
        (self.keyed, self.intruder) = (true, true);
        self.timing.rekey_every = pick(r, &[2 * MS, 5 * MS, 40 * MS]);
        for cn in &mut self.cns {
            cn.pause = pick(r, &[20 * US, 50 * US]);
            cn.queues = pick(r, &[1, 1, 2]);
        }
        self.shape.pages = 4;
        self.faults = FaultPlan { kinds: fault::INTRUDED, count: 4 + r.below(8) };
    }

    /// Plans several compute nodes at 100 Gbit/s, and a memory node that is slower than all of them together.
    fn congest(&mut self, r: &mut Random) {
        let wire = Some(Rate::gbit_per_s(100));
        let port = PortConfig { egress: wire, ingress: wire, ..PortConfig::default() };
        let fifo_capacity = pick(r, &[128, 512]);
        let fifo_threshold = pick(r, &[16, 50, 105]);
        let service = Duration::from_nanos(pick(r, &[40, 100, 200]));
        let mn = PortConfig { fifo_capacity, fifo_threshold, ..port };
        let congestion =
            CongestionConfig { threshold: fifo_threshold, class: CLASS, ..CongestionConfig::default() };
        self.mns = vec![MnPlan { port: mn, early_buffers: 128, service, congestion, multi: [true; 2] }];
        self.shape = Shape { pages: 4, page_lines: 16 };
        self.max_frame = FRAME_MTU;
        let cn = CnPlan {
            port,
            streams: 2,
            cache: CacheConfig::OFF,
            operations: 1000 + r.below(500),
            pause: Duration::from_nanos(pick(r, &[50, 200])),
            depth: 64,
            pacing: Some(paced()),
            paging: None,
            multi: true,
            together: 1,
            queues: 1,
            wait: WaitStyle::Sleep,
            by_port: false,
            workers: 1,
        };
        self.cns = vec![cn; 4 + r.below(5) as usize];
        self.batch = 16;
    }
}

/// Maximum length of a frame at an MTU of 1500, in bytes.
pub(crate) const FRAME_MTU: usize = 1514;
/// Length in bytes of a frame that suffices for a burst of all used lines of a page. Runs with small buffers are
/// faster.
const FRAME_SMALL: usize = 512;

/// Time-outs shorter than in production, so that sessions end and begin again within a run.
pub const TIMING: Timing = Timing {
    dead_after: Duration::from_millis(60),
    suspect_after: Duration::from_millis(15),
    ping_every: Duration::from_millis(15),
    hello_first: MS,
    hello_max: Duration::from_millis(10),
    timeout_initial: Duration::from_millis(2),
    timeout_min: Duration::from_micros(200),
    timeout_max: Duration::from_millis(10),
    rekey_every: Duration::from_millis(40),
};

/// Priority Flow Control class (IEEE 802.1Qbb) of all frames.
const CLASS: u8 = 3;

/// Returns the rate control for a link of 100 Gbit/s, with the time constants of the paper.
fn paced() -> Pacing {
    let control = cxloe_cc::Config::for_link(100 * cxloe_cc::GBIT);
    Pacing { control, bucket: BUCKET_DEFAULT, class: CLASS }
}

/// Scenarios from which a mixed run is drawn, unless it has all faults or is one of the [`SPECIAL`]
/// scenarios.
const NAMED: [Scenario; 10] = [
    Scenario::Interleaved,
    Scenario::Calm,
    Scenario::Lossy,
    Scenario::Bursty,
    Scenario::Reordering,
    Scenario::Hostile,
    Scenario::Partitions,
    Scenario::Restarts,
    Scenario::Pauses,
    Scenario::Congested,
];

const fn cache(lines: usize, ways: usize) -> CacheConfig {
    CacheConfig { bytes: lines * 64, ways }
}

/// Line caches to draw from: no cache, small ones, in which lines are evicted, and one with room for all
/// lines.
const CACHES: [CacheConfig; 6] =
    [CacheConfig::OFF, cache(4, 4), cache(4, 1), cache(4, 2), cache(2, 2), cache(64, 4)];

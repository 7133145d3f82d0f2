//! All parameters of a run, drawn from its seed.
//!
//! The [`Scenario`] determines what can be drawn; values set by the user take precedence.

mod interleaved;
mod managed;
mod network_profile;
mod queues;

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

/// One of this number of mixed runs exhausts the sequence numbers; such a run costs as much as a hundred others.
const LATE_ONE_IN: u64 = 512;
/// One of this number of mixed runs has all parts of the system, and one has sessions without caches.
const SPECIAL_ONE_IN: u64 = 12;
const SPECIAL: [Scenario; 5] =
    [Scenario::Control, Scenario::Managers, Scenario::Sessions, Scenario::Paging, Scenario::Intruders];
/// One of this number of other runs has nodes with keys.
const KEYED_ONE_IN: u64 = 4;
/// Operations of a run that exhausts the sequence numbers: more than 16 bits can count.
const LATE_OPERATIONS: u64 = 72_000;

/// All parameters of a run; the same plan always gives the same run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed from which all other values are drawn.
    pub seed: u64,
    /// Scenario of the run; in a mixed run, the scenario drawn for it.
    pub scenario: Scenario,
    /// Lines of each region that programs use.
    pub shape: Shape,
    /// Compute nodes, by number.
    pub cns: Vec<CnPlan>,
    /// Memory nodes, by number.
    pub mns: Vec<MnPlan>,
    /// Interleave set over the first memory nodes, if any.
    pub interleave: Option<Interleave>,
    /// Delays, losses and other faults that frames meet at first.
    pub path: Path,
    /// Largest frame on every link, in bytes.
    pub max_frame: usize,
    /// Largest number of frames that a node processes in one round.
    pub batch: usize,
    /// Time-outs of the nodes' sessions.
    pub timing: Timing,
    /// Set if frames are sealed with a pre-shared key.
    pub sealed: bool,
    /// Set if nodes have keys: each session is sealed under its own keys, which are replaced every 40 ms. Takes
    /// precedence over `sealed`.
    pub keyed: bool,
    /// Set if an unauthorised station in the network is active; requires that nodes have keys.
    pub intruder: bool,
    /// Number and kinds of the faults to inject.
    pub faults: FaultPlan,
    /// Set if no planned fault can make an operation fail, so that a failed operation is a violation.
    pub all_succeed: bool,
    /// Mistake planted into the nodes, if any.
    pub mistake: Option<PlantedFault>,
    /// The manager and its orders; `None` with static maps.
    pub fabric: Option<FabricPlan>,
}

/// Parameters of a compute node and its program.
#[derive(Clone, Debug)]
pub struct CnPlan {
    /// Rates and queue lengths of the node's port.
    pub port: PortConfig,
    /// Streams of each of the node's sessions.
    pub streams: u8,
    /// Size of the node's line cache.
    pub cache: CacheConfig,
    /// Number of operations that the program submits.
    pub operations: u64,
    /// Longest pause between two operations.
    pub pause: Duration,
    /// Largest number of operations in flight.
    pub depth: usize,
    /// Rate control of the node; `None` if disabled.
    pub pacing: Option<Pacing>,
    /// Programs that map the node's region; `None` for a program that submits operations.
    pub paging: Option<PagingPlan>,
    /// Set if the node requests frames of many lines.
    pub multi: bool,
    /// Largest number of operations that the program submits in direct succession.
    pub together: usize,
    /// Number of the link's queues, a power of two; each has its own address and session.
    pub queues: u8,
    /// Style of waiting of the thread that drives the node's engine.
    pub wait: WaitStyle,
    /// Set if the program itself drives the engine, through a port; otherwise an agent's worker does.
    pub by_port: bool,
}

/// Parameters of a memory node.
#[derive(Clone, Debug)]
pub struct MnPlan {
    /// Rates and queue lengths of the node's port.
    pub port: PortConfig,
    /// Largest number of early writes that a session holds.
    pub early_buffers: usize,
    /// Processing time of each frame.
    pub service: Duration,
    /// Queue lengths at which the node signals congestion.
    pub congestion: CongestionConfig,
    /// Set if the node accepts frames of many lines: before its first restart, and after.
    pub multi: [bool; 2],
}

impl Plan {
    /// Parameters of the run of `seed` in `scenario`.
    pub fn draw(scenario: Scenario, seed: u64) -> Plan {
        let mut random = Random::part(seed, 1);
        let r = &mut random;
        // A separate random sequence, so that the other values of a seed stay the same.
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
        // Separate random sequences as well.
        plan.pack(&mut Random::part(seed, 4));
        plan.give_queues(&mut Random::part(seed, 6));
        plan.vary_waiting(&mut Random::part(seed, 8));
        // The sequence numbers of these runs are those of a single session, which keys would replace.
        let one_session = matches!(plan.scenario, Scenario::Calm | Scenario::Late | Scenario::Congested);
        plan.keyed |= !one_session && Random::part(seed, 7).below(KEYED_ONE_IN) == 0;
        plan
    }

    /// Draws the nodes that accept many lines in one frame, and the operations that fill such frames.
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

    /// Draws how compute nodes wait and what drives their engines. Most sleep whenever they can, so that a missing
    /// wake-up is not hidden by polling.
    fn vary_waiting(&mut self, r: &mut Random) {
        for cn in &mut self.cns {
            cn.wait = pick(r, &[WaitStyle::Sleep, WaitStyle::Sleep, WaitStyle::default()]);
            // A node with a manager or with mapped memory has an agent.
            cn.by_port = r.below(3) == 0 && self.fabric.is_none() && cn.paging.is_none();
        }
    }

    /// A plan with all variations of nodes and network.
    fn everything(seed: u64, r: &mut Random) -> Plan {
        let tx_slots = pick(r, &[2, 4, 64, 2048]);
        let fifo_capacity = pick(r, &[4, 16, 512]);
        let port = PortConfig { tx_slots, fifo_capacity, ..PortConfig::default() };
        // A low rate fills the transmit ring.
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

    /// A plan of one or two nodes on each side of a network without faults.
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

    /// Sets the values by which the scenario differs from others.
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

    /// Sets sessions without caches, with widely varied parameters.
    fn vary_sessions(&mut self, r: &mut Random) {
        let mtu = pick(r, &[1500, 1500, 9000]);
        let (tx_slots, fifo_capacity) = (pick(r, &[8, 64, 2048]), pick(r, &[16, 512]));
        let port = PortConfig { mtu, tx_slots, fifo_capacity, ..PortConfig::default() };
        // A low rate fills the transmit ring.
        let slow = PortConfig { egress: Rate::bits_per_s(1_000_000_000), ..port };
        self.max_frame = mtu + 14;
        self.shape = Shape { pages: 6, page_lines: 12 };
        self.path = overload(r);
        self.batch = pick(r, &[1, 8, 64]);
        self.sealed = r.below(6) == 0;
        // A separate random sequence, so that the other values of a seed stay the same.
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

    /// Sets nodes with keys, frequent rekeying, and an active unauthorised station.
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

    /// Sets several compute nodes at 100 Gbit/s and a memory node that is slower than all of them together.
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
        };
        self.cns = vec![cn; 4 + r.below(5) as usize];
        self.batch = 16;
    }
}

/// Largest frame at an MTU of 1500.
pub(crate) const FRAME_MTU: usize = 1514;
/// Frame large enough for a burst of all used lines of a page; small buffers make runs shorter.
const FRAME_SMALL: usize = 512;

/// Time-outs shorter than in production, so that sessions end and are reopened within a run.
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

/// Rate control on a link of 100 Gbit/s, with the time constants of the paper.
fn paced() -> Pacing {
    let control = cxloe_cc::Config::for_link(100 * cxloe_cc::GBIT);
    Pacing { control, bucket: BUCKET_DEFAULT, class: CLASS }
}

/// Scenarios from which a mixed run is drawn, besides one with all faults.
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

/// Line caches that runs are drawn from: small ones, so that lines are evicted; none; one with room for all lines.
const CACHES: [CacheConfig; 6] =
    [CacheConfig::OFF, cache(4, 4), cache(4, 1), cache(4, 2), cache(2, 2), cache(64, 4)];

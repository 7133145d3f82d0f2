//! Everything about a run before it begins, drawn from its seed.
//!
//! The [`Scenario`] decides what is possible, the seed what becomes of it; what was set by hand has the last word.

mod interleaved;
mod managed;
mod queues;
mod weather;

use std::time::Duration;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{BUCKET_DEFAULT, Pacing};
use cxloe_fabric::hdm::Ways;
use cxloe_link::impairment::Burst;
use cxloe_link::limit::Rate;
use cxloe_link::sim::{Path, PortConfig};
use cxloe_mn_core::congestion::CongestionConfig;
use cxloe_wire::random::{Probability, Random};
use cxloe_wire::session::Timing;

use crate::layout::Interleave;
use crate::mistake::Mistake;
use crate::register::Shape;
use crate::scenario::Scenario;
use crate::trouble::{self, Trouble, Troubles, pick};

pub use managed::{FabricPlan, PAGES, PagingPlan};
use weather::chance;
pub(crate) use weather::{storm, weather};

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);

/// A run of the scenario that turns the sequence numbers over costs as much as a hundred others: one in this many of
/// the mixed runs is one.
const LATE_ONE_IN: u64 = 512;
/// Of so many mixed runs, one each is one of these, of all parts of the system or of sessions alone.
const SPECIAL_ONE_IN: u64 = 12;
const SPECIAL: [Scenario; 5] =
    [Scenario::Control, Scenario::Managers, Scenario::Sessions, Scenario::Paging, Scenario::Intruders];
/// Of other runs, one in so many has keys.
const KEYED_ONE_IN: u64 = 4;
/// Operations of such a run, more than there are sequence numbers.
const LATE_OPERATIONS: u64 = 72_000;

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where everything below comes from.
    pub seed: u64,
    /// The scenario; a mixed one that has become another is that other.
    pub scenario: Scenario,
    /// Which lines of a region are used.
    pub shape: Shape,
    /// Compute nodes.
    pub cns: Vec<CnPlan>,
    /// Memory nodes.
    pub mns: Vec<MnPlan>,
    /// The interleave set that the first of them make up, if they do.
    pub interleave: Option<Interleave>,
    /// How frames travel at first.
    pub path: Path,
    /// The largest frame of every link, in bytes.
    pub max_frame: usize,
    /// Frames that a node takes in at once.
    pub batch: usize,
    /// How long nodes wait for what.
    pub timing: Timing,
    /// Frames are sealed with a pre-shared key.
    pub sealed: bool,
    /// Nodes have keys: sessions are sealed under keys of their own, which are replaced every 40 ms. Outweighs `sealed`.
    pub keyed: bool,
    /// Somebody at the network has no right to anything, and tries. Only where nodes have keys.
    pub intruder: bool,
    /// What befalls the nodes.
    pub troubles: Troubles,
    /// Nothing planned can make an operation fail, so none may.
    pub all_succeed: bool,
    /// A mistake planted into the nodes.
    pub mistake: Option<Mistake>,
    /// The manager and what is asked of it; `None`: everybody has what a static map says.
    pub fabric: Option<FabricPlan>,
}

/// A compute node.
#[derive(Clone, Debug)]
pub struct CnPlan {
    /// Its port.
    pub port: PortConfig,
    /// Streams of each session.
    pub streams: u8,
    /// Its line cache.
    pub cache: CacheConfig,
    /// Operations it makes.
    pub operations: u64,
    /// The longest time from one operation to the next.
    pub pause: Duration,
    /// Operations on their way at once, at most.
    pub depth: usize,
    /// Rate control, if it has any.
    pub pacing: Option<Pacing>,
    /// Programs that have its region mapped.
    pub paging: Option<PagingPlan>,
    /// Asks for frames of many lines.
    pub multi: bool,
    /// Operations that its program makes at one moment, at most.
    pub together: usize,
    /// Queues of its link, each with an address and a session of its own: a power of two.
    pub queues: u8,
}

/// A memory node.
#[derive(Clone, Debug)]
pub struct MnPlan {
    /// Its port.
    pub port: PortConfig,
    /// Early writes a session may have waiting.
    pub early_buffers: usize,
    /// How long it is busy with each frame.
    pub service: Duration,
    /// When it asks compute nodes for less.
    pub congestion: CongestionConfig,
    /// Takes frames of many lines: at first, and after its first restart.
    pub multi: [bool; 2],
}

impl Plan {
    /// The run of `seed`.
    pub fn draw(scenario: Scenario, seed: u64) -> Plan {
        let mut random = Random::part(seed, 1);
        let r = &mut random;
        // Of its own, so that what the others draw stays as it is.
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
        // Of its own as well.
        plan.pack(&mut Random::part(seed, 4));
        plan.give_queues(&mut Random::part(seed, 6));
        // A run of the sequence numbers' turn is of one session.
        let one_session = matches!(plan.scenario, Scenario::Calm | Scenario::Late | Scenario::Congested);
        plan.keyed |= !one_session && Random::part(seed, 7).below(KEYED_ONE_IN) == 0;
        plan
    }

    /// Who speaks of many lines in one frame, and who has many to speak of: releases side by side.
    fn pack(&mut self, r: &mut Random) {
        let mut knows = || r.below(4) > 0;
        for cn in &mut self.cns {
            cn.multi = knows();
        }
        for mn in &mut self.mns {
            mn.multi = [knows(), knows()];
        }
        for cn in &mut self.cns {
            // What the manager takes away is to meet operations one by one.
            cn.together = if self.scenario == Scenario::Control { 1 } else { pick(r, &[1, 1, 4, 40]) };
        }
    }

    /// Nodes and network as varied as they can be.
    fn everything(seed: u64, r: &mut Random) -> Plan {
        let tx_slots = pick(r, &[2, 4, 64, 2048]);
        let fifo_capacity = pick(r, &[4, 16, 512]);
        let port = PortConfig { tx_slots, fifo_capacity, ..PortConfig::default() };
        // A rate makes the transmit ring fill up.
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
            })
            .collect();
        Plan {
            cns,
            mns,
            path: weather(r),
            max_frame: pick(r, &[FRAME_SMALL, FRAME_SMALL, FRAME_MTU]),
            batch: pick(r, &[1, 4, 64]),
            troubles: Troubles { count: r.below(8), kinds: trouble::ALL },
            all_succeed: false,
            ..Plan::plain(seed, Scenario::Mixed, r)
        }
    }

    /// A cable between one or two nodes on each side.
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
            troubles: Troubles::NONE,
            all_succeed: scenario.is_harmless(),
            mistake: None,
            fabric: None,
        }
    }

    /// What makes the scenario what it is.
    fn specialise(&mut self, r: &mut Random) {
        let faults = &mut self.path.faults;
        let some = |r: &mut Random| Troubles { count: 2 + r.below(6), kinds: &[] };
        match self.scenario {
            Scenario::Calm => {}
            Scenario::Mixed => {
                if self.mns.len() > 1 && r.below(2) == 0 {
                    self.spread(r, Ways::Two);
                }
            }
            Scenario::Interleaved => {
                let ways = pick(r, &interleaved::WAYS);
                self.path = weather(r);
                let kinds = &[
                    Trouble::Cut,
                    Trouble::RestartKept,
                    Trouble::RestartLost,
                    Trouble::Kill,
                    Trouble::Replace,
                    Trouble::Weather,
                ];
                self.troubles = Troubles { kinds, ..some(r) };
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
                self.path = weather(r);
                self.troubles = Troubles { kinds: &[Trouble::Weather], ..some(r) };
            }
            Scenario::Partitions => {
                faults.drop = chance(r, &[0.0, 0.001]);
                self.troubles = Troubles { kinds: &[Trouble::Cut], ..some(r) };
            }
            Scenario::Restarts => {
                let kinds = &[Trouble::RestartKept, Trouble::RestartLost, Trouble::Kill, Trouble::Replace];
                self.troubles = Troubles { kinds, ..some(r) };
            }
            Scenario::Pauses => self.troubles = Troubles { kinds: &[Trouble::Pause], ..some(r) },
            Scenario::Congested => self.congest(r),
            Scenario::Sessions => self.vary_sessions(r),
            Scenario::Intruders => self.intrude(r),
            Scenario::Control => {
                self.manage(r);
                let kinds =
                    &[Trouble::ManagerAway, Trouble::RestartKept, Trouble::Kill, Trouble::RestartLost];
                self.troubles = Troubles { kinds, count: r.below(4) };
            }
            Scenario::Managers => {
                self.manage(r);
                self.troubles = Troubles { kinds: trouble::MANAGED, ..some(r) };
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

    /// Sessions without caches, as different from each other as sessions can be.
    fn vary_sessions(&mut self, r: &mut Random) {
        let mtu = pick(r, &[1500, 1500, 9000]);
        let (tx_slots, fifo_capacity) = (pick(r, &[8, 64, 2048]), pick(r, &[16, 512]));
        let port = PortConfig { mtu, tx_slots, fifo_capacity, ..PortConfig::default() };
        // A rate makes the transmit ring fill up.
        let slow = PortConfig { egress: Rate::bits_per_s(1_000_000_000), ..port };
        self.max_frame = mtu + 14;
        self.shape = Shape { pages: 6, page_lines: 12 };
        self.path = storm(r);
        self.batch = pick(r, &[1, 8, 64]);
        self.sealed = r.below(6) == 0;
        // By a sequence of its own: what else follows from a seed stays as it was.
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
            Trouble::Cut,
            Trouble::CutOff,
            Trouble::Kill,
            Trouble::RestartKept,
            Trouble::RestartLost,
            Trouble::Goodbye,
            Trouble::Storm,
        ];
        self.troubles = Troubles { kinds, count: r.below(5) };
    }

    /// Sessions between keys, which change all the time, and somebody among them who has none that is known.
    fn intrude(&mut self, r: &mut Random) {
        if r.below(2) == 0 {
            self.path = weather(r);
        }
        (self.keyed, self.intruder) = (true, true);
        self.timing.rekey_every = pick(r, &[2 * MS, 5 * MS, 40 * MS]);
        for cn in &mut self.cns {
            cn.pause = pick(r, &[20 * US, 50 * US]);
            cn.queues = pick(r, &[1, 1, 2]);
        }
        self.shape.pages = 4;
        self.troubles = Troubles { kinds: trouble::INTRUDED, count: 4 + r.below(8) };
    }

    /// Several compute nodes at 100 Gbit/s into one memory node that is slower than they are together.
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
        };
        self.cns = vec![cn; 4 + r.below(5) as usize];
        self.batch = 16;
    }
}

/// The largest frame at an MTU of 1500.
pub(crate) const FRAME_MTU: usize = 1514;
/// Large enough for a burst of all lines that are used of a page; smaller buffers make shorter runs.
const FRAME_SMALL: usize = 512;

/// Shorter than in service, so that sessions die and are opened anew within a run.
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

/// The PFC class of all frames.
const CLASS: u8 = 3;

/// Rate control on a link of 100 Gbit/s, with the paper's times.
fn paced() -> Pacing {
    let control = cxloe_cc::Config::for_link(100 * cxloe_cc::GBIT);
    Pacing { control, bucket: BUCKET_DEFAULT, class: CLASS }
}

/// What a mixed run can be beside everything at once.
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

/// Small ones, so that lines leave them; none; and one with room for everything.
const CACHES: [CacheConfig; 6] =
    [CacheConfig::OFF, cache(4, 4), cache(4, 1), cache(4, 2), cache(2, 2), cache(64, 4)];

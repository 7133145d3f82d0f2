//! Model of throughput against the number of queues, on a machine with too few cores to measure it. The production
//! session code runs in virtual time, between shards of a compute node and workers of a memory node that take a given
//! time for each frame.
//!
//! ```text
//!   shard 0: Requester --+                                  +--> worker 0: Responder
//!   shard 1: Requester --+== one wire each way, its rate ===+--> worker 1: Responder      by the source's last two octets
//!   ...                  |                                  |    ...
//! ```
//!
//! The model assumes that a thread takes the same time for a frame whether other threads run or not, as if caches and
//! memory bandwidth were unlimited; that each shard and each worker has a core of its own; and that a NIC queue keeps
//! the frames that arrive while its worker is busy. It simulates order, windows, acknowledgements, the round trip, the
//! distribution of shards over workers, and the wire's rate. So the model shows limits by windows, the wire or an
//! uneven distribution, but not by a machine's memory. `cxloe-bench scale` shows the limits of memory, on a machine
//! with enough cores.

use std::collections::VecDeque;
use std::time::Duration;

use cxloe_net::rate::Rate;
use cxloe_net::sim::{Path, PortConfig, SimLink, SimNetwork};
use cxloe_net::{Link, LinkError};
use cxloe_wire::Transmit;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, FaultStatus, LINE_SIZE, Mac, SHARDS_MAX, source};
use cxloe_wire::machine::StateMachine;
use cxloe_wire::session::{
    Completions, Identity, Memory, OpError, Rejected, Requester, RequesterConfig, Responder, ResponderConfig,
    Timing,
};
use cxloe_wire::time::Time;
use serde::Serialize;

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 0x99]);
const PAGE: u64 = 4096;
const STREAMS: u8 = 4;
/// Virtual time within which all sessions must open, before the first request.
const OPENING: Duration = Duration::from_millis(200);
/// Virtual time for which requests are sent before counting begins, so that the windows are full.
const WARM_UP: Duration = Duration::from_millis(1);
/// Number of frames in a NIC's queue, beyond which arriving frames are dropped.
const QUEUE_FRAMES: usize = 4096;

#[derive(Clone, Copy, Debug, Serialize)]
pub struct ScalingSetting {
    /// Number of shards of the compute node, 1 to 16.
    pub shards: u8,
    pub workers: usize,
    /// Time in nanoseconds that a shard takes for a frame sent or received.
    pub shard_frame_ns: u64,
    /// Time in nanoseconds that a worker takes for a frame and its answer.
    pub worker_frame_ns: u64,
    /// Additional time in nanoseconds for each line in a frame, at either end.
    pub line_ns: u64,
    /// Rate of the wire in each direction, in Gbit/s.
    pub gbit_per_s: u32,
    /// Number of lines in each request: 1, or more for burst reads, up to the 23 that a frame of MTU 1500
    /// carries.
    pub lines: usize,
    /// Number of requests that each shard has in flight.
    pub depth: usize,
    /// Virtual time in microseconds during which requests are counted.
    pub micros: u64,
}

impl Default for ScalingSetting {
    /// Returns single-line requests at 100 Gbit/s, with times close to those measured with one queue.
    fn default() -> ScalingSetting {
        ScalingSetting {
            shards: 1,
            workers: 1,
            shard_frame_ns: 100,
            worker_frame_ns: 200,
            line_ns: 5,
            gbit_per_s: 100,
            lines: 1,
            depth: 128,
            micros: 2_000,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScalingOutcome {
    /// Number of requests answered per second.
    pub ops_per_s: f64,
    /// Number of bytes of lines read per second.
    pub bytes_per_s: f64,
    /// Utilisation of the busiest worker, 0 to 1.
    pub busiest_worker: f64,
    /// Utilisation of the busiest shard, 0 to 1.
    pub busiest_shard: f64,
    pub retransmitted: u64,
}

/// Error of a simulation. Except [`Setting`](Self::Setting), each means a defect of the program.
#[derive(Debug, thiserror::Error)]
pub enum ScalingError {
    #[error(
        "between 1 and {SHARDS_MAX} shards, and at least a worker, a line, a request and a microsecond make sense"
    )]
    Setting,
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("not every shard has a session after {OPENING:?}")]
    NoSession,
    #[error("a request of shard {shard} failed: {error}")]
    Failed { shard: usize, error: OpError },
    /// A read has returned data other than the content of the memory.
    #[error("shard {0} read something else than is there")]
    WrongData(usize),
}

/// Core of a shard or worker; each frame occupies the core for a given time.
#[derive(Clone, Copy, Default)]
struct Core {
    free_at: Time,
    busy: Duration,
}

impl Core {
    fn spend(&mut self, now: Time, cost: Duration) {
        self.free_at = self.free_at.max(now) + cost;
        self.busy += cost;
    }
}

struct Shard {
    link: SimLink,
    requester: Requester,
    core: Core,
    next: u64,
    in_flight: usize,
    done: Done,
}

#[derive(Default)]
struct Done {
    answered: u64,
    error: Option<OpError>,
    wrong: bool,
}

impl Completions for Done {
    fn read(&mut self, token: u64, data: &[u8]) {
        self.answered += 1;
        self.wrong |= data.first_chunk() != Some(&token.to_le_bytes());
    }

    fn written(&mut self, _token: u64) {}

    fn failed(&mut self, _token: u64, error: OpError, _data: &[u8]) {
        self.error.get_or_insert(error);
    }
}

struct Worker {
    responder: Responder,
    queue: VecDeque<Vec<u8>>,
    core: Core,
}

/// Memory in which each line contains its own address, so that it needs no storage.
struct Addresses;

impl Memory for Addresses {
    fn read(&mut self, cn: u64, addr: u64, out: &mut [u8]) -> Result<(), FaultStatus> {
        if cn != CN.to_u64() {
            return Err(FaultStatus::Denied);
        }
        for (line, addr) in out.chunks_exact_mut(LINE_SIZE).zip((addr..).step_by(LINE_SIZE)) {
            line.fill(0);
            line[..8].copy_from_slice(&addr.to_le_bytes());
        }
        Ok(())
    }

    fn write(&mut self, _cn: u64, _addr: u64, _mask: u64, _data: &[u8]) -> Result<(), FaultStatus> {
        Err(FaultStatus::Denied)
    }

    fn admits(&mut self, cn: u64) -> bool {
        cn == CN.to_u64()
    }

    fn has_memory(&mut self, cn: u64) -> bool {
        cn == CN.to_u64()
    }
}

/// Runs the model with `setting`, and returns throughput and utilisation.
///
/// # Errors
/// Returns the first [`ScalingError`] of the run.
pub fn simulate(setting: &ScalingSetting) -> Result<ScalingOutcome, ScalingError> {
    let s = setting;
    let sense =
        (1..=SHARDS_MAX).contains(&s.shards) && s.workers > 0 && s.lines > 0 && s.depth > 0 && s.micros > 0;
    if !sense {
        return Err(ScalingError::Setting);
    }
    let mut run = Run::new(s);
    run.open()?;
    let begin = run.net.now() + WARM_UP;
    let end = begin + Duration::from_micros(s.micros);
    run.until(begin)?;
    let before: u64 = run.shards.iter().map(|shard| shard.done.answered).sum();
    run.shards.iter_mut().for_each(|shard| shard.core.busy = Duration::ZERO);
    run.workers.iter_mut().for_each(|worker| worker.core.busy = Duration::ZERO);
    run.until(end)?;
    let answered = run.shards.iter().map(|shard| shard.done.answered).sum::<u64>() - before;
    let took = end - begin;
    let share = |busy: Option<Duration>| busy.unwrap_or_default().as_secs_f64() / took.as_secs_f64();
    let ops_per_s = answered as f64 / took.as_secs_f64();
    Ok(ScalingOutcome {
        ops_per_s,
        bytes_per_s: ops_per_s * (s.lines * LINE_SIZE) as f64,
        busiest_worker: share(run.workers.iter().map(|worker| worker.core.busy).max()),
        busiest_shard: share(run.shards.iter().map(|shard| shard.core.busy).max()),
        retransmitted: run.shards.iter().map(|shard| shard.requester.counters().retransmitted).sum(),
    })
}

struct Run {
    setting: ScalingSetting,
    net: SimNetwork,
    node: SimLink,
    shards: Vec<Shard>,
    workers: Vec<Worker>,
    /// True after all sessions have opened; only then do shards submit requests.
    asks: bool,
}

impl Run {
    fn new(setting: &ScalingSetting) -> Run {
        let net = SimNetwork::new(1);
        net.set_default_path(Path { delay: Duration::from_micros(1), ..Path::default() });
        let wire = Some(Rate::gbit_per_s(setting.gbit_per_s));
        // All ports of the compute node belong to one NIC, whose wire carries the same frames as the memory node's
        // wire. So it suffices to limit the rate of the memory node's wire.
        let port = PortConfig { fifo_capacity: QUEUE_FRAMES, ..PortConfig::default() };
        let shared = PortConfig {
            egress: wire,
            ingress: wire,
            tx_slots: 1 << 16,
            fifo_capacity: QUEUE_FRAMES * setting.workers,
            fifo_threshold: QUEUE_FRAMES * setting.workers,
            ..PortConfig::default()
        };
        let max_frame = port.mtu + 14;
        let node = net.attach(MN, shared).expect("an address of its own");
        let shard = |shard: u8| {
            let own = CN.shard(shard);
            let mut requester = Requester::new(RequesterConfig {
                identity: Identity { own, peer: MN, ethertype: ETHERTYPE_DEFAULT },
                max_frame,
                streams: STREAMS,
                instance: 1,
                key: None,
                keys: None,
                timing: Timing::default(),
                seed: u64::from(shard).into(),
            });
            requester.set_shard(CN, shard);
            requester.connect(Time::ZERO);
            let link = net.attach(own, port).expect("an address of its own");
            let next = u64::from(shard);
            Shard { link, requester, core: Core::default(), next, in_flight: 0, done: Done::default() }
        };
        let worker = |seed| Worker {
            responder: Responder::new(ResponderConfig::new(MN, max_frame, 1, seed)),
            queue: VecDeque::new(),
            core: Core::default(),
        };
        Run {
            shards: (0..setting.shards).map(shard).collect(),
            workers: (0..setting.workers as u64).map(worker).collect(),
            setting: *setting,
            node,
            net,
            asks: false,
        }
    }

    /// Advances virtual time until every shard has a session.
    fn open(&mut self) -> Result<(), ScalingError> {
        let limit = self.net.now() + OPENING;
        while self.shards.iter().any(|shard| !shard.requester.is_open()) {
            if self.net.now() >= limit {
                return Err(ScalingError::NoSession);
            }
            self.once(limit)?;
        }
        self.asks = true;
        Ok(())
    }

    fn until(&mut self, end: Time) -> Result<(), ScalingError> {
        while self.net.now() < end {
            self.once(end)?;
        }
        Ok(())
    }

    fn once(&mut self, end: Time) -> Result<(), ScalingError> {
        let next = self.turn()?;
        let now = self.net.now();
        // Virtual time has to advance even if an action is due at once.
        self.net.step(next.max(now + Duration::from_nanos(1)).min(end));
        Ok(())
    }

    /// Performs all actions that are due now; returns the time of the next action.
    fn turn(&mut self) -> Result<Time, ScalingError> {
        let Run { setting, net, node, shards, workers, asks } = self;
        let now = net.now();
        let cost =
            |frame_ns: u64, lines: usize| Duration::from_nanos(frame_ns + setting.line_ns * lines as u64);
        let mut next = Time(u64::MAX);
        // As in a NIC, frames are distributed over the workers' queues by their source addresses.
        node.receive(usize::MAX, &mut |frame, _| {
            let Some(from) = source(frame) else { return };
            let worker = usize::from(u16::from_be_bytes([from.0[4], from.0[5]])) % workers.len();
            if workers[worker].queue.len() < QUEUE_FRAMES {
                workers[worker].queue.push_back(frame.to_vec());
            }
        })?;
        for worker in workers.iter_mut() {
            while worker.core.free_at <= now
                && let Some(mut frame) = worker.queue.pop_front()
            {
                worker.responder.handle(&mut frame, now, &mut Addresses, node.transmit());
                worker.responder.poll(now, &mut Addresses, node.transmit());
                worker.core.spend(now, cost(setting.worker_frame_ns, setting.lines));
            }
            if !worker.queue.is_empty() {
                next = next.min(worker.core.free_at);
            }
        }
        node.flush()?;
        for (index, shard) in shards.iter_mut().enumerate() {
            let Shard { link, requester, core, done, .. } = shard;
            while core.free_at <= now {
                let before = done.answered;
                if link.receive(1, &mut |frame, tx| requester.handle(frame, now, tx, done))? == 0 {
                    break;
                }
                shard.in_flight -= (done.answered - before) as usize;
                core.spend(now, cost(setting.shard_frame_ns, setting.lines));
            }
            if let Some(error) = done.error {
                return Err(ScalingError::Failed { shard: index, error });
            }
            if done.wrong {
                return Err(ScalingError::WrongData(index));
            }
            if requester.deadline().is_due(now) {
                requester.poll(now, link.transmit(), done);
            }
            while *asks && core.free_at <= now && shard.in_flight < setting.depth {
                match ask(requester, &mut shard.next, setting, now, link.transmit()) {
                    Ok(()) => shard.in_flight += 1,
                    Err(_) => break,
                }
                core.spend(now, cost(setting.shard_frame_ns, 0));
            }
            link.flush()?;
            next = next.min(requester.deadline().at);
            if core.free_at > now {
                next = next.min(core.free_at);
            }
        }
        Ok(next.min(net.next_event().unwrap_or(Time(u64::MAX))))
    }
}

/// Sends a request for lines of the next page that belongs to this shard.
fn ask(
    requester: &mut Requester,
    next: &mut u64,
    setting: &ScalingSetting,
    now: Time,
    tx: &mut dyn Transmit,
) -> Result<(), Rejected> {
    let page = *next % (1 << 20);
    let (addr, stream) = (page * PAGE, (page / u64::from(setting.shards)) as u8);
    match setting.lines {
        1 => requester.read(stream, addr, addr, now, tx)?,
        lines => requester.burst_read(stream, addr, lines as u8, addr, now, tx)?,
    }
    *next += u64::from(setting.shards);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(shards: u8, workers: usize) -> ScalingOutcome {
        simulate(&ScalingSetting { shards, workers, micros: 500, ..ScalingSetting::default() })
            .expect("a run")
    }

    /// Scenario: the number of queues grows to sixteen at both ends. The throughput must grow nearly in proportion, on
    /// every machine, because time is virtual.
    #[test]
    fn lines_grow_with_the_queues_up_to_sixteen() {
        let one = of(1, 1);
        assert!(one.busiest_worker > 0.95, "{one:?}");
        for queues in [2, 4, 8, 16] {
            let many = of(queues, usize::from(queues));
            let times = many.ops_per_s / one.ops_per_s;
            assert!(times > 0.9 * f64::from(queues), "{queues}: {times} {many:?}");
            assert_eq!(many.retransmitted, 0, "{many:?}");
        }
    }

    #[test]
    fn one_worker_serves_all_shards_no_faster_than_one() {
        let (one, four) = (of(1, 1), of(4, 1));
        assert!(four.ops_per_s < 1.05 * one.ops_per_s, "{one:?} {four:?}");
    }

    #[test]
    fn bursts_grow_until_the_wire_is_full() {
        let bursts = |queues: u8| {
            let setting = ScalingSetting {
                shards: queues,
                workers: queues.into(),
                lines: 23,
                depth: 64,
                micros: 500,
                ..ScalingSetting::default()
            };
            simulate(&setting).expect("a run").bytes_per_s
        };
        let (one, two, sixteen) = (bursts(1), bursts(2), bursts(16));
        assert!(two > 1.8 * one, "{one} {two}");
        // A frame with 23 lines of 64 bytes has 1,501 bytes, and occupies 24 more on the wire.
        let wire = 100e9 / 8.0 * 1472.0 / 1525.0;
        assert!(sixteen < wire && sixteen > 0.9 * wire, "{sixteen} of {wire}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for setting in [
            ScalingSetting { shards: 0, ..ScalingSetting::default() },
            ScalingSetting { shards: 17, ..ScalingSetting::default() },
            ScalingSetting { workers: 0, ..ScalingSetting::default() },
            ScalingSetting { lines: 0, ..ScalingSetting::default() },
        ] {
            assert!(matches!(simulate(&setting), Err(ScalingError::Setting)), "{setting:?}");
        }
    }
}

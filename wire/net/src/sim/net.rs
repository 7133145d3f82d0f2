//! State of the simulated network: ports, paths, and the frames on their way, ordered by time.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::SimError;
use super::path::{Path, PathState};
use super::port::{FifoState, Port, PortConfig};
use super::trace::{FrameOutcome, Trace};
use crate::impairment::FaultCounters;
use cxloe_wire::frame::Mac;
use cxloe_wire::time::Time;

/// Maximum number of frames on their way. A simulation that exceeds this number is itself faulty.
const IN_FLIGHT_MAX: usize = 1 << 20;
/// Length in bytes of the shortest frame with a destination and a source.
const MACS: usize = 12;
/// Prefix of group addresses that no bridge forwards (IEEE 802.1Q, 8.6.3): 01-80-C2-00-00-00 to -0F, which
/// includes the address of PFC frames.
const LINK_LOCAL: [u8; 5] = [0x01, 0x80, 0xc2, 0x00, 0x00];

/// Counters of frames in a simulated network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SimCounters {
    /// Frames that ports have sent, whatever became of them.
    pub sent: u64,
    /// Frames put into receive FIFOs. One sent frame counts several times if it goes to a group or is
    /// duplicated.
    pub delivered: u64,
    /// Frames lost by faults that were drawn for their path.
    pub lost: u64,
    /// Frames lost because their path was cut.
    pub cut: u64,
    /// Frames lost because no open port has their destination address.
    pub no_port: u64,
    /// Frames lost before an ingress wire, in a full FIFO, or because the network was full.
    pub full: u64,
    /// Frames too short to have a destination.
    pub runts: u64,
    /// Late copies delivered ([`Path::late`](super::Path::late)), about one period of the 16-bit sequence
    /// numbers after their frame.
    pub late: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The frame reaches the ingress of the receiving port.
    Ingress,
    /// The frame has passed the ingress wire of the receiving port.
    Arrive,
    /// The maximum hold time of a frame that the path holds back is over.
    Release,
}

struct Event {
    at: Time,
    order: u64,
    step: Step,
    from: usize,
    to: usize,
    frame: Vec<u8>,
}

impl Ord for Event {
    /// The order is reversed, because the heap returns the greatest event: an earlier event is greater, and of two
    /// events at the same time the one scheduled first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Event {}

type TraceHook = Box<dyn FnMut(&Trace<'_>) + Send>;
type SendHook = Box<dyn FnMut(Mac, &mut [u8]) + Send>;
type ThresholdHook = Box<dyn FnMut(Time, Mac, FifoState) + Send>;

pub(super) struct Net {
    seed: u64,
    now: Time,
    order: u64,
    events: BinaryHeap<Event>,
    index: HashMap<Mac, usize>,
    ports: Vec<Port>,
    /// State of each path, as `paths[from][to]`.
    paths: Vec<Vec<PathState>>,
    default_path: Path,
    pool: Vec<Vec<u8>>,
    counters: SimCounters,
    trace: Option<TraceHook>,
    tap: Option<SendHook>,
    threshold: Option<ThresholdHook>,
}

impl Net {
    pub fn new(seed: u64) -> Self {
        Net {
            seed,
            now: Time::ZERO,
            order: 0,
            events: BinaryHeap::new(),
            index: HashMap::new(),
            ports: Vec::new(),
            paths: Vec::new(),
            default_path: Path::default(),
            pool: Vec::new(),
            counters: SimCounters::default(),
            trace: None,
            tap: None,
            threshold: None,
        }
    }

    /// Counter of the frames in a port's FIFO, which the port keeps up to date.
    pub fn waiting(&self, port: usize) -> Arc<AtomicUsize> {
        self.ports[port].waiting.clone()
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    pub fn now(&self) -> Time {
        self.now
    }

    pub fn counters(&self) -> SimCounters {
        self.counters
    }

    pub fn on_trace(&mut self, hook: TraceHook) {
        self.trace = Some(hook);
    }

    pub fn on_send(&mut self, hook: SendHook) {
        self.tap = Some(hook);
    }

    pub fn on_threshold(&mut self, hook: ThresholdHook) {
        self.threshold = Some(hook);
    }

    pub fn fifo(&self, mac: Mac) -> Option<FifoState> {
        self.index.get(&mac).map(|i| self.ports[*i].fifo_state())
    }

    /// Index of the port of `mac`. At the first use of the address a closed port is made.
    fn port(&mut self, mac: Mac) -> usize {
        if let Some(port) = self.index.get(&mac) {
            return *port;
        }
        let new = self.ports.len();
        self.index.insert(mac, new);
        self.ports.push(Port::new(mac));
        let (seed, default) = (self.seed, self.default_path);
        for (paths, from) in self.paths.iter_mut().zip(&self.ports) {
            paths.push(PathState::new(default, seed, from.mac, mac));
        }
        self.paths.push(self.ports.iter().map(|to| PathState::new(default, seed, mac, to.mac)).collect());
        new
    }

    pub fn open(&mut self, mac: Mac, config: PortConfig) -> Result<usize, SimError> {
        let port = self.port(mac);
        if self.ports[port].open {
            return Err(SimError::Attached(mac));
        }
        self.ports[port].open(config);
        Ok(port)
    }

    pub fn close(&mut self, port: usize) {
        self.pool.extend(self.ports[port].close());
    }

    fn path(&mut self, from: Mac, to: Mac) -> &mut PathState {
        let (from, to) = (self.port(from), self.port(to));
        &mut self.paths[from][to]
    }

    pub fn set_default_path(&mut self, path: Path) {
        self.default_path = path;
        // A path set for a pair of ports is kept.
        self.paths.iter_mut().flatten().filter(|p| !p.own).for_each(|p| p.set(path));
    }

    #[cfg(test)]
    pub fn set_path(&mut self, from: Mac, to: Mac, config: Path) {
        let path = self.path(from, to);
        path.own = true;
        path.set(config);
    }

    pub fn faults(&mut self, from: Mac, to: Mac) -> FaultCounters {
        self.path(from, to).counters
    }

    pub fn set_cut(&mut self, from: Mac, to: Mac, cut: bool) {
        self.path(from, to).cut = cut;
    }

    pub fn partition(&mut self, group: &[Mac]) {
        let inside: Vec<bool> = self.ports.iter().map(|p| group.contains(&p.mac)).collect();
        for (from, paths) in self.paths.iter_mut().enumerate() {
            for (to, path) in paths.iter_mut().enumerate() {
                path.cut |= inside[from] != inside[to];
            }
        }
    }

    pub fn heal_all(&mut self) {
        self.paths.iter_mut().flatten().for_each(|p| p.cut = false);
    }

    pub fn next_event(&self) -> Option<Time> {
        self.events.peek().map(|e| e.at)
    }

    pub fn buffer(&mut self) -> Vec<u8> {
        self.pool.pop().unwrap_or_default()
    }

    pub fn recycle(&mut self, frame: Vec<u8>) {
        self.pool.push(frame);
    }

    /// Number of committed frames that the port's wire has not sent yet.
    pub fn departing(&mut self, port: usize) -> usize {
        let now = self.now;
        self.ports[port].departing(now)
    }

    pub fn take(&mut self, port: usize) -> Option<Vec<u8>> {
        let frame = self.ports[port].pop();
        self.watch_threshold(port);
        frame
    }

    pub fn send(&mut self, from: usize, mut frame: Vec<u8>) {
        self.counters.sent += 1;
        if let Some(tap) = &mut self.tap {
            tap(self.ports[from].mac, &mut frame);
        }
        let Some((&dst, _)) = frame.split_first_chunk::<6>().filter(|_| frame.len() >= MACS) else {
            self.counters.runts += 1;
            return self.drop_frame(from, Mac::BROADCAST, frame, FrameOutcome::Runt);
        };
        let dst = Mac(dst);
        let sent = self.ports[from].depart(frame.len(), self.now);
        if !dst.is_multicast() {
            return match self.index.get(&dst) {
                Some(&to) => self.travel(from, to, frame, sent),
                None => {
                    self.counters.no_port += 1;
                    self.drop_frame(from, dst, frame, FrameOutcome::NoPort)
                }
            };
        }
        // A cable joins two ports. More ports are joined by a bridge, and a bridge does not forward
        // link-local groups.
        if !(dst.0.starts_with(&LINK_LOCAL) && self.ports.len() > 2) {
            for to in (0..self.ports.len()).filter(|to| *to != from) {
                let copy = self.copy(&frame);
                self.travel(from, to, copy, sent);
            }
        }
        self.recycle(frame);
    }

    fn copy(&mut self, frame: &[u8]) -> Vec<u8> {
        let mut copy = self.buffer();
        copy.clear();
        copy.extend_from_slice(frame);
        copy
    }

    /// Sends a frame along the path to port `to`. The frame's last bit leaves the sender at `sent`.
    fn travel(&mut self, from: usize, to: usize, mut frame: Vec<u8>, sent: Time) {
        let dst = self.ports[to].mac;
        if self.events.len() >= IN_FLIGHT_MAX {
            self.counters.full += 1;
            return self.drop_frame(from, dst, frame, FrameOutcome::NetworkFull);
        }
        let path = &mut self.paths[from][to];
        if path.cut {
            self.counters.cut += 1;
            return self.drop_frame(from, dst, frame, FrameOutcome::Cut);
        }
        let (impairment, arrival) = path.next(frame.len(), sent);
        if path.wants_late_copy() {
            let copy = self.copy(&frame);
            self.paths[from][to].keep_late(copy);
        }
        let path = &mut self.paths[from][to];
        if let Some(loss) = impairment.lost {
            self.counters.lost += 1;
            self.drop_frame(from, dst, frame, FrameOutcome::Lost(loss));
        } else {
            if let Some(damage) = impairment.damage {
                damage.apply(&mut frame);
            }
            if impairment.delayed && path.has_room() {
                report(&mut self.trace, self.now, self.ports[from].mac, dst, &frame, FrameOutcome::Delayed);
                let deadline = self.paths[from][to].hold(frame, arrival);
                // The frame is released at its deadline if too few frames pass before.
                self.schedule(deadline, Step::Release, from, to, Vec::new());
                return self.release(from, to, arrival);
            }
            path.counters.forgone += u64::from(impairment.delayed);
            path.counters.duplicated += u64::from(impairment.duplicated);
            let damaged = impairment.damage.is_some();
            let src = self.ports[from].mac;
            report(&mut self.trace, self.now, src, dst, &frame, FrameOutcome::Sent { arrival, damaged });
            let second = impairment.duplicated.then(|| self.copy(&frame));
            self.arrive_at(arrival, from, to, frame);
            if let Some(second) = second {
                report(&mut self.trace, self.now, src, dst, &second, FrameOutcome::Duplicated);
                self.arrive_at(arrival, from, to, second);
            }
        }
        self.release(from, to, arrival);
    }

    /// Sends the frames that a path no longer holds back, after the frame that arrives at `arrival`.
    fn release(&mut self, from: usize, to: usize, arrival: Time) {
        while let Some(frame) = self.paths[from][to].release(self.now) {
            let at = self.paths[from][to].rejoin(arrival);
            let (src, dst) = (self.ports[from].mac, self.ports[to].mac);
            let outcome = FrameOutcome::Sent { arrival: at, damaged: false };
            report(&mut self.trace, self.now, src, dst, &frame, outcome);
            self.arrive_at(at, from, to, frame);
        }
        while let Some(copy) = self.paths[from][to].release_late() {
            self.counters.late += 1;
            let (src, dst) = (self.ports[from].mac, self.ports[to].mac);
            report(&mut self.trace, self.now, src, dst, &copy, FrameOutcome::Late { arrival });
            self.arrive_at(arrival, from, to, copy);
        }
    }

    fn arrive_at(&mut self, at: Time, from: usize, to: usize, frame: Vec<u8>) {
        let step = if self.ports[to].ingress.is_some() { Step::Ingress } else { Step::Arrive };
        self.schedule(at, step, from, to, frame);
    }

    fn schedule(&mut self, at: Time, step: Step, from: usize, to: usize, frame: Vec<u8>) {
        self.order += 1;
        // An event is never scheduled in the past, because virtual time does not go back.
        self.events.push(Event { at: at.max(self.now), order: self.order, step, from, to, frame });
    }

    pub fn step(&mut self, until: Time) -> usize {
        let mut events = 0;
        while self.next_event().is_some_and(|at| at <= until) {
            let Some(event) = self.events.pop() else { break };
            self.now = event.at;
            self.carry_out(event);
            events += 1;
        }
        self.now = self.now.max(until);
        events
    }

    fn carry_out(&mut self, event: Event) {
        let Event { step, from, to, frame, .. } = event;
        let dst = self.ports[to].mac;
        match step {
            Step::Release => self.release(from, to, self.now),
            _ if self.paths[from][to].cut => {
                self.counters.cut += 1;
                self.drop_frame(from, dst, frame, FrameOutcome::Cut);
            }
            Step::Ingress => {
                let now = self.now;
                let port = &mut self.ports[to];
                match &mut port.ingress {
                    Some(line) if line.backlog(now) > port.config.ingress_queue => {
                        self.counters.full += 1;
                        self.drop_frame(from, dst, frame, FrameOutcome::QueueFull);
                    }
                    Some(line) => {
                        let at = line.carry(frame.len(), now);
                        self.schedule(at, Step::Arrive, from, to, frame);
                    }
                    // While the frame was on its way, the port was closed and attached again without a rate.
                    None => self.deliver(from, to, frame),
                }
            }
            Step::Arrive => self.deliver(from, to, frame),
        }
    }

    fn deliver(&mut self, from: usize, to: usize, frame: Vec<u8>) {
        let (src, dst) = (self.ports[from].mac, self.ports[to].mac);
        if !self.ports[to].open {
            self.counters.no_port += 1;
            return self.drop_frame(from, dst, frame, FrameOutcome::NoPort);
        }
        match self.ports[to].push(frame) {
            Ok(()) => {
                self.counters.delivered += 1;
                if let Some(frame) = self.ports[to].last_arrived() {
                    report(&mut self.trace, self.now, src, dst, frame, FrameOutcome::Delivered);
                }
            }
            Err(frame) => {
                self.counters.full += 1;
                self.drop_frame(from, dst, frame, FrameOutcome::FifoFull);
            }
        }
        self.watch_threshold(to);
    }

    fn watch_threshold(&mut self, port: usize) {
        let port = &mut self.ports[port];
        if port.crosses_threshold()
            && let Some(hook) = &mut self.threshold
        {
            hook(self.now, port.mac, port.fifo_state());
        }
    }

    fn drop_frame(&mut self, from: usize, to: Mac, frame: Vec<u8>, outcome: FrameOutcome) {
        report(&mut self.trace, self.now, self.ports[from].mac, to, &frame, outcome);
        self.recycle(frame);
    }
}

#[inline]
fn report(hook: &mut Option<TraceHook>, at: Time, from: Mac, to: Mac, frame: &[u8], outcome: FrameOutcome) {
    if let Some(hook) = hook {
        hook(&Trace { at, from, to, frame, outcome });
    }
}

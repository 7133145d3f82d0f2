//! A worker of a simulated compute node: an engine with its sessions and line cache, a link with the worker's queues, and
//! the program that uses them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{Engine, Route, RouteTarget};
use cxloe_fabric::hdm::{Decoder, Ways};
use cxloe_net::Link;
use cxloe_wire::random::Random;
use cxloe_wire::time::Time;

use super::Parameters;
use super::ending::CompletedOperations;
use super::managed::{Managed, Order};
use super::ownership::{Structure, Uses};
use super::program::Program;
use super::waking::Waking;
use crate::layout::{Layout, Set};
use crate::memory_node::{EXTENT, LIVES, MemoryNode, features};
use crate::plan::CnPlan;
use crate::planted_fault::PlantedFault;
use crate::region::Region;
use crate::register::{Origin, Shape};
use crate::tally::Tally;
use crate::trace::{Name, Trace};

/// Lowest bit, in a value that a program writes, of the number of its worker.
const WORKER_SHIFT: u32 = 36;
/// The first round, and one of this number of rounds after it, is followed by a look at the worker's cache and sessions,
/// for the check of owners.
const LOOK_EVERY: u32 = 16;

/// Numbers that identify a worker.
#[derive(Clone, Copy)]
pub(super) struct WorkerId {
    /// Number of the compute node in the run.
    pub node: usize,
    /// Number of the worker, from 0.
    pub number: usize,
    /// Number of workers that the node has.
    pub count: usize,
}

pub(super) struct Worker {
    pub id: WorkerId,
    pub engine: Engine,
    pub link: Box<dyn Link>,
    pub program: Program,
    pub waking: Waking,
    /// True from the end of the sessions on.
    closes: bool,
    /// Rounds of the present process and those before.
    rounds: u32,
    /// Set at the end of a run, once all lines are written back and compared.
    pub flushed: bool,
}

impl Worker {
    /// Makes a worker with regions as in `layout`, in which each memory node has a part with lines as in `shape`.
    pub fn new(
        id: WorkerId,
        link: Box<dyn Link>,
        plan: &CnPlan,
        parameters: &Parameters,
        (layout, shape): (Layout, Shape),
        mut random: Random,
        trace: Trace,
    ) -> Worker {
        let requesters = &parameters.requesters;
        let (mac, dead_after) = (requesters[0].identity.own, requesters[0].timing.dead_after);
        let origin = |mn| Origin { cn: id.node, mn, life: 0, losses: 0, zero: false };
        // The parts of other workers are among them, so that the number of a part is that of its memory node.
        let regions = (0..parameters.parts).map(|mn| Region::new(origin(mn), 0, shape, None, None)).collect();
        let hot =
            if layout.is_spread() { random.below((requesters.len() * shape.lines()) as u64) } else { 0 };
        let program = Program {
            mac,
            name: mac.shard(id.number as u8 * plan.queues),
            index: id.node,
            worker: id.number,
            quota: plan.operations,
            now: Time::ZERO,
            random,
            shape,
            regions,
            layout,
            mistake: None,
            reported: BTreeMap::new(),
            under_way: Vec::with_capacity(plan.depth),
            ended: CompletedOperations::default(),
            next_user: 0,
            next_value: 1 + ((id.number as u64) << WORKER_SHIFT),
            pending: None,
            parts: VecDeque::new(),
            hot,
            issue_at: Time::ZERO,
            pause: plan.pause,
            put_off: Duration::ZERO,
            stranded: 0,
            depth: (plan.depth / id.count).max(1),
            together: plan.together,
            // An operation may have to wait while a memory node ends, starts again and ends once more.
            wait_limit: dead_after * 8 + Duration::from_secs(1),
            all_succeed: false,
            trace,
            managed: None,
            orders: None,
            paged: None,
            uses: Uses::new(id.count),
        };
        // A program with a port of its own has no workers.
        let by_port = plan.by_port && id.count == 1;
        Worker {
            flushed: false,
            id,
            engine: Engine::new(CacheConfig::OFF),
            link,
            program,
            waking: Waking::new(plan.wait, by_port),
            closes: false,
            rounds: 0,
        }
    }

    /// Makes the worker get its regions by orders of the node's control.
    pub fn follow_manager(&mut self, parameters: &Parameters) {
        let WorkerId { node, number, .. } = self.id;
        self.program.next_value = (node as u64 + 1) << 40 | (number as u64) << WORKER_SHIFT;
        self.program.managed = Some(Managed::new(&parameters.requesters[0]));
    }

    /// Plants a fault in the way in which the worker treats its regions.
    pub fn plant(&mut self, mistake: PlantedFault) {
        self.program.mistake = Some(mistake);
        self.program.paged.iter_mut().for_each(|paged| paged.plant(mistake));
    }

    /// Begins the life of a new process: the engine has an empty cache, and connects to the node's memory nodes.
    pub fn start(&mut self, parameters: &Parameters, now: Time) {
        self.waking.wake();
        self.program.orders = None;
        self.engine = Engine::new(parameters.cache);
        let shares = self.program.mistake == Some(PlantedFault::SharesSessions);
        // With this planted fault, the worker takes the addresses of the first worker's sessions.
        let first = if shares { 0 } else { self.id.number as u8 * parameters.queues };
        self.engine.set_shard(first);
        self.engine.set_queues(parameters.queues.into());
        self.program.reported.clear();
        self.engine.set_pacing(parameters.pacing, now);
        self.engine.set_features(features(parameters.multi));
        if self.program.managed.is_some() {
            return;
        }
        for (mn, config) in parameters.requesters.iter().enumerate() {
            let first = mn * usize::from(parameters.queues);
            let why = "peers are numbered as memory nodes are, by their first sessions";
            assert_eq!(self.engine.add_peer(config.clone(), now), first, "{why}");
        }
        for set in self.program.layout.clone().sets() {
            let route = self.route(set, parameters, |region| region.born);
            self.engine.add_route(route).expect("the engine is new");
        }
    }

    /// Returns the engine's route to an interleave set.
    fn route(
        &self,
        set: &Set,
        parameters: &Parameters,
        incarnation: impl Fn(&Region) -> Option<u64>,
    ) -> Route {
        let ways = Ways::try_from(set.parts.len() as u32).expect("a plan has possible ways");
        let Set { base, granularity, .. } = *set;
        let target = |mn: &usize| {
            let region = &self.program.regions[*mn];
            RouteTarget {
                peer: *mn * usize::from(parameters.queues),
                cmem: region.cmem,
                incarnation: incarnation(region),
                mirror: None,
            }
        };
        let targets = set.parts.iter().map(target).collect();
        let mut route = Route { decoder: Decoder { base, size: set.size(), ways, granularity }, targets };
        if let Some(mistake) = self.program.mistake {
            mistake.misroute(&mut route);
        }
        route
    }

    /// Ends the process without notice: the frames in the receive queue, the cache and the operations in flight are
    /// lost.
    pub fn end(&mut self, tally: &mut Tally) {
        // Frames in the receive queue end with the process's socket.
        while self.link.receive(64, &mut |_, _| {}).expect("a simulated link") > 0 {}
        for region in &mut self.program.regions {
            region.registers.crashed();
            region.session = None;
        }
        tally.figures.abandoned += self.program.under_way.len() as u64;
        self.program.under_way.clear();
        self.program.pending = None;
        self.program.parts.clear();
    }

    /// Carries out an order at once, as a process does at its start.
    pub fn carry_out(&mut self, order: Order, now: Time) {
        self.program.carry_out(&mut self.engine, order, now);
    }

    /// Returns true if the agent has died during an action of the worker's pager.
    pub fn has_died(&self) -> bool {
        self.program.paged.as_ref().is_some_and(|paged| paged.has_died())
    }

    /// Adds the counters of an engine that ends to `tally`.
    pub fn retire(&self, tally: &mut Tally) {
        if let Some(paged) = &self.program.paged {
            paged.retire(&mut tally.figures);
        }
        let counters = self.engine.counters();
        tally.figures.write_backs += counters.write_backs;
        tally.figures.slowdowns += counters.pauses_mn;
        tally.figures.stranded += self.program.stranded as u64;
        for session in self.engine.sessions() {
            tally.figures.add_requester(&session.counters);
        }
    }

    /// Replaces the region on memory node `mn`, which is one of this worker's, and on all memory nodes that the region
    /// is interleaved over, by another region at the same HPA. Returns false if no CMem address is left for it.
    pub fn replace_region(
        &mut self,
        mn: usize,
        reported: bool,
        parameters: &Parameters,
        mns: &[MemoryNode],
    ) -> bool {
        let set = self.program.layout.set_of(mn).clone();
        if set.parts.iter().any(|mn| self.program.regions[*mn].life + 1 == LIVES) {
            return false;
        }
        self.waking.wake();
        self.engine.remove_route(set.base).expect("the route of the last life");
        for mn in set.parts.iter().copied() {
            let Region { life, session, .. } = self.program.regions[mn];
            let incarnation = reported.then_some(mns[mn].config.incarnation);
            let born = incarnation.or(self.engine.peer_incarnation(mn * usize::from(parameters.queues)));
            let (life, losses) = (life + 1, mns[mn].losses());
            let origin = Origin { cn: self.id.node, mn, life, losses, zero: false };
            self.program.regions[mn] = Region::new(origin, life * EXTENT, self.program.shape, born, session);
        }
        let incarnation = |region: &Region| reported.then_some(mns[region.origin.mn].config.incarnation);
        let route = self.route(&set, parameters, incarnation);
        self.engine.add_route(route).expect("its place is free");
        self.program.give_up(&set.parts);
        true
    }

    /// Returns true if no operation is in flight or pending.
    pub fn has_nothing_pending(&self) -> bool {
        let sessions = self.engine.sessions();
        self.engine.in_flight() + self.engine.stranded() == 0
            && sessions.iter().all(|session| (session.unanswered, session.buffered) == (0, 0))
    }

    /// Ends the sessions, unless that has begun. Returns true when they have ended.
    pub fn close(&mut self, now: Time) -> bool {
        if !self.closes {
            self.closes = true;
            self.waking.wake();
            self.engine.close(now, &mut CompletedOperations::default());
        }
        self.engine.is_closed()
    }

    /// Records, after some of the rounds, the lines and sessions that the engine has, and the region that is mapped.
    pub fn look_at_uses(&mut self) {
        self.rounds = self.rounds.wrapping_add(1);
        if !self.program.uses.are_recorded() || self.rounds % LOOK_EVERY != 1 {
            return;
        }
        let Worker { engine, program: Program { uses, paged, .. }, .. } = self;
        engine.cached_lines().for_each(|hpa| uses.record(Structure::Line(hpa)));
        engine.session_ends().for_each(|(own, peer)| uses.record(Structure::Session(own, peer)));
        let mapped = paged.as_ref().and_then(|paged| paged.hpa);
        mapped.into_iter().for_each(|hpa| uses.record(Structure::Space(hpa)));
    }

    /// Describes why the worker is not idle, for the message about a run that does not end.
    pub fn state(&self) -> String {
        let Program { name, quota, pending, managed, paged, .. } = &self.program;
        let sessions: Vec<_> = self.engine.sessions().into_iter().map(|s| (s.state, s.unanswered)).collect();
        let (in_flight, stranded) = (self.engine.in_flight(), self.engine.stranded());
        let waits = pending.map_or_else(String::new, |op| format!(", waits to {op}"));
        let drains = managed.as_ref().is_some_and(|managed| !managed.drains.is_empty());
        let drains = if drains { ", drains" } else { "" };
        let mapped = paged.as_ref().map_or_else(String::new, |paged| format!(", {}", paged.state()));
        format!(
            "{}: {quota} to make, {in_flight} in flight, {stranded} stranded{waits}, {sessions:?}{drains}{mapped}",
            Name(*name)
        )
    }
}

//! A compute node of the simulation: the engine of `cn-agent`, and a program that reads and writes few lines
//! of its regions, so that operations collide. Each region is on one memory node or interleaved over several.
//!
//! * here: start and end of the process;
//! * `waking`: the times at which the node runs a round, and its sleep;
//! * `program`: the steps of a round that the program takes;
//! * `following`, `attaching`: region changes from the manager, and their application to the engine;
//! * `making`: submission of the program's operations to the engine;
//! * `paged`: programs that use mapped memory;
//! * `ending`: checks of completed operations, and of the content of the memory nodes.

mod attaching;
mod ending;
mod following;
mod making;
mod paged;
mod program;
mod waking;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{Engine, Pacing, Route, RouteTarget};
use cxloe_fabric::hdm::{Decoder, Ways};
use cxloe_net::Link;
use cxloe_wire::frame::Mac;
use cxloe_wire::random::Random;
use cxloe_wire::session::RequesterConfig;
use cxloe_wire::time::Time;

use crate::control::network::ControlNetwork;
use crate::layout::{Layout, Set};
use crate::memory_node::{EXTENT, LIVES, MemoryNode, features};
use crate::plan::{CnPlan, PagingPlan};
use crate::planted_fault::PlantedFault;
use crate::region::Region;
use crate::register::{Origin, Shape};
use crate::tally::Tally;
use crate::trace::{Name, Trace};
use ending::CompletedOperations;
use following::Managed;
use paged::Paged;
use program::Program;
use waking::Waking;

/// Lowest bit, in a node's instance number, of the count of processes that the node has had.
const LIFE_SHIFT: u32 = 8;

pub struct ComputeNode {
    pub mac: Mac,
    pub engine: Engine,
    /// End of the current pause, during which the node does nothing, as if its machine were suspended.
    pub paused_until: Time,
    link: Box<dyn Link>,
    queues: u8,
    requesters: Vec<RequesterConfig>,
    cache: CacheConfig,
    pacing: Option<Pacing>,
    multi: bool,
    waking: Waking,
    program: Program,
}

impl ComputeNode {
    /// Makes the compute node with this index, with a session with the memory node of each of `requesters`,
    /// and with regions as in `layout`.
    #[allow(clippy::too_many_arguments, reason = "the parts of a node")]
    pub fn new(
        index: usize,
        link: Box<dyn Link>,
        plan: &CnPlan,
        requesters: Vec<RequesterConfig>,
        layout: Layout,
        shape: Shape,
        mut random: Random,
        trace: Trace,
    ) -> ComputeNode {
        let (mac, dead_after) = (requesters[0].identity.own, requesters[0].timing.dead_after);
        let origin = |mn| Origin { cn: index, mn, life: 0, losses: 0, zero: false };
        let regions = |mn| Region::new(origin(mn), 0, shape, None, None);
        let regions = layout.parts().iter().map(|mn| regions(*mn)).collect();
        let hot =
            if layout.is_spread() { random.below((requesters.len() * shape.lines()) as u64) } else { 0 };
        let program = Program {
            mac,
            index,
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
            next_value: 1,
            pending: None,
            parts: VecDeque::new(),
            hot,
            issue_at: Time::ZERO,
            pause: plan.pause,
            put_off: Duration::ZERO,
            stranded: 0,
            depth: plan.depth,
            together: plan.together,
            // An operation may have to wait while a memory node ends, starts again and ends once more.
            wait_limit: dead_after * 8 + Duration::from_secs(1),
            all_succeed: false,
            trace,
            managed: None,
            orders: None,
            paged: None,
        };
        let mut node = ComputeNode {
            mac,
            engine: Engine::new(CacheConfig::OFF),
            paused_until: Time::ZERO,
            link,
            queues: plan.queues,
            requesters,
            cache: plan.cache,
            pacing: plan.pacing,
            multi: plan.multi,
            waking: Waking::new(plan.wait, plan.by_port),
            program,
        };
        node.start(Time::ZERO);
        node
    }

    /// Makes the node get its regions from the manager, instead of from its layout, which must be empty.
    pub fn follow_manager(&mut self, random: Random, trace: Trace) {
        self.program.next_value = (self.program.index as u64 + 1) << 40;
        self.program.managed = Some(Managed::new(self.program.index, &self.requesters[0], random, trace));
        self.start(Time::ZERO);
    }

    /// Returns the MAC addresses of the node's queues, `mac` first.
    pub fn addresses(&self) -> impl Iterator<Item = Mac> + use<> {
        let mac = self.mac;
        (0..self.queues).map(move |shard| mac.shard(shard))
    }

    /// Makes every later failure of an operation a violation, for runs whose only disturbance is the loss of frames.
    pub fn expect_success(&mut self) {
        self.program.all_succeed = true;
    }

    /// Makes programs map the node's region when it is attached. `savings` determines the times at which the programs
    /// have the whole region written back.
    pub fn map(&mut self, plan: PagingPlan, random: Random, savings: Random) {
        self.program.paged = Some(Box::new(Paged::new(plan, random, savings, self.program.mistake)));
    }

    /// Plants a fault in the way in which the node treats its regions.
    pub fn plant(&mut self, mistake: PlantedFault) {
        self.program.mistake = Some(mistake);
        self.program.managed.iter_mut().for_each(|managed| managed.plant(mistake));
        self.program.paged.iter_mut().for_each(|paged| paged.plant(mistake));
        self.start(Time::ZERO);
    }

    /// Starts a new process: its engine has an empty cache, and connects to the node's memory nodes.
    fn start(&mut self, now: Time) {
        self.waking.wake();
        self.program.orders = None;
        self.engine = Engine::new(self.cache);
        self.engine.set_queues(self.queues.into());
        self.program.reported.clear();
        self.engine.set_pacing(self.pacing, now);
        self.engine.set_features(features(self.multi));
        if self.program.managed.is_some() {
            return;
        }
        for (mn, config) in self.requesters.iter().enumerate() {
            let first = mn * usize::from(self.queues);
            let why = "peers are numbered as memory nodes are, by their first sessions";
            assert_eq!(self.engine.add_peer(config.clone(), now), first, "{why}");
        }
        for set in self.program.layout.clone().sets() {
            let route = self.route(set, |region| region.born);
            self.engine.add_route(route).expect("the engine is new");
        }
    }

    /// Returns the engine's route to an interleave set.
    fn route(&self, set: &Set, incarnation: impl Fn(&Region) -> Option<u64>) -> Route {
        let ways = Ways::try_from(set.parts.len() as u32).expect("a plan has possible ways");
        let Set { base, granularity, .. } = *set;
        let target = |mn: &usize| {
            let region = &self.program.regions[*mn];
            RouteTarget {
                peer: *mn * usize::from(self.queues),
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

    /// Kills the process, which loses its cache and its receive queue, and starts another one instead.
    pub fn kill(&mut self, now: Time, net: &mut ControlNetwork, tally: &mut Tally) {
        self.retire(tally);
        // Frames in the receive queue end with the process's socket.
        while self.link.receive(64, &mut |_, _| {}).expect("a simulated link") > 0 {}
        for config in &mut self.requesters {
            // A new process has another instance number, and draws other random numbers.
            config.instance += 1 << LIFE_SHIFT;
            config.seed = config.seed.part(1);
        }
        for region in &mut self.program.regions {
            region.registers.crashed();
            region.session = None;
        }
        tally.figures.abandoned += self.program.under_way.len() as u64;
        self.program.under_way.clear();
        self.program.pending = None;
        self.program.parts.clear();
        self.paused_until = Time::ZERO;
        self.start(now);
        self.restart_managed(now, net);
        if let Some(paged) = &mut self.program.paged {
            paged.succeed(&mut tally.figures);
        }
        self.waking.wake();
    }

    pub fn was_killed(&self) -> bool {
        self.requesters.iter().any(|config| config.instance >> LIFE_SHIFT != 0)
    }

    /// Kills the process at once, or during one of its pager's next actions if it has mapped memory.
    pub fn is_killed(&mut self, now: Time, net: &mut ControlNetwork, tally: &mut Tally) {
        match self.program.paged.as_mut().filter(|paged| paged.hpa.is_some() && paged.has_work()) {
            Some(paged) => paged.kill_soon(),
            None => self.kill(now, net, tally),
        }
    }

    /// Returns true if the process has died and no other one has taken its place yet.
    pub fn has_died(&self) -> bool {
        self.program.paged.as_ref().is_some_and(|paged| paged.has_died())
    }

    /// Returns true if the node has work to do that needs no frame.
    pub fn has_work(&self) -> bool {
        self.program.quota > 0 || self.program.paged.as_ref().is_some_and(|paged| paged.has_work())
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

    /// Adds the present rates of the engine's pacers to `tally`.
    pub fn sample_paces(&mut self, now: Time, tally: &mut Tally) {
        if self.pacing.is_some() {
            self.engine.paces(now).iter().flatten().for_each(|status| tally.paces.sample(status));
        }
    }

    /// Returns true if the program has operations to submit, but no region to submit them to.
    pub fn has_nothing(&self) -> bool {
        self.program.managed.is_some() && self.has_work() && self.program.layout.parts().is_empty()
    }

    /// Returns true if all operations were submitted and have ended.
    pub fn is_idle(&self) -> bool {
        !self.has_work() && !self.program.has_more() && self.program.under_way.is_empty()
    }

    /// Replaces the region on memory node `mn`, and on all memory nodes that the region is interleaved over,
    /// by another region at the same HPA, despite modified lines and operations in flight. If `reported`, the
    /// engine receives the new incarnations. Returns false if no CMem address is left for the new region.
    pub fn replace_region(&mut self, mn: usize, reported: bool, mns: &[MemoryNode]) -> bool {
        let set = self.program.layout.set_of(mn).clone();
        if set.parts.iter().any(|mn| self.program.regions[*mn].life + 1 == LIVES) {
            return false;
        }
        self.waking.wake();
        self.engine.remove_route(set.base).expect("the route of the last life");
        for mn in set.parts.iter().copied() {
            let Region { life, session, .. } = self.program.regions[mn];
            let reported = reported.then_some(mns[mn].config.incarnation);
            let born = reported.or(self.engine.peer_incarnation(mn * usize::from(self.queues)));
            let (life, losses) = (life + 1, mns[mn].losses());
            let origin = Origin { cn: self.program.index, mn, life, losses, zero: false };
            self.program.regions[mn] = Region::new(origin, life * EXTENT, self.program.shape, born, session);
        }
        let route = self.route(&set, |region| reported.then_some(mns[region.origin.mn].config.incarnation));
        self.engine.add_route(route).expect("its place is free");
        self.program.give_up(&set.parts);
        true
    }

    /// Returns the number of operations still to be submitted.
    pub fn quota(&self) -> u64 {
        self.program.quota
    }

    /// Returns true if no operation is in flight or pending.
    pub fn has_nothing_pending(&self) -> bool {
        let sessions = self.engine.sessions();
        self.engine.in_flight() + self.engine.stranded() == 0
            && sessions.iter().all(|session| (session.unanswered, session.buffered) == (0, 0))
    }

    pub fn close(&mut self, now: Time) {
        self.waking.wake();
        self.engine.close(now, &mut CompletedOperations::default());
    }

    /// Describes why the node is not idle, for the message about a run that does not end.
    pub fn state(&self) -> String {
        let sessions: Vec<_> = self.engine.sessions().into_iter().map(|s| (s.state, s.unanswered)).collect();
        let (in_flight, stranded) = (self.engine.in_flight(), self.engine.stranded());
        let waits = self.program.pending.map_or_else(String::new, |op| format!(", waits to {op}"));
        let quota = self.program.quota;
        let mapped =
            self.program.paged.as_ref().map_or_else(String::new, |paged| format!(", {}", paged.state()));
        let managed = self
            .program
            .managed
            .as_ref()
            .map_or_else(String::new, |managed| format!(", {}", managed.state()));
        format!(
            "{}: {quota} to make, {in_flight} in flight, {stranded} stranded{waits}, {sessions:?}{managed}{mapped}",
            Name(self.mac)
        )
    }
}

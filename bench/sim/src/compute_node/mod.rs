//! A compute node of the simulation: the engines of `cn-agent`'s workers, and programs that read and write few lines of
//! its regions, so that operations collide. Each region is on one memory node or interleaved over several.
//!
//! * here: start and end of the process, which has one worker or several;
//! * `worker`: an engine with its sessions, cache, link and program; a region has one worker, as in `cn-agent`;
//! * `ownership`: no two workers use one structure;
//! * `waking`: the times at which a worker runs a round, and its sleep;
//! * `program`: the steps of a round that the program takes;
//! * `following`: the node's control, which gets region changes from the manager and orders the workers to follow;
//! * `managed`, `attaching`: orders, and their application to the engine;
//! * `making`: submission of the program's operations to the engine;
//! * `paged`: programs that use mapped memory;
//! * `ending`: checks of completed operations, and of the content of the memory nodes.

mod attaching;
mod ending;
mod following;
mod making;
mod managed;
mod ownership;
mod paged;
mod program;
mod waking;
mod worker;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::Pacing;
use cxloe_cn_core::workers::ending_stages;
use cxloe_net::Link;
use cxloe_wire::frame::Mac;
use cxloe_wire::random::Random;
use cxloe_wire::session::RequesterConfig;
use cxloe_wire::time::Time;

use crate::control::network::ControlNetwork;
use crate::layout::Layout;
use crate::memory_node::MemoryNode;
use crate::node_context::NodeContext;
use crate::plan::{CnPlan, PagingPlan};
use crate::planted_fault::PlantedFault;
use crate::register::Shape;
use crate::tally::Tally;
use crate::trace::Trace;
use crate::violation::InvariantViolation;
use following::Control;
use ownership::Ownership;
use paged::Paged;
use program::Program;
use worker::{Worker, WorkerId};

/// Lowest bit, in a node's instance number, of the count of processes that the node has had.
const LIFE_SHIFT: u32 = 8;

pub struct ComputeNode {
    pub mac: Mac,
    /// End of the current pause, during which the node does nothing, as if its machine were suspended.
    pub paused_until: Time,
    index: usize,
    parameters: Parameters,
    workers: Vec<Worker>,
    ownership: Ownership,
    /// Connection to the manager; `None` with a static map.
    control: Option<Control>,
}

/// Parameters that all workers of a node share.
struct Parameters {
    /// Number of queues of each worker.
    queues: u8,
    /// Sessions with memory nodes, by the numbers of these.
    requesters: Vec<RequesterConfig>,
    cache: CacheConfig,
    pacing: Option<Pacing>,
    multi: bool,
    /// Number of parts in the static map of regions, one on each memory node; 0 with a manager.
    parts: usize,
}

impl ComputeNode {
    /// Makes the compute node with this index, with a session with the memory node of each of `requesters`, and with
    /// regions as in `layout`. It has a worker for each of `ends`: a link, and random numbers.
    pub fn new(
        index: usize,
        ends: Vec<(Box<dyn Link>, Random)>,
        plan: &CnPlan,
        requesters: Vec<RequesterConfig>,
        layout: &Layout,
        shape: Shape,
        trace: &Trace,
    ) -> ComputeNode {
        let (count, mac) = (ends.len(), requesters[0].identity.own);
        let parameters = Parameters {
            queues: plan.queues,
            requesters,
            cache: plan.cache,
            pacing: plan.pacing,
            multi: plan.multi,
            parts: layout.parts().len(),
        };
        let worker = |(number, (link, random))| {
            let id = WorkerId { node: index, number, count };
            let layout = layout.of_worker(number, count);
            Worker::new(id, link, plan, &parameters, (layout, shape), random, trace.clone())
        };
        let workers = ends.into_iter().enumerate().map(worker).collect();
        let (paused_until, ownership) = (Time::ZERO, Ownership::default());
        let mut node =
            ComputeNode { mac, paused_until, index, parameters, workers, ownership, control: None };
        node.start(Time::ZERO);
        node
    }

    /// Makes the node get its regions from the manager, instead of from its layout, which must be empty.
    pub fn follow_manager(&mut self, random: Random, trace: Trace) {
        let ComputeNode { workers, parameters, .. } = self;
        workers.iter_mut().for_each(|worker| worker.follow_manager(parameters));
        let config = &parameters.requesters[0];
        self.control = Some(Control::new(self.index, workers.len(), config, random, trace));
        self.start(Time::ZERO);
    }

    /// Returns the MAC addresses of the queues of all workers, `mac` first.
    pub fn addresses(&self) -> impl Iterator<Item = Mac> + use<> {
        let (mac, shards) = (self.mac, self.parameters.queues * self.workers.len() as u8);
        (0..shards).map(move |shard| mac.shard(shard))
    }

    /// Makes every later failure of an operation a violation, for runs whose only disturbance is the loss of frames.
    pub fn expect_success(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.program.all_succeed = true);
    }

    /// Makes programs map the region of each worker when it is attached. `randoms` returns the random numbers of a
    /// worker's programs, and those that determine the times at which they have the whole region written back.
    pub fn map(&mut self, plan: PagingPlan, randoms: impl Fn(usize) -> (Random, Random)) {
        let plan = PagingPlan { steps: plan.steps / self.workers.len() as u64, ..plan };
        for worker in &mut self.workers {
            let (random, savings) = randoms(worker.id.number);
            let mistake = worker.program.mistake;
            worker.program.paged = Some(Box::new(Paged::new(plan, random, savings, mistake)));
        }
    }

    /// Plants a fault in the way in which the node treats its regions.
    pub fn plant(&mut self, mistake: PlantedFault) {
        if mistake == PlantedFault::SharesRegions && self.workers.len() > 1 {
            self.share_regions();
        }
        self.workers.iter_mut().for_each(|worker| worker.plant(mistake));
        self.control.iter_mut().for_each(|control| control.plant(mistake));
        self.start(Time::ZERO);
    }

    /// Plants a fault in a static map: each region gets a second worker.
    fn share_regions(&mut self) {
        let layouts: Vec<Layout> = self.workers.iter().map(|worker| worker.program.layout.clone()).collect();
        for (number, layout) in layouts.iter().enumerate() {
            let second = (number + 1) % layouts.len();
            let second = &mut self.workers[second].program.layout;
            layout.sets().iter().for_each(|set| second.add(set.clone()));
        }
    }

    /// Starts a new process: its engines have empty caches, and connect to the node's memory nodes.
    fn start(&mut self, now: Time) {
        self.ownership = Ownership::default();
        let ComputeNode { workers, parameters, .. } = self;
        workers.iter_mut().for_each(|worker| worker.start(parameters, now));
    }

    /// Returns the time of the node's next action.
    pub fn deadline(&self) -> Time {
        let control = self.control.as_ref().and_then(Control::deadline);
        let due = control.into_iter().chain(self.workers.iter().map(Worker::deadline)).min();
        due.unwrap_or(Time(u64::MAX)).max(self.paused_until)
    }

    /// Runs a round of each worker, unless it sleeps or the node is paused. Returns true if the next round of a worker
    /// follows at once.
    ///
    /// # Errors
    /// Returns a violation found in a round.
    pub fn work(
        &mut self,
        now: Time,
        batch: usize,
        around: NodeContext<'_>,
        tally: &mut Tally,
    ) -> Result<bool, InvariantViolation> {
        if now < self.paused_until || self.has_died() {
            return Ok(false);
        }
        let mut busy = false;
        for number in 0..self.workers.len() {
            let worker = &mut self.workers[number];
            busy |= worker.work(now, batch, around, tally)?;
            self.ownership.check(self.mac, number, &mut worker.program.uses)?;
            let quota = worker.program.quota;
            self.workers.iter_mut().for_each(|worker| worker.program.quota = quota);
            if self.has_died() {
                return Ok(false);
            }
        }
        self.take_results();
        Ok(busy)
    }

    /// Kills the process, which loses its caches and its receive queues, and starts another one instead.
    pub fn kill(&mut self, now: Time, net: &mut ControlNetwork, tally: &mut Tally) {
        self.retire(tally);
        self.workers.iter_mut().for_each(|worker| worker.end(tally));
        for config in &mut self.parameters.requesters {
            // A new process has another instance number, and draws other random numbers.
            config.instance += 1 << LIFE_SHIFT;
            config.seed = config.seed.part(1);
        }
        self.paused_until = Time::ZERO;
        self.start(now);
        self.restart_managed(now, net);
        for worker in &mut self.workers {
            if let Some(paged) = &mut worker.program.paged {
                paged.succeed(&mut tally.figures);
            }
            worker.waking.wake();
        }
    }

    pub fn was_killed(&self) -> bool {
        self.parameters.requesters.iter().any(|config| config.instance >> LIFE_SHIFT != 0)
    }

    /// Kills the process at once, or during one of a pager's next actions if it has mapped memory.
    pub fn is_killed(&mut self, now: Time, net: &mut ControlNetwork, tally: &mut Tally) {
        let mut mapped = self.workers.iter_mut().filter_map(|worker| worker.program.paged.as_mut());
        if let Some(paged) = mapped.find(|paged| paged.hpa.is_some() && paged.has_work()) {
            return paged.kill_soon();
        }
        self.kill(now, net, tally);
    }

    /// Returns true if the process has died and no other one has taken its place yet.
    pub fn has_died(&self) -> bool {
        self.workers.iter().any(Worker::has_died)
    }

    /// Returns true if the node has work to do that needs no frame.
    pub fn has_work(&self) -> bool {
        let pages = |worker: &Worker| worker.program.paged.as_ref().is_some_and(|paged| paged.has_work());
        self.quota() > 0 || self.workers.iter().any(pages)
    }

    /// Adds the counters of the engines, which end, to `tally`.
    pub fn retire(&self, tally: &mut Tally) {
        self.workers.iter().for_each(|worker| worker.retire(tally));
    }

    /// Adds the present rates of the engines' pacers to `tally`.
    pub fn sample_paces(&mut self, now: Time, tally: &mut Tally) {
        for worker in self.workers.iter_mut().filter(|_| self.parameters.pacing.is_some()) {
            worker.engine.paces(now).iter().flatten().for_each(|status| tally.paces.sample(status));
        }
    }

    /// Returns true if programs have operations to submit, but no region to submit them to.
    pub fn has_nothing(&self) -> bool {
        let mut layouts = self.workers.iter().map(|worker| &worker.program.layout);
        self.control.is_some() && self.has_work() && layouts.all(|layout| layout.parts().is_empty())
    }

    /// Returns true if all operations were submitted and have ended.
    pub fn is_idle(&self) -> bool {
        let idle = |program: &Program| !program.has_more() && program.under_way.is_empty();
        !self.has_work() && self.workers.iter().all(|worker| idle(&worker.program))
    }

    /// Replaces the region on memory node `mn`, and on all memory nodes that the region is interleaved over,
    /// by another region at the same HPA, despite modified lines and operations in flight. If `reported`, the
    /// engine receives the new incarnations. Returns false if no CMem address is left for the new region.
    pub fn replace_region(&mut self, mn: usize, reported: bool, mns: &[MemoryNode]) -> bool {
        let ComputeNode { workers, parameters, .. } = self;
        let owner = workers.iter_mut().find(|worker| worker.program.layout.parts().contains(&mn));
        owner.is_some_and(|worker| worker.replace_region(mn, reported, parameters, mns))
    }

    /// Returns the number of operations still to be submitted.
    pub fn quota(&self) -> u64 {
        self.workers[0].program.quota
    }

    /// Returns true if the sessions of all workers are open.
    pub fn is_connected(&self) -> bool {
        self.workers.iter().all(|worker| worker.engine.is_connected())
    }

    /// Returns true if no operation is in flight or pending.
    pub fn has_nothing_pending(&self) -> bool {
        self.workers.iter().all(Worker::has_nothing_pending)
    }

    /// Ends the sessions of all workers, in the order in which an agent does; call this until it returns true.
    pub fn close(&mut self, now: Time) -> bool {
        for stage in ending_stages(self.workers.len()) {
            let mut closed = true;
            for worker in &mut self.workers[stage] {
                closed &= worker.close(now);
            }
            if !closed {
                return false;
            }
        }
        true
    }

    /// Describes why the node is not idle, for the message about a run that does not end.
    pub fn state(&self) -> String {
        let workers = self.workers.iter().map(Worker::state);
        let states: Vec<_> = workers.chain(self.control.as_ref().map(Control::state)).collect();
        states.join(", ")
    }
}

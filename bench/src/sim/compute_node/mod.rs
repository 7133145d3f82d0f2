//! A compute node: the engine of `cn-agent`, and a program that reads and writes few lines of a region on each memory
//! node, so that operations meet.
//!
//! * here: the process, its life and death, and its turns;
//! * `making`: the program's operations on their way into the engine;
//! * `ending`: what has become of them, and what the memory nodes hold.

mod ending;
mod making;

use std::time::Duration;

use cxloe_cn::cache::CacheConfig;
use cxloe_cn::engine::{Engine, EngineEvent, Pacing, Route};
use cxloe_wire::frame::Mac;
use cxloe_wire::link::Link;
use cxloe_wire::link::random::Random;
use cxloe_wire::link::sim::SimLink;
use cxloe_wire::session::{RequesterConfig, SessionEvent};
use cxloe_wire::time::Time;

use super::broken::Broken;
use super::memory_node::{EXTENT, LIVES, MemoryNode};
use super::operation::Operation;
use super::plan::CnPlan;
use super::region::{Region, SPACING};
use super::register::{Origin, Shape};
use super::tally::Tally;
use super::trace::{Name, Trace};
use super::verdict::check_write_back;
use ending::Ended;

/// A compute node.
pub struct ComputeNode {
    /// Its address.
    pub mac: Mac,
    /// The engine.
    pub engine: Engine,
    /// Operations still to be made.
    pub quota: u64,
    /// It does nothing until then.
    pub paused_until: Time,
    link: SimLink,
    index: usize,
    random: Random,
    shape: Shape,
    requesters: Vec<RequesterConfig>,
    cache: CacheConfig,
    pacing: Option<Pacing>,
    regions: Vec<Region>,
    /// In the order in which they were made.
    under_way: Vec<(u64, Operation)>,
    ended: Ended,
    next_user: u64,
    next_value: u64,
    pending: Option<Operation>,
    issue_at: Time,
    pause: Duration,
    /// When the pending operation was put off last, for how long.
    put_off: Duration,
    /// The most lines that were stranded at once.
    stranded: usize,
    depth: usize,
    patience: Duration,
    all_succeed: bool,
    trace: Trace,
}

impl ComputeNode {
    /// The `index`-th compute node, with a session and a region on the memory node of each of `requesters`.
    pub fn new(
        index: usize,
        link: SimLink,
        plan: &CnPlan,
        requesters: Vec<RequesterConfig>,
        shape: Shape,
        random: Random,
        trace: Trace,
    ) -> ComputeNode {
        let (mac, dead_after) = (requesters[0].identity.own, requesters[0].timing.dead_after);
        let origin = |mn| Origin { cn: index, mn, life: 0, losses: 0 };
        let regions = (0..requesters.len()).map(|mn| Region::new(origin(mn), shape, None, None)).collect();
        let mut node = ComputeNode {
            mac,
            engine: Engine::new(CacheConfig::OFF),
            quota: plan.operations,
            paused_until: Time::ZERO,
            link,
            index,
            random,
            shape,
            requesters,
            cache: plan.cache,
            pacing: plan.pacing,
            regions,
            under_way: Vec::with_capacity(plan.depth),
            ended: Ended::default(),
            next_user: 0,
            next_value: 1,
            pending: None,
            issue_at: Time::ZERO,
            pause: plan.pause,
            put_off: Duration::ZERO,
            stranded: 0,
            depth: plan.depth,
            // A memory node may be dead, come back and be dead again while an operation waits.
            patience: dead_after * 8 + Duration::from_secs(1),
            all_succeed: false,
            trace,
        };
        node.start(Time::ZERO);
        node
    }

    /// From now on no operation may fail.
    pub fn expect_success(&mut self) {
        self.all_succeed = true;
    }

    /// A new process: an engine with an empty cache that calls its memory nodes.
    fn start(&mut self, now: Time) {
        self.engine = Engine::new(self.cache);
        self.engine.set_pacing(self.pacing, now);
        for (mn, config) in self.requesters.iter().enumerate() {
            let peer = self.engine.add_peer(config.clone(), now);
            let Region { life, born, .. } = self.regions[mn];
            let (hpa, cmem) = (mn as u64 * SPACING, life * EXTENT);
            let route = Route { hpa, bytes: EXTENT, peer, cmem, incarnation: born };
            self.engine.add_route(route).expect("the engine is new");
        }
    }

    /// The process is killed with all that it has in its cache and its receive queue, and another one takes its place.
    pub fn kill(&mut self, now: Time, tally: &mut Tally) {
        self.retire(tally);
        while self.link.receive(64, &mut |_, _| {}).expect("a simulated link") > 0 {}
        for config in &mut self.requesters {
            config.instance += 1 << 8;
            config.seed = config.seed.wrapping_add(1);
        }
        for region in &mut self.regions {
            region.registers.crashed();
            region.session = None;
        }
        tally.figures.abandoned += self.under_way.len() as u64;
        self.under_way.clear();
        self.pending = None;
        self.paused_until = Time::ZERO;
        self.start(now);
    }

    /// Takes over what the engine has counted: it has come to its end.
    pub fn retire(&self, tally: &mut Tally) {
        let counters = self.engine.counters();
        tally.figures.write_backs += counters.write_backs;
        tally.figures.slowdowns += counters.pauses_mn;
        tally.figures.stranded += self.stranded as u64;
        for session in self.engine.sessions() {
            tally.figures.add_requester(&session.counters);
        }
    }

    /// When there is something to do next.
    pub fn deadline(&self) -> Time {
        let due = if self.quota > 0 || self.pending.is_some() {
            self.engine.deadline().min(self.issue_at)
        } else {
            self.engine.deadline()
        };
        due.max(self.paused_until)
    }

    /// Looks at its pacers.
    pub fn sample_paces(&mut self, now: Time, tally: &mut Tally) {
        if self.pacing.is_some() {
            self.engine.paces(now).iter().flatten().for_each(|status| tally.paces.sample(status));
        }
    }

    /// All operations were made and have ended.
    pub fn is_idle(&self) -> bool {
        self.quota == 0 && self.pending.is_none() && self.under_way.is_empty()
    }

    /// Replaces the region on memory node `mn` by another at the same HPA, what is modified and what is on its way
    /// notwithstanding. `false` if there is no CMem left.
    pub fn replace_region(&mut self, mn: usize, told: Option<u64>, losses: usize) -> bool {
        let Region { life, session, .. } = self.regions[mn];
        let life = life + 1;
        if life == LIVES {
            return false;
        }
        let hpa = mn as u64 * SPACING;
        self.engine.remove_route(hpa).expect("the route of the last life");
        let route = Route { hpa, bytes: EXTENT, peer: mn, cmem: life * EXTENT, incarnation: told };
        self.engine.add_route(route).expect("its place is free");
        let open = self.engine.is_peer_connected(mn);
        let born = told.or(if open { session } else { None });
        let origin = Origin { cn: self.index, mn, life, losses };
        self.regions[mn] = Region::new(origin, self.shape, born, session);
        if self.pending.is_some_and(|op| op.region == mn) {
            self.pending = None;
        }
        true
    }

    /// Takes what has arrived, does what is due, makes new operations; whether there was anything.
    pub fn work(
        &mut self,
        now: Time,
        batch: usize,
        mns: &[MemoryNode],
        tally: &mut Tally,
    ) -> Result<bool, Broken> {
        if now < self.paused_until {
            return Ok(false);
        }
        let ComputeNode { link, engine, ended, .. } = self;
        let received = link
            .receive(batch, &mut |frame, tx| engine.handle(frame, now, tx, ended))
            .expect("a simulated link");
        if received > 0 {
            // A frame may have brought a loss; nothing may be made before that is known.
            self.take_events(now, mns, tally)?;
            self.take_ended(now, mns, tally)?;
            if self.pending.is_some() {
                // What it waited for may have come.
                self.issue_at = self.issue_at.min(now);
            }
        }
        let issues = now >= self.issue_at && (self.quota > 0 || self.pending.is_some());
        if issues {
            self.issue(now, mns, tally)?;
        }
        let due = now >= self.engine.deadline();
        if due {
            self.engine.poll(now, self.link.transmit(), &mut self.ended);
        }
        if issues || due {
            self.take_events(now, mns, tally)?;
            self.take_ended(now, mns, tally)?;
        }
        self.stranded = self.stranded.max(self.engine.stranded());
        self.link.flush().expect("a simulated link");
        Ok(received > 0)
    }

    fn take_events(&mut self, now: Time, mns: &[MemoryNode], tally: &mut Tally) -> Result<(), Broken> {
        while let Some(event) = self.engine.poll_event() {
            self.trace.say(now, Name(self.mac), || match &event {
                EngineEvent::Session { mac, event } => format!("session with {}: {event:?}", Name(*mac)),
                EngineEvent::WriteBackRefused { hpa, error } => format!("line at {hpa:#x} refused: {error}"),
            });
            match event {
                EngineEvent::Session { mac, event: SessionEvent::Opened { incarnation, .. } } => {
                    let at = mns.iter().position(|mn| mn.mac == mac).expect("a known node");
                    let losses = mns[at].incarnations.iter().position(|i| *i == incarnation);
                    self.regions[at].opened(incarnation, losses.expect("one of the node's"));
                    // What was refused for want of a session need not wait any longer.
                    self.issue_at = self.issue_at.min(now);
                }
                EngineEvent::Session { event: SessionEvent::Dead, .. } => tally.figures.deaths += 1,
                EngineEvent::Session { .. } => {}
                EngineEvent::WriteBackRefused { hpa, error } => {
                    check_write_back(hpa, error, &mns[(hpa / SPACING) as usize])?;
                    tally.figures.write_backs_refused += 1;
                }
            }
        }
        Ok(())
    }

    /// Ends all sessions.
    pub fn close(&mut self, now: Time) {
        self.engine.close(now, &mut Ended::default());
    }

    /// What keeps it from coming to rest, for a message.
    pub fn state(&self) -> String {
        let sessions: Vec<_> = self.engine.sessions().into_iter().map(|s| (s.state, s.unanswered)).collect();
        let (in_flight, stranded) = (self.engine.in_flight(), self.engine.stranded());
        let waits = self.pending.map_or_else(String::new, |op| format!(", waits to {op}"));
        format!("{}: {in_flight} in flight, {stranded} stranded{waits}, {sessions:?}", Name(self.mac))
    }
}

//! A compute node: the engine of `cn-agent`, and a program that reads and writes few lines of its regions, which have a
//! memory node each or are spread over several, so that operations meet.
//!
//! * here: the process, its life and death, and its turns;
//! * `following`, `attaching`: what the manager says of its regions, and what the engine is told of it;
//! * `making`: the program's operations on their way into the engine;
//! * `ending`: what has become of them, and what the memory nodes hold.

mod attaching;
mod ending;
mod following;
mod making;
mod paged;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{Engine, EngineEvent, Pacing, Route, Target};
use cxloe_fabric::hdm::{Decoder, Ways};
use cxloe_link::Link;
use cxloe_wire::frame::Mac;
use cxloe_wire::random::Random;
use cxloe_wire::session::{RequesterConfig, SessionEvent};
use cxloe_wire::time::Time;

use crate::broken::Broken;
use crate::control::network::ControlNetwork;
use crate::layout::{Layout, Set};
use crate::memory_node::{EXTENT, LIVES, MemoryNode, features};
use crate::mistake::Mistake;
use crate::operation::Operation;
use crate::plan::{CnPlan, PagingPlan};
use crate::region::Region;
use crate::register::{Origin, Shape};
use crate::surroundings::Surroundings;
use crate::tally::Tally;
use crate::trace::{Name, Trace};
use crate::verdict::check_write_back;
use ending::Ended;
use following::Managed;
use paged::Paged;

/// Where the number of a node's life stands in the instance that it shows.
const LIFE_SHIFT: u32 = 8;

/// What the sessions of a process have told about a memory node.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// The incarnation of its content.
    incarnation: Option<u64>,
    /// That content is lost.
    lost: bool,
}

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
    /// When it did something last.
    now: Time,
    link: Box<dyn Link>,
    /// Queues of the link.
    queues: u8,
    index: usize,
    random: Random,
    shape: Shape,
    requesters: Vec<RequesterConfig>,
    cache: CacheConfig,
    pacing: Option<Pacing>,
    /// By memory node.
    regions: Vec<Region>,
    layout: Layout,
    mistake: Option<Mistake>,
    told: BTreeMap<Mac, Told>,
    /// In the order in which they were made.
    under_way: Vec<(u64, Operation)>,
    ended: Ended,
    next_user: u64,
    next_value: u64,
    pending: Option<Operation>,
    /// What else belongs to the range that is being read or written; it goes out with it, without a pause.
    parts: VecDeque<Operation>,
    /// Where many operations on a spread region meet: a line, counted by HPA.
    hot: u64,
    issue_at: Time,
    pause: Duration,
    /// When the pending operation was put off last, for how long.
    put_off: Duration,
    /// The most lines that were stranded at once.
    stranded: usize,
    depth: usize,
    /// Operations made at one moment, at most.
    together: usize,
    multi: bool,
    patience: Duration,
    all_succeed: bool,
    trace: Trace,
    /// Where the manager says which regions there are.
    managed: Option<Managed>,
    /// Where programs have the region mapped.
    paged: Option<Box<Paged>>,
}

impl ComputeNode {
    /// The `index`-th compute node, with a session with the memory node of each of `requesters`, and regions there as
    /// `layout` has them.
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
        let mut node = ComputeNode {
            mac,
            engine: Engine::new(CacheConfig::OFF),
            quota: plan.operations,
            paused_until: Time::ZERO,
            now: Time::ZERO,
            link,
            queues: plan.queues,
            index,
            random,
            shape,
            requesters,
            cache: plan.cache,
            pacing: plan.pacing,
            regions,
            layout,
            mistake: None,
            told: BTreeMap::new(),
            under_way: Vec::with_capacity(plan.depth),
            ended: Ended::default(),
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
            multi: plan.multi,
            // A memory node may be dead, come back and be dead again while an operation waits.
            patience: dead_after * 8 + Duration::from_secs(1),
            all_succeed: false,
            trace,
            managed: None,
            paged: None,
        };
        node.start(Time::ZERO);
        node
    }

    /// From now on the manager says which regions it has; the layout it was made with has none.
    pub fn follow_manager(&mut self, random: Random, trace: Trace) {
        self.next_value = (self.index as u64 + 1) << 40;
        self.managed = Some(Managed::new(self.index, &self.requesters[0], random, trace));
        self.start(Time::ZERO);
    }

    /// The addresses of its queues, its own first.
    pub fn addresses(&self) -> impl Iterator<Item = Mac> + use<> {
        let mac = self.mac;
        (0..self.queues).map(move |shard| mac.shard(shard))
    }

    /// From now on no operation may fail.
    pub fn expect_success(&mut self) {
        self.all_succeed = true;
    }

    /// Programs have its region mapped, as soon as there is one; `savings` says whether and when they have all of it written
    /// back.
    pub fn map(&mut self, plan: PagingPlan, random: Random, savings: Random) {
        self.paged = Some(Box::new(Paged::new(plan, random, savings, self.mistake)));
    }

    /// From now on it is told something wrong about its regions.
    pub fn plant(&mut self, mistake: Mistake) {
        self.mistake = Some(mistake);
        self.managed.iter_mut().for_each(|managed| managed.plant(mistake));
        self.paged.iter_mut().for_each(|paged| paged.plant(mistake));
        self.start(Time::ZERO);
    }

    /// A new process: an engine with an empty cache that calls its memory nodes.
    fn start(&mut self, now: Time) {
        self.engine = Engine::new(self.cache);
        self.engine.set_queues(self.queues.into());
        self.told.clear();
        self.engine.set_pacing(self.pacing, now);
        self.engine.set_features(features(self.multi));
        if self.managed.is_some() {
            return;
        }
        for (mn, config) in self.requesters.iter().enumerate() {
            let first = mn * usize::from(self.queues);
            let why = "peers are numbered as memory nodes are, by their first sessions";
            assert_eq!(self.engine.add_peer(config.clone(), now), first, "{why}");
        }
        for set in self.layout.clone().sets() {
            let route = self.route(set, |region| region.born);
            self.engine.add_route(route).expect("the engine is new");
        }
    }

    /// What the engine is told of a set of memory nodes.
    fn route(&self, set: &Set, incarnation: impl Fn(&Region) -> Option<u64>) -> Route {
        let ways = Ways::try_from(set.parts.len() as u32).expect("a plan has possible ways");
        let Set { base, granularity, .. } = *set;
        let target = |mn: &usize| {
            let region = &self.regions[*mn];
            Target {
                peer: *mn * usize::from(self.queues),
                cmem: region.cmem,
                incarnation: incarnation(region),
            }
        };
        let targets = set.parts.iter().map(target).collect();
        let mut route = Route { decoder: Decoder { base, size: set.size(), ways, granularity }, targets };
        if let Some(mistake) = self.mistake {
            mistake.misroute(&mut route);
        }
        route
    }

    /// The process is killed with all that it has in its cache and its receive queue, and another one takes its place.
    pub fn kill(&mut self, now: Time, net: &mut ControlNetwork, tally: &mut Tally) {
        self.retire(tally);
        while self.link.receive(64, &mut |_, _| {}).expect("a simulated link") > 0 {}
        for config in &mut self.requesters {
            config.instance += 1 << LIFE_SHIFT;
            config.seed = config.seed.part(1);
        }
        for region in &mut self.regions {
            region.registers.crashed();
            region.session = None;
        }
        tally.figures.abandoned += self.under_way.len() as u64;
        self.under_way.clear();
        self.pending = None;
        self.parts.clear();
        self.paused_until = Time::ZERO;
        self.start(now);
        self.restart_managed(now, net);
        if let Some(paged) = &mut self.paged {
            paged.succeed(&mut tally.figures);
        }
    }

    /// It was killed at some time.
    pub fn was_killed(&self) -> bool {
        self.requesters.iter().any(|config| config.instance >> LIFE_SHIFT != 0)
    }

    /// It is to be killed: at once, or in the midst of what its pager does next.
    pub fn is_killed(&mut self, now: Time, net: &mut ControlNetwork, tally: &mut Tally) {
        match self.paged.as_mut().filter(|paged| paged.hpa.is_some() && paged.has_work()) {
            Some(paged) => paged.kill_soon(),
            None => self.kill(now, net, tally),
        }
    }

    /// Whether its process has died, and another one has to take its place.
    pub fn has_died(&self) -> bool {
        self.paged.as_ref().is_some_and(|paged| paged.has_died())
    }

    /// It has something to do of its own.
    pub fn has_work(&self) -> bool {
        self.quota > 0 || self.paged.as_ref().is_some_and(|paged| paged.has_work())
    }

    /// Takes over what the engine has counted: it has come to its end.
    pub fn retire(&self, tally: &mut Tally) {
        if let Some(paged) = &self.paged {
            paged.retire(&mut tally.figures);
        }
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
        let due =
            if self.has_more() { self.engine.deadline().min(self.issue_at) } else { self.engine.deadline() };
        let due = self.managed.as_ref().and_then(Managed::deadline).map_or(due, |at| at.min(due));
        let due = self.paged.as_ref().map_or(due, |paged| paged.deadline(self.now).min(due));
        due.max(self.paused_until)
    }

    /// Looks at its pacers.
    pub fn sample_paces(&mut self, now: Time, tally: &mut Tally) {
        if self.pacing.is_some() {
            self.engine.paces(now).iter().flatten().for_each(|status| tally.paces.sample(status));
        }
    }

    /// It has operations to make, and no region to make them on.
    pub fn has_nothing(&self) -> bool {
        self.managed.is_some() && self.has_work() && self.layout.parts().is_empty()
    }

    /// All operations were made and have ended.
    pub fn is_idle(&self) -> bool {
        !self.has_work() && !self.has_more() && self.under_way.is_empty()
    }

    fn has_more(&self) -> bool {
        self.pending.is_some() || !self.parts.is_empty() || self.quota > 0 && !self.layout.parts().is_empty()
    }

    /// Replaces the region on memory node `mn`, with all other memory nodes that it is spread over, by another at the
    /// same HPA, what is modified and what is on its way notwithstanding. `told`: the incarnations are known. `false` if
    /// there is no CMem left.
    pub fn replace_region(&mut self, mn: usize, told: bool, mns: &[MemoryNode]) -> bool {
        let set = self.layout.set_of(mn).clone();
        if set.parts.iter().any(|mn| self.regions[*mn].life + 1 == LIVES) {
            return false;
        }
        self.engine.remove_route(set.base).expect("the route of the last life");
        for mn in set.parts.iter().copied() {
            let Region { life, session, .. } = self.regions[mn];
            let told = told.then_some(mns[mn].config.incarnation);
            let born = told.or(self.engine.peer_incarnation(mn * usize::from(self.queues)));
            let (life, losses) = (life + 1, mns[mn].losses());
            let origin = Origin { cn: self.index, mn, life, losses, zero: false };
            self.regions[mn] = Region::new(origin, life * EXTENT, self.shape, born, session);
        }
        let route = self.route(&set, |region| told.then_some(mns[region.origin.mn].config.incarnation));
        self.engine.add_route(route).expect("its place is free");
        self.give_up(&set.parts);
        true
    }

    /// What was to be done with these parts is not done any more.
    fn give_up(&mut self, parts: &[usize]) {
        self.pending = self.pending.filter(|op| !parts.contains(&op.region));
        self.parts.retain(|op| !parts.contains(&op.region));
    }

    /// Takes what has arrived, does what is due, makes new operations; whether there was anything.
    pub fn work(
        &mut self,
        now: Time,
        batch: usize,
        around: Surroundings<'_>,
        tally: &mut Tally,
    ) -> Result<bool, Broken> {
        if now < self.paused_until || self.has_died() {
            return Ok(false);
        }
        self.now = now;
        if self.together > 1 {
            self.engine.hold();
        }
        let ComputeNode { link, engine, ended, .. } = self;
        let received = link
            .receive(batch, &mut |frame, tx| engine.handle(frame, now, tx, ended))
            .expect("a simulated link");
        if received > 0 {
            // A frame may have brought a loss; nothing may be made before that is known.
            self.take_events(now, around, tally)?;
            self.take_ended(now, around, tally)?;
            if self.pending.is_some() || !self.parts.is_empty() {
                // What it waited for may have come.
                self.issue_at = self.issue_at.min(now);
            }
        }
        let issues = now >= self.issue_at && self.has_more();
        if issues {
            // As many pauses follow as operations, so that a program lasts as long as one that makes them one by one.
            let mut pauses = Duration::ZERO;
            for made in 1..=self.together {
                self.issue(now, around, tally)?;
                if self.pending.is_some() || !self.has_more() {
                    break;
                }
                pauses += self.issue_at.since(now);
                if made == self.together {
                    self.issue_at = now + pauses;
                }
            }
        }
        let due = now >= self.engine.deadline();
        if due {
            self.engine.poll(now, self.link.transmit(), &mut self.ended);
        }
        while let Some((session, job)) = self.engine.poll_handshake() {
            self.engine.handshake_done(session, job.run(), now);
        }
        if issues || due {
            self.take_events(now, around, tally)?;
            self.take_ended(now, around, tally)?;
        }
        if self.managed.is_some() {
            self.drain(now, around)?;
        }
        if self.paged.is_some() {
            self.work_paged(now, around)?;
        }
        self.stranded = self.stranded.max(self.engine.stranded());
        self.engine.release(now, self.link.transmit());
        self.link.flush().expect("a simulated link");
        Ok(received > 0)
    }

    fn take_events(&mut self, now: Time, around: Surroundings<'_>, tally: &mut Tally) -> Result<(), Broken> {
        while let Some(event) = self.engine.poll_event() {
            self.trace.say(now, Name(self.mac), || match &event {
                EngineEvent::Session { mac, event } => format!("session with {}: {event:?}", Name(*mac)),
                EngineEvent::WriteBackRefused { hpa, error } => format!("line at {hpa:#x} refused: {error}"),
            });
            match event {
                EngineEvent::Session { mac, event: SessionEvent::DataLost { before, now } } => {
                    let told = self.told.entry(mac).or_default();
                    if told.incarnation != Some(before) || before == now {
                        let known = told.incarnation;
                        return Err(self.broken(mac, &format!("{before:#x} is lost, which had {known:x?}")));
                    }
                    told.lost = true;
                    tally.figures.losses_told += 1;
                }
                EngineEvent::Session { mac, event: SessionEvent::Opened { incarnation, .. } } => {
                    let at = around.mns.iter().position(|mn| mn.mac == mac).expect("a known node");
                    let told = self.told.insert(mac, Told { incarnation: Some(incarnation), lost: false });
                    if let Some(Told { incarnation: Some(before), lost }) = told
                        && lost != (before != incarnation)
                    {
                        let why =
                            if lost { "said to be lost, and is not" } else { "lost, and nobody said so" };
                        return Err(self.broken(mac, &format!("its content is {why}")));
                    }
                    let losses = around.mns[at].incarnations.iter().position(|i| *i == incarnation);
                    let losses = losses.expect("one of the node's");
                    let regions = self.regions.iter_mut().filter(|region| region.origin.mn == at);
                    regions.for_each(|region| region.opened(incarnation, losses));
                    // What was refused for want of a session need not wait any longer.
                    self.issue_at = self.issue_at.min(now);
                }
                EngineEvent::Session { event: SessionEvent::Dead, .. } => tally.figures.deaths += 1,
                EngineEvent::Session { .. } => {}
                EngineEvent::WriteBackRefused { hpa, error } => {
                    let place = self.layout.place(hpa);
                    let (part, _) =
                        place.ok_or_else(|| Broken::Rule(format!("{hpa:#x} is no line of a region")))?;
                    check_write_back(hpa, error, &self.regions[part], around)?;
                    tally.figures.write_backs_refused += 1;
                }
            }
        }
        Ok(())
    }

    fn broken(&self, mn: Mac, why: &str) -> Broken {
        Broken::Rule(format!("{}, session with {}: {why}", Name(self.mac), Name(mn)))
    }

    /// Nothing is on its way, and nothing waits for it.
    pub fn is_at_rest(&self) -> bool {
        let sessions = self.engine.sessions();
        self.engine.in_flight() + self.engine.stranded() == 0
            && sessions.iter().all(|session| (session.unanswered, session.buffered) == (0, 0))
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
        let quota = self.quota;
        let mapped = self.paged.as_ref().map_or_else(String::new, |paged| format!(", {}", paged.state()));
        let managed =
            self.managed.as_ref().map_or_else(String::new, |managed| format!(", {}", managed.state()));
        format!(
            "{}: {quota} to make, {in_flight} in flight, {stranded} stranded{waits}, {sessions:?}{managed}{mapped}",
            Name(self.mac)
        )
    }
}

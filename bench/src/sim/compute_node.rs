//! A compute node: the engine of `cn-agent`, and a program that reads and writes few lines of a region on each memory
//! node, so that operations meet.

use std::time::Duration;

use cxloe_cn::cache::CacheConfig;
use cxloe_cn::engine::{Engine, EngineError, EngineEvent, Pacing, Read, Route, Sink, Write};
use cxloe_wire::frame::{LINE_SIZE, Mac};
use cxloe_wire::link::Link;
use cxloe_wire::link::random::Random;
use cxloe_wire::link::sim::SimLink;
use cxloe_wire::session::{RequesterConfig, SessionEvent};
use cxloe_wire::time::Time;

use super::broken::Broken;
use super::memory_node::{EXTENT, LIVES, MemoryNode};
use super::operation::{Kind, Operation};
use super::plan::CnPlan;
use super::region::{Region, SPACING};
use super::register::{Origin, Shape, content};
use super::tally::Tally;
use super::trace::{Name, Trace};
use super::verdict::{check_error, check_write_back};

/// The shortest time from one operation to the next.
const PAUSE_MIN: Duration = Duration::from_nanos(200);
/// Time has to pass between two operations even of a program that never pauses.
const INSTANT: Duration = Duration::from_nanos(1);
/// How long a program waits after an error that will not have gone in a moment, at least and at most.
const AFTER_ERROR: Duration = Duration::from_micros(500);

/// What ended, in order.
#[derive(Default)]
struct Ended {
    outcomes: Vec<(u64, Result<usize, EngineError>)>,
    /// The data of reads, one behind the other.
    data: Vec<u8>,
}

impl Sink for Ended {
    fn read(&mut self, user: u64, data: &[u8]) {
        self.data.extend_from_slice(data);
        self.outcomes.push((user, Ok(data.len())));
    }
    fn written(&mut self, user: u64) {
        self.outcomes.push((user, Ok(0)));
    }
    fn failed(&mut self, user: u64, error: EngineError) {
        self.outcomes.push((user, Err(error)));
    }
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
        tally.figures.write_backs += self.engine.counters().write_backs;
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

    /// Makes an operation, the one that was refused last time first.
    fn issue(&mut self, now: Time, mns: &[MemoryNode], tally: &mut Tally) -> Result<(), Broken> {
        let pause = self.random.below(self.pause.as_nanos() as u64);
        self.issue_at = now + PAUSE_MIN.min(self.pause).max(INSTANT) + Duration::from_nanos(pause);
        let mut op = match self.pending.take() {
            Some(op) => op,
            None if self.quota > 0 && self.under_way.len() < self.depth => {
                self.quota -= 1;
                let (regions, value) = (self.regions.len(), &mut self.next_value);
                let op = Operation::draw(&mut self.random, regions, self.shape, value, now);
                Operation { life: self.regions[op.region].life, ..op }
            }
            None => return Ok(()),
        };
        op.lost = self.regions[op.region].is_lost();
        let user = self.next_user;
        self.next_user += 1;
        match self.make(&op, user, now, mns, tally) {
            Ok(None) => {
                self.trace.say(now, Name(self.mac), || format!("{op}: sent"));
                self.under_way.push((user, op));
            }
            Ok(Some(data)) => {
                self.trace.say(now, Name(self.mac), || format!("{op}: done at once"));
                tally.figures.at_once += 1;
                if op.lost && op.kind != Kind::Flush {
                    return Err(Broken::at(self.mac, &op, "it was done at once, but its region is lost"));
                }
                if op.kind == Kind::Read {
                    let registers = &mut self.regions[op.region].registers;
                    let read = registers.read_ended(op.line, user, &data, false);
                    read.map_err(|why| Broken::at(self.mac, &op, why))?;
                }
            }
            Err(Refusal::Broken(broken)) => return Err(broken),
            Err(Refusal::Error(error)) => {
                if op.is_read() {
                    op.lines().for_each(|line| self.regions[op.region].registers.read_failed(line, user));
                }
                if error == EngineError::Busy {
                    tally.figures.busy += 1;
                    if now - op.at > self.patience {
                        let why = format!("it is refused as busy for {:?}", now - op.at);
                        return Err(Broken::at(self.mac, &op, why));
                    }
                    self.pending = Some(op);
                } else {
                    self.trace.say(now, Name(self.mac), || format!("{op}: refused, {error}"));
                    check_error(&op, error, mns, &mut tally.figures, false)
                        .map_err(|why| Broken::at(self.mac, &op, why))?;
                    let wait = AFTER_ERROR.as_nanos() as u64;
                    self.issue_at = now + AFTER_ERROR + Duration::from_nanos(self.random.below(9 * wait));
                }
            }
        }
        Ok(())
    }

    /// Hands an operation to the engine; the data of a read that is done at once, nothing of another; `None` where the
    /// sink will be told.
    fn make(
        &mut self,
        op: &Operation,
        user: u64,
        now: Time,
        mns: &[MemoryNode],
        tally: &mut Tally,
    ) -> Result<Option<[u8; LINE_SIZE]>, Refusal> {
        const NOTHING: [u8; LINE_SIZE] = [0; LINE_SIZE];
        let hpa = op.region as u64 * SPACING + self.shape.offset(op.line);
        let tx = self.link.transmit();
        let registers = &mut self.regions[op.region].registers;
        if op.is_read() {
            op.lines().for_each(|line| registers.read_issued(line, user));
        }
        match op.kind {
            Kind::Read => match self.engine.read(hpa, user, now, tx)? {
                Read::Sent => Ok(None),
                Read::Hit(data) => Ok(Some(data)),
            },
            Kind::BurstRead(lines) => {
                self.engine.burst_read(hpa, lines, user, now, tx)?;
                Ok(None)
            }
            Kind::Write(value) => match self.engine.write(hpa, &content(value), user, now, tx)? {
                Write::Sent => {
                    registers.write_issued(op.line, value);
                    Ok(None)
                }
                Write::Done => {
                    registers.written(op.line, value);
                    Ok(Some(NOTHING))
                }
            },
            Kind::BurstWrite(mask, first) => {
                let values = (first..).take(mask.count_ones() as usize);
                let data: Vec<u8> = values.clone().flat_map(content).collect();
                self.engine.burst_write(hpa, mask, &data, user, now, tx)?;
                op.lines().zip(values).for_each(|(line, value)| registers.write_issued(line, value));
                Ok(None)
            }
            Kind::Flush => match self.engine.flush(now, tx)? {
                true => {
                    self.flushed(mns)?;
                    tally.figures.flushes += 1;
                    Ok(Some(NOTHING))
                }
                false => Err(EngineError::Busy.into()),
            },
        }
    }

    fn take_ended(&mut self, now: Time, mns: &[MemoryNode], tally: &mut Tally) -> Result<(), Broken> {
        if self.ended.outcomes.is_empty() {
            return Ok(());
        }
        let mut ended = std::mem::take(&mut self.ended);
        let mut rest = ended.data.as_slice();
        for (user, outcome) in ended.outcomes.drain(..) {
            let outcome = outcome.map(|len| {
                let (data, behind) = rest.split_at(len);
                rest = behind;
                data
            });
            self.end(user, outcome, now, mns, tally)?;
        }
        ended.data.clear();
        self.ended = ended;
        Ok(())
    }

    /// An operation that was on its way has ended.
    fn end(
        &mut self,
        user: u64,
        outcome: Result<&[u8], EngineError>,
        now: Time,
        mns: &[MemoryNode],
        tally: &mut Tally,
    ) -> Result<(), Broken> {
        let Some(at) = self.under_way.iter().position(|(u, _)| *u == user) else {
            return Err(Broken::Rule(format!("{}: operation {user} ends twice", Name(self.mac))));
        };
        let (_, op) = self.under_way.remove(at);
        self.trace.say(now, Name(self.mac), || match outcome {
            Ok(_) => format!("{op}: done after {:?}", now - op.at),
            Err(error) => format!("{op}: FAILED after {:?}, {error}", now - op.at),
        });
        tally.figures.operations += 1;
        let broken = |why: String| Broken::at(self.mac, &op, why);
        let region = &mut self.regions[op.region];
        if region.life == op.life {
            if op.lost && outcome.is_ok() {
                return Err(broken("it has succeeded, but its region was lost".into()));
            }
            let registers = &mut region.registers;
            for (i, line) in op.lines().enumerate() {
                match (op.kind, outcome) {
                    (Kind::Read | Kind::BurstRead(_), Ok(data)) => {
                        let data = data.get(i * LINE_SIZE..(i + 1) * LINE_SIZE);
                        let data = data.ok_or_else(|| broken("too little data came".into()))?;
                        registers
                            .read_ended(line, user, data, true)
                            .map_err(|why| broken(why.to_string()))?;
                    }
                    (Kind::Read | Kind::BurstRead(_), Err(_)) => registers.read_failed(line, user),
                    (Kind::Write(value), _) => registers.write_ended(line, value, outcome.is_err()),
                    (Kind::BurstWrite(_, first), _) => {
                        registers.write_ended(line, first + i as u64, outcome.is_err());
                    }
                    (Kind::Flush, _) => {}
                }
            }
        }
        match outcome {
            Ok(_) => {
                if let Some(class) = op.class() {
                    tally.took(class, now - op.at);
                }
                Ok(())
            }
            Err(error) if self.all_succeed => {
                Err(broken(format!("it fails though nothing but frames was lost: {error}")))
            }
            Err(error) => check_error(&op, error, mns, &mut tally.figures, true).map_err(broken),
        }
    }

    /// Everything the cache had is at the memory nodes: compares with their pools.
    fn flushed(&mut self, mns: &[MemoryNode]) -> Result<(), Broken> {
        for (region, mn) in self.regions.iter_mut().zip(mns) {
            if region.born == Some(mn.config.incarnation) {
                for line in 0..self.shape.lines() {
                    let data = mn.line(self.mac, region.life * EXTENT + self.shape.offset(line));
                    let checked = region.registers.check_stored(line, &data);
                    checked.map_err(|why| {
                        Broken::Rule(format!("{}, {}: {why}", Name(self.mac), Name(mn.mac)))
                    })?;
                }
            }
            region.registers.flushed();
        }
        Ok(())
    }

    /// With nothing on its way: writes everything back, then compares with the pools. Whether it is done.
    pub fn flush(&mut self, now: Time, mns: &[MemoryNode]) -> Result<bool, Broken> {
        match self.engine.flush(now, self.link.transmit()) {
            Ok(true) => self.flushed(mns).map(|()| true),
            Ok(false) | Err(EngineError::NotConnected(_)) => Ok(false),
            Err(error) => {
                Err(Broken::Rule(format!("{}: flush fails without reason: {error}", Name(self.mac))))
            }
        }
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

/// Why an operation was not taken.
enum Refusal {
    /// The engine says so.
    Error(EngineError),
    /// Something else came to light on the way.
    Broken(Broken),
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Self {
        Refusal::Error(error)
    }
}

impl From<Broken> for Refusal {
    fn from(broken: Broken) -> Self {
        Refusal::Broken(broken)
    }
}

//! A compute node: an engine, and a program that reads and writes few lines of a region on each memory node, so
//! that operations meet.

use std::collections::HashMap;
use std::time::Duration;

use cxloe_cn::cache::CacheConfig;
use cxloe_cn::engine::{Engine, EngineError, EngineEvent, Read, Route, Sink, Write};
use cxloe_wire::frame::{LINE_SIZE, Mac};
use cxloe_wire::link::Link;
use cxloe_wire::link::random::Random;
use cxloe_wire::link::sim::SimLink;
use cxloe_wire::session::{OpError, RequesterConfig, SessionEvent};
use cxloe_wire::time::Time;

use crate::mn::{EXTENT, LIVES, Mn};
use crate::model::{LINES, Model, Origin, PAGE_LINES, content, offset};
use crate::world::Figures;

/// Bytes of HPA between two regions.
const REGION: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Kind {
    Read,
    Write(u64),
    BurstRead(usize),
    /// The lines of a mask, with values from the number on.
    BurstWrite(u64, u64),
    Flush,
}

/// An operation on its way, or one to be made.
#[derive(Clone, Debug)]
struct Operation {
    kind: Kind,
    region: usize,
    life: u64,
    line: usize,
    /// Made first at.
    at: Time,
    /// The region was known to be lost by then.
    lost: bool,
}

impl Operation {
    /// The lines it touches.
    fn lines(&self) -> Vec<usize> {
        match self.kind {
            Kind::Read | Kind::Write(_) => vec![self.line],
            Kind::BurstRead(lines) => (self.line..self.line + lines).collect(),
            Kind::BurstWrite(mask, _) => {
                (0..PAGE_LINES).filter(|i| mask >> i & 1 == 1).map(|i| self.line + i).collect()
            }
            Kind::Flush => vec![],
        }
    }
}

/// A region on one memory node. Each life is a new one at the same HPA, with CMem of its own.
struct Region {
    life: u64,
    origin: Origin,
    model: Model,
    /// The incarnation its data belongs to, once known.
    born: Option<u64>,
    /// The incarnation the last session told.
    session: Option<u64>,
}

impl Region {
    fn is_lost(&self) -> bool {
        self.born.is_some() && self.session.is_some() && self.born != self.session
    }
}

/// What ended, in order.
#[derive(Default)]
struct Ended(Vec<(u64, Result<Vec<u8>, EngineError>)>);

impl Sink for Ended {
    fn read(&mut self, user: u64, data: &[u8]) {
        self.0.push((user, Ok(data.to_vec())));
    }
    fn written(&mut self, user: u64) {
        self.0.push((user, Ok(Vec::new())));
    }
    fn failed(&mut self, user: u64, error: EngineError) {
        self.0.push((user, Err(error)));
    }
}

pub struct Cn {
    pub mac: Mac,
    pub engine: Engine,
    link: SimLink,
    index: usize,
    random: Random,
    regions: Vec<Region>,
    under_way: HashMap<u64, Operation>,
    next_user: u64,
    next_value: u64,
    pending: Option<Operation>,
    issue_at: Time,
    /// Operations to be made in all, and the longest pause between two.
    pub quota: u64,
    pause: Duration,
    depth: usize,
    patience: Duration,
}

impl Cn {
    pub fn new(
        index: usize,
        link: SimLink,
        cache: CacheConfig,
        requesters: Vec<RequesterConfig>,
        random: Random,
        pause: Duration,
    ) -> Cn {
        let mut engine = Engine::new(cache);
        let mut regions = Vec::new();
        let (mac, dead_after) = (requesters[0].identity.own, requesters[0].timing.dead_after);
        for (mn, config) in requesters.into_iter().enumerate() {
            let peer = engine.add_peer(config, Time::ZERO);
            assert_eq!(peer, mn);
            let route = Route { hpa: mn as u64 * REGION, bytes: EXTENT, peer, cmem: 0, incarnation: None };
            engine.add_route(route).expect("a route");
            let origin = Origin { cn: index, mn, life: 0, losses: 0 };
            regions.push(Region { life: 0, origin, model: Model::new(origin), born: None, session: None });
        }
        Cn {
            mac,
            engine,
            link,
            index,
            random,
            regions,
            under_way: HashMap::new(),
            next_user: 0,
            next_value: 1,
            pending: None,
            issue_at: Time::ZERO,
            quota: 0,
            pause,
            depth: 24,
            // A memory node may be dead, come back and be dead again while an operation waits.
            patience: dead_after * 8 + Duration::from_secs(1),
        }
    }

    pub fn deadline(&self) -> Time {
        if self.quota > 0 || self.pending.is_some() {
            self.engine.deadline().min(self.issue_at)
        } else {
            self.engine.deadline()
        }
    }

    pub fn is_idle(&self) -> bool {
        self.quota == 0 && self.pending.is_none() && self.under_way.is_empty()
    }

    /// Replaces the region on memory node `mn` by another at the same HPA, what is modified and what is on its
    /// way notwithstanding. `false` if there is no CMem left.
    pub fn replace_region(&mut self, mn: usize, told: Option<u64>, losses: usize) -> bool {
        let region = &mut self.regions[mn];
        if region.life + 1 == LIVES {
            return false;
        }
        let life = region.life + 1;
        let hpa = mn as u64 * REGION;
        self.engine.remove_route(hpa).expect("the route of the last life");
        let route = Route { hpa, bytes: EXTENT, peer: mn, cmem: life * EXTENT, incarnation: told };
        self.engine.add_route(route).expect("its place is free");
        let open = self.engine.is_peer_connected(mn);
        let born = told.or(if open { region.session } else { None });
        let origin = Origin { cn: self.index, mn, life, losses };
        *region = Region { life, origin, model: Model::new(origin), born, session: region.session };
        if self.pending.as_ref().is_some_and(|p| p.region == mn) {
            self.pending = None;
        }
        true
    }

    /// Takes what has arrived, does what is due, makes new operations; whether there was anything.
    pub fn work(
        &mut self,
        now: Time,
        batch: usize,
        mns: &[Mn],
        figures: &mut Figures,
    ) -> Result<bool, String> {
        let mut ended = Ended::default();
        let Cn { link, engine, .. } = self;
        let received = link
            .receive(batch, &mut |frame, tx| engine.handle(frame, now, tx, &mut ended))
            .expect("a simulated link");
        // A frame may have brought a loss; nothing may be made before that is known.
        self.take_events(mns, figures)?;
        for (user, outcome) in ended.0.drain(..) {
            self.end(user, outcome, mns, figures)?;
        }
        if now >= self.issue_at {
            self.issue(now, mns, figures)?;
        }
        if now >= self.engine.deadline() {
            self.engine.poll(now, self.link.transmit(), &mut ended);
        }
        self.take_events(mns, figures)?;
        for (user, outcome) in ended.0 {
            self.end(user, outcome, mns, figures)?;
        }
        self.link.flush().expect("a simulated link");
        figures.stranded = figures.stranded.max(self.engine.stranded() as u64);
        Ok(received > 0)
    }

    fn take_events(&mut self, mns: &[Mn], figures: &mut Figures) -> Result<(), String> {
        while let Some(event) = self.engine.poll_event() {
            match event {
                EngineEvent::Session { mac, event: SessionEvent::Opened { incarnation, .. } } => {
                    let at = mns.iter().position(|mn| mn.mac == mac).expect("a known node");
                    let region = &mut self.regions[at];
                    region.session = Some(incarnation);
                    if region.born.is_none() {
                        region.born = Some(incarnation);
                        let losses = mns[at].incarnations.iter().position(|i| *i == incarnation);
                        let origin = Origin { losses: losses.expect("one of the node's"), ..region.origin };
                        region.model.rebase(region.origin, origin);
                        region.origin = origin;
                    }
                    figures.sessions += 1;
                }
                EngineEvent::Session { event: SessionEvent::Dead, .. } => figures.deaths += 1,
                EngineEvent::Session { .. } => {}
                EngineEvent::WriteBackRefused { hpa, error } => {
                    let lossy = mns[(hpa / REGION) as usize].losses() > 0;
                    if !(lossy && matches!(error, EngineError::Failed { error: OpError::DataLost, .. })) {
                        return Err(format!("a line at {hpa:#x} was acknowledged and is lost: {error}"));
                    }
                    figures.refused += 1;
                }
            }
        }
        Ok(())
    }

    fn choose(&mut self, now: Time) -> Operation {
        let r = &mut self.random;
        let region = r.below(self.regions.len() as u64) as usize;
        let line = r.below(LINES as u64) as usize;
        let left = PAGE_LINES - line % PAGE_LINES;
        let first = self.next_value;
        let kind = match r.below(100) {
            0..40 => Kind::Read,
            40..78 => Kind::Write(first),
            78..88 => Kind::BurstRead(1 + r.below(left as u64) as usize),
            88..98 => {
                let mask = 1 + r.below((1 << left) - 1);
                Kind::BurstWrite(mask, first)
            }
            _ => Kind::Flush,
        };
        self.next_value += PAGE_LINES as u64;
        let Region { life, .. } = self.regions[region];
        Operation { kind, region, life, line, at: now, lost: false }
    }

    /// Makes an operation, the one that was refused last time first.
    fn issue(&mut self, now: Time, mns: &[Mn], figures: &mut Figures) -> Result<(), String> {
        let pause = self.pause.as_nanos() as u64;
        self.issue_at = now + Duration::from_nanos(200 + self.random.below(pause));
        let mut op = match self.pending.take() {
            Some(op) => op,
            None if self.quota > 0 && self.under_way.len() < self.depth => {
                self.quota -= 1;
                self.choose(now)
            }
            None => return Ok(()),
        };
        op.lost = self.regions[op.region].is_lost();
        let user = self.next_user;
        self.next_user += 1;
        let hpa = op.region as u64 * REGION + offset(op.line);
        let tx = self.link.transmit();
        let model = &mut self.regions[op.region].model;
        // `None`: on its way.
        let outcome = match &op.kind {
            Kind::Read => {
                model.read_issued(op.line, user);
                match self.engine.read(hpa, user, now, tx) {
                    Ok(Read::Sent) => Ok(None),
                    Ok(Read::Hit(data)) => Ok(Some(data.to_vec())),
                    Err(error) => Err(error),
                }
            }
            Kind::BurstRead(lines) => {
                op.lines().into_iter().for_each(|line| model.read_issued(line, user));
                self.engine.burst_read(hpa, *lines, user, now, tx).map(|()| None)
            }
            Kind::Write(value) => match self.engine.write(hpa, &content(*value), user, now, tx) {
                Ok(Write::Sent) => {
                    model.write_issued(op.line, *value);
                    Ok(None)
                }
                Ok(Write::Done) => {
                    model.written(op.line, *value);
                    Ok(Some(Vec::new()))
                }
                Err(error) => Err(error),
            },
            Kind::BurstWrite(mask, first) => {
                let values = (*first..).take(mask.count_ones() as usize);
                let data: Vec<u8> = values.clone().flat_map(content).collect();
                let sent = self.engine.burst_write(hpa, *mask, &data, user, now, tx);
                if sent.is_ok() {
                    op.lines().into_iter().zip(values).for_each(|(line, v)| model.write_issued(line, v));
                }
                sent.map(|()| None)
            }
            Kind::Flush => match self.engine.flush(now, tx) {
                Ok(true) => {
                    self.check_pools(mns)?;
                    figures.flushes += 1;
                    Ok(Some(Vec::new()))
                }
                Ok(false) => Err(EngineError::Busy),
                Err(error) => Err(error),
            },
        };
        match outcome {
            Ok(None) => drop(self.under_way.insert(user, op)),
            Ok(Some(data)) => {
                figures.at_once += 1;
                if op.lost && !matches!(op.kind, Kind::Flush) {
                    return Err(format!("{op:?} was done at once, but its region is lost"));
                }
                if let Kind::Read = op.kind {
                    self.regions[op.region].model.read_ended(op.line, user, Some(&data))?;
                }
            }
            Err(error) => {
                if let Kind::Read | Kind::BurstRead(_) = op.kind {
                    for line in op.lines() {
                        self.regions[op.region].model.read_ended(line, user, None)?;
                    }
                }
                if error != EngineError::Busy {
                    figures.refusals += 1;
                    return self.check_error(&op, error, mns);
                }
                figures.busy += 1;
                if now - op.at > self.patience {
                    return Err(format!("{op:?} is refused as busy for {:?}", now - op.at));
                }
                self.pending = Some(op);
            }
        }
        Ok(())
    }

    /// An operation that was on its way has ended.
    fn end(
        &mut self,
        user: u64,
        outcome: Result<Vec<u8>, EngineError>,
        mns: &[Mn],
        figures: &mut Figures,
    ) -> Result<(), String> {
        let op = self.under_way.remove(&user).ok_or_else(|| format!("{user} ends twice"))?;
        figures.operations += 1;
        figures.failed += u64::from(outcome.is_err());
        let region = &mut self.regions[op.region];
        if region.life == op.life {
            if op.lost && outcome.is_ok() {
                return Err(format!("{op:?} has succeeded, but its region was lost"));
            }
            let lines = op.lines();
            for (i, line) in lines.iter().enumerate() {
                let data = outcome.as_ref().ok().and_then(|d| d.get(i * LINE_SIZE..(i + 1) * LINE_SIZE));
                let ended = match op.kind {
                    Kind::Read | Kind::BurstRead(_) if outcome.is_ok() && data.is_none() => {
                        Err("too little data".into())
                    }
                    Kind::Read | Kind::BurstRead(_) => region.model.read_ended(*line, user, data),
                    Kind::Write(value) => {
                        region.model.write_ended(*line, value, outcome.is_err());
                        Ok(())
                    }
                    Kind::BurstWrite(_, first) => {
                        region.model.write_ended(*line, first + i as u64, outcome.is_err());
                        Ok(())
                    }
                    Kind::Flush => Ok(()),
                };
                ended.map_err(|why| format!("{op:?} at {}: {why}", self.mac))?;
            }
        }
        match outcome {
            Ok(_) => Ok(()),
            Err(error) => self.check_error(&op, error, mns),
        }
    }

    /// Whether the error can be true.
    fn check_error(&self, op: &Operation, error: EngineError, mns: &[Mn]) -> Result<(), String> {
        let lossy = mns[op.region].losses() > 0;
        if let EngineError::NotConnected(mac) | EngineError::DataLost(mac) | EngineError::Failed { mac, .. } =
            error
            && mac != mns[op.region].mac
            && !matches!(op.kind, Kind::Flush)
        {
            return Err(format!("{op:?} fails for another memory node's sake: {error}"));
        }
        match error {
            EngineError::NotConnected(_) => Ok(()),
            EngineError::DataLost(_) | EngineError::Failed { error: OpError::DataLost, .. } if lossy => {
                Ok(())
            }
            EngineError::Failed { error: OpError::SessionDead | OpError::FrameTooLarge, .. } => Ok(()),
            // The session's frames have become smaller since the burst was chosen.
            EngineError::BadBurst(_) => Ok(()),
            error => Err(format!("{op:?} fails without reason: {error}")),
        }
    }

    fn check_pools(&self, mns: &[Mn]) -> Result<(), String> {
        for (region, mn) in self.regions.iter().zip(mns) {
            if region.born == Some(mn.config.incarnation) {
                for line in 0..LINES {
                    let data = mn.line(self.mac, region.life * EXTENT + offset(line));
                    region.model.check_pool(line, &data)?;
                }
            }
        }
        Ok(())
    }

    /// With nothing on its way: writes everything back, then compares with the pools. Whether it is done.
    pub fn flush(&mut self, now: Time, mns: &[Mn]) -> Result<bool, String> {
        match self.engine.flush(now, self.link.transmit()) {
            Ok(true) => self.check_pools(mns).map(|()| true),
            Ok(false) | Err(EngineError::NotConnected(_)) => Ok(false),
            Err(error) => Err(format!("flush fails without reason: {error}")),
        }
    }

    /// Ends all sessions.
    pub fn close(&mut self, now: Time) {
        self.engine.close(now, &mut Ended::default());
    }

    pub fn state(&self) -> String {
        let sessions: Vec<_> = self.engine.sessions().into_iter().map(|s| (s.state, s.unanswered)).collect();
        let (in_flight, stranded) = (self.engine.in_flight(), self.engine.stranded());
        format!(
            "{}: {in_flight} in flight, {stranded} stranded, pending {:?}, {sessions:?}",
            self.mac, self.pending
        )
    }
}

//! A compute node: a requester for each memory node, and operations chosen at random under the engine's
//! rule: a line is not written while a read of it is under way.

use cxloe_link::Link;
use cxloe_link::random::Random;
use cxloe_link::sim::SimLink;
use cxloe_wire::Transmit;
use cxloe_wire::frame::{LINE_SIZE, Mac};
use cxloe_wire::session::{
    Completions, OpError, Rejected, Requester, RequesterConfig, RequesterCounters, SessionEvent,
};
use cxloe_wire::time::Time;

use crate::model::{LINES, Model, PAGE_LINES_USED, addr, content};

/// An operation under way: lines from `line` on that `mask` names; a write has values from `value` on.
#[derive(Clone, Copy, Debug)]
struct Op {
    line: usize,
    mask: u64,
    write: bool,
    value: u64,
}

impl Op {
    fn lines(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |i| self.mask & 1 << i != 0).map(move |i| self.line + i)
    }
}

/// What completions change.
struct Books {
    model: Model,
    /// By token.
    ops: Vec<Option<Op>>,
    free: Vec<usize>,
    wrong: Option<String>,
    ended: u64,
    failed: u64,
}

impl Books {
    fn take(&mut self, token: u64) -> Option<Op> {
        let op = self.ops.get_mut(token as usize).and_then(Option::take);
        match op {
            Some(_) => self.free.push(token as usize),
            None => self.wrong = Some(format!("operation {token} ends that is not under way")),
        }
        self.ended += 1;
        op
    }

    fn note(&mut self, outcome: Result<(), String>) {
        if let Err(why) = outcome {
            self.wrong.get_or_insert(why);
        }
    }
}

impl Completions for Books {
    fn read(&mut self, token: u64, data: &[u8]) {
        let Some(op) = self.take(token) else { return };
        if op.write || data.len() != op.lines().count() * LINE_SIZE {
            return self.note(Err(format!("{op:?} ends as a read of {} bytes", data.len())));
        }
        for (line, data) in op.lines().zip(data.chunks_exact(LINE_SIZE)) {
            let outcome = self.model.read(line, Some(data));
            self.note(outcome);
        }
    }

    fn written(&mut self, token: u64) {
        let Some(op) = self.take(token) else { return };
        if !op.write {
            return self.note(Err(format!("{op:?} ends as a write")));
        }
        op.lines().zip(op.value..).for_each(|(line, value)| self.model.written(line, value, false));
    }

    fn failed(&mut self, token: u64, error: OpError, data: &[u8]) {
        let Some(op) = self.take(token) else { return };
        self.failed += 1;
        if let OpError::Fault(_) = error {
            self.note(Err(format!("{op:?} fails: {error}")));
        }
        let expected: Vec<u8> = match op.write {
            true => op.lines().zip(op.value..).flat_map(|(_, value)| content(value)).collect(),
            false => Vec::new(),
        };
        if data != expected {
            self.note(Err(format!("{op:?} fails and gives back other data than it was given")));
        }
        self.abandon(op);
    }
}

impl Books {
    fn abandon(&mut self, op: Op) {
        for (line, value) in op.lines().zip(op.value..) {
            match op.write {
                true => self.model.written(line, value, true),
                false => self.note_failed_read(line),
            }
        }
    }

    fn note_failed_read(&mut self, line: usize) {
        let outcome = self.model.read(line, None);
        self.note(outcome);
    }
}

/// A CN's dealings with one MN.
pub struct Peer {
    pub mac: Mac,
    pub config: RequesterConfig,
    pub requester: Requester,
    books: Books,
    /// The memory's incarnation when the agent, this one or the one before it, last saw it.
    incarnation: Option<u64>,
    /// Whether this agent has seen a session.
    opened: bool,
    lost_reported: bool,
    before: RequesterCounters,
}

pub struct Cn {
    pub mac: Mac,
    pub link: SimLink,
    pub peers: Vec<Peer>,
    random: Random,
    next_value: u64,
    /// Operations under way per peer, at most.
    pub depth: usize,
    /// Operations still to be issued, over all peers.
    pub to_issue: u64,
}

impl Peer {
    pub fn new(config: RequesterConfig) -> Peer {
        Peer {
            mac: config.identity.peer,
            requester: Requester::new(config.clone()),
            config,
            books: Books {
                model: Model::new(),
                ops: Vec::new(),
                free: Vec::new(),
                wrong: None,
                ended: 0,
                failed: 0,
            },
            incarnation: None,
            opened: false,
            lost_reported: false,
            before: RequesterCounters::default(),
        }
    }

    pub fn under_way(&self) -> usize {
        self.books.ops.iter().flatten().count()
    }

    pub fn ended(&self) -> (u64, u64) {
        (self.books.ended, self.books.failed)
    }

    pub fn counters(&self) -> [RequesterCounters; 2] {
        [self.before, *self.requester.counters()]
    }

    fn wrong<T>(&self, why: impl std::fmt::Display) -> Result<T, String> {
        Err(format!("{} at {}: {why}", self.config.identity.own, self.mac))
    }

    /// Looks at what has happened; what is wrong is an error.
    fn check(&mut self) -> Result<(), String> {
        while let Some(event) = self.requester.poll_event() {
            match event {
                SessionEvent::DataLost { before, now } => {
                    if self.incarnation != Some(before) || before == now {
                        return self.wrong(format!("{event:?}, last seen {:?}", self.incarnation));
                    }
                    self.lost_reported = true;
                }
                SessionEvent::Opened { incarnation, .. } => {
                    let changed = self.incarnation.is_some_and(|known| known != incarnation);
                    if changed && self.opened && !self.lost_reported {
                        return self.wrong("the memory's content is lost and nobody said so");
                    }
                    if self.lost_reported && !changed {
                        return self.wrong("content reported lost that is not");
                    }
                    if changed {
                        self.books.model.lost();
                    }
                    self.incarnation = Some(incarnation);
                    (self.opened, self.lost_reported) = (true, false);
                }
                _ => {}
            }
        }
        match self.books.wrong.take() {
            Some(why) => self.wrong(why),
            None => Ok(()),
        }
    }

    /// Issues one operation; `false` if it is refused.
    fn issue(&mut self, op: Op, now: Time, tx: &mut dyn Transmit) -> Result<bool, String> {
        let token = self.books.free.pop().unwrap_or_else(|| {
            self.books.ops.push(None);
            self.books.ops.len() - 1
        });
        let address = addr(op.line);
        // R12: a line's stream follows from its address; bursts stay in a page.
        let stream = (address / 4096) as u8;
        let data: Vec<u8> = op.lines().zip(op.value..).flat_map(|(_, value)| content(value)).collect();
        let requester = &mut self.requester;
        let id = token as u64;
        let taken = match (op.write, op.mask.count_ones()) {
            (false, 1) => requester.read(stream, address, id, now, tx),
            (false, lines) => requester.burst_read(stream, address, lines as u8, id, now, tx),
            (true, 1) if op.mask == 1 => {
                requester.write(stream, address, data.first_chunk().expect("a line"), id, now, tx)
            }
            (true, _) => requester.burst_write(stream, address, op.mask, &data, id, now, tx),
        };
        match taken {
            Ok(()) => {
                op.lines().for_each(|line| self.books.model.issue(line, op.write));
                self.books.ops[token] = Some(op);
                Ok(true)
            }
            Err(Rejected::BadBurst) => self.wrong(format!("{op:?} does not fit a frame")),
            Err(_) => {
                self.books.free.push(token);
                Ok(false)
            }
        }
    }
}

impl Cn {
    pub fn new(mac: Mac, link: SimLink, peers: Vec<Peer>, random: Random, depth: usize, ops: u64) -> Cn {
        Cn { mac, link, peers, random, next_value: 1, depth, to_issue: ops }
    }

    /// Comes back as a new process: what was under way is abandoned.
    pub fn restart(&mut self, now: Time) {
        for peer in &mut self.peers {
            peer.config.instance += 1;
            peer.config.seed += 1_000;
            let life = std::mem::replace(&mut peer.requester, Requester::new(peer.config.clone()));
            sum(&mut peer.before, life.counters());
            peer.opened = false;
            let open: Vec<Op> = peer.books.ops.drain(..).flatten().collect();
            peer.books.free.clear();
            peer.books.ended += open.len() as u64;
            peer.books.failed += open.len() as u64;
            open.into_iter().for_each(|op| peer.books.abandon(op));
            peer.requester.connect(now);
        }
    }

    pub fn deadline(&self) -> Time {
        self.peers.iter().map(|p| p.requester.deadline()).min().unwrap_or(Time(u64::MAX))
    }

    fn choose(&mut self, peer: usize) -> Option<Op> {
        let r = &mut self.random;
        let line = r.below(LINES as u64) as usize;
        let rest = PAGE_LINES_USED as usize - line % PAGE_LINES_USED as usize;
        let (write, burst) = (r.below(2) == 0, r.below(4) == 0);
        let requester = &self.peers[peer].requester;
        let mask = match (write, burst) {
            (_, false) => 1,
            (false, true) => {
                let lines = 1 + r.below(rest.min(requester.burst_read_lines_max().max(1)) as u64);
                (1 << lines) - 1
            }
            (true, true) => {
                let mask = r.bits() & ((1 << rest) - 1);
                // The first line decides which one is meant; clear others until it fits.
                let mut mask = if mask == 0 { 1 } else { mask };
                while mask.count_ones() as usize > requester.burst_write_lines_max().max(1) {
                    mask &= mask - 1;
                }
                mask
            }
        };
        let op = Op { line, mask, write, value: self.next_value };
        let model = &self.peers[peer].books.model;
        (!write || op.lines().all(|line| model.may_write(line))).then_some(op)
    }

    /// Takes what has arrived, does what is due, issues operations; whether anything happened.
    pub fn work(&mut self, now: Time, batch: usize) -> Result<bool, String> {
        let Cn { link, peers, .. } = self;
        let received = link
            .receive(batch, &mut |frame, tx| {
                if let Some(peer) = peers.iter_mut().find(|p| frame.get(6..12) == Some(&p.mac.0[..])) {
                    peer.requester.handle(frame, now, tx, &mut peer.books);
                }
            })
            .expect("a simulated link");
        for peer in peers.iter_mut() {
            if now >= peer.requester.deadline() {
                peer.requester.poll(now, link.transmit(), &mut peer.books);
            }
            peer.check()?;
        }
        for peer in 0..self.peers.len() {
            let mut tries = 0;
            while self.to_issue > 0
                && tries < 16
                && self.peers[peer].requester.is_open()
                && self.peers[peer].under_way() < self.depth
            {
                tries += 1;
                let Some(op) = self.choose(peer) else { continue };
                if !self.peers[peer].issue(op, now, self.link.transmit())? {
                    break;
                }
                self.next_value += 64;
                self.to_issue -= 1;
            }
        }
        self.link.flush().expect("a simulated link");
        Ok(received > 0)
    }

    /// Reads each line of `peer` once more; to be called until it says that all are on their way.
    pub fn read_back(&mut self, peer: usize, from: &mut usize, now: Time) -> Result<bool, String> {
        while *from < LINES && self.peers[peer].requester.is_open() {
            let op = Op { line: *from, mask: 1, write: false, value: 0 };
            if !self.peers[peer].issue(op, now, self.link.transmit())? {
                break;
            }
            *from += 1;
        }
        self.link.flush().expect("a simulated link");
        Ok(*from == LINES)
    }
}

/// Adds what matters for the figures.
pub fn sum(to: &mut RequesterCounters, c: &RequesterCounters) {
    to.retransmitted += c.retransmitted;
    to.sacks += c.sacks;
    to.timeouts += c.timeouts;
    to.early += c.early;
    to.duplicates += c.duplicates;
    to.sessions += c.sessions;
    to.dropped_trailer += c.dropped_trailer;
    to.dropped_full += c.dropped_full;
}

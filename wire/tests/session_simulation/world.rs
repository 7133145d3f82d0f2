//! The nodes, the network between them, and what befalls both, all from one seed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cxloe_link::fate::{Burst, Faults};
use cxloe_link::random::{Probability, Random};
use cxloe_link::sim::{Path, PortConfig, SimNetwork};
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
use cxloe_wire::session::{Identity, PreSharedKey, RequesterConfig, ResponderConfig, Timing};
use cxloe_wire::time::Time;

use crate::cn::{Cn, Peer, sum};
use crate::mn::Mn;

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);

/// After the trouble is over everything must have ended within this time.
const SETTLE: Duration = Duration::from_secs(10);

/// The end of a run's story.
#[derive(Clone, Default)]
pub struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    fn add(&self, line: String) {
        let mut lines = self.0.lock().expect("one thread");
        if lines.len() == 300 {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    pub fn text(&self) -> String {
        self.0.lock().expect("one thread").iter().map(|line| format!("{line}\n")).collect()
    }
}

/// What has happened in runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub operations: u64,
    pub failed: u64,
    pub frames: u64,
    pub lost: u64,
    pub retransmitted: u64,
    pub sacks: u64,
    pub timeouts: u64,
    pub early: u64,
    pub sessions: u64,
    pub damaged: u64,
    pub executed: u64,
    pub repeated: u64,
    pub waited: u64,
    pub sack_acks: u64,
    pub full: u64,
    pub restarts: u64,
    pub cuts: u64,
}

impl Figures {
    pub fn add(&mut self, o: &Figures) {
        self.operations += o.operations;
        self.failed += o.failed;
        self.frames += o.frames;
        self.lost += o.lost;
        self.retransmitted += o.retransmitted;
        self.sacks += o.sacks;
        self.timeouts += o.timeouts;
        self.early += o.early;
        self.sessions += o.sessions;
        self.damaged += o.damaged;
        self.executed += o.executed;
        self.repeated += o.repeated;
        self.waited += o.waited;
        self.sack_acks += o.sack_acks;
        self.full += o.full;
        self.restarts += o.restarts;
        self.cuts += o.cuts;
    }

    /// Runs in which nothing goes wrong prove nothing.
    pub fn assert_eventful(&self) {
        let all = [
            self.failed,
            self.lost,
            self.retransmitted,
            self.sacks,
            self.timeouts,
            self.early,
            self.damaged,
            self.repeated,
            self.waited,
            self.sack_acks,
            self.full,
            self.restarts,
            self.cuts,
        ];
        assert!(all.iter().all(|n| *n > 0), "something never happened: {self:#?}");
        assert!(self.failed * 4 < self.operations, "most operations must succeed: {self:#?}");
    }
}

pub struct World {
    net: SimNetwork,
    random: Random,
    cns: Vec<Cn>,
    mns: Vec<Mn>,
    batch: usize,
    tail: Option<Tail>,
    figures: Figures,
    /// When something befalls the nodes next, and how many times more.
    trouble_at: Time,
    troubles: u64,
    healed_at: Option<Time>,
}

fn pick<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len() as u64) as usize]
}

fn path(random: &mut Random) -> Path {
    let mut p = |choices: &[f64]| Probability::new(pick(random, choices)).expect("a probability");
    let mut faults = Faults {
        drop: p(&[0.0, 0.001, 0.01, 0.05, 0.2]),
        duplicate: p(&[0.0, 0.0, 0.01, 0.1]),
        reorder: p(&[0.0, 0.0, 0.01, 0.1]),
        corrupt: p(&[0.0, 0.0, 0.01, 0.05]),
        ..Faults::NONE
    };
    let (enter, leave) = (p(&[0.0, 0.0, 0.001, 0.01]), p(&[0.5, 0.1, 0.02]));
    faults.burst = Some(Burst { enter, leave, loss: Probability::ALWAYS });
    faults.gap = 1 + random.below(20) as u32;
    faults.hold = pick(random, &[50 * US, MS, 5 * MS]);
    Path {
        delay: pick(random, &[US, 10 * US, 100 * US]),
        jitter: pick(random, &[Duration::ZERO, 2 * US, 50 * US]),
        faults,
        ..Path::default()
    }
}

impl World {
    pub fn new(seed: u64, tail: Option<Tail>) -> World {
        let mut random = Random::part(seed, 1);
        let r = &mut random;
        let net = SimNetwork::new(seed);
        if let Some(tail) = tail.clone() {
            net.on_trace(move |t| {
                let number = t.frame.get(15..19).map_or(String::new(), |n| {
                    format!(" no. {} stream {}", u16::from_be_bytes([n[0], n[1]]), n[2])
                });
                tail.add(format!("{t}{number}"));
            });
        }
        net.set_default_path(path(r));
        let port = PortConfig {
            mtu: pick(r, &[1500, 1500, 9000]),
            tx_slots: pick(r, &[8, 64, 2048]),
            fifo_capacity: pick(r, &[16, 512]),
            ..PortConfig::default()
        };
        // A rate makes the transmit ring fill up.
        let slow = PortConfig { egress: Some("1Gbit".parse().expect("a rate")), ..port };
        let key: Option<PreSharedKey> = (r.below(6) == 0).then(|| b"sixteen bytes or more"[..].into());
        let timing = pick(
            r,
            &[
                Timing::default(),
                Timing {
                    dead_after: 60 * MS,
                    suspect_after: 15 * MS,
                    ping_every: 15 * MS,
                    hello_first: MS,
                    hello_max: 10 * MS,
                    timeout_initial: 2 * MS,
                    timeout_min: 200 * US,
                    timeout_max: 10 * MS,
                },
            ],
        );
        let mns = (0..1 + r.below(2)).map(|i| {
            let own = Mac([2, 0, 0, 0, 1, i as u8]);
            let link = net.attach(own, pick(r, &[port, port, slow])).expect("a new address");
            let config = ResponderConfig {
                early_buffers: pick(r, &[2, 16, 128]),
                key: key.clone(),
                ..ResponderConfig::new(own, port.mtu + 14, 10 + i, seed ^ (0x100 + i))
            };
            Mn::new(link, config)
        });
        let mns: Vec<Mn> = mns.collect();
        let count = 1 + r.below(3);
        let cns = (0..count).map(|i| {
            let own = Mac([2, 0, 0, 0, 0, i as u8]);
            let link = net.attach(own, pick(r, &[port, port, slow])).expect("a new address");
            let peers = mns.iter().enumerate().map(|(j, mn)| {
                Peer::new(RequesterConfig {
                    identity: Identity { own, peer: mn.mac, ethertype: ETHERTYPE_DEFAULT },
                    max_frame: port.mtu + 14,
                    streams: 1 + r.below(4) as u8,
                    instance: r.bits(),
                    key: key.clone(),
                    timing,
                    seed: seed ^ (0x1000 * (i + 1) + j as u64),
                })
            });
            let peers = peers.collect();
            let depth = pick(r, &[1, 4, 32, 150]);
            Cn::new(own, link, peers, Random::part(seed, 100 + i), depth, 1_200 / count)
        });
        let cns = cns.collect();
        let (batch, troubles) = (pick(r, &[1, 8, 64]), r.below(5));
        let figures = Figures::default();
        let trouble_at = Time(1_000_000);
        World { net, random, cns, mns, batch, tail, figures, trouble_at, troubles, healed_at: None }
    }

    fn say(&self, text: impl std::fmt::Display) {
        if let Some(tail) = &self.tail {
            tail.add(format!("{} ---- {text}", self.net.now()));
        }
    }

    /// Runs to the end and looks at what is left.
    pub fn run(mut self) -> Result<Figures, String> {
        let now = self.net.now();
        self.cns.iter_mut().flat_map(|cn| &mut cn.peers).for_each(|peer| peer.requester.connect(now));
        // A burst of losses is counted in frames: with one Hello a second it can last for minutes.
        let latest = Time::ZERO + Duration::from_secs(30);
        while self.net.now() < latest
            && (self.cns.iter().any(|cn| cn.to_issue > 0) || self.troubles > 0 || self.healed_at.is_some())
        {
            self.step(None)?;
        }
        self.cns.iter_mut().for_each(|cn| cn.to_issue = 0);
        self.say("all issued; the network is perfect from here on");
        self.net.heal_all();
        self.net.set_default_path(Path::default());
        let end = self.net.now() + SETTLE;
        self.settle(end)?;
        let mut from = vec![vec![0; self.mns.len()]; self.cns.len()];
        loop {
            let now = self.net.now();
            let mut done = true;
            for (cn, from) in self.cns.iter_mut().zip(&mut from) {
                for (peer, from) in from.iter_mut().enumerate() {
                    done &= cn.read_back(peer, from, now)?;
                }
            }
            if done {
                break;
            }
            if now > end {
                return Err(format!("lines cannot be read back: {}", self.state()));
            }
            self.step(Some(end))?;
        }
        self.settle(end)?;
        self.at_rest()?;
        Ok(self.sum())
    }

    /// Runs until nothing is under way.
    fn settle(&mut self, end: Time) -> Result<(), String> {
        while self.cns.iter().flat_map(|cn| &cn.peers).any(|peer| peer.under_way() > 0) {
            if self.net.now() >= end {
                return Err(format!("operations do not end: {}", self.state()));
            }
            self.step(Some(end))?;
        }
        Ok(())
    }

    fn state(&self) -> String {
        let statuses = self.cns.iter().flat_map(|cn| &cn.peers).map(|p| {
            let s = p.requester.status();
            format!("{} {} -> {}: {} under way", s.state, p.config.identity.own, s.peer, p.under_way())
        });
        statuses.collect::<Vec<_>>().join("; ")
    }

    /// On to whatever happens next.
    fn step(&mut self, end: Option<Time>) -> Result<(), String> {
        let trouble = if end.is_none() { self.next_trouble() } else { None };
        let due = self.cns.iter().map(Cn::deadline).chain(self.net.next_event()).chain(trouble).chain(end);
        // Time passes also when nothing is due: a transmit ring that was full may have room again.
        let next = due.min().unwrap_or(Time(u64::MAX)).min(self.net.now() + 10 * MS);
        self.net.step(next.max(self.net.now()));
        let now = self.net.now();
        if trouble.is_some_and(|at| at <= now) {
            self.befall(now);
        }
        let mut busy = true;
        while busy {
            busy = false;
            for cn in &mut self.cns {
                busy |= cn.work(now, self.batch)?;
            }
            for mn in &mut self.mns {
                busy |= mn.work(now, self.batch);
            }
        }
        Ok(())
    }

    fn next_trouble(&self) -> Option<Time> {
        self.healed_at.or((self.troubles > 0).then_some(self.trouble_at))
    }

    fn befall(&mut self, now: Time) {
        let r = &mut self.random;
        if self.healed_at.take().is_some() {
            self.say("healed");
            self.net.heal_all();
            return;
        }
        self.troubles -= 1;
        self.trouble_at = now + pick(r, &[MS, 5 * MS, 50 * MS]) + US * r.below(1_000) as u32;
        let (cn, mn) = (r.below(self.cns.len() as u64) as usize, r.below(self.mns.len() as u64) as usize);
        match r.below(7) {
            0 | 1 => {
                let (cn_mac, mn_mac) = (self.cns[cn].mac, self.mns[mn].mac);
                match r.below(4) {
                    0 => self.net.cut(cn_mac, mn_mac),
                    1 => self.net.cut(mn_mac, cn_mac),
                    2 => self.net.partition(&[mn_mac]),
                    _ => self.net.partition(&[cn_mac]),
                }
                let lasts = pick(r, &[500 * US, 20 * MS, 200 * MS, 7_000 * MS]);
                self.healed_at = Some(now + lasts);
                self.figures.cuts += 1;
                self.say(format!("cut between {cn_mac} and {mn_mac}"));
            }
            2 => {
                self.cns[cn].restart(now);
                self.figures.restarts += 1;
                self.say(format!("{} restarts", self.cns[cn].mac));
            }
            3 | 4 => {
                let keeps = r.below(2) == 0;
                if r.below(3) == 0 {
                    // With other limits than before.
                    self.mns[mn].config.streams_max = 1 + r.below(4) as u8;
                    self.mns[mn].config.max_frame = pick(r, &[200, 700, 1514]);
                }
                self.mns[mn].restart(keeps);
                self.figures.restarts += 1;
                let memory = if keeps { "with" } else { "without" };
                self.say(format!("{} restarts {memory} its memory", self.mns[mn].mac));
            }
            5 => {
                let node = &mut self.mns[mn];
                node.responder.drain(cxloe_link::Link::transmit(&mut node.link));
                cxloe_link::Link::flush(&mut node.link).expect("a simulated link");
                self.net.step(now + 200 * US);
                let now = self.net.now();
                node.work(now, usize::MAX);
                node.restart(true);
                self.figures.restarts += 1;
                self.say(format!("{} said Bye and restarts", self.mns[mn].mac));
            }
            _ => {
                let new = path(r);
                self.net.set_default_path(new);
                self.say("other faults from here on");
            }
        }
    }

    fn at_rest(&self) -> Result<(), String> {
        for peer in self.cns.iter().flat_map(|cn| &cn.peers) {
            let s = peer.requester.status();
            if (s.unanswered, s.buffered) != (0, 0) {
                return Err(format!("not at rest at {}: {s:?}", peer.config.identity.own));
            }
        }
        for mn in &self.mns {
            for s in mn.responder.statuses(self.net.now()) {
                if (s.waiting, s.buffered) != (0, 0) {
                    return Err(format!("not at rest at {}: {s:?}", mn.mac));
                }
            }
        }
        Ok(())
    }

    fn sum(self) -> Figures {
        let mut f = self.figures;
        let net = self.net.counters();
        (f.frames, f.lost) = (net.sent, net.lost);
        let mut counters = Default::default();
        for peer in self.cns.iter().flat_map(|cn| &cn.peers) {
            let (ended, failed) = peer.ended();
            f.operations += ended;
            f.failed += failed;
            peer.counters().iter().for_each(|c| sum(&mut counters, c));
        }
        f.retransmitted = counters.retransmitted;
        f.sacks = counters.sacks;
        f.timeouts = counters.timeouts;
        f.early = counters.early;
        f.sessions = counters.sessions;
        f.damaged = counters.dropped_trailer;
        for totals in self.mns.iter().map(Mn::totals) {
            f.executed += totals.executed;
            f.repeated += totals.duplicates;
            f.waited += totals.early;
            f.sack_acks += totals.sack_acks;
            f.full += totals.dropped_full;
        }
        f
    }
}

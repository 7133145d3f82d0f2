//! The nodes, the network between them, and what befalls both, all from one seed.

use std::time::Duration;

use cxloe_cn::cache::CacheConfig;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
use cxloe_wire::link::fate::{Burst, Faults};
use cxloe_wire::link::random::{Probability, Random};
use cxloe_wire::link::sim::{Path, PortConfig, SimNetwork};
use cxloe_wire::session::{Identity, RequesterConfig, ResponderConfig, Timing};
use cxloe_wire::time::Time;

use crate::cn::Cn;
use crate::mn::Mn;

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);

/// After the trouble is over everything must have ended within this time.
const SETTLE: Duration = Duration::from_secs(5);

/// What has happened in runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Ended at the sink, and how many of those failed.
    pub operations: u64,
    pub failed: u64,
    /// Done without a request.
    pub at_once: u64,
    pub busy: u64,
    /// Not even sent.
    pub refusals: u64,
    pub flushes: u64,
    /// Most lines stranded at once.
    pub stranded: u64,
    /// Write-backs refused because the memory was lost.
    pub refused: u64,
    pub sessions: u64,
    pub deaths: u64,
    pub write_backs: u64,
    pub restarts: u64,
    pub losses: u64,
    pub replaced: u64,
    pub lost_frames: u64,
}

impl Figures {
    fn all(&mut self) -> [&mut u64; 15] {
        [
            &mut self.operations,
            &mut self.failed,
            &mut self.at_once,
            &mut self.busy,
            &mut self.refusals,
            &mut self.flushes,
            &mut self.stranded,
            &mut self.refused,
            &mut self.sessions,
            &mut self.deaths,
            &mut self.write_backs,
            &mut self.restarts,
            &mut self.losses,
            &mut self.replaced,
            &mut self.lost_frames,
        ]
    }

    pub fn add(&mut self, mut other: Figures) {
        self.all().into_iter().zip(other.all()).for_each(|(sum, n)| *sum += *n);
    }

    /// Runs in which nothing goes wrong prove nothing.
    pub fn assert_eventful(&mut self) {
        assert!(self.all().iter().all(|n| **n > 0), "something never happened: {self:#?}");
        assert!(self.failed * 3 < self.operations, "most operations must succeed: {self:#?}");
    }
}

pub struct World {
    net: SimNetwork,
    random: Random,
    cns: Vec<Cn>,
    mns: Vec<Mn>,
    batch: usize,
    figures: Figures,
    troubles: u64,
    trouble_at: Time,
    healed_at: Option<Time>,
    traced: bool,
}

fn pick<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len() as u64) as usize]
}

fn path(random: &mut Random) -> Path {
    let mut p = |choices: &[f64]| Probability::new(pick(random, choices)).expect("a probability");
    let mut faults = Faults {
        drop: p(&[0.0, 0.001, 0.01, 0.1]),
        duplicate: p(&[0.0, 0.01, 0.1]),
        reorder: p(&[0.0, 0.01, 0.1]),
        corrupt: p(&[0.0, 0.0, 0.02]),
        ..Faults::NONE
    };
    let (enter, leave) = (p(&[0.0, 0.001, 0.01]), p(&[0.5, 0.1]));
    faults.burst = Some(Burst { enter, leave, loss: Probability::ALWAYS });
    faults.gap = 1 + random.below(10) as u32;
    faults.hold = pick(random, &[50 * US, MS, 5 * MS]);
    Path {
        delay: pick(random, &[US, 10 * US, 100 * US]),
        jitter: pick(random, &[Duration::ZERO, 2 * US, 50 * US]),
        faults,
        ..Path::default()
    }
}

pub const TIMING: Timing = Timing {
    dead_after: Duration::from_millis(60),
    suspect_after: Duration::from_millis(15),
    ping_every: Duration::from_millis(15),
    hello_first: MS,
    hello_max: Duration::from_millis(10),
    timeout_initial: Duration::from_millis(2),
    timeout_min: Duration::from_micros(200),
    timeout_max: Duration::from_millis(10),
};

impl World {
    pub fn new(seed: u64, traced: bool) -> World {
        let mut random = Random::part(seed, 1);
        let r = &mut random;
        let net = SimNetwork::new(seed);
        net.set_default_path(path(r));
        let tx_slots = pick(r, &[2, 4, 64, 2048]);
        let fifo_capacity = pick(r, &[16, 512]);
        let port = PortConfig { tx_slots, fifo_capacity, ..PortConfig::default() };
        // A rate makes the transmit ring fill up.
        let slow = PortConfig { egress: Some("1Gbit".parse().expect("a rate")), ..port };
        let mn_macs = (0..1 + r.below(2)).map(|i| Mac([2, 0, 0, 0, 1, i as u8])).collect::<Vec<_>>();
        let cn_macs = (0..1 + r.below(2)).map(|i| Mac([2, 0, 0, 0, 0, i as u8])).collect::<Vec<_>>();
        let (mut mns, mut cns) = (Vec::new(), Vec::new());
        for (i, own) in mn_macs.iter().enumerate() {
            let link = net.attach(*own, port).expect("a new address");
            let config = ResponderConfig {
                early_buffers: pick(r, &[2, 16, 128]),
                ..ResponderConfig::new(*own, 1514, 0, seed ^ (0x100 + i as u64))
            };
            mns.push(Mn::new(i, link, config, cn_macs.clone()));
        }
        for (i, own) in cn_macs.iter().enumerate() {
            let link = net.attach(*own, pick(r, &[port, slow])).expect("a new address");
            let streams = 1 + r.below(3) as u8;
            let requester = |peer: &Mac| RequesterConfig {
                identity: Identity { own: *own, peer: *peer, ethertype: ETHERTYPE_DEFAULT },
                max_frame: 1514,
                streams,
                instance: 1 + i as u64,
                key: None,
                timing: TIMING,
                seed: seed ^ peer.to_u64().rotate_left(16),
            };
            let cache = |lines: usize, ways| CacheConfig { bytes: lines * 64, ways };
            let shapes = [CacheConfig::OFF, cache(4, 4), cache(4, 1), cache(4, 2), cache(2, 2), cache(64, 4)];
            let cache = pick(r, &shapes);
            let pause = pick(r, &[2 * US, 20 * US, 200 * US]);
            let random = Random::part(seed, 10 + i as u64);
            let requesters = mn_macs.iter().map(requester).collect();
            let mut cn = Cn::new(i, link, cache, requesters, random, pause);
            cn.quota = 200 + r.below(600);
            cns.push(cn);
        }
        let batch = pick(r, &[1, 4, 64]);
        let troubles = r.below(8);
        let trouble_at = Time(r.below(5_000_000));
        World {
            net,
            random,
            cns,
            mns,
            batch,
            figures: Figures::default(),
            troubles,
            trouble_at,
            healed_at: None,
            traced,
        }
    }

    fn say(&self, what: String) {
        if self.traced {
            println!("{:?} {what}", self.net.now());
        }
    }

    pub fn run(mut self) -> Result<Figures, String> {
        while self.troubles > 0 || self.healed_at.is_some() || !self.cns.iter().all(Cn::is_idle) {
            self.step(None)?;
            if self.troubles == 0 && self.healed_at.is_none() && self.cns.iter().all(|cn| cn.quota == 0) {
                break;
            }
        }
        self.net.heal_all();
        self.net.set_default_path(Path::default());
        let end = self.net.now() + SETTLE;
        self.until(end, |world| Ok(world.cns.iter().all(Cn::is_idle)))?;
        self.until(end, |world| {
            let (now, mns) = (world.net.now(), &world.mns);
            let mut done = true;
            for cn in &mut world.cns {
                done &= cn.flush(now, mns)?;
            }
            Ok(done)
        })?;
        for cn in &self.cns {
            if cn.engine.in_flight() + cn.engine.stranded() > 0 {
                return Err(format!("not at rest: {}", cn.state()));
            }
        }
        // Those that lost their session in the last moment need none, but get one.
        self.until(end, |world| Ok(world.cns.iter().all(|cn| cn.engine.is_connected())))?;
        let now = self.net.now();
        self.cns.iter_mut().for_each(|cn| cn.close(now));
        self.until(end, |world| Ok(world.cns.iter().all(|cn| cn.engine.is_closed())))?;
        let now = self.net.now();
        if !self.mns.iter_mut().all(|mn| mn.is_at_rest(now)) {
            return Err("a memory node is not at rest".into());
        }
        self.figures.write_backs += self.cns.iter().map(|cn| cn.engine.counters().write_backs).sum::<u64>();
        self.figures.lost_frames += self.net.counters().lost;
        Ok(self.figures)
    }

    fn until(
        &mut self,
        end: Time,
        mut done: impl FnMut(&mut World) -> Result<bool, String>,
    ) -> Result<(), String> {
        while !done(self)? {
            if self.net.now() >= end {
                let states: Vec<_> = self.cns.iter().map(Cn::state).collect();
                return Err(format!("does not come to rest: {}", states.join("; ")));
            }
            self.step(Some(end))?;
        }
        Ok(())
    }

    /// On to whatever happens next.
    fn step(&mut self, end: Option<Time>) -> Result<(), String> {
        let trouble = if end.is_none() { self.next_trouble() } else { None };
        let due = self.cns.iter().map(Cn::deadline).chain(self.net.next_event()).chain(trouble).chain(end);
        // Time passes also when nothing is due: a transmit ring that was full may have room again.
        let next = due.min().unwrap_or(Time(u64::MAX)).min(self.net.now() + MS);
        self.net.step(next.max(self.net.now()));
        let now = self.net.now();
        if trouble.is_some_and(|at| at <= now) {
            self.befall(now);
        }
        let mut busy = true;
        while busy {
            busy = false;
            for mn in &mut self.mns {
                busy |= mn.work(now, self.batch);
            }
            for cn in &mut self.cns {
                busy |= cn.work(now, self.batch, &self.mns, &mut self.figures)?;
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
            self.say("healed".into());
            self.net.heal_all();
            return;
        }
        self.troubles -= 1;
        self.trouble_at = now + pick(r, &[MS, 5 * MS, 30 * MS]) + US * r.below(1_000) as u32;
        let (cn, mn) = (r.below(self.cns.len() as u64) as usize, r.below(self.mns.len() as u64) as usize);
        match r.below(10) {
            0..4 => {
                let (cn_mac, mn_mac) = (self.cns[cn].mac, self.mns[mn].mac);
                match r.below(3) {
                    0 => self.net.cut(cn_mac, mn_mac),
                    1 => self.net.cut(mn_mac, cn_mac),
                    _ => self.net.partition(&[mn_mac]),
                }
                self.healed_at = Some(now + pick(r, &[500 * US, 20 * MS, 70 * MS, 100 * MS, 150 * MS]));
                self.say(format!("cut between {cn_mac} and {mn_mac}"));
            }
            4 | 5 => {
                if r.below(2) == 0 {
                    // With other limits than before.
                    self.mns[mn].config.streams_max = 1 + r.below(3) as u8;
                    self.mns[mn].config.max_frame = pick(r, &[200, 700, 1514]);
                }
                self.mns[mn].restart(true);
                self.figures.restarts += 1;
                self.say(format!("{} restarts with its pool", self.mns[mn].mac));
            }
            6 => {
                self.mns[mn].restart(false);
                self.figures.losses += 1;
                self.say(format!("{} restarts without its pool", self.mns[mn].mac));
            }
            7 | 8 => {
                let told = (r.below(2) == 0).then_some(self.mns[mn].config.incarnation);
                let losses = self.mns[mn].losses();
                self.figures.replaced += u64::from(self.cns[cn].replace_region(mn, told, losses));
                self.say(format!("{} gets another region on {}", self.cns[cn].mac, self.mns[mn].mac));
            }
            _ => {
                let new = path(r);
                self.net.set_default_path(new);
                self.say("other faults from here on".into());
            }
        }
    }
}

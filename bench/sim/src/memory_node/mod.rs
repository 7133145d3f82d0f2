//! A memory node: the service of `mn-server` over a pool, which survives restarts or does not. Who has what of it, the
//! manager says, or a static map.

mod following;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cxloe_fabric::model::{DeviceKind, Watermark};
use cxloe_link::Link;
use cxloe_link::sim::SimLink;
use cxloe_mn::control::{Mappings, StaticMap, StaticRange};
use cxloe_mn::pool::{ByteSize, Host, MpAddr, MpExtent, Pool, PoolOptions};
use cxloe_mn_core::congestion::{CongestionConfig, Verdict};
use cxloe_mn_core::keys::AdmittedKeys;
use cxloe_mn_core::service::Service;
use cxloe_mn_core::translation::{PageTable, Translation};
use cxloe_wire::frame::{FEATURE_JOINT_ACKS, FEATURE_MULTI, FEATURES, LINE_SIZE, Mac, SHARDS_MAX};
use cxloe_wire::random::Random;
use cxloe_wire::session::{Entropy, HandshakeJob, ResponderConfig, SessionStatus};
use cxloe_wire::time::Time;

use crate::control::message::Answer;
use crate::control::network::ControlNetwork;
use crate::mistake::{Lines, Meddler, Mistake};
use crate::node_keys;
use crate::register::{Origin, Shape, content};
use crate::trace::Trace;
pub(crate) use following::name;
use following::{Following, Introduction};

/// Bytes of an extent: what one life of a region gets.
pub const EXTENT: u64 = 64 << 10;
/// Lives of each region.
pub const LIVES: u64 = 8;

/// Translations that a service keeps at hand.
const TLB_ENTRIES: usize = 16;
/// From its goodbye to a process's end.
const GOODBYE: Duration = Duration::from_micros(200);
/// How often a service looks for sessions that have gone silent.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// How long Diffie-Hellman of a handshake takes beside the worker, where somebody asks for many.
const HANDSHAKE_TIME: Duration = Duration::from_micros(40);
/// How often it looks whether there is room for answers that wait for it.
const LOOK_INTERVAL: Duration = Duration::from_micros(1);

/// A memory node.
pub struct MemoryNode {
    /// Its address.
    pub mac: Mac,
    /// Whose keys are whose.
    keys: Arc<AdmittedKeys>,
    /// Compute nodes whose key was taken back, and whether the service has looked since.
    revoked: Vec<Mac>,
    swept: bool,
    /// Handshakes that are being computed, and when each will be done.
    computing: VecDeque<(Time, HandshakeJob)>,
    handshake_time: Duration,
    /// Breaks the rule that a key has to be known, for as long as somebody tries.
    accepts_unknown: bool,
    /// What its service is told at the next restart.
    pub config: ResponderConfig,
    /// The incarnations of its pools, the present one last.
    pub incarnations: Vec<u64>,
    /// It does nothing until then.
    pub paused_until: Time,
    /// It has said goodbye, and ends then.
    ends_at: Option<Time>,
    link: SimLink,
    index: usize,
    cns: Vec<Mac>,
    shape: Shape,
    memory: Memory,
    service: Service,
    polled: Time,
    /// How long a frame keeps it busy, and until when the last ones do.
    service_time: Duration,
    busy_until: Time,
    meddler: Option<Meddler>,
    /// `None`: a static map says who has what.
    following: Option<Following>,
    congestion: CongestionConfig,
    /// Whether it takes frames of many lines, before its first restart and after.
    multi: [bool; 2],
}

/// The pool and who owns what of it.
struct Memory {
    pool: Arc<Pool>,
    mappings: Mappings,
}

/// A new pool.
fn pool(extents: u64) -> Arc<Pool> {
    let options = PoolOptions {
        bytes: Some(extents * EXTENT),
        extent_bytes: Some(EXTENT),
        prefault: Some(false),
        ..PoolOptions::default()
    };
    Arc::new(cxloe_mn::pool::open(&options, &Host::default(), &|_, _| {}).expect("a small pool"))
}

impl Memory {
    /// A new pool in which each CN has a range for every life of its region, filled with what it is to read first.
    fn mapped(index: usize, cns: &[Mac], losses: usize, shape: Shape) -> Memory {
        let pool = pool(cns.len() as u64 * LIVES);
        let mut mappings = Mappings::open(Arc::clone(&pool), Watermark::default()).0;
        let range = |cn: &Mac| StaticRange { cn: *cn, base: ByteSize(0), size: ByteSize(LIVES * EXTENT) };
        StaticMap { ranges: cns.iter().map(range).collect() }.apply(&mut mappings).expect("it fits");
        for t in mappings.table().iter() {
            let cn = cns.iter().position(|mac| mac.to_u64() == t.cn).expect("only these were mapped");
            let origin = Origin { cn, mn: index, life: t.cmem_extent, losses, zero: false };
            let start = pool.extent_start(t.mp_extent);
            for line in 0..shape.lines() {
                pool.write_lines(MpAddr(start.0 + shape.offset(line)), &content(origin.initial(line)));
            }
        }
        Memory { pool, mappings }
    }

    /// What is found in a pool, by a node that has heard of a manager so far.
    fn found(pool: Arc<Pool>, seen: Watermark) -> Memory {
        let mappings = Mappings::open(Arc::clone(&pool), seen).0;
        Memory { pool, mappings }
    }

    fn table(&self) -> &Arc<PageTable> {
        self.mappings.table()
    }

    fn find(&self, cn: Mac, cmem: u64) -> Option<MpAddr> {
        let extent = self.table().lookup(cn.to_u64(), cmem / EXTENT)?;
        Some(MpAddr(self.pool.extent_start(extent).0 + cmem % EXTENT))
    }
}

impl Lines for Memory {
    fn get(&self, cn: Mac, cmem: u64) -> Option<[u8; LINE_SIZE]> {
        let mut out = [0; LINE_SIZE];
        self.pool.read_lines(self.find(cn, cmem)?, &mut out);
        Some(out)
    }

    fn set(&self, cn: Mac, cmem: u64, data: &[u8; LINE_SIZE]) {
        if let Some(at) = self.find(cn, cmem) {
            self.pool.write_lines(at, data);
        }
    }
}

impl MemoryNode {
    /// The `index`-th memory node, with a static map that has memory for `cns`. Its incarnations follow from the config's
    /// seed.
    pub fn new(
        index: usize,
        link: SimLink,
        config: ResponderConfig,
        cns: Vec<Mac>,
        shape: Shape,
    ) -> MemoryNode {
        let memory = Memory::mapped(index, &cns, 0, shape);
        MemoryNode::over(memory, index, link, config, cns, shape, None)
    }

    /// The `index`-th memory node, `extents` large, which has what the manager says and is given away as `kind` has it.
    pub fn managed(
        index: usize,
        link: SimLink,
        config: ResponderConfig,
        extents: u64,
        kind: DeviceKind,
        random: Random,
        trace: Trace,
    ) -> MemoryNode {
        let following = Following::new(index, kind, random, trace);
        let memory = Memory::found(pool(extents), Watermark::default());
        let shape = Shape { pages: 0, page_lines: 1 };
        MemoryNode::over(memory, index, link, config, Vec::new(), shape, Some(following))
    }

    fn over(
        memory: Memory,
        index: usize,
        link: SimLink,
        config: ResponderConfig,
        cns: Vec<Mac>,
        shape: Shape,
        following: Option<Following>,
    ) -> MemoryNode {
        let config = ResponderConfig { incarnation: incarnation(config.seed, 0), ..config };
        let service = Service::new(config.clone(), memory.table().clone(), TLB_ENTRIES);
        MemoryNode {
            mac: config.own,
            incarnations: vec![config.incarnation],
            config,
            paused_until: Time::ZERO,
            ends_at: None,
            link,
            index,
            cns,
            shape,
            memory,
            service,
            polled: Time::ZERO,
            service_time: Duration::ZERO,
            busy_until: Time::ZERO,
            meddler: None,
            following,
            congestion: CongestionConfig { threshold: 0, ..CongestionConfig::default() },
            multi: [true; 2],
            keys: Arc::default(),
            revoked: Vec::new(),
            swept: true,
            computing: VecDeque::new(),
            handshake_time: Duration::ZERO,
            accepts_unknown: false,
        }
    }

    /// Makes it a release that takes frames of many lines or does not, before its first restart and after.
    pub fn know_multi(&mut self, multi: [bool; 2]) {
        self.multi = multi;
        self.service.responder().set_features(features(multi[0]));
    }

    /// Takes compute nodes for who shows these keys.
    pub fn admit(&mut self, keys: Arc<AdmittedKeys>) {
        self.service.set_keys(Arc::clone(&keys));
        self.keys = keys;
    }

    /// Has handshakes take their time.
    pub fn take_time_for_handshakes(&mut self) {
        self.handshake_time = HANDSHAKE_TIME;
    }

    /// The keys of these compute nodes are worth nothing, those of all others are as they were.
    pub fn revoke(&mut self, cns: &[Mac]) {
        let rest: Vec<Mac> = self.cns.iter().copied().filter(|cn| !cns.contains(cn)).collect();
        self.keys.admit(node_keys::of(&rest));
        self.revoked = cns.to_vec();
        // It looks at its next turn.
        self.swept = false;
    }

    /// A compute node that has a session although its key was taken back.
    pub fn serves_revoked(&mut self) -> Option<Mac> {
        let MemoryNode { revoked, service, swept, .. } = self;
        let served =
            |cn: &&Mac| (0..SHARDS_MAX).any(|shard| service.responder().has_session(cn.shard(shard)));
        if *swept { revoked.iter().find(served).copied() } else { None }
    }

    /// Makes the mistake, or no longer, of taking whoever has a certain unknown key for every compute node.
    pub fn accept_unknown(&mut self, accepts: bool) {
        self.accepts_unknown = accepts;
        match accepts {
            true => {
                let key = node_keys::unknown().public();
                self.keys.admit(self.cns.iter().map(|cn| (*cn, key)));
            }
            false => self.revoke(&self.revoked.clone()),
        }
    }

    /// Makes it slow: busy for so long with each frame.
    pub fn slow_down(&mut self, service_time: Duration) {
        self.service_time = service_time;
    }

    /// Has it ask compute nodes for less when its receive queue is long.
    pub fn watch_queue(&mut self, congestion: CongestionConfig) {
        self.congestion = congestion;
        self.service.set_congestion(congestion);
    }

    /// Makes it break a rule.
    pub fn plant(&mut self, mistake: Mistake) {
        self.meddler = Some(Meddler::new(mistake));
        self.following.iter_mut().for_each(|following| following.plant(mistake));
    }

    /// Tells everybody that it goes away, and is gone soon.
    pub fn say_goodbye(&mut self, now: Time) {
        self.service.responder().drain(self.link.transmit());
        self.link.flush().expect("a simulated link");
        self.ends_at = Some(now + GOODBYE);
    }

    /// The process ends, and with it its connection to the manager.
    pub fn hang_up(&mut self, now: Time, net: &mut ControlNetwork) {
        if let Some(following) = &mut self.following {
            following.restart(now, net);
        }
    }

    /// Comes back as a new process, with its pool or without.
    pub fn restart(&mut self, keeps_pool: bool) {
        self.config.seed = self.config.seed.part(1);
        if let Some(following) = &mut self.following {
            let kept = Arc::clone(&self.memory.pool);
            let extents = u64::from(kept.extents());
            self.memory = Memory::found(if keeps_pool { kept } else { pool(extents) }, following.seen);
        } else if !keeps_pool {
            self.memory = Memory::mapped(self.index, &self.cns, self.incarnations.len(), self.shape);
        }
        if !keeps_pool {
            self.config.incarnation = incarnation(self.config.seed, self.incarnations.len());
            self.incarnations.push(self.config.incarnation);
        }
        self.service = Service::new(self.config.clone(), self.memory.table().clone(), TLB_ENTRIES);
        self.service.set_congestion(self.congestion);
        self.service.set_keys(Arc::clone(&self.keys));
        self.service.responder().set_features(features(self.multi[1]));
        (self.busy_until, self.paused_until, self.ends_at) = (Time::ZERO, Time::ZERO, None);
        self.computing.clear();
    }

    /// How many times it has lost its pool.
    pub fn losses(&self) -> usize {
        self.incarnations.len() - 1
    }

    /// The line at `cmem` of CN `cn`, as the pool has it; `None` where it has nothing.
    pub fn line(&self, cn: Mac, cmem: u64) -> Option<[u8; LINE_SIZE]> {
        self.memory.get(cn, cmem)
    }

    /// Puts something into the line at `cmem` of CN `cn`, if there is one.
    pub fn set_line(&self, cn: Mac, cmem: u64, data: &[u8; LINE_SIZE]) {
        self.memory.set(cn, cmem, data);
    }

    /// What it serves.
    pub fn mappings(&self) -> impl Iterator<Item = Translation> + use<'_> {
        self.memory.table().iter()
    }

    /// Whether all of an extent reads as zeros.
    pub fn is_zero(&self, extent: MpExtent) -> bool {
        let (start, mut line) = (self.memory.pool.extent_start(extent), [0; LINE_SIZE]);
        (0..EXTENT / LINE_SIZE as u64).all(|index| {
            self.memory.pool.read_lines(MpAddr(start.0 + index * LINE_SIZE as u64), &mut line);
            line == [0; LINE_SIZE]
        })
    }

    /// Extents of its pool.
    pub fn extents(&self) -> u32 {
        self.memory.pool.extents()
    }

    /// Cookies that its service has asked for since it started.
    pub fn cookies(&mut self) -> u64 {
        self.service.responder().totals().cookies
    }

    /// Whether nothing is left to be done for the manager.
    pub fn is_quiet(&self) -> bool {
        self.following.as_ref().is_none_or(|following| following.is_quiet(&self.memory.mappings))
    }

    /// Whether it has followed a manager, so that it refuses those that lack what it has seen.
    pub fn has_followed(&self) -> bool {
        self.following.as_ref().is_some_and(|following| following.seen.run != 0)
    }

    /// How far it has followed the manager.
    pub fn seen(&self) -> Option<Watermark> {
        self.following.as_ref().map(|following| following.seen)
    }

    /// Does what is due for the manager.
    pub fn follow(&mut self, now: Time, net: &mut ControlNetwork) {
        let Some(following) = self.following.as_mut().filter(|_| now >= self.paused_until) else { return };
        // A batch without frames: whoever waits for the worker waits no longer.
        self.service.begin_batch();
        let introduction = Introduction { mac: self.mac, incarnation: self.config.incarnation };
        following.work(&mut self.memory.mappings, introduction, now, net);
    }

    /// An answer of the manager has arrived.
    pub fn hear(&mut self, call: u64, answer: Answer, now: Time, net: &mut ControlNetwork) {
        if let Some(following) = &mut self.following {
            following.hear(call, answer, &mut self.memory.mappings, now, net);
        }
    }

    /// When it goes on with what the manager wants.
    pub fn follows_at(&self) -> Option<Time> {
        let at = self.following.as_ref().and_then(Following::deadline)?;
        Some(at.max(self.paused_until))
    }

    /// When it goes on with what it has, if it waits for that.
    pub fn deadline(&self, now: Time) -> Option<Time> {
        let goes_on = Some(self.busy_until.max(self.paused_until)).filter(|at| *at > now);
        // While answers wait for room it looks again, busily.
        let again = (goes_on.is_none() && self.service.is_stalled()).then(|| now + LOOK_INTERVAL);
        let computed = self.computing.front().map(|(at, _)| (*at).max(goes_on.unwrap_or(*at)));
        let looks = (!self.swept && !self.accepts_unknown).then(|| goes_on.unwrap_or(now));
        goes_on.or(again).into_iter().chain(self.ends_at).chain(computed).chain(looks).min()
    }

    /// Takes what has arrived; whether there was anything.
    pub fn work(&mut self, now: Time, batch: usize) -> bool {
        if self.ends_at.is_some_and(|at| now >= at) {
            self.restart(true);
        }
        if now < self.busy_until || now < self.paused_until {
            return false;
        }
        let MemoryNode { link, service, meddler, memory, .. } = self;
        service.begin_batch();
        if !self.accepts_unknown {
            service.follow_keys(link.transmit());
            self.swept = true;
        }
        let received = match meddler {
            None => link.receive(batch, &mut |frame, tx| service.handle(frame, now, tx)),
            Some(meddler) => link.receive(batch, &mut |frame, tx| {
                if meddler.before(frame, memory) {
                    service.handle(frame, now, tx);
                }
                meddler.after(memory);
            }),
        };
        let received = received.expect("a simulated link");
        while let Some(job) = service.responder().poll_handshake() {
            let begins = self.computing.back().map_or(now, |(at, _)| (*at).max(now));
            self.computing.push_back((begins + self.handshake_time, job));
        }
        while self.computing.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, job)) = self.computing.pop_front()
        {
            service.handshake_done(job.run(), now, link.transmit());
        }
        if received > 0 || service.is_stalled() {
            service.finish_batch(link.transmit());
            // The cable's own pause needs somebody at its other end who hears it; nobody does here.
            let verdict = service.look_at_queue(|count| link.holds(count), now);
            if verdict != Verdict::Quiet {
                service.tell(verdict, link.transmit());
            }
            self.busy_until = now + self.service_time * received as u32;
        }
        if now.since(self.polled) >= POLL_EVERY {
            self.polled = now;
            self.service.responder().poll(now);
        }
        self.link.flush().expect("a simulated link");
        received > 0
    }

    /// Nothing waits in its sessions, or will once those have ended that stay silent from now on, if there may be some.
    pub fn comes_to_rest(&mut self, now: Time, silence: bool) -> bool {
        let responder = self.service.responder();
        let rests = |s: &SessionStatus| s.waiting == 0 && s.buffered == 0;
        if silence && !responder.statuses(now).iter().all(rests) {
            responder.poll(now + self.config.idle_after);
        }
        responder.statuses(now).iter().all(rests)
    }
}

/// What a release can do that takes frames for many requests, or does not.
pub(crate) fn features(multi: bool) -> u32 {
    if multi { FEATURES } else { FEATURES & !(FEATURE_MULTI | FEATURE_JOINT_ACKS) }
}

/// The incarnation of a node's pool after so many losses; pools draw theirs, here it has to follow from the seed.
fn incarnation(seed: Entropy, losses: usize) -> u64 {
    let Entropy::Seeded(seed) = seed else { unreachable!("a simulation has a seed") };
    seed.rotate_left(17) ^ (losses as u64 + 1) << 56 | 1
}

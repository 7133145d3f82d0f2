//! A memory node of the simulation: the service of `mn-server` over a pool, which is kept or lost at a
//! restart. The manager, or a static map, assigns the pool's memory.

mod following;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cxloe_fabric::model::{DeviceKind, Watermark};
use cxloe_mn_core::congestion::{CongestionConfig, CongestionSignals};
use cxloe_mn_core::keys::AdmittedKeys;
use cxloe_mn_core::mappings::Mappings;
use cxloe_mn_core::pool::{ByteSize, MpAddr, MpExtent, Pool};
use cxloe_mn_core::service::Service;
use cxloe_mn_core::static_map::{StaticMap, StaticRange};
use cxloe_mn_core::translation::{PageTable, Translation};
use cxloe_net::Link;
use cxloe_net::sim::SimLink;
use cxloe_wire::frame::{FEATURE_JOINT_ACKS, FEATURE_MULTI, FEATURES, LINE_SIZE, Mac, SHARDS_MAX};
use cxloe_wire::machine::{self, ContractBreach, StateMachine};
use cxloe_wire::random::Random;
use cxloe_wire::session::{Entropy, HandshakeJob, ResponderConfig, SessionStatus};
use cxloe_wire::time::Time;

use crate::control::message::ManagerReply;
use crate::control::network::ControlNetwork;
use crate::node_keys;
use crate::planted_fault::{FaultPlanter, Lines, PlantedFault};
use crate::register::{Origin, Shape, content};
use crate::trace::{Name, Trace};
use crate::violation::InvariantViolation;
pub(crate) use following::name;
use following::{Following, Introduction};

/// Size of an extent in bytes. Without a manager, an extent holds the content of one life of a region (a region that is
/// replaced gets another life).
pub const EXTENT: u64 = 64 << 10;
/// Number of lives that each region can have in a run; a region that is replaced has another life, at other
/// CMem addresses.
pub const LIVES: u64 = 8;

/// Number of translations that a service caches, far fewer than in production, so that some are evicted.
const TLB_ENTRIES: usize = 16;
/// Time from the goodbye of a process to its end.
const GOODBYE: Duration = Duration::from_micros(200);
/// Duration of a handshake's Diffie-Hellman computation in runs with floods. A separate thread, not the worker,
/// computes it.
const HANDSHAKE_TIME: Duration = Duration::from_micros(40);
/// Interval between two checks for room in the transmit ring while answers wait.
const LOOK_INTERVAL: Duration = Duration::from_micros(1);

/// A simulated memory node, across all its processes.
pub struct MemoryNode {
    pub mac: Mac,
    /// Registered keys of the compute nodes that may have sessions.
    keys: Arc<AdmittedKeys>,
    /// Compute nodes whose keys are revoked.
    revoked: Vec<Mac>,
    /// True after the service has ended the sessions of the revoked nodes.
    swept: bool,
    /// Handshakes being computed, each with the time at which its result is available.
    computing: VecDeque<(Time, HandshakeJob)>,
    handshake_time: Duration,
    /// Planted fault: unregistered keys are accepted while an impostor is active.
    accepts_unknown: bool,
    /// Configuration of the service; a change takes effect at the next restart.
    pub config: ResponderConfig,
    /// Incarnations of the node's pools so far; the last one is that of the present pool.
    pub incarnations: Vec<u64>,
    /// End of the current pause, during which the node handles nothing.
    pub paused_until: Time,
    /// Time at which the process ends after its goodbye.
    ends_at: Option<Time>,
    link: SimLink,
    index: usize,
    cns: Vec<Mac>,
    shape: Shape,
    memory: Memory,
    service: Service,
    /// Processing time of a frame.
    service_time: Duration,
    /// Time at which the processing of the frames received so far ends.
    busy_until: Time,
    planter: Option<FaultPlanter>,
    /// Connection to the manager; `None` with a static map.
    following: Option<Following>,
    congestion: CongestionConfig,
    /// True if the node accepts frames of many lines: the first value applies before its first restart, the second one
    /// afterwards.
    multi: [bool; 2],
}

struct Memory {
    pool: Arc<Pool>,
    mappings: Mappings,
}

fn pool(extents: u64) -> Arc<Pool> {
    Arc::new(Pool::on_heap(extents * EXTENT, EXTENT, 1).expect("a small pool"))
}

impl Memory {
    /// Makes a pool in which each compute node has a mapped range for every life of its region, with its
    /// initial content.
    fn mapped(index: usize, cns: &[Mac], losses: usize, shape: Shape) -> Memory {
        let pool = pool(cns.len() as u64 * LIVES);
        let mut mappings = Mappings::open(Arc::clone(&pool), Watermark::default()).0;
        let range = |cn: &Mac| StaticRange { cn: *cn, base: ByteSize(0), size: ByteSize(LIVES * EXTENT) };
        let map = StaticMap { ranges: cns.iter().map(range).collect() };
        let job = map.apply(&mut mappings).expect("it fits");
        let outcome = job.carry_out(mappings.table(), |_| true, || ());
        mappings.finish(job, outcome);
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

    /// Opens an existing pool, for a node that has received the manager's events up to `seen`.
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
    /// Makes the memory node with this index, with a static map that has memory for `cns`. The pools'
    /// incarnations are derived from the seed in `config`.
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

    /// Makes the memory node with this index, whose `extents` extents the manager assigns; `kind` determines whether to
    /// one compute node or to several.
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
            service_time: Duration::ZERO,
            busy_until: Time::ZERO,
            planter: None,
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

    /// Sets whether the node accepts frames of many lines, before its first restart and after.
    pub(crate) fn know_multi(&mut self, multi: [bool; 2]) {
        self.multi = multi;
        self.service.responder().set_features(features(multi[0]));
    }

    pub fn set_admitted(&mut self, keys: Arc<AdmittedKeys>) {
        self.service.set_keys(Arc::clone(&keys));
        self.keys = keys;
    }

    /// Makes handshakes take computing time, so that floods of Hellos can exhaust the node.
    pub(crate) fn take_time_for_handshakes(&mut self) {
        self.handshake_time = HANDSHAKE_TIME;
    }

    /// Revokes the keys of these compute nodes, and restores the keys of all others.
    pub fn revoke(&mut self, cns: &[Mac]) {
        let rest: Vec<Mac> = self.cns.iter().copied().filter(|cn| !cns.contains(cn)).collect();
        self.keys.set_admitted(node_keys::of(&rest));
        self.revoked = cns.to_vec();
        // The service checks the keys at its next turn; until then, sessions of revoked nodes are no
        // violation.
        self.swept = false;
    }

    /// Returns a compute node that still has a session although its key was revoked; `None` if there is none.
    pub(crate) fn serves_revoked(&mut self) -> Option<Mac> {
        let MemoryNode { revoked, service, swept, .. } = self;
        let served =
            |cn: &&Mac| (0..SHARDS_MAX).any(|shard| service.responder().has_session(cn.shard(shard)));
        if *swept { revoked.iter().find(served).copied() } else { None }
    }

    /// Begins or ends the planted fault of accepting an unregistered key for every compute node.
    pub(crate) fn accept_unknown(&mut self, accepts: bool) {
        self.accepts_unknown = accepts;
        match accepts {
            true => {
                let key = node_keys::unknown().public();
                self.keys.set_admitted(self.cns.iter().map(|cn| (*cn, key)));
            }
            false => self.revoke(&self.revoked.clone()),
        }
    }

    /// Sets the processing time of each frame. With the default of zero, the node never falls behind.
    pub(crate) fn slow_down(&mut self, service_time: Duration) {
        self.service_time = service_time;
    }

    /// Makes the node signal congestion to compute nodes when its receive queue is long.
    pub fn watch_queue(&mut self, congestion: CongestionConfig) {
        self.congestion = congestion;
        self.service.set_congestion(congestion);
    }

    /// Makes the node break a rule on purpose.
    pub fn plant(&mut self, mistake: PlantedFault) {
        self.planter = Some(FaultPlanter::new(mistake));
        self.following.iter_mut().for_each(|following| following.plant(mistake));
    }

    /// Announces the node's end to all compute nodes; the process ends after [`GOODBYE`].
    pub(crate) fn say_goodbye(&mut self, now: Time) {
        self.service.responder().drain(self.link.transmit());
        self.link.flush().expect("a simulated link");
        self.ends_at = Some(now + GOODBYE);
    }

    /// Ends the process's connection to the manager.
    pub fn hang_up(&mut self, now: Time, net: &mut ControlNetwork) {
        if let Some(following) = &mut self.following {
            following.restart(now, net);
        }
    }

    /// Restarts the node as a new process, with its pool or with an empty one.
    pub fn restart(&mut self, keeps_pool: bool) {
        // A new process draws other random numbers.
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

    /// Returns how often the node has lost the content of its pool.
    pub fn losses(&self) -> usize {
        self.incarnations.len() - 1
    }

    /// Returns the content of the line at CMem address `cmem` of compute node `cn`; `None` if no memory is
    /// mapped there.
    pub fn line(&self, cn: Mac, cmem: u64) -> Option<[u8; LINE_SIZE]> {
        self.memory.get(cn, cmem)
    }

    /// Writes the line at CMem address `cmem` of compute node `cn`, past the service; does nothing if no
    /// memory is mapped there.
    pub(crate) fn set_line(&self, cn: Mac, cmem: u64, data: &[u8; LINE_SIZE]) {
        self.memory.set(cn, cmem, data);
    }

    pub fn mappings(&self) -> impl Iterator<Item = Translation> + use<'_> {
        self.memory.table().iter()
    }

    pub fn is_zero(&self, extent: MpExtent) -> bool {
        let (start, mut line) = (self.memory.pool.extent_start(extent), [0; LINE_SIZE]);
        (0..EXTENT / LINE_SIZE as u64).all(|index| {
            self.memory.pool.read_lines(MpAddr(start.0 + index * LINE_SIZE as u64), &mut line);
            line == [0; LINE_SIZE]
        })
    }

    pub fn extents(&self) -> u32 {
        self.memory.pool.extents()
    }

    /// Returns the number of handshakes that the service has answered by demanding a cookie, since the
    /// process started.
    pub fn cookies(&mut self) -> u64 {
        self.service.responder().totals().cookies
    }

    /// Returns true if no job and no report to the manager is left.
    pub fn is_quiet(&self) -> bool {
        self.following.as_ref().is_none_or(|following| following.is_quiet(&self.memory.mappings))
    }

    /// Returns true if the node has followed a manager. After that, the node refuses a manager whose store lacks events
    /// that the node has received.
    pub(crate) fn has_followed(&self) -> bool {
        self.following.as_ref().is_some_and(|following| following.seen.run != 0)
    }

    /// Returns the watermark of the events that the node has received; `None` without a manager.
    pub fn seen(&self) -> Option<Watermark> {
        self.following.as_ref().map(|following| following.seen)
    }

    /// Performs the due actions of the node's connection to the manager, unless the node is paused.
    pub fn follow(&mut self, now: Time, net: &mut ControlNetwork) {
        let Some(following) = self.following.as_mut().filter(|_| now >= self.paused_until) else { return };
        // A job may wait until the worker begins another batch of frames, so an empty batch is begun.
        self.service.begin_batch();
        let introduction = Introduction { mac: self.mac, incarnation: self.config.incarnation };
        following.work(&mut self.memory.mappings, introduction, now, net);
    }

    pub fn handle(&mut self, call: u64, answer: ManagerReply, now: Time, net: &mut ControlNetwork) {
        if let Some(following) = &mut self.following {
            following.handle(call, answer, &mut self.memory.mappings, now, net);
        }
    }

    /// Returns the time of the next action of the node's connection to the manager.
    pub(crate) fn follows_at(&self) -> Option<Time> {
        let at = self.following.as_ref().and_then(Following::deadline)?;
        Some(at.max(self.paused_until))
    }

    /// Returns the time of the node's next action on received frames and due timers.
    pub fn deadline(&self, now: Time) -> Option<Time> {
        let goes_on = Some(self.busy_until.max(self.paused_until)).filter(|at| *at > now);
        // While answers wait for room in the transmit ring, the node polls.
        let again = (goes_on.is_none() && self.service.is_stalled()).then(|| now + LOOK_INTERVAL);
        let computed = self.computing.front().map(|(at, _)| (*at).max(goes_on.unwrap_or(*at)));
        let looks = (!self.swept && !self.accepts_unknown).then(|| goes_on.unwrap_or(now));
        goes_on.or(again).into_iter().chain(self.ends_at).chain(computed).chain(looks).min()
    }

    /// Handles received frames, and what else is due; returns true if there were frames.
    pub fn work(&mut self, now: Time, batch: usize) -> bool {
        if self.ends_at.is_some_and(|at| now >= at) {
            self.restart(true);
        }
        if now < self.busy_until || now < self.paused_until {
            return false;
        }
        let MemoryNode { link, service, planter, memory, .. } = self;
        service.begin_batch();
        if !self.accepts_unknown {
            service.follow_keys(link.transmit());
            self.swept = true;
        }
        let received = match planter {
            None => link.receive(batch, &mut |frame, tx| service.handle(frame, now, tx)),
            Some(planter) => link.receive(batch, &mut |frame, tx| {
                if planter.before(frame, memory) {
                    service.handle(frame, now, tx);
                }
                planter.after(memory);
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
        let answers = received > 0 || service.is_stalled();
        let ends = answers && !planter.as_ref().is_some_and(FaultPlanter::keeps_answers);
        if ends || service.deadline().is_due(now) {
            service.poll(now, link.transmit());
        }
        // The events are for a log, which a simulated node does not have.
        while service.responder().poll_event().is_some() {}
        if answers {
            // The simulation has no receiver for pause frames to the other end of the cable.
            let verdict = service.check_queue(|count| link.holds(count), now);
            if verdict != CongestionSignals::Quiet {
                service.send_signals(verdict, link.transmit());
            }
            self.busy_until = now + self.service_time * received as u32;
        }
        self.link.flush().expect("a simulated link");
        received > 0
    }

    /// Checks, after the node's work at `now`, that it drives its service, and its connection to the manager, by the
    /// contract of machines.
    ///
    /// # Errors
    /// Returns the breach of the contract.
    pub(crate) fn check_machines(&self, now: Time) -> Result<(), InvariantViolation> {
        let left = self.following.as_ref().and_then(Following::undrained);
        let followed = left.map_or(Ok(()), |left| Err(ContractBreach::Undrained(left)));
        let works = now >= self.busy_until && now >= self.paused_until;
        let served = if works { machine::check(&self.service, now) } else { Ok(()) };
        let name = Name(self.mac);
        followed.and(served).map_err(|breach| InvariantViolation::Rule(format!("{name} {breach}")))
    }

    /// Returns true if the node's sessions have no pending answers. With `silence`, sessions are first ended as if
    /// their compute nodes had been silent for the idle time-out.
    pub(crate) fn has_nothing_pending(&mut self, now: Time, silence: bool) -> bool {
        let MemoryNode { service, link, .. } = self;
        let rests = |s: &SessionStatus| s.waiting == 0 && s.buffered == 0;
        if silence && !service.responder().statuses(now).iter().all(rests) {
            service.poll(now + self.config.idle_after, link.transmit());
        }
        service.responder().statuses(now).iter().all(rests)
    }
}

/// Returns the feature bits of a release that accepts frames of many requests (`multi`), or of one that does not.
pub(crate) fn features(multi: bool) -> u32 {
    if multi { FEATURES } else { FEATURES & !(FEATURE_MULTI | FEATURE_JOINT_ACKS) }
}

/// Returns the incarnation of a node's pool after `losses` losses. A real node draws it at random; here it is
/// derived from the seed, so that a run can be repeated.
fn incarnation(seed: Entropy, losses: usize) -> u64 {
    let Entropy::Seeded(seed) = seed else { unreachable!("a simulation has a seed") };
    seed.rotate_left(17) ^ (losses as u64 + 1) << 56 | 1
}

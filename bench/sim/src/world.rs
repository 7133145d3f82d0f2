//! The nodes, the network between them, and what befalls both: one run, from its plan to the last check.

use std::time::Duration;

use cxloe_fabric::model::DeviceKind;
use cxloe_gmm::manager::State;
use cxloe_link::sim::{Path, SimNetwork};
use cxloe_link::{Link, join_queues};
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
use cxloe_wire::random::Random;
use cxloe_wire::session::{Identity, PreSharedKey, RequesterConfig, ResponderConfig};
use cxloe_wire::time::Time;

use crate::broken::Broken;
use crate::compute_node::ComputeNode;
use crate::control::manager::{Kill, ManagerNode};
use crate::control::message::Caller;
use crate::control::network::{Conditions, ControlNetwork};
use crate::control::operator::Operator;
use crate::fabric::Fabric;
use crate::intruder::Intruder;
use crate::layout::Layout;
use crate::memory_node::MemoryNode;
use crate::mistake::Mistake;
use crate::node_keys;
use crate::paces::SAMPLE_EVERY;
use crate::plan::{self, CnPlan, Plan};
use crate::surroundings::Surroundings;
use crate::tally::Tally;
use crate::trace::{Name, Trace};
use crate::trouble::{self, Trouble, Troubles, pick};

const MS: Duration = Duration::from_millis(1);

/// After the trouble is over everything must have ended within this time.
const SETTLE: Duration = Duration::from_secs(5);
/// A run that takes longer than this, in virtual time, and what its operations may take, never ends.
const RUN_MAX: Duration = Duration::from_secs(600);
/// Steps from one question whether to go on to the next.
const ASK_EVERY: u64 = 1024;
/// Steps without any time passing, at most: beyond that, somebody always finds something to do at once.
const STEPS_AT_ONCE: u32 = 100_000;

/// The key of those who seal their frames.
const KEY: &[u8] = b"sixteen bytes or more";

/// A run.
pub struct World<'a> {
    net: SimNetwork,
    random: Random,
    cns: Vec<ComputeNode>,
    mns: Vec<MemoryNode>,
    batch: usize,
    /// To the manager and from it.
    control: ControlNetwork,
    /// Where the manager says which regions there are.
    fabric: Option<Fabric>,
    /// Where nodes have keys: who watches that no nonce comes twice, and perhaps means harm.
    intruder: Option<Intruder>,
    /// Memory nodes take who calls under an unknown key for who it says it is.
    accepts_unknown: bool,
    max_frame: usize,
    troubles: Troubles,
    /// How long everything may take to end once nothing goes wrong any more.
    settle: Duration,
    trouble_at: Time,
    healed_at: Option<Time>,
    /// When pacers are looked at next; never where there are none.
    sample_at: Time,
    /// Operations that each compute node is to make.
    quotas: Vec<u64>,
    /// When the last operation has been made, at the latest.
    end: Time,
    steps: u64,
    /// Steps made since time last passed.
    standing: u32,
    tally: &'a mut Tally,
    trace: Trace,
}

impl<'a> World<'a> {
    /// Nodes and network as planned. What happens is counted in `tally` and told to `trace`.
    pub fn new(plan: &Plan, tally: &'a mut Tally, trace: Trace) -> World<'a> {
        let seed = plan.seed;
        let net = SimNetwork::new(seed);
        net.set_default_path(plan.path);
        if trace.is_on() {
            let trace = trace.clone();
            net.on_trace(move |frame| trace.frame(frame));
        }
        let mn_macs: Vec<Mac> = (0..plan.mns.len()).map(Name::mn).collect();
        let cn_macs: Vec<Mac> = (0..plan.cns.len()).map(Name::cn).collect();
        let key: Option<PreSharedKey> = (plan.sealed && !plan.keyed).then(|| KEY.into());
        let mut mns = Vec::new();
        for (i, (own, node)) in mn_macs.iter().zip(&plan.mns).enumerate() {
            let link = net.attach(*own, node.port).expect("a new address");
            let config = ResponderConfig {
                early_buffers: node.early_buffers,
                key: key.clone(),
                node_key: plan.keyed.then(|| node_keys::key_of(*own)),
                ..ResponderConfig::new(*own, plan.max_frame, 0, seed ^ (0x100 + i as u64))
            };
            let mut mn = match &plan.fabric {
                None => MemoryNode::new(i, link, config, cn_macs.clone(), plan.shape),
                Some(fabric) => {
                    let kind = if fabric.is_whole(i, plan) { DeviceKind::Sld } else { DeviceKind::Mld };
                    let random = Random::part(seed, 1000 + i as u64);
                    MemoryNode::managed(i, link, config, fabric.extents, kind, random, trace.clone())
                }
            };
            mn.slow_down(node.service);
            mn.watch_queue(node.congestion);
            mn.know_multi(node.multi);
            if plan.keyed {
                mn.admit(node_keys::admitted(&cn_macs));
            }
            if plan.intruder {
                mn.take_time_for_handshakes();
            }
            plan.mistake.into_iter().for_each(|mistake| mn.plant(mistake));
            mns.push(mn);
        }
        let mut cns = Vec::new();
        for (i, (own, node)) in cn_macs.iter().zip(&plan.cns).enumerate() {
            let link = |shard| net.attach(own.shard(shard), node.port).expect("a new address");
            let links = (0..node.queues).map(|shard| Box::new(link(shard)) as Box<dyn Link>).collect();
            let link = join_queues(links).expect("descriptors are to be had");
            let requester = |peer: &Mac| RequesterConfig {
                identity: Identity { own: *own, peer: *peer, ethertype: ETHERTYPE_DEFAULT },
                max_frame: plan.max_frame,
                streams: node.streams,
                instance: 1 + i as u64,
                key: key.clone(),
                keys: plan.keyed.then(|| node_keys::pair_of(*own, *peer)),
                timing: plan.timing,
                seed: (seed ^ peer.to_u64().rotate_left(16)).into(),
            };
            let random = Random::part(seed, 10 + i as u64);
            let requesters = mn_macs.iter().map(requester).collect();
            let layout = match &plan.fabric {
                None => Layout::new(mn_macs.len(), plan.interleave, i),
                Some(_) => Layout::default(),
            };
            let mut cn =
                ComputeNode::new(i, link, node, requesters, layout, plan.shape, random, trace.clone());
            if plan.all_succeed {
                cn.expect_success();
            }
            if plan.fabric.is_some() {
                cn.follow_manager(Random::part(seed, 2000 + i as u64), trace.clone());
            }
            if let Some(paging) = node.paging {
                cn.map(paging, Random::part(seed, 4000 + i as u64), Random::part(seed, 5200 + i as u64));
            }
            plan.mistake.into_iter().for_each(|mistake| cn.plant(mistake));
            cns.push(cn);
        }
        let making = |cn: &CnPlan| (cn.pause * 4).saturating_mul(cn.operations.min(u32::MAX.into()) as u32);
        let longest = plan.cns.iter().map(making).max().unwrap_or_default();
        let paced = plan.cns.iter().any(|cn| cn.pacing.is_some());
        let conditions = plan.fabric.as_ref().map_or(Conditions::GOOD, |fabric| fabric.conditions);
        let control = ControlNetwork::new(Random::part(seed, 3000), conditions, trace.clone());
        let fabric = plan.fabric.as_ref().map(|fabric| {
            let mut manager = ManagerNode::new(seed, fabric.node_timeout_ms, trace.clone());
            plan.mistake.into_iter().for_each(|mistake| manager.plant(mistake));
            let random = Random::part(seed, 3001);
            let (orders, interval) = (fabric.orders, fabric.interval);
            let operator = Operator::new(fabric.wanted(plan), orders, interval, random, trace.clone());
            Fabric { manager, operator }
        });
        let intruder =
            plan.keyed.then(|| Intruder::new(&net, plan.intruder, plan.mistake, Random::part(seed, 7_100)));
        let mut random = Random::part(seed, 2);
        let trouble_at = Time(random.below(5_000_000));
        World {
            net,
            random,
            mns,
            batch: plan.batch,
            control,
            fabric,
            intruder,
            accepts_unknown: plan.mistake == Some(Mistake::AcceptsUnknownKeys),
            max_frame: plan.max_frame,
            troubles: plan.troubles,
            settle: SETTLE + plan.timing.dead_after * 2,
            trouble_at,
            healed_at: None,
            sample_at: if paced { Time::ZERO } else { Time(u64::MAX) },
            quotas: cns.iter().map(|cn| cn.quota).collect(),
            cns,
            end: Time::ZERO + RUN_MAX + longest,
            steps: 0,
            standing: 0,
            tally,
            trace,
        }
    }

    fn say(&self, what: impl FnOnce() -> String) {
        self.trace.say(self.net.now(), "*", what);
    }

    /// Runs until everything has happened and come to rest, checking all the way.
    ///
    /// # Errors
    /// What did not hold; [`Broken::Stopped`] once `goes_on` says no.
    pub fn run(mut self, goes_on: &dyn Fn() -> bool) -> Result<(), Broken> {
        let outcome = self.live(goes_on).and_then(|()| self.settle());
        for cn in &self.cns {
            cn.retire(self.tally);
        }
        self.count_frames();
        outcome
    }

    fn live(&mut self, goes_on: &dyn Fn() -> bool) -> Result<(), Broken> {
        let ordering = |fabric: &Option<Fabric>| fabric.as_ref().is_some_and(|f| !f.operator.is_done());
        while self.troubles.count > 0
            || self.healed_at.is_some()
            || self.cns.iter().any(ComputeNode::has_work)
            || ordering(&self.fabric)
        {
            if self.net.now() > self.end {
                return Err(self.unrest());
            }
            self.steps += 1;
            if self.steps.is_multiple_of(ASK_EVERY) && !goes_on() {
                return Err(Broken::Stopped);
            }
            self.step(None)?;
            self.look_at_paces();
        }
        Ok(())
    }

    fn look_at_paces(&mut self) {
        let now = self.net.now();
        if now >= self.sample_at && self.cns.iter().any(|cn| cn.engine.is_connected()) {
            self.sample_at = now + SAMPLE_EVERY;
            self.cns.iter_mut().for_each(|cn| cn.sample_paces(now, self.tally));
            if self.cns.iter().any(|cn| cn.quota == 0) {
                let alike = self.quotas.windows(2).all(|pair| pair[0] == pair[1]);
                let made = self.cns.iter().zip(&self.quotas).map(|(cn, quota)| quota - cn.quota);
                if alike {
                    self.tally.paces.served(made);
                }
                // From here on they no longer compete all together.
                self.sample_at = Time(u64::MAX);
            }
        }
    }

    /// Nothing goes wrong any more: everything has to end, and to be as it should.
    fn settle(&mut self) -> Result<(), Broken> {
        self.say(|| "all is well from here on".into());
        self.net.heal_all();
        self.net.set_default_path(Path::default());
        self.cns.iter_mut().for_each(|cn| cn.paused_until = Time::ZERO);
        self.mns.iter_mut().for_each(|mn| mn.paused_until = Time::ZERO);
        self.control.heal();
        self.restore_keys();
        self.quiet();
        if let Some(fabric) = &mut self.fabric {
            fabric.manager.heal();
            fabric.operator.calm_down();
        }
        let end = self.net.now() + self.settle;
        self.until(end, |world| Ok(world.cns.iter().all(ComputeNode::is_idle)))?;
        self.until(end, |world| {
            let around = Surroundings { mns: &world.mns, state: state_of(&world.fabric) };
            let mut done = true;
            for cn in &mut world.cns {
                done &= cn.finish(around)?;
            }
            Ok(done)
        })?;
        self.agree(end)?;
        self.until(end, |world| {
            let now = world.net.now();
            let around = Surroundings { mns: &world.mns, state: state_of(&world.fabric) };
            let mut done = true;
            for cn in &mut world.cns {
                done &= cn.flush(now, around)?;
            }
            Ok(done)
        })?;
        // Write-backs of regions that are gone are nobody's, so that no flush waits for them; they end all the same.
        self.until(end, |world| Ok(world.cns.iter().all(ComputeNode::is_at_rest)))?;
        // Those that lost their session in the last moment need none, but get one.
        self.until(end, |world| Ok(world.cns.iter().all(|cn| cn.engine.is_connected())))?;
        self.take_down(end)?;
        let now = self.net.now();
        self.cns.iter_mut().for_each(|cn| cn.close(now));
        self.until(end, |world| Ok(world.cns.iter().all(|cn| cn.engine.is_closed())))?;
        let now = self.net.now();
        match self.mns.iter_mut().find_map(|mn| (!mn.is_at_rest(now)).then_some(mn.mac)) {
            Some(mac) => Err(Broken::Unrest(format!("{} still has requests in its buffers", Name(mac)))),
            None => Ok(()),
        }
    }

    /// The control plane comes to rest, and agrees.
    fn agree(&mut self, end: Time) -> Result<(), Broken> {
        if self.fabric.is_none() {
            return Ok(());
        }
        self.until(end, |world| {
            Ok(world.fabric.as_ref().is_none_or(|f| f.unrest(&world.mns, &world.cns).is_none()))
        })?;
        let fabric = self.fabric.as_ref();
        fabric.map_or(Ok(()), |fabric| fabric.check(&self.mns, &self.cns))
    }

    /// All regions are destroyed, and nothing is left of them.
    fn take_down(&mut self, end: Time) -> Result<(), Broken> {
        let Some(fabric) = &mut self.fabric else { return Ok(()) };
        self.trace.say(self.net.now(), "*", || "everything is taken down".into());
        fabric.operator.close();
        self.until(end, |world| {
            Ok(world.fabric.as_ref().is_none_or(|f| {
                f.manager.state().regions.is_empty()
                    && f.manager.state().logical_devices.is_empty()
                    && f.unrest(&world.mns, &world.cns).is_none()
            }))
        })?;
        let fabric = self.fabric.as_ref();
        fabric.map_or(Ok(()), |fabric| fabric.check_gone(&self.mns, &self.cns))
    }

    fn count_frames(&mut self) {
        let figures = &mut self.tally.figures;
        let messages = self.control.counts();
        figures.messages += messages.sent;
        figures.messages_lost += messages.lost;
        figures.messages_repeated += messages.repeated;
        let counters = self.net.counters();
        figures.frames += counters.sent;
        figures.lost += counters.lost;
        figures.cut += counters.cut;
        figures.overflowed += counters.full;
        figures.repeated += counters.late;
        let (cns, mns) = (&self.cns, &self.mns);
        let cns = cns.iter().flat_map(ComputeNode::addresses);
        for (cn, mn) in cns.flat_map(|cn| mns.iter().map(move |mn| (cn, mn.mac))) {
            for faults in [self.net.faults(cn, mn), self.net.faults(mn, cn)] {
                figures.repeated += faults.duplicated;
                figures.reordered += faults.reordered;
                figures.corrupted += faults.corrupted;
            }
        }
        figures.cookies += self.mns.iter_mut().map(MemoryNode::cookies).sum::<u64>();
        figures.virtual_ns += self.net.now().0;
    }

    fn unrest(&self) -> Broken {
        let fabric = self.fabric.as_ref().and_then(|fabric| fabric.unrest(&self.mns, &self.cns));
        let states: Vec<_> = fabric.into_iter().chain(self.cns.iter().map(ComputeNode::state)).collect();
        Broken::Unrest(states.join("; "))
    }

    fn until(
        &mut self,
        end: Time,
        mut done: impl FnMut(&mut Self) -> Result<bool, Broken>,
    ) -> Result<(), Broken> {
        while !done(self)? {
            if self.net.now() >= end {
                return Err(self.unrest());
            }
            self.step(Some(end))?;
        }
        Ok(())
    }

    /// On to whatever happens next.
    fn step(&mut self, end: Option<Time>) -> Result<(), Broken> {
        let before = self.net.now();
        let trouble = if end.is_none() { self.next_trouble() } else { None };
        // Time passes also when nothing is due: a transmit ring that was full may have room again.
        let mut next = end.unwrap_or(Time(u64::MAX)).min(before + MS);
        self.cns.iter().for_each(|cn| next = next.min(cn.deadline()));
        self.mns.iter().filter_map(|mn| mn.deadline(before)).for_each(|at| next = next.min(at));
        let fabric = self.fabric.as_ref().and_then(|fabric| fabric.deadline(&self.control, &self.mns));
        let intruder = self.intruder.as_ref().and_then(Intruder::deadline);
        self.net
            .next_event()
            .into_iter()
            .chain(trouble)
            .chain(intruder)
            .chain(fabric)
            .for_each(|at| next = next.min(at));
        self.net.step(next);
        let now = self.net.now();
        self.standing = if now == before { self.standing + 1 } else { 0 };
        if self.standing > STEPS_AT_ONCE {
            return Err(Broken::Unrest(format!("time stands still at {now}")));
        }
        if trouble.is_some_and(|at| at <= now) {
            self.befall(now);
        }
        self.look_at_intruder(now)?;
        let mut busy = true;
        while busy {
            busy = false;
            for mn in &mut self.mns {
                busy |= mn.work(now, self.batch);
                if let Some(cn) = mn.serves_revoked() {
                    let (mn, cn) = (Name(mn.mac), Name(cn));
                    return Err(Broken::Rule(format!("{mn} serves {cn}, whose key was taken back")));
                }
            }
            if let Some(fabric) = &mut self.fabric {
                busy |= fabric.work(&mut self.control, &mut self.mns, &mut self.cns, now, self.tally)?;
            }
            let around = Surroundings { mns: &self.mns, state: state_of(&self.fabric) };
            for cn in &mut self.cns {
                busy |= cn.work(now, self.batch, around, self.tally)?;
                if cn.has_died() {
                    cn.kill(now, &mut self.control, self.tally);
                    busy = true;
                }
            }
        }
        Ok(())
    }

    fn next_trouble(&self) -> Option<Time> {
        self.healed_at.or((self.troubles.count > 0).then_some(self.trouble_at))
    }

    fn befall(&mut self, now: Time) {
        if self.healed_at.take().is_some() {
            self.say(|| "all paths are whole again".into());
            self.net.heal_all();
            self.restore_keys();
            return;
        }
        let r = &mut self.random;
        self.troubles.count -= 1;
        self.trouble_at = now + trouble::interval(r);
        let (cn, mn) = (r.below(self.cns.len() as u64) as usize, r.below(self.mns.len() as u64) as usize);
        match self.troubles.draw(r) {
            None => {}
            Some(Trouble::Cut) => self.cut(now, cn, mn),
            Some(Trouble::CutOff) => {
                let addresses: Vec<Mac> = self.cns[cn].addresses().collect();
                let until = now + Duration::from_micros(pick(r, &[500, 20_000, 200_000, 7_000_000]));
                self.net.partition(&addresses);
                self.healed_at = Some(until);
                self.tally.figures.cuts += 1;
                self.say(|| format!("cn{cn} is cut off until {until}"));
            }
            Some(Trouble::Goodbye) => {
                self.mns[mn].say_goodbye(now);
                self.tally.figures.goodbyes += 1;
                self.say(|| format!("mn{mn} says goodbye"));
            }
            Some(Trouble::Storm) => {
                let path = plan::storm(r);
                self.net.set_default_path(path);
                self.tally.figures.weather += 1;
                self.say(|| format!("from here on: {}, delay {:?}", path.faults, path.delay));
            }
            Some(Trouble::RestartKept) => {
                if r.below(2) == 0 {
                    // With other limits than before.
                    self.mns[mn].config.streams_max = 1 + r.below(3) as u8;
                    self.mns[mn].config.max_frame = pick(r, &[200, 700, plan::FRAME_MTU]);
                }
                self.mns[mn].hang_up(now, &mut self.control);
                self.mns[mn].restart(true);
                self.tally.figures.restarts_kept += 1;
                self.say(|| format!("mn{mn} restarts with its pool"));
            }
            Some(Trouble::RestartLost) => {
                self.mns[mn].hang_up(now, &mut self.control);
                self.mns[mn].restart(false);
                self.tally.figures.restarts_lost += 1;
                self.say(|| format!("mn{mn} restarts without its pool"));
            }
            Some(Trouble::Kill) => {
                self.cns[cn].is_killed(now, &mut self.control, self.tally);
                self.tally.figures.kills += 1;
                self.say(|| format!("cn{cn} is killed and starts anew"));
            }
            Some(Trouble::Pause) => {
                let (is_cn, until) = (r.below(2) == 0, now + trouble::duration(r));
                let (node, name) = if is_cn {
                    (&mut self.cns[cn].paused_until, Name(Name::cn(cn)))
                } else {
                    (&mut self.mns[mn].paused_until, Name(Name::mn(mn)))
                };
                *node = until;
                self.tally.figures.pauses += 1;
                self.say(|| format!("{name} stands still until {until}"));
            }
            Some(Trouble::Replace) => {
                let told = r.below(2) == 0;
                let replaced = self.cns[cn].replace_region(mn, told, &self.mns);
                self.tally.figures.replaced += u64::from(replaced);
                self.say(|| format!("cn{cn} gets another region on mn{mn}"));
            }
            Some(Trouble::Manager) => {
                let Some(fabric) = &mut self.fabric else { return };
                let at = pick(r, &[Kill::Now, Kill::BeforeCommit, Kill::AfterCommit]);
                fabric.manager.kill(now, at, trouble::duration(r));
                self.tally.figures.managers_killed += 1;
                self.say(|| format!("the manager is to be killed: {at:?}"));
            }
            Some(Trouble::WrongManager) => {
                let (empty, copies) = (r.below(2) == 0, r.below(3) == 0);
                let (lasts, away) = (trouble::duration(r), trouble::duration(r));
                let Some(fabric) = &mut self.fabric else { return };
                // Who has never followed anybody follows whoever comes first.
                let state = fabric.manager.state();
                let all_follow = self.mns.iter().all(MemoryNode::has_followed)
                    && self.cns.iter().all(|cn| cn.has_followed(state));
                if all_follow && fabric.manager.mislead(now, empty, lasts, away) {
                    self.tally.figures.managers_killed += 1;
                    self.say(|| format!("the manager has another store for {lasts:?}, empty: {empty}"));
                }
                let Some(fabric) = &mut self.fabric else { return };
                if copies {
                    fabric.manager.copy_store();
                }
            }
            Some(Trouble::ManagerAway) => {
                let whose = match r.below(3) {
                    0 => None,
                    1 => Some(Caller::Cn(cn)),
                    _ => Some(Caller::Mn(mn)),
                };
                let until = now + trouble::duration(r);
                self.control.cut(whose, until);
                self.tally.figures.managers_away += 1;
                self.say(|| {
                    let whose = whose.map_or_else(|| "everybody".to_owned(), |whose| whose.to_string());
                    format!("the manager is out of reach of {whose} until {until}")
                });
            }
            Some(Trouble::Forgery | Trouble::Replay | Trouble::Flood | Trouble::Impostor)
                if self.intruder.is_none() => {}
            Some(trouble @ (Trouble::Forgery | Trouble::Replay | Trouble::Flood | Trouble::Impostor)) => {
                self.intrude(trouble, cn, mn, now);
            }
            Some(Trouble::Revocation) => {
                let until = now + trouble::duration(r);
                let revoked = [self.cns[cn].mac];
                self.mns.iter_mut().for_each(|mn| mn.revoke(&revoked));
                self.healed_at = Some(until);
                self.tally.figures.revocations += 1;
                self.say(|| format!("the key of cn{cn} is taken back until {until}"));
                self.intrude(Trouble::Revocation, cn, mn, now);
            }
            Some(Trouble::Weather) => {
                let path = plan::weather(r);
                self.net.set_default_path(path);
                self.tally.figures.weather += 1;
                self.say(|| format!("from here on: {}, delay {:?}", path.faults, path.delay));
            }
        }
    }

    /// Somebody without any right does something.
    fn intrude(&mut self, what: Trouble, cn: usize, mn: usize, now: Time) {
        let Some(intruder) = &mut self.intruder else { return };
        let addresses: Vec<Mac> = self.cns.iter().flat_map(ComputeNode::addresses).collect();
        // While a key is taken back its node is not to be served without one either.
        let insecure = self.random.below(3) == 0 || what == Trouble::Revocation;
        let (victim, node) = (self.cns[cn].mac, &mut self.mns[mn]);
        let figures = &mut self.tally.figures;
        let done = match what {
            Trouble::Forgery => {
                let sent = intruder.forge();
                figures.forged += sent;
                format!("{sent} forged frames")
            }
            Trouble::Replay => {
                let sent = intruder.replay();
                figures.replayed += sent;
                format!("{sent} frames come again")
            }
            Trouble::Flood => {
                let sent = intruder.flood(node.mac, &addresses);
                figures.flooded += sent;
                format!("{sent} Hellos to mn{mn}")
            }
            _ if intruder.is_calling() || !intruder.call(victim, node.mac, self.max_frame, insecure, now) => {
                return;
            }
            _ => {
                if self.accepts_unknown && !insecure {
                    node.accept_unknown(true);
                }
                figures.impostors += 1;
                format!("somebody calls mn{mn} as cn{cn}")
            }
        };
        self.say(|| done);
    }

    /// Has the intruder go on, and looks at what it has seen and reached.
    fn look_at_intruder(&mut self, now: Time) -> Result<(), Broken> {
        let Some(intruder) = &mut self.intruder else { return Ok(()) };
        let called = intruder.is_calling();
        intruder.work(now)?;
        if called && !intruder.is_calling() && self.accepts_unknown {
            self.mns.iter_mut().for_each(|mn| mn.accept_unknown(false));
        }
        Ok(())
    }

    /// The intruder leaves it at that.
    fn quiet(&mut self) {
        self.intruder.iter_mut().for_each(Intruder::rest);
        if self.accepts_unknown {
            self.mns.iter_mut().for_each(|mn| mn.accept_unknown(false));
        }
    }

    /// All keys are good again.
    fn restore_keys(&mut self) {
        if self.intruder.is_some() && self.fabric.is_none() {
            self.mns.iter_mut().for_each(|mn| mn.revoke(&[]));
        }
    }

    fn cut(&mut self, now: Time, cn: usize, mn: usize) {
        let mn_mac = self.mns[mn].mac;
        // All of a node's queues, or one of them: then its other sessions go on.
        let mut addresses: Vec<Mac> = self.cns[cn].addresses().collect();
        let r = &mut self.random;
        if addresses.len() > 1 && r.below(2) == 0 {
            addresses = vec![pick(r, &addresses)];
        }
        let (paths, of) = (addresses.len(), if addresses.len() == 1 { "path" } else { "paths" });
        let what = match r.below(3) {
            0 => {
                addresses.iter().for_each(|cn| self.net.cut(*cn, mn_mac));
                format!("{paths} {of} from cn{cn} to mn{mn} cut")
            }
            1 => {
                addresses.iter().for_each(|cn| self.net.cut(mn_mac, *cn));
                format!("{paths} {of} from mn{mn} to cn{cn} cut")
            }
            _ => {
                self.net.partition(&[mn_mac]);
                format!("mn{mn} is cut off")
            }
        };
        let until = now + trouble::duration(r);
        self.healed_at = Some(until);
        self.tally.figures.cuts += 1;
        self.say(|| format!("{what} until {until}"));
    }
}

/// What the manager has committed, where there is one.
fn state_of(fabric: &Option<Fabric>) -> Option<&State> {
    fabric.as_ref().map(|fabric| fabric.manager.state())
}

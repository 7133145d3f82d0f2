//! How a compute node follows the manager: it registers, hears of its regions, and says what it has let go of, as the
//! link to the manager of `cn-agent` does, around the same decisions. What outlives the process is its state file.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cxloe_cn_core::attach::{Station, StationKeys};
use cxloe_cn_core::attachments::{Attachments, Change};
use cxloe_cn_core::drain::Drains;
use cxloe_fabric::api::{
    ComputeNodeRegistered, ComputeNodeSync, ComputeNodeSynced, ErrorCode, NotFollowed, Party,
    RegisterComputeNode,
};
use cxloe_fabric::model::{CnId, Name, Region, RegionState, Watermark, lineage};
use cxloe_gmm::manager::State;
use cxloe_gmm::manager::liveness::NodeKey;
use cxloe_wire::frame::ETHERTYPE_DEFAULT;
use cxloe_wire::random::Random;
use cxloe_wire::session::RequesterConfig;
use cxloe_wire::time::Time;

use super::ComputeNode;
use crate::broken::Broken;
use crate::control::message::{Answer, Caller, Message, Request};
use crate::control::network::ControlNetwork;
use crate::control::port::Port;
use crate::mistake::Mistake;
use crate::node_keys::key_of;
use crate::surroundings::Surroundings;
use crate::trace::{self, Trace};

/// From one try to reach the manager to the next, at most.
const AGAIN: Duration = Duration::from_millis(3);
/// How long to wait for news while something is being let go of, in milliseconds.
const ACKNOWLEDGE_MS: u64 = 1;
/// How soon what is on its way out is looked at again while it gets on.
const DRAIN_AGAIN: Duration = Duration::from_micros(20);

/// Memory nodes that a run may have.
const MNS_MAX: usize = 16;

/// What the node is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// For a while to pass before it registers.
    Pause(Time),
    /// For the answer to its registration.
    Registering,
    /// For the manager to hear that it does not follow.
    Refusing,
    /// For news.
    Syncing,
}

/// A compute node's link to the manager, and what it knows of its regions.
pub(super) struct Managed {
    pub attachments: Attachments,
    pub drains: Drains,
    pub station: Station,
    /// Regions on their way out, by their tickets: where they begin, and bytes of their addresses.
    pub tickets: VecDeque<(u64, u64, u64)>,
    /// Regions that are being moved: where they begin, and since when.
    pub moving: Vec<(u64, Time)>,
    pub mistake: Option<Mistake>,
    pub drained_at: Time,
    port: Port,
    name: Name,
    cn: CnId,
    doing: Doing,
    registration: u64,
    run: u64,
    heartbeat_ms: u64,
    after_event: u64,
    random: Random,
    trace: Trace,
}

impl Managed {
    pub fn new(index: usize, config: &RequesterConfig, random: Random, trace: Trace) -> Managed {
        let own = config.identity.own;
        Managed {
            attachments: Attachments::default(),
            drains: Drains::default(),
            station: Station {
                own,
                ethertype: ETHERTYPE_DEFAULT,
                max_frame: config.max_frame,
                streams: config.streams,
                instance: config.instance,
                key: None,
                keys: keys_of(config),
                timing: config.timing,
            },
            tickets: VecDeque::new(),
            moving: Vec::new(),
            mistake: None,
            drained_at: Time::ZERO,
            port: Port::new(Caller::Cn(index)),
            name: name(index),
            cn: CnId::new(own.0).expect("a unicast address"),
            doing: Doing::Pause(Time::ZERO),
            registration: 0,
            run: 0,
            heartbeat_ms: 1,
            after_event: 0,
            random,
            trace,
        }
    }

    pub fn plant(&mut self, mistake: Mistake) {
        self.mistake = Some(mistake);
    }

    fn hang_up(&self, now: Time, net: &mut ControlNetwork) {
        if self.doing == Doing::Syncing {
            net.send(now, Message::HungUp(NodeKey::Compute(self.cn), self.registration));
        }
    }

    fn pause(&mut self, now: Time) {
        let pause = self.random.below(AGAIN.as_nanos() as u64);
        self.doing = Doing::Pause(now + Duration::from_nanos(pause));
    }

    /// When it goes on.
    pub fn deadline(&self) -> Option<Time> {
        let link = match self.doing {
            Doing::Pause(at) => Some(at),
            _ => self.port.deadline(),
        };
        let drains = !self.drains.is_empty() && self.drains.gets_on();
        let drain = drains.then(|| self.drained_at + DRAIN_AGAIN);
        link.into_iter().chain(drain).min()
    }

    /// Whether it has all that the manager's store has to tell it, regions among it, so that it refuses a manager that lacks
    /// what it has seen.
    pub fn has_followed(&self, state: &State) -> bool {
        let told = state.compute_nodes.get(&self.cn).is_some_and(|cn| cn.regions_event == self.after_event);
        told && self.attachments.seen().run != 0
    }

    /// What it is at, for a message.
    pub fn state(&self) -> String {
        let letting_go = self.attachments.is_draining();
        format!("{:?}, letting go {letting_go}, drains {}", self.doing, !self.drains.is_empty())
    }

    /// Whether it has heard of everything up to this event, and has nothing left to do.
    pub fn is_quiet(&self, last_event: u64) -> bool {
        self.doing == Doing::Syncing
            && self.after_event == last_event
            && self.drains.is_empty()
            && !self.attachments.is_draining()
            && self.attachments.released().is_empty()
    }

    fn work(&mut self, now: Time, net: &mut ControlNetwork) {
        if self.port.has_given_up(now) {
            self.trace.say(now, &self.name, || "hears nothing of the manager".into());
            self.hang_up(now, net);
            return self.pause(now);
        }
        if matches!(self.doing, Doing::Pause(at) if now >= at) {
            let request = RegisterComputeNode {
                cn_id: self.cn,
                name: self.name.clone(),
                udp: None,
                key: None,
                new_key: false,
                instance_id: self.station.instance,
                seen: self.attachments.seen(),
            };
            self.port.call(Request::RegisterComputeNode(request), Duration::ZERO, now, net);
            self.doing = Doing::Registering;
        }
    }

    /// An answer has arrived; what is to be done about regions.
    fn hear(&mut self, call: u64, answer: Answer, now: Time, net: &mut ControlNetwork) -> Vec<Change> {
        // Whoever takes any answer for the one to its last call makes a mistake.
        let mistaken =
            self.mistake == Some(Mistake::TakesOldAnswers) && matches!(answer, Answer::ComputeNodeSynced(_));
        let takes = self.port.takes(call) || mistaken;
        if !takes {
            return Vec::new();
        }
        let followed = match (self.doing, answer) {
            (Doing::Registering, Answer::ComputeNodeRegistered(answer)) => self.registered(*answer),
            (Doing::Registering, Answer::Refused(ErrorCode::StaleManager, _)) => {
                let node = Party::ComputeNode(self.cn);
                let said =
                    NotFollowed { node, seen: self.attachments.seen(), holds: self.attachments.holds() };
                self.port.call(Request::NotFollowed(said), Duration::ZERO, now, net);
                self.doing = Doing::Refusing;
                return Vec::new();
            }
            (Doing::Syncing, Answer::ComputeNodeSynced(synced)) => self.synced(*synced),
            _ => None,
        };
        match followed {
            Some(changes) => {
                // To be called for by whoever has carried them out.
                self.doing = Doing::Syncing;
                changes
            }
            None => {
                self.pause(now);
                Vec::new()
            }
        }
    }

    fn registered(&mut self, answer: ComputeNodeRegistered) -> Option<Vec<Change>> {
        lineage::check(&answer.lineage, answer.watermark, self.attachments.seen()).ok()?;
        self.registration = answer.registration;
        self.run = answer.watermark.run;
        (self.heartbeat_ms, self.after_event) = (answer.heartbeat_ms, answer.after_event);
        self.attachments.hear(answer.watermark);
        let changes = self.attachments.follow(&answer.regions, answer.held);
        self.attachments.follow_devices(&answer.devices);
        Some(changes)
    }

    fn synced(&mut self, synced: ComputeNodeSynced) -> Option<Vec<Change>> {
        if synced.watermark.run != self.run {
            return None;
        }
        let mut changes = Vec::new();
        if let Some(regions) = &synced.regions {
            self.attachments.hear(synced.watermark);
            changes = self.attachments.follow(regions, synced.held);
            self.attachments.follow_devices(&synced.devices);
        }
        self.heartbeat_ms = synced.heartbeat_ms;
        // Whoever takes old answers for new ones believes to know what it knew before.
        let newest = self.after_event.max(synced.after_event);
        let mistaken = self.mistake == Some(Mistake::TakesOldAnswers);
        self.after_event = if mistaken { newest } else { synced.after_event };
        Some(changes)
    }

    /// Asks for news.
    fn sync(&mut self, now: Time, net: &mut ControlNetwork) {
        let letting_go = self.attachments.is_draining();
        let wait_ms = if letting_go { ACKNOWLEDGE_MS } else { self.heartbeat_ms };
        let wait_ms = wait_ms.clamp(1, self.heartbeat_ms.max(1));
        let sync = ComputeNodeSync {
            registration: self.registration,
            after_event: self.after_event,
            released: self.attachments.released(),
            // Nothing is said: addresses are used up by no plan.
            quiet: 0,
            wait_ms,
        };
        self.port.call(Request::SyncComputeNode(self.cn, sync), Duration::from_millis(wait_ms), now, net);
    }

    /// A new process, which has what its state file holds.
    fn restart(&mut self, instance: u64, now: Time, net: &mut ControlNetwork) -> Vec<Change> {
        self.hang_up(now, net);
        self.port.hang_up();
        self.station.instance = instance;
        let file = serde_json::to_vec(&self.attachments).expect("a state file");
        self.attachments = serde_json::from_slice(&file).expect("what was just written");
        self.drains = Drains::default();
        self.tickets.clear();
        self.moving.clear();
        self.pause(now);
        self.attachments.begin()
    }
}

impl ComputeNode {
    /// Whether it has followed a manager, and has all that this store has to tell it.
    pub fn has_followed(&self, state: &State) -> bool {
        self.managed.as_ref().is_some_and(|managed| managed.has_followed(state))
    }

    /// How far it has followed the manager.
    pub fn seen(&self) -> Option<Watermark> {
        self.managed.as_ref().map(|managed| managed.attachments.seen())
    }

    /// The process was killed, and another one is there: it goes by its state file.
    pub(super) fn restart_managed(&mut self, now: Time, net: &mut ControlNetwork) {
        let instance = self.requesters[0].instance;
        let Some(managed) = &mut self.managed else { return };
        let changes = managed.restart(instance, now, net);
        let attached = self.layout.remove(0..u64::MAX);
        self.give_up(&attached);
        changes.into_iter().for_each(|change| self.obey(change, now));
    }

    /// Does what is due for the manager.
    pub fn follow(&mut self, now: Time, net: &mut ControlNetwork) {
        if let Some(managed) = self.managed.as_mut().filter(|_| now >= self.paused_until) {
            managed.work(now, net);
        }
    }

    /// An answer of the manager has arrived.
    pub fn hear(&mut self, call: u64, answer: Answer, now: Time, net: &mut ControlNetwork) {
        let Some(managed) = &mut self.managed else { return };
        let changes = managed.hear(call, answer, now, net);
        changes.into_iter().for_each(|change| self.obey(change, now));
        if let Some(managed) = &mut self.managed
            && managed.doing == Doing::Syncing
            && !managed.port.is_calling()
        {
            managed.sync(now, net);
        }
    }

    /// Whether it has heard of everything that the manager has to say, and done it.
    pub fn is_quiet(&self, around: Surroundings<'_>) -> bool {
        let Some(managed) = &self.managed else { return true };
        let node = around.state.and_then(|state| state.compute_nodes.get(&managed.cn));
        node.is_some_and(|node| {
            node.registration == managed.registration && managed.is_quiet(node.regions_event)
        })
    }

    /// Its regions as it knows them agree with what the manager has committed.
    ///
    /// # Errors
    /// What does not.
    pub fn check_regions(&self, around: Surroundings<'_>) -> Result<(), Broken> {
        let (Some(managed), Some(state)) = (&self.managed, around.state) else { return Ok(()) };
        let broken = |why: String| Err(Broken::Rule(format!("{}: {why}", managed.name)));
        let listed = managed.attachments.list();
        let own: Vec<_> = state.regions.values().filter(|region| region.owner == managed.cn).collect();
        // One that was disabled before its owner heard of it has no addresses there yet.
        let usable = |region: &&&Region| region.state != RegionState::Disabled;
        for region in own.iter().filter(usable) {
            let known = listed.iter().find(|known| known.region == region.name.as_str());
            let Some(known) = known else {
                return broken(format!("region {} is unknown to its owner", region.name));
            };
            if (known.size, known.state.as_str()) != (region.size, region.state.to_string().as_str()) {
                let (size, state) = (known.size, &known.state);
                return broken(format!(
                    "region {} has {size} bytes and is {state} here; {} and {} at the manager",
                    region.name, region.size, region.state
                ));
            }
        }
        if let Some(known) = listed.iter().find(|known| !own.iter().any(|r| known.region == r.name.as_str()))
        {
            return broken(format!("region {} is there still, and the manager has none", known.region));
        }
        Ok(())
    }
}

/// The name of a compute node.
pub(crate) fn name(index: usize) -> Name {
    Name::new(format!("cn{index}")).expect("letters and digits")
}

/// The keys of a compute node that is configured so, as if it had been told all memory nodes'.
fn keys_of(config: &RequesterConfig) -> StationKeys {
    let mut keys = StationKeys::none(0.into());
    if let Some(pair) = &config.keys {
        keys.own = Some(Arc::clone(&pair.own));
        keys.epoch_ns = pair.epoch_ns;
        keys.named = (0..MNS_MAX).map(trace::Name::mn).map(|mac| (mac, key_of(mac).public())).collect();
    }
    keys
}

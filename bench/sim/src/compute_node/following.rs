//! A compute node's connection to the simulated manager: the messages come from [`Follow`], the code that `cn-agent`
//! uses. The state file survives the end of the process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cxloe_cn_core::attach::{SessionKeys, SessionSettings};
use cxloe_cn_core::attachments::{AttachmentChange, Attachments};
use cxloe_cn_core::drain::Drains;
use cxloe_cn_core::engine::Engine;
use cxloe_cn_core::follow::{Follow, ManagerAnswer as Followed, ManagerRequest as Asked};
use cxloe_cn_core::quiet::QuietMark;
use cxloe_fabric::api::{ErrorCode, RegisterComputeNode};
use cxloe_fabric::model::{CnId, Name, Region, RegionState, Watermark};
use cxloe_gmm_core::manager::FabricState;
use cxloe_gmm_core::manager::liveness::NodeKey;
use cxloe_wire::frame::ETHERTYPE_DEFAULT;
use cxloe_wire::machine::{ContractBreach, StateMachine};
use cxloe_wire::random::Random;
use cxloe_wire::session::RequesterConfig;
use cxloe_wire::time::Time;

use super::ComputeNode;
use crate::control::message::{Caller, ControlMessage, ManagerCall, ManagerReply};
use crate::control::network::ControlNetwork;
use crate::control::port::Port;
use crate::node_context::NodeContext;
use crate::node_keys::key_of;
use crate::planted_fault::PlantedFault;
use crate::trace::{self, Trace};
use crate::violation::InvariantViolation;

/// Maximum time from a failed attempt to reach the manager to the next attempt.
const AGAIN: Duration = Duration::from_millis(3);

/// Maximum number of memory nodes in a run.
const MNS_MAX: usize = 16;

/// A compute node's connection to the manager, and the regions that the manager has assigned to the node.
pub(super) struct Managed {
    pub attachments: Attachments,
    pub drains: Drains,
    pub station: SessionSettings,
    /// Regions being released: the manager's ticket, the first address and the number of bytes of each.
    pub tickets: VecDeque<(u64, u64, u64)>,
    /// Regions being moved or released: first address, and the time at which that began.
    pub moving: Vec<(u64, Time)>,
    pub mistake: Option<PlantedFault>,
    port: Port,
    follow: Follow,
    /// Time until which the node waits before it registers with the manager.
    paused_until: Option<Time>,
    quiet_mark: QuietMark,
    /// Number of the newest applied event such that all operations in flight at its application have ended.
    quiet: u64,
    /// Number of the last event that the node has applied.
    told_event: u64,
    random: Random,
    trace: Trace,
}

impl Managed {
    pub fn new(index: usize, config: &RequesterConfig, random: Random, trace: Trace) -> Managed {
        let own = config.identity.own;
        Managed {
            attachments: Attachments::default(),
            drains: Drains::default(),
            station: SessionSettings {
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
            port: Port::new(Caller::Cn(index)),
            follow: Follow::new(RegisterComputeNode {
                cn_id: CnId::new(own.0).expect("a unicast address"),
                name: name(index),
                udp: None,
                key: None,
                new_key: false,
                instance_id: config.instance,
                seen: Watermark::default(),
            }),
            paused_until: Some(Time::ZERO),
            quiet_mark: QuietMark::default(),
            quiet: 0,
            told_event: 0,
            random,
            trace,
        }
    }

    pub fn plant(&mut self, mistake: PlantedFault) {
        self.mistake = Some(mistake);
    }

    fn hang_up(&self, now: Time, net: &mut ControlNetwork) {
        if self.follow.is_syncing() {
            net.send(now, ControlMessage::HungUp(NodeKey::Compute(self.cn()), self.follow.registration()));
        }
    }

    fn cn(&self) -> CnId {
        self.follow.node().cn_id
    }

    fn name(&self) -> &Name {
        &self.follow.node().name
    }

    fn pause(&mut self, now: Time) {
        let pause = self.random.below(AGAIN.as_nanos() as u64);
        self.follow.restart();
        self.paused_until = Some(now + Duration::from_nanos(pause));
    }

    /// Returns the time at which the node next calls the manager, or abandons a call.
    pub fn deadline(&self) -> Option<Time> {
        self.paused_until.or(self.port.deadline())
    }

    /// Returns true if the node has a region, and has received the latest change of its regions in the manager's store
    /// `state`. Such a node refuses a manager that lacks this change.
    pub fn has_followed(&self, state: &FabricState) -> bool {
        let after_event = self.follow.after_event();
        let announced = state.compute_nodes.get(&self.cn()).is_some_and(|cn| cn.regions_event == after_event);
        announced && self.attachments.seen().run != 0
    }

    /// Describes the connection, for the message about a run that does not end.
    pub fn state(&self) -> String {
        let letting_go = self.attachments.is_draining();
        format!("{:?}, letting go {letting_go}, drains {}", self.follow, !self.drains.is_empty())
    }

    /// Returns true if the node has received all events up to `last_event` and has no request left to send.
    pub fn is_quiet(&self, last_event: u64) -> bool {
        self.follow.is_syncing()
            && self.follow.after_event() == last_event
            && self.drains.is_empty()
            && !self.attachments.is_draining()
            && self.attachments.released().is_empty()
    }

    fn work(&mut self, now: Time, net: &mut ControlNetwork) {
        if self.port.has_given_up(now) {
            self.trace.log(now, self.name(), || "has no contact with the manager".into());
            self.hang_up(now, net);
            return self.pause(now);
        }
        if self.paused_until.is_some_and(|at| now >= at) {
            self.paused_until = None;
            self.ask(now, net);
        }
    }

    /// Sends the next request to the manager: to register, to refuse the manager, or to sync.
    fn ask(&mut self, now: Time, net: &mut ControlNetwork) {
        let (request, wait) = match self.follow.next(&self.attachments, self.quiet) {
            Asked::Register(node) => (ManagerCall::RegisterComputeNode(node), Duration::ZERO),
            Asked::NotFollowed(body) => (ManagerCall::NotFollowed(body), Duration::ZERO),
            Asked::Sync(sync) => {
                let wait = Duration::from_millis(sync.wait_ms);
                (ManagerCall::SyncComputeNode(self.cn(), sync), wait)
            }
        };
        // The planted fault `TakesOldAnswers` accepts an old answer, so the call for the new answer may still be in
        // progress.
        if !self.port.is_calling() {
            self.port.call(request, wait, now, net);
        }
    }

    /// Handles an answer from the manager; returns the region changes in it if the node accepts the answer.
    fn handle(&mut self, call: u64, answer: ManagerReply, now: Time) -> Option<Vec<AttachmentChange>> {
        // With this planted fault, the node accepts any answer as the answer to its last call.
        let mistaken = self.mistake == Some(PlantedFault::TakesOldAnswers)
            && self.follow.is_syncing()
            && matches!(answer, ManagerReply::ComputeNodeSynced(_));
        let takes = self.port.takes(call) || mistaken;
        if !takes {
            return None;
        }
        let followed = match answer {
            ManagerReply::ComputeNodeRegistered(answer) => Followed::Registered(answer),
            ManagerReply::ComputeNodeSynced(mut synced) => {
                if mistaken {
                    // The planted fault concerns only the region changes in the old answer: the node's watermark does
                    // not go back.
                    synced.after_event = synced.after_event.max(self.follow.after_event());
                }
                Followed::Synced(synced)
            }
            ManagerReply::Refused(ErrorCode::StaleManager, _) => Followed::Stale,
            ManagerReply::Done => Followed::Done,
            _ => {
                self.pause(now);
                return None;
            }
        };
        match self.follow.on_answer(followed, &mut self.attachments) {
            Ok(changes) => Some(changes),
            Err(halt) => {
                self.trace.log(now, self.name(), || format!("does not follow: {halt}"));
                self.pause(now);
                None
            }
        }
    }

    /// Records that all received events are applied. When the operations that are now in flight have ended, the node
    /// reports to the manager that the last of these events is quiet.
    pub fn followed(&mut self, engine: &mut Engine) {
        if self.told_event != self.follow.after_event() {
            self.told_event = self.follow.after_event();
            self.quiet_mark.follow(self.told_event);
        }
        self.poll_quiet(engine);
    }

    /// Checks whether the operations that were in flight at the last call of [`followed`](Self::followed) have ended.
    pub fn poll_quiet(&mut self, engine: &mut Engine) {
        self.quiet = self.quiet_mark.poll(engine).unwrap_or(self.quiet);
    }

    /// Starts a new process from the content of its state file, and returns the region changes by which it
    /// attaches its regions.
    fn restart(&mut self, instance: u64, now: Time, net: &mut ControlNetwork) -> Vec<AttachmentChange> {
        self.hang_up(now, net);
        self.port.hang_up();
        self.station.instance = instance;
        self.follow.node_mut().instance_id = instance;
        (self.quiet, self.told_event, self.quiet_mark) = (0, 0, QuietMark::default());
        // The state passes through the format of its file, as it does between real processes.
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
    /// Checks that the node's connection to the manager, unless it pauses, has sent what is to be sent.
    ///
    /// # Errors
    /// Returns the breach of the contract of machines.
    pub fn check_machines(&self) -> Result<(), InvariantViolation> {
        let managed = self.program.managed.as_ref().filter(|managed| managed.paused_until.is_none());
        let Some(left) = managed.and_then(|managed| managed.follow.undrained()) else { return Ok(()) };
        let (name, breach) = (trace::Name(self.mac), ContractBreach::Undrained(left));
        Err(InvariantViolation::Rule(format!("{name} {breach}")))
    }

    /// Returns true if a manager controls the node, and the node has a region and has received the latest change of its
    /// regions in the store `state`.
    pub fn has_followed(&self, state: &FabricState) -> bool {
        self.program.managed.as_ref().is_some_and(|managed| managed.has_followed(state))
    }

    /// Returns the watermark of the events that the node has received; `None` if no manager controls the node.
    pub fn seen(&self) -> Option<Watermark> {
        self.program.managed.as_ref().map(|managed| managed.attachments.seen())
    }

    /// Replaces the killed process by a new one with the same state file.
    pub(super) fn restart_managed(&mut self, now: Time, net: &mut ControlNetwork) {
        let instance = self.requesters[0].instance;
        let Some(managed) = &mut self.program.managed else { return };
        let changes = managed.restart(instance, now, net);
        let attached = self.program.layout.remove(0..u64::MAX);
        self.program.give_up(&attached);
        changes.into_iter().for_each(|change| self.program.apply_change(&mut self.engine, change, now));
    }

    /// Sends the requests to the manager that are due, unless the node is paused.
    pub fn follow(&mut self, now: Time, net: &mut ControlNetwork) {
        if let Some(managed) = self.program.managed.as_mut().filter(|_| now >= self.paused_until) {
            managed.work(now, net);
        }
    }

    /// Handles an answer from the manager, and wakes the worker to apply the region changes in it.
    pub fn handle(&mut self, call: u64, answer: ManagerReply, now: Time, net: &mut ControlNetwork) {
        let Some(managed) = &mut self.program.managed else { return };
        let Some(changes) = managed.handle(call, answer, now) else { return };
        self.program.orders.get_or_insert_default().extend(changes);
        self.waking.wake();
        managed.ask(now, net);
    }

    /// Returns true if the node has received and applied all of the manager's events.
    pub fn is_quiet(&self, around: NodeContext<'_>) -> bool {
        let Some(managed) = &self.program.managed else { return true };
        let node = around.state.and_then(|state| state.compute_nodes.get(&managed.cn()));
        self.program.orders.is_none()
            && node.is_some_and(|node| {
                node.registration == managed.follow.registration() && managed.is_quiet(node.regions_event)
            })
    }

    /// Checks that the node's regions are those in the manager's committed state.
    ///
    /// # Errors
    /// Returns the disagreement.
    pub fn check_regions(&self, around: NodeContext<'_>) -> Result<(), InvariantViolation> {
        let (Some(managed), Some(state)) = (&self.program.managed, around.state) else { return Ok(()) };
        let broken = |why: String| Err(InvariantViolation::Rule(format!("{}: {why}", managed.name())));
        let listed = managed.attachments.list();
        let own: Vec<_> = state.regions.values().filter(|region| region.owner == managed.cn()).collect();
        // A region may be disabled before its owner has received it; its owner then has no address for the region.
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

pub(crate) fn name(index: usize) -> Name {
    Name::new(format!("cn{index}")).expect("letters and digits")
}

/// Returns the key of a compute node with this configuration, and the public keys of all memory nodes.
fn keys_of(config: &RequesterConfig) -> SessionKeys {
    let mut keys = SessionKeys::none(0.into());
    if let Some(pair) = &config.keys {
        keys.own = Some(Arc::clone(&pair.own));
        keys.epoch_ns = pair.epoch_ns;
        keys.named = (0..MNS_MAX).map(trace::Name::mn).map(|mac| (mac, key_of(mac).public())).collect();
    }
    keys
}

//! A compute node's control: its connection to the simulated manager, whose messages come from [`Follow`], the code that
//! `cn-agent` uses; and the orders to its workers, divided as `cn-agent` divides them ([`cxloe_cn_core::workers`]). The
//! state file survives the end of the process.

use std::time::Duration;

use cxloe_cn_core::attachments::{AttachmentChange, Attachments, worker_of};
use cxloe_cn_core::follow::{Follow, ManagerAnswer as Followed, ManagerRequest as Asked};
use cxloe_cn_core::workers::{orders_for, quiet_event};
use cxloe_fabric::api::{ErrorCode, RegisterComputeNode};
use cxloe_fabric::model::{CnId, Name, Region, RegionState, Watermark};
use cxloe_gmm_core::manager::FabricState;
use cxloe_gmm_core::manager::liveness::NodeKey;
use cxloe_wire::machine::{ContractBreach, StateMachine};
use cxloe_wire::random::Random;
use cxloe_wire::session::RequesterConfig;
use cxloe_wire::time::Time;

use super::ComputeNode;
use super::managed::{Managed, Order};
use crate::control::message::{Caller, ControlMessage, ManagerCall, ManagerReply};
use crate::control::network::ControlNetwork;
use crate::control::port::Port;
use crate::node_context::NodeContext;
use crate::planted_fault::PlantedFault;
use crate::trace::{self, Trace};
use crate::violation::InvariantViolation;

/// Maximum time from a failed attempt to reach the manager to the next attempt.
const AGAIN: Duration = Duration::from_millis(3);

/// A compute node's connection to the manager, and the regions that the manager has assigned to the node.
pub(super) struct Control {
    attachments: Attachments,
    workers: usize,
    mistake: Option<PlantedFault>,
    port: Port,
    follow: Follow,
    /// Time until which the node waits before it registers with the manager.
    paused_until: Option<Time>,
    /// Number of the newest event that is quiet at all workers.
    quiet: u64,
    random: Random,
    trace: Trace,
}

impl Control {
    /// Makes the control of the node with this index, which has `workers` workers.
    pub fn new(
        index: usize,
        workers: usize,
        config: &RequesterConfig,
        random: Random,
        trace: Trace,
    ) -> Control {
        let mut attachments = Attachments::default();
        attachments.set_workers(workers);
        Control {
            attachments,
            workers,
            mistake: None,
            port: Port::new(Caller::Cn(index)),
            follow: Follow::new(RegisterComputeNode {
                cn_id: CnId::new(config.identity.own.0).expect("a unicast address"),
                name: name(index),
                udp: None,
                key: None,
                new_key: false,
                instance_id: config.instance,
                seen: Watermark::default(),
            }),
            paused_until: Some(Time::ZERO),
            quiet: 0,
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
        format!("{:?}, letting go {}", self.follow, self.attachments.is_draining())
    }

    /// Returns true if the node has received all events up to `last_event` and has no request left to send.
    pub fn is_quiet(&self, last_event: u64) -> bool {
        self.follow.is_syncing()
            && self.follow.after_event() == last_event
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

    /// Starts a new process from the content of its state file, and returns the region changes by which it
    /// attaches its regions.
    fn restart(&mut self, instance: u64, now: Time, net: &mut ControlNetwork) -> Vec<AttachmentChange> {
        self.hang_up(now, net);
        self.port.hang_up();
        self.follow.node_mut().instance_id = instance;
        self.quiet = 0;
        // The state passes through the format of its file, as it does between real processes.
        let file = serde_json::to_vec(&self.attachments).expect("a state file");
        self.attachments = serde_json::from_slice(&file).expect("what was just written");
        self.attachments.set_workers(self.workers);
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
        let control = self.control.as_ref().filter(|control| control.paused_until.is_none());
        let Some(left) = control.and_then(|control| control.follow.undrained()) else { return Ok(()) };
        let (name, breach) = (trace::Name(self.mac), ContractBreach::Undrained(left));
        Err(InvariantViolation::Rule(format!("{name} {breach}")))
    }

    /// Returns true if a manager controls the node, and the node has a region and has received the latest change of its
    /// regions in the store `state`.
    pub fn has_followed(&self, state: &FabricState) -> bool {
        self.control.as_ref().is_some_and(|control| control.has_followed(state))
    }

    /// Returns the watermark of the events that the node has received; `None` if no manager controls the node.
    pub fn seen(&self) -> Option<Watermark> {
        self.control.as_ref().map(|control| control.attachments.seen())
    }

    /// Replaces the killed process by a new one with the same state file.
    pub(super) fn restart_managed(&mut self, now: Time, net: &mut ControlNetwork) {
        let instance = self.parameters.requesters[0].instance;
        let Some(control) = &mut self.control else { return };
        let changes = control.restart(instance, now, net);
        for program in self.workers.iter_mut().map(|worker| &mut worker.program) {
            program.managed.iter_mut().for_each(|managed| managed.restart(instance));
            let attached = program.layout.remove(0..u64::MAX);
            program.give_up(&attached);
        }
        for (worker, order) in changes.iter().flat_map(|change| self.orders_for(change)).collect::<Vec<_>>() {
            self.workers[worker].carry_out(order, now);
        }
        self.take_results();
    }

    /// Returns the orders by which workers carry out a change, each with the number of its worker.
    fn orders_for(&self, change: &AttachmentChange) -> Vec<(usize, Order)> {
        let workers = self.workers.len();
        let orders = orders_for(change, workers).map(|(worker, order)| (worker, Order::from(order)));
        let mut orders: Vec<_> = orders.collect();
        let mistake = self.control.as_ref().and_then(|control| control.mistake);
        if workers > 1
            && mistake == Some(PlantedFault::SharesRegions)
            && let Some(attachment) = change.attachment()
        {
            // With this planted fault, a second worker gets the region too.
            let second = (worker_of(attachment.hpa, workers) + 1) % workers;
            orders.push((second, Order::Apply(change.clone())));
        }
        orders
    }

    /// Takes the workers' results: the regions that they have drained, and the event that is quiet at all of them.
    pub(super) fn take_results(&mut self) {
        let Some(control) = &mut self.control else { return };
        let managed = self.workers.iter().filter_map(|worker| worker.program.managed.as_ref());
        control.quiet = quiet_event(managed.map(Managed::quiet));
        let managed = self.workers.iter_mut().filter_map(|worker| worker.program.managed.as_mut());
        for ticket in managed.flat_map(|managed| managed.drained.drain(..)) {
            control.attachments.drained(ticket);
        }
    }

    /// Sends the requests to the manager that are due, unless the node is paused.
    pub fn follow(&mut self, now: Time, net: &mut ControlNetwork) {
        if let Some(control) = self.control.as_mut().filter(|_| now >= self.paused_until) {
            control.work(now, net);
        }
    }

    /// Handles an answer from the manager, and wakes the workers to carry out the orders that follow from it.
    pub fn handle(&mut self, call: u64, answer: ManagerReply, now: Time, net: &mut ControlNetwork) {
        let Some(control) = &mut self.control else { return };
        let Some(changes) = control.handle(call, answer, now) else { return };
        let event = control.follow.after_event();
        control.ask(now, net);
        for (worker, order) in changes.iter().flat_map(|change| self.orders_for(change)).collect::<Vec<_>>() {
            self.workers[worker].program.orders.get_or_insert_default().waiting.push(order);
        }
        for worker in &mut self.workers {
            worker.program.orders.get_or_insert_default().event = event;
            worker.waking.wake();
        }
    }

    /// Returns true if the node has received and applied all of the manager's events.
    pub fn is_quiet(&self, around: NodeContext<'_>) -> bool {
        let Some(control) = &self.control else { return true };
        let node = around.state.and_then(|state| state.compute_nodes.get(&control.cn()));
        let mut programs = self.workers.iter().map(|worker| &worker.program);
        programs.all(|program| {
            let drains = |managed: &Managed| !managed.drains.is_empty();
            program.orders.is_none() && !program.managed.as_ref().is_some_and(drains)
        }) && node.is_some_and(|node| {
            node.registration == control.follow.registration() && control.is_quiet(node.regions_event)
        })
    }

    /// Checks that the node's regions are those in the manager's committed state.
    ///
    /// # Errors
    /// Returns the disagreement.
    pub fn check_regions(&self, around: NodeContext<'_>) -> Result<(), InvariantViolation> {
        let (Some(control), Some(state)) = (&self.control, around.state) else { return Ok(()) };
        let broken = |why: String| Err(InvariantViolation::Rule(format!("{}: {why}", control.name())));
        let listed = control.attachments.list();
        let own: Vec<_> = state.regions.values().filter(|region| region.owner == control.cn()).collect();
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

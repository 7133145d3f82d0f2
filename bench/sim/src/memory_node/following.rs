//! A memory node's connection to the simulated manager. Messages and jobs come from the production code, [`Follow`].
//! The node's watermark (the last event received from the manager) survives the process.

use std::time::Duration;

use cxloe_fabric::api::{ErrorCode, RegisterMemoryNode};
use cxloe_fabric::model::{DeviceKind, Mapping, Name, NodeAction, Watermark};
use cxloe_gmm_core::manager::liveness::NodeKey;
use cxloe_mn_core::follow::{Follow, FollowStep, ManagerAnswer as Followed, ManagerRequest as Asked};
use cxloe_mn_core::job::Job;
use cxloe_mn_core::mappings::Mappings;
use cxloe_mn_core::pool::{MpAddr, MpExtent};
use cxloe_wire::frame::{LINE_SIZE, Mac};
use cxloe_wire::machine::StateMachine;
use cxloe_wire::random::Random;
use cxloe_wire::time::Time;

use crate::control::message::{Caller, ControlMessage, ManagerCall, ManagerReply};
use crate::control::network::ControlNetwork;
use crate::control::port::Port;
use crate::planted_fault::PlantedFault;
use crate::trace::Trace;

/// Maximum time from a failed attempt to reach the manager to the next attempt.
const AGAIN: Duration = Duration::from_millis(3);
/// Maximum duration of a job, such as zeroing; the actual one is drawn.
const JOB: Duration = Duration::from_millis(2);
/// Interval between two checks whether a job may be carried out.
const DUE_AGAIN: Duration = Duration::from_micros(20);

/// Event that the connection waits for.
#[derive(Debug)]
enum Waiting {
    /// End of a pause before the next attempt.
    Pause(Time),
    /// The manager's answer to the pending call.
    Answer,
    /// Virtual time at which the job is carried out.
    Job(Job, Time),
}

pub(super) struct Following {
    port: Port,
    follow: Follow,
    /// Watermark of the events that the node has received, kept in the node's state file.
    pub seen: Watermark,
    waiting: Waiting,
    random: Random,
    mistake: Option<PlantedFault>,
    /// The last mapping made, for the planted fault of executing commands twice.
    mapped: Option<Mapping>,
    trace: Trace,
}

/// Properties of the node that a new process may change; the node sends them when it registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Introduction {
    pub mac: Mac,
    pub incarnation: u64,
}

impl Following {
    pub fn new(index: usize, kind: DeviceKind, random: Random, trace: Trace) -> Following {
        let node = RegisterMemoryNode {
            name: name(index),
            kind,
            macs: Vec::new(),
            udp: None,
            key: None,
            rack: None,
            pool_bytes: 0,
            extent_bytes: 0,
            incarnation: 0,
            instance_id: 1,
            started_ms: 1,
            mtu: 1500,
            seen: Watermark::default(),
        };
        Following {
            port: Port::new(Caller::Mn(index)),
            follow: Follow::new(node),
            seen: Watermark::default(),
            waiting: Waiting::Pause(Time::ZERO),
            random,
            mistake: None,
            mapped: None,
            trace,
        }
    }

    pub fn plant(&mut self, mistake: PlantedFault) {
        self.mistake = Some(mistake);
    }

    fn name(&self) -> &Name {
        &self.follow.node().name
    }

    /// Starts a new process; the old process's connection to the manager breaks.
    pub fn restart(&mut self, now: Time, net: &mut ControlNetwork) {
        self.hang_up(now, net);
        self.port.hang_up();
        let node = self.follow.node_mut();
        node.instance_id += 1;
        node.started_ms = node.instance_id;
        self.mapped = None;
        self.pause(now);
    }

    fn hang_up(&self, now: Time, net: &mut ControlNetwork) {
        if self.follow.syncing().is_some() {
            let node = NodeKey::Memory(self.name().clone());
            net.send(now, ControlMessage::HungUp(node, self.follow.registration()));
        }
    }

    /// Schedules the next attempt to reach the manager, which begins with a registration.
    fn pause(&mut self, now: Time) {
        let pause = self.random.below(AGAIN.as_nanos() as u64);
        self.follow.restart();
        self.waiting = Waiting::Pause(now + Duration::from_nanos(pause));
    }

    /// Returns the time of the connection's next action.
    pub fn deadline(&self) -> Option<Time> {
        match &self.waiting {
            Waiting::Pause(at) | Waiting::Job(_, at) => Some(*at),
            Waiting::Answer => self.port.deadline(),
        }
    }

    /// Names what the connection should have done; `None` if it waits for an answer or a job, or pauses.
    pub fn undrained(&self) -> Option<&'static str> {
        self.follow.undrained().filter(|_| !matches!(self.waiting, Waiting::Pause(_)))
    }

    /// Returns true if no job and no report to the manager is left.
    pub fn is_quiet(&self, mappings: &Mappings) -> bool {
        self.follow.syncing() == Some(0) && self.port.is_calling() && mappings.results().is_empty()
    }

    /// Performs the actions that are due: ends jobs, abandons calls, starts the next job or call.
    pub fn work(
        &mut self,
        mappings: &mut Mappings,
        introduction: Introduction,
        now: Time,
        net: &mut ControlNetwork,
    ) {
        if self.port.has_given_up(now) {
            self.trace.log(now, self.name(), || "has no contact with the manager".into());
            self.hang_up(now, net);
            return self.pause(now);
        }
        match &mut self.waiting {
            Waiting::Pause(at) if now >= *at => {
                self.introduce(mappings, introduction);
                self.advance(mappings, now, net);
            }
            Waiting::Job(job, at) if now >= *at && !job.is_due(mappings.table()) => *at = now + DUE_AGAIN,
            Waiting::Job(_, at) if now >= *at => {
                if let Waiting::Job(job, _) = std::mem::replace(&mut self.waiting, Waiting::Answer) {
                    self.carry_out(job, mappings);
                    self.advance(mappings, now, net);
                }
            }
            _ => {}
        }
    }

    fn introduce(&mut self, mappings: &Mappings, introduction: Introduction) {
        let (pool, node) = (mappings.table().pool(), self.follow.node_mut());
        node.macs = vec![introduction.mac];
        node.incarnation = introduction.incarnation;
        (node.pool_bytes, node.extent_bytes) = (pool.bytes(), pool.extent_bytes());
    }

    fn carry_out(&mut self, job: Job, mappings: &mut Mappings) {
        let outcome = match self.mistake {
            Some(PlantedFault::SkipsZeroing) => Ok(()),
            _ => job.carry_out(mappings.table(), |_| true, || ()),
        };
        self.follow.on_job(job, outcome, mappings);
    }

    /// Handles an answer from the manager; ignores one to an abandoned call.
    pub fn handle(
        &mut self,
        call: u64,
        answer: ManagerReply,
        mappings: &mut Mappings,
        now: Time,
        net: &mut ControlNetwork,
    ) {
        if !self.port.takes(call) {
            return;
        }
        let followed = match answer {
            ManagerReply::MemoryNodeRegistered(answer) => {
                if self.mistake == Some(PlantedFault::ZeroesUnlisted) {
                    zero(mappings, answer.unowned.iter());
                }
                Followed::Registered(answer)
            }
            ManagerReply::MemoryNodeSynced(synced) => Followed::Synced(synced),
            ManagerReply::Refused(ErrorCode::StaleManager, _) => Followed::Stale,
            ManagerReply::Done => Followed::Done,
            _ => return self.pause(now),
        };
        match self.follow.on_answer(followed, mappings, millis(now)) {
            Ok(news) => {
                self.seen = news.map_or(self.seen, |news| news.seen);
                self.advance(mappings, now, net);
            }
            Err(halt) => {
                self.trace.log(now, self.name(), || format!("does not follow: {halt}"));
                self.pause(now);
            }
        }
    }

    /// Starts the next job or, if there is none, calls the manager.
    fn advance(&mut self, mappings: &mut Mappings, now: Time, net: &mut ControlNetwork) {
        match self.follow.next(mappings, millis(now)) {
            Ok(FollowStep::CarryOut(job)) => {
                self.map_twice(&job, mappings);
                let takes = self.random.below(JOB.as_nanos() as u64);
                self.waiting = Waiting::Job(job, now + Duration::from_nanos(takes));
            }
            Ok(FollowStep::Ask(asked)) => {
                let (request, wait) = self.request(asked);
                self.port.call(request, wait, now, net);
                self.waiting = Waiting::Answer;
            }
            Err(halt) => {
                self.trace.log(now, self.name(), || format!("does not follow: {halt}"));
                self.pause(now);
            }
        }
    }

    /// Returns a request as a call, and the time for which the manager may wait before it answers.
    fn request(&self, asked: Asked) -> (ManagerCall, Duration) {
        let name = self.name().clone();
        match asked {
            Asked::Register(mut node) => {
                if self.mistake == Some(PlantedFault::ZeroesUnlisted) {
                    node.seen = Watermark::default();
                }
                (ManagerCall::RegisterMemoryNode(node), Duration::ZERO)
            }
            Asked::NotFollowed(body) => (ManagerCall::NotFollowed(body), Duration::ZERO),
            Asked::ReportOrphans(report) => (ManagerCall::ReportOrphans(name, report), Duration::ZERO),
            Asked::Sync(sync) => {
                let wait = Duration::from_millis(sync.wait_ms);
                (ManagerCall::SyncMemoryNode(name, sync), wait)
            }
        }
    }

    /// Plants a fault: before the next job, executes the last map command a second time, and thereby zeroes memory in
    /// use.
    fn map_twice(&mut self, next: &Job, mappings: &Mappings) {
        let Some(command) =
            next.node_command().filter(|_| self.mistake == Some(PlantedFault::RepeatsCommands))
        else {
            return;
        };
        let mapped = self.mapped.take();
        zero(mappings, mapped.iter().flat_map(|mapping| mapping.extents.iter()));
        if let NodeAction::MapCmem(mapping) = &command.action {
            self.mapped = Some(mapping.clone());
        }
    }
}

/// Returns the virtual time in milliseconds, as the production code counts it.
fn millis(now: Time) -> u64 {
    now.since(Time::ZERO).as_millis() as u64
}

/// Zeroes extents without the check of the production code that they are unmapped.
fn zero(mappings: &Mappings, extents: impl Iterator<Item = u64>) {
    let pool = mappings.table().pool();
    for extent in extents {
        let start = pool.extent_start(MpExtent(extent as u32));
        let lines = pool.extent_bytes() / LINE_SIZE as u64;
        (0..lines).for_each(|line| {
            pool.write_lines(MpAddr(start.0 + line * LINE_SIZE as u64), &[0; LINE_SIZE]);
        });
    }
}

pub(crate) fn name(index: usize) -> Name {
    Name::new(format!("mn{index}")).expect("letters and digits")
}

//! How a memory node follows the manager: it registers, carries out commands, and reports results, as the link to the
//! manager of `mn-server` does, around the same decisions. What outlives the process is how far the manager had come.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use cxloe_fabric::api::{
    ErrorCode, MemoryNodeRegistered, MemoryNodeSync, MemoryNodeSynced, NotFollowed, Party,
    RegisterMemoryNode, ReportOrphans,
};
use cxloe_fabric::model::{DeviceKind, Mapping, Name, NodeAction, NodeCommand, Watermark};
use cxloe_gmm::manager::liveness::NodeKey;
use cxloe_mn::control::{Job, Mappings, Refusal};
use cxloe_mn::pool::{MpAddr, MpExtent};
use cxloe_wire::frame::{LINE_SIZE, Mac};
use cxloe_wire::random::Random;
use cxloe_wire::time::Time;

use crate::control::message::{Answer, Caller, Message, Request};
use crate::control::network::ControlNetwork;
use crate::control::port::Port;
use crate::mistake::Mistake;
use crate::trace::Trace;

/// From one try to reach the manager to the next, at most.
const AGAIN: Duration = Duration::from_millis(3);
/// What a job takes, at most.
const JOB: Duration = Duration::from_millis(2);

/// What the node is waiting for.
#[derive(Debug)]
enum Doing {
    /// For a while to pass before it registers.
    Pause(Time),
    /// For the answer to its registration.
    Registering,
    /// For the manager to hear that it does not follow.
    Refusing,
    /// For a job to be done, which it is then.
    Job(Job, Time),
    /// For the manager to hear of its orphans.
    Reporting,
    /// For commands; with each call go so many results.
    Syncing(usize),
}

/// A memory node's link to the manager.
pub(super) struct Following {
    port: Port,
    name: Name,
    kind: DeviceKind,
    instance: u64,
    /// Kept in its state file.
    pub seen: Watermark,
    doing: Doing,
    registration: u64,
    heartbeat: Duration,
    commands: VecDeque<NodeCommand>,
    random: Random,
    mistake: Option<Mistake>,
    /// What was mapped last, for those who do so twice.
    mapped: Option<Mapping>,
    trace: Trace,
}

/// What the node's own state is, as it registers with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Introduction {
    pub mac: Mac,
    pub incarnation: u64,
}

impl Following {
    pub fn new(index: usize, kind: DeviceKind, random: Random, trace: Trace) -> Following {
        Following {
            port: Port::new(Caller::Mn(index)),
            name: name(index),
            kind,
            instance: 1,
            seen: Watermark::default(),
            doing: Doing::Pause(Time::ZERO),
            registration: 0,
            heartbeat: Duration::ZERO,
            commands: VecDeque::new(),
            random,
            mistake: None,
            mapped: None,
            trace,
        }
    }

    pub fn plant(&mut self, mistake: Mistake) {
        self.mistake = Some(mistake);
    }

    /// A new process; its connection to the manager breaks.
    pub fn restart(&mut self, now: Time, net: &mut ControlNetwork) {
        self.hang_up(now, net);
        self.port.hang_up();
        self.instance += 1;
        self.commands.clear();
        self.mapped = None;
        self.pause(now);
    }

    fn hang_up(&self, now: Time, net: &mut ControlNetwork) {
        if matches!(self.doing, Doing::Syncing(_)) {
            net.send(now, Message::HungUp(NodeKey::Memory(self.name.clone()), self.registration));
        }
    }

    /// Tries again soon.
    fn pause(&mut self, now: Time) {
        let pause = self.random.below(AGAIN.as_nanos() as u64);
        self.commands.clear();
        self.doing = Doing::Pause(now + Duration::from_nanos(pause));
    }

    /// When it goes on.
    pub fn deadline(&self) -> Option<Time> {
        match &self.doing {
            Doing::Pause(at) | Doing::Job(_, at) => Some(*at),
            _ => self.port.deadline(),
        }
    }

    /// Whether nothing is left to be done for the manager.
    pub fn is_quiet(&self, mappings: &Mappings) -> bool {
        matches!(self.doing, Doing::Syncing(0)) && self.port.is_calling() && mappings.results().is_empty()
    }

    /// Does what is due.
    pub fn work(
        &mut self,
        mappings: &mut Mappings,
        introduction: Introduction,
        now: Time,
        net: &mut ControlNetwork,
    ) {
        if self.port.has_given_up(now) {
            self.trace.say(now, &self.name, || "hears nothing of the manager".into());
            self.hang_up(now, net);
            return self.pause(now);
        }
        match &self.doing {
            Doing::Pause(at) if now >= *at => {
                let request = Request::RegisterMemoryNode(self.register(mappings, introduction));
                self.port.call(request, Duration::ZERO, now, net);
                self.doing = Doing::Registering;
            }
            Doing::Job(_, at) if now >= *at => {
                if let Doing::Job(job, _) = std::mem::replace(&mut self.doing, Doing::Pause(now)) {
                    self.carry_out(job, mappings);
                    self.go_on(mappings, now, net);
                }
            }
            _ => {}
        }
    }

    fn register(&self, mappings: &Mappings, introduction: Introduction) -> RegisterMemoryNode {
        let pool = mappings.table().pool();
        RegisterMemoryNode {
            name: self.name.clone(),
            kind: self.kind,
            macs: vec![introduction.mac],
            udp: None,
            key: None,
            pool_bytes: pool.bytes(),
            extent_bytes: pool.extent_bytes(),
            incarnation: introduction.incarnation,
            instance_id: self.instance,
            started_ms: self.instance,
            mtu: 1500,
            seen: if self.mistake == Some(Mistake::ZeroesUnlisted) {
                Watermark::default()
            } else {
                mappings.seen()
            },
        }
    }

    fn carry_out(&mut self, job: Job, mappings: &mut Mappings) {
        let outcome = if self.mistake == Some(Mistake::SkipsZeroing) {
            Ok(())
        } else {
            job.carry_out(mappings.table(), &AtomicBool::new(false), &AtomicU64::new(0), || ())
        };
        mappings.finish(job, outcome);
    }

    /// An answer has arrived.
    pub fn hear(
        &mut self,
        call: u64,
        answer: Answer,
        mappings: &mut Mappings,
        now: Time,
        net: &mut ControlNetwork,
    ) {
        if !self.port.takes(call) {
            return;
        }
        let followed = match (std::mem::replace(&mut self.doing, Doing::Pause(now)), answer) {
            (Doing::Registering, Answer::MemoryNodeRegistered(answer)) => {
                self.registered(&answer, mappings, now)
            }
            (Doing::Registering, Answer::Refused(ErrorCode::StaleManager, _)) => {
                return self.refuse(mappings, now, net);
            }
            (Doing::Reporting, Answer::Done) => {
                mappings.orphans_reported();
                Some(())
            }
            (Doing::Syncing(reported), Answer::MemoryNodeSynced(synced)) => {
                self.synced(reported, *synced, mappings)
            }
            _ => None,
        };
        match followed {
            Some(()) => self.go_on(mappings, now, net),
            None => self.pause(now),
        }
    }

    fn registered(
        &mut self,
        answer: &MemoryNodeRegistered,
        mappings: &mut Mappings,
        now: Time,
    ) -> Option<()> {
        if self.mistake == Some(Mistake::ZeroesUnlisted) {
            zero(mappings, answer.unowned.iter());
        }
        mappings.accept(answer.watermark, &answer.lineage).ok()?;
        self.seen = mappings.seen();
        let job = mappings.registered(answer).ok()?;
        self.registration = answer.registration;
        self.heartbeat = Duration::from_millis(answer.heartbeat_ms.max(1));
        self.start(job, mappings, now);
        Some(())
    }

    /// Lets the manager show that this node does not follow.
    fn refuse(&mut self, mappings: &Mappings, now: Time, net: &mut ControlNetwork) {
        let (node, seen) = (Party::MemoryNode(self.name.clone()), mappings.seen());
        let said = NotFollowed { node, seen, holds: mappings.held() };
        self.port.call(Request::NotFollowed(said), Duration::ZERO, now, net);
        self.doing = Doing::Refusing;
    }

    fn synced(&mut self, reported: usize, synced: MemoryNodeSynced, mappings: &mut Mappings) -> Option<()> {
        mappings.reported(reported);
        self.heartbeat = Duration::from_millis(synced.heartbeat_ms.max(1));
        match mappings.hear(synced.watermark) {
            Ok(()) => {}
            Err(Refusal::AnotherRun) | Err(_) => return None,
        }
        self.seen = mappings.seen();
        self.commands = synced.commands.into();
        Some(())
    }

    /// A job takes its time, unless there is nothing to do.
    fn start(&mut self, job: Job, mappings: &mut Mappings, now: Time) {
        if job.is_quick() {
            mappings.finish(job, Ok(()));
            return;
        }
        let takes = self.random.below(JOB.as_nanos() as u64);
        self.doing = Doing::Job(job, now + Duration::from_nanos(takes));
    }

    /// On to the next command, or to the manager for more.
    fn go_on(&mut self, mappings: &mut Mappings, now: Time, net: &mut ControlNetwork) {
        if matches!(self.doing, Doing::Job(..)) {
            return;
        }
        while let Some(command) = self.commands.pop_front() {
            self.map_twice(&command, mappings);
            match mappings.start(&command) {
                Ok(None) => {}
                Ok(Some(job)) => {
                    self.start(job, mappings, now);
                    if matches!(self.doing, Doing::Job(..)) {
                        return;
                    }
                }
                Err(refusal) => {
                    self.trace.say(now, &self.name, || format!("does not follow: {refusal}"));
                    return self.pause(now);
                }
            }
        }
        let orphans = mappings.orphans_to_report();
        if !orphans.is_empty() {
            let report = ReportOrphans { registration: self.registration, orphans };
            self.port.call(Request::ReportOrphans(self.name.clone(), report), Duration::ZERO, now, net);
            self.doing = Doing::Reporting;
            return;
        }
        let results = mappings.results().to_vec();
        self.doing = Doing::Syncing(results.len());
        let sync = MemoryNodeSync {
            registration: self.registration,
            acked_seq: mappings.acked(),
            results,
            progress: None,
            stats: serde_json::Value::Null,
            wait_ms: self.heartbeat.as_millis() as u64,
        };
        self.port.call(Request::SyncMemoryNode(self.name.clone(), sync), self.heartbeat, now, net);
    }

    /// A node that makes that mistake carries the last command to map out once more before the next one.
    fn map_twice(&mut self, next: &NodeCommand, mappings: &Mappings) {
        if self.mistake != Some(Mistake::RepeatsCommands) {
            return;
        }
        let mapped = self.mapped.take();
        zero(mappings, mapped.iter().flat_map(|mapping| mapping.extents.iter()));
        if let NodeAction::MapCmem(mapping) = &next.action {
            self.mapped = Some(mapping.clone());
        }
    }
}

/// Zeroes extents past every rule.
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

/// The name of a memory node.
pub(crate) fn name(index: usize) -> Name {
    Name::new(format!("mn{index}")).expect("letters and digits")
}

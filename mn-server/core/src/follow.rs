//! The memory node's side of the protocol with the manager: registration, refusal of a manager whose store lacks
//! changes that this node has seen, commands, results, and orphans (extents with content that the manager lists for no
//! compute node). This module decides the next request; the I/O code carries messages and jobs.
//!
//! ```text
//!            next                    next                     next
//!   Start ----------> Registering ----------> Accepted ------------------> Working <----+
//!                         | Stale, or refused    (answer: AnswerUpdate is kept)       | on_job   | next: a command
//!                         v                                                   v          |
//!              Refusing --> Refused --> RestartReason           Reporting --> Carrying ------+
//!                                                               ^             | next: no command is left
//!                                                               | orphans     v
//!                                                               +--------- Syncing (long poll) --> Carrying: its commands
//! ```
//!
//! Driven by the contract of all machines ([`cxloe_wire::machine`]). It has no deadline: how long an answer may take is
//! in the request, and the pause before another attempt is the I/O code's, which knows the network.
//!
//! ```text
//!   loop {
//!       match follow.next(mappings, now_ms)? {                          // the output, one for each input
//!           Ask(request) => update = follow.on_answer(send(request), mappings, now_ms)?,
//!           CarryOut(job) => follow.on_job(job, carry_out(job), mappings),
//!       }
//!       store the AnswerUpdate
//!   }
//! ```
//!
//! After any [`RestartReason`], and whenever the manager is unreachable, the I/O code calls [`Follow::restart`] after a
//! pause. The node serves existing mappings all the time.

use std::collections::VecDeque;
use std::mem;

use cxloe_fabric::api::{
    MemoryNodeRegistered, MemoryNodeSync, MemoryNodeSynced, NotFollowed, Party, Progress, RegisterMemoryNode,
    ReportOrphans,
};
use cxloe_fabric::model::{ComputeNodeKey, FillCmem, NodeAction, NodeCommand, UdpPeer, Watermark};
use cxloe_wire::machine::{Deadline, StateMachine};

use crate::job::{Job, JobError};
use crate::mappings::{Mappings, MessageRefusal};

/// Next step for the I/O code.
#[derive(Debug)]
pub enum FollowStep {
    Ask(ManagerRequest),
    CarryOut(Job),
}

#[derive(Clone, Debug, PartialEq)]
pub enum ManagerRequest {
    /// `POST /v1/memory-nodes`.
    Register(RegisterMemoryNode),
    /// Report to the manager that this node refuses to follow it. If the manager does not answer, the I/O code passes
    /// [`ManagerAnswer::Done`] nevertheless.
    NotFollowed(NotFollowed),
    /// `POST /v1/memory-nodes/NAME/orphans`.
    ReportOrphans(ReportOrphans),
    /// `POST /v1/memory-nodes/NAME/sync`, a long poll; the I/O code adds its statistics, and the progress of copies.
    Sync(MemoryNodeSync),
}

#[derive(Clone, Debug)]
pub enum ManagerAnswer {
    Registered(Box<MemoryNodeRegistered>),
    /// Registration refused: the manager's store lacks changes that this node has seen.
    Stale,
    Synced(Box<MemoryNodeSynced>),
    /// Answer without content: to a report of orphans, or to a report that this node does not follow the
    /// manager.
    Done,
}

/// Part of an answer that the I/O code stores and passes on before the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerUpdate {
    /// Highest watermark (term and revision of the manager's store), to be stored on disk.
    pub seen: Watermark,
    /// UDP addresses of compute nodes, for a `udp` link.
    pub udp_peers: Vec<UdpPeer>,
    /// Public keys by which compute nodes are authenticated when their sessions start.
    pub cn_keys: Vec<ComputeNodeKey>,
    /// Orders to copy from other memory nodes; `None` if the answer does not list them, and they stay as they are.
    pub fills: Option<Vec<FillCmem>>,
}

/// Reason why the node has to register again.
pub type RestartReason = cxloe_fabric::follow::Halt<MessageRefusal>;

#[derive(Debug)]
enum FollowPhase {
    Start,
    Registering,
    Refusing(RestartReason),
    /// The refusal is being reported to the manager.
    Refused(RestartReason),
    /// The manager has accepted this node; the mappings listed in the answer are not applied yet.
    Accepted(Box<MemoryNodeRegistered>),
    /// Between steps: the next one is a command, a report of orphans, or a sync.
    Carrying,
    /// A job is under way in the I/O code.
    Working,
    Reporting,
    /// A sync with this number of results has been sent.
    Syncing(usize),
}

/// State of a memory node's registration with the manager.
#[derive(Debug)]
pub struct Follow {
    node: RegisterMemoryNode,
    phase: FollowPhase,
    registration: u64,
    heartbeat_ms: u64,
    commands: VecDeque<NodeCommand>,
}

impl Follow {
    /// Creates the state of a node that sends `node` when it registers, with `seen` replaced by the present watermark.
    pub fn new(node: RegisterMemoryNode) -> Follow {
        Follow {
            node,
            phase: FollowPhase::Start,
            registration: 0,
            heartbeat_ms: 1,
            commands: VecDeque::new(),
        }
    }

    /// Begins again with a registration. A running job is abandoned without a result, and the manager sends its command
    /// again.
    pub fn restart(&mut self) {
        self.phase = FollowPhase::Start;
        self.commands.clear();
    }

    pub fn node(&self) -> &RegisterMemoryNode {
        &self.node
    }

    /// Registration request. A change takes effect at the next registration.
    pub fn node_mut(&mut self) -> &mut RegisterMemoryNode {
        &mut self.node
    }

    /// Number that the manager gave to the present registration; syncs and reports repeat it.
    pub fn registration(&self) -> u64 {
        self.registration
    }

    /// Maximum time between two syncs in milliseconds, set by the manager.
    pub fn heartbeat_ms(&self) -> u64 {
        self.heartbeat_ms
    }

    /// Number of results in the sync under way; `None` if no sync is under way.
    pub fn syncing(&self) -> Option<usize> {
        match self.phase {
            FollowPhase::Syncing(results) => Some(results),
            _ => None,
        }
    }

    /// Decides the next step at `now_ms`, on the clock of [`Mappings::confirm`].
    ///
    /// # Errors
    /// [`RestartReason`] if the node has to register again.
    ///
    /// # Panics
    /// If the result of the previous step was not passed to [`on_answer`](Self::on_answer) or [`on_job`](Self::on_job).
    pub fn next(&mut self, mappings: &mut Mappings, now_ms: u64) -> Result<FollowStep, RestartReason> {
        loop {
            match mem::replace(&mut self.phase, FollowPhase::Carrying) {
                FollowPhase::Start => {
                    mappings.expire(now_ms);
                    self.phase = FollowPhase::Registering;
                    let node = RegisterMemoryNode { seen: mappings.seen(), ..self.node.clone() };
                    return Ok(FollowStep::Ask(ManagerRequest::Register(node)));
                }
                FollowPhase::Refusing(why) => {
                    self.phase = FollowPhase::Refused(why);
                    let node = Party::MemoryNode(self.node.name.clone());
                    let (seen, holds) = (mappings.seen(), mappings.held());
                    return Ok(FollowStep::Ask(ManagerRequest::NotFollowed(NotFollowed {
                        node,
                        seen,
                        holds,
                    })));
                }
                FollowPhase::Accepted(answer) => {
                    let job = mappings.registered(&answer)?;
                    if let Some(job) = self.begin(job, mappings) {
                        return Ok(FollowStep::CarryOut(job));
                    }
                }
                FollowPhase::Carrying => {
                    if let Some(job) = mappings.take_continuation() {
                        if let Some(job) = self.begin(job, mappings) {
                            return Ok(FollowStep::CarryOut(job));
                        }
                        continue;
                    }
                    let Some(command) = self.commands.pop_front() else {
                        return Ok(FollowStep::Ask(self.report(mappings)));
                    };
                    if let Some(job) = mappings.start(&command)? {
                        log(&command);
                        if let Some(job) = self.begin(job, mappings) {
                            return Ok(FollowStep::CarryOut(job));
                        }
                    }
                }
                FollowPhase::Registering
                | FollowPhase::Refused(_)
                | FollowPhase::Working
                | FollowPhase::Reporting
                | FollowPhase::Syncing(_) => {
                    unreachable!("the step before is under way")
                }
            }
        }
    }

    /// Begins a job. A job that needs no work is completed here, and the result is `None`.
    fn begin(&mut self, job: Job, mappings: &mut Mappings) -> Option<Job> {
        if job.is_quick() {
            mappings.finish(job, Ok(()));
            return None;
        }
        self.phase = FollowPhase::Working;
        Some(job)
    }

    fn report(&mut self, mappings: &Mappings) -> ManagerRequest {
        let orphans = mappings.orphans_to_report();
        if !orphans.is_empty() {
            self.phase = FollowPhase::Reporting;
            return ManagerRequest::ReportOrphans(ReportOrphans { registration: self.registration, orphans });
        }
        self.phase = FollowPhase::Syncing(mappings.results().len());
        ManagerRequest::Sync(self.sync(mappings, self.heartbeat_ms))
    }

    fn sync(&self, mappings: &Mappings, wait_ms: u64) -> MemoryNodeSync {
        MemoryNodeSync {
            registration: self.registration,
            acked_seq: mappings.acked(),
            results: mappings.results().to_vec(),
            progress: None,
            fills: Vec::new(),
            stats: serde_json::Value::Null,
            wait_ms,
        }
    }

    /// Creates an additional sync that only reports progress: the job of command `seq` has processed `done`
    /// bytes. The manager answers it at once.
    pub fn progress(&self, mappings: &Mappings, seq: Option<u64>, done: u64) -> MemoryNodeSync {
        MemoryNodeSync { progress: seq.map(|seq| Progress { seq, done }), ..self.sync(mappings, 0) }
    }

    /// Applies the manager's answer to a sync that only reported [`progress`](Self::progress), received at `now_ms`. Its
    /// commands and orders are not used: the manager sends them again in its answer to the first sync after the job.
    /// Returns `None` for the answer of another manager, which that sync finds too, and for an overtaken one.
    pub fn on_progress(
        &mut self,
        answer: MemoryNodeSynced,
        mappings: &mut Mappings,
        now_ms: u64,
    ) -> Option<AnswerUpdate> {
        let MemoryNodeSynced { watermark, heartbeat_ms, udp_peers, cn_keys, .. } = answer;
        mappings.observe_watermark(watermark).ok()?;
        mappings.confirm(now_ms);
        self.heartbeat_ms = heartbeat_ms.max(1);
        Some(AnswerUpdate { seen: mappings.seen(), udp_peers, cn_keys, fills: None })
    }

    /// Applies the manager's answer, received at `now_ms`.
    ///
    /// # Errors
    /// [`RestartReason`] if the node has to register again.
    pub fn on_answer(
        &mut self,
        answer: ManagerAnswer,
        mappings: &mut Mappings,
        now_ms: u64,
    ) -> Result<Option<AnswerUpdate>, RestartReason> {
        match (mem::replace(&mut self.phase, FollowPhase::Carrying), answer) {
            (FollowPhase::Registering, ManagerAnswer::Registered(answer)) => {
                if let Err(refusal) = mappings.accept(answer.watermark, &answer.lineage) {
                    self.phase = FollowPhase::Refusing(refusal.into());
                    return Ok(None);
                }
                mappings.confirm(now_ms);
                mappings.foresee(&answer);
                self.registration = answer.registration;
                // At least 1: the manager answers a sync with a wait of 0 at once, so the node would send syncs without
                // a pause.
                self.heartbeat_ms = answer.heartbeat_ms.max(1);
                let (udp_peers, cn_keys) = (answer.udp_peers.clone(), answer.cn_keys.clone());
                self.phase = FollowPhase::Accepted(answer);
                Ok(Some(AnswerUpdate { seen: mappings.seen(), udp_peers, cn_keys, fills: None }))
            }
            (FollowPhase::Registering, ManagerAnswer::Stale) => {
                self.phase = FollowPhase::Refusing(RestartReason::Stale);
                Ok(None)
            }
            (FollowPhase::Refused(why), ManagerAnswer::Done) => Err(why),
            (FollowPhase::Reporting, ManagerAnswer::Done) => {
                mappings.orphans_reported();
                Ok(None)
            }
            (FollowPhase::Syncing(reported), ManagerAnswer::Synced(synced)) => {
                let MemoryNodeSynced { watermark, heartbeat_ms, commands, udp_peers, cn_keys, fills } =
                    *synced;
                mappings.reported(reported);
                self.heartbeat_ms = heartbeat_ms.max(1);
                mappings.observe_watermark(watermark).map_err(|refusal| match refusal {
                    MessageRefusal::AnotherRun => RestartReason::Anew,
                    refusal => refusal.into(),
                })?;
                mappings.confirm(now_ms);
                self.commands = commands.into();
                let fills = Some(fills);
                Ok(Some(AnswerUpdate { seen: mappings.seen(), udp_peers, cn_keys, fills }))
            }
            _ => Err(RestartReason::Unexpected),
        }
    }

    pub fn on_job(&mut self, job: Job, outcome: Result<(), JobError>, mappings: &mut Mappings) {
        mappings.finish(job, outcome);
        self.phase = FollowPhase::Carrying;
    }
}

impl StateMachine for Follow {
    fn deadline(&self) -> Deadline {
        Deadline::NEVER
    }

    fn undrained(&self) -> Option<&'static str> {
        match self.phase {
            FollowPhase::Start
            | FollowPhase::Refusing(_)
            | FollowPhase::Accepted(_)
            | FollowPhase::Carrying => Some("a request to the manager, or a job"),
            FollowPhase::Registering
            | FollowPhase::Refused(_)
            | FollowPhase::Working
            | FollowPhase::Reporting
            | FollowPhase::Syncing(_) => None,
        }
    }
}

fn log(command: &NodeCommand) {
    let mapping = command.action.mapping();
    let what = match &command.action {
        NodeAction::MapCmem(_) => "map",
        NodeAction::UnmapCmem(_) => "unmap",
        NodeAction::HandOver(_) => "hand over",
        NodeAction::Share(_) => "share",
        NodeAction::Unshare(_) => "unshare",
        NodeAction::Clone(_) => "clone",
    };
    tracing::info!(
        seq = command.seq, what, region = %mapping.region, cn = %mapping.cn,
        base = format_args!("{:#x}", mapping.cmem_base), bytes = mapping.bytes(), "command of the manager"
    );
}

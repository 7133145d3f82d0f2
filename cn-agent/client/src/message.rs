//! Messages on the agent's socket: one request and its answer, each a length (32 bits, big-endian) and that many bytes
//! of JSON. A connection may carry several requests. After a request for a port the connection belongs to that port:
//! bytes on it only wake the other end.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use cxloe_cc::PacerStatus;
use cxloe_fabric::api::ErrorCode;
use cxloe_fabric::model::Name;
use cxloe_link::{LinkCounters, LinkDown};
use cxloe_wire::session::RequesterStatus;

use cxloe_cn_core::engine::EngineCounters;
use cxloe_cn_core::fault_times::FaultTimes;
use cxloe_cn_core::mapped::SpaceError;
use cxloe_cn_core::pager::PagerCounters;
use cxloe_cn_core::user_shares::ShareReached;

pub use cxloe_cn_core::attachments::view::{
    AttachedDecoder, AttachedDevice, AttachedLeg, AttachedRegion, Attaching, NodeView,
};
pub use cxloe_cn_core::mapped::{MapRequest, PagingMember, PagingView};

/// Version of requests, answers and rings; both ends must have the same.
pub const VERSION: u32 = cxloe_member::wire::VERSION;
/// Longest request, in bytes: that with notes of 2,000 runs of pages.
pub const REQUEST_MAX: usize = 64 << 10;
/// Longest answer, in bytes: that for 65,536 regions.
pub const ANSWER_MAX: usize = 64 << 20;

/// A request, with the version of its sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRequest {
    /// The sender's [`VERSION`].
    pub version: u32,
    /// Request to carry out, if the versions are equal.
    pub ask: AgentCall,
}

/// Requests that a program can send to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentCall {
    /// List the attached regions, with the state of their sessions.
    Regions,
    /// List the logical devices bound to this node, and return whether the manager has suspended the node.
    Node,
    /// List the sessions with memory nodes, with their counters.
    Sessions,
    /// Return the agent's counters since its start.
    Counters,
    /// Open a port of the first worker, which has rings to submit reads and writes.
    Port,
    /// Open a port of a worker other than the first.
    PortOf {
        /// Number of the worker, which follows from the addresses that will be used
        /// ([`worker_of`](cxloe_cn_core::attachments::worker_of)).
        worker: usize,
    },
    /// Map a region. Afterwards this connection owns the region's space (the region as mapped memory).
    Map(MapRequest),
    /// Join a space as a member (a process whose memory the agent pages). Afterwards the connection belongs to the
    /// member; the answer is a [`JoinReply`](cxloe_member::wire::JoinReply).
    Join(JoinRequest),
    /// Change the limit of resident bytes of a space (a mapped region).
    SetLimit {
        /// Number of the space (a mapped region), from [`AgentAnswer::Mapped`].
        space: u64,
        /// New limit in bytes.
        limit: u64,
    },
    /// Return the state of a space (a mapped region), or of all spaces.
    Paging {
        /// Number of the space (a mapped region); `None` for all spaces.
        space: Option<u64>,
    },
    /// Discard the space (the mapped region) that this connection owns, with its content: nothing is written back.
    #[serde(rename = "let_go")]
    Discard {
        /// Number of the space (a mapped region), from [`AgentAnswer::Mapped`].
        space: u64,
    },
    /// Create a region for the requesting process, leased to its user: if the process ends without destroying the
    /// region, the agent does.
    Create {
        /// Minimum size of the region in bytes.
        bytes: u64,
    },
    /// Grow a region that was created by [`AgentCall::Create`].
    Grow {
        /// Name of the region, from [`AgentAnswer::Created`].
        region: Name,
        /// New size of the region in bytes.
        bytes: u64,
    },
    /// Destroy a region that was created by [`AgentCall::Create`].
    Destroy {
        /// Name of the region, from [`AgentAnswer::Created`].
        region: Name,
    },
    /// Write all dirty pages back. The answer is sent once memory nodes have the pages.
    CleanAll {
        /// Number of the space (a mapped region), from [`AgentAnswer::Mapped`].
        space: u64,
        /// Whether zeros are also written to memory nodes for discarded pages.
        #[serde(default = "yes")]
        zeros: bool,
    },
    /// Suspend a space (a mapped region) so that its region can go to another compute node: faults wait, all pages are
    /// written back and removed. The answer, [`AgentAnswer::Suspended`], is sent when no page is resident.
    Suspend {
        /// Number of the space (a mapped region), from [`AgentAnswer::Mapped`].
        space: u64,
    },
    /// Accept notes about pages, made by the region's former compute node, for a space whose region is not attached
    /// here yet.
    Note {
        /// Number of the space (a mapped region), from [`AgentAnswer::Mapped`].
        space: u64,
        /// Pages that will be used soon, the likeliest first.
        hot: Vec<u32>,
        /// Runs of pages that are zeros: the first page, and the number of pages.
        zeros: Vec<(u32, u32)>,
    },
    /// Serve a suspended space (a mapped region) again, as soon as its region is attached.
    ServeAgain {
        /// Number of the space (a mapped region), from [`AgentAnswer::Mapped`].
        space: u64,
        /// Longest wait for the region, in milliseconds.
        wait_ms: u64,
    },
}

/// Default of a field that older agents did not send.
fn one() -> usize {
    1
}

/// Default of a field that older programs did not send.
fn yes() -> bool {
    true
}

/// Request of a process to become a member (a process whose memory the agent pages). The userfaultfd is sent with the
/// request, unless the process is a forked child; if `resume` is set, the shared state and any shared memory are sent
/// too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// Number of the space (a mapped region). It is random: a process that has the number may join.
    pub space: u64,
    /// Address of the mapping in the process.
    pub address: u64,
    /// Size of the mapping in bytes.
    pub bytes: u64,
    /// Offset of the mapping in the region, in bytes.
    pub offset: u64,
    /// Process id of the process that joins.
    pub pid: u32,
    /// Number of the member's view (its table of pages), if the process is a forked child or resumes its membership.
    pub view: Option<u16>,
    /// Number that a forked child has read beside that of its view: it shows that the view is the child's own.
    #[serde(default)]
    pub proof: Option<u64>,
    /// Whether the process was a member under a predecessor of this agent.
    pub resume: bool,
    /// Files through which the agent reads the process's memory; their descriptors are sent last.
    pub files: ShownFiles,
}

/// Files of `/proc` through which the agent reads a process's memory. The process opens them itself and sends them with
/// its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShownFiles {
    /// No files: for shared memory, and for a forked child that may not open its files; such a child's pages are not
    /// evicted.
    #[default]
    None,
    /// `pagemap`: for memory of a virtual machine.
    Table,
    /// `mem` and `pagemap`: for private memory.
    All,
}

/// Answers of the agent to an [`AgentCall`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentAnswer {
    /// Attached regions, in order of HPA.
    Regions(Vec<AttachedRegion>),
    /// Logical devices bound to this node, and whether the manager has suspended the node.
    Node(NodeView),
    /// Sessions, in the order in which they were opened.
    Sessions(Vec<Session>),
    /// Counters of the agent since its start, and of each of its workers if it has several.
    Counters(Box<AgentCounters>),
    /// The port is open; the memfd with its rings is attached to this answer.
    Port {
        /// Size of the memfd in bytes.
        bytes: u64,
        /// Number of the agent's workers, each of which has ports of its own.
        #[serde(default = "one")]
        workers: usize,
    },
    /// The region is mapped, and this connection owns the region's space.
    Mapped {
        /// Number of the region's space (the region as mapped memory), for later requests.
        space: u64,
        /// Number of pages of the region, each of 4 KiB.
        pages: u32,
        /// Whether the region is sealed, and is to be mapped for reading only.
        sealed: bool,
        /// Names of the descriptors attached to this answer, in order: `ledger` (the space's shared state),
        /// `memory`, `userfaultfd` (for `/dev/userfaultfd`).
        descriptors: Vec<String>,
    },
    /// The region was created, but is not attached yet.
    Created {
        /// Name of the region, which the agent has chosen.
        region: Name,
        /// Unit of the region's size, in bytes.
        unit: u64,
    },
    /// States of the requested spaces (mapped regions).
    Paging(Vec<PagingView>),
    /// The space (a mapped region) is suspended, and none of its pages is resident.
    Suspended {
        /// Pages that will be used soon, the likeliest first.
        hot: Vec<u32>,
        /// Runs of pages that are zeros, whatever memory nodes hold: the first page, and the number of pages.
        zeros: Vec<(u32, u32)>,
    },
    /// The request was carried out; there is nothing to return.
    Done,
    /// The request was refused or has failed, for this reason.
    Refused(RefusalReason),
}

/// Reason why the agent refuses a request, with the remedy in its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum RefusalReason {
    /// The program and the agent have different versions of the protocol.
    #[error(
        "the agent uses version {agent} of the port protocol, this program another; use programs of one release"
    )]
    Version {
        /// Protocol version of the agent.
        agent: u32,
    },
    /// The limit of ports is reached.
    #[error("the agent has {limit} ports open, its limit; close one, or raise --max-clients")]
    Full {
        /// Limit of open ports.
        limit: usize,
    },
    /// All spaces (slots for mapped regions) are in use.
    #[error("{limit} regions are mapped by programs, as many as the agent serves; unmap one")]
    Regions {
        /// Limit of mapped regions.
        limit: usize,
    },
    /// The user already has as much of a resource as one user may have.
    #[error(transparent)]
    Share(#[from] ShareReached),
    /// The limit of connections, of this user or of all users, is reached.
    #[error(
        "there are {limit} connections to the agent already, as many as one user, or all users together, may have; close one, or try again"
    )]
    Connections {
        /// Limit of connections.
        limit: usize,
    },
    /// The agent is stopping.
    #[error("the agent is ending")]
    Ending,
    /// The request cannot be parsed, or is not valid on this connection.
    #[error("the agent could not read the request: {0}")]
    Malformed(String),
    /// No attached region has this name.
    #[error("no region `{0}` is attached; `cn-agent list` shows what is")]
    NoRegion(String),
    /// No mapped region (space) has this number any more.
    #[error("the region is not mapped any more")]
    NoSpace,
    /// The region is mapped with incompatible options.
    #[error(
        "region `{0}` is mapped already, as private or virtual machine memory, which is for one program at a time"
    )]
    Mapped(String),
    /// The region is sealed, and the request needs a region that can be written.
    #[error(
        "region `{0}` is sealed: programs can map it to read it, but it cannot be private memory, or that of a virtual \
         machine; take a region that can be written"
    )]
    Sealed(String),
    /// The space (a mapped region) cannot be suspended, or is not suspended as the request requires.
    #[error(
        "the region's memory is suspended already, is being taken over, or is memory of a kind that cannot be suspended: only \
         the memory of `cn-agent vm` and of mapped regions can"
    )]
    NotSuspendable,
    /// Another program maps the region.
    #[error("another program maps the region; end it first (`cn-agent paging` names it)")]
    AnotherMaps,
    /// The region that was attached has another size than the suspended memory.
    #[error(
        "region `{region}` has {bytes} bytes that can be mapped, not the {expected} of the memory that waits for it"
    )]
    OtherSize {
        /// Name of the region.
        region: String,
        /// Bytes of the region that can be mapped.
        bytes: u64,
        /// Bytes of the suspended memory.
        expected: u64,
    },
    /// The region's last mapping is still being written back.
    #[error("region `{0}` is being unmapped: its modified pages are still being written back; try again")]
    WritingBack(String),
    /// The limit of resident bytes is too low.
    #[error("a limit of {limit} bytes is too low: at least {least} bytes have to be resident")]
    Limit {
        /// Requested limit in bytes.
        limit: u64,
        /// Lowest permitted limit in bytes.
        least: u64,
    },
    /// The region has more pages than a space can have.
    #[error("region `{0}` is too large to be mapped as a whole")]
    TooLarge(String),
    /// Dirty pages could not be written back.
    #[error("not everything could be written back: a memory node is away, or has lost the region")]
    NotClean,
    /// The region belongs to another user.
    #[error(
        "region `{region}` belongs to another user than {uid}; run this as its user or as root, or create a region for this \
         user (`gmm create-region --uid {uid}`)"
    )]
    NotYours {
        /// Name of the region.
        region: String,
        /// User id of the requesting process.
        uid: u32,
    },
    /// The region was not created for a program of this user.
    #[error(
        "region `{0}` was not created for a program of this user: only such regions are changed by the agent"
    )]
    NotTemporary(String),
    /// The manager refused or could not be asked.
    #[error("{text}")]
    Manager {
        /// Error code of the manager; `None` if the manager was not reached.
        code: Option<ErrorCode>,
        /// The manager's text, or the reason why the manager was not reached.
        text: String,
    },
    /// The limit of temporary regions is reached.
    #[error("the agent keeps the names of {limit} temporary regions, its limit")]
    Leases {
        /// Limit of temporary regions.
        limit: usize,
    },
    /// The state that a predecessor left cannot be taken over now.
    #[error("nothing can be taken over: {0}")]
    NotResumed(String),
    /// The requesting process is not visible in the agent's PID namespace: reason and remedy.
    #[error("{0}")]
    Unseen(String),
    /// A system call failed.
    #[error("the agent could not make the shared memory: {0}")]
    System(String),
}

impl From<SpaceError> for RefusalReason {
    fn from(error: SpaceError) -> RefusalReason {
        match error {
            SpaceError::Unknown => RefusalReason::NoSpace,
            SpaceError::Full(limit) => RefusalReason::Regions { limit },
            SpaceError::Share(reached) => RefusalReason::Share(reached),
            SpaceError::Limit { limit, least } => RefusalReason::Limit { limit, least },
            SpaceError::NotSuspendable => RefusalReason::NotSuspendable,
            SpaceError::Taken => RefusalReason::AnotherMaps,
        }
    }
}

/// A session with a memory node, as `cn-agent sessions` shows it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Session {
    /// State and counters of the session.
    #[serde(flatten)]
    pub status: RequesterStatus,
    /// Reason of the memory node's last refusal, and the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// State of the session's rate control; `None` without rate control.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<SessionPace>,
    /// Number of the worker that has the session; `None` if the agent has one worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<usize>,
}

impl Session {
    /// Address of the memory node and, with several queues, the queue. Unlike the name in
    /// [`status`](Session::status), it is without the number of the worker.
    pub fn peer(&self) -> &str {
        let name = self.status.peer.as_str();
        let suffix = self.worker.map(|worker| format!(" worker {worker}"));
        suffix.and_then(|suffix| name.strip_suffix(suffix.as_str())).unwrap_or(name)
    }
}

/// Rate control of one session, as `cn-agent sessions` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionPace {
    /// Phase of the controller, from `a` (stable) to `f`, as in the paper on the rate control.
    pub phase: char,
    /// Permitted rate of requests, in bits per second on the wire (CR).
    pub rate: u64,
    /// Rate that recovery aims at (TR).
    pub target: u64,
    /// Number of pause signals that were applied.
    pub pauses: u64,
    /// Number of pause signals ignored because they followed another too closely.
    pub duplicates: u64,
    /// Number of requests that had to wait for tokens.
    pub delayed: u64,
}

impl From<PacerStatus> for SessionPace {
    fn from(status: PacerStatus) -> SessionPace {
        SessionPace {
            phase: status.phase.letter(),
            rate: status.rate,
            target: status.target,
            pauses: status.pauses,
            duplicates: status.duplicates,
            delayed: status.delayed,
        }
    }
}

/// The agent's counters, as `cn-agent counters` prints them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AgentCounters {
    /// Sums over all workers.
    #[serde(flatten)]
    pub all: Counters,
    /// Counters of each worker, by number; empty if the agent has one worker.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerCounters>,
}

/// Counters of one worker of an agent that has several.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WorkerCounters {
    /// Number of the worker, from 0.
    pub worker: usize,
    /// CPU on which the worker ran when it reported; `None` if the kernel does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// CPU time of the worker since its start, in nanoseconds. It grows while the worker polls, and not while it sleeps.
    #[serde(default)]
    pub cpu_time_ns: u64,
    /// The worker's part of the sums.
    #[serde(flatten)]
    pub counters: Counters,
}

/// Counters of a worker, or sums over several.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Counters of the engine: reads, writes, cache hits.
    pub engine: EngineCounters,
    /// Counters of the link: frames and bytes.
    pub link: LinkCounters,
    /// Backend of the link, for instance `xdp`, `packet` or `udp`.
    pub backend: String,
    /// Details of the backend, and the reason for its choice if there was a choice.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub link_detail: String,
    /// System call by which the worker sleeps: `io_uring`, or `ppoll` with the reason. Empty before the first sleep.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sleeps_by: String,
    /// Reason of the worker's next timer, such as `a Ping`; `an input` without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub waits_for: String,
    /// Reason why the link is down; `None` while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_down: Option<LinkDown>,
    /// Number of times that the link was reopened since the start of the agent.
    #[serde(default)]
    pub link_reopened: u64,
    /// Number of open ports.
    pub clients: usize,
    /// Number of operations that have begun and are not complete.
    pub in_flight: usize,
    /// Number of dirty lines that are kept until their memory node answers again.
    pub stranded: usize,
    /// Number of clients that were disconnected because they corrupted their rings.
    pub broken_clients: u64,
    /// Paging counters, summed over all mapped regions.
    #[serde(default)]
    pub paging: PagerCounters,
    /// Durations of faults, in all regions that are or were mapped.
    #[serde(default)]
    pub fault_times: FaultTimes,
}

impl Counters {
    /// Adds the counters of another worker. Fields that are no counts keep the value of `self`.
    #[must_use]
    pub fn plus(self, other: &Counters) -> Counters {
        Counters {
            engine: self.engine.plus(&other.engine),
            link: self.link.plus(&other.link),
            clients: self.clients + other.clients,
            in_flight: self.in_flight + other.in_flight,
            stranded: self.stranded + other.stranded,
            broken_clients: self.broken_clients + other.broken_clients,
            paging: self.paging.plus(&other.paging),
            fault_times: self.fault_times.with(&other.fault_times),
            ..self
        }
    }
}

/// Encodes a message as JSON, preceded by its length in 4 bytes.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message).expect("messages are plain values");
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Decodes the length in front of a message.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if the length exceeds `limit`.
pub fn announced(prefix: [u8; 4], limit: usize) -> io::Result<usize> {
    let length = u32::from_be_bytes(prefix) as usize;
    if length > limit {
        let what = format!("a message of {length} bytes, more than the {limit} there may be");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(length)
}

/// Decodes a message, without the length in front.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if `bytes` is no message of this type.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Writes a message, preceded by its length.
///
/// # Errors
/// The kernel's error.
pub fn write(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&encode(message))
}

/// Reads a message, preceded by its length.
///
/// # Errors
/// The kernel's error; [`io::ErrorKind::InvalidData`] if the message is longer than `limit` or malformed.
pub fn read<T: DeserializeOwned>(from: &mut impl Read, limit: usize) -> io::Result<T> {
    let mut prefix = [0; 4];
    from.read_exact(&mut prefix)?;
    let mut bytes = vec![0; announced(prefix, limit)?];
    from.read_exact(&mut bytes)?;
    decode(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_read_back() {
        let request = AgentRequest { version: VERSION, ask: AgentCall::Port };
        let bytes = encode(&request);
        assert_eq!(read::<AgentRequest>(&mut bytes.as_slice(), REQUEST_MAX).unwrap(), request);
        let refused = encode(&AgentAnswer::Refused(RefusalReason::Full { limit: 64 }));
        let AgentAnswer::Refused(why) = read::<AgentAnswer>(&mut refused.as_slice(), ANSWER_MAX).unwrap()
        else {
            panic!("another answer")
        };
        assert!(why.to_string().contains("--max-clients"));
    }

    /// Tests that the answer of an agent with one worker is the same as that of an agent which names no workers.
    #[test]
    fn counters_read_back_with_workers_and_without() {
        let counters = |clients| Counters { clients, backend: "xdp".into(), ..Counters::default() };
        let plain = serde_json::to_value(AgentCounters { all: counters(3), workers: Vec::new() }).unwrap();
        assert_eq!(plain, serde_json::to_value(counters(3)).unwrap());
        let worker = |worker, cpu| WorkerCounters { worker, cpu, cpu_time_ns: 7, counters: counters(worker) };
        let two = AgentCounters { all: counters(1), workers: vec![worker(0, Some(2)), worker(1, None)] };
        let bytes = encode(&AgentAnswer::Counters(Box::new(two)));
        let AgentAnswer::Counters(answer) = read::<AgentAnswer>(&mut bytes.as_slice(), ANSWER_MAX).unwrap()
        else {
            panic!("another answer")
        };
        assert_eq!((answer.all.clients, answer.workers.len()), (1, 2));
        let (first, second) = (&answer.workers[0], &answer.workers[1]);
        assert_eq!((first.worker, first.cpu, first.cpu_time_ns), (0, Some(2), 7));
        assert_eq!((second.worker, second.cpu, second.counters.clients), (1, None, 1));
        let sums: Counters = serde_json::from_value(serde_json::to_value(&answer).unwrap()).unwrap();
        assert_eq!(sums.clients, 1, "a program that knows no workers reads the sums");
    }

    #[test]
    fn a_session_is_named_without_its_worker() {
        let session = |peer: &str, worker| Session {
            status: RequesterStatus { peer: peer.into(), ..RequesterStatus::default() },
            worker,
            ..Session::default()
        };
        let (plain, queue) = ("02:00:00:00:00:02", "02:00:00:00:00:02 queue 1");
        assert_eq!(session(plain, None).peer(), plain);
        assert_eq!(session(plain, Some(0)).peer(), plain);
        let named = format!("{queue} worker 11");
        assert_eq!(session(&named, Some(11)).peer(), queue);
        assert_eq!(session(&named, Some(1)).peer(), named);
    }

    #[test]
    fn too_long_is_refused_before_it_is_read() {
        let error = read::<AgentRequest>(&mut [0xFF_u8; 8].as_slice(), REQUEST_MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_an_error(bytes: Vec<u8>) {
            let _ = read::<AgentRequest>(&mut bytes.as_slice(), REQUEST_MAX);
        }
    }
}

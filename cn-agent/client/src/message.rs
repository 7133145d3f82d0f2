//! What is said on the agent's socket: one request and its answer, each a length (32 bits, big-endian) and that
//! many bytes of JSON. A connection may ask several times. A connection that asks for a port belongs to that
//! port from then on: bytes on it only wake the other end.

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

pub use cxloe_cn_core::attachments::view::{
    AttachedDecoder, AttachedDevice, AttachedLeg, AttachedRegion, Attaching, NodeView,
};
pub use cxloe_cn_core::mapped::{MapRequest, PagingMember, PagingView};

/// Version of requests, answers and rings; both ends have to have the same.
pub const VERSION: u32 = cxloe_member::wire::VERSION;
/// The longest request in bytes.
pub const REQUEST_MAX: usize = 4096;
/// The longest answer in bytes: that for 65,536 regions.
pub const ANSWER_MAX: usize = 64 << 20;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`] of the asker.
    pub version: u32,
    /// What is asked for.
    pub ask: Ask,
}

/// What can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// What is attached.
    Regions,
    /// The logical devices bound to this node, and whether it is held in reset.
    Node,
    /// The sessions with memory nodes.
    Sessions,
    /// What was counted.
    Counters,
    /// Rings to read and write through.
    Port,
    /// To map a region. The connection owns the space from then on, as long as it stays.
    Map(MapRequest),
    /// To be a member of a space. The connection is the member's from then on; the answer is a
    /// [`Welcome`](cxloe_member::wire::Welcome).
    Join(JoinRequest),
    /// Another limit of resident bytes.
    SetLimit {
        /// The space.
        space: u64,
        /// Bytes.
        limit: u64,
    },
    /// How a space stands, or all.
    Paging {
        /// The space.
        space: Option<u64>,
    },
    /// To let go of the space that this connection owns, and of what is in it: nothing is written back.
    #[serde(rename = "let_go")]
    Discard {
        /// The space.
        space: u64,
    },
    /// To have a region created for the asking process, of which it becomes its user's: if the process ends without having
    /// it destroyed, the agent has it destroyed.
    Create {
        /// Bytes.
        bytes: u64,
    },
    /// To have such a region grow.
    Grow {
        /// The region.
        region: Name,
        /// Its new size in bytes.
        bytes: u64,
    },
    /// To have such a region destroyed.
    Destroy {
        /// The region.
        region: Name,
    },
    /// To write everything back that is dirty; answered when it has arrived.
    CleanAll {
        /// The space.
        space: u64,
    },
}

/// Who wants to be a member. Its userfaultfd comes with the request, unless it is a forked child; with `resume` also the
/// shared state, and the memory if that is shared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The space.
    pub space: u64,
    /// Where its memory is.
    pub address: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// Which byte of the region is the first.
    pub offset: u64,
    /// Its process.
    pub pid: u32,
    /// Its view, if it is a forked child or was a member before.
    pub view: Option<u16>,
    /// Whether it was a member before.
    pub resume: bool,
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// What is attached, by HPA.
    Regions(Vec<AttachedRegion>),
    /// The logical devices bound to this node, and whether it is held in reset.
    Node(NodeView),
    /// The sessions, in the order in which they were begun.
    Sessions(Vec<Session>),
    /// What was counted.
    Counters(Box<Counters>),
    /// The rings come with this answer as a memfd of this many bytes.
    Port {
        /// Its size.
        bytes: u64,
    },
    /// The region is mapped.
    Mapped {
        /// The number of its space.
        space: u64,
        /// Pages of the region.
        pages: u32,
        /// What the descriptors are that come with this answer: `shared_state`, `memory`, `userfaultfd` (`/dev/userfaultfd`).
        descriptors: Vec<String>,
    },
    /// A region is created, and not attached yet.
    Created {
        /// Its name.
        region: Name,
        /// What its size grows by multiples of, in bytes.
        unit: u64,
    },
    /// Spaces.
    Paging(Vec<PagingView>),
    /// Done.
    Done,
    /// No.
    Refused(Refused),
}

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refused {
    /// The versions differ.
    #[error(
        "the agent speaks version {agent} of the port protocol, this program another; use programs of one release"
    )]
    Version {
        /// The agent's.
        agent: u32,
    },
    /// There are as many ports as there may be.
    #[error("the agent has {limit} ports open, its limit; close one, or raise --max-clients")]
    Full {
        /// The limit.
        limit: usize,
    },
    /// The user who asks, or all users, have as many connections as there may be.
    #[error(
        "there are {limit} connections to the agent already, as many as one user, or all users together, may have; close one, or try again"
    )]
    Connections {
        /// The limit.
        limit: usize,
    },
    /// It is about to stop.
    #[error("the agent is ending")]
    Ending,
    /// The request makes no sense.
    #[error("the agent could not read the request: {0}")]
    Malformed(String),
    /// A region that is not there.
    #[error("no region `{0}` is attached; `cn-agent list` shows what is")]
    NoRegion(String),
    /// A space that is not there.
    #[error("the region is not mapped any more")]
    NoSpace,
    /// A region that is mapped otherwise.
    #[error(
        "region `{0}` is mapped already, as private or virtual machine memory, which is for one program at a time"
    )]
    Mapped(String),
    /// A region that was mapped until a moment ago.
    #[error(
        "region `{0}` was mapped until now, and what is modified of it is still being written back; try again"
    )]
    WritingBack(String),
    /// A limit that is too low.
    #[error("a limit of {limit} bytes is too low: at least {least} bytes have to be resident")]
    Limit {
        /// What was asked for.
        limit: u64,
        /// What is possible.
        least: u64,
    },
    /// A region of more pages than there can be.
    #[error("region `{0}` is too large to be mapped as a whole")]
    TooLarge(String),
    /// What was dirty is not at the memory nodes.
    #[error("not everything could be written back: a memory node is away, or has lost the region")]
    NotClean,
    /// A region that is another user's.
    #[error(
        "region `{region}` belongs to another user than {uid}; run this as its user or as root, or create a region for this \
         user (`gmm create-region --uid {uid}`)"
    )]
    NotYours {
        /// The region.
        region: String,
        /// Who asks.
        uid: u32,
    },
    /// A region that was not created for a program of this user.
    #[error(
        "region `{0}` was not created for a program of this user: only such regions are changed by the agent"
    )]
    NotTemporary(String),
    /// The manager does not do what the agent has asked it for on behalf of a program.
    #[error("{text}")]
    Manager {
        /// What it says; none: it was not reached.
        code: Option<ErrorCode>,
        /// The same in words.
        text: String,
    },
    /// As many temporary regions as there may be.
    #[error("the agent keeps the names of {limit} temporary regions, its limit")]
    Leases {
        /// The limit.
        limit: usize,
    },
    /// What a predecessor left behind cannot be taken over now.
    #[error("nothing can be taken over: {0}")]
    NotResumed(String),
    /// The process that asks is not among those that the agent sees: why, and what to do.
    #[error("{0}")]
    Unseen(String),
    /// The system refuses what it takes.
    #[error("the agent could not make the shared memory: {0}")]
    System(String),
}

impl From<SpaceError> for Refused {
    fn from(error: SpaceError) -> Refused {
        match error {
            SpaceError::Unknown => Refused::NoSpace,
            SpaceError::Limit { limit, least } => Refused::Limit { limit, least },
        }
    }
}

/// A session as `cn-agent sessions` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Session {
    /// Its state and counters.
    #[serde(flatten)]
    pub status: RequesterStatus,
    /// Why the memory node refused the last attempt, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// How its requests are paced; `None` without rate control.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<Pace>,
}

/// A memory node's pacer as `cn-agent sessions` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pace {
    /// The controller's phase, `a` (stable) to `f`, as the paper calls them.
    pub phase: char,
    /// The rate that requests may have, in bits per second of the wire (CR).
    pub rate: u64,
    /// The rate that recovery aims at (TR).
    pub target: u64,
    /// Pause signals that counted.
    pub pauses: u64,
    /// Pause signals too close to the one before.
    pub duplicates: u64,
    /// Times a request had to wait for tokens.
    pub delayed: u64,
}

impl From<PacerStatus> for Pace {
    fn from(status: PacerStatus) -> Pace {
        Pace {
            phase: status.phase.letter(),
            rate: status.rate,
            target: status.target,
            pauses: status.pauses,
            duplicates: status.duplicates,
            delayed: status.delayed,
        }
    }
}

/// What an agent has counted, as `cn-agent counters` shows it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Reads, writes, cache hits.
    pub engine: EngineCounters,
    /// Frames and bytes.
    pub link: LinkCounters,
    /// What carries the frames: `xdp`, `packet` or `pnet`.
    pub backend: String,
    /// Particulars of it, and if there was a choice, why it was taken.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub link_detail: String,
    /// How the agent waits when there is nothing to do, once it has: `io_uring`, or `ppoll` and why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sleeps_by: String,
    /// Why there is no link, when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_down: Option<LinkDown>,
    /// How often the link has been opened again since the agent started.
    #[serde(default)]
    pub link_reopened: u64,
    /// Ports open at this moment.
    pub clients: usize,
    /// Operations on their way.
    pub in_flight: usize,
    /// Modified lines that wait for their memory node to come back.
    pub stranded: usize,
    /// Clients given up because they spoilt their rings.
    pub broken_clients: u64,
    /// What paging has counted, of all regions that are mapped.
    #[serde(default)]
    pub paging: PagerCounters,
    /// How long faults took, of all regions that are or were mapped.
    #[serde(default)]
    pub fault_times: FaultTimes,
}

/// The bytes of a message.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message).expect("messages are plain values");
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// The length that `prefix` announces.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] when it is more than `limit`.
pub fn announced(prefix: [u8; 4], limit: usize) -> io::Result<usize> {
    let length = u32::from_be_bytes(prefix) as usize;
    if length > limit {
        let what = format!("a message of {length} bytes, more than the {limit} there may be");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(length)
}

/// The message in `bytes`, without its length.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] when it is none.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Writes a message.
///
/// # Errors
/// What the kernel says.
pub fn write(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&encode(message))
}

/// Reads a message.
///
/// # Errors
/// What the kernel says; [`io::ErrorKind::InvalidData`] when it is too long or none.
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
        let request = Request { version: VERSION, ask: Ask::Port };
        let bytes = encode(&request);
        assert_eq!(read::<Request>(&mut bytes.as_slice(), REQUEST_MAX).unwrap(), request);
        let refused = encode(&Answer::Refused(Refused::Full { limit: 64 }));
        let Answer::Refused(why) = read::<Answer>(&mut refused.as_slice(), ANSWER_MAX).unwrap() else {
            panic!("another answer")
        };
        assert!(why.to_string().contains("--max-clients"));
    }

    #[test]
    fn too_long_is_refused_before_it_is_read() {
        let error = read::<Request>(&mut [0xFF_u8; 8].as_slice(), REQUEST_MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_an_error(bytes: Vec<u8>) {
            let _ = read::<Request>(&mut bytes.as_slice(), REQUEST_MAX);
        }
    }
}

//! A region that programs have mapped, as all sides describe it: what it is made of, how much of it may be resident, and
//! how it stands. The page store behind it is the [pager](crate::pager); the kernel's side is the crate of the userfaultfd
//! backend.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pager::{PAGE_BYTES, PagerCounters};

/// Spaces there can be at a time.
pub const SPACES_MAX: usize = 256;
/// How long memory nodes may be away unless told otherwise.
pub const LOST_WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u64)]
pub enum Kind {
    /// Memory that processes share: each page of the region is one page of it.
    Shared = 0,
    /// Anonymous memory of processes: the region is a pool of pages.
    Private = 1,
    /// Memory of a virtual machine, whose monitor has handed over its userfaultfd: pages come, and never leave.
    Foreign = 2,
}

impl Kind {
    /// The kind of this number, as a shared state has it.
    pub fn of(number: u64) -> Option<Kind> {
        [Kind::Shared, Kind::Private, Kind::Foreign].into_iter().find(|kind| *kind as u64 == number)
    }
}

/// What a space is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceOptions {
    /// Its number: random, so that it cannot be guessed.
    pub id: u64,
    /// The region.
    pub region: String,
    /// Whose memory it is.
    pub kind: Kind,
    /// Where the region begins.
    pub hpa: u64,
    /// Pages of the region.
    pub pages: u32,
    /// Pages that a view has room for; see [`view_pages`].
    pub view_pages: u32,
    /// Pages resident at most.
    pub limit: u32,
    /// Whether pages are fetched ahead.
    pub prefetch: bool,
    /// Whether the region was never written.
    pub fresh: bool,
    /// How long memory nodes may be away before pages count as lost.
    pub lost_wait: Duration,
    /// Whether pages stay in memory once they have come.
    pub stay: bool,
    /// The user whose memory it is; `None`: of all who may use this node's agent.
    pub owner: Option<u32>,
    /// When the region was created, in milliseconds since the Unix epoch, which tells it from another one of its name; 0: not
    /// said.
    pub created_ms: u64,
}

/// So many bytes in pages; of a region that fits, all and what the pager keeps free besides.
pub fn limit_pages(bytes: u64, region: u32) -> u32 {
    let all = region.saturating_add((region / 8).clamp(16, 2048));
    if bytes >= u64::from(region) * PAGE_BYTES as u64 { all } else { (bytes / PAGE_BYTES as u64) as u32 }
}

/// Pages of a region of so many bytes, as many as a space can have.
pub fn whole_pages(bytes: u64) -> u32 {
    (bytes / PAGE_BYTES as u64).min(PAGES_MAX) as u32
}

/// Pages that a space has at most, as its shared state has it.
const PAGES_MAX: u64 = (1 << 31) - 1;

/// What names of regions that are created for one program begin with.
pub const TEMPORARY: &str = "exec-";
/// Bytes of addresses that a process may reserve at most besides what it uses.
const RESERVED_MAX: u64 = 1 << 40;
/// Pages that a view of private memory has more than its region: for the probe page, and for windows that begin where
/// it suits their allocators.
pub const PRIVATE_SPARE: u32 = 32;

/// Pages that a view of a region of `pages` pages has room for: of private memory, what a process reserves besides what it
/// uses.
pub fn view_pages(kind: Kind, pages: u32) -> u32 {
    match kind {
        Kind::Private => {
            let reserved = pages.min((RESERVED_MAX / PAGE_BYTES as u64) as u32);
            pages.saturating_add(reserved).saturating_add(PRIVATE_SPARE)
        }
        Kind::Shared | Kind::Foreign => pages,
    }
}

/// Bytes of addresses that a process is given for private memory of `bytes` bytes.
pub fn window_bytes(bytes: u64) -> u64 {
    bytes.saturating_add(bytes.min(RESERVED_MAX))
}

/// What is to be mapped, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapRequest {
    /// The region.
    pub region: String,
    /// Whose memory it is.
    pub kind: Kind,
    /// Bytes that may be resident.
    pub limit: u64,
    /// Whether pages are fetched ahead.
    pub prefetch: bool,
    /// Whether the region was never written, so that its pages need not be fetched.
    pub fresh: bool,
    /// How long memory nodes may be away, in milliseconds, before pages count as lost.
    pub lost_wait_ms: u64,
    /// Whether pages stay in memory once they have come: for programs whose memory devices write to.
    #[serde(default)]
    pub stay: bool,
    /// Whether a socket comes with the request, before anything else, to which descriptors of forked children are sent: as
    /// long as they lie there, such a child does not read zeros when the agent dies before it has joined.
    #[serde(default)]
    pub keeps: bool,
    /// Whether to go on with a space that an agent that has died has left behind; its shared state comes with the request, and
    /// its memory if that is shared.
    pub resume: bool,
}

/// A region that is mapped, as `cn-agent paging` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagingView {
    /// The number of its space.
    pub space: u64,
    /// The region.
    pub region: String,
    /// Whose memory it is.
    pub kind: Kind,
    /// Bytes of the region.
    pub bytes: u64,
    /// Bytes that may be resident.
    pub limit: u64,
    /// Bytes that are.
    pub resident: u64,
    /// Pages of the region in use.
    pub slots_used: u32,
    /// Whether processes wait because the region has no room left for pages that have to leave.
    #[serde(default)]
    pub full: bool,
    /// Whether pages are fetched ahead.
    pub prefetch: bool,
    /// How long memory nodes may be away, in milliseconds.
    pub lost_wait_ms: u64,
    /// Whether processes of before are still expected.
    pub taking_over: bool,
    /// Connections that own it.
    pub owners: u32,
    /// The user whose memory it is; of all who may use this node's agent, if it is nobody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// Processes.
    pub members: Vec<PagingMember>,
    /// What was counted.
    pub counters: PagerCounters,
}

/// A process that has a region mapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagingMember {
    /// The process; 0 of one that has forked and not said yet who it is.
    pub pid: u32,
    /// Its view.
    pub view: u16,
    /// Bytes it has mapped.
    pub bytes: u64,
}

/// Why a mapped region cannot be changed as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    /// There is no space of this number.
    #[error("the region is not mapped any more")]
    Unknown,
    /// A limit that is too low.
    #[error("a limit of {limit} bytes is too low: at least {least} bytes have to be resident")]
    Limit {
        /// Bytes that were asked for.
        limit: u64,
        /// Bytes that are possible.
        least: u64,
    },
}

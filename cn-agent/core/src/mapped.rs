//! Common description of a region that programs map: its parts, its limit of resident bytes, and its state. The
//! [pager](crate::pager) manages its pages; the kernel's side is in the crate of the userfaultfd backend.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pager::{PAGE_BYTES, PagerCounters};
use crate::user_shares::ShareReached;

/// Maximum number of spaces, the states of mapped regions, at a time.
pub const SPACES_MAX: usize = 256;
/// Default of the longest outage of memory nodes that faults wait for; after a longer one, pages count as
/// lost.
pub const LOST_WAIT_DEFAULT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u64)]
pub enum MappingKind {
    /// Memory that processes share: each page of the region is one page of the memory.
    Shared = 0,
    /// Anonymous memory of processes; the region is a pool from which their pages get slots.
    Private = 1,
    /// Memory of a virtual machine, whose monitor has passed its userfaultfd: pages are fetched and never evicted.
    Foreign = 2,
}

impl MappingKind {
    /// The kind that a shared state stores as `number`; `None` for unknown numbers.
    pub fn of(number: u64) -> Option<MappingKind> {
        [MappingKind::Shared, MappingKind::Private, MappingKind::Foreign]
            .into_iter()
            .find(|kind| *kind as u64 == number)
    }
}

/// Parameters of a space, the state of one mapped region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceOptions {
    /// Number of the space: random, so that it cannot be guessed.
    pub id: u64,
    pub region: String,
    pub kind: MappingKind,
    /// First HPA of the region.
    pub hpa: u64,
    pub pages: u32,
    /// Number of pages of a view; see [`view_pages`].
    pub view_pages: u32,
    /// Maximum number of resident pages, over all processes.
    pub limit: u32,
    /// Whether pages are read ahead for readers in constant strides.
    pub prefetch: bool,
    /// Whether the region was never written, so that its pages need not be fetched.
    pub fresh: bool,
    /// Longest outage of memory nodes before pages count as lost.
    pub lost_wait: Duration,
    /// Whether pages stay resident: none is evicted.
    pub stay: bool,
    /// User id of the owner of the space's memory; `None`: all who may use this node's agent.
    pub owner: Option<u32>,
    /// Time of the region's creation, in milliseconds since the Unix epoch, which distinguishes the region from
    /// another one of its name; 0: unknown.
    pub created_ms: u64,
    /// User whose share of the agent's resources the space and its processes use up; `None` for root and the agent's
    /// user, or if users have no shares.
    pub user: Option<u32>,
}

/// Returns the limit of resident pages for `bytes` bytes. If all `region` pages fit, the limit is their number plus the
/// pager's reserve, so that no page is evicted.
pub fn limit_pages(bytes: u64, region: u32) -> u32 {
    let all = region.saturating_add((region / 8).clamp(16, 2048));
    if bytes >= u64::from(region) * PAGE_BYTES as u64 { all } else { (bytes / PAGE_BYTES as u64) as u32 }
}

/// Returns the number of whole pages in `bytes` bytes of a region, at most the number that a space can have.
pub fn whole_pages(bytes: u64) -> u32 {
    (bytes / PAGE_BYTES as u64).min(PAGES_MAX) as u32
}

/// Maximum number of pages of a space, given by the format of its shared state.
const PAGES_MAX: u64 = (1 << 31) - 1;

/// Prefix of names of regions that are created for one program.
pub const TEMPORARY: &str = "exec-";
/// Maximum number of bytes of addresses that a process may reserve beyond those it uses.
const RESERVED_MAX: u64 = 1 << 40;
/// Number of pages that private memory has in addition to the pages of its region and reserved addresses: for the probe
/// page, which names the process's view, and to align the address ranges of allocators.
pub(crate) const PRIVATE_SPARE: u32 = 32;

/// Number of pages of a view of a region of `pages` pages. A view of private memory has more pages than the
/// region, because a process reserves more addresses than it uses.
pub fn view_pages(kind: MappingKind, pages: u32) -> u32 {
    match kind {
        MappingKind::Private => {
            let reserved = pages.min((RESERVED_MAX / PAGE_BYTES as u64) as u32);
            pages.saturating_add(reserved).saturating_add(PRIVATE_SPARE)
        }
        MappingKind::Shared | MappingKind::Foreign => pages,
    }
}

/// Size in bytes of the address range that a process gets for private memory of `bytes` bytes.
pub fn window_bytes(bytes: u64) -> u64 {
    bytes.saturating_add(bytes.min(RESERVED_MAX))
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapRequest {
    pub region: String,
    pub kind: MappingKind,
    /// Maximum number of resident bytes, over all processes.
    pub limit: u64,
    /// Whether pages are read ahead for readers in constant strides.
    pub prefetch: bool,
    /// Whether the region was never written, so that its pages need not be fetched.
    pub fresh: bool,
    /// Longest outage of memory nodes, in milliseconds, before pages count as lost.
    pub lost_wait_ms: u64,
    /// Whether pages are never evicted: for programs in whose memory devices write.
    #[serde(default)]
    pub stay: bool,
    /// Whether the first descriptor sent with the request is a socket that keeps descriptors of forked children. While
    /// a child's descriptor is queued in this socket, the child does not read zeros if the agent dies before the child
    /// has joined.
    #[serde(default)]
    pub keeps: bool,
    /// Whether to adopt the space of a dead agent. The request then brings the space's shared state, and, for shared
    /// memory, its memory file.
    pub resume: bool,
    /// Size in bytes of a region that is not attached to this node yet; `None` for an attached one. Faults
    /// wait until the region is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incoming: Option<u64>,
}

impl MapRequest {
    /// A request to map an attached region, with pages read ahead.
    pub fn new(region: impl Into<String>, kind: MappingKind, limit: u64, lost_wait: Duration) -> MapRequest {
        MapRequest {
            region: region.into(),
            kind,
            limit,
            prefetch: true,
            fresh: false,
            lost_wait_ms: lost_wait.as_millis() as u64,
            stay: false,
            keeps: false,
            resume: false,
            incoming: None,
        }
    }
}

/// A mapped region, as `cn-agent paging` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagingView {
    /// Number of the region's space.
    pub space: u64,
    /// Name of the region, unique in the fabric.
    pub region: String,
    pub kind: MappingKind,
    /// Size of the region in bytes.
    pub bytes: u64,
    /// Maximum number of resident bytes, over all processes.
    pub limit: u64,
    /// Bytes of the region that are resident now, over all processes.
    pub resident: u64,
    /// Pages of the region that hold content.
    pub slots_used: u32,
    /// Whether evictions, and processes, wait because the region has no free slot left.
    #[serde(default)]
    pub full: bool,
    /// Whether faults wait because the region is moving to another node, or has not arrived on this node yet.
    #[serde(default)]
    pub suspended: bool,
    /// Whether pages are read ahead for readers in constant strides.
    pub prefetch: bool,
    /// Longest outage of memory nodes, in milliseconds, before pages count as lost.
    pub lost_wait_ms: u64,
    /// Whether processes served by a dead agent are still expected to rejoin.
    pub taking_over: bool,
    /// Number of connections that own the space.
    pub owners: u32,
    /// User id of the owner of the memory; `None`: all who may use this node's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    pub members: Vec<PagingMember>,
    pub counters: PagerCounters,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagingMember {
    /// Process id; 0 for a forked child that has not joined yet.
    pub pid: u32,
    /// Number of the process's view.
    pub view: u16,
    /// Bytes of the region that the process maps.
    pub bytes: u64,
}

/// Reason why a mapped region cannot be changed as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    #[error("the region is not mapped any more")]
    Unknown,
    #[error("{0} regions are mapped by programs, as many as the agent serves; unmap one")]
    Full(usize),
    #[error(transparent)]
    Share(#[from] ShareReached),
    /// The space cannot be suspended, or it is to be resumed and is not suspended.
    #[error(
        "the region's memory is suspended already, is being taken over, or is memory of a kind that cannot be suspended: only \
         the memory of `cn-agent vm` and of mapped regions can"
    )]
    NotSuspendable,
    #[error("another program maps the region")]
    Taken,
    #[error("a limit of {limit} bytes is too low: at least {least} bytes have to be resident")]
    Limit { limit: u64, least: u64 },
}

//! Paging: mapped regions, whose pages come from memory nodes when programs touch them.
//!
//! ```text
//!   program --fault--> userfaultfd --+                          +--> Transfers --bursts--> Engine
//!   program <--page--- ioctls <----- Space: Pager, Memory, members                            |
//!   helper  <--------> socket <------+                          +<--- Sink <-----------------+
//! ```
//!
//! A [`Space`] is one region being paged: its [`Pager`](crate::pager::Pager), the kernel's side of it ([`memory`]), its
//! [`Ledger`](ledger::Ledger), and the processes that have it mapped ([`member`]). [`Spaces`] are all of them, beside
//! one engine; whoever drives the engine calls [`Spaces::serve`] in each of its rounds. No thread but that one is
//! involved in a fault, and none of its steps waits.

mod claim;
mod ending;
mod full;
pub(crate) mod joining;
mod latency;
pub mod ledger;
pub mod member;
pub mod memory;
mod space;
mod spaces;
mod takeover;
pub mod transfers;
pub mod watchdog;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pager::PAGE_BYTES;

pub use claim::Claim;
pub use latency::{BOUNDS_NS, FaultTimes, FaultWatch, Histogram};
pub use space::{Made, MakeError, Space};
pub use spaces::{Joining, Spaces, is_paging};

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
    fn of(number: u64) -> Option<Kind> {
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
}

/// So many bytes in pages; of a region that fits, all and what the pager keeps free besides.
pub fn limit_pages(bytes: u64, region: u32) -> u32 {
    let all = region.saturating_add((region / 8).clamp(16, 2048));
    if bytes >= u64::from(region) * PAGE_BYTES as u64 { all } else { (bytes / PAGE_BYTES as u64) as u32 }
}

/// Pages of a region of so many bytes, as many as a space can have.
fn whole_pages(bytes: u64) -> u32 {
    (bytes / PAGE_BYTES as u64).min(PAGES_MAX) as u32
}

/// Pages that a space has at most, as its ledger has it.
const PAGES_MAX: u64 = (1 << 31) - 1;

/// What names of regions that are created for one program begin with.
pub const TEMPORARY: &str = "exec-";
/// Bytes of addresses that a process may reserve at most besides what it uses.
const RESERVED_MAX: u64 = 1 << 40;
/// Pages that a view of private memory has more than its region: for the probe page, and for windows that begin where
/// it suits their allocators.
const PRIVATE_SPARE: u32 = 32;

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

/// As much of a text as has room in a [`Welcome`](cxloe_member::wire::Welcome).
pub(crate) fn cut(text: &str) -> &str {
    let mut end = text.len().min(cxloe_member::wire::TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

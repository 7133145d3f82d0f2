//! Mirrored positions of routes: two legs on different memory nodes with the same content.
//!
//! ```text
//!   write --> both legs in sync, or filled at that page --> done once both have answered
//!   read  --> the lowest leg in sync
//!
//!              silent, or failed: asks the manager       the manager's commit
//!   Synced ----------------------------------------> Synced, failing ------------> Stale
//!      ^                                                                              | answers again
//!      | the manager's commit                                                         v
//!   Joining <------------- every missed page is copied (reported to the manager) -- Filling
//! ```
//!
//! * Only the manager declares a leg stale. A write that has reached only one leg counts as done only after
//!   the manager has declared the other leg stale. A write that waits for a failing leg ends when the manager
//!   has decided, or fails when the session's limit has passed.
//! * A leg that is not in sync misses pages, one bit each. A write to a missed page goes to the other leg
//!   alone; a write to any other page goes to both. So the missed pages only become fewer while the leg is
//!   filled.
//! * A page is locked for writes from its read until its copy is acknowledged (`fill`).
//! * A leg counts as in sync for writes from the moment at which it is reported as filled, because the
//!   manager may have committed the report before its answer arrives.

mod fill;
mod legs;
mod missed;
mod pairs;
mod watch;
mod window;

use alloc::vec::Vec;
use core::time::Duration;

use cxloe_wire::time::Time;

use fill::Fill;
pub use legs::LegTarget;
use missed::MissedPages;
use pairs::{OrphanedRead, Owed, Pairs};

/// Time without an answer after which the manager is asked to declare a leg stale.
const SILENCE_MAX: Duration = Duration::from_millis(25);
/// Interval at which the legs are checked: for silence, for losses of content, and for the return of stale
/// ones.
const WATCH_INTERVAL: Duration = Duration::from_millis(5);
/// Interval at which a report to the manager is repeated until it is answered.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LegMode {
    /// In sync: always written, and read from if it is the first such leg.
    Synced,
    /// Filled and reported to the manager: written like a leg in sync, but not read from.
    Joining,
    /// Being filled: written at the pages that it does not miss.
    Filling,
    /// Neither read nor written.
    Stale,
}

/// A leg, and the pages that it misses.
#[derive(Clone, Debug)]
struct MirrorLeg {
    /// Index of the first session with the leg's memory node.
    peer: usize,
    /// First CMem address of the leg.
    cmem: u64,
    incarnation: Option<u64>,
    mode: LegMode,
    /// Set while the leg is in sync and has missed a write, or is silent. The manager then decides whether it
    /// becomes stale.
    failing: bool,
    /// Set if the leg is in sync and has missed a write or refused a read. Only the manager's decision then
    /// ends `failing`.
    missed_write: bool,
    /// Time at which the leg became stale or failing.
    since: Time,
    /// Time of the last report about the leg.
    reported: Option<Time>,
    /// Empty for a leg in sync, unless a restored store of the manager lists it so, or a write has failed that the
    /// manager did not decide about in time.
    missed: MissedPages,
}

impl MirrorLeg {
    /// Whether a write counts as done only when it has reached this leg, or the manager has declared the leg stale.
    fn must_have(&self) -> bool {
        matches!(self.mode, LegMode::Synced | LegMode::Joining)
    }

    /// Whether a write of `page` goes to the leg.
    fn is_written(&self, page: u64) -> bool {
        self.must_have() || self.mode == LegMode::Filling && !self.missed.contains(page)
    }
}

#[derive(Debug)]
struct Mirror {
    /// First HPA of the route.
    route: u64,
    /// Position in the route's interleave set.
    position: u8,
    /// Size of each leg in bytes.
    bytes: u64,
    /// Epoch of the region in the manager's last description.
    epoch: u64,
    /// Epoch in which the leg that is [`LegMode::Joining`] was reported as filled.
    filled_epoch: u64,
    /// Index of the leg to read from.
    reads: usize,
    legs: [MirrorLeg; 2],
}

impl Mirror {
    /// Number of pages of each leg.
    fn pages(&self) -> u64 {
        self.bytes.div_ceil(4096)
    }

    /// Records that a leg misses a page, even if the leg counts as in sync until the manager has decided.
    #[cold]
    fn miss(&mut self, side: usize, page: u64) {
        let pages = self.pages();
        let missed = &mut self.legs[side].missed;
        if missed.is_empty() {
            *missed = MissedPages::none(pages);
        }
        missed.insert(page);
    }
}

/// A mirrored address: the mirror's number, and the offset of the address in the mirror's legs.
#[derive(Clone, Copy, Debug)]
pub(super) struct MirrorAt {
    number: u16,
    offset: u64,
}

pub(super) struct Mirrors {
    list: Vec<Option<Mirror>>,
    pairs: Pairs,
    /// Second request of a mirrored write, for which the transmit ring had no room after the first.
    owed: Option<Owed>,
    /// Reads that a leg did not answer, to be sent to the other leg.
    orphans: Vec<OrphanedRead>,
    fill: Fill,
    /// Whether completions have left work for [`Engine::settle_mirrors`](super::Engine::settle_mirrors).
    pending: bool,
    /// Whether writes may have become complete because they no longer wait for one of their legs.
    ended: bool,
    /// Time of the next check of the legs.
    watch_at: Time,
}

impl Default for Mirrors {
    fn default() -> Self {
        Mirrors {
            list: Vec::new(),
            pairs: Pairs::default(),
            owed: None,
            orphans: Vec::new(),
            fill: Fill::default(),
            pending: false,
            ended: false,
            watch_at: Time(u64::MAX),
        }
    }
}

impl Mirrors {
    /// Whether no position has ever been mirrored. The entries of former mirrors are kept, so that operations
    /// on them end properly.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether the second request of a write has not been sent yet.
    #[inline]
    pub fn owes(&self) -> bool {
        self.owed.is_some()
    }

    /// Whether completions have left work for `settle_mirrors`.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.pending
    }

    /// Whether any request has not ended, even of a mirror that no longer exists.
    fn has_unfinished(&self) -> bool {
        self.pairs.has_any() || !self.orphans.is_empty() || self.owed.is_some()
    }

    /// Whether a mirror whose leg to read from has lost its content has another leg in sync.
    #[cold]
    pub fn has_content(&self, number: u16) -> bool {
        self.get(number).is_some_and(|mirror| mirror.legs[1 - mirror.reads].mode == LegMode::Synced)
    }

    /// Returns the first session with each leg's memory node, and the first CMem address of each leg.
    #[inline]
    pub fn places(&self, number: u16) -> Option<[(usize, u64); 2]> {
        Some(self.get(number)?.legs.each_ref().map(|leg| (leg.peer, leg.cmem)))
    }

    /// Whether any mirror has a leg on the memory node of this peer.
    pub fn has_peer(&self, peer: usize) -> bool {
        self.list.iter().flatten().any(|mirror| mirror.legs.iter().any(|leg| leg.peer == peer))
    }

    fn get(&self, number: u16) -> Option<&Mirror> {
        self.list.get(usize::from(number))?.as_ref()
    }

    fn get_mut(&mut self, number: u16) -> Option<&mut Mirror> {
        self.list.get_mut(usize::from(number))?.as_mut()
    }
}

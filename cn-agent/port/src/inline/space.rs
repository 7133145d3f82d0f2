//! A mapped region as the thread that holds the lock uses it: its pager, memory and transfers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cxloe_cn_core::engine::{Engine, EngineError, RequestId, Sink};
use cxloe_cn_core::pager::{Access, Fault, Io, MappingId, Memory, PageBuffers, PageState, Pager, ViewId};
use cxloe_cn_core::transfers::{BufferSource, FinishedTransfer, PageIo, Transfers};
use cxloe_paging::memory::AnonymousPages;
use cxloe_wire::Transmit;
use cxloe_wire::time::Time;

use super::counter::{PageRequest, PageRequestResult, PageRequestState};

/// Maximum number of regions mapped over one port.
pub const SPACES_MAX: usize = 16;
/// Index of the space in the region's transfers, which serve no other space.
const SPACE: u16 = 0;
/// Number of regions mapped by this process so far: it gives each region's transfers a number of their own.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A mapped region, with its pager, memory and transfers.
pub struct Space {
    pub pager: Pager,
    memory: AnonymousPages,
    pub view: ViewId,
    mapping: MappingId,
    hpa: u64,
    wait_limit: Duration,
    pub transfers: Transfers,
    ended: Vec<FinishedTransfer>,
}

/// Gives transfers access to the pager's page buffers.
struct PagerBuffers<'a>(&'a mut PageBuffers);

impl BufferSource for PagerBuffers<'_> {
    #[inline]
    fn buffers(&mut self, _: u16) -> Option<&mut PageBuffers> {
        Some(self.0)
    }
}

impl Space {
    /// Creates the space of the region at `hpa`, whose memory nodes may be absent for up to `wait_limit`.
    pub fn new(
        pager: Pager,
        memory: AnonymousPages,
        (view, mapping): (ViewId, MappingId),
        hpa: u64,
        wait_limit: Duration,
    ) -> Space {
        let (transfers, ended) =
            (Transfers::new(MADE.fetch_add(1, Ordering::Relaxed)), Vec::with_capacity(1024));
        Space { pager, memory, view, mapping, hpa, wait_limit, transfers, ended }
    }

    /// Runs `act` on the pager with its interfaces: the region's memory and transfers.
    #[inline]
    pub fn page<R>(&mut self, act: impl FnOnce(&mut Pager, &mut Io<'_>) -> R) -> R {
        let Space { pager, memory, transfers, hpa, wait_limit, .. } = self;
        let mut page_io =
            PageIo { transfers, space: SPACE, hpa: *hpa, wait_limit: *wait_limit, now: Time::ZERO };
        act(pager, &mut Io { memory, store: &mut page_io })
    }

    /// Advances transfers, all of them or only demanded ones; returns the number of segments sent.
    #[inline]
    pub fn send(
        &mut self,
        engine: &mut Engine,
        now: Time,
        tx: &mut dyn Transmit,
        demand_alone: bool,
    ) -> usize {
        let Space { pager, transfers, ended, .. } = self;
        let source = &mut PagerBuffers(pager.buffers());
        if demand_alone {
            transfers.advance_demand(engine, now, tx, source, ended)
        } else {
            transfers.advance(engine, now, tx, source, ended)
        }
    }

    /// Passes transfers that have ended to the pager.
    #[inline]
    pub fn finish(&mut self) {
        while let Some(FinishedTransfer { buffer, fetch, outcome, .. }) = self.ended.pop() {
            self.page(|pager, io| {
                if fetch { pager.fetched(buffer, outcome, io) } else { pager.written(buffer, outcome, io) }
            });
        }
    }

    /// Handles a thread's request: ends it if the page is accessible, otherwise passes it to the pager.
    #[inline]
    pub fn consider(
        &mut self,
        PageRequest { page, write, already_waiting, .. }: PageRequest,
    ) -> PageRequestState {
        let (view, mapping) = (self.view, self.mapping);
        let Some(entry) = self.pager.entry_of(view, page) else {
            return PageRequestState::Ended(PageRequestResult::Served);
        };
        use PageState::*;
        let access = match entry.state() {
            Lost => return PageRequestState::Ended(PageRequestResult::Lost),
            // The pager has had the request before. If no fault is pending now, the pager has served the request, or
            // has dropped it because the page was evicted at once. The request ends in both cases: the thread repeats
            // its access, and faults again if necessary.
            _ if already_waiting => {
                let waits = self.pager.has_pending_fault(mapping, page);
                return if waits {
                    PageRequestState::Told
                } else {
                    PageRequestState::Ended(PageRequestResult::Served)
                };
            }
            Absent | Fetching | Staged | Installing | Dropping | Zeroing => Access::Missing,
            Clean | Cleaning if write => Access::Protected,
            // The entry says that the page is resident, but the page is absent: the program has discarded it.
            Clean | Cleaning | Dirty if !self.memory.is_present(view, page) => Access::Missing,
            Clean | Cleaning => return PageRequestState::Ended(PageRequestResult::Served),
            Dirty => {
                let _ = self.memory.unprotect(mapping, page);
                return PageRequestState::Ended(PageRequestResult::Served);
            }
        };
        self.page(|pager, io| pager.fault(Fault { mapping, page, access, write }, io));
        PageRequestState::Told
    }
}

/// Regions of a port, by index.
#[derive(Default)]
pub struct Spaces {
    places: [Option<Box<Space>>; SPACES_MAX],
    /// All indices from `end` on are free, so that with few regions only few indices are scanned.
    end: usize,
}

impl Spaces {
    /// Adds a region and returns its index, or returns the region if there is no room.
    pub fn add(&mut self, space: Box<Space>) -> Result<u8, Box<Space>> {
        let Some(at) = self.places.iter().position(Option::is_none) else { return Err(space) };
        self.places[at] = Some(space);
        self.end = self.end.max(at + 1);
        Ok(at as u8)
    }

    /// Removes and returns a region; answers that are still in flight for it will be dropped.
    pub fn take(&mut self, at: u8) -> Option<Box<Space>> {
        let taken = self.places.get_mut(usize::from(at))?.take();
        self.end = self.places.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        taken
    }

    #[inline]
    pub fn get(&mut self, at: u8) -> Option<&mut Space> {
        self.places.get_mut(usize::from(at))?.as_deref_mut()
    }

    #[inline]
    pub fn iter(&mut self) -> impl Iterator<Item = &mut Space> {
        self.places[..self.end].iter_mut().flatten().map(|space| &mut **space)
    }

    /// The region whose transfers made the operation `id`, if there is one.
    #[inline]
    fn of(&mut self, id: RequestId) -> Option<&mut Space> {
        self.iter().find(|space| space.transfers.owns(id))
    }
}

/// Passes the engine's results to the transfers that they belong to.
impl Sink for Spaces {
    #[inline]
    fn read(&mut self, id: RequestId, data: &[u8]) {
        if let Some(Space { pager, transfers, ended, .. }) = self.of(id) {
            transfers.read(id, data, &mut PagerBuffers(pager.buffers()), ended);
        }
    }

    #[inline]
    fn written(&mut self, id: RequestId) {
        if let Some(Space { transfers, ended, .. }) = self.of(id) {
            transfers.written(id, ended);
        }
    }

    fn failed(&mut self, id: RequestId, error: EngineError) {
        if let Some(Space { transfers, ended, .. }) = self.of(id) {
            transfers.failed(id, error, ended);
        }
    }
}

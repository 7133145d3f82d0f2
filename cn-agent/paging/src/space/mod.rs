//! One region being paged: faults and other events come in, pages and orders go out.

mod children;
pub(crate) mod events;
mod full;
mod members;
pub(crate) mod suspension;
mod takeover;
mod write_back;

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use cxloe_closer::ClosedElsewhere;
use cxloe_cn_core::mapped::{MappingKind, SpaceOptions, whole_pages};
use cxloe_cn_core::pager::{
    BufferUse, Entry, Io, MappingId, NO_SLOT, PAGE_BYTES, PageBuffers, PageTable, Pager, PagerOptions, Slots,
    ViewId,
};
use cxloe_cn_core::transfers::{FinishedTransfer, PageIo, Transfers};
use cxloe_link::Clock;
use cxloe_wire::time::Time;

use super::memory::{ForeignPages, KernelMemory, Mapped, PrivatePages, SharedPages};
use super::shared_state::{SharedState, SharedStateError};
use super::watchdog::Watchdog;
use children::PendingChild;
use full::FullRegion;
use members::PendingDiscard;
use suspension::Suspension;
use takeover::ExpectedProcesses;
use write_back::WriteBackRequest;

/// Number of the view in spaces that have only one.
pub(super) const ONLY: ViewId = ViewId(0);
/// Number of resident pages for which all memory is allocated at the start: 256 MiB. Memory for more is allocated on
/// demand.
const RESERVE_MAX: u32 = 1 << 16;

#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    #[error("memory for paging could not be made: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    SharedState(#[from] SharedStateError),
    #[error("the memory of the region did not come with its shared state")]
    NoMemory,
    /// The memory file belongs to another space, or the region is smaller than the space.
    #[error("the memory that came with the shared state is another one's")]
    OtherMemory,
}

/// Parts of a space that its owner receives.
#[derive(Debug)]
pub struct NewSpace {
    /// Number of the space, by which programs name it.
    pub id: u64,
    pub pages: u32,
    /// Descriptor of the shared state, which the owner keeps for the agent's successor.
    pub shared_state: OwnedFd,
    /// Descriptor of the memory file, if processes share the memory.
    pub memory: Option<OwnedFd>,
}

/// A region being paged, with its pager, its memory in the kernel and its members.
#[derive(Debug)]
pub struct Space {
    pub(super) options: SpaceOptions,
    /// Index of the space among all spaces.
    pub(super) place: u16,
    pub(super) pager: Pager,
    /// Clock for the durations of faults, common to all spaces.
    pub(super) clock: Clock,
    pub(super) memory: KernelMemory,
    pub(super) shared_state: SharedState,
    pub(super) owners: u32,
    /// Socket to which descriptors of forked children are sent.
    keeper: Option<ClosedElsewhere<OwnedFd>>,
    pub(super) takeover: Option<ExpectedProcesses>,
    /// Reason why the last forked child that the agent could not serve was refused.
    pub(super) denied: Option<String>,
    /// Whether the event of a fork could not be read when it was last tried, for lack of a descriptor.
    fork_waits: bool,
    /// Forked children whose tables are being copied, in the order in which they are.
    pub(super) children: VecDeque<PendingChild>,
    /// Whether the pager was going through a whole table at the end of the last turn. If so, no events are read: faults
    /// and forks wait in the kernel. Between two such walks, the events of every process are read, and a turn does
    /// other work.
    is_walking: bool,
    /// Whether the space was adopted from a dead agent, whose record of discarded pages is lost.
    pub(super) adopted: bool,
    pub(super) cleans: Vec<WriteBackRequest>,
    /// Time at which the space ends at the latest, set when it has no owner and no member any more; it ends earlier if
    /// all pages have been written back.
    pub(super) ending: Option<Time>,
    /// Whether the content is dropped when the space ends.
    pub(super) unwanted: bool,
    /// Whether the region was destroyed or emptied while it was mapped. A region of its name is another one until the
    /// space's own is attached again.
    pub(super) region_gone: bool,
    /// Whether the space has ever had an owner.
    pub(super) used: bool,
    /// State while the region is full and faults wait; else `None`.
    pub(super) full: Option<FullRegion>,
    /// State while faults wait because the region moves to another compute node, or is not attached here yet.
    pub(super) suspension: Option<Suspension>,
    /// Whether the space's descriptors have changed since epoll was last updated.
    pub(super) changed: bool,
    /// Removed mappings, kept open until `watch` has removed their descriptors from epoll.
    pub(super) parted: Vec<Mapped>,
    /// Discards of members that are not complete.
    discards: VecDeque<PendingDiscard>,
    /// Reason of losses that was last sent to the members.
    notified_loss: Option<String>,
    /// The thread that caused the latest fault since the last call of `take_faulting`: its mapping and thread id.
    faulting: Option<(MappingId, u32)>,
}

impl Space {
    /// Creates a space. This takes time and memory, so the serving thread must not call it.
    pub fn create(options: SpaceOptions) -> Result<Space, MakeError> {
        let shared_state = SharedState::create(&options)?;
        let memory = match options.kind {
            MappingKind::Shared => {
                let memory = SharedPages::create(options.pages)?;
                shared_state.set_memory(memory.inode()?);
                KernelMemory::Shared(memory)
            }
            MappingKind::Private => KernelMemory::Private(PrivatePages::new(Watchdog::start()?)),
            MappingKind::Foreign => KernelMemory::Foreign(ForeignPages::default()),
        };
        let mut space = Space::over(options, memory, shared_state);
        if space.options.kind != MappingKind::Private {
            let table = space.empty_table(ONLY)?;
            space.pager.add_view(table, true).map_err(io::Error::other)?;
        }
        Ok(space)
    }

    /// Adopts a dead agent's space from `shared_state` and, if processes share the memory, its memory file.
    /// `place` returns the region's address and its size in bytes, which is larger than in the options if the
    /// region has grown; `None` if the region does not exist, or is another one of the same name.
    pub fn adopt(
        shared_state: OwnedFd,
        memory: Option<OwnedFd>,
        place: impl FnOnce(&SpaceOptions) -> Option<(u64, u64)>,
    ) -> Result<Option<Space>, MakeError> {
        let (shared_state, options) = SharedState::adopt(shared_state)?;
        let Some((hpa, bytes)) = place(&options) else { return Ok(None) };
        if u64::from(options.pages) * PAGE_BYTES as u64 > bytes {
            return Err(MakeError::OtherMemory);
        }
        let mut options = SpaceOptions { hpa, ..options };
        if options.kind == MappingKind::Private {
            options.pages = options.pages.max(whole_pages(bytes));
            shared_state.set_pages(options.pages);
        }
        let memory = match options.kind {
            MappingKind::Shared => {
                let memory = SharedPages::adopt(memory.ok_or(MakeError::NoMemory)?, options.pages)?;
                if memory.inode()? != shared_state.memory() {
                    return Err(MakeError::OtherMemory);
                }
                KernelMemory::Shared(memory)
            }
            MappingKind::Private => KernelMemory::Private(PrivatePages::new(Watchdog::start()?)),
            MappingKind::Foreign => KernelMemory::Foreign(ForeignPages::default()),
        };
        let mut space = Space::over(options, memory, shared_state);
        space.take_over()?;
        space.adopted = true;
        Ok(Some(space))
    }

    fn over(options: SpaceOptions, memory: KernelMemory, shared_state: SharedState) -> Space {
        let SpaceOptions { kind, pages, limit, prefetch, fresh, stay, .. } = options;
        let room = options.view_pages;
        let slots = match kind {
            MappingKind::Private => Slots::pool(pages, fresh),
            MappingKind::Shared | MappingKind::Foreign => Slots::own(pages, fresh),
        };
        let pager =
            PagerOptions { pages: room, limit, prefetch, evict: kind != MappingKind::Foreign && !stay };
        let mut pager = Pager::new(pager, slots);
        if limit <= RESERVE_MAX {
            pager.reserve();
        }
        Space {
            options,
            place: 0,
            pager,
            clock: Clock::new(),
            memory,
            shared_state,
            owners: 0,
            keeper: None,
            takeover: None,
            denied: None,
            fork_waits: false,
            children: VecDeque::new(),
            is_walking: false,
            adopted: false,
            cleans: Vec::new(),
            ending: None,
            unwanted: false,
            region_gone: false,
            used: false,
            full: None,
            suspension: None,
            changed: true,
            parted: Vec::new(),
            discards: VecDeque::new(),
            notified_loss: None,
            faulting: None,
        }
    }

    /// Counts the space and its processes towards the limits of `user`; `None` stands for root and the agent's user.
    pub fn charge_to(&mut self, user: Option<u32>) {
        self.options.user = user;
    }

    /// Parameters of the space, with the present limit of resident pages.
    pub fn options(&self) -> &SpaceOptions {
        &self.options
    }

    /// Number of the space's owners, each of which is a connection.
    pub fn owners(&self) -> u32 {
        self.owners
    }

    /// The parts of the space that a further owner receives.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn made(&self) -> io::Result<NewSpace> {
        let memory = match &self.memory {
            KernelMemory::Shared(shared) => Some(shared.descriptor().try_clone_to_owned()?),
            _ => None,
        };
        Ok(NewSpace {
            id: self.options.id,
            pages: self.options.pages,
            shared_state: self.shared_state.share()?,
            memory,
        })
    }

    /// Table of a new view in the shared state, with all entries cleared.
    pub(super) fn empty_table(&self, view: ViewId) -> io::Result<PageTable> {
        let table = self.shared_state.table(view.0)?;
        let own = self.options.kind != MappingKind::Private && !self.options.fresh;
        table.fill(|page| Entry::absent(if own { page } else { NO_SLOT }));
        Ok(table)
    }

    /// Calls the pager with its interfaces: the kernel, and the transfers of this space.
    #[inline]
    pub(super) fn with_io<T>(
        &mut self,
        transfers: &mut Transfers,
        call: impl FnOnce(&mut Pager, &mut Io<'_>) -> T,
    ) -> T {
        let Space { options, place, pager, memory, clock, .. } = self;
        let (space, hpa, wait_limit, now) = (*place, options.hpa, options.lost_wait, clock.now());
        let mut store = PageIo { transfers, space, hpa, wait_limit, now };
        call(pager, &mut Io { memory: memory.as_memory(), store: &mut store })
    }

    #[inline]
    pub(super) fn buffers(&mut self) -> &mut PageBuffers {
        self.pager.buffers()
    }

    /// Handles the end of a transfer of this space.
    #[inline]
    pub(super) fn transferred(&mut self, ended: FinishedTransfer, transfers: &mut Transfers) {
        let FinishedTransfer { buffer, fetch, outcome, cause, began, .. } = ended;
        if let Some(error) = cause {
            self.notify_loss(error);
        }
        let wanted = began.and_then(|began| match self.pager.buffers().purpose(buffer) {
            BufferUse::Fetch { page, mapping: Some(mapping), .. } => Some((mapping, page, began)),
            _ => None,
        });
        self.with_io(transfers, |pager, io| {
            if fetch { pager.fetched(buffer, outcome, io) } else { pager.written(buffer, outcome, io) }
        });
        if let (Some((mapping, page, began)), Ok(())) = (wanted, outcome) {
            transfers.watch.fetched(self.place, mapping, page, began, self.clock.now());
        }
    }

    /// Lets the pager, write-backs and a suspension do a bounded amount of work; returns the amount.
    #[inline]
    pub(super) fn turn(&mut self, transfers: &mut Transfers) -> usize {
        let walked = self.pager.is_walking();
        let mut work = if self.discards.is_empty() || walked { 0 } else { self.advance_discards(transfers) };
        if self.is_held() {
            return work;
        }
        if self.pager.has_work() {
            work += self.with_io(transfers, |pager, io| pager.turn(io));
        }
        // A discard that has waited for a walk is not to wait for the next one, too.
        if walked && !self.pager.is_walking() && !self.discards.is_empty() {
            work += self.advance_discards(transfers);
        }
        if !self.children.is_empty() {
            self.admit_children();
        }
        self.is_walking = self.pager.is_walking();
        if !self.cleans.is_empty() {
            work += self.clean(transfers);
        }
        if self.suspension.is_some() {
            work += self.leave(transfers);
        }
        let mut some_gone = false;
        while let Some(id) = self.pager.take_ended() {
            some_gone |= self.memory.mappings().get(id).is_some_and(Mapped::is_gone);
        }
        if some_gone {
            self.remove_ended();
        }
        work
    }

    /// Whether the space has background work to do, such as evictions or write-backs, for which no event will arrive.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        let works = self.pager.has_work() || !self.cleans.is_empty() || self.suspension.is_some();
        !self.discards.is_empty() || (works && !self.is_held())
    }

    /// Process id and thread id of the last thread that faulted since the last call.
    pub(super) fn take_faulting(&mut self) -> Option<(u32, u32)> {
        let (mapping, thread) = self.faulting.take()?;
        let pid = self.memory.mappings().get(mapping)?.pid;
        (pid != 0 && thread != 0).then_some((pid, thread))
    }

    pub(super) fn set_limit(&mut self, pages: u32) {
        self.options.limit = pages;
        self.shared_state.set_limit(pages);
        self.pager.set_limit(pages);
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use std::time::Duration;

    use cxloe_cn_core::mapped::{MappingKind, SpaceOptions, view_pages};

    pub const HPA: u64 = 1 << 40;

    /// Options of a space for the region `r`, which has 64 pages.
    pub fn options(kind: MappingKind) -> SpaceOptions {
        SpaceOptions {
            id: rand::random(),
            region: "r".into(),
            kind,
            hpa: HPA,
            pages: 64,
            view_pages: view_pages(kind, 64),
            limit: 64,
            prefetch: true,
            fresh: false,
            lost_wait: Duration::from_secs(1),
            stay: false,
            owner: None,
            created_ms: 0,
            user: None,
        }
    }
}

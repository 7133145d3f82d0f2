//! One region being paged: faults and other events in, pages and orders out.

mod ending;
mod events;
mod full;
mod members;
mod takeover;

use std::io;
use std::os::fd::OwnedFd;

use cxloe_cn_core::mapped::{Kind, SpaceOptions, whole_pages};
use cxloe_cn_core::pager::{
    Entry, Io, MappingId, NO_SLOT, PAGE_BYTES, PageBuffers, PageTable, Pager, PagerOptions, Slots, Use,
    ViewId,
};
use cxloe_cn_core::transfers::{Ended, PageIo, Transfers};
use cxloe_wire::time::Time;

use super::memory::{Foreign, KernelMemory, Mapped, Private, Shared};
use super::shared_state::{SharedState, SharedStateError};
use super::watchdog::Watchdog;
use ending::Clean;
use full::Full;
use takeover::TakeOver;

/// The view of a space that has only one.
pub(super) const ONLY: ViewId = ViewId(0);
/// Resident pages for which everything is set aside at the start: 256 MiB. Beyond, room is taken as it is needed.
const RESERVE_MAX: u32 = 1 << 16;

/// Why there is no space.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The system refuses.
    #[error("memory for paging could not be made: {0}")]
    Io(#[from] io::Error),
    /// What a predecessor left behind is of no use.
    #[error(transparent)]
    SharedState(#[from] SharedStateError),
    /// The space cannot be taken over.
    #[error("the memory of the region did not come with its shared state")]
    NoMemory,
    /// What came is of another space.
    #[error("the memory that came with the shared state is another one's")]
    OtherMemory,
}

/// What whoever maps a region gets of its space.
#[derive(Debug)]
pub struct Made {
    /// The space's number.
    pub id: u64,
    /// Pages of the region.
    pub pages: u32,
    /// The shared state, to keep for the agent's successor.
    pub shared_state: OwnedFd,
    /// The memory, if processes share it.
    pub memory: Option<OwnedFd>,
}

/// A region being paged.
#[derive(Debug)]
pub struct Space {
    pub(super) options: SpaceOptions,
    /// Its place among all spaces.
    pub(super) place: u16,
    pub(super) pager: Pager,
    pub(super) memory: KernelMemory,
    pub(super) shared_state: SharedState,
    pub(super) owners: u32,
    /// Where descriptors of forked children are kept.
    keeper: Option<OwnedFd>,
    pub(super) takeover: Option<TakeOver>,
    /// Whether a predecessor had it, of whom nobody knows what its programs had discarded.
    pub(super) adopted: bool,
    pub(super) cleans: Vec<Clean>,
    /// Since when nobody has it, and when what cannot be written back is given up.
    pub(super) ending: Option<Time>,
    /// Whether what is in it is of no use to anybody when it ends.
    pub(super) unwanted: bool,
    /// Whether anybody has had it yet.
    pub(super) used: bool,
    /// Since when its region is full and somebody waits.
    pub(super) full: Option<Full>,
    /// Whether its descriptors are others than before.
    pub(super) changed: bool,
    /// Those that are of no use any more, until nobody waits on them.
    pub(super) parted: Vec<Mapped>,
    /// Why pages are lost, as its members were told last.
    told: Option<String>,
    /// The thread that faulted last since this was last asked, and whose it is.
    faulting: Option<(MappingId, u32)>,
}

impl Space {
    /// A new space. Takes time and memory: not for the thread that serves.
    ///
    /// # Errors
    /// Any [`MakeError`].
    pub fn create(options: SpaceOptions) -> Result<Space, MakeError> {
        let shared_state = SharedState::create(&options)?;
        let memory = match options.kind {
            Kind::Shared => {
                let memory = Shared::create(options.pages)?;
                shared_state.set_memory(memory.inode()?);
                KernelMemory::Shared(memory)
            }
            Kind::Private => KernelMemory::Private(Private::new(Watchdog::start()?)),
            Kind::Foreign => KernelMemory::Foreign(Foreign::default()),
        };
        let mut space = Space::over(options, memory, shared_state);
        if space.options.kind != Kind::Private {
            let table = space.empty_table(ONLY)?;
            space.pager.add_view(table, true).map_err(io::Error::other)?;
        }
        Ok(space)
    }

    /// What a predecessor has left behind: `shared_state` and, if the memory is shared, that. `place` finds for what it says
    /// of the region where that begins and how many bytes it has: more than the predecessor knew, if it has grown since.
    /// `None` if it is not there, or is another one.
    ///
    /// # Errors
    /// Any [`MakeError`].
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
        if options.kind == Kind::Private {
            options.pages = options.pages.max(whole_pages(bytes));
            shared_state.set_pages(options.pages);
        }
        let memory = match options.kind {
            Kind::Shared => {
                let memory = Shared::adopt(memory.ok_or(MakeError::NoMemory)?, options.pages)?;
                if memory.inode()? != shared_state.memory() {
                    return Err(MakeError::OtherMemory);
                }
                KernelMemory::Shared(memory)
            }
            Kind::Private => KernelMemory::Private(Private::new(Watchdog::start()?)),
            Kind::Foreign => KernelMemory::Foreign(Foreign::default()),
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
            Kind::Private => Slots::pool(pages, fresh),
            Kind::Shared | Kind::Foreign => Slots::own(pages, fresh),
        };
        let pager = PagerOptions { pages: room, limit, prefetch, evict: kind != Kind::Foreign && !stay };
        let mut pager = Pager::new(pager, slots);
        if limit <= RESERVE_MAX {
            pager.reserve();
        }
        Space {
            options,
            place: 0,
            pager,
            memory,
            shared_state,
            owners: 0,
            keeper: None,
            takeover: None,
            adopted: false,
            cleans: Vec::new(),
            ending: None,
            unwanted: false,
            used: false,
            full: None,
            changed: true,
            parted: Vec::new(),
            told: None,
            faulting: None,
        }
    }

    /// What it is made of.
    pub fn options(&self) -> &SpaceOptions {
        &self.options
    }

    /// How many have it mapped, by connections of their own.
    pub fn owners(&self) -> u32 {
        self.owners
    }

    /// What those who map it get.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn made(&self) -> io::Result<Made> {
        let memory = match &self.memory {
            KernelMemory::Shared(shared) => Some(shared.descriptor().try_clone_to_owned()?),
            _ => None,
        };
        Ok(Made {
            id: self.options.id,
            pages: self.options.pages,
            shared_state: self.shared_state.share()?,
            memory,
        })
    }

    /// The shared state's table of a view, its pages as those of a new view.
    pub(super) fn empty_table(&self, view: ViewId) -> io::Result<PageTable> {
        let table = self.shared_state.table(view.0)?;
        let own = self.options.kind != Kind::Private && !self.options.fresh;
        (0..table.len()).for_each(|page| {
            table.set(page, Entry::absent(if own { page } else { NO_SLOT }));
        });
        Ok(table)
    }

    /// Calls the pager with all it acts through: the kernel, and the transfers as this space's.
    #[inline]
    pub(super) fn with_io<T>(
        &mut self,
        transfers: &mut Transfers,
        call: impl FnOnce(&mut Pager, &mut Io<'_>) -> T,
    ) -> T {
        let Space { options, place, pager, memory, .. } = self;
        let mut store = PageIo { transfers, space: *place, hpa: options.hpa, patience: options.lost_wait };
        call(pager, &mut Io { memory: memory.as_memory(), store: &mut store })
    }

    #[inline]
    pub(super) fn buffers(&mut self) -> &mut PageBuffers {
        self.pager.buffers()
    }

    /// A transfer has ended.
    #[inline]
    pub(super) fn transferred(&mut self, ended: Ended, transfers: &mut Transfers) {
        let Ended { buffer, fetch, outcome, cause, began, .. } = ended;
        if let Some(error) = cause {
            self.tell_why(error);
        }
        let wanted = began.and_then(|began| match self.pager.buffers().purpose(buffer) {
            Use::Fetch { page, mapping: Some(mapping), .. } => Some((mapping, page, began)),
            _ => None,
        });
        self.with_io(transfers, |pager, io| {
            if fetch { pager.fetched(buffer, outcome, io) } else { pager.written(buffer, outcome, io) }
        });
        if let (Some((mapping, page, began)), Ok(())) = (wanted, outcome) {
            transfers.watch.fetched(self.place, mapping, page, began);
        }
    }

    /// Goes on with what nobody waits for in particular; how much was done.
    #[inline]
    pub(super) fn turn(&mut self, transfers: &mut Transfers) -> usize {
        let mut work = 0;
        if self.pager.has_work() {
            work += self.with_io(transfers, |pager, io| pager.turn(io));
        }
        if !self.cleans.is_empty() {
            work += self.clean(transfers);
        }
        let mut some_gone = false;
        while let Some(id) = self.pager.take_ended() {
            some_gone |= self.memory.mappings().get(id).is_some_and(Mapped::is_gone);
        }
        if some_gone {
            self.look_after();
        }
        work
    }

    /// Whether it has something to do that no event will bring.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.pager.has_work() || !self.cleans.is_empty()
    }

    /// The thread that faulted last since this was last asked: its process and its number.
    pub(super) fn take_faulting(&mut self) -> Option<(u32, u32)> {
        let (mapping, thread) = self.faulting.take()?;
        let pid = self.memory.mappings().get(mapping)?.pid;
        (pid != 0 && thread != 0).then_some((pid, thread))
    }

    /// Changes how many pages may be resident.
    pub(super) fn set_limit(&mut self, pages: u32) {
        self.options.limit = pages;
        self.shared_state.set_limit(pages);
        self.pager.set_limit(pages);
    }
}

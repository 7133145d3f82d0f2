//! One region being paged: faults and other events in, pages and orders out.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use cxloe_member::socket::send_some;
use cxloe_member::wire::PROBE_MAGIC;
use cxloe_wire::time::Time;

use super::ending::Clean;
use super::full::Full;
use super::ledger::{self, Ledger, LedgerError, Record};
use super::member::{Kept, Said, ranges};
use super::memory::{Foreign, KernelMemory, Mapped, Private, Shared, access};
use super::takeover::TakeOver;
use super::watchdog::Watchdog;
use crate::uffd::{Access, Event, EventBuffer, Uffd, UffdError};
use cxloe_cn_core::engine::EngineError;
use cxloe_cn_core::mapped::{Kind, SpaceOptions, TEMPORARY, whole_pages};
use cxloe_cn_core::pager::{
    Entry, Fault, Frames, Io, MappingId, NO_SLOT, PAGE_BYTES, Page, PageTable, Pager, PagerOptions, Slots,
    Use, ViewId,
};
use cxloe_cn_core::transfers::{Ended, PageIo, Transfers, is_final};

/// The view of a space that has only one.
pub(super) const ONLY: ViewId = ViewId(0);
/// Resident pages for which everything is set aside at the start: 256 MiB. Beyond, room is taken as it is needed.
const RESERVE_MAX: u32 = 1 << 16;
/// Reads of one userfaultfd in one round.
const READS_MAX: usize = 8;

/// Why there is no space.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The system refuses.
    #[error("memory for paging could not be made: {0}")]
    Io(#[from] io::Error),
    /// What a predecessor left behind is of no use.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The space cannot be taken over.
    #[error("the memory of the region did not come with its ledger")]
    NoMemory,
}

/// What whoever maps a region gets of its space.
#[derive(Debug)]
pub struct Made {
    /// The space's number.
    pub id: u64,
    /// Pages of the region.
    pub pages: u32,
    /// The ledger, to keep for the agent's successor.
    pub ledger: OwnedFd,
    /// The memory, if processes share it.
    pub memory: Option<OwnedFd>,
}

/// Has a child that cannot be followed end with SIGBUS where it touches what is not in its memory, but for the probe page:
/// with nobody to serve it, it would read zeros there.
#[cold]
fn deny(uffd: &Uffd, memory: Range<u64>) {
    let mut at = memory.start + PAGE_BYTES as u64;
    while at < memory.end {
        match uffd.poison(at..memory.end) {
            Ok(bytes) => at += bytes as u64,
            Err(UffdError::Exists) => at += PAGE_BYTES as u64,
            Err(error) => {
                tracing::error!(%error, "a process that is not followed may read zeros where it had data");
                return;
            }
        }
    }
}

/// A region being paged.
#[derive(Debug)]
pub struct Space {
    pub(super) options: SpaceOptions,
    /// Its place among all spaces.
    pub(super) place: u16,
    pub(super) pager: Pager,
    pub(super) memory: KernelMemory,
    pub(super) ledger: Ledger,
    pub(super) owners: u32,
    /// Where descriptors of forked children are kept.
    keeper: Option<OwnedFd>,
    pub(super) takeover: Option<TakeOver>,
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
}

/// Why a page of a region is lost, and what to do about it.
fn loss(region: &str, error: EngineError) -> String {
    let remedy = if region.starts_with(TEMPORARY) {
        "start the program again when `gmm list -M` shows its memory nodes reachable".into()
    } else if is_final(error) {
        format!("`gmm reset-region {region}` gives the region back, all zeros; then start the program again")
    } else {
        "see to the memory node (`gmm list -M`, its log), then start the program again".into()
    };
    format!("a page of region {region} is lost: {error}; {remedy}")
}

/// A pager and all it acts through.
macro_rules! with_io {
    ($space:expr, $transfers:expr, |$pager:ident, $io:ident| $body:expr) => {{
        let Space { options, place, pager: $pager, memory, .. } = $space;
        let mut page_io =
            PageIo { transfers: $transfers, space: *place, hpa: options.hpa, patience: options.lost_wait };
        let $io = &mut Io { memory: memory.as_memory(), store: &mut page_io };
        $body
    }};
}
pub(super) use with_io;

impl Space {
    /// A new space. Takes time and memory: not for the thread that serves.
    ///
    /// # Errors
    /// Any [`MakeError`].
    pub fn create(options: SpaceOptions) -> Result<Space, MakeError> {
        let ledger = Ledger::create(&options)?;
        let memory = match options.kind {
            Kind::Shared => KernelMemory::Shared(Shared::create(options.pages)?),
            Kind::Private => KernelMemory::Private(Private::new(Watchdog::start()?)),
            Kind::Foreign => KernelMemory::Foreign(Foreign::default()),
        };
        let mut space = Space::over(options, memory, ledger);
        if space.options.kind != Kind::Private {
            let table = space.empty_table(ONLY)?;
            space.pager.add_view(table, true).map_err(io::Error::other)?;
        }
        Ok(space)
    }

    /// What a predecessor has left behind: `ledger` and, if the memory is shared, that. `place` finds by the
    /// region's name where it begins and how many bytes it has: more than the predecessor knew, if it has grown since.
    ///
    /// # Errors
    /// Any [`MakeError`].
    pub fn adopt(
        ledger: OwnedFd,
        memory: Option<OwnedFd>,
        place: impl FnOnce(&str) -> Option<(u64, u64)>,
    ) -> Result<Option<Space>, MakeError> {
        let (ledger, options) = Ledger::adopt(ledger)?;
        let Some((hpa, bytes)) = place(&options.region) else { return Ok(None) };
        let mut options = SpaceOptions { hpa, ..options };
        if options.kind == Kind::Private {
            options.pages = options.pages.max(whole_pages(bytes));
            ledger.set_pages(options.pages);
        }
        let memory = match options.kind {
            Kind::Shared => {
                KernelMemory::Shared(Shared::adopt(memory.ok_or(MakeError::NoMemory)?, options.pages)?)
            }
            Kind::Private => KernelMemory::Private(Private::new(Watchdog::start()?)),
            Kind::Foreign => KernelMemory::Foreign(Foreign::default()),
        };
        let mut space = Space::over(options, memory, ledger);
        space.take_over()?;
        Ok(Some(space))
    }

    fn over(options: SpaceOptions, memory: KernelMemory, ledger: Ledger) -> Space {
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
            ledger,
            owners: 0,
            keeper: None,
            takeover: None,
            cleans: Vec::new(),
            ending: None,
            unwanted: false,
            used: false,
            full: None,
            changed: true,
            parted: Vec::new(),
            told: None,
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
        Ok(Made { id: self.options.id, pages: self.options.pages, ledger: self.ledger.share()?, memory })
    }

    /// The ledger's table of a view, its pages as those of a new view.
    pub(super) fn empty_table(&self, view: ViewId) -> io::Result<PageTable> {
        let table = self.ledger.table(view.0)?;
        let own = self.options.kind != Kind::Private && !self.options.fresh;
        (0..table.len()).for_each(|page| {
            table.set(page, Entry::absent(if own { page } else { NO_SLOT }));
        });
        Ok(table)
    }

    #[inline]
    pub(super) fn frames(&mut self) -> &mut Frames {
        self.pager.frames()
    }

    /// Reads what has happened in a mapping; how much.
    #[inline]
    pub(super) fn read_events(
        &mut self,
        id: MappingId,
        buffer: &mut EventBuffer,
        transfers: &mut Transfers,
    ) -> usize {
        let mut count = 0;
        for _ in 0..READS_MAX {
            let Some(mapped) = self.memory.mappings().get(id) else { return count };
            let before = count;
            match mapped.uffd.events(buffer) {
                Ok(events) => events.for_each(|event| {
                    count += 1;
                    self.happened(id, event, transfers);
                }),
                Err(error) => {
                    tracing::error!(%error, region = self.options.region, "a process's faults cannot be read");
                    self.part(id);
                    return count;
                }
            }
            if count == before {
                return count;
            }
        }
        count
    }

    #[inline]
    fn happened(&mut self, id: MappingId, event: Event, transfers: &mut Transfers) {
        match event {
            Event::Fault { address, write, wp, minor, .. } => {
                let found = match &self.memory {
                    KernelMemory::Foreign(memory) => memory.find(address),
                    memory => memory.mappings().get(id).and_then(|m| Some((id, m.page_at(address)?))),
                };
                let Some((mapping, page)) = found else { return };
                if page == 0 && self.options.kind == Kind::Private {
                    self.answer_probe(mapping);
                    return;
                }
                let write = write || self.options.kind == Kind::Foreign;
                let fault = Fault { mapping, page, access: access(wp, minor), write };
                let (since, before) = (transfers.watch.now(), self.pager.counters());
                with_io!(self, transfers, |pager, io| pager.fault(fault, io));
                let after = self.pager.counters();
                if after.zero_fills + after.held_hits > before.zero_fills + before.held_hits {
                    transfers.watch.served(since);
                } else if after.waits_for_room > before.waits_for_room {
                    transfers.watch.stalled(self.place, mapping, page, since);
                }
            }
            Event::Fork(child) => self.forked(id, child),
            Event::Remove { start, end } => {
                let KernelMemory::Foreign(memory) = &self.memory else { return };
                for address in (start..end).step_by(PAGE_BYTES) {
                    if let Some((_, page)) = memory.find(address) {
                        self.pager.discarded(ONLY, page..page + 1);
                    }
                }
            }
            Event::Unmap { .. } | Event::Remap { .. } => {}
        }
    }

    /// A process wants to know which view it has.
    #[cold]
    fn answer_probe(&self, id: MappingId) {
        let (Some(mapped), Some(view)) = (self.memory.mappings().get(id), self.pager.view_of(id)) else {
            return;
        };
        let mut page: Page = [0; PAGE_BYTES];
        page[..8].copy_from_slice(&PROBE_MAGIC);
        page[8..10].copy_from_slice(&view.0.to_le_bytes());
        if mapped.uffd.copy(mapped.address, &page, Access::Writable).is_err() {
            mapped.wake(0);
        }
    }

    /// A process has forked; its child has not said yet who it is.
    #[cold]
    fn forked(&mut self, parent: MappingId, child: OwnedFd) {
        let Some(view) = self.pager.view_of(parent) else { return };
        let Some((address, pages)) = self.memory.mappings().get(parent).map(|m| (m.address, m.pages)) else {
            return;
        };
        let uffd = match Uffd::from_fd(child) {
            Ok(uffd) => uffd,
            Err(error) => {
                tracing::error!(%error, region = self.options.region, "a forked process is not followed");
                return;
            }
        };
        let mut follow = || {
            let expected = self.free_view();
            let table = self.ledger.table(expected.0).map_err(|error| error.to_string())?;
            // Stale entries are nobody's.
            (0..table.len()).for_each(|page| table.set(page, Entry::absent(NO_SLOT)));
            let view = self.pager.forked(view, table).map_err(|error| error.to_string())?;
            debug_assert_eq!(view, expected, "views are numbered alike here and there");
            let mapping = self.pager.add_mapping(view).map_err(|error| error.to_string())?;
            Ok::<_, String>((view, mapping))
        };
        match follow() {
            Ok((view, mapping)) => {
                self.ledger.set_record(mapping.0, Some(Record { view: view.0, pid: 0, started: 0, address }));
                self.keep(view, &uffd, address..address + u64::from(pages) * PAGE_BYTES as u64);
                let KernelMemory::Private(memory) = &mut self.memory else { return };
                memory.add(view, mapping, Mapped::new(uffd, address, 0, pages, 0, None));
                self.changed = true;
                tracing::debug!(region = self.options.region, view = view.0, "a process has forked");
            }
            // Its probe page reads as zeros, by which it knows.
            Err(error) => {
                tracing::error!(%error, region = self.options.region, "a forked process is not followed");
                deny(&uffd, address..address + u64::from(pages) * PAGE_BYTES as u64);
            }
        }
    }

    /// Descriptors of forked children are sent there from now on.
    pub fn keep_with(&mut self, keeper: OwnedFd) {
        self.keeper = Some(keeper);
    }

    /// Has a child's userfaultfd kept where it outlives this agent, until the child has joined.
    #[cold]
    fn keep(&self, view: ViewId, uffd: &Uffd, memory: Range<u64>) {
        let Some(keeper) = &self.keeper else { return };
        let child = Kept { view: view.0, memory };
        if let Err(error) = send_some(keeper.as_fd(), &child.encode(), &[uffd.as_fd()], libc::MSG_DONTWAIT) {
            tracing::warn!(%error, region = self.options.region, "a forked process loses its memory if this agent dies now");
        }
    }

    /// The view that the pager will give out next.
    pub(super) fn free_view(&self) -> ViewId {
        let free = |view: &u16| self.pager.look(ViewId(*view), 0).is_none();
        ViewId((0..u16::MAX).find(free).unwrap_or_default())
    }

    /// Hears what members say; how much.
    #[inline]
    pub(super) fn listen(&mut self, id: MappingId, transfers: &mut Transfers) -> usize {
        let mut count = 0;
        while let Some(link) = self.memory.mappings_mut().get_mut(id).and_then(|mapped| mapped.link.as_mut())
        {
            let said = link.hear();
            let Some(view) = self.pager.view_of(id) else { return count };
            count += 1;
            match said {
                Said::Nothing => return count - 1,
                Said::Dropped(order) => {
                    let options = *self.pager.options();
                    with_io!(self, transfers, |pager, io| {
                        ranges(&order, &options).for_each(|pages| pager.dropped(view, pages, io));
                    });
                }
                Said::Discard(message) => {
                    let options = *self.pager.options();
                    let first = u32::from(self.options.kind == Kind::Private);
                    for pages in ranges(&message, &options) {
                        self.pager.discarded(view, pages.start.max(first)..pages.end.max(first));
                    }
                    if let Some(link) =
                        self.memory.mappings_mut().get_mut(id).and_then(|mapped| mapped.link.as_mut())
                    {
                        link.discarded();
                    }
                }
                Said::Leave => {
                    self.end(id);
                    return count;
                }
                Said::Gone => {
                    self.hang_up(id, transfers);
                    return count;
                }
            }
        }
        count
    }

    /// A member's connection has ended. If its process lives, it goes on being served: it may come again.
    #[cold]
    fn hang_up(&mut self, id: MappingId, transfers: &mut Transfers) {
        let Some(view) = self.pager.view_of(id) else { return };
        let Some(mut link) = self.memory.mappings_mut().get_mut(id).and_then(|mapped| mapped.link.take())
        else {
            return;
        };
        self.changed = true;
        // Whether they were carried out is found when somebody touches the pages.
        let options = *self.pager.options();
        for order in link.take_ordered() {
            with_io!(&mut *self, &mut *transfers, |pager, io| {
                ranges(&order, &options).for_each(|pages| pager.dropped(view, pages, io));
            });
        }
        match self.options.kind {
            Kind::Private => self.pager.set_droppable(view, false),
            Kind::Shared => {}
            // Who handed it over says when it is over.
            Kind::Foreign => self.end(id),
        }
        self.look_after();
    }

    /// Ends a mapping, and a view that was its alone.
    pub(super) fn end(&mut self, id: MappingId) {
        let view = self.pager.view_of(id);
        match (&mut self.memory, view) {
            (KernelMemory::Private(memory), Some(view)) => {
                memory.forget(id);
                self.pager.end_view(view);
            }
            _ => self.pager.end_mapping(id),
        }
        self.part(id);
    }

    fn part(&mut self, id: MappingId) {
        if let Some(mapped) = self.memory.mappings_mut().remove(id) {
            tracing::debug!(region = self.options.region, pid = mapped.pid, "a process has left");
            self.ledger.set_record(id.0, None);
            self.changed = true;
            self.parted.push(mapped);
        }
    }

    /// Parts with processes that have ended without a word.
    pub(super) fn look_after(&mut self) {
        let shared = self.options.kind == Kind::Shared;
        let gone = |(id, mapped): (MappingId, &Mapped)| {
            if mapped.link.is_none() {
                match (shared, mapped.pid) {
                    (true, pid) if ledger::started(pid).is_none() => return Some(id),
                    (true, _) => {}
                    (false, _) => mapped.look(),
                }
            }
            mapped.is_gone().then_some(id)
        };
        let gone: Vec<MappingId> = self.memory.mappings().iter().filter_map(gone).collect();
        gone.into_iter().for_each(|id| self.end(id));
    }

    /// A transfer has ended.
    #[inline]
    pub(super) fn transferred(&mut self, ended: Ended, transfers: &mut Transfers) {
        let Ended { frame, fetch, outcome, cause, began, .. } = ended;
        if let Some(error) = cause {
            self.tell_why(error);
        }
        let wanted = began.and_then(|began| match self.pager.frames().purpose(frame) {
            Use::Fetch { page, mapping: Some(mapping), .. } => Some((mapping, page, began)),
            _ => None,
        });
        with_io!(self, transfers, |pager, io| {
            if fetch { pager.fetched(frame, outcome, io) } else { pager.written(frame, outcome, io) }
        });
        if let (Some((mapping, page, began)), Ok(())) = (wanted, outcome) {
            transfers.watch.fetched(self.place, mapping, page, began);
        }
    }

    /// Pages will be lost: says why to the processes that have them, before any of them gets SIGBUS.
    #[cold]
    fn tell_why(&mut self, error: EngineError) {
        let text = loss(&self.options.region, error);
        if self.told.as_ref() == Some(&text) {
            return;
        }
        let links = self.memory.mappings_mut().iter_mut().filter_map(|(_, mapped)| mapped.link.as_mut());
        links.for_each(|link| link.why(&text));
        self.told = Some(text);
    }

    /// Goes on with what nobody waits for in particular; how much was done.
    #[inline]
    pub(super) fn turn(&mut self, transfers: &mut Transfers) -> usize {
        let mut work = 0;
        if self.pager.has_work() {
            work += with_io!(&mut *self, &mut *transfers, |pager, io| pager.turn(io));
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
    pub(super) fn is_held(&self) -> bool {
        self.pager.has_work() || !self.cleans.is_empty()
    }

    /// Whether the agent's answer depends on what members say.
    #[inline]
    pub(super) fn waits_for_members(&self) -> bool {
        let waits =
            |(_, mapped): (MappingId, &Mapped)| mapped.link.as_ref().is_some_and(|link| link.is_busy());
        self.options.kind == Kind::Private && self.memory.mappings().iter().any(waits)
    }

    /// Says to everybody that the agent ends.
    pub(super) fn bye(&mut self) {
        let links = self.memory.mappings_mut().iter_mut().filter_map(|(_, mapped)| mapped.link.as_mut());
        links.for_each(|link| link.bye());
    }

    /// Changes how many pages may be resident.
    pub(super) fn set_limit(&mut self, pages: u32) {
        self.options.limit = pages;
        self.ledger.set_limit(pages);
        self.pager.set_limit(pages);
    }
}

//! All spaces beside one engine: their faults, members and transfers, a little of each in every round.
//!
//! Faults of a few processes are looked for directly, since that is fastest; those of many, and what members say, by one
//! epoll descriptor, which is also what an idle thread sleeps on.
//!
//! A round has two halves. The first hears of faults and has what they need leave: the link is flushed behind it. The second
//! does what nobody waits for, a few microseconds of it at a time, while those pages are on their way.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use cxloe_link::Clock;
use cxloe_wire::Transmit;
use cxloe_wire::time::Time;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::space::Space;
use crate::uffd::EventBuffer;
use cxloe_cn_core::engine::{Engine, EngineError, Sink};
use cxloe_cn_core::fault_times::FaultTimes;
use cxloe_cn_core::mapped::{PagingMember, PagingView, SPACES_MAX, SpaceError, limit_pages};
use cxloe_cn_core::pager::{LIMIT_MIN, MappingId, PAGE_BYTES, PagerCounters};
use cxloe_cn_core::transfers::{self, BufferSource, Ended, PAGING, Transfers};

/// Processes whose faults are looked for directly.
const DIRECT_MAX: usize = 4;
/// Rounds between two looks at what members say.
const ROUNDS: u32 = 32;
/// While a page is on its way, one look at userfaultfds in this many rounds: its own thread does not fault meanwhile, and the
/// link is what brings it.
const LOOKS_BESIDE_DEMAND: u32 = 4;
/// Descriptors that one look brings.
const READY_MAX: usize = 64;

/// A process that wants to become a member.
#[derive(Debug)]
pub struct Joining {
    /// Of which space.
    pub space: u64,
    /// Where its memory is.
    pub address: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// Which byte of the region is the first.
    pub offset: u64,
    /// The process, as the request says; what counts is `peer`, but for memory of virtual machines, which others join for.
    pub pid: u32,
    /// The process that the connection belongs to.
    pub peer: u32,
    /// Whose process that is.
    pub peer_uid: u32,
    /// The view of a forked child or of a member of before.
    pub view: Option<u16>,
    /// Whether it was a member of a predecessor's.
    pub resume: bool,
    /// Its userfaultfd, unless it is a forked child.
    pub uffd: Option<OwnedFd>,
    /// Its connection.
    pub socket: Option<OwnedFd>,
}

#[derive(Debug)]
pub(super) struct List(pub(super) Vec<Option<Box<Space>>>);

impl BufferSource for List {
    #[inline]
    fn buffers(&mut self, space: u16) -> Option<&mut cxloe_cn_core::pager::PageBuffers> {
        self.0.get_mut(usize::from(space))?.as_mut().map(|space| space.buffers())
    }
}

/// All spaces.
#[derive(Debug)]
pub struct Spaces {
    pub(super) list: List,
    /// The places of those there are.
    active: Vec<u16>,
    transfers: Transfers,
    ended: Vec<Ended>,
    epoll: Epoll,
    ready: Vec<EpollEvent>,
    buffer: EventBuffer,
    /// Userfaultfds, if they are few: space and mapping.
    direct: Vec<(u16, MappingId)>,
    round: u32,
    /// Addresses that lines may not be read or written at.
    mapped: Vec<Range<u64>>,
    /// What spaces have counted that are over.
    over: PagerCounters,
}

/// What a descriptor is, as epoll tells it.
fn token(space: u16, mapping: MappingId, is_link: bool) -> u64 {
    u64::from(is_link) << 32 | u64::from(space) << 16 | u64::from(mapping.0)
}

impl Spaces {
    /// None.
    ///
    /// # Errors
    /// No descriptor.
    pub fn new() -> io::Result<Spaces> {
        let clock = Clock::new();
        Ok(Spaces {
            list: List((0..SPACES_MAX).map(|_| None).collect()),
            active: Vec::with_capacity(SPACES_MAX),
            transfers: Transfers::new(move || clock.now()),
            ended: Vec::with_capacity(transfers::TRANSFERS_MAX),
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            ready: vec![EpollEvent::empty(); READY_MAX],
            buffer: EventBuffer::new(),
            direct: Vec::with_capacity(DIRECT_MAX),
            round: 0,
            mapped: Vec::new(),
            over: PagerCounters::default(),
        })
    }

    /// The descriptor to sleep on: readable when there is something to do.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Addresses that are mapped, and so may not be read or written line by line.
    #[inline]
    pub fn mapped(&self) -> &[Range<u64>] {
        &self.mapped
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Whether it is worth coming back soon, though nothing happens.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.active.is_empty() && (self.transfers.is_waiting() || self.any(Space::has_work))
    }

    /// Whether this is so of any space.
    #[inline]
    fn any(&self, is_so: impl Fn(&Space) -> bool) -> bool {
        let spaces = self.active.iter().filter_map(|place| self.list.0[usize::from(*place)].as_deref());
        spaces.into_iter().any(is_so)
    }

    /// When something is due by time alone.
    #[inline]
    pub fn deadline(&self) -> Option<Time> {
        self.transfers.deadline()
    }

    pub(super) fn position(&self, region: &str) -> Option<usize> {
        let here = |place: &Option<Box<Space>>| place.as_ref().is_some_and(|s| s.options().region == region);
        self.list.0.iter().position(here)
    }

    /// Whether a region is mapped.
    pub fn is_mapped(&self, region: &str) -> bool {
        self.position(region).is_some()
    }

    /// The user whose memory the space of a region is, if the region is mapped; `Some(None)`: everybody's.
    pub fn owner(&self, region: &str) -> Option<Option<u32>> {
        let space = self.list.0[self.position(region)?].as_deref()?;
        Some(space.options().owner)
    }

    /// The space of this number.
    pub fn get(&self, id: u64) -> Option<&Space> {
        self.list.0.iter().flatten().find(|space| space.options().id == id).map(|space| &**space)
    }

    /// The space of this number.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Space> {
        self.list.0.iter_mut().flatten().find(|space| space.options().id == id).map(|space| &mut **space)
    }

    /// Adds a space; gives it back if its region is mapped already, or there are too many.
    ///
    /// # Errors
    /// The space.
    pub fn add(&mut self, mut space: Box<Space>) -> Result<(), Box<Space>> {
        let known = self.is_mapped(&space.options().region);
        match self.list.0.iter_mut().position(|place| place.is_none()) {
            Some(at) if !known => {
                space.place = at as u16;
                let options = space.options();
                tracing::info!(
                    region = options.region, kind = ?options.kind, pages = options.pages, limit = options.limit,
                    "region mapped"
                );
                self.mapped.push(options.hpa..options.hpa + u64::from(options.pages) * PAGE_BYTES as u64);
                self.list.0[at] = Some(space);
                self.active.push(at as u16);
                Ok(())
            }
            _ => Err(space),
        }
    }

    /// The region at `hpa` has grown behind its first `from` bytes, and `bytes` of it can be reached: a pool of pages has
    /// more of them.
    pub fn grown(&mut self, hpa: u64, from: u64, bytes: u64) {
        let Some(space) = self.list.0.iter_mut().flatten().find(|space| space.options().hpa == hpa) else {
            return;
        };
        if space.grown(from, bytes)
            && let Some(mapped) = self.mapped.iter_mut().find(|range| range.start == hpa)
        {
            mapped.end = hpa + u64::from(space.options().pages) * PAGE_BYTES as u64;
        }
    }

    /// Watches the descriptors of spaces that have others than before.
    pub(super) fn watch(&mut self) {
        if !self.any(|space| space.changed) {
            return;
        }
        // The members have duplicates, so that closing ours would not end it.
        for parted in self.list.0.iter_mut().flatten().flat_map(|space| space.parted.drain(..)) {
            let _ = self.epoll.delete(parted.uffd.as_fd());
        }
        self.direct.clear();
        let mut count = 0;
        for space in self.list.0.iter_mut().flatten() {
            let changed = std::mem::take(&mut space.changed);
            for (id, mapped) in space.memory.mappings().iter() {
                count += 1;
                if count <= DIRECT_MAX {
                    self.direct.push((space.place, id));
                }
                if !changed {
                    continue;
                }
                let link = mapped.link.as_ref().map(|link| (link.descriptor(), true));
                for (fd, is_link) in [(mapped.uffd.as_fd(), false)].into_iter().chain(link) {
                    let mut event = EpollEvent::new(EpollFlags::EPOLLIN, token(space.place, id, is_link));
                    let added = self.epoll.add(fd, event);
                    if added == Err(nix::errno::Errno::EEXIST) {
                        let _ = self.epoll.modify(fd, &mut event);
                    } else if let Err(errno) = added {
                        tracing::error!(%errno, fd = fd.as_raw_fd(), "a process's faults cannot be waited for");
                    }
                }
            }
        }
        if count > DIRECT_MAX {
            self.direct.clear();
        }
    }

    /// The first half of a round: what has happened, and what has to leave before anything else is done. How much was done;
    /// the link is to be flushed if anything was.
    #[inline]
    pub fn serve(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        if self.active.is_empty() {
            return 0;
        }
        self.serve_some(engine, now, tx)
    }

    fn serve_some(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        self.transfers.set_now(now);
        self.round = self.round.wrapping_add(1);
        let mut work = 0;
        if self.transfers.demands() == 0 || self.round.is_multiple_of(LOOKS_BESIDE_DEMAND) {
            for index in 0..self.direct.len() {
                let (place, mapping) = self.direct[index];
                if let Some(space) = &mut self.list.0[usize::from(place)] {
                    work += space.read_events(mapping, &mut self.buffer, &mut self.transfers);
                }
            }
            if self.direct.is_empty() {
                work += self.look();
            }
        }
        work += self.transfers.go_on_with_demand(engine, now, tx, &mut self.list, &mut self.ended);
        self.settle();
        work
    }

    /// The second half: what is due, and what nobody waits for. How much was done.
    #[inline]
    pub fn turn(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        if self.active.is_empty() {
            return 0;
        }
        self.turn_some(engine, now, tx)
    }

    fn turn_some(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        let mut work = 0;
        let asks = self.round.is_multiple_of(ROUNDS) || self.any(Space::waits_for_members);
        if asks && !self.direct.is_empty() {
            work += self.look();
        }
        for index in 0..self.active.len() {
            if let Some(space) = &mut self.list.0[usize::from(self.active[index])] {
                work += space.turn(&mut self.transfers);
            }
        }
        work += self.transfers.go_on(engine, now, tx, &mut self.list, &mut self.ended);
        self.settle();
        if self.transfers.watch.has_stalled() {
            self.look_after_stalled();
        }
        self.watch();
        work
    }

    /// Looks whether faults that waited for room have been served.
    #[cold]
    fn look_after_stalled(&mut self) {
        let list = &self.list.0;
        self.transfers.watch.look_after(|space, mapping, page| {
            Some(list[usize::from(space)].as_ref()?.pager.owes(mapping, page))
        });
    }

    /// Takes what epoll has; how much.
    pub(super) fn look(&mut self) -> usize {
        let ready = match self.epoll.wait(&mut self.ready, EpollTimeout::ZERO) {
            Ok(ready) => ready,
            Err(_) => return 0,
        };
        let mut work = 0;
        for index in 0..ready {
            let token = self.ready[index].data();
            let (place, mapping) = ((token >> 16) as u16, MappingId(token as u16));
            let blocks = self.ready[index].events().contains(EpollFlags::EPOLLERR);
            let Some(space) = &mut self.list.0[usize::from(place)] else { continue };
            if blocks && token >> 32 == 0 {
                space.unblock(mapping);
            }
            work += if token >> 32 == 1 {
                space.listen(mapping, &mut self.transfers)
            } else {
                space.read_events(mapping, &mut self.buffer, &mut self.transfers)
            };
        }
        work
    }

    /// Tells pagers of transfers that have ended.
    #[inline]
    fn settle(&mut self) {
        while let Some(ended) = self.ended.pop() {
            let space = ended.space.and_then(|space| self.list.0[usize::from(space)].as_mut());
            if let Some(space) = space {
                space.transferred(ended, &mut self.transfers);
            }
        }
    }

    /// Takes time into account, every few milliseconds.
    #[cold]
    pub fn housekeeping(&mut self, now: Time) {
        if self.active.is_empty() {
            return;
        }
        self.look();
        for at in 0..self.list.0.len() {
            if let Some(space) = &mut self.list.0[at] {
                space.look_after_full(now, &mut self.transfers);
            }
            if self.list.0[at].as_mut().is_some_and(|space| !space.housekeeping(now)) {
                self.close(at);
            }
        }
        self.watch();
    }

    /// Ends a space.
    pub(super) fn close(&mut self, at: usize) {
        let Some(space) = self.list.0[at].take() else { return };
        self.transfers.abandon(at as u16);
        let hpa = space.options().hpa;
        self.mapped.retain(|range| range.start != hpa);
        self.active.retain(|place| usize::from(*place) != at);
        self.over = sum(self.over, space.pager.counters());
        tracing::info!(region = space.options().region, "region no longer mapped");
    }

    /// Says to all members that the agent ends in order.
    pub fn bye(&mut self) {
        self.list.0.iter_mut().flatten().for_each(|space| space.bye());
    }

    /// Changes how many bytes of a space may be resident.
    ///
    /// # Errors
    /// There is no such space, or that is too few.
    pub fn set_limit(&mut self, id: u64, bytes: u64) -> Result<(), SpaceError> {
        let space = self.get_mut(id).ok_or(SpaceError::Unknown)?;
        let least = u64::from(LIMIT_MIN) * PAGE_BYTES as u64;
        if bytes < least {
            return Err(SpaceError::Limit { limit: bytes, least });
        }
        space.set_limit(limit_pages(bytes, space.options().pages));
        Ok(())
    }

    /// Has everything dirty of a space written back; `done` hears when it is, and `false` if it cannot be.
    ///
    /// # Errors
    /// There is no such space.
    pub fn clean_all(&mut self, id: u64, done: Box<dyn FnOnce(bool) + Send>) -> Result<(), SpaceError> {
        self.get_mut(id).ok_or(SpaceError::Unknown)?.clean_all(Some(done));
        Ok(())
    }

    /// A thread that has faulted since this was last asked: its process and its number.
    pub fn take_faulting(&mut self) -> Option<(u32, u32)> {
        self.list.0.iter_mut().flatten().fold(None, |found, space| space.take_faulting().or(found))
    }

    /// What all pagers have counted.
    pub fn counters(&self) -> PagerCounters {
        let all = self.list.0.iter().flatten().map(|space| space.pager.counters());
        all.fold(self.over, sum)
    }

    /// How long faults of all spaces took, those of spaces that are over included.
    pub fn fault_times(&self) -> &FaultTimes {
        self.transfers.watch.times()
    }

    /// How spaces stand: that of this number, or all.
    pub fn report(&self, id: Option<u64>) -> Vec<PagingView> {
        let spaces = self.list.0.iter().flatten();
        spaces.filter(|space| id.is_none_or(|id| space.options().id == id)).map(|space| view(space)).collect()
    }
}

fn sum(a: PagerCounters, b: PagerCounters) -> PagerCounters {
    macro_rules! sum {
        ($($field:ident),* $(,)?) => { PagerCounters { $($field: a.$field + b.$field),* } };
    }
    sum!(
        faults,
        zero_fills,
        held_hits,
        second_chances,
        write_faults,
        waits_for_room,
        fetched,
        prefetched,
        prefetch_hits,
        prefetch_wasted,
        copied,
        evicted,
        refaulted,
        shared,
        written_back,
        lines_written_back,
        cancelled,
        no_slot,
        discarded,
        lost,
        write_back_failures,
        forks,
    )
}

fn view(space: &Space) -> PagingView {
    let options = space.options();
    let bytes = |pages: u32| u64::from(pages) * PAGE_BYTES as u64;
    let member = |(id, mapped): (MappingId, &super::memory::Mapped)| PagingMember {
        pid: mapped.pid,
        view: space.pager.view_of(id).map_or(u16::MAX, |view| view.0),
        bytes: bytes(mapped.pages),
    };
    PagingView {
        space: options.id,
        region: options.region.clone(),
        kind: options.kind,
        bytes: bytes(options.pages),
        limit: bytes(space.pager.options().limit),
        resident: bytes(space.pager.resident()),
        slots_used: space.pager.slots_used(),
        full: space.full.is_some(),
        prefetch: options.prefetch,
        lost_wait_ms: options.lost_wait.as_millis() as u64,
        taking_over: space.takeover.is_some(),
        owners: space.owners,
        owner: options.owner,
        members: space.memory.mappings().iter().map(member).collect(),
        counters: space.pager.counters(),
    }
}

/// Whether an operation was made for paging.
#[inline]
pub fn is_paging(user: u64) -> bool {
    user & PAGING != 0
}

impl Sink for Spaces {
    #[inline]
    fn read(&mut self, user: u64, data: &[u8]) {
        self.transfers.read(user, data, &mut self.list, &mut self.ended);
        self.settle();
    }

    #[inline]
    fn written(&mut self, user: u64) {
        self.transfers.written(user, &mut self.ended);
        self.settle();
    }

    fn failed(&mut self, user: u64, error: EngineError) {
        self.transfers.failed(user, error, &mut self.ended);
        self.settle();
    }
}

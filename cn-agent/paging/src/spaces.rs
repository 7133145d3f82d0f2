//! All spaces of one engine: their faults, members and transfers, a little of each in every round.
//!
//! If only a few processes have mappings, their userfaultfds are polled directly, which is fastest. If there
//! are many, one epoll descriptor reports their faults. It also reports members' messages, and an idle thread
//! sleeps on it.
//!
//! A round has two halves. The first half reads faults and sends the requests that they need; then the link is
//! flushed. The second half does background work, a few microseconds at a time, while those pages are in flight.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use cxloe_link::Clock;
use cxloe_wire::Transmit;
use cxloe_wire::machine::{Deadline, StateMachine};
use cxloe_wire::time::Time;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::process::MemoryFiles;
use super::space::Space;
use super::space::events::EventReader;
use super::space::suspension::NOWHERE;
use cxloe_closer::dispose;
use cxloe_cn_core::engine::{Engine, EngineError, RequestId, Sink};
use cxloe_cn_core::fault_times::FaultTimes;
use cxloe_cn_core::mapped::{PagingMember, PagingView, SPACES_MAX, SpaceError, SpaceOptions, limit_pages};
use cxloe_cn_core::pager::{LIMIT_MIN, MappingId, PAGE_BYTES, PagerCounters};
use cxloe_cn_core::transfers::{self, BufferSource, FinishedTransfer, Transfers};
use cxloe_cn_core::user_shares::{RESERVE, ShareReached, SharedResource, UserShares, check};

/// Maximum number of processes whose faults are polled directly.
const DIRECT_MAX: usize = 4;
/// Number of rounds between two polls for members' messages.
const ROUNDS: u32 = 32;
/// Number of rounds between two polls of userfaultfds while a demanded page is in flight. The thread that
/// waits for the page cannot fault again, and the link, on which the page arrives, is polled in every round.
const LOOKS_BESIDE_DEMAND: u32 = 4;
/// Maximum number of descriptors that one poll returns.
const READY_MAX: usize = 64;

/// A request to join as a member.
#[derive(Debug)]
pub struct JoinAttempt {
    pub space: u64,
    /// Address in the process at which the paged memory begins.
    pub address: u64,
    /// Size of the paged memory in bytes.
    pub bytes: u64,
    /// Offset in the region, in bytes, of the paged memory's first byte.
    pub offset: u64,
    /// Process id in the request. It counts only for memory of virtual machines, where one process joins on
    /// behalf of another; for all other memory, `peer` replaces it.
    pub pid: u32,
    /// Id of the process at the other end of the connection, as the kernel reports it.
    pub peer: u32,
    pub peer_uid: u32,
    /// Number of the view that a forked child or rejoining member has already; `None` for a new process.
    pub view: Option<u16>,
    /// Number from the probe page of a forked child.
    pub proof: Option<u64>,
    /// Whether the process rejoins: it was a member before the agent was restarted or the connection broke.
    pub resume: bool,
    /// Userfaultfd of the process; `None` for a forked child.
    pub uffd: Option<OwnedFd>,
    /// Files through which the process's memory is read, already checked to be such files.
    pub files: MemoryFiles,
    /// Connection to the process, on which it gets the answer.
    pub socket: Option<OwnedFd>,
}

#[derive(Debug)]
pub(super) struct SpaceList(pub(super) Vec<Option<Box<Space>>>);

impl BufferSource for SpaceList {
    #[inline]
    fn buffers(&mut self, space: u16) -> Option<&mut cxloe_cn_core::pager::PageBuffers> {
        self.0.get_mut(usize::from(space))?.as_mut().map(|space| space.buffers())
    }
}

/// All spaces of one engine, and their transfers.
#[derive(Debug)]
pub struct Spaces {
    pub(super) list: SpaceList,
    active: Vec<u16>,
    transfers: Transfers,
    /// Clock for the durations of faults.
    clock: Clock,
    ended: Vec<FinishedTransfer>,
    epoll: Epoll,
    ready: Vec<EpollEvent>,
    reader: EventReader,
    /// Userfaultfds that are polled directly, by space and mapping; empty if there are too many.
    direct: Vec<(u16, MappingId)>,
    round: u32,
    /// Whether a fault may have been served since the durations of faults that wait for room were last checked.
    stirred: bool,
    mapped: Vec<Range<u64>>,
    /// Sum of the counters of spaces that have ended.
    over: PagerCounters,
    shares: UserShares,
}

/// Number by which epoll reports a descriptor: `is_link` in bit 32, the space above bit 16, the mapping below
/// it.
fn token(space: u16, mapping: MappingId, is_link: bool) -> u64 {
    u64::from(is_link) << 32 | u64::from(space) << 16 | u64::from(mapping.0)
}

impl Spaces {
    /// Creates an empty set of spaces.
    ///
    /// # Errors
    /// Failure to create the epoll descriptor.
    pub fn new() -> io::Result<Spaces> {
        Ok(Spaces {
            list: SpaceList((0..SPACES_MAX).map(|_| None).collect()),
            active: Vec::with_capacity(SPACES_MAX),
            transfers: Transfers::new(0),
            clock: Clock::new(),
            ended: Vec::with_capacity(transfers::TRANSFERS_MAX),
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            ready: vec![EpollEvent::empty(); READY_MAX],
            reader: EventReader::new(),
            direct: Vec::with_capacity(DIRECT_MAX),
            round: 0,
            stirred: false,
            mapped: Vec::new(),
            over: PagerCounters::default(),
            shares: UserShares::ALL,
        })
    }

    /// Descriptor to sleep on: readable when there is work.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Address ranges of mapped regions, in which the engine refuses reads and writes of single lines.
    #[inline]
    pub fn mapped(&self) -> &[Range<u64>] {
        &self.mapped
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Whether there is work to do for which no event will arrive, so that the caller should not sleep.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.active.is_empty() && (self.transfers.is_waiting() || self.any(Space::has_work))
    }

    #[inline]
    pub(super) fn any(&self, is_so: impl Fn(&Space) -> bool) -> bool {
        let spaces = self.active.iter().filter_map(|place| self.list.0[usize::from(*place)].as_deref());
        spaces.into_iter().any(is_so)
    }

    /// Time at which [`turn`](Self::turn) has work that no event announces, and the reason.
    #[inline]
    pub fn deadline(&self) -> Deadline {
        self.transfers.deadline()
    }

    pub(super) fn position(&self, region: &str) -> Option<usize> {
        let is_it = |space: &Space| {
            let options = space.options();
            options.region == region && options.hpa != NOWHERE && !space.region_gone
        };
        self.list.0.iter().position(|place| place.as_deref().is_some_and(is_it))
    }

    /// Whether a space uses this region. A space whose region is gone, or is not attached here, does not count.
    pub fn is_mapped(&self, region: &str) -> bool {
        self.position(region).is_some()
    }

    /// User id of the owner of a region's space; `None` if the region is not mapped, `Some(None)` for no
    /// owner.
    pub fn owner(&self, region: &str) -> Option<Option<u32>> {
        let space = self.list.0[self.position(region)?].as_deref()?;
        Some(space.options().owner)
    }

    pub fn get(&self, id: u64) -> Option<&Space> {
        self.list.0.iter().flatten().find(|space| space.options().id == id).map(|space| &**space)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Space> {
        self.list.0.iter_mut().flatten().find(|space| space.options().id == id).map(|space| &mut **space)
    }

    /// Sets the maximum numbers of spaces and processes of each user; those that exist stay.
    pub fn set_shares(&mut self, shares: UserShares) {
        self.shares = shares;
    }

    /// Checks that `user` may have one more space. `None` stands for root and the agent's user: a part of all
    /// spaces ([`RESERVE`]) is reserved for them.
    ///
    /// # Errors
    /// [`SpaceError::Full`], [`SpaceError::Share`].
    pub fn check_room(&self, user: Option<u32>) -> Result<(), SpaceError> {
        let of =
            |user| self.list.0.iter().flatten().filter(move |space| space.options().user == user).count();
        let limit = if user.is_some() { SPACES_MAX - SPACES_MAX / RESERVE } else { SPACES_MAX };
        if self.active.len() >= SPACES_MAX || (user.is_some() && self.active.len() - of(None) >= limit) {
            return Err(SpaceError::Full(limit));
        }
        check(SharedResource::Regions, user, self.shares.regions as u64, of(user) as u64, 1)?;
        Ok(())
    }

    /// Checks that `user` may have `more` processes whose memory is paged. A forked child counts from the fork on.
    pub(crate) fn check_processes(&self, user: Option<u32>, more: u64) -> Result<(), ShareReached> {
        let its = self.list.0.iter().flatten().filter(|space| space.options().user == user);
        let had: usize = its.map(|space| space.processes()).sum();
        check(SharedResource::Processes, user, self.shares.processes as u64, had as u64, more)
    }

    /// Adds a space, unless its region is mapped already or the maximum number of spaces is reached.
    ///
    /// # Errors
    /// Returns the space that was not added.
    pub fn add(&mut self, mut space: Box<Space>) -> Result<(), Box<Space>> {
        let SpaceOptions { region, hpa, .. } = space.options();
        // A region that was emptied is attached at its address again, with the space that it had.
        let returns = |other: &Space| other.region_gone && other.options().hpa == *hpa;
        let known = space.uses_region() && (self.is_mapped(region) || self.any(returns));
        match self.list.0.iter_mut().position(|place| place.is_none()) {
            Some(at) if !known => {
                space.place = at as u16;
                space.clock = self.clock.clone();
                let options = space.options();
                tracing::info!(
                    region = options.region, kind = ?options.kind, pages = options.pages, limit = options.limit,
                    "region mapped"
                );
                self.list.0[at] = Some(space);
                self.active.push(at as u16);
                self.close_lines();
                Ok(())
            }
            _ => Err(space),
        }
    }

    /// Handles growth of the region at `hpa`: memory was added at offset `from`, and the region now has
    /// `bytes` usable bytes. Only private memory gets the new pages.
    pub fn grown(&mut self, hpa: u64, from: u64, bytes: u64) {
        let Some(space) = self.list.0.iter_mut().flatten().find(|space| space.options().hpa == hpa) else {
            return;
        };
        if space.grown(from, bytes) {
            self.close_lines();
        }
    }

    /// Recomputes the list of mapped address ranges, in which reads and writes of single lines are refused.
    pub(super) fn close_lines(&mut self) {
        self.mapped.clear();
        let here = self.list.0.iter().flatten().map(|space| space.options());
        let here = here.filter(|options| options.hpa != NOWHERE);
        let range =
            |options: &SpaceOptions| options.hpa..options.hpa + u64::from(options.pages) * PAGE_BYTES as u64;
        self.mapped.extend(here.map(range));
    }

    /// Registers the new descriptors of spaces with epoll; returns their number.
    pub(super) fn watch(&mut self) -> usize {
        if !self.any(|space| space.changed) {
            return 0;
        }
        for space in self.list.0.iter_mut().flatten() {
            unwatch_parted(space, &self.epoll);
        }
        self.direct.clear();
        self.close_lines();
        let (mut count, mut registered) = (0, 0);
        for space in self.list.0.iter_mut().flatten() {
            let changed = std::mem::take(&mut space.changed);
            let (place, suspended) = (space.place, space.is_suspended());
            for (id, mapped) in space.memory.mappings_mut().iter_mut() {
                count += 1;
                if count <= DIRECT_MAX {
                    self.direct.push((place, id));
                }
                if changed {
                    registered += watch_mapped(mapped, (place, id), suspended, &self.epoll);
                }
            }
        }
        if count > DIRECT_MAX {
            self.direct.clear();
        }
        registered
    }

    /// Runs the first half of a round: reads events, and sends the requests for pages that threads wait for.
    /// Returns the amount of work; if it is not 0, the caller has to flush the link.
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
                    work += space.read_events(mapping, &mut self.reader, &mut self.transfers);
                }
            }
            if self.direct.is_empty() {
                work += self.poll_events();
            }
        }
        self.stirred |= work > 0;
        work += self.transfers.advance_demand(engine, now, tx, &mut self.list, &mut self.ended);
        self.settle();
        work
    }

    /// Runs the second half of a round: timers and background work. Returns the amount of work.
    #[inline]
    pub fn turn(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        if self.active.is_empty() {
            return 0;
        }
        self.turn_some(engine, now, tx)
    }

    fn turn_some(&mut self, engine: &mut Engine, now: Time, tx: &mut dyn Transmit) -> usize {
        let mut work = 0;
        // Without userfaultfds that are polled directly, the first half has polled for messages as well.
        let asks = !self.direct.is_empty()
            && (self.round.is_multiple_of(ROUNDS) || self.any(Space::waits_for_members));
        if asks {
            work += self.poll_events();
        }
        for index in 0..self.active.len() {
            if let Some(space) = &mut self.list.0[usize::from(self.active[index])] {
                work += space.turn(&mut self.transfers);
            }
        }
        self.stirred |= work > 0;
        work += self.transfers.advance(engine, now, tx, &mut self.list, &mut self.ended);
        self.settle();
        if std::mem::take(&mut self.stirred) && self.transfers.watch.has_stalled() {
            self.check_stalled();
        }
        self.watch();
        work
    }

    /// Records the durations of faults that had to wait because too many pages were resident, and that have been served
    /// meanwhile.
    #[cold]
    fn check_stalled(&mut self) {
        let list = &self.list.0;
        let of_space = |place: &u16| Some((*place, list[usize::from(*place)].as_deref()?));
        let waiting = self.active.iter().filter_map(of_space).flat_map(|(place, space)| {
            space.pager.waiting_faults().map(move |fault| (place, fault.mapping, fault.page))
        });
        self.transfers.watch.check_stalled(self.clock.now(), waiting, |(space, mapping, page)| {
            Some(list[usize::from(space)].as_ref()?.pager.is_under_way(mapping, page))
        });
    }

    /// Handles the events that epoll reports; returns the number of events.
    pub(super) fn poll_events(&mut self) -> usize {
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
            // The kernel reports a userfaultfd as an error if its process has made it blocking.
            if blocks && token >> 32 == 0 {
                space.unblock(mapping);
            }
            work += if token >> 32 == 1 {
                space.receive_messages(mapping, &mut self.transfers)
            } else {
                space.read_events(mapping, &mut self.reader, &mut self.transfers)
            };
        }
        work
    }

    /// Passes the outcome of ended transfers to the spaces' pagers.
    #[inline]
    fn settle(&mut self) {
        while let Some(ended) = self.ended.pop() {
            self.stirred = true;
            let space = ended.space.and_then(|space| self.list.0[usize::from(space)].as_mut());
            if let Some(space) = space {
                space.transferred(ended, &mut self.transfers);
            }
        }
    }

    /// Handles time-outs; to be called every few milliseconds.
    #[cold]
    pub fn housekeeping(&mut self, now: Time) {
        if self.active.is_empty() {
            return;
        }
        self.poll_events();
        self.stirred = true;
        self.reader.reserve.reopen();
        for at in 0..self.list.0.len() {
            if let Some(space) = &mut self.list.0[at] {
                space.check_full(now, &mut self.transfers);
            }
            if self.list.0[at].as_mut().is_some_and(|space| !space.housekeeping(now)) {
                self.close(at);
            }
        }
        self.watch();
    }

    /// Ends a space at once; nothing is written back.
    pub(super) fn close(&mut self, at: usize) {
        let Some(mut space) = self.list.0[at].take() else { return };
        unwatch_parted(&mut space, &self.epoll);
        self.transfers.abandon(at as u16);
        self.active.retain(|place| usize::from(*place) != at);
        self.close_lines();
        self.over = self.over.plus(&space.pager.counters());
        tracing::info!(region = space.options().region, "region no longer mapped");
    }

    pub fn notify_shutdown(&mut self) {
        self.list.0.iter_mut().flatten().for_each(|space| space.notify_shutdown());
    }

    /// Changes the limit of resident bytes of a space; pages beyond the new limit are evicted over time.
    ///
    /// # Errors
    /// There is no such space, or the limit is too low.
    pub fn set_limit(&mut self, id: u64, bytes: u64) -> Result<(), SpaceError> {
        let space = self.get_mut(id).ok_or(SpaceError::Unknown)?;
        let least = u64::from(LIMIT_MIN) * PAGE_BYTES as u64;
        if bytes < least {
            return Err(SpaceError::Limit { limit: bytes, least });
        }
        space.set_limit(limit_pages(bytes, space.options().pages));
        Ok(())
    }

    /// Writes back all dirty pages of a space; with `zeros`, also zeros for discarded pages. `done` is called
    /// with `true` once the memory nodes have everything, or with `false` if that is impossible.
    ///
    /// # Errors
    /// There is no such space.
    pub fn clean_all(
        &mut self,
        id: u64,
        zeros: bool,
        done: Box<dyn FnOnce(bool) + Send>,
    ) -> Result<(), SpaceError> {
        self.get_mut(id).ok_or(SpaceError::Unknown)?.clean_all(zeros, Some(done));
        Ok(())
    }

    /// Process id and thread id of a thread that has faulted since the last call.
    pub fn take_faulting(&mut self) -> Option<(u32, u32)> {
        self.list.0.iter_mut().flatten().fold(None, |found, space| space.take_faulting().or(found))
    }

    /// Sum of all pagers' counters, including those of spaces that have ended.
    pub fn counters(&self) -> PagerCounters {
        let all = self.list.0.iter().flatten().map(|space| space.pager.counters());
        all.fold(self.over, |sum, each| sum.plus(&each))
    }

    /// Durations of faults of all spaces, including those that have ended.
    pub fn fault_times(&self) -> &FaultTimes {
        self.transfers.watch.times()
    }

    /// State of the space with number `id`, or of all spaces.
    pub fn report(&self, id: Option<u64>) -> Vec<PagingView> {
        let spaces = self.list.0.iter().flatten();
        spaces.filter(|space| id.is_none_or(|id| space.options().id == id)).map(|space| view(space)).collect()
    }
}

/// Registers those descriptors of a mapping with epoll that are not registered yet; returns their number.
fn watch_mapped(
    mapped: &mut super::memory::Mapped,
    (place, id): (u16, MappingId),
    suspended: bool,
    epoll: &Epoll,
) -> usize {
    let mut count = 0;
    if suspended {
        // Faults of a suspended space stay unread, and epoll would report them again in every round.
        if std::mem::take(&mut mapped.watched) {
            let _ = epoll.delete(mapped.uffd.as_fd());
        }
    } else if !mapped.watched {
        mapped.watched = register(epoll, mapped.uffd.as_fd(), token(place, id, false));
        count += 1;
    }
    if let Some(link) = mapped.link.as_mut().filter(|link| !link.watched) {
        link.watched = register(epoll, link.descriptor(), token(place, id, true));
        count += 1;
    }
    count
}

fn register(epoll: &Epoll, fd: BorrowedFd<'_>, token: u64) -> bool {
    let mut event = EpollEvent::new(EpollFlags::EPOLLIN, token);
    let added = match epoll.add(fd, event) {
        Err(Errno::EEXIST) => epoll.modify(fd, &mut event),
        added => added,
    };
    if let Err(errno) = added {
        tracing::error!(%errno, fd = fd.as_raw_fd(), "a process's faults cannot be waited for");
    }
    added.is_ok()
}

/// Removes the descriptors of processes that have left from epoll, and closes them. Members have duplicates of a
/// userfaultfd, so closing it alone would leave it in epoll, which would report its events for ever.
fn unwatch_parted(space: &mut Space, epoll: &Epoll) {
    for parted in space.parted.drain(..) {
        let _ = epoll.delete(parted.uffd.as_fd());
        dispose(parted);
    }
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
        suspended: space.is_suspended(),
        prefetch: options.prefetch,
        lost_wait_ms: options.lost_wait.as_millis() as u64,
        taking_over: space.takeover.is_some(),
        owners: space.owners,
        owner: options.owner,
        members: space.memory.mappings().iter().map(member).collect(),
        counters: space.pager.counters(),
    }
}

impl Sink for Spaces {
    #[inline]
    fn read(&mut self, id: RequestId, data: &[u8]) {
        self.transfers.read(id, data, &mut self.list, &mut self.ended);
        self.settle();
    }

    #[inline]
    fn written(&mut self, id: RequestId) {
        self.transfers.written(id, &mut self.ended);
        self.settle();
    }

    fn failed(&mut self, id: RequestId, error: EngineError) {
        self.transfers.failed(id, error, &mut self.ended);
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::member::MemberLink;
    use crate::memory::Mapped;
    use crate::space::ONLY;
    use crate::space::testing::options;
    use crate::uffd::Uffd;
    use cxloe_cn_core::mapped::MappingKind;

    /// Epoll reports a userfaultfd without a handshake in each poll.
    #[test]
    fn a_space_that_ends_leaves_no_descriptor_in_epoll() {
        let options = SpaceOptions {
            id: 1,
            region: "r".into(),
            kind: MappingKind::Shared,
            hpa: 1 << 40,
            pages: 64,
            view_pages: 64,
            limit: 64,
            prefetch: false,
            fresh: false,
            lost_wait: Duration::from_secs(1),
            stay: false,
            owner: None,
            created_ms: 0,
            user: None,
        };
        let uffd = Uffd::create_user_only().or_else(|_| Uffd::create()).unwrap();
        let of_the_process = uffd.try_clone().unwrap();
        let mut space = Space::create(options).unwrap();
        let mapping = space.pager.add_mapping(ONLY).unwrap();
        space.memory.mappings_mut().add(mapping, Mapped::new(uffd, 0, 0, 64, 0, None));
        space.unwanted = true;
        let mut spaces = Spaces::new().unwrap();
        spaces.add(Box::new(space)).unwrap();
        spaces.watch();
        let mut ready = [EpollEvent::empty(); 2];
        assert_eq!(spaces.epoll.wait(&mut ready, EpollTimeout::ZERO), Ok(1));
        spaces.get_mut(1).unwrap().end(mapping);
        spaces.housekeeping(Time::ZERO);
        assert!(spaces.is_empty());
        assert_eq!(spaces.epoll.wait(&mut ready, EpollTimeout::ZERO), Ok(0));
        drop(of_the_process);
    }

    #[test]
    fn processes_that_have_left_do_not_count_towards_a_share() {
        const USER: u32 = 4711;
        let options = SpaceOptions { user: Some(USER), ..options(MappingKind::Shared) };
        let id = options.id;
        let mut spaces = Spaces::new().unwrap();
        spaces.set_shares(UserShares { processes: 2, ..UserShares::ALL });
        spaces.add(Box::new(Space::create(options).unwrap())).unwrap();
        let space = spaces.get_mut(id).unwrap();
        let mappings: Vec<MappingId> = (0..2)
            .map(|_| {
                let uffd = Uffd::create_user_only().or_else(|_| Uffd::create()).unwrap();
                let mapping = space.pager.add_mapping(ONLY).unwrap();
                space.memory.mappings_mut().add(mapping, Mapped::new(uffd, 0, 0, 64, 0, None));
                mapping
            })
            .collect();
        let may = |spaces: &Spaces, more| spaces.check_processes(Some(USER), more).is_ok();
        assert!(may(&spaces, 0) && !may(&spaces, 1));
        spaces.get_mut(id).unwrap().end(mappings[1]);
        assert!(may(&spaces, 1) && !may(&spaces, 2));
        assert!(spaces.check_processes(None, 9).is_ok() && spaces.check_processes(Some(USER + 1), 2).is_ok());
    }

    /// Descriptors of all other processes stay registered when one comes.
    #[test]
    fn a_process_that_comes_registers_its_own_descriptors_only() {
        const PROCESSES: u16 = 20;
        let options = options(MappingKind::Shared);
        let id = options.id;
        let mut spaces = Spaces::new().unwrap();
        spaces.add(Box::new(Space::create(options).unwrap())).unwrap();
        let uffd = || Uffd::create_user_only().or_else(|_| Uffd::create()).unwrap();
        let mut links = Vec::new();
        for process in 0..PROCESSES {
            let space = spaces.get_mut(id).unwrap();
            let mapping = space.pager.add_mapping(ONLY).unwrap();
            assert_eq!(mapping, MappingId(process));
            space.memory.mappings_mut().add(mapping, Mapped::new(uffd(), 0, 0, 64, 0, None));
            space.changed = true;
            assert_eq!((spaces.watch(), spaces.watch()), (1, 0), "{process}");
            // It joins, and its connection breaks and is made again.
            for _ in 0..2 {
                let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
                let space = spaces.get_mut(id).unwrap();
                space.memory.mappings_mut().get_mut(mapping).unwrap().link =
                    Some(MemberLink::new(here.into()));
                space.changed = true;
                assert_eq!(spaces.watch(), 1, "{process}");
                links.push(there);
            }
        }
        assert!(spaces.direct.is_empty());
        let mut ready = [EpollEvent::empty(); 2 * PROCESSES as usize];
        // Epoll reports userfaultfds without a handshake in each poll, and links once their members leave.
        let reported =
            |spaces: &Spaces, ready: &mut [EpollEvent]| spaces.epoll.wait(ready, EpollTimeout::ZERO);
        assert_eq!(reported(&spaces, &mut ready), Ok(usize::from(PROCESSES)));
        drop(links);
        assert_eq!(reported(&spaces, &mut ready), Ok(2 * usize::from(PROCESSES)));
        // A suspended space's faults are left out, and come back after it.
        let space = spaces.get_mut(id).unwrap();
        space.suspend(Box::new(|_| ())).unwrap();
        assert_eq!((spaces.watch(), reported(&spaces, &mut ready)), (0, Ok(usize::from(PROCESSES))));
        assert!(spaces.get_mut(id).unwrap().serve_again(1 << 40));
        let all = usize::from(PROCESSES);
        assert_eq!((spaces.watch(), reported(&spaces, &mut ready)), (all, Ok(2 * all)));
    }
}

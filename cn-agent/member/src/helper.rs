//! The helper thread of a member: obeys the agent, and finds its successor when it has died.
//!
//! A page that the agent orders away is one it has written to a memory node. So when the agent's connection ends, every
//! order that had come is carried out before its successor is asked to take over, and none afterwards.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::join::{As, JoinError, Joined, Keepsakes, Place, join, join_for};
use crate::line::Line;
use crate::socket::Socket;
use crate::wire::{Inbox, Kind, MESSAGE_MAX, Message, PAGE_BYTES, Pages, RANGE, RANGES_MAX};

/// The pause between two attempts to reach a successor.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// `MADV_DONTNEED_LOCKED` of `linux/mman.h`.
const DONTNEED_LOCKED: i32 = 24;

/// A member of a space, in the hands of its helper thread.
#[derive(Debug)]
pub struct Member<'a> {
    place: Place,
    line: &'a Line,
    socket: Socket,
    uffd: OwnedFd,
    shared_state: OwnedFd,
    memory: Option<OwnedFd>,
    view: u16,
    agent: u32,
    inbox: Inbox,
    /// How long to wait for a successor of the agent.
    wait: Duration,
    /// Whose memory it is, if not this process's.
    pid: Option<u32>,
    /// Readable when the host is to be called.
    bell: Option<OwnedFd>,
    /// This process, to take many ranges away by one call; none once that has been tried in vain.
    own: Option<OwnedFd>,
}

/// Why a helper thread has nothing to do any more.
#[derive(Debug)]
pub enum Ended {
    /// The process has left, as it wanted to.
    Left,
    /// The agent has died and nobody has taken over in time, or would not. The process cannot go on: what is not in its
    /// memory cannot come back.
    Abandoned(JoinError),
}

/// What a host wants to hear of.
pub trait Host {
    /// The data of these pages is lost: touching them gives SIGBUS.
    fn lost(&mut self, pages: Pages) {
        let _ = pages;
    }

    /// Why pages will be lost next, in the agent's words, eight bytes at a time.
    fn why(&mut self, words: &mut dyn Iterator<Item = [u8; RANGE]>) {
        let _ = words;
    }

    /// The agent has died; its successor is looked for next.
    fn orphaned(&mut self) {}

    /// A successor has taken over.
    fn adopted(&mut self) {}

    /// The region has no room for pages that have to leave, and a thread of this process has waited too long for them.
    fn full(&mut self) {}

    /// Somebody has rung the bell.
    fn rung(&mut self) {}

    /// How often [`look`](Self::look) is called; `None`: never.
    fn look_interval(&self) -> Option<Duration> {
        None
    }

    /// It is time to look after what no message tells of.
    fn look(&mut self) {}
}

/// A host that wants to hear nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

impl Host for Quiet {}

impl<'a> Member<'a> {
    /// A member that has joined. `uffd` is its own userfaultfd, that of `joined` for a forked child; the descriptors are
    /// kept open for a successor of the agent.
    pub fn new(
        place: Place,
        joined: Joined,
        uffd: OwnedFd,
        shared_state: OwnedFd,
        memory: Option<OwnedFd>,
        line: &'a Line,
        wait: Duration,
    ) -> Member<'a> {
        let Joined { socket, welcome, .. } = joined;
        let (view, agent) = (welcome.view, welcome.agent);
        line.connected(socket.as_fd().as_raw_fd());
        Member {
            place,
            line,
            socket,
            uffd,
            shared_state,
            memory,
            view,
            agent,
            inbox: Inbox::new(),
            wait,
            pid: None,
            bell: None,
            own: None,
        }
    }

    /// The same for memory of another process, which [`join_for`] was called for.
    pub fn for_process(self, pid: u32) -> Member<'a> {
        Member { pid: Some(pid), ..self }
    }

    /// The same with a bell (an `eventfd`): the host is called when somebody has written to it.
    pub fn with_bell(self, bell: OwnedFd) -> Member<'a> {
        Member { bell: Some(bell), ..self }
    }

    /// Its view.
    pub fn view(&self) -> u16 {
        self.view
    }

    /// The agent's process.
    pub fn agent(&self) -> u32 {
        self.agent
    }

    /// The space's shared state.
    pub fn shared_state(&self) -> BorrowedFd<'_> {
        self.shared_state.as_fd()
    }

    /// Obeys until the process leaves or is abandoned.
    pub fn run(&mut self, host: &mut impl Host) -> Ended {
        self.own = own_process();
        loop {
            self.listen(host);
            self.line.disconnected();
            if self.line.is_leaving() {
                self.line.over();
                return Ended::Left;
            }
            host.orphaned();
            if let Err(error) = self.resume(host) {
                self.line.over();
                return if self.line.is_leaving() { Ended::Left } else { Ended::Abandoned(error) };
            }
            host.adopted();
        }
    }

    /// Obeys until the agent hangs up. Every order that came before has been carried out then.
    fn listen(&mut self, host: &mut impl Host) {
        let interval = host.look_interval();
        let timeout = interval.map_or(-1, |interval| interval.as_millis() as i32);
        let mut looked = Instant::now();
        loop {
            if interval.is_some_and(|interval| looked.elapsed() >= interval) {
                host.look();
                looked = Instant::now();
            }
            while let Ok(Some(message)) = self.inbox.next() {
                self.obey(&message, host);
            }
            let bell = self.bell.as_ref().map_or(-1, AsRawFd::as_raw_fd);
            let mut set = [self.socket.as_fd().as_raw_fd(), bell].map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
            // SAFETY: two live entries; the kernel passes over one below 0.
            unsafe { libc::poll(set.as_mut_ptr(), 2, timeout) };
            self.hear_bell(host);
            let room = self.inbox.room();
            // No room: what came is no message.
            match self.socket.try_receive(room) {
                Ok(0) => return,
                Ok(bytes) => self.inbox.put(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    fn hear_bell(&self, host: &mut impl Host) {
        let Some(bell) = &self.bell else { return };
        let mut count = 0_u64;
        // SAFETY: the kernel writes a live word.
        let read = unsafe { libc::read(bell.as_raw_fd(), (&raw mut count).cast(), 8) };
        if read == 8 {
            host.rung();
        }
    }

    fn obey(&mut self, message: &Message, host: &mut impl Host) {
        match message.kind {
            Kind::Drop => {
                if !self.drop_at_once(message.ranges()) {
                    message.ranges().iter().for_each(|pages| self.drop_pages(*pages));
                }
                let mut bytes = [0; MESSAGE_MAX];
                let length = Message::new(Kind::Dropped, &[]).encode(&mut bytes);
                // If it has died, its successor finds the pages gone.
                let _ = self.socket.send(&bytes[..length], &[]);
            }
            Kind::Lost => message.ranges().iter().for_each(|pages| host.lost(*pages)),
            Kind::Why => host.why(&mut message.said()),
            Kind::Discarded => self.line.discarded(),
            Kind::Full => host.full(),
            // It hangs up next.
            Kind::Bye => {}
            // A member's own words.
            Kind::Dropped
            | Kind::Discard
            | Kind::Leave
            | Kind::WillRead
            | Kind::WillWrite
            | Kind::Cold
            | Kind::PageOut => {}
        }
    }

    /// Where pages are, if all of them are in the memory that is paged.
    fn range(&self, Pages { first, count }: Pages) -> Option<(*mut libc::c_void, usize)> {
        let (start, length) = (u64::from(first) * PAGE_BYTES, u64::from(count) * PAGE_BYTES);
        let fits = start.checked_add(length).is_some_and(|end| end <= self.place.bytes);
        fits.then_some(((self.place.address + start) as *mut libc::c_void, length as usize))
    }

    /// Takes pages away by one call for all ranges, which has the processors forget them once and not range by range. `false`
    /// if some may still be there; to take them away again is no harm, as nobody is given them back before the answer.
    fn drop_at_once(&mut self, pages: &[Pages]) -> bool {
        let Some(own) = &self.own else { return false };
        if pages.len() < 2 {
            return false;
        }
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let (mut ranges, mut count, mut bytes) = ([none; RANGES_MAX], 0, 0);
        for (start, length) in pages.iter().filter_map(|pages| self.range(*pages)) {
            ranges[count] = libc::iovec { iov_base: start, iov_len: length };
            (count, bytes) = (count + 1, bytes + length);
        }
        // SAFETY: the pages lie in the memory that was given to the agent to page; it has their content, and gives it back to
        // whoever touches them next. So many ranges are live.
        let done = unsafe {
            let (own, ranges) = (own.as_raw_fd(), ranges.as_ptr());
            libc::syscall(libc::SYS_process_madvise, own, ranges, count, libc::MADV_DONTNEED, 0)
        };
        if done < 0 {
            // Linux before 6.14 does not do this even to the caller's own memory.
            self.own = None;
        }
        done >= 0 && done as usize == bytes
    }

    fn drop_pages(&self, pages: Pages) {
        if let Some((address, length)) = self.range(pages) {
            // By its number: the function of this name may be one that announces discards, and waits for this thread.
            let take = |advice: i32| {
                // SAFETY: the pages lie in the memory that was given to the agent to page; it has their content, and
                // gives it back to whoever touches them next.
                unsafe { libc::syscall(libc::SYS_madvise, address, length, advice) }
            };
            // Pages that the process has locked go only when asked for by that name.
            if take(libc::MADV_DONTNEED) != 0 {
                take(DONTNEED_LOCKED);
            }
        }
    }

    /// Finds the agent's successor, which goes on from the shared state.
    fn resume(&mut self, host: &mut impl Host) -> Result<(), JoinError> {
        let until = Instant::now() + self.wait;
        loop {
            self.hear_bell(host);
            host.look();
            let keepsakes = Keepsakes {
                uffd: self.uffd.as_fd(),
                shared_state: self.shared_state.as_fd(),
                memory: self.memory.as_ref().map(AsFd::as_fd),
                view: self.view,
            };
            let who = As::Before(keepsakes);
            let joined = match self.pid {
                Some(pid) => join_for(pid, &self.place, who),
                None => join(&self.place, who),
            };
            match joined {
                Ok(Joined { socket, welcome, .. }) => {
                    self.socket = socket;
                    self.agent = welcome.agent;
                    self.inbox = Inbox::new();
                    allow_reading(self.agent);
                    self.line.connected(self.socket.as_fd().as_raw_fd());
                    return Ok(());
                }
                Err(error) if error.may_pass() && Instant::now() < until && !self.line.is_leaving() => {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// This process by a descriptor.
fn own_process() -> Option<OwnedFd> {
    // SAFETY: plain values; the kernel makes a descriptor, or refuses.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) } as i32;
    // SAFETY: the kernel has just made it for us.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Allows the agent to read this process's memory where the system would let parents only (Yama). Without Yama it does
/// nothing.
pub fn allow_reading(agent: u32) {
    // SAFETY: plain values.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(agent), 0, 0, 0) };
}

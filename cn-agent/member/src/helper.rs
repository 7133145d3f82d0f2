//! The helper thread of a member (a process whose memory the agent pages): carries out the agent's orders, and connects
//! to the agent's successor when the agent has died.
//!
//! The agent orders the discard of a page only after it has written the page to a memory node. So when the agent's
//! connection ends, the helper carries out every order that it has received before the successor takes over, and none
//! of them afterwards.

#![expect(unsafe_code, reason = "pages that the agent discards are passed to the kernel by address")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::join::{JoinError, JoinKind, Joined, MemberMemory, SuccessorDescriptors, join, join_for};
use crate::line::HelperLine;
use crate::own_calls::own_call;
use crate::process_files::ProcessFiles;
use crate::socket::{Descriptors, Socket};
use crate::wire::{Inbox, MESSAGE_MAX, Message, MessageKind, PAGE_BYTES, Pages, RANGE, RANGES_MAX};

/// Pause between two attempts to reach a successor.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// `MADV_DONTNEED_LOCKED` of `linux/mman.h`.
const DONTNEED_LOCKED: i32 = 24;

/// A member of a space, served by its helper thread.
#[derive(Debug)]
pub struct Member<'a> {
    place: MemberMemory,
    line: &'a HelperLine,
    socket: Socket,
    uffd: OwnedFd,
    shared_state: OwnedFd,
    memory: Option<OwnedFd>,
    files: Option<ProcessFiles>,
    view: u16,
    agent: u32,
    inbox: Inbox,
    /// Longest wait for a successor of the agent.
    wait: Duration,
    /// Process whose memory is served, if it is not this one.
    pid: Option<u32>,
    /// An eventfd that is readable when [`HelperHost::on_bell`] is to be called.
    bell: Option<OwnedFd>,
    /// This process's pidfd, to discard many ranges by one call; `None` once that has failed.
    own: Option<OwnedFd>,
}

#[derive(Debug)]
pub enum HelperEnd {
    /// The process has left the space, by a call of [`HelperLine::leave`](crate::line::HelperLine::leave).
    Left,
    /// The agent has died, and no successor accepted the process in time. The process has to end: pages that are not
    /// resident cannot be fetched.
    Abandoned(JoinError),
}

/// Callbacks of the process that runs the helper thread.
pub trait HelperHost {
    /// Reports that the data of these pages is lost: touching them gives SIGBUS.
    fn lost(&mut self, pages: Pages) {
        let _ = pages;
    }

    /// Receives the agent's reason for the losses that are reported next, as text in items of eight bytes.
    fn why(&mut self, words: &mut dyn Iterator<Item = [u8; RANGE]>) {
        let _ = words;
    }

    /// Reports that the agent has died; the helper looks for its successor next.
    fn orphaned(&mut self) {}

    /// Reports that a successor has taken over.
    fn adopted(&mut self) {}

    /// Reports that the region has no room for pages that have to be evicted, and that a thread of this process has
    /// waited too long for room.
    fn full(&mut self) {}

    fn on_bell(&mut self) {}

    /// Interval of the calls of [`on_interval`](Self::on_interval); `None` for no calls.
    fn look_interval(&self) -> Option<Duration> {
        None
    }

    fn on_interval(&mut self) {}
}

/// A host that ignores all callbacks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SilentHost;

impl HelperHost for SilentHost {}

impl<'a> Member<'a> {
    /// A member that has joined. `uffd` is the member's own userfaultfd; for a forked child it is the one in
    /// `joined`; the descriptors are kept open for a successor of the agent.
    pub fn new(
        place: MemberMemory,
        joined: Joined,
        uffd: OwnedFd,
        shared_state: OwnedFd,
        memory: Option<OwnedFd>,
        line: &'a HelperLine,
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
            files: None,
            view,
            agent,
            inbox: Inbox::new(),
            wait,
            pid: None,
            bell: None,
            own: None,
        }
    }

    /// Makes this the member for memory of process `pid`, joined by [`join_for`].
    pub fn for_process(self, pid: u32) -> Member<'a> {
        Member { pid: Some(pid), ..self }
    }

    /// Adds the files through which the agent reads the member's memory, to be passed to a successor of the
    /// agent.
    pub fn with_files(self, files: Option<ProcessFiles>) -> Member<'a> {
        Member { files, ..self }
    }

    /// Adds a bell (an `eventfd`): [`HelperHost::on_bell`] is called when the bell was written to.
    pub fn with_bell(self, bell: OwnedFd) -> Member<'a> {
        Member { bell: Some(bell), ..self }
    }

    pub fn view(&self) -> u16 {
        self.view
    }

    /// Process id of the agent.
    pub fn agent(&self) -> u32 {
        self.agent
    }

    pub fn shared_state(&self) -> BorrowedFd<'_> {
        self.shared_state.as_fd()
    }

    /// Carries out the agent's orders until the process leaves or is abandoned.
    pub fn run(&mut self, host: &mut impl HelperHost) -> HelperEnd {
        self.own = own_process();
        loop {
            self.serve(host);
            self.line.disconnected();
            if self.line.is_leaving() {
                self.line.over();
                return HelperEnd::Left;
            }
            host.orphaned();
            if let Err(error) = self.resume(host) {
                self.line.over();
                return if self.line.is_leaving() { HelperEnd::Left } else { HelperEnd::Abandoned(error) };
            }
            host.adopted();
        }
    }

    /// Carries out orders until the agent closes the connection, including all orders that arrived before it was
    /// closed.
    fn serve(&mut self, host: &mut impl HelperHost) {
        let interval = host.look_interval();
        let timeout = interval.map_or(-1, |interval| interval.as_millis() as i32);
        let mut looked = Instant::now();
        loop {
            if interval.is_some_and(|interval| looked.elapsed() >= interval) {
                host.on_interval();
                looked = Instant::now();
            }
            while let Ok(Some(message)) = self.inbox.next() {
                self.carry_out(&message, host);
            }
            let bell = self.bell.as_ref().map_or(-1, AsRawFd::as_raw_fd);
            let mut set = [self.socket.as_fd().as_raw_fd(), bell].map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
            // SAFETY: the array has two live entries; the kernel ignores an entry whose descriptor is negative.
            unsafe { libc::poll(set.as_mut_ptr(), 2, timeout) };
            self.take_bell(host);
            let room = self.inbox.room();
            // An inbox without room holds bytes that form no message: 0 bytes are received then, which ends
            // the connection.
            match self.socket.try_receive(room, &mut Descriptors::new()) {
                Ok(0) => return,
                Ok(bytes) => self.inbox.put(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    fn take_bell(&self, host: &mut impl HelperHost) {
        let Some(bell) = &self.bell else { return };
        let mut count = 0_u64;
        // SAFETY: the kernel writes a live word.
        let read = unsafe { libc::read(bell.as_raw_fd(), (&raw mut count).cast(), 8) };
        if read == 8 {
            host.on_bell();
        }
    }

    fn carry_out(&mut self, message: &Message, host: &mut impl HelperHost) {
        match message.kind {
            MessageKind::Drop => {
                if !self.drop_at_once(message.ranges()) {
                    message.ranges().iter().for_each(|pages| self.drop_pages(*pages));
                }
                self.answer(&Message::new(MessageKind::Dropped, &[]));
            }
            MessageKind::Lost => message.ranges().iter().for_each(|pages| host.lost(*pages)),
            MessageKind::Why => host.why(&mut message.text_bytes()),
            MessageKind::Discarded => self.line.discarded(),
            MessageKind::Full => host.full(),
            MessageKind::Unmarked if self.pid.is_none() => {
                // The process itself sends the signal: its process id might be another program's by the time the agent
                // uses it.
                // SAFETY: the call takes plain values.
                unsafe { libc::kill(libc::getpid(), libc::SIGBUS) };
            }
            // Nothing to do: the memory belongs to another process, which this process ends when pages are
            // lost.
            MessageKind::Unmarked => {}
            // Nothing to do: the agent closes the connection next.
            MessageKind::Bye => {}
            // These messages are only sent by members.
            MessageKind::Dropped
            | MessageKind::Discard
            | MessageKind::Leave
            | MessageKind::WillRead
            | MessageKind::WillWrite
            | MessageKind::Cold
            | MessageKind::PageOut => {}
        }
    }

    /// Sends an answer, for which the agent waits as long as the connection lasts, however long it takes nothing.
    fn answer(&self, message: &Message) {
        let mut bytes = [0; MESSAGE_MAX];
        let length = message.encode(&mut bytes);
        // A short message is sent whole or not at all. Other errors are ignored: if the agent has died, its successor
        // finds the pages discarded.
        while self
            .socket
            .send(&bytes[..length], &[])
            .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        {}
    }

    /// Address and length in bytes of pages, if all of them are in the paged memory.
    fn range(&self, Pages { first, count }: Pages) -> Option<(*mut libc::c_void, usize)> {
        let (start, length) = (u64::from(first) * PAGE_BYTES, u64::from(count) * PAGE_BYTES);
        let fits = start.checked_add(length).is_some_and(|end| end <= self.place.bytes);
        fits.then_some(((self.place.address + start) as *mut libc::c_void, length as usize))
    }

    /// Discards all ranges of pages by one call, so that TLBs are flushed once and not per range. Returns
    /// `false` if some pages may still be present; discarding them again is harmless, since the agent
    /// resolves no fault on them before the answer.
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
        // SAFETY: the pages lie in the memory registered with the agent, which has their content and serves the next
        // fault. The array of ranges is live for the call.
        let done = unsafe {
            let (own, ranges) = (own.as_raw_fd() as usize, ranges.as_ptr() as usize);
            own_call(libc::SYS_process_madvise, [own, ranges, count, libc::MADV_DONTNEED as usize, 0])
        };
        if done < 0 {
            // Before version 6.14, Linux refuses this advice in `process_madvise`, even for the caller's own memory.
            self.own = None;
        }
        done >= 0 && done as usize == bytes
    }

    fn drop_pages(&self, pages: Pages) {
        if let Some((address, length)) = self.range(pages) {
            // madvise is called by its number: a function of this name may be interposed, which would announce the
            // discard and wait for this thread.
            let take = |advice: i32| {
                // SAFETY: the pages lie in the memory registered with the agent, which has their content and serves the
                // next fault.
                unsafe { own_call(libc::SYS_madvise, [address as usize, length, advice as usize, 0, 0]) }
            };
            // Pages locked in memory are discarded by `MADV_DONTNEED_LOCKED` only.
            if take(libc::MADV_DONTNEED) != 0 {
                take(DONTNEED_LOCKED);
            }
        }
    }

    /// Connects to the agent's successor, which continues from the shared state.
    fn resume(&mut self, host: &mut impl HelperHost) -> Result<(), JoinError> {
        let until = Instant::now() + self.wait;
        loop {
            self.take_bell(host);
            host.on_interval();
            let successor_descriptors = SuccessorDescriptors {
                uffd: self.uffd.as_fd(),
                shared_state: self.shared_state.as_fd(),
                memory: self.memory.as_ref().map(AsFd::as_fd),
                files: self.files.as_ref(),
                view: self.view,
            };
            let who = JoinKind::Before(successor_descriptors);
            let joined = match self.pid {
                Some(pid) => join_for(pid, &self.place, who),
                None => join(&self.place, who),
            };
            match joined {
                Ok(Joined { socket, welcome, .. }) => {
                    self.socket = socket;
                    self.agent = welcome.agent;
                    self.inbox = Inbox::new();
                    self.line.connected(self.socket.as_fd().as_raw_fd());
                    return Ok(());
                }
                Err(error) if error.is_transient() && Instant::now() < until && !self.line.is_leaving() => {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Opens a pidfd of this process, by which many ranges are discarded in one call.
fn own_process() -> Option<OwnedFd> {
    // SAFETY: plain values; the kernel makes a descriptor, or refuses.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) } as i32;
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    use super::*;
    use crate::sleep_counter::SleepCounter;
    use crate::socket::{SocketPath, send_some};
    use crate::wire::JoinReply;

    /// Answers of a member that has received `orders`, once its agent takes what it sends again.
    fn answers_after_a_pause(orders: &[Message]) -> usize {
        let (here, mut there) = UnixStream::pair().unwrap();
        here.set_write_timeout(Some(Duration::from_millis(10))).unwrap();
        there.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut bytes = [0; MESSAGE_MAX];
        let length = Message::new(MessageKind::Cold, &[Pages::default()]).encode(&mut bytes);
        while send_some(here.as_fd(), &bytes[..length], &[], libc::MSG_DONTWAIT).is_ok() {}
        for order in orders {
            let length = order.encode(&mut bytes);
            there.write_all(&bytes[..length]).unwrap();
        }

        let nothing = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let agent = SocketPath::new(b"/nowhere/agent.sock").unwrap();
        let place = MemberMemory { agent, space: 1, address: 0, bytes: 0, offset: 0 };
        let joined = Joined {
            socket: Socket::from(OwnedFd::from(here)),
            welcome: JoinReply::default(),
            uffd: None,
            shared_state: None,
        };
        let line = HelperLine::new();
        let mut member = Member::new(place, joined, nothing(), nothing(), None, &line, Duration::ZERO);
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let ended = scope.spawn(|| {
                tell.send(SleepCounter::this_thread()).unwrap();
                member.run(&mut SilentHost)
            });
            // The second sleep begins when the limit has ended the first.
            told.recv().unwrap().wait_for(2);
            let (mut inbox, mut answers) = (Inbox::new(), 0);
            while answers < orders.len() {
                while let Some(message) = inbox.next().unwrap() {
                    answers += usize::from(message.kind == MessageKind::Dropped);
                }
                match there.read(inbox.room()) {
                    Ok(0) | Err(_) => break,
                    Ok(bytes) => inbox.put(bytes),
                }
            }
            drop(there);
            assert!(matches!(ended.join().unwrap(), HelperEnd::Abandoned(_)));
            answers
        })
    }

    #[test]
    fn orders_are_answered_although_the_agent_takes_nothing_for_longer_than_the_limit() {
        let order = Message::new(MessageKind::Drop, &[]);
        assert_eq!(answers_after_a_pause(&[order, order]), 2);
    }
}

//! One client: its rings, the socket that wakes it and whose end is its end, and the user it belongs to.

use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cxloe_client::ring::{AgentEnd, Completion};
use cxloe_client::status::Status;
use cxloe_cn_core::cache::Line;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};

use super::jobs::{Ended, Jobs};
use super::owners::Owners;

/// How many clients there are; each holds one and gives it back when dropped.
#[derive(Debug)]
pub struct ClientSlot(Arc<AtomicUsize>);

impl ClientSlot {
    /// A slot, if fewer than `limit` are taken.
    pub fn take(taken: &Arc<AtomicUsize>, limit: usize) -> Option<ClientSlot> {
        let more = |count| (count < limit).then_some(count + 1);
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(ClientSlot(Arc::clone(taken)))
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client: its rings, and the socket that wakes it and tells of its end.
#[derive(Debug)]
pub struct Client {
    pub(crate) end: AgentEnd,
    socket: UnixStream,
    _slot: ClientSlot,
    /// Operations that have no completion yet.
    pub(crate) in_flight: usize,
    pub(crate) jobs: Jobs,
    /// Its user, if that is one to whom not all regions belong.
    uid: Option<u32>,
    /// Addresses that are other users', ascending.
    pub(crate) foreign: Vec<Range<u64>>,
    /// Whether a completion was published since [`take_completed`](Self::take_completed).
    completed: bool,
}

impl Client {
    /// A client whose rings and socket these are, of user `uid`; `None`: of one to whom all regions belong.
    pub fn new(end: AgentEnd, socket: UnixStream, slot: ClientSlot, uid: Option<u32>) -> Client {
        let (jobs, foreign) = (Jobs::default(), Vec::new());
        Client { end, socket, _slot: slot, in_flight: 0, jobs, uid, foreign, completed: false }
    }

    /// Notes which addresses belong to other users.
    pub(crate) fn set_owners(&mut self, owners: &Owners) {
        self.foreign = owners.foreign_to(self.uid);
    }

    /// Publishes a completion.
    pub(crate) fn complete(&mut self, tag: u32, status: Status, line: Option<&Line>) {
        self.end.complete(Completion { tag, status }, line);
        self.completed = true;
    }

    /// Ends a job: one operation less is in flight.
    pub(crate) fn end_job(&mut self, (tag, status): Ended) {
        self.in_flight -= 1;
        self.complete(tag, status, None);
    }

    /// Whether a completion was published since this was last asked.
    pub(crate) fn take_completed(&mut self) -> bool {
        std::mem::take(&mut self.completed)
    }

    /// The socket, to be polled.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes wake-ups off the socket; `false` once the client has gone.
    pub(crate) fn listen(&self) -> bool {
        let mut bytes = [0; 64];
        match recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => false,
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => true,
            Err(_) => false,
        }
    }

    /// Wakes the client.
    pub(crate) fn wake(&self) {
        // A full socket holds wake-ups that the client has not taken; `listen` notices one that is gone.
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let _ = send(self.socket.as_raw_fd(), &[1], flags);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A poll under way holds the socket open for a while; the other end has to see its end now.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

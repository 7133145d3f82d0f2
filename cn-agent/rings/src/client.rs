//! One connected client: its rings, its socket and its user. The socket carries wake-ups. When the client closes it,
//! the client is removed.

use std::io;
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use cxloe_client::ring::{AgentEnd, Completion};
use cxloe_client::status::Status;
use cxloe_closer::{ClosedElsewhere, dispose};
use cxloe_cn_core::cache::Line;
use cxloe_member::socket::{Descriptors, receive_some};
use nix::sys::socket::{MsgFlags, send};

use super::client_slot::ClientSlot;
use super::jobs::{FinishedJob, Jobs};
use super::owners::Owners;

#[derive(Debug)]
pub struct Client {
    pub(crate) end: AgentEnd,
    socket: ClosedElsewhere<UnixStream>,
    _slot: ClientSlot,
    /// Number of operations taken from the ring and not yet completed.
    pub(crate) in_flight: usize,
    pub(crate) jobs: Jobs,
    /// User id of the client; `None` for a user who may use all regions.
    uid: Option<u32>,
    /// Address ranges of regions that belong to other users, ascending.
    pub(crate) foreign: Vec<Range<u64>>,
    /// Whether a completion was published since the last [`take_completed`](Self::take_completed).
    completed: bool,
}

impl Client {
    /// Returns a client of user `uid`, or, with `None`, one that may use all regions.
    pub fn new(end: AgentEnd, socket: UnixStream, slot: ClientSlot, uid: Option<u32>) -> Client {
        let (jobs, foreign) = (Jobs::default(), Vec::new());
        let socket = ClosedElsewhere::new(socket);
        Client { end, socket, _slot: slot, in_flight: 0, jobs, uid, foreign, completed: false }
    }

    /// Recomputes the address ranges of regions that belong to other users.
    pub(crate) fn set_owners(&mut self, owners: &Owners) {
        self.foreign = owners.foreign_to(self.uid);
    }

    /// Publishes a completion with the operation's tag and status, and with the data if one line was read.
    pub(crate) fn complete(&mut self, tag: u32, status: Status, line: Option<&Line>) {
        self.end.complete(Completion { tag, status }, line);
        self.completed = true;
    }

    /// Ends a job: publishes the completion, and counts one operation less in flight.
    pub(crate) fn end_job(&mut self, (tag, status): FinishedJob) {
        self.in_flight -= 1;
        self.complete(tag, status, None);
    }

    /// Whether a completion was published since the last call.
    pub(crate) fn take_completed(&mut self) -> bool {
        std::mem::take(&mut self.completed)
    }

    /// Socket to poll for wake-ups and for the end of the client.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads wake-ups off the socket; returns `false` if the client has closed it.
    pub(crate) fn drain_wakeups(&self) -> bool {
        let (mut bytes, mut came) = ([0; 64], Descriptors::new());
        let received =
            receive_some(self.socket.as_fd(), &mut bytes, &mut came, MsgFlags::MSG_DONTWAIT.bits());
        // Wake-ups carry no descriptors. If a client sends descriptors anyway, another thread closes them, because
        // closing them may block.
        if !came.is_empty() {
            dispose(came);
        }
        match received {
            Ok(received) => received > 0,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }

    /// Wakes a sleeping client by one byte on the socket. Never blocks.
    pub(crate) fn wake(&self) {
        // Errors are ignored: a full socket already holds wake-ups, and `drain_wakeups` notices a closed one.
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let _ = send(self.socket.as_raw_fd(), &[1], flags);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A pending poll may keep the socket open after this value is dropped. The shutdown lets the client detect the
        // end at once.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

//! A connection that owns a mapped region: the region was mapped by a request on the connection, and stays
//! mapped until the connection closes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use cxloe_member::socket::{Descriptors, receive_some, send_some};
use cxloe_member::uffd;

use crate::client::{ClientError, call_quietly, protocol, unanswered};
use crate::message::{
    self, ANSWER_MAX, AgentAnswer, AgentCall, AgentRequest, MapRequest, PagingView, VERSION,
};

/// Error: this user has no right to handle page faults that the kernel raises in system calls. Programs that pass
/// arbitrary memory to system calls cannot run in remote memory then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this user may not handle page faults of system calls ({0}), which most programs take: have the administrator set \
     allow-kernel-faults = true in cn-agent.toml, or vm.unprivileged_userfaultfd=1; or run it as root. Mapped regions work \
     without"
)]
pub struct NoKernelFaults(io::ErrorKind);

/// Connection to the agent that owns a mapped region.
#[derive(Debug)]
pub struct Owner {
    socket: UnixStream,
    path: PathBuf,
    request: MapRequest,
    space: u64,
    pages: u32,
    sealed: bool,
    shared_state: OwnedFd,
    memory: Option<OwnedFd>,
    device: Option<OwnedFd>,
    /// Socket to which the agent sends the userfaultfds of forked children; `None` unless [`MapRequest::keeps`] is set.
    keeper: Option<OwnedFd>,
    /// Number of answers that the connection still brings, of requests given up too.
    owed: usize,
}

/// Descriptor of the connection, to be polled for the end of the agent.
impl AsFd for Owner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Owner {
    /// Has the agent at `path` map a region, which stays mapped until the returned connection is dropped.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn map(path: &Path, request: MapRequest) -> Result<Owner, ClientError> {
        Self::ask_for(path, request, &[])
    }

    /// Like [`map`](Self::map), but with a socket to which the agent sends userfaultfds of forked children
    /// ([`MapRequest::keeps`] is set).
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn map_keeping(path: &Path, request: MapRequest, keeper: OwnedFd) -> Result<Owner, ClientError> {
        let owner = Self::ask_for(path, request, &[keeper.as_fd()])?;
        Ok(Owner { keeper: Some(keeper), ..owner })
    }

    /// Asks the successor of an agent that has ended to take the region over; `self` becomes a connection to the
    /// successor.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn resume(&mut self) -> Result<(), ClientError> {
        let successor_descriptors: Vec<BorrowedFd<'_>> =
            [self.keeper.as_ref(), Some(&self.shared_state), self.memory.as_ref()]
                .into_iter()
                .flatten()
                .map(AsFd::as_fd)
                .collect();
        let request = MapRequest { resume: true, ..self.request.clone() };
        let Owner { socket, space, .. } = Self::ask_for(&self.path, request, &successor_descriptors)?;
        if space != self.space {
            return Err(protocol(&self.path, "it has mapped the region anew, without the earlier state"));
        }
        (self.socket, self.owed) = (socket, 0);
        Ok(())
    }

    fn ask_for(path: &Path, request: MapRequest, sent: &[BorrowedFd<'_>]) -> Result<Owner, ClientError> {
        let mut socket = call_quietly(path)?;
        let ask = message::encode(&AgentRequest { version: VERSION, ask: AgentCall::Map(request.clone()) });
        let first = send_some(socket.as_fd(), &ask, sent, 0).map_err(|error| unanswered(path, error))?;
        io::Write::write_all(&mut socket, &ask[first..]).map_err(|error| unanswered(path, error))?;

        let (mut prefix, mut descriptors) = ([0; 4], Descriptors::new());
        let got = receive_some(socket.as_fd(), &mut prefix, &mut descriptors, libc::MSG_WAITALL);
        if got.map_err(|error| unanswered(path, error))? < prefix.len() {
            return Err(ClientError::AgentGone(path.into()));
        }
        let length = message::announced(prefix, ANSWER_MAX).map_err(|error| unanswered(path, error))?;
        let mut bytes = vec![0; length];
        io::Read::read_exact(&mut socket, &mut bytes).map_err(|error| unanswered(path, error))?;
        let answer = message::decode(&bytes).map_err(|error| unanswered(path, error))?;
        let (space, pages, sealed, names) = match answer {
            AgentAnswer::Mapped { space, pages, sealed, descriptors } => (space, pages, sealed, descriptors),
            AgentAnswer::Refused(reason) => return Err(ClientError::Refused { path: path.into(), reason }),
            other => {
                return Err(protocol(path, format!("an answer that does not match the request: {other:?}")));
            }
        };
        let (mut shared_state, mut memory, mut device) = (None, None, None);
        for name in names {
            match name.as_str() {
                "ledger" => shared_state = descriptors.take(),
                "memory" => memory = descriptors.take(),
                "userfaultfd" => device = descriptors.take(),
                _ => drop(descriptors.take()),
            }
        }
        let shared_state =
            shared_state.ok_or_else(|| protocol(path, "no shared state came with the answer"))?;
        Ok(Owner {
            socket,
            path: path.into(),
            request,
            space,
            pages,
            sealed,
            shared_state,
            memory,
            device,
            keeper: None,
            owed: 0,
        })
    }

    /// Number of the mapped region at the agent (its space), as `cn-agent paging` prints it.
    pub fn space(&self) -> u64 {
        self.space
    }

    /// Whether the region is sealed, and is to be mapped for reading only.
    pub fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// Number of pages of the region.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Path of the agent's socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Shared state of the mapped region, which the processes that use the region keep for a successor of the agent.
    pub fn shared_state(&self) -> BorrowedFd<'_> {
        self.shared_state.as_fd()
    }

    /// Memory of the region, if it is shared.
    pub fn memory(&self) -> Option<BorrowedFd<'_>> {
        self.memory.as_ref().map(AsFd::as_fd)
    }

    /// `/dev/userfaultfd`, opened by the agent; `None` if this user may not have it.
    pub fn device(&self) -> Option<BorrowedFd<'_>> {
        self.device.as_ref().map(AsFd::as_fd)
    }

    /// Checks that this process may handle page faults that the kernel raises in system calls.
    ///
    /// # Errors
    /// [`NoKernelFaults`].
    pub fn check_kernel_faults(&self) -> Result<(), NoKernelFaults> {
        uffd::create(self.device()).map(drop).map_err(|error| NoKernelFaults(error.kind()))
    }

    fn ask(&mut self, ask: AgentCall, waits: bool) -> Result<AgentAnswer, ClientError> {
        let path = self.path.clone();
        let failed = |error| unanswered(&path, error);
        message::write(&mut self.socket, &AgentRequest { version: VERSION, ask }).map_err(failed)?;
        self.owed += 1;
        // The agent may take long to write dirty pages back, so the read has no time limit here.
        let limit = self.socket.read_timeout().map_err(failed)?;
        if waits {
            self.socket.set_read_timeout(None).map_err(failed)?;
        }
        let answer = self.last_answer();
        self.socket.set_read_timeout(limit).map_err(failed)?;
        match answer.map_err(failed)? {
            AgentAnswer::Refused(reason) => Err(ClientError::Refused { path, reason }),
            answer => Ok(answer),
        }
    }

    /// Receives the answer to the last request, behind those that come too late for the requests before.
    fn last_answer(&mut self) -> io::Result<AgentAnswer> {
        loop {
            let answer = message::read(&mut self.socket, ANSWER_MAX);
            let is_late = |error: &io::Error| {
                matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
            };
            if answer.as_ref().is_err_and(is_late) {
                return answer;
            }
            self.owed -= 1;
            if self.owed == 0 || answer.is_err() {
                return answer;
            }
        }
    }

    fn unexpected_answer(&self, answer: &AgentAnswer) -> ClientError {
        protocol(&self.path, format!("an answer that does not match the request: {answer:?}"))
    }

    /// Changes the limit of resident bytes of the space (the mapped region) to `limit`.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn set_limit(&mut self, limit: u64) -> Result<(), ClientError> {
        let space = self.space;
        match self.ask(AgentCall::SetLimit { space, limit }, false)? {
            AgentAnswer::Done => {
                self.request.limit = limit;
                Ok(())
            }
            other => Err(self.unexpected_answer(&other)),
        }
    }

    /// Discards the space (the mapped region) and its content: nothing is written back. Unless the space has another
    /// owner or member, it is unmapped everywhere when this returns.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn discard(mut self) -> Result<(), ClientError> {
        match self.ask(AgentCall::Discard { space: self.space }, false)? {
            AgentAnswer::Done => Ok(()),
            other => Err(self.unexpected_answer(&other)),
        }
    }

    /// State and counters of paging in the space (the mapped region).
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn paging(&mut self) -> Result<PagingView, ClientError> {
        let space = Some(self.space);
        match self.ask(AgentCall::Paging { space }, false)? {
            AgentAnswer::Paging(mut views) => {
                let gone = message::RefusalReason::NoSpace;
                views.pop().ok_or_else(|| ClientError::Refused { path: self.path.clone(), reason: gone })
            }
            other => Err(self.unexpected_answer(&other)),
        }
    }

    /// Waits until all earlier writes are at the memory nodes.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn clean_all(&mut self) -> Result<(), ClientError> {
        match self.ask(AgentCall::CleanAll { space: self.space, zeros: true }, true)? {
            AgentAnswer::Done => Ok(()),
            other => Err(self.unexpected_answer(&other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use cxloe_cn_core::mapped::MappingKind;

    use super::*;
    use crate::message::RefusalReason;

    fn owner(socket: UnixStream) -> Owner {
        Owner {
            socket,
            path: "/nowhere/agent.sock".into(),
            request: MapRequest {
                region: "r".into(),
                kind: MappingKind::Shared,
                limit: 0,
                prefetch: false,
                fresh: false,
                lost_wait_ms: 0,
                stay: false,
                keeps: false,
                resume: false,
                incoming: None,
            },
            space: 1,
            pages: 1,
            sealed: false,
            shared_state: File::open("/dev/null").unwrap().into(),
            memory: None,
            device: None,
            keeper: None,
            owed: 0,
        }
    }

    #[test]
    fn a_late_answer_is_not_that_of_the_next_request() {
        let (here, mut agent) = UnixStream::pair().unwrap();
        here.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let mut owner = owner(here);
        assert!(matches!(owner.set_limit(4096), Err(ClientError::Silent { .. })));
        message::write(&mut agent, &AgentAnswer::Done).unwrap();
        message::write(&mut agent, &AgentAnswer::Refused(RefusalReason::NoSpace)).unwrap();
        let flushed = owner.clean_all();
        assert!(matches!(flushed, Err(ClientError::Refused { reason: RefusalReason::NoSpace, .. })));
        message::write(&mut agent, &AgentAnswer::Done).unwrap();
        owner.set_limit(8192).unwrap();
        assert_eq!(owner.request.limit, 8192);
    }
}

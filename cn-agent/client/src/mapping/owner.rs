//! A connection that owns a mapped region: it asked for it, may ask about it, and holds it as long as it stays.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use cxloe_member::socket::{Descriptors, receive_some, send_some};
use cxloe_member::uffd;

use crate::client::{ClientError, call_quietly, protocol, unanswered};
use crate::message::{self, ANSWER_MAX, Answer, Ask, MapRequest, PagingView, Request, VERSION};

/// Page faults of the kernel are not for this user: programs that pass any of their memory to system calls cannot run in
/// remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this user may not handle page faults of system calls ({0}), which most programs take: have the administrator set \
     allow-kernel-faults = true in cn-agent.toml, or vm.unprivileged_userfaultfd=1; or run it as root. Mapped regions work \
     without"
)]
pub struct NoKernelFaults(io::ErrorKind);

/// A mapped region in the hands of its owner.
#[derive(Debug)]
pub struct Owner {
    socket: UnixStream,
    path: PathBuf,
    request: MapRequest,
    space: u64,
    pages: u32,
    shared_state: OwnedFd,
    memory: Option<OwnedFd>,
    device: Option<OwnedFd>,
    /// Where descriptors of forked children are kept, if they are.
    keeper: Option<OwnedFd>,
}

/// The connection, for whoever waits for its end.
impl AsFd for Owner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Owner {
    /// Asks the agent at `path` to map a region.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn map(path: &Path, request: MapRequest) -> Result<Owner, ClientError> {
        Self::ask_for(path, request, &[])
    }

    /// The same, with a socket to which descriptors of forked children are sent ([`MapRequest::keeps`] is set).
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn map_keeping(path: &Path, request: MapRequest, keeper: OwnedFd) -> Result<Owner, ClientError> {
        let owner = Self::ask_for(path, request, &[keeper.as_fd()])?;
        Ok(Owner { keeper: Some(keeper), ..owner })
    }

    /// Asks the successor of the agent that died to go on with the region; `self` becomes that one's.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn resume(&mut self) -> Result<(), ClientError> {
        let keepsakes: Vec<BorrowedFd<'_>> =
            [self.keeper.as_ref(), Some(&self.shared_state), self.memory.as_ref()]
                .into_iter()
                .flatten()
                .map(AsFd::as_fd)
                .collect();
        let request = MapRequest { resume: true, ..self.request.clone() };
        let Owner { socket, space, .. } = Self::ask_for(&self.path, request, &keepsakes)?;
        if space != self.space {
            return Err(protocol(&self.path, "it has mapped the region anew, and knows nothing of what was"));
        }
        self.socket = socket;
        Ok(())
    }

    fn ask_for(path: &Path, request: MapRequest, sent: &[BorrowedFd<'_>]) -> Result<Owner, ClientError> {
        let mut socket = call_quietly(path)?;
        let ask = message::encode(&Request { version: VERSION, ask: Ask::Map(request.clone()) });
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
        let (space, pages, names) = match answer {
            Answer::Mapped { space, pages, descriptors } => (space, pages, descriptors),
            Answer::Refused(reason) => return Err(ClientError::Refused { path: path.into(), reason }),
            other => return Err(protocol(path, format!("an answer to another question: {other:?}"))),
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
            shared_state,
            memory,
            device,
            keeper: None,
        })
    }

    /// The space's number.
    pub fn space(&self) -> u64 {
        self.space
    }

    /// Pages of the region.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// The agent's socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The shared state, which members keep for a successor of the agent.
    pub fn shared_state(&self) -> BorrowedFd<'_> {
        self.shared_state.as_fd()
    }

    /// The memory, if it is shared.
    pub fn memory(&self) -> Option<BorrowedFd<'_>> {
        self.memory.as_ref().map(AsFd::as_fd)
    }

    /// `/dev/userfaultfd` as the agent has opened it.
    pub fn device(&self) -> Option<BorrowedFd<'_>> {
        self.device.as_ref().map(AsFd::as_fd)
    }

    /// Checks that this process may handle page faults that the kernel takes on behalf of programs.
    ///
    /// # Errors
    /// [`NoKernelFaults`].
    pub fn check_kernel_faults(&self) -> Result<(), NoKernelFaults> {
        uffd::create(self.device()).map(drop).map_err(|error| NoKernelFaults(error.kind()))
    }

    fn ask(&mut self, ask: Ask, waits: bool) -> Result<Answer, ClientError> {
        let path = self.path.clone();
        let failed = |error| unanswered(&path, error);
        message::write(&mut self.socket, &Request { version: VERSION, ask }).map_err(failed)?;
        // What has to be written back may be much.
        let limit = self.socket.read_timeout().map_err(failed)?;
        if waits {
            self.socket.set_read_timeout(None).map_err(failed)?;
        }
        let answer = message::read(&mut self.socket, ANSWER_MAX);
        self.socket.set_read_timeout(limit).map_err(failed)?;
        match answer.map_err(failed)? {
            Answer::Refused(reason) => Err(ClientError::Refused { path, reason }),
            answer => Ok(answer),
        }
    }

    fn odd(&self, answer: &Answer) -> ClientError {
        protocol(&self.path, format!("an answer to another question: {answer:?}"))
    }

    /// Changes how many bytes may be resident.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn set_limit(&mut self, limit: u64) -> Result<(), ClientError> {
        let space = self.space;
        match self.ask(Ask::SetLimit { space, limit }, false)? {
            Answer::Done => {
                self.request.limit = limit;
                Ok(())
            }
            other => Err(self.odd(&other)),
        }
    }

    /// Gives the space up, and what is in it: nothing is written back, and nobody has it mapped when this returns, unless
    /// another owner or a process does.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn discard(mut self) -> Result<(), ClientError> {
        match self.ask(Ask::Discard { space: self.space }, false)? {
            Answer::Done => Ok(()),
            other => Err(self.odd(&other)),
        }
    }

    /// How the space stands.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn paging(&mut self) -> Result<PagingView, ClientError> {
        let space = Some(self.space);
        match self.ask(Ask::Paging { space }, false)? {
            Answer::Paging(mut views) => {
                let gone = message::Refused::NoSpace;
                views.pop().ok_or_else(|| ClientError::Refused { path: self.path.clone(), reason: gone })
            }
            other => Err(self.odd(&other)),
        }
    }

    /// Waits until everything that was written before is at the memory nodes.
    ///
    /// # Errors
    /// Any [`ClientError`] but [`ClientError::Engine`].
    pub fn clean_all(&mut self) -> Result<(), ClientError> {
        match self.ask(Ask::CleanAll { space: self.space }, true)? {
            Answer::Done => Ok(()),
            other => Err(self.odd(&other)),
        }
    }
}

//! The user and process at the other end of a connection, as reported by the kernel, and the user's rights to this
//! node's memory.

use std::io;

use cxloe_paging::process::has_all_rights;
use tokio::net::UnixStream;

use cxloe_client::message::{AttachedRegion, PagingView, RefusalReason};

/// The process that made a connection, and its user, at the time of connecting.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub uid: u32,
    /// Process id; `None` if the process is in another PID namespace than the agent.
    pub pid: Option<u32>,
}

impl Caller {
    /// Reads the credentials of the peer of `stream`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of(stream: &UnixStream) -> io::Result<Caller> {
        let credentials = stream.peer_cred()?;
        let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok());
        Ok(Caller { uid: credentials.uid(), pid })
    }

    /// Whether this user may use memory that belongs to `owner`: a user may use its own memory and memory without an
    /// owner; root and the agent's user may use all.
    pub fn may_use(&self, owner: Option<u32>) -> bool {
        has_all_rights(self.uid) || owner.is_none_or(|owner| owner == self.uid)
    }

    /// User id of a user with limited rights; `None` for root and the agent's user.
    pub fn limited(&self) -> Option<u32> {
        Some(self.uid).filter(|uid| !has_all_rights(*uid))
    }

    /// Whether this user may handle page faults that the kernel raises in system calls. Root and the agent's user
    /// always may; other users may if the administrator has `allowed` it.
    pub fn may_serve_kernel_faults(&self, allowed: bool) -> bool {
        allowed || has_all_rights(self.uid)
    }

    /// The region `name` among `regions`, if this user may use it.
    ///
    /// # Errors
    /// [`RefusalReason::NoRegion`], [`RefusalReason::NotYours`].
    pub fn region(&self, regions: Vec<AttachedRegion>, name: &str) -> Result<AttachedRegion, RefusalReason> {
        let found = regions.into_iter().find(|region| region.region == name);
        let region = found.ok_or_else(|| RefusalReason::NoRegion(name.into()))?;
        self.check(name, region.uid)?;
        Ok(region)
    }

    /// Checks that this user may use the region `name`, which belongs to `owner`.
    ///
    /// # Errors
    /// [`RefusalReason::NotYours`].
    pub fn check(&self, name: &str, owner: Option<u32>) -> Result<(), RefusalReason> {
        if self.may_use(owner) {
            return Ok(());
        }
        Err(RefusalReason::NotYours { region: name.into(), uid: self.uid })
    }

    /// Keeps those of `spaces` that this user may use: the number of a space is a capability to join it.
    pub fn seen(&self, mut spaces: Vec<PagingView>) -> Vec<PagingView> {
        spaces.retain(|space| self.may_use(space.owner));
        spaces
    }
}

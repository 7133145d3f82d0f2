//! Who is at the other end of a connection, as the kernel says, and what of this node's memory is that user's.

use std::io;

use cxloe_paging::process::has_all_rights;
use tokio::net::UnixStream;

use cxloe_client::message::{AttachedRegion, PagingView, Refused};

/// The process that made a connection, and its user, as they were then.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The user.
    pub uid: u32,
    /// The process; `None` when it is in another PID namespace than the agent.
    pub pid: Option<u32>,
}

impl Caller {
    /// Who made this connection.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn of(stream: &UnixStream) -> io::Result<Caller> {
        let credentials = stream.peer_cred()?;
        let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok());
        Ok(Caller { uid: credentials.uid(), pid })
    }

    /// Whether memory is this user's that belongs to `owner`: its own, that of all who may use the agent, and all of it for
    /// root and for the agent's user.
    pub fn may_use(&self, owner: Option<u32>) -> bool {
        has_all_rights(self.uid) || owner.is_none_or(|owner| owner == self.uid)
    }

    /// The user, if not all memory is that user's.
    pub fn limited(&self) -> Option<u32> {
        Some(self.uid).filter(|uid| !has_all_rights(*uid))
    }

    /// Whether this user may handle page faults that the kernel takes on behalf of a program: root and the agent's user may
    /// anyway, and others where the administrator has `allowed` it.
    pub fn may_serve_kernel_faults(&self, allowed: bool) -> bool {
        allowed || has_all_rights(self.uid)
    }

    /// The region of this name among `regions`, if this user may use it.
    ///
    /// # Errors
    /// [`Refused::NoRegion`], [`Refused::NotYours`].
    pub fn region(&self, regions: Vec<AttachedRegion>, name: &str) -> Result<AttachedRegion, Refused> {
        let found = regions.into_iter().find(|region| region.region == name);
        let region = found.ok_or_else(|| Refused::NoRegion(name.into()))?;
        self.check(name, region.uid)?;
        Ok(region)
    }

    /// Checks that the region `name` of `owner` is this user's.
    ///
    /// # Errors
    /// [`Refused::NotYours`].
    pub fn check(&self, name: &str, owner: Option<u32>) -> Result<(), Refused> {
        if self.may_use(owner) {
            return Ok(());
        }
        Err(Refused::NotYours { region: name.into(), uid: self.uid })
    }

    /// What of `spaces` this user may see: the number of a space is the right to join it.
    pub fn seen(&self, mut spaces: Vec<PagingView>) -> Vec<PagingView> {
        spaces.retain(|space| self.may_use(space.owner));
        spaces
    }
}

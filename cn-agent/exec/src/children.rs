//! Forked children that have not registered themselves with the agent (joined the space) yet, or never will: only the
//! agent has a record of them. A child never joins if it is in a container that cannot reach the agent, or if it was
//! made without `fork(3)` and uses only the memory that it has.
//!
//! ```text
//!   fork --> agent: serves the child by its userfaultfd --copy--> supervisor: keeps it until the child has joined
//!              dies                                                  answers its faults with SIGBUS
//! ```
//!
//! If the supervisor had no copy of the userfaultfd, the child of a dead agent would read zeros from the kernel for
//! pages at memory nodes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cxloe_member::socket::{Descriptors, receive_some};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use cxloe_paging::member::ForkedChild;
use cxloe_paging::shared_state;
use cxloe_paging::uffd::{EventBuffer, PAGE, Uffd, UffdEvent};

/// Maximum number of messages received in one call of [`Children::gather`].
const MESSAGES_MAX: usize = 64;

/// A child that has not joined; the agent has sent its record and its userfaultfd.
#[derive(Debug)]
struct UnjoinedChild {
    child: ForkedChild,
    uffd: Uffd,
    /// Whether the agent has registered the child. The agent sends the child's userfaultfd here before it registers the
    /// child, since the agent may be killed between the two steps.
    entered: bool,
}

#[derive(Debug)]
pub struct Children {
    socket: OwnedFd,
    kept: Vec<UnjoinedChild>,
    /// Userfaultfds of children whose agent has died.
    orphans: Vec<Uffd>,
}

impl Children {
    /// An empty set, and the socket for the agent to send children to.
    ///
    /// # Errors
    /// Errors of the system call.
    pub fn new() -> io::Result<(Children, OwnedFd)> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (socket, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Children { socket, kept: Vec::new(), orphans: Vec::new() }, theirs))
    }

    /// Descriptors to poll: when one is readable, [`gather`](Self::gather) and [`serve`](Self::serve) are
    /// due.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.socket.as_fd()].into_iter().chain(self.orphans.iter().map(AsFd::as_fd))
    }

    /// Whether some child has not joined, so that [`gather`](Self::gather) is due again soon, even without a message.
    pub fn is_waiting(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Receives new children from the agent, and removes children that have joined or ended.
    pub fn gather(&mut self, shared_state: BorrowedFd<'_>) {
        for _ in 0..MESSAGES_MAX {
            let (mut bytes, mut came) = ([0; ForkedChild::BYTES], Descriptors::new());
            match receive_some(self.socket.as_fd(), &mut bytes, &mut came, libc::MSG_DONTWAIT) {
                Ok(ForkedChild::BYTES) => {}
                _ => break,
            }
            let uffd = came.take().and_then(|fd| Uffd::from_fd(fd).ok());
            if let Some((child, uffd)) = ForkedChild::decode(&bytes).zip(uffd) {
                self.kept.retain(|other| other.child.view != child.view);
                self.kept.push(UnjoinedChild { child, uffd, entered: false });
            }
        }
        if !self.kept.is_empty()
            && let Ok(known) = shared_state::joined(shared_state)
        {
            self.kept.retain_mut(|kept| {
                let (is_there, has_joined) =
                    (known.contains(&(kept.child.view, false)), known.contains(&(kept.child.view, true)));
                let has_ended = kept.entered && !is_there;
                kept.entered |= is_there;
                !has_joined && !has_ended
            });
        }
    }

    /// Takes over the children that have not joined, because the agent has died: they cannot join the agent's
    /// successor. To be called before the search for the successor.
    pub fn orphaned(&mut self, shared_state: BorrowedFd<'_>) {
        let known = shared_state::joined(shared_state).unwrap_or_default();
        let orphans = self.kept.drain(..).filter(|kept| !known.contains(&(kept.child.view, true)));
        for UnjoinedChild { child, uffd, .. } in orphans {
            // Wakes a thread whose fault the agent left unanswered: the thread raises the fault again.
            let _ = uffd.wake(child.memory);
            self.orphans.push(uffd);
        }
    }

    /// Answers the faults of children without an agent. Returns whether any child was denied a page.
    pub fn serve(&mut self) -> bool {
        let (mut buffer, mut refused) = (EventBuffer::new(), false);
        for uffd in &self.orphans {
            let Ok(events) = uffd.events(&mut buffer) else { continue };
            for event in events {
                let UffdEvent::Fault { address, wp, .. } = event else { continue };
                let page = address - address % PAGE..address - address % PAGE + PAGE;
                if wp {
                    // The page is resident and stays so: no agent evicts pages of this child any more.
                    let _ = uffd.unprotect(page, true);
                } else {
                    refused = true;
                    if uffd.poison(page.clone()).is_err() {
                        let _ = uffd.wake(page);
                    }
                }
            }
        }
        refused
    }
}

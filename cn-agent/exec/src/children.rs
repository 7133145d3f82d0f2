//! Children that only the agent knows: forked, and not joined (yet, or ever: in a container from where it cannot be
//! reached, or made past `fork(3)` and content with the memory they have).
//!
//! ```text
//!   fork --> agent: serves the child by its userfaultfd --copy--> supervisor: keeps it until the child has joined
//!              dies                                                  answers its faults with SIGBUS
//! ```
//!
//! Without a copy, the kernel would give such a child zeros for what is at memory nodes when the agent dies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cxloe_member::socket::{Descriptors, receive_some};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use cxloe_paging::member::Kept;
use cxloe_paging::shared_state;
use cxloe_paging::uffd::{Event, EventBuffer, PAGE, Uffd};

/// Messages taken in one go.
const MESSAGES_MAX: usize = 64;

/// A child that has not joined, as far as is known.
#[derive(Debug)]
struct Unjoined {
    child: Kept,
    uffd: Uffd,
    /// Whether the agent has entered it among those it serves. It sends the copy before that, for it may be killed in between.
    entered: bool,
}

/// The children of one space.
#[derive(Debug)]
pub struct Children {
    socket: OwnedFd,
    /// Those that have not joined.
    kept: Vec<Unjoined>,
    /// Those whose agent has died.
    orphans: Vec<Uffd>,
}

impl Children {
    /// None yet, and the socket for the agent to send them to.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new() -> io::Result<(Children, OwnedFd)> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (socket, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Children { socket, kept: Vec::new(), orphans: Vec::new() }, theirs))
    }

    /// What to wait on besides time.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.socket.as_fd()].into_iter().chain(self.orphans.iter().map(AsFd::as_fd))
    }

    /// Whether it is worth looking again soon, though nothing comes.
    pub fn is_waiting(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Takes in those that have come, and lets go of those that have joined or ended.
    pub fn gather(&mut self, shared_state: BorrowedFd<'_>) {
        for _ in 0..MESSAGES_MAX {
            let (mut bytes, mut came) = ([0; Kept::BYTES], Descriptors::new());
            match receive_some(self.socket.as_fd(), &mut bytes, &mut came, libc::MSG_DONTWAIT) {
                Ok(Kept::BYTES) => {}
                _ => break,
            }
            let uffd = came.take().and_then(|fd| Uffd::from_fd(fd).ok());
            if let Some((child, uffd)) = Kept::decode(&bytes).zip(uffd) {
                self.kept.retain(|other| other.child.view != child.view);
                self.kept.push(Unjoined { child, uffd, entered: false });
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

    /// The agent has died: who has not joined it cannot join its successor. To be called before that one is looked for.
    pub fn orphaned(&mut self, shared_state: BorrowedFd<'_>) {
        let known = shared_state::joined(shared_state).unwrap_or_default();
        let orphans = self.kept.drain(..).filter(|kept| !known.contains(&(kept.child.view, true)));
        for Unjoined { child, uffd, .. } in orphans {
            // Whom the agent has left waiting asks again.
            let _ = uffd.wake(child.memory);
            self.orphans.push(uffd);
        }
    }

    /// Answers the faults of orphans. Whether any of them was refused its memory.
    pub fn serve(&mut self) -> bool {
        let (mut buffer, mut refused) = (EventBuffer::new(), false);
        for uffd in &self.orphans {
            let Ok(events) = uffd.events(&mut buffer) else { continue };
            for event in events {
                let Event::Fault { address, wp, .. } = event else { continue };
                let page = address - address % PAGE..address - address % PAGE + PAGE;
                if wp {
                    // It is there, and nobody takes it away any more.
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

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
use std::time::{Duration, Instant};

use cxloe_member::socket::{Descriptors, receive_some};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use cxloe_paging::member::ForkedChild;
use cxloe_paging::shared_state;
use cxloe_paging::uffd::{EventBuffer, PAGE, Uffd, UffdError, UffdEvent};

/// Maximum number of messages received in one call of [`Children::gather`].
const MESSAGES_MAX: usize = 64;
/// Interval of looks at the records of all processes for children that have joined or ended. Such a look reads a quarter
/// of a megabyte, and the supervisor may be called for each system call of a program.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A child that has not joined; the agent has sent its record and its userfaultfd.
#[derive(Debug)]
struct UnjoinedChild {
    child: ForkedChild,
    uffd: Uffd,
    /// Whether the agent has registered the child. The agent sends the child's userfaultfd here before it copies the
    /// table of the parent's pages and registers the child, since the agent may be killed meanwhile.
    entered: bool,
}

impl UnjoinedChild {
    fn is_gone(&self) -> bool {
        // The first page is the probe page, which is never protected, so nothing changes.
        let start = self.child.memory.start;
        self.uffd.unprotect(start..start.saturating_add(PAGE), false) == Err(UffdError::Gone)
    }
}

#[derive(Debug)]
pub struct Children {
    socket: OwnedFd,
    kept: Vec<UnjoinedChild>,
    /// Time of the next look at the records; `None` without a child.
    due: Option<Instant>,
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
        Ok((Children { socket, kept: Vec::new(), due: None, orphans: Vec::new() }, theirs))
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
    pub fn gather(&mut self, shared_state: BorrowedFd<'_>, now: Instant) {
        self.gather_with(now, || shared_state::joined(shared_state));
    }

    fn gather_with(&mut self, now: Instant, joined: impl FnOnce() -> io::Result<Vec<(u16, bool)>>) {
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
        if self.kept.is_empty() {
            self.due = None;
            return;
        }
        if now < *self.due.get_or_insert(now + LOOK_INTERVAL) {
            return;
        }
        self.due = Some(now + LOOK_INTERVAL);
        let Ok(mut known) = joined() else { return };
        known.sort_unstable();
        let has = |view: u16, joined: bool| known.binary_search(&(view, joined)).is_ok();
        self.kept.retain_mut(|kept| {
            let view = kept.child.view;
            let (is_there, has_joined) = (has(view, false), has(view, true));
            // A child may have come and gone between two looks.
            let has_ended = !is_there && (kept.entered || kept.is_gone());
            kept.entered |= is_there;
            !has_joined && !has_ended
        });
    }

    /// Takes over the children that have not joined, because the agent has died: they cannot join the agent's
    /// successor. To be called before the search for the successor.
    pub fn orphaned(&mut self, shared_state: BorrowedFd<'_>) {
        let known = shared_state::joined(shared_state).unwrap_or_default();
        let is_orphan = |kept: &UnjoinedChild| !known.contains(&(kept.child.view, true)) && !kept.is_gone();
        let orphans = self.kept.drain(..).filter(is_orphan);
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

#[cfg(test)]
mod tests {
    use cxloe_member::socket::send_some;

    use super::*;

    #[test]
    fn records_are_read_now_and_then_however_many_children_come() {
        let (mut children, theirs) = Children::new().unwrap();
        let (start, mut reads) = (Instant::now(), 0);
        let mut look = |children: &mut Children, intervals: u32, known: Vec<(u16, bool)>| {
            children.gather_with(start + intervals * LOOK_INTERVAL, || {
                reads += 1;
                Ok(known)
            });
            (children.kept.len(), reads)
        };
        for view in 1..=50 {
            let child = ForkedChild { view, memory: PAGE..2 * PAGE };
            let uffd = Uffd::create_user_only().or_else(|_| Uffd::create()).unwrap();
            send_some(theirs.as_fd(), &child.encode(), &[uffd.as_fd()], libc::MSG_DONTWAIT).unwrap();
            assert_eq!(look(&mut children, 0, Vec::new()), (usize::from(view), 0));
        }
        let there = |views: std::ops::RangeInclusive<u16>, joined| views.map(move |view| (view, joined));
        let all = || there(1..=50, false).collect::<Vec<_>>();
        assert_eq!((look(&mut children, 1, all()), look(&mut children, 1, all())), ((50, 1), (50, 1)));
        // Some have joined, and others have ended.
        let some = there(31..=40, true).chain(there(1..=20, false)).collect();
        assert_eq!(look(&mut children, 2, some), (20, 2));
        assert_eq!(look(&mut children, 3, Vec::new()), (0, 3));
        assert_eq!(look(&mut children, 9, Vec::new()), (0, 3), "there is nobody to look for");
    }
}

//! The keeper of a gate (a filter on the system calls of a program): a process beside `cn-agent exec` that answers the
//! calls of processes that outlive the supervisor. Without a listener such calls fail, and these processes could not
//! execute any program.
//!
//! The keeper ends when no process has the filter.

#![expect(unsafe_code, reason = "the keeper is a forked child, and closes descriptors by number")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{ForkResult, fork, getpid, setsid};

use super::open_question::OpenQuestion;
use super::questions::{self, GatePolicy};

/// Starts the keeper of the gate with this listener.
///
/// # Errors
/// Errors of the system calls.
pub(crate) fn post(listener: BorrowedFd<'_>, open: &OpenQuestion, policy: GatePolicy) -> io::Result<()> {
    let supervisor = pidfd(getpid().as_raw())?;
    // SAFETY: another thread of this process is starting the program, so the child has this thread alone. It makes system
    // calls and allocates, which the C library permits after such a fork, and ends without a destructor.
    match unsafe { fork() }? {
        ForkResult::Parent { .. } => Ok(()),
        ForkResult::Child => keep(listener, open, &supervisor, policy),
    }
}

fn pidfd(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: plain values.
    match unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } {
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
        fd @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Main function of the keeper; never returns.
fn keep(listener: BorrowedFd<'_>, open: &OpenQuestion, supervisor: &OwnedFd, policy: GatePolicy) -> ! {
    // The keeper gets a session of its own, so that signals of the terminal reach only the program and its supervisor.
    let _ = setsid();
    let mut kept = [listener, open.as_fd(), supervisor.as_fd()].map(|fd| fd.as_raw_fd() as u32);
    kept.sort_unstable();
    // Standard streams are closed too: a reader at their other end waits until no process has them open.
    let mut first = 0;
    for end in kept.into_iter().chain([u32::MAX]) {
        if first < end {
            // SAFETY: the descriptors that are closed are copies in this process, which nothing in it uses.
            unsafe { libc::syscall(libc::SYS_close_range, first, end - 1, 0) };
        }
        first = end.saturating_add(1);
    }
    loop {
        let mut set =
            [PollFd::new(listener, PollFlags::empty()), PollFd::new(supervisor.as_fd(), PollFlags::POLLIN)];
        let polled = poll(&mut set, PollTimeout::NONE);
        let came = |index: usize| set[index].revents().is_some_and(|events| !events.is_empty());
        match polled {
            Err(Errno::EINTR) => {}
            // No process has the filter any more.
            Ok(_) if came(0) => break,
            // The supervisor has ended.
            Ok(_) if came(1) => {
                questions::answer_alone(listener, open, policy);
                break;
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
    // SAFETY: ends the process without the supervisor's exit handlers and destructors.
    unsafe { libc::_exit(0) }
}

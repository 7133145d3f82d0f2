//! The keeper of a gate: a process beside `cn-agent exec` that answers system calls once the supervisor has ended, for
//! processes that outlive it. Without a listener such a call fails, and these processes could execute nothing any more.
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
    // A session of its own: signals of the terminal are for the program and its supervisor.
    let _ = setsid();
    let mut kept = [listener, open.as_fd(), supervisor.as_fd()].map(|fd| fd.as_raw_fd() as u32);
    kept.sort_unstable();
    // Standard streams are closed as well: a reader at the other end waits until no process holds them.
    let mut first = 0;
    for end in kept.into_iter().chain([u32::MAX]) {
        if first < end {
            // SAFETY: closes copies of this process, which nothing in it uses.
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

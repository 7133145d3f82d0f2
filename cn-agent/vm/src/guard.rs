//! A process that outlives `cn-agent serve-uffd`, the server of a machine's page faults. If the server is killed, the
//! machine's vCPUs would wait for ever for pages, so the guard ends the machine.
//!
//! The guard is a forked process that only waits: for a byte on a pipe, or for the pipe's end. Between the fork and its
//! exit it makes system calls, and nothing else.

#![expect(unsafe_code, reason = "the guard is a forked child that only makes system calls")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, pipe, write};

/// Message on standard error before the guard ends the machine.
const LAST_WORDS: &[u8] =
    b"cn-agent: serve-uffd has died; the virtual machine whose memory it served is ended\n";

/// A running guard; dropping this ends it without ending the machine.
#[derive(Debug)]
pub struct Guard {
    process: Pid,
    pipe: OwnedFd,
}

impl Guard {
    /// Starts a guard of `machine`, a pidfd. To be called early: the guard begins with copies of all open
    /// descriptors, of which it keeps only standard error, the pipe and `machine`.
    ///
    /// # Errors
    /// Errors of the system call.
    pub fn post(machine: &OwnedFd) -> io::Result<Guard> {
        let (read, write) = pipe()?;
        let (read_fd, machine_fd) = (read.as_raw_fd(), machine.as_raw_fd());
        // SAFETY: the child makes system calls on descriptor numbers from before the fork, and exits.
        match unsafe { fork() }? {
            ForkResult::Child => watch(read_fd, machine_fd),
            ForkResult::Parent { child } => Ok(Guard { process: child, pipe: write }),
        }
    }
}

impl Drop for Guard {
    /// Writes the byte that makes the guard exit, since the server ends in an orderly way.
    fn drop(&mut self) {
        let _ = write(&self.pipe, b"x");
        while waitpid(self.process, None) == Err(Errno::EINTR) {}
    }
}

/// Main function of the guard's process; never returns.
fn watch(pipe: RawFd, machine: RawFd) -> ! {
    let (low, high) = (pipe.min(machine) as u32, pipe.max(machine) as u32);
    // SAFETY: system calls with plain values and live buffers. The descriptors that are closed are copies of this
    // process, which nothing in it uses.
    unsafe {
        // Puts the guard into a separate session, so that signals of the terminal do not end it.
        libc::setsid();
        for (first, last) in
            [(3, low.saturating_sub(1)), (low + 1, high.saturating_sub(1)), (high + 1, u32::MAX)]
        {
            if first <= last {
                libc::syscall(libc::SYS_close_range, first, last, 0);
            }
        }
        let mut word = 0_u8;
        loop {
            match libc::read(pipe, std::ptr::from_mut(&mut word).cast(), 1) {
                // End of file: the server has died without writing a byte, so the machine has to end.
                0 => break,
                // The byte: the server has ended in an orderly way.
                1 => libc::_exit(0),
                _ if *libc::__errno_location() == libc::EINTR => {}
                _ => break,
            }
        }
        libc::write(2, LAST_WORDS.as_ptr().cast(), LAST_WORDS.len());
        let none = std::ptr::null::<libc::siginfo_t>();
        libc::syscall(libc::SYS_pidfd_send_signal, machine, libc::SIGKILL, none, 0);
        libc::_exit(0)
    }
}

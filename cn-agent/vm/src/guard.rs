//! A process beside `cn-agent serve-uffd` that outlives it: if the server dies without a word, nobody would serve the
//! machine's faults any more and its vCPUs would wait for ever; so the guard ends the machine.
//!
//! It is a fork that only waits: for a word on a pipe, or for the pipe's end. Between the fork and its exit it makes
//! system calls, and nothing else.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, pipe, write};

/// What is said before the machine ends.
const LAST_WORDS: &[u8] =
    b"cn-agent: serve-uffd has died; the virtual machine whose memory it served is ended\n";

/// A guard on duty.
#[derive(Debug)]
pub struct Guard {
    process: Pid,
    pipe: OwnedFd,
}

impl Guard {
    /// Has a machine guarded. Called before this process holds anything that its death should close: the guard keeps
    /// standard error, the pipe and `machine` only.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn post(machine: &OwnedFd) -> io::Result<Guard> {
        let (read, write) = pipe()?;
        let (read_fd, machine_fd) = (read.as_raw_fd(), machine.as_raw_fd());
        // SAFETY: the child makes system calls on numbers of before the fork, and exits.
        match unsafe { fork() }? {
            ForkResult::Child => watch(read_fd, machine_fd),
            ForkResult::Parent { child } => Ok(Guard { process: child, pipe: write }),
        }
    }
}

impl Drop for Guard {
    /// The server ends in order.
    fn drop(&mut self) {
        let _ = write(&self.pipe, b"x");
        while waitpid(self.process, None) == Err(Errno::EINTR) {}
    }
}

/// The guard's whole life.
fn watch(pipe: RawFd, machine: RawFd) -> ! {
    let (low, high) = (pipe.min(machine) as u32, pipe.max(machine) as u32);
    // SAFETY: system calls with plain values and live buffers. Descriptors that are closed are this process's copies, which
    // nothing in it uses.
    unsafe {
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
                0 => break,
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

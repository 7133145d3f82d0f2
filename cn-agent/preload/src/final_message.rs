//! Messages before a process ends because its memory is out of reach.

#![expect(unsafe_code, reason = "descriptors are copied between tables by number")]

use std::ffi::c_int;
use std::fmt::{Display, Formatter, Write};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use arrayvec::ArrayString;
use cxloe_member::bounded_write::{STDERR, write_bounded};
use cxloe_member::join::JoinError;

use crate::{stage, sys};

/// Exit code of a process whose memory is out of reach: `EX_TEMPFAIL` of `sysexits.h`.
pub const CODE: c_int = 75;

/// Ends the process, and prints the reason on standard error.
pub fn end(why: impl Display) -> ! {
    // The heap must not be used from here on: formatting some reasons allocates, and the heap's memory is out of reach.
    stage::leave_window();
    let mut text = ArrayString::<1024>::new();
    // SAFETY: the call has no arguments and cannot fail.
    let pid = unsafe { libc::getpid() };
    // Ignored: a text that is too long is cut.
    let _ = writeln!(text, "cxloe: process {pid} ends here: {why}");
    if !text.ends_with('\n') {
        text.pop();
        text.push('\n');
    }
    write_bounded(STDERR, &text);
    sys::exit(CODE)
}

/// Does the same as [`end`] in a helper thread, which has a table of descriptors of its own.
pub fn end_from_helper(why: impl Display) -> ! {
    if let Some(error) = of_program(STDERR) {
        // SAFETY: the call takes only integers. The descriptor, whose ownership ends here, stays open until the process
        // ends.
        unsafe { libc::dup2(error.into_raw_fd(), STDERR) };
    }
    end(why)
}

/// Calls `say`, from a helper thread, with a descriptor of the program's standard error, if that can be
/// opened.
pub fn with_program_stderr(say: impl FnOnce(c_int)) {
    if let Some(error) = of_program(STDERR) {
        say(error.as_raw_fd());
    }
}

/// Text of an error without the C library's messages, which need thread-local data that helper threads lack.
pub struct PlainError<'a>(pub &'a JoinError);

impl Display for PlainError<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let number = |error: &io::Error| error.raw_os_error().unwrap_or_default();
        let source = match self.0 {
            JoinError::NoAgent { agent, source } => {
                write!(f, "no agent answers at {agent:?}")?;
                number(source)
            }
            JoinError::Broken(source) => {
                f.write_str("the agent did not answer")?;
                number(source)
            }
            other => return write!(f, "{other}"),
        };
        match source {
            libc::ENOENT => f.write_str(": no such file"),
            libc::ECONNREFUSED => f.write_str(": connection refused"),
            libc::EACCES | libc::EPERM => f.write_str(": permission denied"),
            number => write!(f, ": error {number}"),
        }
    }
}

/// Copies a descriptor of the program into the table of the calling helper thread.
pub fn of_program(descriptor: c_int) -> Option<OwnedFd> {
    // SAFETY: the calls take only integers, and return new descriptors or errors.
    let (process, copy) = unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) as c_int;
        (process, libc::syscall(libc::SYS_pidfd_getfd, process, descriptor, 0) as c_int)
    };
    // SAFETY: the kernel has just made these descriptors, and nothing else owns them.
    let [_, copy] = [process, copy].map(|fd| (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) }));
    copy
}

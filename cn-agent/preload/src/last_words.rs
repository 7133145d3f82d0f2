//! What is said before a process ends because its memory is out of reach.

use std::ffi::c_int;
use std::fmt::{Display, Formatter, Write};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use arrayvec::ArrayString;
use cxloe_member::join::JoinError;
use cxloe_member::told::{STDERR, tell};

use crate::{stage, sys};

/// The exit code of a process whose memory is out of reach: that of a temporary failure in `sysexits.h`.
pub const CODE: c_int = 75;

/// Ends the process and says why on its standard error.
pub fn end(why: impl Display) -> ! {
    // Some reasons are told with the help of the heap, which cannot be reached any more.
    stage::leave_window();
    let mut text = ArrayString::<1024>::new();
    // SAFETY: cannot fail.
    let pid = unsafe { libc::getpid() };
    // A text too long is cut.
    let _ = writeln!(text, "cxloe: process {pid} ends here: {why}");
    if !text.ends_with('\n') {
        text.pop();
        text.push('\n');
    }
    tell(STDERR, &text);
    sys::exit(CODE)
}

/// The same from a helper thread, which has descriptors of its own.
pub fn end_from_helper(why: impl Display) -> ! {
    if let Some(error) = of_program(STDERR) {
        // SAFETY: plain values. It stays open, whatever its number is.
        unsafe { libc::dup2(error.into_raw_fd(), STDERR) };
    }
    end(why)
}

/// Gives a helper thread the program's standard error, if it can be had.
pub fn on_the_programs_own(say: impl FnOnce(c_int)) {
    if let Some(error) = of_program(STDERR) {
        say(error.as_raw_fd());
    }
}

/// An error in a helper thread's words: the C library's need what only its own threads have.
pub struct Plain<'a>(pub &'a JoinError);

impl Display for Plain<'_> {
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

/// A descriptor of the program's, for a helper thread.
pub fn of_program(descriptor: c_int) -> Option<OwnedFd> {
    // SAFETY: plain values.
    let (process, copy) = unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) as c_int;
        (process, libc::syscall(libc::SYS_pidfd_getfd, process, descriptor, 0) as c_int)
    };
    // SAFETY: the kernel has just made them for us.
    let [_, copy] = [process, copy].map(|fd| (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) }));
    copy
}

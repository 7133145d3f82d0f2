//! What is said before a process ends because its memory is out of reach.

use std::ffi::c_int;
use std::fmt::{Display, Write};

use arrayvec::ArrayString;
use cxloe_member::told::{STDERR, tell};

use crate::{process, sys};

/// The exit code of a process whose memory is out of reach: that of a temporary failure in `sysexits.h`.
pub const CODE: c_int = 75;

/// Ends the process and says why on its standard error.
pub fn end(why: impl Display) -> ! {
    // Some reasons are told with the help of the heap, which cannot be reached any more.
    process::leave_window();
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
    on_the_programs_own(|error| {
        // SAFETY: plain values.
        unsafe { libc::dup2(error, STDERR) };
    });
    end(why)
}

/// Gives a helper thread the program's standard error, if it can be had.
pub fn on_the_programs_own(say: impl FnOnce(c_int)) {
    // SAFETY: plain values; both descriptors are this function's own to close.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) as c_int;
        let error = libc::syscall(libc::SYS_pidfd_getfd, process, STDERR, 0) as c_int;
        if error >= 0 {
            say(error);
            libc::syscall(libc::SYS_close, error);
        }
        libc::syscall(libc::SYS_close, process);
    }
}

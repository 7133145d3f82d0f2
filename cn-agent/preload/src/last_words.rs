//! What is said before a process ends because its memory is out of reach.

use std::ffi::c_int;
use std::fmt::{Display, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use arrayvec::ArrayString;

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
    say(2, &text);
    sys::exit(CODE)
}

/// The same from a helper thread, which has descriptors of its own.
pub fn end_from_helper(why: impl Display) -> ! {
    if let Some(error) = of_program(2) {
        // SAFETY: plain values.
        unsafe { libc::dup2(error.as_raw_fd(), 2) };
    }
    end(why)
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

fn say(descriptor: c_int, text: &str) {
    // SAFETY: the kernel reads a live text.
    unsafe { libc::write(descriptor, text.as_ptr().cast(), text.len()) };
}

//! Threads in which interposed functions only make the system call, without additional work: threads that are inside an
//! interposed function already, and helper threads.

#![expect(unsafe_code, reason = "errno is reached through a raw pointer")]

use std::cell::Cell;
use std::ffi::c_int;

thread_local! {
    /// Whether this thread is already inside an interposed function, whose additional work may map memory itself.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs the additional work of a call; `None` if this thread is inside such work already.
pub(crate) fn without_reentry<T>(what: impl FnOnce() -> T) -> Option<T> {
    // A thread that is ending has no thread-local data any more; it skips the additional work.
    if INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true) {
        return None;
    }
    let errno = errno();
    let done = what();
    set_errno(errno);
    INSIDE.with(|inside| inside.set(false));
    Some(done)
}

/// Switches off the additional work of interposed functions in this thread. The helper thread needs that to send the
/// memory's descriptor to the agent's successor; in other threads, `sendmsg` ends the monitor if a message contains it.
pub(crate) fn bypass() {
    INSIDE.with(|inside| inside.set(true));
}

fn errno() -> c_int {
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() = errno }
}

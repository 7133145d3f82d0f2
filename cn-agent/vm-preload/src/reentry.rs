//! Threads that pass through the interposed functions: those that are inside one, and helper threads.

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

/// Has this thread pass through all interposed functions: the helper thread passes the memory to the agent's successor.
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

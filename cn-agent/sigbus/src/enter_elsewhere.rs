//! The handler where there is no assembly for it: it stays on the stack that the kernel chose, which is enough for a
//! device that is gone, and not for inline faults.

use libc::{c_int, c_void, siginfo_t};

use super::{Next, decide};

pub const HAS_STACKS: bool = false;

/// What the kernel calls.
pub extern "C" fn enter(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Next { handler, mask } = decide(signal, info, context);
    if handler == 0 {
        return;
    }
    // SAFETY: the kernel's own signal set, with which that of the context begins, is of 64 signals; the handler is the one
    // that was there before, called as the kernel would call it: what takes no siginfo does not look for one.
    unsafe {
        let asked = (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, asked, 0, size_of::<u64>());
        asked.write_unaligned(mask);
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = std::mem::transmute(handler);
        handler(signal, info, context);
    }
}

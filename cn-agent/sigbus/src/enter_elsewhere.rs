//! The handler on architectures without assembly. It runs on the thread's signal stack, which is large enough for
//! faults of a device that is gone, but not for faults of an inline mapping (a region whose pages the program fetches
//! itself).

#![expect(unsafe_code, reason = "the handler reads and changes the signal's context")]

use libc::{c_int, c_void, siginfo_t};

use super::{ReturnAction, decide};

pub const HAS_STACKS: bool = false;

pub extern "C" fn enter(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let ReturnAction { handler, mask } = decide(signal, info, context);
    if handler == 0 {
        return;
    }
    // SAFETY: the context's signal set begins with the kernel's set of 64 signals, and no more is used. The former
    // handler is called with the arguments that the kernel passes; a handler without SA_SIGINFO ignores the second and
    // third.
    unsafe {
        let asked = (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, asked, 0, size_of::<u64>());
        asked.write_unaligned(mask);
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = std::mem::transmute(handler);
        handler(signal, info, context);
    }
}

//! The interposed function `pthread_create`: a thread of a program with remote memory releases its robust locks by
//! itself when it ends (module `robust_locks`).
//!
//! ```text
//!   pthread_create here --> pthread_create of the C library: new thread begins in `begin`
//!                           begin --call--> prepare: what the program has the thread run, and its argument
//!                                 --jump--> that function
//! ```
//!
//! `begin` jumps, so that no frame of this library lies on the stack of a thread that `pthread_exit` unwinds.

#![expect(unsafe_code, reason = "pthread_create is exported by name, and threads begin in assembly")]

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::Acquire;

use crate::stage::{REMOTE, STAGE};
use crate::{next_definition, robust_locks};

type StartFn = extern "C" fn(*mut c_void) -> *mut c_void;

/// Function and argument of a new thread: two words, which both architectures return in registers.
#[repr(C)]
struct ThreadStart {
    function: StartFn,
    argument: *mut c_void,
}

/// Starts a thread that releases its robust locks at its end.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    function: StartFn,
    argument: *mut c_void,
) -> c_int {
    next_definition::find_if_needed();
    // SAFETY: the caller fulfils the requirements of the C library's function; the new block has the size and alignment
    // of a `ThreadStart`.
    unsafe {
        if STAGE.load(Acquire) != REMOTE {
            return next_definition::pthread_create(thread, attributes, function, argument);
        }
        // The block must not come from the window, because the new thread frees it with the next allocator.
        let start = next_definition::malloc(size_of::<ThreadStart>()).cast::<ThreadStart>();
        if start.is_null() {
            return libc::EAGAIN;
        }
        start.write(ThreadStart { function, argument });
        let error = next_definition::pthread_create(thread, attributes, begin, start.cast());
        if error != 0 {
            next_definition::free(start.cast());
        }
        error
    }
}

/// # Safety
/// `start` is a block that `pthread_create` here has written.
unsafe extern "C" fn prepare(start: *mut ThreadStart) -> ThreadStart {
    robust_locks::watch_thread();
    // SAFETY: the caller passes a block that `pthread_create` wrote, and that is used only here.
    unsafe {
        let what = start.read();
        next_definition::free(start.cast());
        what
    }
}

/// Function in which a new thread begins: it calls `prepare`, and jumps to the program's function.
#[unsafe(naked)]
extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "endbr64",
        "sub rsp, 8",
        "call {prepare}",
        "add rsp, 8",
        "mov rdi, rdx",
        "jmp rax",
        prepare = sym prepare,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "hint #34",
        "stp x29, x30, [sp, #-16]!",
        "mov x29, sp",
        "bl {prepare}",
        "ldp x29, x30, [sp], #16",
        "mov x16, x0",
        "mov x0, x1",
        "br x16",
        prepare = sym prepare,
    );
}

//! The interposed function `dlsym`, for lookups with the handle of the C library: the name of an interposed
//! function resolves to the function of this library, as it does in the program. `dlsym(dlopen("libc.so.6"),
//! "free")`, by which interpreters call C functions (Python's ctypes), would otherwise pass blocks of the
//! window to the C library.
//!
//! The result is replaced only if it is the function that would have been called without this library: interposers in
//! between, and another namespace's C library, are left alone. Other lookups jump to the C library's `dlsym`, because
//! that inspects the return address, for `RTLD_NEXT`.

#![expect(unsafe_code, reason = "dlsym is exported by name, and written in assembly")]

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null;
use std::sync::atomic::Ordering::Acquire;

use libc::{RTLD_DEFAULT, RTLD_NEXT};

use super::{heap, mapping, rights, signals, threads};
use crate::next_definition;
use crate::stage::{LOCAL, STAGE};

/// The result of the lookup in `answer`; if that is null, `function` is the `dlsym` to jump to.
#[repr(C)]
struct LookupAnswer {
    function: *const c_void,
    answer: *const c_void,
}

macro_rules! places {
    ($name:expr, $($module:ident: $($function:ident)*;)*) => {
        match $name {
            $($(name if name == stringify!($function).as_bytes() => $module::$function as *const c_void,)*)*
            _ => null(),
        }
    };
}

/// Address of this library's function with this name; null if there is none.
fn place(name: &CStr) -> *const c_void {
    places!(
        name.to_bytes(),
        heap: malloc calloc free realloc reallocarray memalign aligned_alloc posix_memalign valloc pvalloc
            malloc_usable_size;
        mapping: mmap mmap64 munmap mremap mprotect madvise process_madvise mlock mlock2 mlockall;
        threads: pthread_create;
        signals: sigaction signal sigprocmask pthread_sigmask;
        rights: setuid setgid seteuid setegid setreuid setregid setresuid setresgid setgroups capset unshare setns;
    )
}

/// # Safety
/// `name` is a NUL-terminated text, and `handle` one that `dlsym` accepts.
unsafe extern "C" fn find(handle: *mut c_void, name: *const c_char) -> LookupAnswer {
    next_definition::find_if_needed();
    let unknown = LookupAnswer { function: next_definition::dlsym(), answer: null() };
    if handle == RTLD_DEFAULT || handle == RTLD_NEXT || name.is_null() || STAGE.load(Acquire) == LOCAL {
        return unknown;
    }
    // SAFETY: the text is NUL-terminated, as the caller ensures.
    let name = unsafe { CStr::from_ptr(name) };
    let ours = place(name);
    // SAFETY: `dlsym` accepts the handle, as the caller ensures.
    let replaced = !ours.is_null()
        && unsafe { next_definition::looked_up(handle, name) == next_definition::looked_up(RTLD_NEXT, name) };
    if replaced { LookupAnswer { answer: ours, ..unknown } } else { unknown }
}

/// Resolves names of interposed functions to those of this library.
///
/// # Safety
/// `handle` is open, from `dlopen`, or one of the constants; `name` is a NUL-terminated text.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rdx, rdx",
        "jnz 2f",
        "jmp rax",
        "2:",
        "mov rax, rdx",
        "ret",
        find = sym find,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "hint #34",
        "stp x29, x30, [sp, #-32]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "bl {find}",
        "mov x16, x0",
        "mov x17, x1",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbnz x17, 2f",
        "br x16",
        "2:",
        "mov x0, x17",
        "ret",
        find = sym find,
    );
}

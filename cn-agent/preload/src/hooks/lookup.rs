//! `dlsym` by the C library's own handle: a name that this library takes the place of stands for the function here, as
//! it does in the program. `dlsym(dlopen("libc.so.6"), "free")`, which is how interpreters call C (Python's ctypes), would
//! otherwise be given blocks of the window.
//!
//! Only where the handle gives what would have been called without this library: what others have put in between, and
//! another namespace's C library, are left alone. A jump to the C library's `dlsym` does the rest, because that looks at
//! the return address, for `RTLD_NEXT`.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null;
use std::sync::atomic::Ordering::Acquire;

use libc::{RTLD_DEFAULT, RTLD_NEXT};

use super::{heap, mapping, rights};
use crate::next;
use crate::stage::{LOCAL, STAGE};

/// Function to go on in, and the answer, if it is known.
#[repr(C)]
struct Found {
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

/// The function of this library that has a name; null: none has.
fn place(name: &CStr) -> *const c_void {
    places!(
        name.to_bytes(),
        heap: malloc calloc free realloc reallocarray memalign aligned_alloc posix_memalign valloc pvalloc
            malloc_usable_size;
        mapping: mmap mmap64 munmap mremap mprotect madvise mlock mlock2 mlockall;
        rights: setuid setgid seteuid setegid setreuid setregid setresuid setresgid setgroups capset unshare setns;
    )
}

/// # Safety
/// `name` is a text that ends, and `handle` one that `dlsym` takes.
unsafe extern "C" fn find(handle: *mut c_void, name: *const c_char) -> Found {
    next::find_if_needed();
    let unknown = Found { function: next::dlsym(), answer: null() };
    if handle == RTLD_DEFAULT || handle == RTLD_NEXT || name.is_null() || STAGE.load(Acquire) == LOCAL {
        return unknown;
    }
    // SAFETY: a text that ends, by the caller.
    let name = unsafe { CStr::from_ptr(name) };
    let ours = place(name);
    // SAFETY: the handle is one that `dlsym` takes, by the caller.
    let replaced =
        !ours.is_null() && unsafe { next::looked_up(handle, name) == next::looked_up(RTLD_NEXT, name) };
    if replaced { Found { answer: ours, ..unknown } } else { unknown }
}

/// `dlsym(3)`.
///
/// # Safety
/// `handle` is one that `dlopen` gave and `dlclose` was not given, or one of the constants; `name` is a text that ends.
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

//! The interposed functions `dlopen` and `dlmopen`, which leave out the flag `RTLD_DEEPBIND`.
//!
//! With the flag, a library takes each symbol from itself and its own dependencies before it takes it from the program
//! and the program's libraries. The C library is a dependency of every library, so `free` would be the C library's
//! function there, and blocks of the window would be passed to it. Without the flag, a library that defines symbols of
//! the same names as the program uses those of the program; nothing else changes.
//!
//! ```text
//!   caller --call--> dlopen here --call--> target: which function, which flags
//!                        '-------jump----> dlopen of the C library ---return---> caller
//! ```
//!
//! The hook jumps because the dynamic linker inspects the return address: the caller's own run path gives the search
//! path of libraries, and the library is loaded into the caller's namespace.

#![expect(unsafe_code, reason = "dlopen and dlmopen are exported by name, and written in assembly")]

use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::Ordering::Acquire;

use libc::{LM_ID_BASE, Lmid_t, RTLD_DEEPBIND};

use crate::next_definition;
use crate::stage::{LOCAL, STAGE};

/// Function to jump to, and its flags: two words, which both architectures return in registers.
#[repr(C)]
struct OpenTarget {
    function: *const c_void,
    flags: u64,
}

/// Flags with which a library of this process's base namespace resolves symbols to the functions here.
fn bound(flags: c_int) -> u64 {
    let kept = if STAGE.load(Acquire) == LOCAL { flags } else { flags & !RTLD_DEEPBIND };
    u64::from(kept as u32)
}

extern "C" fn target(flags: c_int) -> OpenTarget {
    next_definition::find_if_needed();
    OpenTarget { function: next_definition::dlopen(), flags: bound(flags) }
}

/// Function and flags for `dlmopen`. Another namespace has a C library of its own, and no copy of this library, so
/// there the flag is kept.
extern "C" fn target_in(namespace: Lmid_t, flags: c_int) -> OpenTarget {
    next_definition::find_if_needed();
    let flags = if namespace == LM_ID_BASE { bound(flags) } else { u64::from(flags as u32) };
    OpenTarget { function: next_definition::dlmopen(), flags }
}

/// Opens a library without `RTLD_DEEPBIND`.
///
/// # Safety
/// `file` is null or a NUL-terminated text; the library's constructors are safe to run here.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "endbr64",
        "push rdi",
        "mov edi, esi",
        "call {target}",
        "pop rdi",
        "mov esi, edx",
        "jmp rax",
        target = sym target,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "hint #34",
        "stp x29, x30, [sp, #-32]!",
        "mov x29, sp",
        "str x0, [sp, #16]",
        "mov w0, w1",
        "bl {target}",
        "mov x16, x0",
        "ldr x0, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "br x16",
        target = sym target,
    );
}

/// Opens a library in a namespace, without `RTLD_DEEPBIND` in the base namespace.
///
/// # Safety
/// `file` is a NUL-terminated text; the library's constructors are safe to run here.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlmopen(namespace: Lmid_t, file: *const c_char, flags: c_int) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "mov esi, edx",
        "call {target}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        target = sym target_in,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "hint #34",
        "stp x29, x30, [sp, #-32]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "mov w1, w2",
        "bl {target}",
        "mov x16, x0",
        "mov w2, w1",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "br x16",
        target = sym target_in,
    );
}

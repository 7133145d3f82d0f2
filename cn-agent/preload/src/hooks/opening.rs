//! `dlopen` and `dlmopen`: a library opened with `RTLD_DEEPBIND` is bound without it.
//!
//! With the flag, a library takes each symbol from itself and its own dependencies before it takes it from the program and
//! what was loaded with it. The C library is a dependency of every library, so `free` would be the C library's there, and
//! blocks of the window would be given to it. The flag keeps nothing else apart that has one name only; a library that has
//! symbols of the program's names gets the program's, as it does where it is opened without the flag.
//!
//! ```text
//!   caller --call--> dlopen here --call--> target: which function, which flags
//!                        '-------jump----> dlopen of the C library ---return---> caller
//! ```
//!
//! It is a jump because the dynamic linker looks at the return address: the caller's own run path says where libraries are
//! searched for, and its namespace is the one they are loaded into.

use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::Ordering::Acquire;

use libc::{LM_ID_BASE, Lmid_t, RTLD_DEEPBIND};

use crate::next;
use crate::stage::{LOCAL, STAGE};

/// Function to go on in, and flags for it: two words, which both architectures return in registers.
#[repr(C)]
struct Target {
    function: *const c_void,
    flags: u64,
}

/// Flags under which a library of this process's base namespace finds the functions here.
fn bound(flags: c_int) -> u64 {
    let kept = if STAGE.load(Acquire) == LOCAL { flags } else { flags & !RTLD_DEEPBIND };
    u64::from(kept as u32)
}

extern "C" fn target(flags: c_int) -> Target {
    next::find_if_needed();
    Target { function: next::dlopen(), flags: bound(flags) }
}

/// Another namespace has a C library of its own, and nothing of this library: there the flag changes nothing.
extern "C" fn target_in(namespace: Lmid_t, flags: c_int) -> Target {
    next::find_if_needed();
    let flags = if namespace == LM_ID_BASE { bound(flags) } else { u64::from(flags as u32) };
    Target { function: next::dlmopen(), flags }
}

/// `dlopen(3)`.
///
/// # Safety
/// `file` is null or a text that ends; what the library's constructors do is safe here.
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

/// `dlmopen(3)`.
///
/// # Safety
/// `file` is a text that ends; what the library's constructors do is safe here.
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

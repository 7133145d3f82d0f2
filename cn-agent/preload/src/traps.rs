//! System calls of the program that change the window and bypass the interposed functions. `cn-agent exec`
//! has the kernel stop them before they run: the calling thread gets SIGSYS, and the handler here does what
//! the interposed functions do.
//!
//! So SIGSYS belongs to this library: it is not blocked, and the program's own handler is called for signals that are
//! not from that filter.

#![expect(unsafe_code, reason = "a signal handler makes the system calls that were trapped")]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize};

use cxloe_member::own_calls::own_call;

use crate::sys::Errno;
use crate::{mapping, next_definition};

/// `SYS_SECCOMP`, `si_code` of a signal from a system call filter.
const SYS_SECCOMP: c_int = 1;
/// `si_errno` of a signal from the filter of `cn-agent exec`.
const TRAP_DATA: c_int = 0xC5;

static INSTALLED: AtomicBool = AtomicBool::new(false);
/// The program's own handler of SIGSYS, and its flags.
static HANDLER: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static FLAGS: AtomicI32 = AtomicI32::new(0);

/// Beginning of `siginfo_t` of a signal from a system call filter.
#[repr(C)]
struct SystemCallInfo {
    signal: c_int,
    errno: c_int,
    code: c_int,
    _padding: c_int,
    address: *mut c_void,
    call: c_int,
    architecture: u32,
}

/// Whether SIGSYS belongs to this library.
pub fn are_installed() -> bool {
    INSTALLED.load(Acquire)
}

/// Installs the handler, and unblocks the signal.
pub fn install() {
    // SAFETY: the handler is a function of this library; the kernel reads and writes live values.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_trap as *const () as usize;
        // A thread may run on a small stack that the program allocated, as goroutines do. Calls in the
        // handler may be trapped again.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        if next_definition::sigaction(libc::SIGSYS, &raw const action, before.as_mut_ptr()) != 0 {
            return;
        }
        note(&before.assume_init());
        INSTALLED.store(true, Release);
        // SIGSYS is unblocked, because the process may have been started with this signal blocked.
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGSYS);
        next_definition::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), null_mut());
    }
}

fn note(action: &libc::sigaction) {
    FLAGS.store(action.sa_flags, Release);
    HANDLER.store(action.sa_sigaction, Release);
}

/// Returns the disposition that the program has set for SIGSYS, and records `new` in its place.
pub fn exchange(new: Option<&libc::sigaction>) -> libc::sigaction {
    // SAFETY: the structure consists of plain values.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    (before.sa_sigaction, before.sa_flags) = (HANDLER.load(Acquire), FLAGS.load(Acquire));
    if let Some(new) = new {
        note(new);
    }
    before
}

extern "C" fn on_trap(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a siginfo of this form, and the context of the interrupted code.
    let (of_call, machine) =
        unsafe { (&*info.cast::<SystemCallInfo>(), &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext) };
    if of_call.code != SYS_SECCOMP || of_call.errno != TRAP_DATA {
        return pass_on(signal, info, context);
    }
    let _errno = Errno::keep();
    let done = carry_out(of_call.call.into(), arguments(machine));
    set_result(machine, if done == -1 { -Errno::now() as isize } else { done });
}

/// Handles the signal as without this library: calls the program's own handler, or takes the default action.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    match HANDLER.load(Acquire) {
        libc::SIG_IGN => {}
        libc::SIG_DFL => {
            // SAFETY: the structure consists of plain values; the signal ends the process.
            unsafe {
                let mut usual: libc::sigaction = std::mem::zeroed();
                usual.sa_sigaction = libc::SIG_DFL;
                next_definition::sigaction(signal, &raw const usual, null_mut());
                libc::raise(signal);
            }
        }
        handler if FLAGS.load(Acquire) & libc::SA_SIGINFO != 0 => {
            // SAFETY: the program has set a function of this type.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: the program has set a function of this type.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// Carries a system call out; returns -1 and sets `errno` if it fails.
fn carry_out(call: libc::c_long, arguments: [usize; 6]) -> isize {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let (address, int) = (first as *mut c_void, |argument: usize| argument as c_int);
    // SAFETY: the program has made this system call, and so is responsible for its effect on the program's memory.
    unsafe {
        match call {
            libc::SYS_munmap => mapping::munmap(address, second) as isize,
            libc::SYS_madvise => mapping::madvise(address, second, int(third)) as isize,
            libc::SYS_mprotect => mapping::mprotect(address, second, int(third)) as isize,
            libc::SYS_pkey_mprotect => match mapping::mprotect(address, second, int(third)) {
                0 => own_call(call, [first, second, third, fourth, 0]),
                failed => failed as isize,
            },
            libc::SYS_mremap => {
                mapping::mremap(address, second, third, int(fourth), fifth as *mut c_void) as isize
            }
            libc::SYS_mmap => {
                mapping::mmap(address, second, int(third), int(fourth), int(fifth), sixth as i64) as isize
            }
            libc::SYS_process_madvise => {
                let ranges = second as *const libc::iovec;
                mapping::process_madvise(int(first), ranges, third, int(fourth), int(fifth) as u32)
            }
            // Shared memory cannot replace a part of the window.
            libc::SYS_shmat => {
                Errno::set(libc::EINVAL);
                -1
            }
            _ => {
                Errno::set(libc::ENOSYS);
                -1
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn arguments(machine: &libc::mcontext_t) -> [usize; 6] {
    [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9]
        .map(|register| machine.gregs[register as usize] as usize)
}

#[cfg(target_arch = "x86_64")]
fn set_result(machine: &mut libc::mcontext_t, result: isize) {
    machine.gregs[libc::REG_RAX as usize] = result as i64;
}

#[cfg(target_arch = "aarch64")]
fn arguments(machine: &libc::mcontext_t) -> [usize; 6] {
    [0, 1, 2, 3, 4, 5].map(|register: usize| machine.regs[register] as usize)
}

#[cfg(target_arch = "aarch64")]
fn set_result(machine: &mut libc::mcontext_t, result: isize) {
    machine.regs[0] = result as u64;
}

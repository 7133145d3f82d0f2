//! The interposed functions for signals: SIGSYS belongs to this library while system calls on the window are
//! trapped (module `traps`). This library records the disposition that the program sets, and never lets the
//! signal be blocked: the kernel ends a process that is trapped while SIGSYS is blocked.

#![expect(unsafe_code, reason = "sigaction and the like are exported by name, and take raw pointers")]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null;

use crate::{next_definition, traps};

/// Records a disposition for SIGSYS without installing it, and keeps SIGSYS out of the masks of other
/// handlers.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    next_definition::find_if_needed();
    // SAFETY: the caller fulfils the requirements of the C library's function, which are the same.
    unsafe {
        if !traps::are_installed() {
            return next_definition::sigaction(signal, new, old);
        }
        if signal != libc::SIGSYS {
            let mut copy = new.as_ref().copied();
            if let Some(copy) = &mut copy {
                libc::sigdelset(&mut copy.sa_mask, libc::SIGSYS);
            }
            let new = copy.as_ref().map_or(null(), std::ptr::from_ref);
            return next_definition::sigaction(signal, new, old);
        }
        let before = traps::exchange(new.as_ref());
        if !old.is_null() {
            old.write(before);
        }
    }
    0
}

/// Records a handler for SIGSYS without installing it.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    next_definition::find_if_needed();
    // SAFETY: the caller fulfils the requirements of the C library's function, which are the same.
    unsafe {
        if signal != libc::SIGSYS || !traps::are_installed() {
            return next_definition::signal(signal, handler);
        }
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = handler;
        traps::exchange(Some(&new)).sa_sigaction
    }
}

/// Calls `change` with `set`, without SIGSYS if the set is to be blocked.
///
/// # Safety
/// `set` is null, or a set.
unsafe fn without_ours(
    how: c_int,
    set: *const libc::sigset_t,
    change: impl FnOnce(*const libc::sigset_t) -> c_int,
) -> c_int {
    if set.is_null() || how == libc::SIG_UNBLOCK || !traps::are_installed() {
        return change(set);
    }
    let mut copy = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the caller passes a set.
    unsafe {
        copy.write(set.read());
        libc::sigdelset(copy.as_mut_ptr(), libc::SIGSYS);
    }
    change(copy.as_ptr())
}

/// Changes the signal mask, but never blocks SIGSYS.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    next_definition::find_if_needed();
    // SAFETY: the caller fulfils the requirements of the C library's function, which are the same.
    unsafe { without_ours(how, set, |set| next_definition::sigprocmask(how, set, old)) }
}

/// Changes the signal mask, but never blocks SIGSYS.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    next_definition::find_if_needed();
    // SAFETY: the caller fulfils the requirements of the C library's function, which are the same.
    unsafe { without_ours(how, set, |set| next_definition::pthread_sigmask(how, set, old)) }
}

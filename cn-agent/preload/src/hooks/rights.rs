//! The interposed functions that change a program's credentials or its user namespace. The helper threads, which are
//! not threads of the C library, get the same credentials, or are stopped during the change.

#![expect(unsafe_code, reason = "setuid and the like are exported by name")]

use std::ffi::{c_int, c_void};

use libc::{gid_t, uid_t};

use crate::process::{is_own, run_single_threaded};
use crate::{helpers, next_definition};

/// Returns the result of a change of credentials; if it succeeded, the helpers get the same credentials.
fn followed(done: c_int) -> c_int {
    if done == 0 && is_own() {
        helpers::follow();
    }
    done
}

macro_rules! followed {
    ($($(#[$about:meta])* $name:ident($($argument:ident: $type:ty),*)),* $(,)?) => {$(
        $(#[$about])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> c_int {
            next_definition::find_if_needed();
            followed(next_definition::$name($($argument),*))
        }
    )*};
}

followed! {
    setuid(user: uid_t),
    setgid(group: gid_t),
    seteuid(user: uid_t),
    setegid(group: gid_t),
    setreuid(user: uid_t, effective: uid_t),
    setregid(group: gid_t, effective: gid_t),
    setresuid(user: uid_t, effective: uid_t, saved: uid_t),
    setresgid(group: gid_t, effective: gid_t, saved: gid_t),
    setgroups(count: usize, groups: *const gid_t),
}

/// Makes the system call, and gives the helpers the same capabilities.
///
/// # Safety
/// `head` and `data` point to a header and to as many sets as the header's version has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn capset(head: *mut c_void, data: *const c_void) -> c_int {
    // SAFETY: the caller passes a valid header and as many sets of capabilities as it requires.
    followed(unsafe { libc::syscall(libc::SYS_capset, head, data) as c_int })
}

/// Makes a call, and repeats it without the helpers if the kernel refuses it to a process of several threads.
fn tried(act: impl Fn() -> c_int) -> c_int {
    let done = act();
    // SAFETY: errno belongs to this thread.
    let refused = done != 0 && unsafe { *libc::__errno_location() } == libc::EINVAL;
    if refused && is_own() && helpers::are_only_other_threads() { run_single_threaded(act) } else { done }
}

/// Stops the helpers for flags that the kernel permits only to processes of one thread.
#[unsafe(no_mangle)]
pub extern "C" fn unshare(flags: c_int) -> c_int {
    // SAFETY: the call takes only an integer.
    tried(|| unsafe { libc::syscall(libc::SYS_unshare, flags) as c_int })
}

/// Stops the helpers for namespaces that the kernel permits only to processes of one thread.
#[unsafe(no_mangle)]
pub extern "C" fn setns(descriptor: c_int, kind: c_int) -> c_int {
    // SAFETY: the call takes only integers.
    tried(|| unsafe { libc::syscall(libc::SYS_setns, descriptor, kind) as c_int })
}

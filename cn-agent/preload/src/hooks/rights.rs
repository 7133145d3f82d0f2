//! Changes of a program's rights, and of the user namespace it lives in: the helper threads, which the C library does not
//! know, come along, or are out of the way meanwhile.

use std::ffi::{c_int, c_void};

use libc::{gid_t, uid_t};

use crate::process::{alone, is_own};
use crate::{helpers, next};

/// What has been done, and what follows from it.
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
            next::find_if_needed();
            followed(next::$name($($argument),*))
        }
    )*};
}

followed! {
    /// `setuid(2)`.
    setuid(user: uid_t),
    /// `setgid(2)`.
    setgid(group: gid_t),
    /// `seteuid(2)`.
    seteuid(user: uid_t),
    /// `setegid(2)`.
    setegid(group: gid_t),
    /// `setreuid(2)`.
    setreuid(user: uid_t, effective: uid_t),
    /// `setregid(2)`.
    setregid(group: gid_t, effective: gid_t),
    /// `setresuid(2)`.
    setresuid(user: uid_t, effective: uid_t, saved: uid_t),
    /// `setresgid(2)`.
    setresgid(group: gid_t, effective: gid_t, saved: gid_t),
    /// `setgroups(2)`.
    setgroups(count: usize, groups: *const gid_t),
}

/// `capset(2)`.
///
/// # Safety
/// `head` and `data` point to a header and to as many sets as its version has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn capset(head: *mut c_void, data: *const c_void) -> c_int {
    // SAFETY: the kernel reads a header and sets that are there.
    followed(unsafe { libc::syscall(libc::SYS_capset, head, data) as c_int })
}

/// Tries, and where that is refused to a process of several threads, without the helpers.
fn tried(act: impl Fn() -> c_int) -> c_int {
    let done = act();
    // SAFETY: the C library's place for this thread's value.
    let refused = done != 0 && unsafe { *libc::__errno_location() } == libc::EINVAL;
    if refused && is_own() && helpers::are_the_only_others() { alone(act) } else { done }
}

/// `unshare(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn unshare(flags: c_int) -> c_int {
    // SAFETY: plain values.
    tried(|| unsafe { libc::syscall(libc::SYS_unshare, flags) as c_int })
}

/// `setns(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn setns(descriptor: c_int, kind: c_int) -> c_int {
    // SAFETY: plain values.
    tried(|| unsafe { libc::syscall(libc::SYS_setns, descriptor, kind) as c_int })
}

//! Gives the helper threads the credentials of the program's thread that changed its credentials last. The C
//! library's `setuid` and similar functions change all threads of the C library. The helpers are not among
//! these, so a program that drops root's rights would otherwise have threads with these rights in its memory.

#![expect(unsafe_code, reason = "each helper thread sets its credentials by bare system calls")]

use std::cell::UnsafeCell;
use std::ffi::c_ulong;

/// Maximum number of supplementary groups that are saved; if there are more, helpers get none.
const GROUPS_MAX: usize = 4096;
/// `_LINUX_CAPABILITY_VERSION_3` of `linux/capability.h`.
const CAPABILITIES: u32 = 0x2008_0522;

#[derive(Clone, Copy)]
struct ThreadRights {
    users: [u32; 3],
    groups: [u32; 3],
    others: [u32; GROUPS_MAX],
    count: usize,
    capabilities: [[u32; 3]; 2],
}

const NONE: ThreadRights = ThreadRights {
    users: [0; 3],
    groups: [0; 3],
    others: [0; GROUPS_MAX],
    count: 0,
    capabilities: [[0; 3]; 2],
};

struct SavedRights(UnsafeCell<ThreadRights>);

// SAFETY: the thread that holds the turn (the lock for requests to the helpers) writes the value before it wakes the
// helpers, which read it until they have answered.
unsafe impl Sync for SavedRights {}

static NOTED: SavedRights = SavedRights(UnsafeCell::new(NONE));

/// Header of `capget` and `capset` that selects this thread.
fn head() -> [u32; 2] {
    [CAPABILITIES, 0]
}

fn capabilities() -> [[u32; 3]; 2] {
    let (mut head, mut sets) = (head(), [[0_u32; 3]; 2]);
    // SAFETY: the kernel reads and writes live words of the lengths that this version has.
    unsafe { libc::syscall(libc::SYS_capget, head.as_mut_ptr(), sets.as_mut_ptr()) };
    sets
}

/// Saves the credentials of this thread.
///
/// # Safety
/// The calling thread holds the turn to make requests to the helpers.
pub unsafe fn save() {
    // SAFETY: the holder of the turn is the only writer, and helpers read the value only after they are woken.
    let noted = unsafe { &mut *NOTED.0.get() };
    let ThreadRights { users: [u, eu, su], groups: [g, eg, sg], others, count, capabilities: sets } = noted;
    // SAFETY: the kernel writes live words.
    unsafe {
        libc::syscall(libc::SYS_getresuid, u, eu, su);
        libc::syscall(libc::SYS_getresgid, g, eg, sg);
        let groups = libc::syscall(libc::SYS_getgroups, GROUPS_MAX, others.as_mut_ptr());
        *count = usize::try_from(groups).unwrap_or(0);
    }
    *sets = capabilities();
}

/// Sets the saved credentials for the calling thread alone, by system calls. A change that the kernel refuses is
/// skipped: the thread then had fewer rights already.
///
/// # Safety
/// The calling thread is a helper that was requested to do this.
pub unsafe fn apply_saved() {
    // SAFETY: the writer waits for the answer, so the value is not written now.
    let noted = unsafe { &*NOTED.0.get() };
    let ([u, eu, su], [g, eg, sg]) = (noted.users, noted.groups);
    // SAFETY: the calls take integers, and read live words.
    unsafe {
        // Groups first: the change of the user may take away the right to change them.
        libc::syscall(libc::SYS_setgroups, noted.count, noted.others.as_ptr());
        libc::syscall(libc::SYS_setresgid, g, eg, sg);
        libc::syscall(libc::SYS_setresuid, u, eu, su);
    }
    let mut sets = capabilities();
    for (own, theirs) in sets.iter_mut().flatten().zip(noted.capabilities.iter().flatten()) {
        *own &= theirs;
    }
    let mut head = head();
    // SAFETY: the kernel reads live words of the lengths that this version has.
    unsafe { libc::syscall(libc::SYS_capset, head.as_mut_ptr(), sets.as_ptr()) };
}

pub fn set_no_new_privs() {
    let (yes, no): (c_ulong, c_ulong) = (1, 0);
    // SAFETY: the call takes only integers.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, yes, no, no, no) };
}

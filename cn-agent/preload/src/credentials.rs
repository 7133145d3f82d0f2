//! Whose rights the helper threads have: those of the program's thread that changed its own last. The C library would
//! tell its own threads; these are none, so it is done here. A program that gives up being root would else have threads
//! in its memory that are.

use std::cell::UnsafeCell;
use std::ffi::c_ulong;

/// Groups that are followed; a process in more is followed without any.
const GROUPS_MAX: usize = 4096;
/// `_LINUX_CAPABILITY_VERSION_3` of `linux/capability.h`.
const CAPABILITIES: u32 = 0x2008_0522;

/// What a thread may.
#[derive(Clone, Copy)]
struct Rights {
    users: [u32; 3],
    groups: [u32; 3],
    others: [u32; GROUPS_MAX],
    count: usize,
    capabilities: [[u32; 3]; 2],
}

const NONE: Rights =
    Rights { users: [0; 3], groups: [0; 3], others: [0; GROUPS_MAX], count: 0, capabilities: [[0; 3]; 2] };

struct Noted(UnsafeCell<Rights>);

// SAFETY: written by whoever has the turn to ask the helpers, before they are asked, and read by them until they have
// answered.
unsafe impl Sync for Noted {}

static NOTED: Noted = Noted(UnsafeCell::new(NONE));

/// The head of `capget` and `capset`: this thread.
fn head() -> [u32; 2] {
    [CAPABILITIES, 0]
}

fn capabilities() -> [[u32; 3]; 2] {
    let (mut head, mut sets) = (head(), [[0_u32; 3]; 2]);
    // SAFETY: the kernel reads and writes live words of the lengths this version has.
    unsafe { libc::syscall(libc::SYS_capget, head.as_mut_ptr(), sets.as_mut_ptr()) };
    sets
}

/// Notes what this thread may.
///
/// # Safety
/// It is this thread's turn to ask the helpers.
pub unsafe fn note() {
    // SAFETY: whoever has the turn is the only one that writes it, and helpers read it only when asked after that.
    let noted = unsafe { &mut *NOTED.0.get() };
    let Rights { users: [u, eu, su], groups: [g, eg, sg], others, count, capabilities: sets } = noted;
    // SAFETY: the kernel writes live words.
    unsafe {
        libc::syscall(libc::SYS_getresuid, u, eu, su);
        libc::syscall(libc::SYS_getresgid, g, eg, sg);
        let groups = libc::syscall(libc::SYS_getgroups, GROUPS_MAX, others.as_mut_ptr());
        *count = usize::try_from(groups).unwrap_or(0);
    }
    *sets = capabilities();
}

/// Takes on what was noted, in the calling thread alone: by the system calls themselves. What it must not, it does not:
/// then it had fewer rights already.
///
/// # Safety
/// A helper thread calls it that has been asked to.
pub unsafe fn take_on() {
    // SAFETY: whoever asked waits for the answer, so nobody writes it now.
    let noted = unsafe { &*NOTED.0.get() };
    let ([u, eu, su], [g, eg, sg]) = (noted.users, noted.groups);
    // SAFETY: plain values, and live words for the kernel to read.
    unsafe {
        libc::syscall(libc::SYS_setgroups, noted.count, noted.others.as_ptr());
        libc::syscall(libc::SYS_setresgid, g, eg, sg);
        libc::syscall(libc::SYS_setresuid, u, eu, su);
    }
    let mut sets = capabilities();
    for (own, theirs) in sets.iter_mut().flatten().zip(noted.capabilities.iter().flatten()) {
        *own &= theirs;
    }
    let mut head = head();
    // SAFETY: the kernel reads live words of the lengths this version has.
    unsafe { libc::syscall(libc::SYS_capset, head.as_mut_ptr(), sets.as_ptr()) };
}

/// Gives up gaining rights by running programs, for this thread.
pub fn gain_none() {
    let (yes, no): (c_ulong, c_ulong) = (1, 0);
    // SAFETY: plain values.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, yes, no, no, no) };
}

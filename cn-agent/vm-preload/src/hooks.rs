//! The C library's functions that concern mappings, in place of its own: each makes the system call of its name, and does
//! what is due beside it.
//!
//! Before the monitor has mapped the region's file they do nothing else, and afterwards only for its addresses.

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};

use cxloe_member::wire::PAGE_BYTES;

use crate::mappings;
use crate::settings::settings;

thread_local! {
    /// Whether this thread is inside one of these already: what is done beside a call may map memory itself.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Does something beside a call, unless this thread is doing that already.
fn beside<T>(what: impl FnOnce() -> T) -> Option<T> {
    // A thread that is ending has no such place any more, and nothing to do here.
    if INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true) {
        return None;
    }
    let errno = errno();
    let done = what();
    set_errno(errno);
    INSIDE.with(|inside| inside.set(false));
    Some(done)
}

fn errno() -> c_int {
    // SAFETY: the address is this thread's own.
    unsafe { *libc::__errno_location() }
}

fn set_errno(errno: c_int) {
    // SAFETY: the address is this thread's own.
    unsafe { *libc::__errno_location() = errno }
}

/// `mmap(2)`.
///
/// # Safety
/// With `MAP_FIXED`, nothing uses what is mapped at the `length` bytes from `address` on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: with `MAP_FIXED`, nobody uses what lies there; without, the kernel chooses free addresses.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, address, length, protection, flags, fd, offset) }
        as *mut c_void;
    let shared = matches!(flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
    if mapped == libc::MAP_FAILED || !shared || fd < 0 || protection == libc::PROT_NONE {
        return mapped;
    }
    let failed = beside(|| {
        let settings = settings().filter(|settings| settings.is_memory(fd))?;
        let span = mappings::span(mapped as u64, length as u64, offset as u64)?;
        // A child that touched it would fill what is absent with zeros, for all.
        // SAFETY: of the mapping that has just been made.
        unsafe { libc::syscall(libc::SYS_madvise, mapped, length, libc::MADV_DONTFORK) };
        (!mappings::add(settings, span)).then_some(())
    });
    if failed.flatten().is_none() {
        return mapped;
    }
    // SAFETY: nobody has been told of the mapping.
    unsafe { libc::syscall(libc::SYS_munmap, mapped, length) };
    set_errno(libc::EIO);
    libc::MAP_FAILED
}

/// `mmap(2)` by its other name.
///
/// # Safety
/// With `MAP_FIXED`, nothing uses what is mapped at the `length` bytes from `address` on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: what `mmap` asks for is asked of the caller here.
    unsafe { mmap(address, length, protection, flags, fd, offset) }
}

/// `munmap(2)`.
///
/// # Safety
/// Nobody uses the `length` bytes from `address` on any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, length: usize) -> c_int {
    let (start, length_up) = (address as u64, (length as u64).checked_next_multiple_of(PAGE_BYTES));
    let addresses = start..start.saturating_add(length_up.unwrap_or(0));
    // Before the addresses are free: what the agent still brings would land in whatever is mapped there next.
    let aligned = start.is_multiple_of(PAGE_BYTES);
    let left = aligned.then(|| beside(|| mappings::leave(&addresses))).flatten();
    // SAFETY: nobody uses this part of the range any more.
    let done = unsafe { libc::syscall(libc::SYS_munmap, address, length) };
    if done != 0 && left.is_some_and(|left| left > 0) {
        mappings::give_up("it could not be unmapped, and its agent has let go of it");
    }
    done as c_int
}

/// Advice to put guards in the place of pages; Linux 6.15 and newer for shared memory.
const MADV_GUARD_INSTALL: c_int = 102;

/// `madvise(2)`. Of what the monitor advises, only MADV_REMOVE takes content away: MADV_DONTNEED of shared memory keeps it,
/// of locked pages too. Guards are refused, as by a kernel that has none: where pages are write-protected by a userfaultfd,
/// the kernel never comes to an end of installing them.
///
/// # Safety
/// Nobody relies on content of the range that the advice takes away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int {
    let addresses = address as u64..(address as u64).saturating_add(length as u64);
    if advice == MADV_GUARD_INSTALL && beside(|| mappings::parts(&addresses).is_empty()) == Some(false) {
        set_errno(libc::EINVAL);
        return -1;
    }
    if advice == libc::MADV_REMOVE {
        beside(|| mappings::parts(&addresses).iter().for_each(mappings::discard));
    }
    // SAFETY: nobody relies on content that the advice takes away.
    unsafe { libc::syscall(libc::SYS_madvise, address, length, advice) as c_int }
}

/// `fallocate(2)`. A hole in the region's file takes content away.
///
/// # Safety
/// Nobody relies on content of the file that a hole takes away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fallocate(fd: c_int, mode: c_int, offset: i64, length: i64) -> c_int {
    if mode & libc::FALLOC_FL_PUNCH_HOLE != 0 {
        beside(|| {
            if settings().is_some_and(|settings| settings.is_memory(fd))
                && let (Ok(start), Ok(length)) = (u64::try_from(offset), u64::try_from(length))
            {
                mappings::discard(&(start..start.saturating_add(length)));
            }
        });
    }
    // SAFETY: nobody relies on content that a hole takes away.
    let done: c_long = unsafe { libc::syscall(libc::SYS_fallocate, fd, mode, offset, length) };
    done as c_int
}

/// `fallocate(2)` by its other name.
///
/// # Safety
/// Nobody relies on content of the file that a hole takes away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fallocate64(fd: c_int, mode: c_int, offset: i64, length: i64) -> c_int {
    // SAFETY: what `fallocate` asks for is asked of the caller here.
    unsafe { fallocate(fd, mode, offset, length) }
}

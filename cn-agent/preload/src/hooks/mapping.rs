//! `mmap` and its kin: large private anonymous mappings are parts of the window, and what is done to parts of the window
//! keeps it whole. Everything else is the kernel's, as it was.

use std::ffi::{c_int, c_void};

use cxloe_member::wire::Kind;
use libc::{
    MAP_32BIT, MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_GROWSDOWN, MAP_HUGETLB,
    MAP_NORESERVE, MAP_PRIVATE, MAP_STACK, MAP_TYPE, MREMAP_FIXED, MREMAP_MAYMOVE, PROT_EXEC, PROT_NONE,
    PROT_READ, PROT_WRITE,
};

use crate::helpers;
use crate::process::{NO_MEMORY, Process, Source, source};
use crate::sys::{self, Errno, PAGE};
use crate::window::Claim;

/// Mappings from this size on are remote.
const LARGE: usize = 64 << 10;
/// What keeps a mapping out of the window: a place of its own, or pages of another kind.
const ELSEWHERE: c_int =
    MAP_FIXED | MAP_FIXED_NOREPLACE | MAP_STACK | MAP_GROWSDOWN | MAP_HUGETLB | MAP_32BIT;

fn failed(errno: c_int) -> *mut c_void {
    Errno::set(errno);
    MAP_FAILED
}

fn remote() -> Option<&'static Process> {
    match source() {
        Source::Remote(process) => Some(process),
        _ => None,
    }
}

fn is_private_anonymous(flags: c_int) -> bool {
    flags & MAP_TYPE == MAP_PRIVATE && flags & MAP_ANONYMOUS != 0
}

/// `mmap(2)`.
///
/// # Safety
/// With `MAP_FIXED`, nothing uses what is mapped at the `bytes` bytes from `address` on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: with `MAP_FIXED`, nobody uses what lies there; without, the kernel chooses free addresses.
    let kernel = || unsafe { sys::mmap(address, bytes, protection, flags, fd, offset) };
    let Some(process) = remote() else { return kernel() };
    let window = process.window;
    // Code stays here: it is small, and run more often than it is worth.
    let memory = is_private_anonymous(flags) && protection & PROT_EXEC == 0;
    if flags & MAP_FIXED != 0 {
        let part = window.part(address as usize, bytes);
        if part.is_empty() {
            return kernel();
        }
        let within = part.len() == bytes.div_ceil(PAGE);
        if within && memory && (address as usize).is_multiple_of(PAGE) {
            match window.claim(part.clone(), protection != PROT_NONE) {
                Claim::Made => {
                    window.discard(part);
                    // SAFETY: with `MAP_FIXED` nobody uses what lies there: these pages are to be new ones.
                    let done = unsafe { sys::mprotect(address, bytes, protection) } == 0;
                    return if done { address } else { MAP_FAILED };
                }
                Claim::NoRoom => return failed(NO_MEMORY),
                Claim::NotOurs => {}
            }
        }
        let mapped = kernel();
        if mapped != MAP_FAILED {
            window.lose(part);
        }
        return mapped;
    }
    let ours = memory && flags & ELSEWHERE == 0 && bytes >= LARGE;
    let first = match protection {
        PROT_NONE if ours => window.take_addresses(bytes.div_ceil(PAGE)),
        _ if ours && protection == PROT_READ | PROT_WRITE => match window.take(bytes.div_ceil(PAGE), 1) {
            // Addresses are wanted rather than memory.
            None if flags & MAP_NORESERVE != 0 && bytes > window.memory() => None,
            None => return failed(NO_MEMORY),
            first => first,
        },
        _ => None,
    };
    first.map_or_else(kernel, |first| window.address(first).cast())
}

/// `mmap(2)`.
///
/// # Safety
/// With `MAP_FIXED`, nothing uses what is mapped at the `bytes` bytes from `address` on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: what `mmap` asks for is asked of the caller here.
    unsafe { mmap(address, bytes, protection, flags, fd, offset) }
}

/// Does something to what lies outside the window of a range that touches it.
fn outside(
    process: &Process,
    address: usize,
    bytes: usize,
    mut act: impl FnMut(*mut c_void, usize) -> c_int,
) -> c_int {
    let (base, end) = (process.window.base(), process.window.base() + process.window.bytes());
    let last = address.saturating_add(bytes);
    let before = base.saturating_sub(address).min(bytes);
    let behind = last.saturating_sub(end).min(bytes);
    let first = if before > 0 { act(address as *mut c_void, before) } else { 0 };
    let second = if behind > 0 { act((last - behind) as *mut c_void, behind) } else { 0 };
    if first != 0 { first } else { second }
}

/// `munmap(2)`.
///
/// # Safety
/// Nobody uses the `bytes` bytes from `address` on any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: nobody uses this part of the range any more.
    let kernel = |address, bytes| unsafe { sys::munmap(address, bytes) };
    let Some(process) = remote() else { return kernel(address, bytes) };
    let part = process.window.part(address as usize, bytes);
    if part.is_empty() || !(address as usize).is_multiple_of(PAGE) {
        return kernel(address, bytes);
    }
    process.window.give(part);
    outside(process, address as usize, bytes, kernel)
}

/// `mremap(2)`. A part of the window does not move by itself: its content is copied.
///
/// # Safety
/// Nobody uses the mapping under its old address any more; with `MREMAP_FIXED`, nor what lies at `new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    address: *mut c_void,
    bytes: usize,
    new_bytes: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    // SAFETY: nobody uses the mapping under its old address any more, nor what lies at `new` with `MREMAP_FIXED`.
    let kernel = || unsafe { sys::mremap(address, bytes, new_bytes, flags, new) };
    let Some(process) = remote() else { return kernel() };
    let window = process.window;
    let fixed = flags & MREMAP_FIXED != 0;
    if !window.holds(address as usize) {
        let over = fixed && !window.part(new as usize, new_bytes).is_empty();
        return if over { failed(libc::EINVAL) } else { kernel() };
    }
    let part = window.part(address as usize, bytes);
    let whole = part.len() == bytes.div_ceil(PAGE) && bytes > 0 && new_bytes > 0;
    if !whole || !(address as usize).is_multiple_of(PAGE) || flags & !(MREMAP_FIXED | MREMAP_MAYMOVE) != 0 {
        return failed(libc::EINVAL);
    }
    if window.reserves(part.clone()) {
        // Nothing is there to be copied.
        return failed(NO_MEMORY);
    }
    let wanted = new_bytes.div_ceil(PAGE);
    if !fixed {
        if wanted <= part.len() {
            if wanted < part.len() {
                window.give(part.start + wanted..part.end);
            }
            return address;
        }
        if window.take_at(part.end..part.start + wanted) {
            return address;
        }
        if flags & MREMAP_MAYMOVE == 0 {
            return failed(NO_MEMORY);
        }
    }
    let moved = if fixed {
        // SAFETY: with `MREMAP_FIXED` nobody uses what lies at `new`.
        unsafe {
            mmap(new, new_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)
        }
    } else {
        window.take(wanted, 1).map_or(MAP_FAILED, |first| window.address(first).cast())
    };
    if moved == MAP_FAILED {
        return failed(NO_MEMORY);
    }
    // SAFETY: two mappings, the smaller of which has so many bytes.
    unsafe { moved.copy_from_nonoverlapping(address, bytes.min(new_bytes)) };
    window.give(part);
    moved
}

/// `mprotect(2)`. Addresses of the window that may be touched from here on are committed.
///
/// # Safety
/// Nobody relies on rights to the range that it takes away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(address: *mut c_void, bytes: usize, protection: c_int) -> c_int {
    if let Some(process) = remote().filter(|_| protection != PROT_NONE) {
        let part = process.window.part(address as usize, bytes);
        if !part.is_empty() && !process.window.commit(part) {
            Errno::set(NO_MEMORY);
            return -1;
        }
    }
    // SAFETY: nobody relies on rights that this takes away.
    unsafe { sys::mprotect(address, bytes, protection) }
}

/// `madvise(2)`.
///
/// # Safety
/// Nobody relies on content of the range that the advice takes away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    // SAFETY: nobody relies on content that the advice takes away.
    let kernel = |address, bytes| unsafe { sys::madvise(address, bytes, advice) };
    let Some(process) = remote() else { return kernel(address, bytes) };
    let part = process.window.part(address as usize, bytes);
    if part.is_empty() || !(address as usize).is_multiple_of(PAGE) {
        return kernel(address, bytes);
    }
    match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE => process.window.discard(part),
        // Of locked pages as of others: the window has none.
        libc::MADV_DONTNEED_LOCKED if sys::knows(advice) => process.window.discard(part),
        sys::MADV_GUARD_INSTALL if sys::knows(advice) => {
            return process.window.guard(part, || kernel(address, bytes));
        }
        // Of their content nothing changes, only when they come and go.
        libc::MADV_WILLNEED => helpers::hint(Kind::WillRead, part),
        libc::MADV_COLD => helpers::hint(Kind::Cold, part),
        libc::MADV_PAGEOUT => helpers::hint(Kind::PageOut, part),
        // What the window's pages cannot be, or become on their own account only.
        libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_DONTFORK
        | libc::MADV_DOFORK => {}
        libc::MADV_REMOVE | libc::MADV_WIPEONFORK => {
            Errno::set(libc::EINVAL);
            return -1;
        }
        _ => return kernel(address, bytes),
    }
    outside(process, address as usize, bytes, kernel)
}

/// Locked pages could not leave, so none are. EPERM says that this process may not, and programs go on without; ENOMEM would say
/// that it is too much, and have them try with less and less.
fn cannot_lock() -> c_int {
    Errno::set(libc::EPERM);
    -1
}

/// `mlock(2)`.
///
/// # Safety
/// Nothing: the kernel checks the range. It is unsafe as the C library's declaration is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(address: *const c_void, bytes: usize) -> c_int {
    // SAFETY: the kernel checks the range.
    unsafe { mlock2(address, bytes, 0) }
}

/// `mlock2(2)`.
///
/// # Safety
/// Nothing: the kernel checks the range. It is unsafe as the C library's declaration is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(address: *const c_void, bytes: usize, flags: c_int) -> c_int {
    match remote() {
        Some(process) if !process.window.part(address as usize, bytes).is_empty() => cannot_lock(),
        // SAFETY: the kernel checks the range.
        _ if flags == 0 => unsafe { libc::syscall(libc::SYS_mlock, address, bytes) as c_int },
        // SAFETY: the kernel checks the range.
        _ => unsafe { libc::syscall(libc::SYS_mlock2, address, bytes, flags) as c_int },
    }
}

/// `mlockall(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    match remote() {
        Some(_) => cannot_lock(),
        // SAFETY: plain values.
        None => unsafe { libc::syscall(libc::SYS_mlockall, flags) as c_int },
    }
}

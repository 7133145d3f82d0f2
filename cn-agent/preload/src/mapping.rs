//! `mmap` and the like: large private anonymous mappings become parts of the window, and calls on parts of the window
//! keep the window's records correct. All other calls are passed to the kernel unchanged.
//!
//! These functions are separate from the interposed ones, and never inlined into them. A library that patches
//! the code of the interposed functions (UCX, Open MPI) makes the bare system call itself afterwards. That
//! call is trapped, and the trap handler calls the functions here, not the patched ones.

#![expect(unsafe_code, reason = "mmap and the like act on memory by address")]

use std::ffi::{c_int, c_uint, c_void};

use cxloe_member::own_calls::own_call;
use cxloe_member::wire::MessageKind;
use libc::{
    MAP_32BIT, MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_GROWSDOWN, MAP_HUGETLB,
    MAP_NORESERVE, MAP_PRIVATE, MAP_STACK, MAP_TYPE, MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE,
    PROT_EXEC, PROT_NONE, PROT_READ, PROT_WRITE,
};

use crate::helpers;
use crate::process::{MemorySource, NO_MEMORY, Process, source};
use crate::sys::{self, Errno, PAGE};
use crate::window::{AddressClaim, PageUse, Window};

/// Size in bytes from which mappings are remote.
const LARGE: usize = 64 << 10;
/// Flags that keep a mapping out of the window, because they demand a certain address or another kind of page.
const ELSEWHERE: c_int =
    MAP_FIXED | MAP_FIXED_NOREPLACE | MAP_STACK | MAP_GROWSDOWN | MAP_HUGETLB | MAP_32BIT;

fn failed(errno: c_int) -> *mut c_void {
    Errno::set(errno);
    MAP_FAILED
}

fn remote() -> Option<&'static Process> {
    match source() {
        MemorySource::Remote(process) => Some(process),
        _ => None,
    }
}

/// Purpose for which the pages of a mapping are taken.
fn page_use(protection: c_int, flags: c_int) -> PageUse {
    match protection {
        PROT_NONE => PageUse::Reserved,
        _ if flags & MAP_NORESERVE != 0 => PageUse::CountsWhenTouched,
        _ => PageUse::Committed,
    }
}

/// Takes pages that may be touched. With `MAP_NORESERVE`, the pages do not count as committed if enough addresses are
/// left for them.
fn taken(window: &Window, bytes: usize, flags: c_int) -> Option<usize> {
    let pages = bytes.div_ceil(PAGE);
    let uncounted =
        (flags & MAP_NORESERVE != 0).then(|| window.take_addresses(pages, PageUse::CountsWhenTouched));
    uncounted.flatten().or_else(|| window.take(pages, 1))
}

fn is_private_anonymous(flags: c_int) -> bool {
    flags & MAP_TYPE == MAP_PRIVATE && flags & MAP_ANONYMOUS != 0
}

/// Makes a large private anonymous mapping a part of the window.
///
/// # Safety
/// With `MAP_FIXED`, nothing uses what is mapped at the `bytes` bytes from `address` on.
#[inline(never)]
pub unsafe fn mmap(
    address: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: with `MAP_FIXED`, the caller promises that nothing uses the range; without, the kernel chooses free
    // addresses.
    let kernel = || unsafe { sys::mmap(address, bytes, protection, flags, fd, offset) };
    let Some(process) = remote() else { return kernel() };
    let window = process.window;
    // Executable memory stays local: code is small, and runs often.
    let memory = is_private_anonymous(flags) && protection & PROT_EXEC == 0;
    if flags & MAP_FIXED != 0 {
        let part = window.part(address as usize, bytes);
        if part.is_empty() {
            return kernel();
        }
        let within = part.len() == bytes.div_ceil(PAGE);
        if within && memory && (address as usize).is_multiple_of(PAGE) {
            match window.claim(part.clone(), page_use(protection, flags)) {
                AddressClaim::Made => {
                    // SAFETY: with `MAP_FIXED`, nothing uses the range: these pages have just been taken.
                    let done = unsafe { sys::mprotect(address, bytes, protection) } == 0;
                    return if done { address } else { MAP_FAILED };
                }
                AddressClaim::NoRoom => return failed(NO_MEMORY),
                AddressClaim::NotOurs => {}
            }
        }
        let mapped = kernel();
        if mapped != MAP_FAILED {
            window.remove_pages(part);
        }
        return mapped;
    }
    let ours = memory && flags & ELSEWHERE == 0 && bytes >= LARGE;
    let first = match protection {
        PROT_NONE if ours => window.take_addresses(bytes.div_ceil(PAGE), PageUse::Reserved),
        _ if ours && protection == PROT_READ | PROT_WRITE => match taken(window, bytes, flags) {
            // The program requests more addresses than there is remote memory, with `MAP_NORESERVE`: the kernel makes
            // this reservation.
            None if flags & MAP_NORESERVE != 0 && bytes > window.memory() => None,
            None => return failed(NO_MEMORY),
            first => first,
        },
        _ => None,
    };
    first.map_or_else(kernel, |first| window.address(first).cast())
}

/// Whether a range begins at a page and has an end, without which the kernel accepts no range.
fn is_range(address: usize, bytes: usize) -> bool {
    let end = bytes.checked_next_multiple_of(PAGE).and_then(|bytes| address.checked_add(bytes));
    address.is_multiple_of(PAGE) && end.is_some()
}

/// Applies `act` to the parts of a range that lie in front of the window and behind it; the range overlaps the window.
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

/// Gives back parts of the window, and unmaps the rest of the range.
///
/// # Safety
/// Nothing uses the `bytes` bytes from `address` on any more.
#[inline(never)]
pub unsafe fn munmap(address: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: nothing uses this part of the range any more.
    let kernel = |address, bytes| unsafe { sys::munmap(address, bytes) };
    let Some(process) = remote() else { return kernel(address, bytes) };
    let part = process.window.part(address as usize, bytes);
    if part.is_empty() || !is_range(address as usize, bytes) {
        return kernel(address, bytes);
    }
    // The kernel refuses a range that ends behind the addresses of processes.
    let unmapped = outside(process, address as usize, bytes, kernel);
    if unmapped == 0 {
        process.window.give(part);
    }
    unmapped
}

/// Copies the content of a part of the window to its new place, because the kernel cannot move that part.
///
/// # Safety
/// Nothing uses the mapping under its old address any more; with `MREMAP_FIXED`, nor the range at `new`.
#[inline(never)]
pub unsafe fn mremap(
    address: *mut c_void,
    bytes: usize,
    new_bytes: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    // SAFETY: nothing uses the mapping under its old address any more, nor the range at `new` with `MREMAP_FIXED`.
    let kernel = || unsafe { sys::mremap(address, bytes, new_bytes, flags, new) };
    let Some(process) = remote() else { return kernel() };
    let window = process.window;
    let fixed = flags & MREMAP_FIXED != 0;
    let touched = window.part(address as usize, bytes.max(1));
    let covered = window.covered(touched.clone());
    // The kernel moves mappings of the program, also one that covers pages of the window.
    if !window.holds(address as usize) || covered == touched.len() {
        let over = fixed && !window.part(new as usize, new_bytes).is_empty();
        return if over { failed(libc::EINVAL) } else { kernel() };
    }
    let part = window.part(address as usize, bytes);
    let whole = part.len() == bytes.div_ceil(PAGE) && bytes > 0 && new_bytes > 0;
    // With this flag the old range stays mapped, and reads as zeros afterwards.
    let stays = flags & MREMAP_DONTUNMAP != 0;
    let known = flags & !(MREMAP_FIXED | MREMAP_MAYMOVE | MREMAP_DONTUNMAP) == 0;
    let moves = flags & MREMAP_MAYMOVE != 0;
    let overlaps = fixed
        && (address as usize) < (new as usize).saturating_add(new_bytes)
        && (new as usize) < (address as usize).saturating_add(bytes);
    if !whole
        || !(address as usize).is_multiple_of(PAGE)
        || !known
        || (fixed && !moves)
        || overlaps
        || (stays && (!moves || bytes != new_bytes))
    {
        return failed(libc::EINVAL);
    }
    if window.reserves(part.clone()) {
        // The range, or a part of it, is only reserved, so there is no content to copy.
        return failed(NO_MEMORY);
    }
    let wanted = new_bytes.div_ceil(PAGE);
    if !fixed && !stays && wanted <= part.len() {
        if wanted < part.len() {
            window.give(part.start + wanted..part.end);
        }
        return address;
    }
    if covered > 0 {
        // The range consists of several mappings.
        return failed(libc::EFAULT);
    }
    if !fixed && !stays {
        if window.take_at(part.end..part.start + wanted) {
            return address;
        }
        if flags & MREMAP_MAYMOVE == 0 {
            return failed(NO_MEMORY);
        }
    }
    let moved = if fixed {
        // SAFETY: with `MREMAP_FIXED` nothing uses the range at `new`.
        unsafe {
            mmap(new, new_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)
        }
    } else {
        window.take(wanted, 1).map_or(MAP_FAILED, |first| window.address(first).cast())
    };
    if moved == MAP_FAILED {
        return failed(NO_MEMORY);
    }
    // SAFETY: the mappings do not overlap, and the smaller of them has this many bytes.
    unsafe { moved.copy_from_nonoverlapping(address, bytes.min(new_bytes)) };
    if !stays {
        window.give(part);
    } else if !window.discard(part.clone()) {
        // The protection of the old range is not known, and gives way to its content: it reads as zeros.
        window.empty(part);
    }
    moved
}

/// Commits reserved addresses of the window that become accessible.
///
/// # Safety
/// Nothing relies on rights to the range that the call takes away.
#[inline(never)]
pub unsafe fn mprotect(address: *mut c_void, bytes: usize, protection: c_int) -> c_int {
    if let Some(process) = remote().filter(|_| protection != PROT_NONE) {
        let part = process.window.part(address as usize, bytes);
        if !part.is_empty() && !process.window.commit(part) {
            Errno::set(NO_MEMORY);
            return -1;
        }
    }
    // SAFETY: nothing relies on rights that the call takes away.
    unsafe { sys::mprotect(address, bytes, protection) }
}

/// Discards content, or passes hints to the agent, for parts of the window.
///
/// # Safety
/// Nothing relies on content of the range that the advice discards.
#[inline(never)]
pub unsafe fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    // SAFETY: nothing relies on content that the advice discards.
    let kernel = |address, bytes| unsafe { sys::madvise(address, bytes, advice) };
    let Some(process) = remote() else { return kernel(address, bytes) };
    let part = process.window.part(address as usize, bytes);
    if part.is_empty() || !is_range(address as usize, bytes) {
        return kernel(address, bytes);
    }
    let discards = match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE => true,
        // The window has no locked pages, so this advice does the same as `MADV_DONTNEED`.
        libc::MADV_DONTNEED_LOCKED => sys::supports(advice),
        _ => false,
    };
    if discards && !process.window.discard(part.clone()) {
        Errno::set(libc::EAGAIN);
        return -1;
    }
    match advice {
        _ if discards => {}
        sys::MADV_GUARD_INSTALL if sys::supports(advice) => {
            return process.window.guard(part, || kernel(address, bytes));
        }
        // These kinds of advice do not change content, only residence.
        libc::MADV_WILLNEED => helpers::hint(MessageKind::WillRead, part),
        libc::MADV_COLD => helpers::hint(MessageKind::Cold, part),
        libc::MADV_PAGEOUT => helpers::hint(MessageKind::PageOut, part),
        // This advice has no effect on pages of the window, or would make the kernel split the window's mapping.
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

/// Maximum number of ranges in one call of `process_madvise` (`IOV_MAX`).
const RANGES_MAX: usize = 1024;
/// Descriptors that stand for the calling thread and process (Linux 6.14).
const SELF_DESCRIPTORS: std::ops::RangeInclusive<c_int> = -10_001..=-10_000;

/// Handles advice on memory of this process range by range. Advice on memory of another process is passed to the
/// kernel.
///
/// # Safety
/// Nothing relies on content of the ranges that the advice discards.
#[inline(never)]
pub unsafe fn process_madvise(
    process: c_int,
    ranges: *const libc::iovec,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    if remote().is_none() || count > RANGES_MAX || flags != 0 || !is_self(process) {
        let arguments = [process as usize, ranges as usize, count, advice as usize, flags as usize];
        // SAFETY: the kernel checks the ranges; nothing relies on content that the advice discards.
        return unsafe { own_call(libc::SYS_process_madvise, arguments) };
    }
    let mut done = 0;
    for index in 0..count {
        // SAFETY: `ranges` points to `count` ranges, as the caller ensures, and `index` is smaller.
        let range = unsafe { ranges.add(index).read() };
        // SAFETY: nothing relies on content that the advice discards.
        if unsafe { madvise(range.iov_base, range.iov_len, advice) } != 0 {
            break;
        }
        done += range.iov_len;
    }
    if done == 0 && count > 0 { -1 } else { done.cast_signed() }
}

/// Whether `process`, a descriptor of a process, refers to the calling process.
fn is_self(process: c_int) -> bool {
    if SELF_DESCRIPTORS.contains(&process) {
        return true;
    }
    // SAFETY: the call has no arguments and cannot fail.
    let own = unsafe { libc::getpid() };
    sys::process_of(process) == Some(own)
}

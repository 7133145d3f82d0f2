//! Interposed functions of the C library that map memory or pass it on; each makes the system call of its name.
//! Functions that map, unmap or discard memory report this to the agent, but only for the region's file and its
//! mappings. Functions that pass memory to a process or a device end the monitor if that memory is the region's.

#![expect(unsafe_code, reason = "mmap and the like are exported by name, and take raw pointers")]

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

use cxloe_member::wire::PAGE_BYTES;

use crate::reentry::{set_errno, without_reentry};
use crate::settings::settings;
use crate::{mappings, outsiders};

/// Makes a mapping of the region's file a member of the region's space.
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
    let touchable = fd >= 0 && protection != libc::PROT_NONE;
    if touchable
        && flags & libc::MAP_TYPE == libc::MAP_PRIVATE
        && without_reentry(|| mappings::refuses_private(fd)) == Some(true)
    {
        set_errno(libc::EINVAL);
        return libc::MAP_FAILED;
    }
    // SAFETY: with `MAP_FIXED`, the caller promises that nothing uses the range; without, the kernel chooses free
    // addresses.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, address, length, protection, flags, fd, offset) }
        as *mut c_void;
    let shared = matches!(flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
    if mapped == libc::MAP_FAILED || !shared || !touchable {
        return mapped;
    }
    let failed = without_reentry(|| {
        let settings = settings().filter(|settings| settings.is_memory(fd))?;
        let span = mappings::span(mapped as u64, length as u64, offset as u64)?;
        // Keeps the mapping out of forked children: a child that touched it would fill absent pages of the shared
        // memory with zeros. SAFETY: the mapping was made just now.
        unsafe { libc::syscall(libc::SYS_madvise, mapped, length, libc::MADV_DONTFORK) };
        settings.keep_from_programs(fd);
        (!mappings::add(settings, span)).then_some(())
    });
    if failed.flatten().is_none() {
        return mapped;
    }
    // SAFETY: nothing uses the mapping, because it was not returned to the caller.
    unsafe { libc::syscall(libc::SYS_munmap, mapped, length) };
    set_errno(libc::EIO);
    libc::MAP_FAILED
}

/// `mmap64`, the name of `mmap(2)` for 64-bit offsets.
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
    // SAFETY: the caller keeps the conditions of `mmap`.
    unsafe { mmap(address, length, protection, flags, fd, offset) }
}

/// Ends the membership of mappings that lie wholly in the unmapped range.
///
/// # Safety
/// Nothing uses the `length` bytes from `address` on any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, length: usize) -> c_int {
    let (start, length_up) = (address as u64, (length as u64).checked_next_multiple_of(PAGE_BYTES));
    let addresses = start..start.saturating_add(length_up.unwrap_or(0));
    // The memberships end before the addresses are free: otherwise the agent could write pages in flight into a new
    // mapping at these addresses.
    let aligned = start.is_multiple_of(PAGE_BYTES);
    let left = aligned.then(|| without_reentry(|| mappings::leave(&addresses))).flatten();
    // SAFETY: nothing uses this part of the range any more.
    let done = unsafe { libc::syscall(libc::SYS_munmap, address, length) };
    if done != 0 && left.is_some_and(|left| left > 0) {
        mappings::give_up("it could not be unmapped, and its agent no longer serves it");
    }
    done as c_int
}

/// `MADV_GUARD_INSTALL`, which makes accesses to pages fail; for shared memory since Linux 6.15.
const MADV_GUARD_INSTALL: c_int = 102;

/// Announces discards of the region's memory. Of the advice that QEMU gives, only MADV_REMOVE discards
/// content: MADV_DONTNEED keeps the content of shared memory, also of locked pages. Guards are refused, as by
/// a kernel without them: a kernel that installs guards where a userfaultfd write-protects pages loops for
/// ever.
///
/// # Safety
/// Nothing relies on content of the range that the advice discards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int {
    let addresses = address as u64..(address as u64).saturating_add(length as u64);
    if advice == MADV_GUARD_INSTALL
        && without_reentry(|| mappings::parts(&addresses).is_empty()) == Some(false)
    {
        set_errno(libc::EINVAL);
        return -1;
    }
    if advice == libc::MADV_REMOVE {
        without_reentry(|| mappings::parts(&addresses).iter().for_each(mappings::discard));
    }
    // SAFETY: nothing relies on content that the advice discards.
    unsafe { libc::syscall(libc::SYS_madvise, address, length, advice) as c_int }
}

/// Announces discards of the region's memory: punching a hole in the region's file discards content.
///
/// # Safety
/// Nothing relies on content of the file that a hole discards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fallocate(fd: c_int, mode: c_int, offset: i64, length: i64) -> c_int {
    if mode & libc::FALLOC_FL_PUNCH_HOLE != 0 {
        without_reentry(|| {
            if settings().is_some_and(|settings| settings.is_memory(fd))
                && let (Ok(start), Ok(length)) = (u64::try_from(offset), u64::try_from(length))
            {
                mappings::discard(&(start..start.saturating_add(length)));
            }
        });
    }
    // SAFETY: nothing relies on content that a hole discards.
    let done: c_long = unsafe { libc::syscall(libc::SYS_fallocate, fd, mode, offset, length) };
    done as c_int
}

/// `fallocate64`, the name of `fallocate(2)` for 64-bit offsets.
///
/// # Safety
/// Nothing relies on content of the file that a hole discards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fallocate64(fd: c_int, mode: c_int, offset: i64, length: i64) -> c_int {
    // SAFETY: the caller keeps the conditions of `fallocate`.
    unsafe { fallocate(fd, mode, offset, length) }
}

/// Ends the monitor if the message passes the region's memory to another process.
///
/// # Safety
/// `message` is a valid header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(socket: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the caller passes a valid header.
    unsafe {
        if !message.is_null() {
            check_message(message);
        }
        libc::syscall(libc::SYS_sendmsg, socket, message, flags) as isize
    }
}

/// Ends the monitor if a message passes the region's memory to another process.
///
/// # Safety
/// `messages` are `count` valid headers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(
    socket: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller passes valid headers.
    unsafe {
        for index in 0..if messages.is_null() { 0 } else { count as usize } {
            check_message(&raw const (*messages.add(index)).msg_hdr);
        }
        libc::syscall(libc::SYS_sendmmsg, socket, messages, count, flags) as c_int
    }
}

/// # Safety
/// `message` is a valid header.
unsafe fn check_message(message: *const libc::msghdr) {
    // SAFETY: the caller passes a valid header.
    let (control, passes) =
        unsafe { ((*message).msg_control, |settings| outsiders::passes_memory(settings, message)) };
    if !control.is_null() && without_reentry(|| settings().is_some_and(passes)) == Some(true) {
        outsiders::refuse("another process (as vhost-user does)");
    }
}

/// Ends the monitor if the request pins memory of the region for a device.
///
/// # Safety
/// `argument` is what the kernel takes for this request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the caller ensures that `argument` is valid for this request.
    unsafe {
        if without_reentry(|| outsiders::pins_memory(request, argument)) == Some(true) {
            outsiders::refuse("a device (as VFIO does)");
        }
        libc::syscall(libc::SYS_ioctl, fd, request, argument) as c_int
    }
}

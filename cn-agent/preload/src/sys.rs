//! The kernel, past the functions of the C library: those have our names on them here. `errno` is as after the C
//! library's functions, unless said otherwise.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU32;

use libc::{MAP_ANONYMOUS, MAP_NORESERVE, MAP_PRIVATE, PROT_NONE, PROT_READ, PROT_WRITE};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// `errno` as it was when this was made, put back when it goes: what is done inside of `free` is nobody's business.
#[derive(Debug)]
pub struct Errno(c_int);

impl Errno {
    /// Remembers it.
    pub fn keep() -> Errno {
        // SAFETY: the C library's place for this thread's value.
        Errno(unsafe { *libc::__errno_location() })
    }

    /// Sets it.
    pub fn set(value: c_int) {
        // SAFETY: the C library's place for this thread's value.
        unsafe { *libc::__errno_location() = value };
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        Errno::set(self.0);
    }
}

/// A number that tells threads apart: the address of something each has of its own.
#[inline]
pub fn thread_hash() -> usize {
    // SAFETY: only the address is used.
    let own = unsafe { libc::__errno_location() } as usize;
    (own >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32
}

/// Sleeps while `word` is `value`; may return early. Leaves `errno` alone.
pub fn futex_wait(word: &AtomicU32, value: u32) {
    let _errno = Errno::keep();
    let none = std::ptr::null::<libc::timespec>();
    let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel reads a live word.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wait, value, none) };
}

/// Wakes whoever sleeps over `word`. Leaves `errno` alone.
pub fn futex_wake(word: &AtomicU32) {
    let _errno = Errno::keep();
    let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the address of a live word only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wake, i32::MAX) };
}

/// Sleeps for a millisecond. Leaves `errno` alone.
pub fn pause() {
    let _errno = Errno::keep();
    let time = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    // SAFETY: the kernel reads a live time.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, std::ptr::null_mut::<libc::timespec>()) };
}

/// `mmap(2)`.
///
/// # Safety
/// With `MAP_FIXED`, nothing uses what is mapped at the `bytes` bytes from `address` on.
pub unsafe fn mmap(
    address: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: with `MAP_FIXED`, nobody uses what lies there; without, the kernel chooses free addresses.
    unsafe { libc::syscall(libc::SYS_mmap, address, bytes, protection, flags, fd, offset) as *mut c_void }
}

/// `munmap(2)`.
///
/// # Safety
/// Nobody uses the `bytes` bytes from `address` on any more.
pub unsafe fn munmap(address: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: nobody uses this part of the range any more.
    unsafe { libc::syscall(libc::SYS_munmap, address, bytes) as c_int }
}

/// `mremap(2)`.
///
/// # Safety
/// Nobody uses the mapping under its old address any more; with `MREMAP_FIXED`, nor what lies at `new`.
pub unsafe fn mremap(
    address: *mut c_void,
    bytes: usize,
    new_bytes: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    // SAFETY: nobody uses the mapping under its old address any more, nor what lies at `new` with `MREMAP_FIXED`.
    unsafe { libc::syscall(libc::SYS_mremap, address, bytes, new_bytes, flags, new) as *mut c_void }
}

/// `mprotect(2)`.
///
/// # Safety
/// Nobody relies on rights to the range that it takes away.
pub unsafe fn mprotect(address: *mut c_void, bytes: usize, protection: c_int) -> c_int {
    // SAFETY: nobody relies on rights that this takes away.
    unsafe { libc::syscall(libc::SYS_mprotect, address, bytes, protection) as c_int }
}

/// `madvise(2)`.
///
/// # Safety
/// Nobody relies on content of the range that the advice takes away.
pub unsafe fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    // SAFETY: nobody relies on content that the advice takes away.
    unsafe { libc::syscall(libc::SYS_madvise, address, bytes, advice) as c_int }
}

/// Addresses that nobody has, not to be touched.
pub fn addresses(bytes: usize) -> Option<*mut c_void> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: a new mapping wherever there is room.
    let memory = unsafe { mmap(std::ptr::null_mut(), bytes, PROT_NONE, flags, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory)
}

/// Puts guards in the place of pages: touching them is SIGSEGV. Linux 6.13 and newer.
pub const MADV_GUARD_INSTALL: c_int = 102;
/// Takes guards away.
pub const MADV_GUARD_REMOVE: c_int = 103;

/// Whether this kernel knows an advice.
pub fn knows(advice: c_int) -> bool {
    // SAFETY: no bytes are meant.
    unsafe { madvise(std::ptr::null_mut(), 0, advice) == 0 }
}

/// Fresh memory of this machine, all zeros, that takes up nothing until it is touched.
pub fn fresh(bytes: usize) -> Option<*mut c_void> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: a new mapping wherever there is room.
    let memory = unsafe { mmap(std::ptr::null_mut(), bytes, PROT_READ | PROT_WRITE, flags, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory)
}

/// Ends the process at once, with this exit code.
pub fn exit(code: c_int) -> ! {
    loop {
        // SAFETY: does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}

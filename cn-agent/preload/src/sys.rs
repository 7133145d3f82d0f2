//! System calls without the functions of the C library, whose names this library interposes. They set `errno` as the C
//! library's functions do, unless documented otherwise.

#![expect(unsafe_code, reason = "bare system calls take raw pointers")]

use std::ffi::{CStr, c_int, c_void};
use std::fmt::Write;
use std::str::FromStr;
use std::sync::atomic::AtomicU32;

use arrayvec::ArrayString;
use cxloe_member::own_calls::{own_call, own_mmap};
use libc::{
    MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_PRIVATE, PROT_NONE, PROT_READ, PROT_WRITE,
};

pub const PAGE: usize = 4096;

/// Saved `errno`, restored when this is dropped: work inside `free` must not change it.
#[derive(Debug)]
pub struct Errno(c_int);

impl Errno {
    pub fn keep() -> Errno {
        // SAFETY: errno belongs to this thread.
        Errno(unsafe { *libc::__errno_location() })
    }

    pub fn now() -> c_int {
        // SAFETY: errno belongs to this thread.
        unsafe { *libc::__errno_location() }
    }

    pub fn set(value: c_int) {
        // SAFETY: errno belongs to this thread.
        unsafe { *libc::__errno_location() = value };
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        Errno::set(self.0);
    }
}

/// A number that differs between threads, from the address of a thread-local variable.
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

/// Wakes all threads that sleep on `word`. Leaves `errno` alone.
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
    // SAFETY: with `MAP_FIXED`, the caller promises that nothing uses the range; without, the kernel chooses free
    // addresses.
    unsafe { own_mmap(address as usize, bytes, protection, flags, fd, offset) as *mut c_void }
}

/// # Safety
/// Nothing uses the `bytes` bytes from `address` on any more.
pub unsafe fn munmap(address: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: nothing uses this part of the range any more.
    unsafe { own_call(libc::SYS_munmap, [address as usize, bytes, 0, 0, 0]) as c_int }
}

/// # Safety
/// Nothing uses the mapping under its old address any more; with `MREMAP_FIXED`, nor the range at `new`.
pub unsafe fn mremap(
    address: *mut c_void,
    bytes: usize,
    new_bytes: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    // SAFETY: nothing uses the mapping under its old address any more, nor the range at `new` with `MREMAP_FIXED`.
    unsafe {
        let arguments = [address as usize, bytes, new_bytes, flags as usize, new as usize];
        own_call(libc::SYS_mremap, arguments) as *mut c_void
    }
}

/// # Safety
/// Nothing relies on rights to the range that the call takes away.
pub unsafe fn mprotect(address: *mut c_void, bytes: usize, protection: c_int) -> c_int {
    // SAFETY: nothing relies on rights that this takes away.
    unsafe { own_call(libc::SYS_mprotect, [address as usize, bytes, protection as usize, 0, 0]) as c_int }
}

/// # Safety
/// Nothing relies on content of the range that the advice discards.
pub unsafe fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    // SAFETY: nothing relies on content that the advice discards.
    unsafe { own_call(libc::SYS_madvise, [address as usize, bytes, advice as usize, 0, 0]) as c_int }
}

/// Reserves free addresses, which cannot be accessed (PROT_NONE).
pub fn addresses(bytes: usize) -> Option<*mut c_void> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let memory = unsafe { mmap(std::ptr::null_mut(), bytes, PROT_NONE, flags, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory)
}

/// Reserves the addresses from `base` on, as [`addresses`]; `None` if some of them are in use.
pub fn addresses_at(base: usize, bytes: usize) -> Option<*mut c_void> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    // SAFETY: the kernel refuses addresses that are in use.
    let memory = unsafe { mmap(base as *mut c_void, bytes, PROT_NONE, flags, -1, 0) };
    if memory != libc::MAP_FAILED && memory as usize != base {
        // A kernel before 4.17 takes the address as a hint, and may choose another address; that mapping is removed.
        // SAFETY: the mapping was made a moment ago, and nothing uses it.
        unsafe { munmap(memory, bytes) };
        return None;
    }
    (memory != libc::MAP_FAILED).then_some(memory)
}

/// Advice that replaces pages by guards: touching them raises SIGSEGV. Linux 6.13 and newer.
pub const MADV_GUARD_INSTALL: c_int = 102;
pub const MADV_GUARD_REMOVE: c_int = 103;

/// Whether this kernel supports `advice`, tried with an empty range.
pub fn supports(advice: c_int) -> bool {
    // SAFETY: the range is empty.
    unsafe { madvise(std::ptr::null_mut(), 0, advice) == 0 }
}

/// New local memory that contains zeros, and takes up no space until it is touched.
pub fn fresh(bytes: usize) -> Option<*mut c_void> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let memory = unsafe { mmap(std::ptr::null_mut(), bytes, PROT_READ | PROT_WRITE, flags, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory)
}

/// Process that a pidfd stands for; `None` if it is no pidfd, or its process has ended.
pub fn process_of(pidfd: c_int) -> Option<libc::pid_t> {
    let mut path = ArrayString::<48>::new();
    write!(path, "/proc/self/fdinfo/{pidfd}\0").ok()?;
    value_in(&path, "Pid:")
}

/// Number of system call filters of this process; `None` on kernels before 5.9, which do not show it.
pub fn filters() -> Option<u32> {
    value_in("/proc/self/status\0", "Seccomp_filters:")
}

/// Passes a file to `take`, chunk by chunk, until that returns `false` or the file ends. Returns `false` if the file cannot
/// be read.
pub fn read_chunks(path: &CStr, mut take: impl FnMut(&[u8]) -> bool) -> bool {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the kernel reads a NUL-terminated path.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) };
    if fd < 0 {
        return false;
    }
    let mut chunk = [0_u8; 4096];
    let read = loop {
        // SAFETY: the kernel writes into live memory of the length named.
        let length = unsafe { libc::syscall(libc::SYS_read, fd, chunk.as_mut_ptr(), chunk.len()) };
        let Ok(length) = usize::try_from(length) else { break false };
        if length == 0 || !take(&chunk[..length]) {
            break true;
        }
    };
    // SAFETY: the descriptor was opened above, and has no other user.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    read
}

/// Value after `name` on the line of a small file of `/proc` that begins with `name`. `path` ends with a NUL.
fn value_in<T: FromStr>(path: &str, name: &str) -> Option<T> {
    debug_assert!(path.ends_with('\0'));
    let mut text = [0; 4096];
    // SAFETY: the kernel reads a NUL-terminated path, and writes into live memory of the length named.
    let read = unsafe {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0);
        if fd < 0 {
            return None;
        }
        let read = libc::syscall(libc::SYS_read, fd, text.as_mut_ptr(), text.len());
        libc::syscall(libc::SYS_close, fd);
        usize::try_from(read).ok()?
    };
    let text = std::str::from_utf8(&text[..read]).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

/// Executes a program that is not there; returns the number of the error.
pub fn execution_error(path: &CStr) -> c_int {
    let arguments = [path.as_ptr(), std::ptr::null()];
    // SAFETY: the kernel reads a NUL-terminated path, and two arrays that end with a null.
    unsafe {
        libc::syscall(libc::SYS_execve, path.as_ptr(), arguments.as_ptr(), arguments[1..].as_ptr());
    }
    Errno::now()
}

/// Ends the process at once, with this exit code.
pub fn exit(code: c_int) -> ! {
    loop {
        // SAFETY: the call does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}

//! The interposed functions `mmap` and the like, under the C library's names. The module `mapping` implements
//! them.

#![expect(unsafe_code, reason = "mmap and the like are exported by name, and take raw pointers")]

use std::ffi::{c_int, c_uint, c_void};

use crate::mapping;
use crate::process::{MemorySource, source};
use crate::sys::Errno;

macro_rules! interposed {
    ($($(#[$about:meta])* $name:ident = $inner:ident($($argument:ident: $type:ty),*) -> $result:ty),* $(,)?) => {$(
        $(#[$about])*
        ///
        /// # Safety
        /// As for the function of the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the caller fulfils the requirements of the C library's function, which are the same.
            unsafe { mapping::$inner($($argument),*) }
        }
    )*};
}

interposed! {
    /// Makes large private anonymous mappings parts of the window.
    mmap = mmap(
        address: *mut c_void, bytes: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64
    ) -> *mut c_void,
    /// `mmap64`, the name of `mmap(2)` for 64-bit offsets.
    mmap64 = mmap(
        address: *mut c_void, bytes: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64
    ) -> *mut c_void,
    /// Gives back those parts of the range that lie in the window.
    munmap = munmap(address: *mut c_void, bytes: usize) -> c_int,
    /// Moves a part of the window by copying its content.
    mremap = mremap(
        address: *mut c_void, bytes: usize, new_bytes: usize, flags: c_int, new: *mut c_void
    ) -> *mut c_void,
    /// Commits reserved addresses of the window that become accessible.
    mprotect = mprotect(address: *mut c_void, bytes: usize, protection: c_int) -> c_int,
    /// Announces a discard of pages of the window to the agent, and passes hints on.
    madvise = madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int,
    /// Handles each range as `madvise` does, if `process` refers to the calling process.
    process_madvise = process_madvise(
        process: c_int, ranges: *const libc::iovec, count: usize, advice: c_int, flags: c_uint
    ) -> isize,
}

/// Error of `mlock` and the like. Locked pages could not be evicted, so none are locked. After EPERM, programs continue
/// without locked memory; after ENOMEM, they retry with smaller and smaller ranges.
fn cannot_lock() -> c_int {
    Errno::set(libc::EPERM);
    -1
}

/// Fails with EPERM for pages of the window.
///
/// # Safety
/// None: the kernel checks the range. The function is unsafe because the C library's declaration is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(address: *const c_void, bytes: usize) -> c_int {
    // SAFETY: the kernel checks the range.
    unsafe { mlock2(address, bytes, 0) }
}

/// Fails with EPERM for pages of the window.
///
/// # Safety
/// None: the kernel checks the range. The function is unsafe because the C library's declaration is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(address: *const c_void, bytes: usize, flags: c_int) -> c_int {
    match source() {
        MemorySource::Remote(process) if !process.window.part(address as usize, bytes).is_empty() => {
            cannot_lock()
        }
        // SAFETY: the kernel checks the range.
        _ if flags == 0 => unsafe { libc::syscall(libc::SYS_mlock, address, bytes) as c_int },
        // SAFETY: the kernel checks the range.
        _ => unsafe { libc::syscall(libc::SYS_mlock2, address, bytes, flags) as c_int },
    }
}

/// Fails with EPERM in a process with remote memory.
#[unsafe(no_mangle)]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    match source() {
        MemorySource::Remote(_) => cannot_lock(),
        // SAFETY: the call takes only an integer.
        _ => unsafe { libc::syscall(libc::SYS_mlockall, flags) as c_int },
    }
}

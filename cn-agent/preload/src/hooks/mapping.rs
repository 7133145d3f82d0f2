//! The interposed functions `mmap` and the like, by their names; what they do is in the module `mapping`.

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
            // SAFETY: as the caller states.
            unsafe { mapping::$inner($($argument),*) }
        }
    )*};
}

interposed! {
    /// `mmap(2)`.
    mmap = mmap(
        address: *mut c_void, bytes: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64
    ) -> *mut c_void,
    /// `mmap64`, the name of `mmap(2)` for 64-bit offsets.
    mmap64 = mmap(
        address: *mut c_void, bytes: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64
    ) -> *mut c_void,
    /// `munmap(2)`.
    munmap = munmap(address: *mut c_void, bytes: usize) -> c_int,
    /// `mremap(2)`.
    mremap = mremap(
        address: *mut c_void, bytes: usize, new_bytes: usize, flags: c_int, new: *mut c_void
    ) -> *mut c_void,
    /// `mprotect(2)`.
    mprotect = mprotect(address: *mut c_void, bytes: usize, protection: c_int) -> c_int,
    /// `madvise(2)`.
    madvise = madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int,
    /// `process_madvise(2)`.
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

/// Refused in a process with remote memory.
///
/// # Safety
/// None: the kernel checks the range. The function is unsafe because the C library's declaration is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(address: *const c_void, bytes: usize) -> c_int {
    // SAFETY: the kernel checks the range.
    unsafe { mlock2(address, bytes, 0) }
}

/// Refused in a process with remote memory.
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

/// Refused in a process with remote memory.
#[unsafe(no_mangle)]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    match source() {
        MemorySource::Remote(_) => cannot_lock(),
        // SAFETY: plain values.
        _ => unsafe { libc::syscall(libc::SYS_mlockall, flags) as c_int },
    }
}

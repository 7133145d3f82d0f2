//! System calls on paged memory that this library makes itself, marked as its own.
//!
//! A program may change its mappings by the bare system call, past the functions that announce such changes to the
//! agent. The system call filter of `cn-agent exec` stops such a call on remote memory, and the preloaded library
//! carries it out as its own functions do. Calls with the mark pass the filter.

#![expect(unsafe_code, reason = "marked system calls are made in assembly")]

use std::ffi::{c_int, c_long};

/// Mark of this library's own calls: the value of an argument that the kernel ignores. It is the sixth
/// argument or, for `mmap`, which has six, the upper half of the fifth.
pub const OWN_CALL: u32 = 0xC0E5_EAF3;

/// Error numbers that the kernel returns are `-ERRNO_MAX..0`.
const ERRNO_MAX: isize = 4095;

/// Makes a system call of at most five arguments, marked as this library's own. Sets `errno` as the C library does.
///
/// # Safety
/// The requirements of the system call itself.
#[inline]
pub unsafe fn own_call(number: c_long, arguments: [usize; 5]) -> isize {
    let [first, second, third, fourth, fifth] = arguments;
    // SAFETY: the caller fulfils the requirements of the system call.
    unsafe { marked_call(number, [first, second, third, fourth, fifth, OWN_CALL as usize]) }
}

/// Makes the system call `mmap`, marked as this library's own. Sets `errno` as the C library does.
///
/// # Safety
/// With `MAP_FIXED`, nothing uses what is mapped at the `bytes` bytes from `address` on.
#[inline]
pub unsafe fn own_mmap(
    address: usize,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> isize {
    let fd = fd.cast_unsigned() as usize | (OWN_CALL as usize) << 32;
    let arguments = [address, bytes, protection as usize, flags as usize, fd, offset as usize];
    // SAFETY: the caller guarantees that nothing uses memory that this mapping replaces.
    unsafe { marked_call(libc::SYS_mmap, arguments) }
}

/// Makes a system call, and then clears the registers that may hold the mark. Otherwise a later call of the program
/// that leaves these registers unchanged would count as a call of this library.
///
/// # Safety
/// The requirements of the system call itself.
#[inline]
unsafe fn marked_call(number: c_long, arguments: [usize; 6]) -> isize {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let done: isize;
    // SAFETY: the caller fulfils the requirements of the system call; the registers named are those that the kernel
    // reads and changes.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            "xor r8d, r8d",
            "xor r9d, r9d",
            inlateout("rax") number as isize => done,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            inlateout("r8") fifth => _,
            inlateout("r9") sixth => _,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    // SAFETY: the caller fulfils the requirements of the system call; the registers named are those that the kernel
    // reads and changes.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "svc #0",
            "mov x4, xzr",
            "mov x5, xzr",
            in("x8") number,
            inlateout("x0") first as isize => done,
            in("x1") second,
            in("x2") third,
            in("x3") fourth,
            inlateout("x4") fifth => _,
            inlateout("x5") sixth => _,
            options(nostack),
        );
    }
    if (-ERRNO_MAX..0).contains(&done) {
        // SAFETY: errno belongs to this thread.
        unsafe { *libc::__errno_location() = -done as c_int };
        return -1;
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_calls_do_what_the_kernel_documents() {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, which this test alone uses and unmaps.
        unsafe {
            let memory = own_mmap(0, 8192, rights, flags, -1, 0);
            assert_ne!(memory, -1);
            let byte = memory as *mut u8;
            byte.write(7);
            let advice = [memory as usize, 4096, libc::MADV_DONTNEED as usize, 0, 0];
            assert_eq!(own_call(libc::SYS_madvise, advice), 0);
            assert_eq!(byte.read(), 0);
            assert_eq!(own_call(libc::SYS_munmap, [memory as usize + 1, 4096, 0, 0, 0]), -1);
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
            assert_eq!(own_call(libc::SYS_munmap, [memory as usize, 8192, 0, 0, 0]), 0);
        }
        // A file is mapped by its descriptor, although the upper half of that argument has the mark.
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: a new mapping, which this test alone uses and unmaps.
        unsafe {
            let memory = own_mmap(0, 4096, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0);
            assert_eq!(std::slice::from_raw_parts(memory as *const u8, 4), b"\x7FELF");
            assert_eq!(own_call(libc::SYS_munmap, [memory as usize, 4096, 0, 0, 0]), 0);
        }
    }
}

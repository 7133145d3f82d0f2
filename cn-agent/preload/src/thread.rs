//! Threads that are not registered with the C library. The C library changes the user of all its threads,
//! counts them, and ends the process with the last of them; the threads that serve the membership must not be
//! included.
//!
//! ```text
//!   | stack, grows down | below | thread pointer | above |      one block for each thread
//!                               '-- errno lies on either side, as in every thread
//! ```
//!
//! Such a thread may call functions of the C library that only make a system call: these need a place for `errno`,
//! which the thread has, and a thread descriptor of the C library, which contains zeros here.

#![expect(unsafe_code, reason = "threads are made by clone, in assembly")]

use std::arch::asm;
use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Acquire;

use crate::sys;

/// Size of a stack in bytes; most of it is never touched.
const STACK: usize = 1 << 20;
/// Number of bytes on either side of the thread pointer, in addition to those up to `errno`.
const AROUND: usize = 64 << 10;
/// Maximum wait for a thread's end, in checks of a millisecond each: an attempt to reach a successor of the
/// agent may be in progress.
const LOOKS_MAX: u32 = 30_000;
/// Maximum wait until the kernel does not count the thread any more, in checks of a millisecond each.
const COUNT_MAX: u32 = 1000;

/// Maximum size of `/proc/self/stat` in bytes: 52 fields of 20 digits, and a name.
const STAT_MAX: usize = 1280;

/// Main function of such a thread; it does not return.
pub type Entry = extern "C" fn(*mut c_void) -> !;

/// Memory for the stack and thread descriptor of one thread.
#[derive(Clone, Copy, Debug)]
pub struct ThreadRoom {
    top: usize,
    pointer: usize,
}

/// The thread pointer of this thread, the base of its thread-local data.
fn pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register, or the word that holds its own address.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags));
    }
    pointer
}

impl ThreadRoom {
    /// Allocates memory for a thread, which is never freed.
    pub fn new() -> Option<ThreadRoom> {
        let own = pointer();
        // SAFETY: only the address is used.
        let errno = unsafe { libc::__errno_location() } as usize;
        let side = (AROUND + errno.abs_diff(own)).next_multiple_of(4096);
        let base = sys::fresh(STACK + 2 * side)? as usize;
        let room = ThreadRoom { top: base + STACK, pointer: base + STACK + side };
        // SAFETY: the words written belong to a block that no other thread has; those read belong to this thread.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            let (own, new) = (own as *const usize, room.pointer as *mut usize);
            // The block's own address, twice, and then the secret values of this thread with which the C library
            // protects stacks and pointers.
            new.write(room.pointer);
            new.add(2).write(room.pointer);
            new.add(5).write(own.add(5).read());
            new.add(6).write(own.add(6).read());
        }
        Some(room)
    }
}

/// Starts a thread with all signals blocked. `alive` is not 0 while the thread runs. Returns whether it was started.
pub fn spawn(room: ThreadRoom, entry: Entry, argument: *mut c_void, alive: &'static AtomicU32) -> bool {
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    let before = block_signals(u64::MAX);
    // SAFETY: only the new thread uses the stack; `clone` reads the words at its top.
    let started = unsafe {
        let top = (room.top as *mut usize).sub(2);
        top.write(entry as usize);
        top.add(1).write(argument as usize);
        clone(flags, top, alive.as_ptr(), room.pointer)
    };
    block_signals(before);
    started > 0
}

/// Sets the signals that this thread blocks, which may include those of the C library. Returns the former set.
fn block_signals(set: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: the kernel reads and writes live words of the length named.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const set, &raw mut before, 8_usize)
    };
    before
}

/// # Safety
/// `stack` points to a function and its argument; nothing above them is needed.
#[cfg(target_arch = "x86_64")]
unsafe fn clone(flags: c_int, stack: *mut usize, tid: *mut u32, pointer: usize) -> c_long {
    let done: c_long;
    // SAFETY: the new thread runs on its own stack and never returns from here; for the caller this is a system call.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "pop rax",
            "pop rdi",
            "call rax",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone => done,
            in("rdi") flags as usize,
            in("rsi") stack,
            in("rdx") tid,
            in("r10") tid,
            in("r8") pointer,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    done
}

/// # Safety
/// `stack` points to a function and its argument; nothing above them is needed.
#[cfg(target_arch = "aarch64")]
unsafe fn clone(flags: c_int, stack: *mut usize, tid: *mut u32, pointer: usize) -> c_long {
    let done: c_long;
    // SAFETY: the new thread runs on its own stack and never returns from here; for the caller this is a system call.
    unsafe {
        asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "ldp x1, x0, [sp], #16",
            "blr x1",
            "brk #1",
            "2:",
            in("x8") libc::SYS_clone,
            inlateout("x0") flags as usize => done,
            in("x1") stack,
            in("x2") tid,
            in("x3") pointer,
            in("x4") tid,
        );
    }
    done
}

/// Ends this thread, which [`spawn`] started. `code` is the process's exit code if the thread is its last.
pub fn end(code: c_int) -> ! {
    loop {
        // SAFETY: the call does not return.
        unsafe { libc::syscall(libc::SYS_exit, code) };
    }
}

/// Waits for a bounded time until a thread has ended; returns whether it has.
pub fn ended(alive: &AtomicU32) -> bool {
    for _ in 0..LOOKS_MAX {
        if alive.load(Acquire) == 0 {
            return true;
        }
        sys::pause();
    }
    false
}

/// Waits, for a bounded time, until the kernel counts only one thread in this process, which it does soon after the
/// others have ended.
pub fn wait_alone() {
    for _ in 0..COUNT_MAX {
        if count().is_none_or(|count| count <= 1) {
            return;
        }
        sys::pause();
    }
}

/// Number of threads that the kernel counts in this process; `None` if `/proc` is not mounted.
pub fn count() -> Option<u64> {
    // SAFETY: all zeros are a valid value, and the kernel writes to a live one.
    let (found, about) = unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        (libc::stat(c"/proc/self/task".as_ptr(), &raw mut about) == 0, about)
    };
    // The folder /proc/self/task has two links, and one more for each thread.
    // The field has another width on other machines.
    #[allow(clippy::unnecessary_cast)]
    let links = about.st_nlink as u64;
    found.then(|| links.saturating_sub(2))
}

/// Exit code of the process's first thread, if that thread has ended and /proc is mounted: the kernel keeps the code
/// until the last thread has ended.
pub fn leader_ended() -> Option<c_int> {
    let mut about = [0_u8; STAT_MAX];
    // SAFETY: the kernel reads a NUL-terminated path, and writes to a live buffer of this length.
    let read = unsafe {
        let file = libc::open(c"/proc/self/stat".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let read = libc::read(file, about.as_mut_ptr().cast(), STAT_MAX);
        libc::close(file);
        usize::try_from(read).unwrap_or(0)
    };
    ended_with(&about[..read])
}

/// Exit status in `/proc/PID/stat`: the state follows the name, which may contain any character; the status, as `wait`
/// returns it, is the last field.
fn ended_with(stat: &[u8]) -> Option<c_int> {
    let (_, fields) =
        std::str::from_utf8(&stat[stat.iter().rposition(|byte| *byte == b')')?..]).ok()?.split_once(' ')?;
    let mut fields = fields.split_ascii_whitespace();
    let has_ended = fields.next() == Some("Z");
    let status: c_int = fields.next_back()?.parse().ok()?;
    has_ended.then_some(status >> 8 & 0xFF)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI32;
    use std::sync::atomic::Ordering::{Relaxed, Release};

    use super::*;

    static ALIVE: AtomicU32 = AtomicU32::new(0);
    static SEEN: AtomicI32 = AtomicI32::new(0);

    extern "C" fn run(argument: *mut c_void) -> ! {
        // SAFETY: the calls made here fail, and set this thread's errno.
        let errno = unsafe {
            libc::close(-1);
            *libc::__errno_location()
        };
        SEEN.store(errno + argument as i32, Release);
        end(0)
    }

    #[test]
    fn a_thread_of_ours_has_an_errno_of_its_own_and_ends() {
        let room = ThreadRoom::new().unwrap();
        for round in 0..20 {
            crate::sys::Errno::set(77);
            assert!(spawn(room, run, (1000 * round) as *mut c_void, &ALIVE));
            assert!(ended(&ALIVE), "it ends");
            assert_eq!(SEEN.load(Relaxed), libc::EBADF + 1000 * round);
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(77));
        }
    }

    #[test]
    fn the_first_threads_end_is_read_whatever_the_name() {
        let stat = |name: &str, state: char, status: i32| {
            format!("12 ({name}) {state} 1 12 0 -1 4194560 0 {status}\n")
        };
        assert_eq!(ended_with(stat("sh", 'Z', 7 << 8).as_bytes()), Some(7));
        assert_eq!(ended_with(stat("a) Z 1 (b", 'S', 0).as_bytes()), None);
        assert_eq!(ended_with(stat("a) S 1 (b", 'Z', 0).as_bytes()), Some(0));
        for cut in ["", "12 (sh", "12 (sh)", "12 (sh) Z", "12 (sh) Z x"] {
            assert_eq!(ended_with(cut.as_bytes()), None, "{cut}");
        }
        assert_eq!(leader_ended(), None, "it runs");
    }
}

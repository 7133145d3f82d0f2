//! Threads that the C library does not know: it tells all its threads to change user, counts them, and takes part in
//! their ends, and none of that is for those that serve this process's membership.
//!
//! ```text
//!   | stack, grows down | below | thread pointer | above |      one block for each thread
//!                               '-- errno lies on either side, as in every thread
//! ```
//!
//! Such a thread may call what does nothing but a system call: that needs a place for `errno`, which it has, and a
//! thread of the C library's, of which it has zeros.

use std::arch::asm;
use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Acquire;

use crate::sys;

/// Bytes of a stack, most of them never touched.
const STACK: usize = 1 << 20;
/// Bytes on either side of the thread pointer, besides those on the way to `errno`.
const AROUND: usize = 64 << 10;
/// How long a thread's end is waited for, in looks of a millisecond: an attempt to reach a successor of the agent may
/// be under way.
const LOOKS_MAX: u32 = 30_000;
/// How long the kernel may take to count it no more.
const COUNT_MAX: u32 = 1000;

/// Bytes of `/proc/self/stat`, at most: 52 fields of 20 digits, and a name.
const STAT_MAX: usize = 1280;

/// What such a thread runs; it does not return.
pub type Entry = extern "C" fn(*mut c_void) -> !;

/// Room for one thread.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    top: usize,
    pointer: usize,
}

/// The thread pointer of this thread, by which it finds what is its own.
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

impl Room {
    /// Room for a thread, for ever.
    pub fn new() -> Option<Room> {
        let own = pointer();
        // SAFETY: only the address is used.
        let errno = unsafe { libc::__errno_location() } as usize;
        let side = (AROUND + errno.abs_diff(own)).next_multiple_of(4096);
        let base = sys::fresh(STACK + 2 * side)? as usize;
        let room = Room { top: base + STACK, pointer: base + STACK + side };
        // SAFETY: words of a block that nobody else has; those read are this thread's own.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            let (own, new) = (own as *const usize, room.pointer as *mut usize);
            // Its own address, twice; then the guards of stacks and of pointers.
            new.write(room.pointer);
            new.add(2).write(room.pointer);
            new.add(5).write(own.add(5).read());
            new.add(6).write(own.add(6).read());
        }
        Some(room)
    }
}

/// Starts a thread with all signals blocked. `alive` is not 0 until it has ended. Whether it was started.
pub fn spawn(room: Room, entry: Entry, argument: *mut c_void, alive: &'static AtomicU32) -> bool {
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
    // SAFETY: the stack is the new thread's alone; the words at its top are what `clone` takes from there.
    let started = unsafe {
        let top = (room.top as *mut usize).sub(2);
        top.write(entry as usize);
        top.add(1).write(argument as usize);
        clone(flags, top, alive.as_ptr(), room.pointer)
    };
    block_signals(before);
    started > 0
}

/// Sets which signals this thread blocks, those of the C library's own included. Which it blocked before.
fn block_signals(set: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: the kernel reads and writes live words of the length named.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const set, &raw mut before, 8_usize)
    };
    before
}

/// # Safety
/// At `stack` lie a function and its argument; above them nothing is needed.
#[cfg(target_arch = "x86_64")]
unsafe fn clone(flags: c_int, stack: *mut usize, tid: *mut u32, pointer: usize) -> c_long {
    let done: c_long;
    // SAFETY: the new thread runs on its own stack and never comes out of this; for the other one it is a system call.
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
/// At `stack` lie a function and its argument; above them nothing is needed.
#[cfg(target_arch = "aarch64")]
unsafe fn clone(flags: c_int, stack: *mut usize, tid: *mut u32, pointer: usize) -> c_long {
    let done: c_long;
    // SAFETY: as above.
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

/// Ends this thread, one that was started here. The code counts if it is the process's last.
pub fn end(code: c_int) -> ! {
    loop {
        // SAFETY: does not return.
        unsafe { libc::syscall(libc::SYS_exit, code) };
    }
}

/// Waits until a thread has ended; whether it has.
pub fn ended(alive: &AtomicU32) -> bool {
    for _ in 0..LOOKS_MAX {
        if alive.load(Acquire) == 0 {
            return true;
        }
        sys::pause();
    }
    false
}

/// Waits until the kernel counts one thread in this process, as it soon does when others have ended; not for ever.
pub fn wait_alone() {
    for _ in 0..COUNT_MAX {
        if count().is_none_or(|count| count <= 1) {
            return;
        }
        sys::pause();
    }
}

/// How many threads the kernel counts in this process, if /proc is there.
pub fn count() -> Option<u64> {
    // SAFETY: all zeros are a value of it, and the kernel writes a live one.
    let (found, about) = unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        (libc::stat(c"/proc/self/task".as_ptr(), &raw mut about) == 0, about)
    };
    // Two links, and one for each.
    // Of another width on other machines.
    #[allow(clippy::unnecessary_cast)]
    let links = about.st_nlink as u64;
    found.then(|| links.saturating_sub(2))
}

/// The code that the process's first thread ended with, if it has ended and /proc is there: the kernel keeps it until the last
/// one has.
pub fn leader_ended() -> Option<c_int> {
    let mut about = [0_u8; STAT_MAX];
    // SAFETY: the kernel reads a path that ends, and writes a live buffer of the length named.
    let read = unsafe {
        let file = libc::open(c"/proc/self/stat".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let read = libc::read(file, about.as_mut_ptr().cast(), STAT_MAX);
        libc::close(file);
        usize::try_from(read).unwrap_or(0)
    };
    ended_with(&about[..read])
}

/// What `/proc/PID/stat` says: the state stands behind the name, which may hold any character, and the status, as `wait`
/// gives it, at the end.
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
        // SAFETY: what is done here fails, and says so in this thread's errno.
        let errno = unsafe {
            libc::close(-1);
            *libc::__errno_location()
        };
        SEEN.store(errno + argument as i32, Release);
        end(0)
    }

    #[test]
    fn a_thread_of_ours_has_an_errno_of_its_own_and_ends() {
        let room = Room::new().unwrap();
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

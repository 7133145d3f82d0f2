//! Memory that can be served only in the process that mapped it: in a forked child its pages would read as zeros, so
//! the kernel leaves it out of children (`MADV_DONTFORK`). A child that touches such memory ends by SIGSEGV; the
//! handler here prints the reason before that.
//!
//! ```text
//!   fork(3) --> child: SIGSEGV is handled here first --touches it--> a line on standard error, the former action, SIGSEGV
//!                                                    --any other---> the former action
//! ```

#![expect(unsafe_code, reason = "a signal handler reads the kernel's siginfo")]

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::bounded_write::{STDERR, write_bounded};

/// Maximum number of mappings registered at a time; a child that touches a further one ends without a
/// message.
const MAPPINGS_MAX: usize = 64;
const LINE: &str = "cxloe: this process ends here of SIGSEGV: it was forked, and has touched a mapped region that only its parent \
                    has; have the child map the region itself, or use it in the parent only\n";

/// First byte and end of each mapping; zeros for a free entry.
static MAPPINGS: [[AtomicUsize; 2]; MAPPINGS_MAX] =
    [const { [AtomicUsize::new(0), AtomicUsize::new(0)] }; MAPPINGS_MAX];
/// Whether the fork handler is installed.
static PREPARED: OnceLock<bool> = OnceLock::new();
/// Disposition of SIGSEGV in the child before the handler was installed.
static FORMER: OnceLock<libc::sigaction> = OnceLock::new();

/// Registration of memory that children do not have; ends when dropped.
#[derive(Debug)]
pub struct ParentMemory(Option<usize>);

impl ParentMemory {
    /// Registers `memory`: a child that touches it prints the reason and ends.
    pub fn new(memory: Range<usize>) -> ParentMemory {
        PREPARED.get_or_init(|| {
            // SAFETY: a function of this library that uses async-signal-safe calls only.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) == 0 }
        });
        let free =
            |place: &[AtomicUsize; 2]| place[0].compare_exchange(0, memory.start, Acquire, Relaxed).is_ok();
        let at = MAPPINGS.iter().position(free);
        at.into_iter().for_each(|at| MAPPINGS[at][1].store(memory.end, Release));
        ParentMemory(at)
    }
}

impl Drop for ParentMemory {
    fn drop(&mut self) {
        if let Some([start, end]) = self.0.map(|at| &MAPPINGS[at]) {
            end.store(0, Release);
            start.store(0, Release);
        }
    }
}

extern "C" fn in_child() {
    if MAPPINGS.iter().all(|[_, end]| end.load(Acquire) == 0) {
        return;
    }
    // SAFETY: the pointers are to values of this function; the handler uses async-signal-safe calls only.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        // The child of a child has the handler already.
        if FORMER.get().is_some() || libc::sigaction(libc::SIGSEGV, null_mut(), &mut now) != 0 {
            return;
        }
        FORMER.get_or_init(|| now);
        now.sa_sigaction = on_fault as *const () as usize;
        now.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut now.sa_mask);
        libc::sigaction(libc::SIGSEGV, &now, null_mut());
    }
}

/// Prints the reason if the address lies in registered memory, and restores the former disposition for the repeated
/// access.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo.
    let (sent, address) = unsafe { ((*info).si_code <= 0, (*info).si_addr() as usize) };
    let holds = |[start, end]: &[AtomicUsize; 2]| (start.load(Acquire)..end.load(Acquire)).contains(&address);
    if !sent && MAPPINGS.iter().any(holds) {
        write_bounded(STDERR, LINE);
    }
    if let Some(former) = FORMER.get() {
        // SAFETY: the action was in force before the handler was installed.
        unsafe { libc::sigaction(signal, former, null_mut()) };
    }
    if sent {
        // SAFETY: plain values. The signal is blocked until this handler returns.
        unsafe { libc::raise(signal) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::*;

    /// Message of a child that reads the byte at `address`, and the signal that ends the child.
    fn touched(address: usize) -> (String, c_int) {
        let (mut reader, writer) = std::io::pipe().unwrap();
        // SAFETY: the child makes system calls and one access, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the child makes system calls and one access, and ends.
            unsafe {
                libc::dup2(writer.as_raw_fd(), STDERR);
                libc::alarm(20);
                std::hint::black_box((address as *const u8).read_volatile());
                libc::_exit(0);
            }
        }
        drop(writer);
        let (mut said, mut status) = (String::new(), 0);
        reader.read_to_string(&mut said).unwrap();
        // SAFETY: waits for a child of this process; the status is a live word.
        unsafe { libc::waitpid(child, &mut status, 0) };
        (said, if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 })
    }

    #[test]
    fn a_child_says_why_it_ends() {
        let bytes = 1 << 16;
        // SAFETY: a new mapping, which children do not inherit.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_eq!(libc::madvise(start, bytes, libc::MADV_DONTFORK), 0);
            start as usize
        };
        let memory = ParentMemory::new(start..start + bytes);
        let end = |(said, signal): (String, c_int)| (said.contains(LINE), signal != 0);
        assert_eq!(end(touched(start + 4096)), (true, true));
        assert_eq!(end(touched(start + bytes - 1)), (true, true));
        assert_eq!(end(touched(8)), (false, true), "another fault is none of ours");
        assert_eq!(end(touched(&raw const bytes as usize)), (false, false));
        drop(memory);
        assert_eq!(end(touched(start)), (false, true), "it is explained no more");
    }
}

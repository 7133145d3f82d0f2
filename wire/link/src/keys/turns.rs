//! Short time slices for a thread that computes beside a worker, so that the worker waits for one slice at
//! most.

#![expect(unsafe_code, reason = "sched_setattr takes a raw pointer")]

use std::mem;

/// Shortest time slice of Linux (`sched(7)`), in nanoseconds.
const TURN_NS: u64 = 100_000;

/// Requests time slices of 0.1 ms for the calling thread, instead of the usual 3 ms or so. Returns whether the kernel
/// accepted the call; only Linux 6.12 and later apply the request.
pub(super) fn take_short_turns() -> bool {
    // SAFETY: sched_attr is a structure of numbers, for which all zeros is valid: the ordinary policy, no nice value,
    // no flags.
    let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
    attributes.size = mem::size_of::<libc::sched_attr>() as u32;
    attributes.sched_policy = libc::SCHED_OTHER as u32;
    attributes.sched_runtime = TURN_NS;
    // SAFETY: the kernel reads `size` bytes of the structure. Thread 0 is the calling thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_take_short_turns() {
        let taken = std::thread::spawn(|| {
            assert!(take_short_turns());
            // SAFETY: sched_attr is a structure of numbers, for which all zeros is valid; the kernel writes at most
            // `size` bytes.
            let mut now: libc::sched_attr = unsafe { mem::zeroed() };
            let size = mem::size_of::<libc::sched_attr>() as u32;
            // SAFETY: the kernel writes at most `size` bytes of the structure.
            let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0) };
            (got, now.sched_policy, now.sched_nice)
        });
        assert_eq!(taken.join().unwrap(), (0, libc::SCHED_OTHER as u32, 0));
    }
}

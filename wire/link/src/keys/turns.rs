//! Short turns on a CPU for a thread that computes beside a worker: what the worker would do at once waits for a turn at
//! most.

use std::mem;

/// The shortest turn that Linux gives (`sched(7)`), nanoseconds.
const TURN_NS: u64 = 100_000;

/// Gives the calling thread, and it alone, turns of a tenth of a millisecond in place of some three, from Linux 6.12 on.
/// Says whether the kernel took it; before 6.12 it takes it and does nothing.
pub(super) fn take_short_turns() -> bool {
    // SAFETY: a structure of numbers, for which 0 is a value: the ordinary policy, no nice value, no flags.
    let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
    attributes.size = mem::size_of::<libc::sched_attr>() as u32;
    attributes.sched_policy = libc::SCHED_OTHER as u32;
    attributes.sched_runtime = TURN_NS;
    // SAFETY: the kernel reads `size` bytes of the structure. Thread 0 is the calling one.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_take_short_turns() {
        let taken = std::thread::spawn(|| {
            assert!(take_short_turns());
            // SAFETY: as above; the kernel writes `size` bytes at most.
            let mut now: libc::sched_attr = unsafe { mem::zeroed() };
            let size = mem::size_of::<libc::sched_attr>() as u32;
            // SAFETY: as above.
            let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0) };
            (got, now.sched_policy, now.sched_nice)
        });
        assert_eq!(taken.join().unwrap(), (0, libc::SCHED_OTHER as u32, 0));
    }
}

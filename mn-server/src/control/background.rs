//! Work that must not slow anyone: the calling thread gives way to every other one on the machine that wants its CPU.

/// The lowest priority there is for ordinary threads. Beside busy threads on every CPU it still leaves more than a
/// hundredth of one, so that zeroing ends.
const NICE_MOST: libc::c_int = 19;

/// Gives the calling thread, and it alone, the lowest priority, for good: ordinary users may not raise it again.
pub(super) fn step_behind() {
    // SAFETY: takes numbers only. On Linux, process 0 means the calling thread and not its process. It cannot fail
    // in a way that matters: a thread may always lower its own priority.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE_MOST) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nice() -> libc::c_int {
        // SAFETY: takes numbers only.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    #[test]
    fn only_the_thread_that_asks_steps_behind() {
        let before = nice();
        let behind = std::thread::spawn(|| {
            step_behind();
            nice()
        });
        assert_eq!((behind.join().unwrap(), nice()), (NICE_MOST, before));
    }
}

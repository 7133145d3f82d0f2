//! Background priority: all other threads of the machine take precedence over the calling thread.

#![expect(unsafe_code, reason = "setpriority is a function of the C library")]

/// Lowest priority of ordinary threads. Even if another thread is busy on every CPU, the thread gets more than a
/// hundredth of a CPU, so that zeroing ends at some time.
const NICE_MOST: libc::c_int = 19;

/// Sets the lowest priority for the calling thread alone, permanently: ordinary users may not raise it again.
pub(super) fn set_lowest_priority() {
    // SAFETY: the call takes numbers only. On Linux, process 0 means the calling thread, not its process. A failure
    // does not matter, as a thread may always lower its own priority.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE_MOST) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nice() -> libc::c_int {
        // SAFETY: the call takes numbers only.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    #[test]
    fn only_the_calling_thread_gets_low_priority() {
        let before = nice();
        let behind = std::thread::spawn(|| {
            set_lowest_priority();
            nice()
        });
        assert_eq!((behind.join().unwrap(), nice()), (NICE_MOST, before));
    }
}

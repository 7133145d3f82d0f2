//! Signals that wait while a thread has the lock of a port: a handler of the program that touches an absent page would
//! wait for the lock that its own thread has.

#![expect(unsafe_code, reason = "masks of signals are calls of the C library")]

/// Blocks every signal in the calling thread, for good.
pub fn block_all() {
    // SAFETY: the set is filled before it is used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

/// Signals that an instruction raises, and for which a thread that blocks them is ended.
const RAISED: [libc::c_int; 6] =
    [libc::SIGBUS, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Signals that wait until this is dropped: all that come from elsewhere, and not from an instruction of this thread.
pub struct HeldSignals {
    /// Set that the thread blocked before.
    before: libc::sigset_t,
}

impl HeldSignals {
    pub fn hold() -> HeldSignals {
        // SAFETY: the sets are plain values; one is filled before it is used, the other is written by the call.
        unsafe {
            let (mut held, mut before): (libc::sigset_t, libc::sigset_t) =
                (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut held);
            for signal in RAISED {
                libc::sigdelset(&mut held, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &held, &mut before);
            HeldSignals { before }
        }
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // SAFETY: the set is the one that this thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

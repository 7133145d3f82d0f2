//! Sleeping by io_uring. Each descriptor is submitted once and stays submitted until it is ready. The cost of a sleep
//! depends on the number of descriptors that became ready, not on the number watched. A descriptor that becomes ready
//! while the thread works is queued once, without an interruption, and returned by the next sleep.
//!
//! A submission keeps its file open. Therefore, before a descriptor is closed, [`forget`](Ring::forget) must be called,
//! or the socket must be shut down.

#![expect(unsafe_code, reason = "io_uring may access the memory that submissions refer to")]

use std::io;
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};

use super::WatchedDescriptor;

/// Number of descriptors submitted by one call; further ones need further calls.
const ENTRIES: u32 = 256;
/// Longest wait for a cancellation, which is immediate in practice.
const CANCEL_MAX: Duration = Duration::from_secs(1);

/// IORING_ENTER_GETEVENTS, from `linux/io_uring.h`.
const GETEVENTS: u32 = 1;

/// The kernel's rings. Only the thread that made them may use them, which the kernel checks.
pub(super) struct Ring {
    ring: IoUring,
    /// Indices of descriptors that are not submitted; the next sleep submits them.
    idle: Vec<u32>,
    /// Number of cancellations so far. Each submission carries it, so that late completions of cancelled submissions
    /// are ignored.
    generation: u32,
}

impl Ring {
    /// Creates a ring for the calling thread and `places` descriptors, with room for `most`. No descriptor is
    /// submitted yet.
    ///
    /// # Errors
    /// The kernel's error: the kernel is older than 6.1, or io_uring is forbidden.
    pub fn new(places: usize, most: usize) -> io::Result<Ring> {
        // Completions are delivered when this thread asks for them, and never interrupt it.
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES)?;
        if !ring.params().is_feature_ext_arg() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut idle = Vec::with_capacity(most);
        idle.extend(0..places as u32);
        Ok(Ring { ring, idle, generation: 0 })
    }

    /// Sleeps until one of `places` is ready, for at most `most`; records the events. Spurious returns are allowed.
    ///
    /// # Errors
    /// The kernel's error; then no descriptor is submitted any more.
    pub fn sleep(&mut self, places: &mut [WatchedDescriptor], most: Duration) -> io::Result<()> {
        let Ring { ring, idle, generation } = self;
        for at in idle.drain(..) {
            let Some(place) = places.get_mut(at as usize) else { continue };
            place.has = 0;
            if place.fd < 0 {
                continue;
            }
            let user = u64::from(*generation) << 32 | u64::from(at);
            let ask = opcode::PollAdd::new(Fd(place.fd), libc::POLLIN as u32).build().user_data(user);
            // SAFETY: a poll refers to no memory; a closed descriptor gives an error.
            while unsafe { ring.submission().push(&ask) }.is_err() {
                ring.submit()?;
            }
        }
        let limit = Timespec::from(most);
        let slept = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit));
        for done in ring.completion() {
            let (of, at) = ((done.user_data() >> 32) as u32, done.user_data() as u32);
            if let Some(place) = places.get_mut(at as usize).filter(|_| of == *generation) {
                // An error counts as ready: the user of the descriptor then gets the error.
                place.has = if done.result() < 0 { libc::POLLERR } else { done.result() as i16 };
                idle.push(at);
            }
        }
        match slept {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // Time-outs, signals and a full queue of completions end a sleep, but are not errors.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Cancels all submissions, and sets the number of descriptors to `places`.
    pub fn forget(&mut self, places: usize) {
        self.release();
        self.generation = self.generation.wrapping_add(1);
        self.idle.clear();
        self.idle.extend(0..places as u32);
    }

    fn release(&mut self) {
        let all = CancelBuilder::any();
        // Fails if no descriptor was submitted, and then there is nothing to cancel.
        let _ = self.ring.submitter().register_sync_cancel(Some(CANCEL_MAX.into()), all);
        // The kernel releases the files of cancelled submissions only when it delivers their completions: on request,
        // some at a time.
        loop {
            // SAFETY: the call submits nothing and refers to no memory.
            let asked = unsafe { self.ring.submitter().enter::<()>(0, 0, GETEVENTS, None) };
            if self.ring.completion().count() == 0 || asked.is_err() {
                break;
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Otherwise the kernel would release the files some time later, and a queue of the interface that is reopened
        // at once would still be busy.
        self.release();
    }
}

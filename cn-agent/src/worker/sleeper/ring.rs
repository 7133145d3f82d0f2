//! Waiting by io_uring. Each descriptor is asked for once and stays asked for until it has something: going to sleep costs
//! what became ready since, not what is watched, and a descriptor that gets ready while the thread works is
//! noted once, without an interruption, and heard of at the next sleep.
//!
//! What is asked for keeps its file open, so who closes one has to [forget](Ring::forget) first, or shut it down.

use std::io;
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};

use super::Place;

/// Descriptors that are asked for by one call; more take several.
const ENTRIES: u32 = 256;
/// How long letting go may take, which takes no time.
const CANCEL_MAX: Duration = Duration::from_secs(1);

/// IORING_ENTER_GETEVENTS, from `linux/io_uring.h`.
const GETEVENTS: u32 = 1;

/// The kernel's rings. Used by the thread that made it alone, which the kernel checks.
pub(super) struct Ring {
    ring: IoUring,
    /// Places that are not asked for.
    idle: Vec<u32>,
    /// Counts how often all was forgotten: what was asked before is not heard any more.
    generation: u32,
}

impl Ring {
    /// For the calling thread, with `places` places of which none is asked for.
    ///
    /// # Errors
    /// What the kernel says: it is older than 6.1, or somebody forbids it.
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

    /// Sleeps until one of `places` has something, or `most` is over; notes what they have. Spurious returns are allowed.
    ///
    /// # Errors
    /// What the kernel says; then nothing is asked for any more.
    pub fn sleep(&mut self, places: &mut [Place], most: Duration) -> io::Result<()> {
        let Ring { ring, idle, generation } = self;
        for at in idle.drain(..) {
            let Some(place) = places.get_mut(at as usize) else { continue };
            place.has = 0;
            if place.fd < 0 {
                continue;
            }
            let user = u64::from(*generation) << 32 | u64::from(at);
            let ask = opcode::PollAdd::new(Fd(place.fd), libc::POLLIN as u32).build().user_data(user);
            // SAFETY: asking whether a descriptor is ready names no memory; a number that is closed is an error.
            while unsafe { ring.submission().push(&ask) }.is_err() {
                ring.submit()?;
            }
        }
        let limit = Timespec::from(most);
        let slept = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit));
        for done in ring.completion() {
            let (of, at) = ((done.user_data() >> 32) as u32, done.user_data() as u32);
            if let Some(place) = places.get_mut(at as usize).filter(|_| of == *generation) {
                // An error is something, too: whoever uses the descriptor finds out what.
                place.has = if done.result() < 0 { libc::POLLERR } else { done.result() as i16 };
                idle.push(at);
            }
        }
        match slept {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Lets go of all descriptors, now; there are `places` from now on.
    pub fn forget(&mut self, places: usize) {
        self.let_go();
        self.generation = self.generation.wrapping_add(1);
        self.idle.clear();
        self.idle.extend(0..places as u32);
    }

    fn let_go(&mut self) {
        let all = CancelBuilder::any();
        // Nothing was asked for: then there is nothing to let go of.
        let _ = self.ring.submitter().register_sync_cancel(Some(CANCEL_MAX.into()), all);
        // Files are let go of when the completions are delivered: when they are asked for, some at a time.
        loop {
            // SAFETY: this submits nothing, and no memory is named.
            let asked = unsafe { self.ring.submitter().enter::<()>(0, 0, GETEVENTS, None) };
            if self.ring.completion().count() == 0 || asked.is_err() {
                break;
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel would do it as well, but later: whoever opens a queue of an interface next would find it busy.
        self.let_go();
    }
}

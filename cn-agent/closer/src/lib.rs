//! # cxloe-closer: closes what clients have passed, on threads of its own
//!
//! A client may pass any descriptor to a daemon, and closing that descriptor may block for as long as the
//! client likes: a TCP socket with unsent data and `SO_LINGER`, or a file of a file system that the client
//! serves. Closing a socket to a client also closes the descriptors that are still in the socket's queue.
//! Closing a userfaultfd waits for the address space of its process. So a thread that serves other clients
//! closes none of these descriptors; it passes them to [`dispose`].

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

/// Maximum number of closing threads. While fewer descriptors than this are slow to close, no other
/// descriptor waits for them.
const THREADS_MAX: usize = 16;
/// Time after which a closing thread without work ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

struct Closer {
    queue: Sender<Box<dyn Any + Send>>,
    work: Receiver<Box<dyn Any + Send>>,
    threads: AtomicUsize,
    /// Number of threads that wait for work. No thread is started while the queue is no longer than this
    /// number.
    idle: AtomicUsize,
}

static CLOSER: LazyLock<Closer> = LazyLock::new(Closer::new);

impl Closer {
    fn new() -> Closer {
        let (queue, work) = unbounded();
        Closer { queue, work, threads: AtomicUsize::new(0), idle: AtomicUsize::new(0) }
    }

    fn take(&'static self, value: Box<dyn Any + Send>) {
        // Sending cannot fail: `self` has a receiver.
        let _ = self.queue.send(value);
        self.staff();
    }

    /// Starts a thread if more values wait than threads.
    fn staff(&'static self) {
        if self.queue.len() <= self.idle.load(Ordering::SeqCst) {
            return;
        }
        let more = self.threads.fetch_update(Ordering::AcqRel, Ordering::Acquire, |threads| {
            (threads < THREADS_MAX).then_some(threads + 1)
        });
        if more.is_ok() && thread::Builder::new().name("closer".into()).spawn(move || run(self)).is_err() {
            tracing::warn!("no thread can be started to close descriptors of clients");
            self.threads.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Records that a thread waits no longer. A value that came before this call may have counted on the thread, which
    /// has taken another value, or ends; a value that comes later does not.
    fn end_idleness(&'static self) {
        self.idle.fetch_sub(1, Ordering::SeqCst);
        self.staff();
    }
}

/// Drops a value that owns descriptors, on another thread. Queued values keep their descriptors open; the
/// process's limit of open files bounds how many that can be.
pub fn dispose(value: impl Send + 'static) {
    CLOSER.take(Box::new(value));
}

fn run(closer: &'static Closer) {
    loop {
        closer.idle.fetch_add(1, Ordering::SeqCst);
        let next = closer.work.recv_timeout(IDLE_MAX);
        closer.end_idleness();
        match next {
            Ok(value) => drop(value),
            Err(_) if closer.work.is_empty() => break,
            Err(_) => {}
        }
    }
    closer.threads.fetch_sub(1, Ordering::AcqRel);
}

/// Owner of a value received from a client. Dropping the owner passes the value to [`dispose`], so that
/// closing the value's descriptors cannot block the dropping thread.
#[derive(Debug)]
pub struct ClosedElsewhere<T: Send + 'static>(ManuallyDrop<T>);

impl<T: Send + 'static> ClosedElsewhere<T> {
    pub fn new(value: T) -> ClosedElsewhere<T> {
        ClosedElsewhere(ManuallyDrop::new(value))
    }

    /// Returns the value, which the caller then closes on its own thread.
    #[expect(unsafe_code, reason = "a type with a drop cannot give up its value otherwise")]
    pub fn into_inner(self) -> T {
        let mut kept = ManuallyDrop::new(self);
        // SAFETY: the value is taken once: the wrapper is not dropped, and not used any more.
        unsafe { ManuallyDrop::take(&mut kept.0) }
    }
}

impl<T: Send + 'static> Deref for ClosedElsewhere<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Send + 'static> DerefMut for ClosedElsewhere<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Send + 'static> Drop for ClosedElsewhere<T> {
    #[expect(unsafe_code, reason = "a drop has its value by reference only")]
    fn drop(&mut self) {
        // SAFETY: the value is taken once: nothing uses the wrapper after this.
        dispose(unsafe { ManuallyDrop::take(&mut self.0) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Value whose drop waits for a signal, if there is a receiver for one, and then sends the id of its
    /// thread.
    struct Ends(mpsc::Sender<thread::ThreadId>, Option<mpsc::Receiver<()>>);

    impl Drop for Ends {
        fn drop(&mut self) {
            if let Some(wait) = &self.1 {
                let _ = wait.recv();
            }
            let _ = self.0.send(thread::current().id());
        }
    }

    #[test]
    fn a_value_that_ends_slowly_delays_nobody() {
        let (ended, ends) = mpsc::channel();
        let (go, wait) = mpsc::channel();
        drop(ClosedElsewhere::new(Ends(ended.clone(), Some(wait))));
        let kept = ClosedElsewhere::new(Ends(ended.clone(), None)).into_inner();
        dispose(Ends(ended.clone(), None));
        assert_ne!(ends.recv().unwrap(), thread::current().id(), "the second ends first, elsewhere");
        assert!(ends.try_recv().is_err());
        go.send(()).unwrap();
        assert_ne!(ends.recv().unwrap(), thread::current().id());
        drop(kept);
        assert_eq!(ends.recv().unwrap(), thread::current().id());
    }

    /// A value comes while the only idle thread has just taken another one, or has waited long enough.
    #[test]
    fn a_value_that_counts_on_a_thread_that_waits_no_longer_is_closed() {
        let closer: &'static Closer = Box::leak(Box::new(Closer::new()));
        let (ended, ends) = mpsc::channel();
        closer.idle.store(1, Ordering::SeqCst);
        closer.take(Box::new(Ends(ended, None)));
        assert_eq!(closer.threads.load(Ordering::SeqCst), 0, "a thread is idle");
        closer.end_idleness();
        assert_ne!(ends.recv_timeout(Duration::from_secs(20)).unwrap(), thread::current().id());
    }
}

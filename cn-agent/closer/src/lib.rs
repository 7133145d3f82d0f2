//! # cxloe-closer: closes what clients have passed, on threads of its own
//!
//! A client may pass any descriptor, and closing one may take as long as the client likes: a TCP socket with unsent
//! data and `SO_LINGER`, a file of a file system that the client serves. A socket to a client has such descriptors in
//! its queue, which close with it. The end of a userfaultfd waits for its process's address space. So a thread that
//! serves others closes none of these; it passes them here.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

/// Limit of threads: that many slow descriptors delay no other one.
const THREADS_MAX: usize = 16;
/// Time after which a thread without work ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

struct Closer {
    queue: Sender<Box<dyn Any + Send>>,
    work: Receiver<Box<dyn Any + Send>>,
    threads: AtomicUsize,
    /// Threads that wait for work.
    idle: AtomicUsize,
}

static CLOSER: LazyLock<Closer> = LazyLock::new(|| {
    let (queue, work) = unbounded();
    Closer { queue, work, threads: AtomicUsize::new(0), idle: AtomicUsize::new(0) }
});

/// Drops a value that owns descriptors, on another thread. Descriptors that wait here count towards the process's limit
/// of open files, which bounds their number.
pub fn dispose(value: impl Send + 'static) {
    let closer = &*CLOSER;
    // The receiver is there as long as the process.
    let _ = closer.queue.send(Box::new(value));
    if closer.queue.len() <= closer.idle.load(Ordering::Acquire) {
        return;
    }
    let more = closer.threads.fetch_update(Ordering::AcqRel, Ordering::Acquire, |threads| {
        (threads < THREADS_MAX).then_some(threads + 1)
    });
    if more.is_ok() && thread::Builder::new().name("closer".into()).spawn(|| run(closer)).is_err() {
        tracing::warn!("no thread can be started to close descriptors of clients");
        closer.threads.fetch_sub(1, Ordering::AcqRel);
    }
}

fn run(closer: &Closer) {
    loop {
        closer.idle.fetch_add(1, Ordering::AcqRel);
        let next = closer.work.recv_timeout(IDLE_MAX);
        closer.idle.fetch_sub(1, Ordering::AcqRel);
        match next {
            Ok(value) => drop(value),
            Err(_) => break,
        }
    }
    closer.threads.fetch_sub(1, Ordering::AcqRel);
}

/// A value of a client that is closed elsewhere when it is dropped.
#[derive(Debug)]
pub struct ClosedElsewhere<T: Send + 'static>(ManuallyDrop<T>);

impl<T: Send + 'static> ClosedElsewhere<T> {
    /// Wraps a value.
    pub fn new(value: T) -> ClosedElsewhere<T> {
        ClosedElsewhere(ManuallyDrop::new(value))
    }

    /// The value, for whose end the caller answers now.
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
    fn drop(&mut self) {
        // SAFETY: the value is taken once: nothing uses the wrapper after this.
        dispose(unsafe { ManuallyDrop::take(&mut self.0) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Says when and where it ends.
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
}

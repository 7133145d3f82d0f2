//! End of a daemon, by a signal or by the end of a worker. Both become messages to the main thread, which then shuts
//! the daemon down in order; no signal handler runs.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

enum ShutdownCause {
    Signal(Signal),
    Worker,
}

/// Receives the events that end a daemon: a signal, or the end of a worker.
pub struct Shutdown {
    sender: Sender<ShutdownCause>,
    receiver: Receiver<ShutdownCause>,
}

impl Shutdown {
    /// Turns SIGTERM and SIGINT into messages. Both signals are blocked for the calling thread and the threads it
    /// starts; so this function must be called before any other thread is started.
    ///
    /// # Errors
    /// When signals cannot be blocked, or no thread can be started to wait for them.
    pub fn watch() -> io::Result<Shutdown> {
        let (sender, receiver) = channel();
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.add(Signal::SIGINT);
        set.thread_block()?;
        let signals = sender.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            while let Ok(signal) = set.wait() {
                if signals.send(ShutdownCause::Signal(signal)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Shutdown { sender, receiver })
    }

    /// Returns the function that a worker calls when it ends.
    pub fn worker(&self) -> impl FnOnce() + Send + 'static {
        let sender = self.sender.clone();
        // Sending fails if the daemon is ending already.
        move || drop(sender.send(ShutdownCause::Worker))
    }

    /// Waits until the daemon has to end.
    pub fn wait(&self) {
        if let Ok(end) = self.receiver.recv() {
            note(&end);
        }
    }

    /// Waits for at most `time`. Returns true if the daemon has to end.
    pub fn wait_for(&self, time: Duration) -> bool {
        match self.receiver.recv_timeout(time) {
            Ok(end) => {
                note(&end);
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        }
    }
}

fn note(end: &ShutdownCause) {
    if let ShutdownCause::Signal(signal) = end {
        tracing::info!(signal = *signal as i32, "ending");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_ends_ends_the_daemon() {
        let ending = Shutdown::watch().unwrap();
        let ended = ending.worker();
        std::thread::spawn(ended).join().unwrap();
        assert!(ending.wait_for(Duration::from_secs(60)));
        assert!(!ending.wait_for(Duration::from_millis(1)), "only once");
        assert!(ending.receiver.try_recv().is_err(), "told once");
    }

    #[test]
    fn signals_are_blocked_for_threads_started_later() {
        // The test runs on a thread of its own, so that threads of other tests keep their signals.
        let later = std::thread::spawn(|| {
            let _ending = Shutdown::watch().unwrap();
            std::thread::spawn(|| SigSet::thread_get_mask().unwrap()).join().unwrap()
        });
        let mask = later.join().unwrap();
        assert!(mask.contains(Signal::SIGTERM) && mask.contains(Signal::SIGINT));
    }
}

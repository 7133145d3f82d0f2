//! How a daemon learns that it is to end: an operator's signal, or a worker that has ended. Both become messages to the
//! main thread, which then takes the daemon apart in order; no signal handler runs.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// What ends a daemon.
enum End {
    Signal(Signal),
    Worker,
}

/// Where a daemon's end is announced.
pub struct Ending {
    tell: Sender<End>,
    told: Receiver<End>,
}

impl Ending {
    /// Turns SIGTERM and SIGINT into messages. They are blocked for the calling thread and those it starts; so this has
    /// to be called before any other thread is started.
    ///
    /// # Errors
    /// When signals cannot be blocked, or there is no thread to wait for them.
    pub fn watch() -> io::Result<Ending> {
        let (tell, told) = channel();
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.add(Signal::SIGINT);
        set.thread_block()?;
        let signals = tell.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            while let Ok(signal) = set.wait() {
                if signals.send(End::Signal(signal)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Ending { tell, told })
    }

    /// What a worker calls when it ends.
    pub fn worker(&self) -> impl FnOnce() + Send + 'static {
        let tell = self.tell.clone();
        // If nobody waits any more, the daemon is ending already.
        move || drop(tell.send(End::Worker))
    }

    /// Waits for the end.
    pub fn wait(&self) {
        if let Ok(end) = self.told.recv() {
            note(&end);
        }
    }

    /// Waits for the end, at most for `time`. Returns whether it has come.
    pub fn wait_for(&self, time: Duration) -> bool {
        match self.told.recv_timeout(time) {
            Ok(end) => {
                note(&end);
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        }
    }
}

fn note(end: &End) {
    if let End::Signal(signal) = end {
        tracing::info!(signal = *signal as i32, "ending");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_ends_ends_the_daemon() {
        let ending = Ending::watch().unwrap();
        let ended = ending.worker();
        std::thread::spawn(ended).join().unwrap();
        assert!(ending.wait_for(Duration::from_secs(60)));
        assert!(!ending.wait_for(Duration::from_millis(1)), "only once");
        assert!(ending.told.try_recv().is_err(), "told once");
    }

    #[test]
    fn signals_are_blocked_for_threads_started_later() {
        // On a thread of its own, so that other tests keep theirs.
        let later = std::thread::spawn(|| {
            let _ending = Ending::watch().unwrap();
            std::thread::spawn(|| SigSet::thread_get_mask().unwrap()).join().unwrap()
        });
        let mask = later.join().unwrap();
        assert!(mask.contains(Signal::SIGTERM) && mask.contains(Signal::SIGINT));
    }
}

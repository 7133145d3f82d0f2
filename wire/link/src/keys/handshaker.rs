//! Thread that computes the handshakes of one worker.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, channel, sync_channel};
use std::thread;

use cxloe_wire::session::{HandshakeDone, HandshakeJob};

use super::turns;

/// Maximum number of waiting jobs, above the number that a state machine requests at a time.
const JOBS_MAX: usize = 512;

/// Computes handshakes for one worker, in the order of the requests. `T` identifies a request. Dropping the
/// value ends the thread.
#[derive(Debug)]
pub struct Handshaker<T> {
    jobs: SyncSender<(T, HandshakeJob)>,
    done: Receiver<(T, HandshakeDone)>,
    under_way: usize,
}

impl<T: Send + 'static> Handshaker<T> {
    /// Starts the thread. Call it before the worker's thread is pinned to a CPU, because a new thread inherits the
    /// pinning.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start() -> io::Result<Self> {
        let (jobs, inbox) = sync_channel::<(T, HandshakeJob)>(JOBS_MAX);
        let (tell, done) = channel();
        thread::Builder::new().name("handshakes".into()).spawn(move || {
            if !turns::take_short_turns() {
                tracing::debug!("handshakes are computed in turns of the usual length");
            }
            while let Ok((whose, job)) = inbox.recv() {
                if tell.send((whose, job.run())).is_err() {
                    return;
                }
            }
        })?;
        Ok(Handshaker { jobs, done, under_way: 0 })
    }

    /// Queues a job. If the queue is full, the job is dropped, like a lost frame: the CN sends its Hello
    /// again.
    pub fn compute(&mut self, whose: T, job: HandshakeJob) {
        self.under_way += usize::from(self.jobs.try_send((whose, job)).is_ok());
    }

    /// Whether some jobs have not been returned yet.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.under_way > 0
    }

    /// Removes and returns the next finished computation, if any, without waiting.
    #[inline]
    pub fn finished(&mut self) -> Option<(T, HandshakeDone)> {
        if self.under_way == 0 {
            return None;
        }
        match self.done.try_recv() {
            Ok(done) => {
                self.under_way -= 1;
                Some(done)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.under_way = 0;
                None
            }
        }
    }
}

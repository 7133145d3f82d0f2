//! A thread that computes handshakes beside one worker.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, channel, sync_channel};
use std::thread;

use cxloe_wire::session::{HandshakeDone, HandshakeJob};

use super::turns;

/// Jobs that wait at most; a state machine has fewer under way.
const JOBS_MAX: usize = 512;

/// Computes handshakes for one worker, in the order in which they were asked for. `T` says whose each is. Its thread ends
/// when this is dropped.
#[derive(Debug)]
pub struct Handshaker<T> {
    jobs: SyncSender<(T, HandshakeJob)>,
    done: Receiver<(T, HandshakeDone)>,
    under_way: usize,
}

impl<T: Send + 'static> Handshaker<T> {
    /// Starts the thread. To be called before the worker's own thread is pinned, so that this one is not.
    ///
    /// # Errors
    /// No thread.
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

    /// Has a job computed. One for which there is no room is lost, as a frame may be: its Hello comes again.
    pub fn compute(&mut self, whose: T, job: HandshakeJob) {
        self.under_way += usize::from(self.jobs.try_send((whose, job)).is_ok());
    }

    /// Whether something has yet to be taken.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.under_way > 0
    }

    /// What has been computed, if something has. Does not wait.
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

//! Load on a region: a thread that continuously writes lines and reads them back, and stops at the first operation that
//! fails or returns other data than written.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use cxloe_client::client::{Client, ClientError};

use cxloe_system::star::{Outcome, eventually, line};

/// Number of lines written and read in one round.
const LINES: u64 = 256;

/// Reason for which a load has stopped before its end.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error(transparent)]
    Failed(ClientError),
    /// The line at this HPA differs from the last write to it.
    #[error("the line at {0:#x} is not what was written last")]
    Wrong(u64),
}

/// A load thread. Dropping this value without [`end`](Self::end) also ends the thread.
pub struct Load {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<(), Trouble>>>,
}

impl Load {
    /// Starts a load on `bytes` bytes from `hpa` on, through a port of the agent at `socket`.
    pub fn start(socket: PathBuf, hpa: u64, bytes: u64) -> Load {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = thread::spawn(move || work(&socket, hpa, bytes, &told, &counted));
        Load { stop, rounds, thread: Some(thread) }
    }

    /// Waits until the load has completed some more rounds, or has stopped.
    pub fn goes_on(&self) -> Outcome {
        let wanted = self.rounds.load(Ordering::Relaxed) + 20;
        let stopped = || self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        eventually("the load goes on", || {
            (stopped() || self.rounds.load(Ordering::Relaxed) >= wanted).then_some(())
        })
    }

    /// Ends the load; returns the number of its rounds, or the reason for which it had stopped.
    pub fn end(mut self) -> Result<u64, Trouble> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("ended once");
        thread.join().expect("no panic").map(|()| self.rounds.load(Ordering::Relaxed))
    }

    /// Waits until the load has stopped because of an error or wrong data.
    pub fn trouble(mut self) -> Outcome<Trouble> {
        let thread = self.thread.take().ok_or("ended once")?;
        eventually("the load stops", || thread.is_finished().then_some(()))?;
        thread.join().expect("no panic").err().ok_or_else(|| "it was told to stop".into())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn work(socket: &Path, hpa: u64, bytes: u64, stop: &AtomicBool, rounds: &AtomicU64) -> Result<(), Trouble> {
    let mut port = Client::connect(socket).map_err(Trouble::Failed)?;
    let mut read = vec![[0; 64]; LINES as usize];
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // Lines are accessed in strides, so that the cache has to evict lines and every memory node is used.
        let start = round * LINES * 64 * 7 % bytes;
        let hpas: Vec<u64> = (0..LINES).map(|i| hpa + (start + i * 64 * 3) % bytes).collect();
        let lines: Vec<_> = hpas.iter().map(|hpa| (*hpa, line(*hpa, round))).collect();
        port.write_batch(&lines).map_err(Trouble::Failed)?;
        port.read_batch(&hpas, &mut read).map_err(Trouble::Failed)?;
        if let Some(((hpa, _), _)) = lines.iter().zip(&read).find(|((_, wrote), read)| wrote != *read) {
            return Err(Trouble::Wrong(*hpa));
        }
        if round % 8 == 0 {
            port.flush().map_err(Trouble::Failed)?;
        }
        rounds.store(round + 1, Ordering::Relaxed);
    }
    Ok(())
}

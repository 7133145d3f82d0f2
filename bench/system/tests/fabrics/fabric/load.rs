//! A program at work on a region: a thread that writes and reads back without a pause, and stops at the first operation
//! that fails or brings something else than was written.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use cxloe_client::client::{Client, ClientError};

use cxloe_system::star::{Outcome, eventually, line};

/// Lines in one round.
const LINES: u64 = 256;

/// Why it stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// An operation failed.
    #[error(transparent)]
    Failed(ClientError),
    /// A line is not what was written last.
    #[error("the line at {0:#x} is not what was written last")]
    Wrong(u64),
}

/// The thread. Dropped without [`end`](Self::end), it ends too.
pub struct Load {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<(), Trouble>>>,
}

impl Load {
    /// Starts on `bytes` from `hpa` on, by a port of the agent at `socket`.
    pub fn start(socket: PathBuf, hpa: u64, bytes: u64) -> Load {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = thread::spawn(move || work(&socket, hpa, bytes, &told, &counted));
        Load { stop, rounds, thread: Some(thread) }
    }

    /// Waits until it has done some more rounds than now, or has stopped.
    pub fn goes_on(&self) -> Outcome {
        let wanted = self.rounds.load(Ordering::Relaxed) + 20;
        let stopped = || self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        eventually("the load goes on", || {
            (stopped() || self.rounds.load(Ordering::Relaxed) >= wanted).then_some(())
        })
    }

    /// Ends it; what it stopped of, if it did.
    pub fn end(mut self) -> Result<u64, Trouble> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("ended once");
        thread.join().expect("no panic").map(|()| self.rounds.load(Ordering::Relaxed))
    }

    /// Waits until it has stopped by itself.
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
        // Strides, so that the cache has to evict and every memory node has its share.
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

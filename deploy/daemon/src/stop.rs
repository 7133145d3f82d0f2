//! Stop signal for a thread and its runtime: a flag for code that polls, and a wake-up for tasks that wait.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Signal that is set once and never cleared. One task may wait for it; any number of threads may check it.
#[derive(Debug, Default)]
pub struct Stop {
    flag: AtomicBool,
    wake: Notify,
}

/// Error of a wait that ended because the signal was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped")]
pub struct Stopped;

impl Stop {
    pub fn set(&self) {
        self.flag.store(true, Ordering::Relaxed);
        self.wake.notify_one();
    }

    pub fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// Waits for `future` and returns its output.
    ///
    /// # Errors
    /// [`Stopped`] as soon as the signal is set; `future` is dropped then.
    pub async fn or<T>(&self, future: impl Future<Output = T>) -> Result<T, Stopped> {
        // The wake-up reaches only one wait, so a later wait has to check the flag.
        if self.flag.load(Ordering::Relaxed) {
            return Err(Stopped);
        }
        tokio::select! {
            () = self.wake.notified() => Err(Stopped),
            done = future => Ok(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn a_stop_ends_waiting_now_and_later() {
        let stop = Arc::new(Stop::default());
        assert_eq!(stop.or(async { 7 }).await, Ok(7));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || told.set());
        assert_eq!(stop.or(std::future::pending::<()>()).await, Err(Stopped));
        thread.join().unwrap();
        assert_eq!(stop.or(async { 7 }).await, Err(Stopped), "it stays set");
        assert!(stop.flag().load(Ordering::Relaxed));
    }
}

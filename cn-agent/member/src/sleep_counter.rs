//! A thread whose sleeps are counted: tests wait until it sleeps, instead of for a time.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for a thread to sleep.
const LIMIT: Duration = Duration::from_secs(10);

pub struct SleepCounter {
    status: PathBuf,
    before: u64,
}

fn sleeps(status: &Path) -> u64 {
    let status = fs::read_to_string(status).unwrap_or_default();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

impl SleepCounter {
    /// This thread, with the sleeps from now on.
    pub fn this_thread() -> SleepCounter {
        let status = Path::new("/proc").join(fs::read_link("/proc/thread-self").unwrap()).join("status");
        SleepCounter { before: sleeps(&status), status }
    }

    /// Waits until the thread has begun to sleep this many times.
    pub fn wait_for(&self, times: u64) {
        let until = Instant::now() + LIMIT;
        while sleeps(&self.status).saturating_sub(self.before) < times {
            assert!(Instant::now() < until, "the thread does not sleep");
            std::thread::yield_now();
        }
    }
}

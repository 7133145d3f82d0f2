//! Execution of a job beside the workers: extents are zeroed only after each worker has reached a batch boundary.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_mn_core::job::{Job, JobError};
use cxloe_mn_core::translation::PageTable;

/// Maximum pause between two checks of the workers.
const PAUSE_MAX: Duration = Duration::from_millis(2);
/// Time without a batch boundary after which the log reports a worker.
const STUCK_AFTER: Duration = Duration::from_secs(2);

/// Waits for the workers and carries out `job`; `done` counts the bytes that are ready. Blocks; `stop` ends the job
/// about a mebibyte later. `before_zeroing` is called before the extents that no command waits for are zeroed.
pub fn carry_out(
    job: &Job,
    table: &PageTable,
    stop: &AtomicBool,
    done: &AtomicU64,
    before_zeroing: impl FnOnce(),
) -> Result<(), JobError> {
    wait_for_workers(job, table, stop)?;
    let go_on = |bytes| {
        done.fetch_add(bytes, Ordering::Relaxed);
        !stop.load(Ordering::Relaxed)
    };
    job.carry_out(table, go_on, before_zeroing)
}

fn wait_for_workers(job: &Job, table: &PageTable, stop: &AtomicBool) -> Result<(), JobError> {
    let started = Instant::now();
    let (mut pause, mut reported) = (Duration::from_micros(20), false);
    while !job.is_due(table) {
        if stop.load(Ordering::Relaxed) {
            return Err(JobError::Stopped);
        }
        if !reported && started.elapsed() > STUCK_AFTER {
            tracing::warn!(
                generation = job.generation(),
                passed = table.generation().passed(),
                "a worker has not come to a batch boundary yet; its extents are not given away before it has"
            );
            reported = true;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
    Ok(())
}

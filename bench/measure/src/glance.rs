//! Latency between the cores, measured between batches of a few milliseconds. Virtual CPUs migrate within a
//! second, so a figure for a whole trial would mix several placements.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{MeasureError, MeasuredRegion};
use crate::machine::{self, MachineError};
use crate::report::Samples;

/// Number of operations between two measurements of the latency between cores; each operation takes some tens of
/// microseconds.
pub(super) const BATCH: u64 = 250;

/// Short measurement of the latency between two cores, during which the processes that spin on these cores
/// are paused.
#[derive(Clone, Debug, Default)]
pub(super) struct Glance {
    /// CPUs of this thread and of the memory node's worker; `None` if one is unknown or on another machine.
    pub cores: Option<(usize, usize)>,
    pub pause: Vec<Pid>,
}

impl Glance {
    /// Returns the duration of a cache-line round trip in nanoseconds; takes a fraction of a millisecond.
    pub fn take(&self) -> Option<f64> {
        self.by(machine::bounce_glance_ns)
    }

    /// Returns what `time` measures between the two cores, in nanoseconds, while the processes are paused.
    pub fn by(&self, time: impl FnOnce(usize, usize) -> Result<f64, MachineError>) -> Option<f64> {
        let (ours, theirs) = self.cores?;
        let signal = |signal| {
            self.pause.iter().for_each(|pid| {
                // A process that has ended does not disturb the measurement.
                let _ = kill(*pid, signal);
            })
        };
        // A process that spins on one of the cores would disturb the measurement.
        signal(Signal::SIGSTOP);
        let bounce = time(ours, theirs).ok();
        signal(Signal::SIGCONT);
        bounce
    }
}

impl MeasuredRegion {
    /// Returns a measurement that pauses the memory node; use it only while no operation is in flight there.
    pub(super) fn glance(&self) -> Glance {
        Glance { cores: self.cores, pause: self.memory_node.into_iter().collect() }
    }
}

/// Calls `batch` with a number of operations until `count` operations are done. Each batch is a trial of its
/// own; a batch during which the latency between cores changed is discarded.
pub(super) fn in_batches(
    glance: &Glance,
    count: u64,
    samples: &mut Samples,
    mut batch: impl FnMut(u64, &mut Samples) -> Result<(), MeasureError>,
) -> Result<(), MeasureError> {
    let (mut left, mut before) = (count, glance.take());
    while left > 0 {
        let some = left.min(BATCH);
        batch(some, samples)?;
        let after = glance.take();
        samples.end_steady_trial(before, after);
        (before, left) = (after, left - some);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_done_and_each_batch_is_a_trial() {
        let mut samples = Samples::new("x");
        in_batches(&Glance::default(), 2 * BATCH + 7, &mut samples, |count, samples| {
            (0..count).for_each(|_| samples.record_ns(5));
            Ok(())
        })
        .unwrap();
        let trials: Vec<u64> = samples.summary().unwrap().trials.iter().map(|trial| trial.count).collect();
        assert_eq!(trials, [BATCH, BATCH, 7]);
        let failed = in_batches(&Glance::default(), 1, &mut samples, |_, _| {
            Err(MeasureError::NotAttached("x".into()))
        });
        assert!(failed.is_err());
    }
}

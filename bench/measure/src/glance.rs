//! Latency between the cores, measured between batches of a few milliseconds: virtual CPUs migrate within a second, so
//! a figure for a whole trial would mix several placements.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{MeasureError, MeasuredRegion};
use crate::machine::{self, MachineError};
use crate::report::Samples;

/// Operations between two measurements of the latency between cores, at some tens of microseconds per operation.
pub(super) const BATCH: u64 = 250;

/// Short measurement of the latency between cores; processes that spin on them are paused during the measurement.
#[derive(Clone, Debug, Default)]
pub(super) struct Glance {
    /// Cores of both ends, if both are known and on this machine.
    pub cores: Option<(usize, usize)>,
    /// Processes paused during the measurement.
    pub pause: Vec<Pid>,
}

impl Glance {
    /// Cache-line round trip in nanoseconds; takes a fraction of a millisecond.
    pub fn take(&self) -> Option<f64> {
        self.by(machine::bounce_glance_ns)
    }

    /// Cache-line round trip in nanoseconds as `time` measures it between the two cores.
    pub fn by(&self, time: impl FnOnce(usize, usize) -> Result<f64, MachineError>) -> Option<f64> {
        let (ours, theirs) = self.cores?;
        let signal = |signal| {
            self.pause.iter().for_each(|pid| {
                let _ = kill(*pid, signal);
            })
        };
        signal(Signal::SIGSTOP);
        let bounce = time(ours, theirs).ok();
        signal(Signal::SIGCONT);
        bounce
    }
}

impl MeasuredRegion {
    /// Measurement of the latency between cores, for moments without an operation in flight at the memory node.
    pub(super) fn glance(&self) -> Glance {
        Glance { cores: self.cores, pause: self.memory_node.into_iter().collect() }
    }
}

/// Calls `batch` with a number of operations until `count` operations are done. Each batch is a trial of its own; a
/// batch in which the latency between cores changed is discarded.
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

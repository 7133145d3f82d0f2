//! How far apart the cores are, looked at between batches of a few milliseconds: cores of a virtual machine change places
//! within a second, so a figure for a whole trial would be of no one state of the machine.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{MeasureError, Target};
use crate::machine::{self, MachineError};
use crate::report::Samples;

/// Operations between two looks, where each takes some tens of microseconds.
pub(super) const BATCH: u64 = 250;

/// Looks at the cores, and pauses whoever spins on them meanwhile.
#[derive(Clone, Debug, Default)]
pub(super) struct Glance {
    /// The cores of both ends, if they are known and on this machine.
    pub cores: Option<(usize, usize)>,
    /// Processes that are paused for it.
    pub pause: Vec<Pid>,
}

impl Glance {
    /// A cache line there and back, in nanoseconds, in a fraction of a millisecond.
    pub fn take(&self) -> Option<f64> {
        self.by(machine::bounce_glance_ns)
    }

    /// The same, timed by `time`.
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

impl Target {
    /// Looks while nothing is under way at the memory node.
    pub(super) fn glance(&self) -> Glance {
        Glance { cores: self.cores, pause: self.memory_node.into_iter().collect() }
    }
}

/// Has `batch` make so many operations at a time until `count` are made. Each batch is a trial of its own; one during which
/// the cores moved is thrown away.
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

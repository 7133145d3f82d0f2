//! Sweeps: every point of a figure is run with every seed, on all cores of the machine. The results come in
//! the order of the points, whichever run ends first.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cxloe_cc::BitsPerSecond;
use serde::Serialize;

use super::{Model, Plan, Run};

/// Seeds with which each point is run.
pub(super) const SEEDS: std::ops::RangeInclusive<u64> = 1..=8;
/// Simulated length of each run, long enough to average several milliseconds of the final rate.
const LENGTH: Duration = Duration::from_millis(12);
/// Simulated time after which the rate has converged; the final rate is averaged from this time to the end of the run.
/// From 10 Gbit/s, 32 increments and the controller's first stable interval take 1.5 ms.
const SETTLED: Duration = Duration::from_millis(3);

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub mean: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Computes mean, minimum and maximum of `numbers`; `None` without numbers.
    pub fn of(numbers: &[f64]) -> Option<Spread> {
        (!numbers.is_empty()).then(|| Spread {
            mean: numbers.iter().sum::<f64>() / numbers.len() as f64,
            min: numbers.iter().copied().fold(f64::INFINITY, f64::min),
            max: numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }

    /// Formats the numbers with two decimals, as in `41.25 (40.93 - 41.60)`.
    pub(super) fn text(&self) -> String {
        format!("{:.2} ({:.2} - {:.2})", self.mean, self.min, self.max)
    }
}

/// Runs every combination of threshold and initial rate with every seed; returns the runs of each combination, in the
/// order of the seeds.
pub(super) fn sweep(model: &Model, points: &[(u32, BitsPerSecond)]) -> Vec<Vec<Run>> {
    let plans: Vec<Plan> = points
        .iter()
        .flat_map(|&(threshold, initial)| {
            SEEDS.map(move |seed| Plan { threshold, initial, length: LENGTH, settled: SETTLED, seed })
        })
        .collect();
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(plans.len()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                while let Some((index, plan)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    plans.get(index).map(|plan| (index, plan))
                } {
                    let run = Run::new(model, plan);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((index, run));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    // The threads finish their runs in any order.
    done.sort_by_key(|(index, _)| *index);
    let mut runs = done.into_iter().map(|(_, run)| run);
    points.iter().map(|_| runs.by_ref().take(SEEDS.count()).collect()).collect()
}

pub(super) fn gbit(bits_per_s: f64) -> f64 {
    bits_per_s / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_mean_and_ends() {
        assert_eq!(Spread::of(&[]), None);
        let spread = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.min, spread.mean, spread.max), (1.0, 2.0, 3.0));
        assert_eq!(spread.text(), "2.00 (1.00 - 3.00)");
    }
}

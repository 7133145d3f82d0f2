//! Measured times and their summary.
//!
//! Recording a time takes a few nanoseconds, outside of the timed interval: it only changes the histogram of
//! the current trial. [`Samples::end_trial`] keeps the trial's quantiles together with the latency between
//! cores, and adds the trial to the histogram of the whole measurement.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::ratio::moved;

/// Maximum recorded value, in units of the histogram (100 s if the unit is a nanosecond); longer times count
/// as this value.
const LARGEST: u64 = 100_000_000_000;
/// Number of significant decimal digits kept of each value.
const DIGITS: u8 = 3;
/// Quotient of the bounds of a bin in [`Latency::distribution`].
pub(super) const BIN: f64 = 1.02;

/// Times of one measurement over several trials, as histograms.
#[derive(Debug, Clone)]
pub struct Samples {
    name: String,
    /// Histogram units in a nanosecond: 1, or 1000 for times near the clock's resolution.
    per_ns: u64,
    whole: Histogram<u64>,
    trial: Histogram<u64>,
    trials: Vec<LatencyTrial>,
}

/// Summary of the times of one measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Name of the measurement, for example `read64`.
    pub name: String,
    /// Unit of all times, always `ns`.
    pub unit: String,
    pub count: u64,
    pub min: f64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    pub max: f64,
    /// Number and quantiles of the samples in each trial, in nanoseconds like all times here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<LatencyTrial>,
    /// Histogram for pictures: mean time and number of samples of each non-empty bin. Bins are 2 % wide.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distribution: Vec<(f64, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatencyTrial {
    /// Duration in nanoseconds of a cache-line round trip between the cores; see
    /// [`crate::machine::bounce_ns`].
    pub bounce_ns: Option<f64>,
    pub count: u64,
    /// Median of the trial in nanoseconds.
    pub p50: f64,
    /// 99th percentile of the trial in nanoseconds.
    pub p99: f64,
}

impl Samples {
    /// Makes empty samples for times in whole nanoseconds, up to 100 s.
    pub fn new(name: &str) -> Self {
        Self::with_resolution(name, 1)
    }

    /// Makes empty samples for short times that are measured in batches: stored in picoseconds, up to 100 ms.
    pub fn fine(name: &str) -> Self {
        Self::with_resolution(name, 1000)
    }

    fn with_resolution(name: &str, per_ns: u64) -> Self {
        let empty = Histogram::new_with_bounds(1, LARGEST, DIGITS).expect("the bounds are in order");
        Self { name: name.into(), per_ns, whole: empty.clone(), trial: empty, trials: Vec::new() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Puts `prefix` before the name, to tell two measurements of one kind apart.
    #[must_use]
    pub fn with_prefix(self, prefix: &str) -> Self {
        Self { name: format!("{prefix}{}", self.name), ..self }
    }

    #[inline]
    pub fn record_ns(&mut self, time_ns: u64) {
        self.trial.saturating_record(time_ns.saturating_mul(self.per_ns));
    }

    /// Records a batch of `operations` that together took `total_ns`, as one sample of their mean. The caller
    /// must have subtracted the cost of reading the clock. An empty batch records nothing.
    #[inline]
    pub fn record_batch(&mut self, total_ns: f64, operations: u64) {
        if operations > 0 {
            let each = total_ns * self.per_ns as f64 / operations as f64;
            self.trial.saturating_record(each.round() as u64);
        }
    }

    /// Adds all samples of `other`, which has the same resolution, as one trial.
    pub fn add_trial(&mut self, other: &Samples, bounce_ns: Option<f64>) {
        debug_assert_eq!(self.per_ns, other.per_ns);
        self.trial.add(other.all()).expect("both histograms have the same bounds");
        self.end_trial(bounce_ns);
    }

    /// Ends a trial and records its quantiles with this latency between cores. A trial without samples is not
    /// recorded.
    pub fn end_trial(&mut self, bounce_ns: Option<f64>) {
        self.trials.extend(self.as_trial(&self.trial, bounce_ns));
        self.whole.add(&self.trial).expect("both histograms have the same bounds");
        self.trial.reset();
    }

    /// Ends a trial with the cache-line round trips before and after it. If the class of the cores (near or far)
    /// changed during the trial, the samples are discarded, because they mix both classes.
    pub(crate) fn end_steady_trial(&mut self, before_ns: Option<f64>, after_ns: Option<f64>) {
        match (before_ns, after_ns) {
            // The samples of the near and the far class are mixed, and cannot be separated afterwards.
            (Some(before), Some(after)) if moved(before, after) => self.trial.reset(),
            (Some(before), Some(after)) => self.end_trial(Some((before + after) / 2.0)),
            _ => self.end_trial(None),
        }
    }

    /// Returns the summary of all samples, or `None` without samples. Samples after the last ended trial
    /// count as a trial with unknown latency between cores.
    pub fn summary(&self) -> Option<Latency> {
        let mut trials = self.trials.clone();
        trials.extend(self.as_trial(&self.trial, None));
        let all = self.all();
        let quantile = |q| self.in_ns(all.value_at_quantile(q) as f64);
        (!all.is_empty()).then(|| Latency {
            name: self.name.clone(),
            unit: "ns".into(),
            count: all.len(),
            min: self.in_ns(all.min() as f64),
            mean: self.in_ns(all.mean()),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: self.in_ns(all.max() as f64),
            trials,
            distribution: self.distribution(&all),
        })
    }

    /// Returns the recorded times in whole nanoseconds, each with the number of its samples. Times that differ by less
    /// than the histogram keeps are one entry: the one in the middle of them.
    pub fn recorded_ns(&self) -> Vec<(u64, u64)> {
        let all = self.histogram_ns();
        let entries = all.iter_recorded();
        entries
            .map(|value| {
                (all.median_equivalent(value.value_iterated_to()), value.count_since_last_iteration())
            })
            .collect()
    }

    /// Returns the histogram of all samples in whole nanoseconds, also if they are stored in picoseconds.
    pub(super) fn histogram_ns(&self) -> Histogram<u64> {
        let all = self.all();
        if self.per_ns == 1 {
            return all;
        }
        let mut coarse = Histogram::new_from(&all);
        for value in all.iter_recorded() {
            let time = self.in_ns(value.value_iterated_to() as f64).round() as u64;
            coarse.saturating_record_n(time, value.count_since_last_iteration());
        }
        coarse
    }

    fn all(&self) -> Histogram<u64> {
        let mut all = self.whole.clone();
        all.add(&self.trial).expect("both histograms have the same bounds");
        all
    }

    fn as_trial(&self, histogram: &Histogram<u64>, bounce_ns: Option<f64>) -> Option<LatencyTrial> {
        let quantile = |q| self.in_ns(histogram.value_at_quantile(q) as f64);
        (!histogram.is_empty()).then(|| LatencyTrial {
            bounce_ns,
            count: histogram.len(),
            p50: quantile(0.5),
            p99: quantile(0.99),
        })
    }

    fn distribution(&self, all: &Histogram<u64>) -> Vec<(f64, u64)> {
        let mut bins: Vec<(i32, f64, u64)> = Vec::new();
        for value in all.iter_recorded() {
            let middle = all.median_equivalent(value.value_iterated_to());
            let (time, count) = (self.in_ns(middle as f64), value.count_since_last_iteration());
            match (bins.last_mut(), bin_of(time)) {
                (Some(last), bin) if last.0 == bin => {
                    last.1 += time * count as f64;
                    last.2 += count;
                }
                (_, bin) => bins.push((bin, time * count as f64, count)),
            }
        }
        bins.into_iter().map(|(_, sum, count)| (round(sum / count as f64), count)).collect()
    }

    fn in_ns(&self, value: f64) -> f64 {
        round(value / self.per_ns as f64)
    }
}

/// Returns the index of the bin for a time in nanoseconds; all times under a picosecond are in one bin.
pub(super) fn bin_of(time_ns: f64) -> i32 {
    (time_ns.max(1e-3).ln() / BIN.ln()).floor() as i32
}

/// Rounds to a picosecond; further digits are rounding errors.
fn round(time_ns: f64) -> f64 {
    (time_ns * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_known_times() {
        let mut samples = Samples::new("known");
        (1..=1000).for_each(|time| samples.record_ns(time));
        samples.end_trial(Some(125.0));
        let summary = samples.summary().unwrap();
        assert_eq!((summary.count, summary.min, summary.max), (1000, 1.0, 1000.0));
        assert_eq!((summary.p50, summary.p90, summary.p99, summary.p999), (500.0, 900.0, 990.0, 999.0));
        assert!((summary.mean - 500.5).abs() < 0.01, "{}", summary.mean);
        let recorded = samples.recorded_ns();
        assert_eq!((recorded.len(), recorded[0], recorded[999]), (1000, (1, 1), (1000, 1)));
        assert_eq!(summary.distribution.iter().map(|bin| bin.1).sum::<u64>(), 1000);
        assert!(summary.distribution.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(
            summary.trials,
            [LatencyTrial { bounce_ns: Some(125.0), count: 1000, p50: 500.0, p99: 990.0 }]
        );
    }

    #[test]
    fn trials_are_apart_and_the_whole_is_together() {
        let mut samples = Samples::new("two");
        for (time, bounce) in [(100, 125.0), (300, 460.0)] {
            (0..10).for_each(|_| samples.record_ns(time));
            samples.end_trial(Some(bounce));
            samples.end_trial(None); // nothing in it
        }
        samples.record_ns(900);
        let summary = samples.summary().unwrap();
        let medians: Vec<_> = summary.trials.iter().map(|t| (t.bounce_ns, t.count, t.p50)).collect();
        assert_eq!(medians, [(Some(125.0), 10, 100.0), (Some(460.0), 10, 300.0), (None, 1, 900.0)]);
        assert_eq!((summary.count, summary.min, summary.max), (21, 100.0, 900.0));
    }

    #[test]
    fn a_trial_in_which_the_cores_moved_is_thrown_away() {
        let mut samples = Samples::new("unsteady");
        for (before, after, time) in
            [(125.0, 460.0, 1), (460.0, 500.0, 2), (550.0, 130.0, 3), (60.0, 150.0, 4)]
        {
            samples.record_ns(time);
            samples.end_steady_trial(Some(before), Some(after));
        }
        samples.record_ns(5);
        samples.end_steady_trial(None, Some(130.0));
        let trials: Vec<_> = samples.summary().unwrap().trials.iter().map(|t| (t.bounce_ns, t.p50)).collect();
        assert_eq!(trials, [(Some(480.0), 2.0), (Some(105.0), 4.0), (None, 5.0)]);
    }

    #[test]
    fn samples_of_another_measurement_are_one_trial() {
        let (mut all, mut one) = (Samples::new("all"), Samples::new("one"));
        one.record_ns(100);
        one.end_trial(None);
        one.record_ns(300);
        all.add_trial(&one, Some(125.0));
        let trials: Vec<_> = all.summary().unwrap().trials.iter().map(|t| (t.bounce_ns, t.count)).collect();
        assert_eq!(trials, [(Some(125.0), 2)]);
    }

    #[test]
    fn fine_times_keep_fractions() {
        let mut samples = Samples::fine("hit");
        (0..100).for_each(|_| samples.record_batch(4_700.0, 1_000));
        samples.record_batch(1.0, 0);
        let summary = samples.summary().unwrap();
        assert_eq!(summary.count, 100);
        assert!((summary.p50 - 4.7).abs() < 0.01, "{}", summary.p50);
        let coarse = samples.histogram_ns();
        assert_eq!((coarse.len(), coarse.max()), (100, 5));
    }

    #[test]
    fn nothing_recorded_has_no_summary_and_too_long_counts_as_longest() {
        let mut samples = Samples::new("x");
        assert_eq!(samples.summary(), None);
        samples.record_ns(u64::MAX);
        assert_eq!(samples.summary().unwrap().count, 1);
    }
}

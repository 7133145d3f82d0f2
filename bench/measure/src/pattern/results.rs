//! Results of patterns, collected for one report.

use std::time::Duration;

use super::memory::{AccessPath, LINE_BYTES, Memory};
use super::{Pattern, Share};
use crate::bare::rate;
use crate::report::{Conditions, Plot, Report, Samples, Throughput};

/// Limit on the part of the working set that may be resident, requested and in effect.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Requested share of the working set.
    pub share: Share,
    /// Bytes that may be resident in effect; the memory may have rounded the request.
    pub bytes: u64,
}

impl Setting {
    /// Returns the conditions of a measurement of `pattern` over `memory`. The name of the measurement begins
    /// with `what`.
    pub fn conditions(&self, pattern: Pattern, what: &str, memory: &dyn Memory) -> Conditions {
        let over = memory.over().name();
        Conditions {
            name: format!("{what}_{over}_r{}", self.share.label()),
            pattern: pattern.name().into(),
            over: over.into(),
            working_set: memory.lines() * LINE_BYTES,
            resident: self.share.fraction(),
            resident_bytes: self.bytes,
            ..Conditions::default()
        }
    }

    /// Returns the number of accesses after which most of the resident part is filled.
    pub fn warm_accesses(&self, memory: &dyn Memory) -> u64 {
        match memory.over() {
            AccessPath::Port => 256 + 2 * self.bytes / LINE_BYTES,
            AccessPath::Mapped | AccessPath::Inline | AccessPath::Local => 256 + 4 * self.bytes / 4096,
        }
    }
}

/// Results of all patterns, in the form that a report takes.
#[derive(Debug, Default)]
pub struct Results {
    pub samples: Vec<Samples>,
    pub rates: Vec<Throughput>,
    /// Conditions of each latency and rate, by name.
    pub conditions: Vec<Conditions>,
    /// Plots that show several results as curves.
    pub plots: Vec<Plot>,
    /// Most recent duration of a cache-line round trip between the cores, in nanoseconds; see
    /// [`crate::machine::bounce_ns`].
    pub bounce_ns: Option<f64>,
}

impl Results {
    /// Adds a measurement that lasted `took`, with `bytes` bytes per operation.
    pub fn add(&mut self, conditions: Conditions, samples: Option<Samples>, bytes: u64, took: Duration) {
        let operations = conditions.operations;
        self.add_trials(conditions, samples, [(operations, operations * bytes, took)]);
    }

    /// Adds a measurement of several trials, each with its operations, bytes and duration.
    pub(crate) fn add_trials(
        &mut self,
        conditions: Conditions,
        samples: Option<Samples>,
        trials: impl IntoIterator<Item = (u64, u64, Duration)>,
    ) {
        let bounce = self.bounce_ns;
        let trials =
            trials.into_iter().map(|(operations, bytes, took)| rate(operations, bytes, took, bounce));
        self.rates.extend(Throughput::from_trials(&conditions.name, trials.collect()));
        if let Some(mut samples) = samples {
            samples.end_trial(bounce);
            self.samples.push(samples);
        }
        self.conditions.push(conditions);
    }

    /// Adds all results to `report`, pattern by pattern, and returns the samples.
    pub fn into_report(mut self, report: &mut Report) -> Vec<Samples> {
        let rank = |pattern: &str| Pattern::ALL.iter().position(|known| known.name() == pattern);
        self.conditions.sort_by_key(|conditions| rank(&conditions.pattern));
        self.plots.sort_by_key(|plot| rank(&plot.pattern));
        let place = |name: &str| self.conditions.iter().position(|conditions| conditions.name == name);
        self.samples.sort_by_key(|samples| place(samples.name()));
        self.rates.sort_by_key(|rate| place(&rate.name));
        self.samples.iter().for_each(|samples| report.add(samples));
        self.rates.into_iter().for_each(|rate| report.add_throughput(rate));
        report.conditions = self.conditions;
        report.plots = self.plots;
        self.samples
    }
}

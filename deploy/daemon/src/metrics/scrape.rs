//! One reading of all metrics of a daemon: a table of [`Definition`]s describes them, and a [`Scrape`] holds their
//! values at one moment, which become text.
//!
//! Nothing is counted here. A daemon's counters are beside the code that does the work, and are copied on request; so
//! metrics cost nothing between requests.

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

use super::process::Usage;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows while the daemon runs, and starts at 0.
    Counter,
    Gauge,
    /// Distribution: counts of values by upper bound, their sum and their number.
    Histogram,
}

/// Description of a metric. By Prometheus's conventions its name ends in its unit, and in `_total` if it is a
/// counter.
#[derive(Debug, PartialEq, Eq)]
pub struct Definition {
    pub name: &'static str,
    /// Type, for the `# TYPE` line.
    pub kind: MetricKind,
    /// Names of the labels, in the order in which [`Scrape::set`] takes their values.
    pub labels: &'static [&'static str],
    /// Meaning, in a sentence or two; the `# HELP` line.
    pub help: &'static str,
}

/// Defines the table of a daemon's metrics: a static [`Definition`] for each name, and `ALL`, which lists them in this
/// order.
///
/// ```
/// cxloe_daemon::metrics_table! {
///     /// Number of cups.
///     CUPS: Gauge "tea_cups" ["colour"];
/// }
/// assert_eq!((ALL[0].name, CUPS.help), ("tea_cups", "Number of cups."));
/// ```
#[macro_export]
macro_rules! metrics_table {
    ($($(#[doc = $help:literal])+ $name:ident: $kind:ident $text:literal [$($label:literal),*];)*) => {
        $(
            $(#[doc = $help])+
            pub static $name: $crate::metrics::Definition = $crate::metrics::Definition {
                name: $text,
                kind: $crate::metrics::MetricKind::$kind,
                labels: &[$($label),*],
                help: concat!($($help),+).trim_ascii(),
            };
        )*

        /// All metrics of the table, in the order of their definitions.
        #[allow(dead_code)]
        pub static ALL: &[&$crate::metrics::Definition] = &[$(&$name),*];
    };
}

/// Metrics of the process's resource usage, which every daemon has. Their names are those of Prometheus's client
/// libraries.
pub static PROCESS: &[Definition] = &[
    Definition {
        name: "process_cpu_seconds_total",
        kind: MetricKind::Counter,
        labels: &[],
        help: "CPU time of all its threads, in whole seconds.",
    },
    Definition {
        name: "process_open_fds",
        kind: MetricKind::Gauge,
        labels: &[],
        help: "Descriptors that are open.",
    },
    Definition {
        name: "process_max_fds",
        kind: MetricKind::Gauge,
        labels: &[],
        help: "Descriptors it may have open.",
    },
    Definition {
        name: "process_virtual_memory_bytes",
        kind: MetricKind::Gauge,
        labels: &[],
        help: "Addresses it has.",
    },
    Definition {
        name: "process_resident_memory_bytes",
        kind: MetricKind::Gauge,
        labels: &[],
        help: "Memory it occupies; of a memory node, its pool is part of it.",
    },
    Definition {
        name: "process_start_time_seconds",
        kind: MetricKind::Gauge,
        labels: &[],
        help: "When it was started, since the Unix epoch.",
    },
    Definition { name: "process_threads", kind: MetricKind::Gauge, labels: &[], help: "Its threads." },
];

/// Type of a value that a metric can be set to. A duration is converted to seconds.
pub trait Number {
    /// Value in the metric's unit.
    fn number(self) -> f64;
}

macro_rules! number {
    ($($type:ty => |$value:ident| $number:expr;)*) => {
        $(impl Number for $type {
            fn number(self) -> f64 {
                let $value = self;
                $number
            }
        })*
    };
}

number! {
    u64 => |value| value as f64;
    u32 => |value| f64::from(value);
    usize => |value| value as f64;
    f64 => |value| value;
    bool => |value| f64::from(u8::from(value));
    Duration => |value| value.as_secs_f64();
}

/// Values of all metrics at one moment.
#[derive(Debug, Default)]
pub struct Scrape(BTreeMap<&'static str, (&'static Definition, Vec<Metric>)>);

impl Scrape {
    pub fn new() -> Scrape {
        Scrape::default()
    }

    /// Sets the value of `metric` for the time series with these label values.
    pub fn set(&mut self, metric: &'static Definition, labels: &[&str], value: impl Number) {
        let value = value.number();
        let mut sample = Metric::default();
        match metric.kind {
            MetricKind::Counter => {
                let mut counter = Counter::default();
                counter.set_value(value);
                sample.set_counter(counter);
            }
            MetricKind::Gauge | MetricKind::Histogram => {
                debug_assert_eq!(metric.kind, MetricKind::Gauge, "{}", metric.name);
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                sample.set_gauge(gauge);
            }
        }
        self.add(metric, labels, sample);
    }

    /// Sets the time series of each state in `all`: 1 for `current`, 0 for the others. The state is the value
    /// of the last label.
    pub fn state(&mut self, metric: &'static Definition, labels: &[&str], all: &[&str], current: &str) {
        for state in all {
            self.set(metric, &[labels, &[state]].concat(), *state == current);
        }
    }

    /// Sets a histogram: `counts` by upper bound in seconds, the count above the last bound, and the sum of all values.
    pub fn histogram(
        &mut self,
        metric: &'static Definition,
        labels: &[&str],
        bounds: &[Duration],
        counts: &[u64],
        sum: Duration,
    ) {
        let mut reached = 0;
        let bucket = |(bound, count): (&Duration, &u64)| {
            reached += count;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound.as_secs_f64());
            bucket.set_cumulative_count(reached);
            bucket
        };
        let mut histogram = Histogram::default();
        histogram.set_bucket(bounds.iter().zip(counts).map(bucket).collect());
        histogram.set_sample_count(counts.iter().sum());
        histogram.set_sample_sum(sum.as_secs_f64());
        let mut sample = Metric::default();
        sample.set_histogram(histogram);
        self.add(metric, labels, sample);
    }

    fn add(&mut self, metric: &'static Definition, labels: &[&str], mut sample: Metric) {
        debug_assert_eq!(labels.len(), metric.labels.len(), "labels of {}", metric.name);
        let pair = |(name, value): (&&str, &&str)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        };
        sample.set_label(metric.labels.iter().zip(labels).map(pair).collect());
        self.0.entry(metric.name).or_insert_with(|| (metric, Vec::new())).1.push(sample);
    }

    /// Returns the metrics as text in Prometheus's exposition format 0.0.4, sorted by name, with those of [`PROCESS`]
    /// at the end.
    ///
    /// # Errors
    /// The encoder refuses a metric; no daemon has such a metric.
    pub fn encode(self) -> Result<String, prometheus::Error> {
        let family = |(metric, samples): (&Definition, Vec<Metric>)| {
            let mut family = MetricFamily::default();
            family.set_name(metric.name.to_owned());
            family.set_help(metric.help.to_owned());
            family.set_field_type(match metric.kind {
                MetricKind::Counter => MetricType::COUNTER,
                MetricKind::Gauge => MetricType::GAUGE,
                MetricKind::Histogram => MetricType::HISTOGRAM,
            });
            family.set_metric(samples);
            family
        };
        let families: Vec<MetricFamily> =
            self.0.into_values().chain(process().0.into_values()).map(family).collect();
        TextEncoder::new().encode_to_string(&families)
    }
}

fn process() -> Scrape {
    let (mut scrape, usage) = (Scrape::new(), Usage::now());
    for metric in PROCESS {
        if let Some(value) = usage.value(metric.name) {
            scrape.set(metric, &[], value);
        }
    }
    scrape
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::metrics_table! {
        /// Cups, full ones
        /// and empty ones.
        CUPS: Gauge "tea_cups" ["colour"];
        /// Cups drunk.
        DRUNK: Counter "tea_drunk_total" [];
        /// Temperature of a pot.
        HEAT: Gauge "tea_heat" ["pot", "heat"];
        /// Time to make a pot.
        TIME: Histogram "tea_seconds" ["pot"];
    }

    #[test]
    fn values_become_text_as_the_format_has_it() {
        let mut scrape = Scrape::new();
        scrape.set(&CUPS, &["red \"and\" blue\n"], 3_u64);
        scrape.set(&CUPS, &["green"], 1.5);
        scrape.set(&DRUNK, &[], u64::from(u32::MAX));
        scrape.state(&HEAT, &["a"], &["hot", "cold"], "cold");
        let bounds = [Duration::from_micros(5), Duration::from_millis(1)];
        scrape.histogram(&TIME, &["a"], &bounds, &[2, 0, 1], Duration::from_secs(2));
        let text = scrape.encode().unwrap();
        let expected = "\
# HELP tea_cups Cups, full ones and empty ones.
# TYPE tea_cups gauge
tea_cups{colour=\"red \\\"and\\\" blue\\n\"} 3
tea_cups{colour=\"green\"} 1.5
# HELP tea_drunk_total Cups drunk.
# TYPE tea_drunk_total counter
tea_drunk_total 4294967295
# HELP tea_heat Temperature of a pot.
# TYPE tea_heat gauge
tea_heat{pot=\"a\",heat=\"hot\"} 0
tea_heat{pot=\"a\",heat=\"cold\"} 1
# HELP tea_seconds Time to make a pot.
# TYPE tea_seconds histogram
tea_seconds_bucket{pot=\"a\",le=\"0.000005\"} 2
tea_seconds_bucket{pot=\"a\",le=\"0.001\"} 2
tea_seconds_bucket{pot=\"a\",le=\"+Inf\"} 3
tea_seconds_sum{pot=\"a\"} 2
tea_seconds_count{pot=\"a\"} 3
";
        assert!(text.starts_with(expected), "{text}");
        assert_eq!(ALL.len(), 4);
    }

    #[test]
    fn what_the_process_uses_is_documented_and_nothing_else_is() {
        let text = Scrape::new().encode().unwrap();
        let named: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# HELP "))
            .filter_map(|line| line.split(' ').next())
            .collect();
        for metric in PROCESS {
            assert!(text.contains(&format!("# HELP {} {}\n", metric.name, metric.help)), "{}", metric.name);
        }
        assert_eq!(named.len(), PROCESS.len(), "{named:?}");
    }
}

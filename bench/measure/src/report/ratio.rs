//! Ratios of results to their limits.
//!
//! Virtual CPUs migrate within a run, so that the latency between two of them changes. Trials are therefore
//! sorted into classes by the cache-line round trip between the cores, and only trials of one class are
//! compared, that with the most trials. A ratio is the median of the numerators in that class, divided by the
//! median of the denominators.

use serde::{Deserialize, Serialize};

use super::expression::Quotient;
use super::{Report, ReportError};
use crate::machine::median;

/// Minimum gap between the near and the far class of trials, as the quotient of the shortest round trip in the far
/// class and the longest in the near class. Without such a gap, all trials are of one class.
const GAP: f64 = 1.5;
/// Round trips below this many nanoseconds count as between near cores, however much shorter others are: two
/// threads of one core take 40 ns, two adjacent cores 150 ns.
pub(super) const NEAR_MAX_NS: f64 = 200.0;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Name of the form `a/b` or `a/(b+c)`, from names of results.
    pub name: String,
    pub statistic: Statistic,
    /// Result divided by its limit: 1 means that the limit is reached.
    pub value: f64,
    /// Result minus limit, in nanoseconds; absent for rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<f64>,
    /// Class of the trials that were compared; absent if all trials are of one class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// Number of trials of the compared class: the lowest number among the results in the ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trials: Option<usize>,
    /// Target: an upper bound for latencies and costs, a lower bound for rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    /// Median time, in nanoseconds.
    P50,
    /// 99th percentile of the times, in nanoseconds.
    P99,
    OpsPerS,
    BytesPerS,
    /// Bytes per operation; for write-backs, bytes sent for each page.
    BytesPerOp,
}

/// Class of trials by the distance of the two cores: near, far, or trials of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Cache lines travel fast between the cores.
    Near,
    /// Cache lines take clearly longer than in the near trials of the same run, and longer than between adjacent cores.
    Far,
    /// Trials of all classes, because no class has trials of every result in the ratio.
    Mixed,
}

impl Statistic {
    /// Returns the name of the statistic in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::OpsPerS => "ops_per_s",
            Self::BytesPerS => "bytes_per_s",
            Self::BytesPerOp => "bytes_per_op",
        }
    }

    /// Returns true for latencies and costs, of which lower values are better.
    pub(crate) fn is_cost(self) -> bool {
        matches!(self, Self::P50 | Self::P99 | Self::BytesPerOp)
    }
}

impl Class {
    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Mixed => "mixed",
        }
    }
}

impl Ratio {
    /// Returns true if the target is reached; `None` without a target.
    pub fn reached(&self) -> Option<bool> {
        self.target
            .map(|target| if self.statistic.is_cost() { self.value <= target } else { self.value >= target })
    }
}

/// Round-trip time between the cores during a trial, in nanoseconds, and the value of a statistic in that
/// trial.
type Point = (Option<f64>, f64);

impl Report {
    /// Computes the ratio `name`, of the form `a/b` or `a/(b+c)`, from the results in the report, and adds
    /// it.
    ///
    /// # Errors
    /// Returns [`ReportError`] when the name cannot be parsed, an operand was not measured, or the limit is zero.
    pub fn add_ratio(
        &mut self,
        name: &str,
        statistic: Statistic,
        target: Option<f64>,
    ) -> Result<&Ratio, ReportError> {
        self.add_ratio_as(name, name, statistic, target)
    }

    /// Computes a ratio from `expression` as [`add_ratio`](Self::add_ratio) does, but lists it under another `name`:
    /// the names of limits that are measured in several shapes differ from run to run, and `name` does not.
    ///
    /// # Errors
    /// Returns the errors of [`add_ratio`](Self::add_ratio).
    pub fn add_ratio_as(
        &mut self,
        name: &str,
        expression: &str,
        statistic: Statistic,
        target: Option<f64>,
    ) -> Result<&Ratio, ReportError> {
        let quotient = Quotient::parse(expression)?;
        let points = |of: &str| {
            self.points(of, statistic).ok_or_else(|| ReportError::NotMeasured {
                ratio: name.into(),
                statistic: statistic.name(),
                name: of.into(),
            })
        };
        let above = points(quotient.above)?;
        let below = quotient.below.iter().map(|of| points(of)).collect::<Result<Vec<_>, _>>()?;

        let boundary = self.class_boundary();
        let of_class = |side: &[Point], class: Option<Class>| -> Vec<f64> {
            let wanted = |bounce| class == Some(Class::Mixed) || class_of(bounce, boundary) == class;
            side.iter().filter(|(bounce, _)| wanted(*bounce)).map(|(_, value)| *value).collect()
        };
        let sides = || std::iter::once(&above).chain(&below);
        let trials = |class| sides().map(|side| of_class(side, class).len()).min().unwrap_or(0);
        // If several classes have the same number of trials, the last of them in this list is selected.
        let class = [None, Some(Class::Far), Some(Class::Near)]
            .into_iter()
            .filter(|&class| trials(class) > 0)
            .max_by_key(|&class| trials(class))
            .unwrap_or(Some(Class::Mixed));

        let middle = |side: &[Point]| median(&of_class(side, class)).unwrap_or(0.0);
        let limit: f64 = below.iter().map(|side| middle(side)).sum();
        if limit <= 0.0 {
            return Err(ReportError::ZeroLimit { ratio: name.into(), statistic: statistic.name() });
        }
        let (result, trials) = (middle(&above), Some(trials(class)));
        let over = matches!(statistic, Statistic::P50 | Statistic::P99).then_some(result - limit);
        let value = result / limit;
        self.ratios.push(Ratio { name: name.into(), statistic, value, over, class, trials, target });
        Ok(self.ratios.last().expect("one was just pushed"))
    }

    /// Returns the statistic in each trial of a result; a result without trials counts as one trial.
    fn points(&self, name: &str, statistic: Statistic) -> Option<Vec<Point>> {
        let points: Vec<Point> = match statistic {
            Statistic::P50 => self.result(name)?.trials.iter().map(|t| (t.bounce_ns, t.p50)).collect(),
            Statistic::P99 => self.result(name)?.trials.iter().map(|t| (t.bounce_ns, t.p99)).collect(),
            Statistic::OpsPerS => {
                self.rate(name)?.trials.iter().map(|t| (t.bounce_ns, t.ops_per_s)).collect()
            }
            Statistic::BytesPerS => {
                self.rate(name)?.trials.iter().map(|t| (t.bounce_ns, t.bytes_per_s)).collect()
            }
            Statistic::BytesPerOp => {
                self.rate(name)?.trials.iter().map(|t| (t.bounce_ns, t.bytes_per_s / t.ops_per_s)).collect()
            }
        };
        if !points.is_empty() {
            return Some(points);
        }
        let whole = match statistic {
            Statistic::P50 => self.result(name)?.p50,
            Statistic::P99 => self.result(name)?.p99,
            Statistic::OpsPerS => self.rate(name)?.ops_per_s,
            Statistic::BytesPerS => self.rate(name)?.bytes_per_s,
            Statistic::BytesPerOp => self.rate(name)?.bytes_per_s / self.rate(name)?.ops_per_s,
        };
        Some(vec![(None, whole)])
    }

    /// Returns the shortest round-trip time of the far class in nanoseconds; `None` if all trials are of one
    /// class. The widest gap between adjacent times separates the classes, if it is wide enough. No time
    /// below [`NEAR_MAX_NS`] is far.
    fn class_boundary(&self) -> Option<f64> {
        let times = self.results.iter().flat_map(|r| r.trials.iter().map(|t| t.bounce_ns));
        let rates = self.throughput.iter().flat_map(|r| r.trials.iter().map(|t| t.bounce_ns));
        let mut bounces: Vec<f64> = times.chain(rates).flatten().filter(|&bounce| bounce > 0.0).collect();
        bounces.sort_by(f64::total_cmp);
        let apart = bounces.windows(2).filter(|pair| pair[1] >= NEAR_MAX_NS);
        let widest = apart.max_by(|a, b| f64::total_cmp(&(a[1] / a[0]), &(b[1] / b[0])))?;
        (widest[1] / widest[0] >= GAP).then_some(widest[1])
    }
}

/// Returns true if the class of the cores changed between round trips of `before_ns` and `after_ns`.
pub(super) fn moved(before_ns: f64, after_ns: f64) -> bool {
    let (short, long) = (before_ns.min(after_ns), before_ns.max(after_ns));
    long >= NEAR_MAX_NS && long >= GAP * short
}

fn class_of(bounce_ns: Option<f64>, boundary: Option<f64>) -> Option<Class> {
    Some(if bounce_ns? < boundary? { Class::Near } else { Class::Far })
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{latency, rate, report};
    use super::*;

    const NEAR: Option<f64> = Some(125.0);
    const FAR: Option<f64> = Some(460.0);

    #[test]
    fn ratios_compare_trials_of_one_class() {
        let mut report = report();
        // The ratio of the near trials is 2400/2000. That of the far trials, of which there are fewer, is
        // 3900/2600.
        report.results = vec![
            latency("echo64", &[(NEAR, 2000), (NEAR, 1900), (FAR, 2600), (NEAR, 2100)]),
            latency("read64", &[(NEAR, 2400), (FAR, 3900), (NEAR, 2500), (NEAR, 2300)]),
        ];
        let ratio = report.add_ratio("read64/echo64", Statistic::P50, Some(1.25)).unwrap().clone();
        assert_eq!((ratio.class, ratio.trials, ratio.reached()), (Some(Class::Near), Some(3), Some(true)));
        assert!((ratio.value - 1.2).abs() < 1e-3, "{}", ratio.value);
        assert!((ratio.over.unwrap() - 400.0).abs() < 3.0, "{:?}", ratio.over);
        let p99 = report.add_ratio("read64/echo64", Statistic::P99, Some(1.1)).unwrap();
        assert!((p99.value - 1.2).abs() < 1e-3, "{}", p99.value);
        assert_eq!(p99.reached(), Some(false));
        assert_eq!(report.ratios.len(), 2);
    }

    #[test]
    fn limits_add_up() {
        let mut report = report();
        report.results = [("fault4k", 25_000), ("uffd_floor4k", 14_000), ("fetch4k", 6_000)]
            .map(|(name, time)| latency(name, &[(None, time)]))
            .to_vec();
        let ratio = report.add_ratio("fault4k/(uffd_floor4k+fetch4k)", Statistic::P50, None).unwrap();
        assert!((ratio.value - 1.25).abs() < 2e-3, "{}", ratio.value);
        assert_eq!((ratio.class, ratio.reached()), (None, None));
    }

    #[test]
    fn rates_improve_upwards() {
        let mut report = report();
        report.throughput = vec![rate("stream64", &[(None, 8e5)]), rate("echo_pipelined", &[(None, 1e6)])];
        let ratio = report.add_ratio("stream64/echo_pipelined", Statistic::OpsPerS, Some(0.8)).unwrap();
        assert_eq!((ratio.value, ratio.over, ratio.reached()), (0.8, None, Some(true)));
        let ratio = report.add_ratio("stream64/echo_pipelined", Statistic::BytesPerS, Some(0.81)).unwrap();
        assert_eq!(ratio.reached(), Some(false));
    }

    #[test]
    fn bytes_of_an_operation_want_to_be_few() {
        let mut report = report();
        report.throughput = vec![rate("line", &[(None, 8e5)]), rate("page", &[(None, 1e6)])];
        report.throughput[1].trials[0].bytes_per_s *= 50.0;
        let ratio = report.add_ratio("line/page", Statistic::BytesPerOp, Some(0.05)).unwrap();
        assert!((ratio.value - 0.02).abs() < 1e-9, "{}", ratio.value);
        assert_eq!(ratio.reached(), Some(true));
        let ratio = report.add_ratio("page/line", Statistic::BytesPerOp, Some(2.0)).unwrap();
        assert_eq!(ratio.reached(), Some(false));
    }

    #[test]
    fn a_steady_machine_has_one_class() {
        let mut report = report();
        report.results = vec![
            latency("a", &[(Some(180.0), 30), (Some(200.0), 10), (Some(260.0), 20)]),
            latency("b", &[(Some(230.0), 10)]),
        ];
        let ratio = report.add_ratio("a/b", Statistic::P50, None).unwrap();
        assert_eq!((ratio.class, ratio.trials, ratio.value), (None, Some(1), 2.0));
    }

    #[test]
    fn cores_beside_each_other_are_never_far() {
        let mut report = report();
        // The near class has round trips of 60 to 142 ns; the far class has a single trial.
        let near = [(Some(60.0), 10), (Some(138.0), 30), (Some(138.0), 30), (Some(142.0), 30)];
        report.results = vec![latency("a", &near), latency("b", &near)];
        let ratio = report.add_ratio("a/b", Statistic::P50, None).unwrap();
        assert_eq!((ratio.class, ratio.trials), (None, Some(4)));
        let both = [&near[..], &[(FAR, 90)]].concat();
        report.results = vec![latency("a", &both), latency("b", &both)];
        let ratio = report.add_ratio("a/b", Statistic::P50, None).unwrap();
        assert_eq!((ratio.class, ratio.trials), (Some(Class::Near), Some(4)));
    }

    #[test]
    fn without_a_common_class_it_says_mixed() {
        let mut report = report();
        report.results = vec![latency("a", &[(NEAR, 10)]), latency("b", &[(FAR, 20)])];
        let ratio = report.add_ratio("a/b", Statistic::P50, None).unwrap();
        assert_eq!((ratio.class, ratio.value), (Some(Class::Mixed), 0.5));
    }

    #[test]
    fn what_was_not_measured_is_named() {
        let mut report = report();
        report.results = vec![latency("a", &[(None, 10)]), latency("zero", &[(None, 0)])];
        let error = report.add_ratio("a/b", Statistic::P50, None).unwrap_err();
        assert!(error.to_string().contains("needs p50 of b"), "{error}");
        let error = report.add_ratio("a/a", Statistic::OpsPerS, None).unwrap_err();
        assert!(error.to_string().contains("needs ops_per_s of a"), "{error}");
        assert!(matches!(
            report.add_ratio("a/zero", Statistic::P50, None),
            Err(ReportError::ZeroLimit { .. })
        ));
        assert!(report.ratios.is_empty());
    }
}

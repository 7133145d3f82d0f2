//! Trials of all peers alternately, and their combination into figures.

use std::time::Duration;

use serde::Serialize;

use super::error::PeerError;
use super::measured::{Measured, Value};
use super::pattern::Pattern;
use super::peer::Peer;
use super::plan::Plan;
use super::stage::{NEAR, Stage, emptied};
use cxloe_measure::machine::{self, median};
use cxloe_measure::report::{Samples, Throughput, ThroughputTrial};

/// Results of all peers over all trials.
pub struct ComparisonResults {
    /// Figures, one for each pattern of each peer, in the order of peers and patterns.
    pub figures: Vec<Figure>,
    /// Times of single operations that the trials recorded, named `peer.pattern`.
    pub samples: Vec<Samples>,
    /// Rates of patterns that are not timed by operation, named `peer.pattern`.
    pub rates: Vec<Throughput>,
    /// Results of the single trials, in the order of peers, patterns and trials.
    pub trials: Vec<TrialFigure>,
    /// Peers that failed, with their errors. They have no figures.
    pub failed: Vec<(&'static str, PeerError)>,
    /// Cache-line round trip between the cores over all trials, in nanoseconds; see
    /// [`cxloe_measure::machine::bounce_ns`].
    pub bounce_ns: Option<f64>,
}

/// Result of one pattern of one peer over all trials. Values that a peer's tool does not print are `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Name of the peer, as in `--only`.
    pub peer: String,
    /// Name of the pattern, as in [`Pattern::name`].
    pub pattern: &'static str,
    /// Median time of an operation, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<f64>,
    /// 99th percentile of an operation's time, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<f64>,
    /// Mean time of an operation, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
    /// Rate at which a load offered reads; `ops_per_s` is the rate at which they ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_per_s: Option<f64>,
    /// Ratio to the baseline: the median over trials of the ratio within a trial. For times, it is the ratio
    /// of the medians, or of the means if a tool prints no median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Number of timed operations in all trials.
    pub count: u64,
    /// Number of trials that contribute.
    pub trials: usize,
}

/// Result of one pattern of one peer in one trial. Values that a peer's tool does not print are `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialFigure {
    pub peer: &'static str,
    pub pattern: Pattern,
    /// Number of the trial, from 1.
    pub trial: u32,
    /// Cache-line round trip between the cores before the trial, in nanoseconds.
    pub bounce_ns: Option<f64>,
    pub p50_ns: Option<f64>,
    pub p99_ns: Option<f64>,
    pub mean_ns: Option<f64>,
    pub ops_per_s: Option<f64>,
    pub bytes_per_s: Option<f64>,
    /// Rate at which a load offered reads.
    pub offered_per_s: Option<f64>,
    /// Number of timed operations.
    pub count: u64,
}

/// Result of one pattern of one peer in one trial, without their names.
#[derive(Debug, Clone, Copy, Default)]
struct Point {
    trial: u32,
    bounce_ns: Option<f64>,
    p50_ns: Option<f64>,
    p99_ns: Option<f64>,
    mean_ns: Option<f64>,
    rate: Option<ThroughputTrial>,
    load: Option<LoadRates>,
    count: u64,
}

/// Rates of a load, in reads per second.
#[derive(Debug, Clone, Copy)]
struct LoadRates {
    offered: f64,
    ended: f64,
}

impl Point {
    fn ops_per_s(&self) -> Option<f64> {
        self.rate.map(|rate| rate.ops_per_s).or(self.load.map(|load| load.ended))
    }

    fn offered_per_s(&self) -> Option<f64> {
        self.load.map(|load| load.offered)
    }
}

/// Results of one pattern of one peer over all trials.
struct Series {
    peer: &'static str,
    pattern: Pattern,
    samples: Option<Samples>,
    points: Vec<Point>,
}

/// Measures `peers` alternately. Calls `progress` before each trial. Ratios refer to the peer called `baseline`, if
/// it is among them.
///
/// # Errors
/// Returns [`PeerError::Interrupted`], or an error in entering the network; failures of single peers are among the
/// results.
pub fn run(
    stage: &Stage,
    peers: &[&dyn Peer],
    plan: &Plan,
    trials: u32,
    baseline: Option<&str>,
    progress: &mut dyn FnMut(&str),
) -> Result<ComparisonResults, PeerError> {
    let mut series: Vec<Series> = Vec::new();
    let mut failed: Vec<(&'static str, PeerError)> = Vec::new();
    let mut bounces = Vec::new();
    for trial in 0..trials {
        for peer in peers {
            if failed.iter().any(|(name, _)| *name == peer.name()) {
                continue;
            }
            progress(peer.name());
            stage.interrupt.check()?;
            stage.journal.begin(peer.name(), trial + 1);
            let bounce = stage.cores.and_then(|(near, far)| machine::bounce_ns(near, far).ok());
            bounces.extend(bounce);
            match one_trial(stage, *peer, plan) {
                Ok(found) => found.into_iter().for_each(|measured| {
                    add(&mut series, peer.name(), trial, bounce, measured);
                }),
                Err(interrupted @ PeerError::Interrupted(_)) => return Err(interrupted),
                Err(error) => failed.push((peer.name(), error)),
            }
        }
    }
    series.retain(|one| failed.iter().all(|(name, _)| *name != one.peer));
    series.sort_by_key(|one| (peers.iter().position(|peer| peer.name() == one.peer), one.pattern));
    Ok(ComparisonResults {
        figures: series.iter().map(|one| one.figure(base_of(&series, baseline, one.pattern))).collect(),
        rates: series.iter().filter_map(Series::throughput).collect(),
        trials: series.iter().flat_map(Series::trials).collect(),
        samples: series.into_iter().filter_map(|one| one.samples).collect(),
        failed,
        bounce_ns: median(&bounces),
    })
}

fn one_trial(stage: &Stage, peer: &dyn Peer, plan: &Plan) -> Result<Vec<Measured>, PeerError> {
    emptied(&stage.folder).map_err(PeerError::io(format!("emptying {}", stage.folder.display())))?;
    stage.lab.enter(NEAR, || {
        if let Some(core) = stage.core(true) {
            machine::pin(core)?;
        }
        peer.trial(stage, plan)
    })?
}

fn add(
    series: &mut Vec<Series>,
    peer: &'static str,
    trial: u32,
    bounce_ns: Option<f64>,
    Measured { pattern, value }: Measured,
) {
    let found = series.iter().position(|one| one.peer == peer && one.pattern == pattern);
    let index = found.unwrap_or_else(|| {
        series.push(Series { peer, pattern, samples: None, points: Vec::new() });
        series.len() - 1
    });
    let one = &mut series[index];
    let mut point = Point { trial, bounce_ns, ..Point::default() };
    match value {
        Value::Times(times) => one.record(&mut point, &times),
        Value::Load { times_ns, offered_per_s, per_s } => {
            one.record(&mut point, &times_ns);
            point.load = Some(LoadRates { offered: offered_per_s, ended: per_s });
        }
        Value::Said { p50_ns, p99_ns, mean_ns, count } => {
            point = Point { p50_ns, p99_ns, mean_ns: Some(mean_ns), count, ..point };
        }
        Value::Rate { ops_per_s, bytes_per_s } => {
            point.rate = Some(ThroughputTrial { bounce_ns, ops_per_s, bytes_per_s });
        }
    }
    one.points.push(point);
}

/// Name of a peer's pattern in reports: `peer.pattern`.
pub fn series_name(peer: &str, pattern: Pattern) -> String {
    format!("{peer}.{}", pattern.name())
}

fn base_of<'a>(series: &'a [Series], baseline: Option<&str>, pattern: Pattern) -> Option<&'a Series> {
    series.iter().find(|one| Some(one.peer) == baseline && one.pattern == pattern)
}

impl Series {
    /// Adds the times of a trial to the samples, and their statistics to its point.
    fn record(&mut self, point: &mut Point, times: &[u64]) {
        let samples = self.samples.get_or_insert_with(|| Samples::new(&series_name(self.peer, self.pattern)));
        times.iter().for_each(|time| samples.record_ns(*time));
        samples.end_trial(point.bounce_ns);
        let mut sorted: Vec<f64> = times.iter().map(|time| *time as f64).collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        point.count = count as u64;
        point.p50_ns = median(&sorted);
        point.p99_ns = sorted.get((count * 99 / 100).min(count.saturating_sub(1))).copied();
        point.mean_ns = (count > 0).then(|| sorted.iter().sum::<f64>() / count as f64);
    }

    fn figure(&self, base: Option<&Series>) -> Figure {
        let over = |value: fn(&Point) -> Option<f64>| {
            median(&self.points.iter().filter_map(value).collect::<Vec<_>>())
        };
        let whole = self.samples.as_ref().and_then(Samples::summary);
        Figure {
            peer: self.peer.into(),
            pattern: self.pattern.name(),
            p50_ns: whole.as_ref().map(|all| all.p50).or(over(|point| point.p50_ns)),
            p99_ns: whole.as_ref().map(|all| all.p99).or(over(|point| point.p99_ns)),
            mean_ns: whole.as_ref().map(|all| all.mean).or(over(|point| point.mean_ns)),
            ops_per_s: over(Point::ops_per_s),
            bytes_per_s: over(|point| Some(point.rate?.bytes_per_s)),
            offered_per_s: over(Point::offered_per_s),
            ratio: base.and_then(|base| self.over(base)),
            count: self.points.iter().map(|point| point.count).sum(),
            trials: self.points.len(),
        }
    }

    /// Returns the ratio of this series to `base`: computed within each trial, then the median over all trials.
    fn over(&self, base: &Series) -> Option<f64> {
        let ratios: Vec<f64> = self
            .points
            .iter()
            .filter_map(|point| {
                let other = base.points.iter().find(|other| other.trial == point.trial)?;
                let (above, below) = match (point.rate, other.rate) {
                    (Some(above), Some(below)) => (above.bytes_per_s, below.bytes_per_s),
                    _ => point.p50_ns.zip(other.p50_ns).or(point.mean_ns.zip(other.mean_ns))?,
                };
                (below > 0.0).then_some(above / below)
            })
            .collect();
        median(&ratios)
    }

    fn trials(&self) -> impl Iterator<Item = TrialFigure> {
        self.points.iter().map(|point| TrialFigure {
            peer: self.peer,
            pattern: self.pattern,
            trial: point.trial + 1,
            bounce_ns: point.bounce_ns,
            p50_ns: point.p50_ns,
            p99_ns: point.p99_ns,
            mean_ns: point.mean_ns,
            ops_per_s: point.ops_per_s(),
            bytes_per_s: point.rate.map(|rate| rate.bytes_per_s),
            offered_per_s: point.offered_per_s(),
            count: point.count,
        })
    }

    fn throughput(&self) -> Option<Throughput> {
        let trials: Vec<ThroughputTrial> = self.points.iter().filter_map(|point| point.rate).collect();
        Throughput::from_trials(&series_name(self.peer, self.pattern), trials)
    }
}

/// Duration of one access of a trace, roughly.
const ACCESS: Duration = Duration::from_micros(20);

/// Approximate duration of a comparison, to be announced to the user.
pub fn expected(peers: usize, plan: &Plan, trials: u32) -> Duration {
    let replay = plan.trace.as_ref().map_or(Duration::ZERO, |trace| ACCESS * trace.accesses().len() as u32);
    let timed = plan.patterns.iter().filter(|pattern| plan.has(**pattern)).count();
    (plan.each * timed as u32 + replay + Duration::from_millis(700)) * peers as u32 * trials
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(given: &[(&'static str, u32, Pattern, Value)], baseline: Option<&str>) -> Vec<Figure> {
        let mut series = Vec::new();
        for (peer, trial, pattern, value) in given {
            let measured = Measured { pattern: *pattern, value: value.clone() };
            add(&mut series, peer, *trial, None, measured);
        }
        series.iter().map(|one| one.figure(base_of(&series, baseline, one.pattern))).collect()
    }

    fn times(ns: u64) -> Value {
        Value::Times(vec![ns; 100])
    }

    #[test]
    fn ratios_are_within_a_trial() {
        // In this test, the machine is twice as slow in the second trial as in the first, and three times as slow in
        // the third.
        let found = figures(
            &[
                ("cxloe-packet", 0, Pattern::Read64, times(1_000)),
                ("tcp-spin", 0, Pattern::Read64, times(2_000)),
                ("cxloe-packet", 1, Pattern::Read64, times(2_000)),
                ("tcp-spin", 1, Pattern::Read64, times(4_000)),
                ("cxloe-packet", 2, Pattern::Read64, times(3_000)),
                ("tcp-spin", 2, Pattern::Read64, times(6_600)),
            ],
            Some("cxloe-packet"),
        );
        assert_eq!((found[0].ratio, found[1].ratio), (Some(1.0), Some(2.0)));
        assert_eq!((found[1].count, found[1].trials), (300, 3));
        assert!((found[1].p50_ns.unwrap() - 4_000.0).abs() < 10.0, "{found:?}");
    }

    #[test]
    fn a_mean_is_compared_with_a_mean() {
        let mean = Value::Said { p50_ns: None, p99_ns: None, mean_ns: 3_000.0, count: 10 };
        let mut uneven = vec![1_000; 99];
        uneven.push(51_000);
        let found = figures(
            &[
                ("cxloe-xdp", 0, Pattern::Read64, Value::Times(uneven)),
                ("libfabric-tcp", 0, Pattern::Read64, mean),
            ],
            Some("cxloe-xdp"),
        );
        assert_eq!((found[1].p50_ns, found[1].p99_ns, found[1].mean_ns), (None, None, Some(3_000.0)));
        assert_eq!(found[1].ratio, Some(2.0), "1.5 µs is the mean of the other");
    }

    #[test]
    fn a_load_has_times_and_both_rates() {
        let load = |ns| Value::Load { times_ns: vec![ns; 100], offered_per_s: 5e5, per_s: 4.9e5 };
        let found = figures(
            &[
                ("cxloe-packet", 0, Pattern::Load50, load(1_000)),
                ("redis", 0, Pattern::Load50, load(3_000)),
                ("redis", 0, Pattern::Load90, load(9_000)),
            ],
            Some("cxloe-packet"),
        );
        assert_eq!((found[1].ops_per_s, found[1].offered_per_s), (Some(4.9e5), Some(5e5)));
        assert_eq!((found[1].bytes_per_s, found[1].count, found[1].ratio), (None, 100, Some(3.0)));
        assert!((found[1].p50_ns.unwrap() - 3_000.0).abs() < 10.0, "{found:?}");
        assert_eq!(found[2].ratio, None, "the other has no such load");
    }

    #[test]
    fn rates_are_medians_and_need_no_baseline() {
        let rate = |bytes_per_s| Value::Rate { ops_per_s: bytes_per_s / 64.0, bytes_per_s };
        let found = figures(
            &[
                ("redis", 0, Pattern::Stream64, rate(64.0)),
                ("redis", 1, Pattern::Stream64, rate(6_400.0)),
                ("redis", 2, Pattern::Stream64, rate(640.0)),
            ],
            None,
        );
        assert_eq!((found[0].ops_per_s, found[0].bytes_per_s), (Some(10.0), Some(640.0)));
        assert_eq!((found[0].ratio, found[0].p50_ns), (None, None));
    }
}

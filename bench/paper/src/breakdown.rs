//! Fig. 8 to 10: latency of writes and reads, divided into the parts of their path.
//!
//! Operations pass a [`Path`] one at a time, alternating between runs with and without time stamps, to show
//! the cost of the time stamps. Then they pass with a full window, as in the paper: as fast as the link
//! permits.

use cxloe_link::Backend;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::random::Random;
use serde::Serialize;

use super::PaperError;
use super::latency_parts::{LatencyParts, NodeTimestamps, PARTS, RequesterTimestamps, evenly, join};
use super::path::{Operation, Path};
use super::testbed::Testbed;
use cxloe_measure::clock_cost_ns;
use cxloe_measure::report::Samples;

/// Number of untimed operations before the timed ones.
const WARM_UP: usize = 200;
/// Number of alternations between operations with and without time stamps.
const TURNS: usize = 10;
/// Number of operations in flight with a full window; a veth loses frames with more.
pub const WINDOW: usize = 128;

/// Fig. 8 to 10: four breakdowns, with the conditions of their measurement.
#[derive(Debug, Serialize)]
pub struct Breakdowns {
    /// Kind of link at both ends.
    pub backend: String,
    /// Cost of reading the clock in nanoseconds; a request includes seven reads of the clock.
    pub clock_ns: f64,
    /// Four breakdowns: writes one at a time, reads one at a time, then both with a full window.
    pub each: Vec<Breakdown>,
}

#[derive(Debug, Serialize)]
pub struct Breakdown {
    /// Name: `fig9` for writes, `fig10` for reads; with a full window followed by `_window`.
    pub name: String,
    /// Maximum number of operations in flight.
    pub depth: usize,
    /// Number of operations made, those left out included.
    pub operations: usize,
    /// Number of operations left out because their frame did not pass exactly once.
    pub left_out: usize,
    /// Mean of each part of the path, a to f, in nanoseconds.
    pub mean_ns: [f64; 6],
    /// Mean of each part in nanoseconds over the middle half of the requests, that is, without the shortest
    /// and the longest quarter.
    pub middle_ns: [f64; 6],
    /// Mean of the whole latency, in nanoseconds.
    pub total_mean_ns: f64,
    /// Shortest whole latency, in nanoseconds.
    pub total_min_ns: u64,
    /// Share of the network in [`middle_ns`](Self::middle_ns), in percent: parts b and e of the path.
    pub network_percent: f64,
    /// Single requests for the picture, at even distances among all requests.
    pub points: Vec<Point>,
    /// Samples of the whole latency, and of each part.
    #[serde(skip)]
    pub samples: Vec<Samples>,
    /// Samples of the operations without time stamps; `None` with a full window.
    #[serde(skip)]
    pub plain: Option<Samples>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    pub request: usize,
    pub parts: LatencyParts,
}

impl Breakdowns {
    /// Measures `operations` operations of each kind. Calls `progress` for each of [`Breakdowns::STEPS`] steps.
    pub fn measure(
        ends: &Testbed,
        backend: Backend,
        operations: usize,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Breakdowns, PaperError> {
        ends.pin()?;
        let mut path = Path::open(ends, backend)?;
        let mut random = Random::new(810);
        let lines = ends.bytes / LINE_SIZE as u64;
        let mut draw = |write, count: usize| -> Vec<Operation> {
            let offset = |_| random.below(lines) * LINE_SIZE as u64;
            (0..count).map(offset).map(|offset| Operation { offset, write }).collect()
        };
        let mut taken = Vec::new();
        for (name, write) in [("fig9", true), ("fig10", false)] {
            progress(if write { "writes by part" } else { "reads by part" });
            let (mut sent, mut plain) = (Vec::new(), Samples::new(&format!("{name}_plain")));
            for turn in 1..=TURNS {
                ends.check()?;
                let count = operations * turn / TURNS - operations * (turn - 1) / TURNS;
                // Short turns let changes of the machine's speed affect both kinds alike.
                for notes in [false, true] {
                    path.note(notes);
                    // During these operations caches warm up, and the memory node's thread notices the flag.
                    path.run(&draw(write, WARM_UP), 1)?;
                    let passed = path.run(&draw(write, count), 1)?;
                    match notes {
                        true => sent.extend(passed),
                        false => passed.iter().for_each(|one| plain.record_ns(one.done - one.asked)),
                    }
                }
                plain.end_trial(None);
            }
            taken.push((name.to_owned(), 1, sent, Some(plain)));
        }
        for (name, write) in [("fig9_window", true), ("fig10_window", false)] {
            ends.check()?;
            progress(if write { "writes, window full" } else { "reads, window full" });
            path.note(true);
            path.run(&draw(write, WARM_UP), 1)?;
            taken.push((name.to_owned(), WINDOW, path.run(&draw(write, operations), WINDOW)?, None));
        }
        let seen = path.close()?;
        let each = taken
            .into_iter()
            .map(|(name, depth, sent, plain)| Breakdown::of(&name, depth, &sent, &seen, plain))
            .collect();
        Ok(Breakdowns { backend: backend.to_string(), clock_ns: clock_cost_ns(), each })
    }

    /// Number of `progress` calls in a measurement.
    pub const STEPS: u64 = 4;

    pub fn get(&self, name: &str) -> Option<&Breakdown> {
        self.each.iter().find(|one| one.name == name)
    }
}

impl Breakdown {
    /// Computes the breakdown from the time stamps that both ends recorded.
    pub fn of(
        name: &str,
        depth: usize,
        sent: &[RequesterTimestamps],
        seen: &[NodeTimestamps],
        plain: Option<Samples>,
    ) -> Breakdown {
        let joined = join(sent, seen);
        let mut samples: Vec<Samples> = std::iter::once("total")
            .chain(PARTS.map(|(part, ..)| part))
            .map(|part| Samples::new(&format!("{name}_{part}")))
            .collect();
        let (mut sums, mut shortest, mut count) = ([0_u64; 6], u64::MAX, 0_u64);
        for parts in joined.iter().flatten() {
            samples[0].record_ns(parts.total());
            for (index, part) in parts.0.into_iter().enumerate() {
                samples[index + 1].record_ns(part);
                sums[index] += part;
            }
            shortest = shortest.min(parts.total());
            count += 1;
        }
        samples.iter_mut().for_each(|s| s.end_trial(None));
        let whole = joined.iter().enumerate().filter_map(|(i, parts)| Some((i, (*parts)?)));
        let whole: Vec<(usize, LatencyParts)> = whole.collect();
        let mut by_total: Vec<LatencyParts> = whole.iter().map(|(_, parts)| *parts).collect();
        by_total.sort_unstable_by_key(LatencyParts::total);
        let quarter = by_total.len() / 4;
        let middle_ns = means(&by_total[quarter..by_total.len() - quarter]);
        let point = |i: usize| Point { request: whole[i].0 + 1, parts: whole[i].1 };
        let mean = |sum: u64| sum as f64 / count.max(1) as f64;
        let network = middle_ns[1] + middle_ns[4];
        Breakdown {
            name: name.into(),
            depth,
            operations: sent.len(),
            left_out: sent.len() - whole.len(),
            mean_ns: sums.map(mean),
            middle_ns,
            total_mean_ns: mean(sums.iter().sum()),
            total_min_ns: if count > 0 { shortest } else { 0 },
            network_percent: 100.0 * network / middle_ns.iter().sum::<f64>().max(1.0),
            points: evenly(whole.len(), super::values::values().fig9.points).into_iter().map(point).collect(),
            samples,
            plain,
        }
    }
}

/// Returns the mean of each part; 0 without requests.
fn means(of: &[LatencyParts]) -> [f64; 6] {
    let sum = |part: usize| of.iter().map(|parts| parts.0[part]).sum::<u64>();
    std::array::from_fn(|part| sum(part) as f64 / of.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_of_parts_add_up_to_the_mean() {
        let at = |i: u64| i * 10_000;
        let sent: Vec<RequesterTimestamps> = (0..100)
            .map(|i| RequesterTimestamps {
                addr: i * 64,
                write: true,
                asked: at(i),
                left: at(i) + 100 + i,
                arrived: at(i) + 5_000 + 3 * i,
                done: at(i) + 5_200 + 3 * i,
            })
            .collect();
        let mut seen: Vec<NodeTimestamps> = (0..100)
            .map(|i| NodeTimestamps {
                addr: i * 64,
                write: true,
                arrived: at(i) + 2_000,
                access: at(i) + 2_040,
                left: at(i) + 2_500,
            })
            .collect();
        seen.remove(42);
        let of = Breakdown::of("fig9", 1, &sent, &seen, None);
        assert_eq!((of.operations, of.left_out, of.points.len()), (100, 1, 11));
        assert!((of.mean_ns.iter().sum::<f64>() - of.total_mean_ns).abs() < 1e-6);
        assert_eq!(of.total_min_ns, 5_200);
        assert_eq!((of.points[0].request, of.points[10].request), (1, 100));
        let summary: Vec<_> = of.samples.iter().map(|s| s.summary().unwrap()).collect();
        assert_eq!(summary[0].name, "fig9_total");
        let sum: f64 = summary[1..].iter().map(|part| part.mean).sum();
        assert!((sum / summary[0].mean - 1.0).abs() < 1e-3, "within the histogram's three digits");
        // Whole latencies are 5200 to 5497 ns; without the shortest and longest quarter, their mean is near
        // the middle.
        let middle: f64 = of.middle_ns.iter().sum();
        assert!((5_270.0..5_430.0).contains(&middle), "{middle}");
        let network = of.middle_ns[1] + of.middle_ns[4];
        assert!((of.network_percent - 100.0 * network / middle).abs() < 1e-9 && network < middle);
    }

    #[test]
    fn nothing_seen_is_nothing_measured() {
        let of = Breakdown::of("fig10", 1, &[RequesterTimestamps::default()], &[], None);
        assert_eq!((of.left_out, of.total_min_ns, of.points.len()), (1, 0, 0));
        assert!(of.total_mean_ns == 0.0 && of.network_percent == 0.0);
    }
}

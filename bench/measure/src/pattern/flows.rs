//! Patterns that are flows of accesses: latency against load, mixes of reads and writes, hot and cold pages.

use std::time::Duration;

use super::arrivals::Arrivals;
use super::flow::{Counts, Extent, Flow, LEAST};
use super::line_versions::LineVersions;
use super::memory::{LINE_BYTES, Memory};
use super::mix::Mix;
use super::order::Addresses;
use super::results::{Results, Setting};
use super::sweep::check_all;
use super::{Pattern, Plan, Share};
use crate::MeasureError;
use crate::report::{AxisUnit, Conditions, Curve, Plot, Samples, Scale};

/// Default offered rates, as shares of the closed loop's rate, which is the highest sustainable one.
const STEPS: [f64; 13] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1];

/// Memory under measurement, with its expected content.
pub struct Flows<'m> {
    pub memory: &'m mut dyn Memory,
    /// Version that each line of the memory must have.
    pub versions: &'m mut LineVersions,
}

/// Parameters of one flow; `depth` is the number of accesses in flight.
struct Traffic {
    addresses: Addresses,
    mix: Mix,
    arrivals: Option<Arrivals>,
    depth: usize,
}

impl Flows<'_> {
    /// Executes `traffic` within `extent` and records the latencies. The memory must be warm.
    fn serve(
        &mut self,
        traffic: &mut Traffic,
        extent: Extent,
        samples: &mut Samples,
    ) -> Result<Counts, MeasureError> {
        let (turns, arrivals) = (traffic.mix.turns(), traffic.arrivals.clone());
        let mut flow = Flow::new(&mut traffic.addresses, turns, arrivals, extent, self.versions, samples);
        self.memory.serve(&mut flow, traffic.depth)?;
        Ok(flow.counts())
    }

    /// Makes untimed accesses until as many pages as permitted are resident.
    fn warm(&mut self, traffic: &mut Traffic, plan: &Plan, setting: &Setting) -> Result<(), MeasureError> {
        let extent = Extent { ns: nanoseconds(plan.time), accesses: setting.warm_accesses(self.memory) };
        // A closed loop warms the memory in the shortest time.
        let arrivals = traffic.arrivals.take();
        let warmed = self.serve(traffic, extent, &mut Samples::new("warm"));
        traffic.arrivals = arrivals;
        warmed.map(drop)
    }

    /// Measures `traffic` for the time in the plan, and adds the result under `conditions`.
    fn measure(
        &mut self,
        traffic: &mut Traffic,
        plan: &Plan,
        mut conditions: Conditions,
        results: &mut Results,
    ) -> Result<Counts, MeasureError> {
        let mut samples = Samples::new(&conditions.name);
        let before = (self.versions.checked, self.versions.wrong);
        // At a low offered rate, the plan's time may be too short for the minimum number of accesses, so the time limit
        // is extended.
        let arrivals_ns = conditions.offered_per_s.map_or(0, |rate| (2.0 * LEAST as f64 * 1e9 / rate) as u64);
        let extent = Extent { ns: nanoseconds(plan.time).max(arrivals_ns), accesses: u64::MAX };
        let counts = self.serve(traffic, extent, &mut samples)?;
        conditions.operations = counts.done();
        conditions.checked = self.versions.checked - before.0;
        conditions.wrong = self.versions.wrong - before.1;
        conditions.mix = Some(traffic.mix.to_string());
        conditions.depth = Some(traffic.depth as u64);
        conditions.not_begun = traffic.arrivals.as_ref().map(|_| counts.not_begun);
        // If an open loop keeps up, its last access completes before the time limit. Its rate is nevertheless that over
        // the whole time limit.
        let ns = if traffic.arrivals.is_some() { counts.last_ns.max(extent.ns) } else { counts.last_ns };
        results.add(conditions, Some(samples), LINE_BYTES, Duration::from_nanos(ns));
        Ok(counts)
    }

    /// Measures latency against load: first a closed loop, which finds the highest rate, then an open loop at
    /// increasing rates.
    pub fn load(
        &mut self,
        plan: &Plan,
        setting: &Setting,
        results: &mut Results,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), MeasureError> {
        let addresses = Addresses::random(self.memory.lines(), plan.seed);
        let mut traffic = Traffic { addresses, mix: plan.traffic, arrivals: None, depth: plan.depth };
        self.warm(&mut traffic, plan, setting)?;
        progress(&format!("load-latency over {}: the most there is", self.memory.over()));
        let closed = setting.conditions(Pattern::LoadLatency, "load_closed", self.memory);
        let counts = self.measure(&mut traffic, plan, closed, results)?;
        let most = counts.done() as f64 * 1e9 / counts.last_ns.max(1) as f64;
        let mut rates = match &plan.rates {
            Some(rates) => rates.clone(),
            None => STEPS.map(|share| (share * most).round().max(1.0)).to_vec(),
        };
        rates.dedup();
        let mut points = Vec::new();
        for rate in rates {
            progress(&format!("load-latency over {}: {rate:.0}/s", self.memory.over()));
            let what = format!("load_{rate:.0}");
            let mut conditions = setting.conditions(Pattern::LoadLatency, &what, self.memory);
            conditions.offered_per_s = Some(rate);
            points.push(conditions.name.clone());
            traffic.arrivals = Some(Arrivals::new(rate, plan.spacing, plan.seed));
            self.measure(&mut traffic, plan, conditions, results)?;
        }
        results.plots.push(load_plot(self.memory, setting, &points, results));
        Ok(())
    }

    /// Measures sequential and random accesses with each mix of reads and writes in the plan, with as many in
    /// flight as the memory permits.
    pub fn mixes(
        &mut self,
        plan: &Plan,
        setting: &Setting,
        results: &mut Results,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), MeasureError> {
        let lines = self.memory.lines();
        for order in ["sequential", "random"] {
            for &mix in &plan.mixes {
                progress(&format!("mix over {}: {order} {mix}", self.memory.over()));
                let addresses = match order {
                    "sequential" => Addresses::sequential(lines),
                    _ => Addresses::random(lines, plan.seed),
                };
                let mut traffic = Traffic { addresses, mix, arrivals: None, depth: plan.depth };
                self.warm(&mut traffic, plan, setting)?;
                let what = format!("mix_{order}_{}", mix.label());
                let mut conditions = setting.conditions(Pattern::Mix, &what, self.memory);
                conditions.order = Some(order.into());
                self.measure(&mut traffic, plan, conditions, results)?;
            }
        }
        self.check_all(Pattern::Mix, "mix_check", setting, results)
    }

    /// Measures accesses to few hot pages among cold ones, one at a time, for each share of hot pages in the
    /// plan, or by Zipf's law.
    pub fn hot_cold(
        &mut self,
        plan: &Plan,
        setting: &Setting,
        results: &mut Results,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), MeasureError> {
        if let Some(exponent) = plan.zipf {
            progress(&format!("Zipf's law over {}: {} resident", self.memory.over(), setting.share));
            let addresses = Addresses::zipf(self.memory.lines(), exponent, plan.seed);
            let mut traffic = Traffic { addresses, mix: plan.traffic, arrivals: None, depth: 1 };
            self.warm(&mut traffic, plan, setting)?;
            let conditions = setting.conditions(Pattern::HotCold, "hotcold_zipf", self.memory);
            self.measure(&mut traffic, plan, conditions, results)?;
        }
        for &hot in plan.hot.iter().filter(|_| plan.zipf.is_none()) {
            progress(&format!("hot-cold over {}: {} resident, {hot} hot", self.memory.over(), setting.share));
            let addresses = Addresses::hot_cold(self.memory.lines(), hot, plan.heat, plan.seed);
            let mut traffic = Traffic { addresses, mix: plan.traffic, arrivals: None, depth: 1 };
            self.warm(&mut traffic, plan, setting)?;
            let what = format!("hotcold_h{}", hot.label());
            let mut conditions = setting.conditions(Pattern::HotCold, &what, self.memory);
            conditions.hot = Some(hot.fraction());
            conditions.heat = Some(plan.heat.fraction());
            self.measure(&mut traffic, plan, conditions, results)?;
        }
        if plan.traffic != Mix::READS {
            self.check_all(Pattern::HotCold, "hotcold_check", setting, results)?;
        }
        Ok(())
    }

    /// Reads and compares all lines, which also checks writes that no later access has read.
    fn check_all(
        &mut self,
        pattern: Pattern,
        what: &str,
        setting: &Setting,
        results: &mut Results,
    ) -> Result<(), MeasureError> {
        let mut conditions = setting.conditions(pattern, what, self.memory);
        let before = (self.versions.checked, self.versions.wrong);
        let start = std::time::Instant::now();
        check_all(self.versions, self.memory)?;
        let took = start.elapsed();
        conditions.checked = self.versions.checked - before.0;
        conditions.wrong = self.versions.wrong - before.1;
        conditions.operations = conditions.checked;
        results.add(conditions, None, LINE_BYTES, took);
        Ok(())
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the plot of latency against load, with a curve for each percentile.
fn load_plot(memory: &dyn Memory, setting: &Setting, points: &[String], results: &Results) -> Plot {
    let mut curves = ["p50", "p99", "p99.9"].map(|name| Curve { name: name.into(), points: Vec::new() });
    for name in points {
        let rate = results.rates.iter().find(|rate| rate.name == *name);
        let times = results.samples.iter().find(|samples| samples.name() == name).and_then(Samples::summary);
        if let (Some(rate), Some(times)) = (rate, times) {
            for (curve, time) in curves.iter_mut().zip([times.p50, times.p99, times.p999]) {
                curve.points.push((rate.ops_per_s, time));
            }
        }
    }
    Plot {
        pattern: Pattern::LoadLatency.name().into(),
        title: format!("over {}, {} % resident", memory.over(), setting.share.label()),
        x: Scale { label: "accesses done".into(), unit: AxisUnit::OpsPerS, logarithmic: false },
        y: Scale { label: "time from when it was wanted".into(), unit: AxisUnit::Ns, logarithmic: true },
        curves: curves.to_vec(),
    }
}

/// Returns the plot of mean latency against the share of hot pages, with a curve for each resident share.
pub fn hot_cold_plot(over: &str, shares: &[Share], results: &Results) -> Plot {
    let curve = |share: &Share| {
        let of_share = results.conditions.iter().filter(|c| {
            c.pattern == Pattern::HotCold.name() && c.over == over && c.resident == share.fraction()
        });
        let points = of_share.filter_map(|conditions| {
            let samples = results.samples.iter().find(|samples| samples.name() == conditions.name)?;
            Some((conditions.hot?, samples.summary()?.mean))
        });
        Curve { name: format!("{} % resident", share.label()), points: points.collect() }
    };
    Plot {
        pattern: Pattern::HotCold.name().into(),
        title: format!("over {over}"),
        x: Scale { label: "share of the pages that is hot".into(), unit: AxisUnit::Share, logarithmic: true },
        y: Scale { label: "mean time of an access".into(), unit: AxisUnit::Ns, logarithmic: true },
        curves: shares.iter().map(curve).collect(),
    }
}

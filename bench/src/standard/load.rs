//! Latency of line reads at 70 % of the highest rate: a closed loop determines the highest rate, then an open loop
//! offers a share of it.

use std::time::Duration;

use cxloe_measure::pattern::arrivals::Spacing;
use cxloe_measure::pattern::memory::AccessPath;
use cxloe_measure::pattern::mix::Mix;
use cxloe_measure::pattern::{Pattern, Plan, Results, Share, measure};
use cxloe_measure::report::Samples;
use cxloe_measure::{MeasureError, MeasuredRegion};

/// Offered rate as a share of the highest rate.
const SHARE: f64 = 0.7;
/// Maximum size in bytes of the memory that is read. Each of its lines is written first, so that the content can be
/// checked.
const BYTES: u64 = 16 << 20;

/// Parameters of the measurement under load.
#[derive(Clone, Copy, Debug)]
pub struct LoadPlan {
    /// Number of trials, each of a closed loop and an open loop.
    pub trials: u32,
    /// Duration of each loop.
    pub each: Duration,
    /// Number of requests in flight.
    pub depth: usize,
}

/// Measures `read64_load70`: times of line reads over the port of `target`, each counted from the request's arrival.
/// Calls `progress` for each of `trials * 2` steps; returns the region.
pub fn under_load(
    mut target: MeasuredRegion,
    plan: LoadPlan,
    progress: &mut dyn FnMut(&str),
) -> Result<(MeasuredRegion, Samples), MeasureError> {
    let mut samples = Samples::new("read64_load70");
    for trial in 0..plan.trials {
        progress("the most there is");
        let results;
        (target, results) = loops(target, plan, trial, Vec::new())?;
        let most = results.rates.first().map_or(0.0, |rate| rate.ops_per_s);
        progress("70 % of it");
        let results;
        (target, results) = loops(target, plan, trial, vec![(SHARE * most).max(1.0)])?;
        let open = results.conditions.iter().find(|conditions| conditions.offered_per_s.is_some());
        let open = open.and_then(|open| results.samples.iter().find(|samples| samples.name() == open.name));
        if let Some(open) = open {
            samples.add_trial(open, results.bounce_ns);
        }
    }
    Ok((target, samples))
}

/// Runs a closed loop, and an open one at each of `rates`.
fn loops(
    target: MeasuredRegion,
    plan: LoadPlan,
    trial: u32,
    rates: Vec<f64>,
) -> Result<(MeasuredRegion, Results), MeasureError> {
    let bytes = target.bytes.min(BYTES);
    let plan = Plan {
        patterns: vec![Pattern::LoadLatency],
        over: vec![AccessPath::Port],
        bytes,
        resident: vec![Share::NONE],
        time: plan.each,
        seed: u64::from(trial) + 1,
        depth: plan.depth,
        rates: Some(rates),
        spacing: Spacing::Poisson,
        traffic: Mix::READS,
        mixes: Vec::new(),
        hot: Vec::new(),
        heat: Share::NONE,
        zipf: None,
        iterations: 0,
    };
    measure(target, None, &plan, &mut |_| {})
}

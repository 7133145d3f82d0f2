//! How long a line takes when 70 % of the most there is is asked for, whoever is served: an open loop at a share of what a
//! closed one has just reached.

use std::time::Duration;

use crate::measure::{MeasureError, Target};
use crate::pattern::arrivals::Spacing;
use crate::pattern::memory::Over;
use crate::pattern::mix::Mix;
use crate::pattern::{Pattern, Plan, Results, Share, measure};
use crate::report::Samples;

/// The share of the most there is that is asked for.
const SHARE: f64 = 0.7;
/// Bytes of lines that are asked for, at most: every one is written first, so that it can be checked.
const BYTES: u64 = 16 << 20;

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct LoadPlan {
    /// Trials: a closed loop and an open one each.
    pub trials: u32,
    /// How long each loop lasts.
    pub each: Duration,
    /// Requests under way at once.
    pub depth: usize,
}

/// `read64_load70`: line reads over the port of `target`, which comes back, timed from when they were wanted. `progress` hears of
/// `trials * 2` steps.
///
/// # Errors
/// Any [`MeasureError`].
pub fn under_load(
    mut target: Target,
    plan: LoadPlan,
    progress: &mut dyn FnMut(&str),
) -> Result<(Target, Samples), MeasureError> {
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

/// A closed loop, and an open one at each of `rates`.
fn loops(
    target: Target,
    plan: LoadPlan,
    trial: u32,
    rates: Vec<f64>,
) -> Result<(Target, Results), MeasureError> {
    let bytes = target.bytes.min(BYTES);
    let plan = Plan {
        patterns: vec![Pattern::LoadLatency],
        over: vec![Over::Port],
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

//! Access patterns, measured over every way to access remote memory.
//!
//! ```text
//!   Plan ---> for each way (memory): for each resident share: for each pattern ---> Results ---> report
//!
//!   load-latency, mix, hot-cold   flows of accesses (flow): lines from order, reads and writes from mix, times
//!                                 from arrivals; line_versions compares every read with the last write
//!   chase, gups, stream           programs of their own, each with a check of its own
//! ```

pub mod arrivals;
mod chase;
pub mod flow;
mod flows;
mod gups;
pub mod line_versions;
pub mod memory;
pub mod mix;
pub mod order;
mod results;
mod share;
mod stream;
mod sweep;

use std::time::Duration;

use arrivals::Spacing;
use chase::Chain;
use flows::Flows;
use memory::{AccessPath, Memory};
use mix::Mix;
pub use results::Results;
use results::Setting;
pub use share::{Share, ShareError};

use crate::fault::Agent;
use crate::{MeasureError, MeasuredRegion};

cxloe_wire::named! {
    /// Pattern of accesses to measure.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
    pub enum Pattern {
        /// Latency against load: random lines requested at increasing rates (open loop)
        LoadLatency = "load-latency",
        /// Pointer chase: each line contains the address of the next
        Chase = "chase",
        /// Random updates of single words (the HPC Challenge's RandomAccess)
        Gups = "gups",
        /// STREAM: copy, scale, add, triad
        Stream = "stream",
        /// Sequential and random accesses, reads and writes in the proportions of Intel's Memory Latency Checker
        Mix = "mix",
        /// Few hot pages among cold ones: latency against resident shares and hot shares
        HotCold = "hot-cold",
    }
}

/// Patterns to measure, with their parameters.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Patterns to measure, in any order; a run measures them in an order of its own.
    pub patterns: Vec<Pattern>,
    /// Ways to access memory, each measured with all patterns.
    pub over: Vec<AccessPath>,
    /// Size of the working set in bytes; rounded down to a power of two of lines.
    pub bytes: u64,
    /// Resident shares to measure with; empty for each pattern's default.
    pub resident: Vec<Share>,
    /// Duration of each pattern under each setting.
    pub time: Duration,
    /// Seed of random addresses and arrivals.
    pub seed: u64,
    /// Number of requests in flight over the port.
    pub depth: usize,
    /// Offered rates of load-latency in accesses per second; `None` for steps up to the highest sustainable
    /// rate and beyond.
    pub rates: Option<Vec<f64>>,
    /// Distribution of arrivals of load-latency.
    pub spacing: Spacing,
    /// Ratio of reads to writes of load-latency and hot-cold.
    pub traffic: Mix,
    /// Ratios of reads to writes that the pattern mix measures, one after the other.
    pub mixes: Vec<Mix>,
    /// Shares of hot pages that hot-cold measures, one after the other.
    pub hot: Vec<Share>,
    /// Share of hot-cold's accesses that go to hot pages.
    pub heat: Share,
    /// Exponent of Zipf's law; if set, hot-cold chooses pages by that law instead of by `hot` and `heat`.
    pub zipf: Option<f64>,
    /// Number of timed iterations of stream.
    pub iterations: u32,
}

impl Plan {
    /// Returns the resident shares with which `pattern` is measured, in order.
    fn shares(&self, pattern: Pattern, over: AccessPath) -> Vec<Share> {
        match (over, pattern) {
            // Local memory is resident whatever share is requested.
            (AccessPath::Local, _) => vec![Share::percent(100.0)],
            _ if !self.resident.is_empty() => self.resident.clone(),
            (_, Pattern::HotCold) => [10.0, 25.0, 50.0].map(Share::percent).to_vec(),
            (AccessPath::Port, _) => vec![Share::NONE],
            (AccessPath::Mapped | AccessPath::Inline, _) => vec![Share::percent(50.0)],
        }
    }

    /// Returns an upper bound of the number of `progress` calls.
    pub fn steps(&self) -> u64 {
        let of = |over: AccessPath, pattern: Pattern| {
            let steps = match pattern {
                Pattern::LoadLatency => 1 + self.rates.as_ref().map_or(13, Vec::len),
                Pattern::Mix => 2 * self.mixes.len(),
                Pattern::HotCold if self.zipf.is_some() => 1,
                Pattern::HotCold => self.hot.len(),
                Pattern::Chase | Pattern::Gups | Pattern::Stream => 1,
            };
            (steps * self.shares(pattern, over).len()) as u64
        };
        self.over.iter().flat_map(|over| self.patterns.iter().map(move |pattern| of(*over, *pattern))).sum()
    }
}

/// Measures according to `plan`, one way of access after the other, and returns `target`. Calls `progress`
/// for each step.
///
/// # Panics
/// Panics if mapped memory is requested without an agent.
pub fn measure(
    mut target: MeasuredRegion,
    agent: Option<&Agent>,
    plan: &Plan,
    progress: &mut dyn FnMut(&str),
) -> Result<(MeasuredRegion, Results), MeasureError> {
    let mut results = Results::default();
    target.port.set_depth(plan.depth);
    for &over in &plan.over {
        target.check()?;
        results.bounce_ns = target.bounce();
        let mut all = |memory: &mut dyn Memory| run(memory, plan, &mut results, progress);
        match over {
            AccessPath::Port => memory::over_port(&mut target, plan.bytes, all)?,
            AccessPath::Mapped => {
                let agent = agent.expect("mapped memory needs an agent");
                memory::over_mapping(agent, &target, plan.bytes, all)?;
            }
            AccessPath::Inline => (target, ()) = memory::over_inline(target, plan.bytes, all)?,
            AccessPath::Local => all(&mut memory::local(plan.bytes, target.interrupt.clone()))?,
        }
    }
    Ok((target, results))
}

/// Measures all patterns of the plan over one way of access.
fn run(
    memory: &mut dyn Memory,
    plan: &Plan,
    results: &mut Results,
    progress: &mut dyn FnMut(&str),
) -> Result<(), MeasureError> {
    let over = memory.over();
    // Patterns that need the same content run one after the other, so that the memory is filled once for
    // them.
    let wants = |pattern: &Pattern| plan.patterns.contains(pattern);
    let flows = [Pattern::LoadLatency, Pattern::Mix, Pattern::HotCold].into_iter().filter(wants);
    let mut versions = None;
    for pattern in flows {
        let versions = match &mut versions {
            Some(versions) => versions,
            None => versions.insert(sweep::stamp_all(memory)?),
        };
        let shares = plan.shares(pattern, over);
        for &share in &shares {
            let setting = Setting { share, bytes: memory.set_resident(share)? };
            let mut flows = Flows { memory, versions };
            match pattern {
                Pattern::LoadLatency => flows.load(plan, &setting, results, progress)?,
                Pattern::Mix => flows.mixes(plan, &setting, results, progress)?,
                _ => flows.hot_cold(plan, &setting, results, progress)?,
            }
        }
        if pattern == Pattern::HotCold && plan.zipf.is_none() {
            results.plots.push(flows::hot_cold_plot(over.name(), &shares, results));
        }
    }
    for pattern in [Pattern::Chase, Pattern::Gups, Pattern::Stream].into_iter().filter(wants) {
        let mut chain = None;
        for share in plan.shares(pattern, over) {
            progress(&format!("{pattern} over {over}: {share} resident"));
            if pattern == Pattern::Chase && chain.is_none() {
                chain = Some(Chain::lay(memory, plan.seed)?);
            }
            let setting = Setting { share, bytes: memory.set_resident(share)? };
            match (pattern, &chain) {
                (Pattern::Chase, Some(chain)) => chain.run(memory, plan, &setting, results)?,
                (Pattern::Gups, _) => gups::run(memory, plan, &setting, results)?,
                _ => stream::run(memory, plan, &setting, results)?,
            }
        }
    }
    Ok(())
}

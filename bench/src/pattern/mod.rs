//! Access patterns that users know, over every way to reach remote memory.
//!
//! ```text
//!   Plan ---> for each way (memory): for each resident share: for each pattern ---> Results ---> report
//!
//!   load-latency, mix, hot-cold   flows of accesses (flow), lines chosen (order), read or written (mix), when wanted
//!                                 (arrivals); every read is compared with the write it has to see (line_versions)
//!   chase, gups, stream           programs of their own, each with the check that belongs to it
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

use std::fmt;
use std::time::Duration;

use arrivals::Spacing;
use chase::Chain;
use flows::Flows;
use memory::{Memory, Over};
use mix::Mix;
pub use results::Results;
use results::Setting;
pub use share::{Share, ShareError};

use crate::measure::fault::Agent;
use crate::measure::{MeasureError, Target};

/// A pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Pattern {
    /// Latency against load: random lines wanted at one rate after the other (open loop)
    LoadLatency,
    /// Pointer chase: each line names the next one
    Chase,
    /// Random updates of single words (the HPC Challenge's RandomAccess)
    Gups,
    /// STREAM: copy, scale, add, triad
    Stream,
    /// Sequential and random accesses, reads and writes in the proportions of Intel MLC
    Mix,
    /// Few hot pages among cold ones: shares resident against shares that are hot
    HotCold,
}

impl Pattern {
    /// All of them, in the order of reports.
    pub const ALL: [Pattern; 6] = [
        Pattern::LoadLatency,
        Pattern::Chase,
        Pattern::Gups,
        Pattern::Stream,
        Pattern::Mix,
        Pattern::HotCold,
    ];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::LoadLatency => "load-latency",
            Pattern::Chase => "chase",
            Pattern::Gups => "gups",
            Pattern::Stream => "stream",
            Pattern::Mix => "mix",
            Pattern::HotCold => "hot-cold",
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Patterns.
    pub patterns: Vec<Pattern>,
    /// Ways to reach memory.
    pub over: Vec<Over>,
    /// Bytes to go through; the largest power of two of lines in them is.
    pub bytes: u64,
    /// Shares of it that may be resident; empty for what suits each pattern.
    pub resident: Vec<Share>,
    /// How long each measurement lasts.
    pub time: Duration,
    /// Where chance begins.
    pub seed: u64,
    /// Requests under way at once over the port.
    pub depth: usize,
    /// Load-latency: the rates offered, per second; `None` for steps up to what there is.
    pub rates: Option<Vec<f64>>,
    /// Load-latency: how arrivals are spaced.
    pub spacing: Spacing,
    /// Load-latency and hot-cold: reads to writes.
    pub traffic: Mix,
    /// Mix: reads to writes, one after the other.
    pub mixes: Vec<Mix>,
    /// Hot-cold: shares of the pages that are hot.
    pub hot: Vec<Share>,
    /// Hot-cold: share of the accesses that go to them.
    pub heat: Share,
    /// Hot-cold: pages by Zipf's law with this exponent instead.
    pub zipf: Option<f64>,
    /// Stream: iterations that count.
    pub iterations: u32,
}

impl Plan {
    /// The shares that are resident in turn while `pattern` runs.
    fn shares(&self, pattern: Pattern, over: Over) -> Vec<Share> {
        match (over, pattern) {
            // What is local is here.
            (Over::Local, _) => vec![Share::percent(100.0)],
            _ if !self.resident.is_empty() => self.resident.clone(),
            (_, Pattern::HotCold) => [10.0, 25.0, 50.0].map(Share::percent).to_vec(),
            (Over::Port, _) => vec![Share::NONE],
            (Over::Mapped | Over::Inline, _) => vec![Share::percent(50.0)],
        }
    }

    /// Steps that the progress of all of it has, at most.
    pub fn steps(&self) -> u64 {
        let of = |over: Over, pattern: Pattern| {
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

/// Measures what `plan` says and gives the target back. `progress` hears of each step.
///
/// # Panics
/// If mapped memory is asked for and there is no agent.
pub fn measure(
    mut target: Target,
    agent: Option<&Agent>,
    plan: &Plan,
    progress: &mut dyn FnMut(&str),
) -> Result<(Target, Results), MeasureError> {
    let mut results = Results::default();
    target.port.set_depth(plan.depth);
    for &over in &plan.over {
        target.check()?;
        results.bounce_ns = target.bounce();
        let mut all = |memory: &mut dyn Memory| run(memory, plan, &mut results, progress);
        match over {
            Over::Port => memory::over_port(&mut target, plan.bytes, all)?,
            Over::Mapped => {
                let agent = agent.expect("mapped memory needs an agent");
                memory::over_mapping(agent, &target, plan.bytes, all)?;
            }
            Over::Inline => (target, ()) = memory::over_inline(target, plan.bytes, all)?,
            Over::Local => all(&mut memory::local(plan.bytes, target.interrupt.clone()))?,
        }
    }
    Ok((target, results))
}

/// Runs all patterns over one memory.
fn run(
    memory: &mut dyn Memory,
    plan: &Plan,
    results: &mut Results,
    progress: &mut dyn FnMut(&str),
) -> Result<(), MeasureError> {
    let over = memory.over();
    // Those that need the same content one after the other.
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

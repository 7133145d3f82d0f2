//! Page faults of remote memory with their lower limits, and bulk access of mapped memory. The kinds
//! alternate trial by trial in one thread, so that changes of the machine's speed affect all alike. Times are
//! taken in batches of some milliseconds, each with the latency between the cores before and after it.

use cxloe_wire::random::Random;
use std::time::{Duration, Instant};

use cxloe_port::inline::InlineOptions;
use cxloe_wire::frame::PAGE_LINES;

use super::bare::rate;
use super::fault_inline::SentTraffic;
pub use super::fault_mapped::Agent;
use super::fault_mapped::{read_at_random, read_through};
use super::fault_words::PAGE_BYTES;
use super::floor::Local;
use super::floor_fault::FaultFloors;
use super::glance::in_batches;
use super::{MeasureError, MeasuredRegion};
use crate::report::{Samples, Throughput, ThroughputTrial};

#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// Number of trials; each measures all lower limits and faults alternately.
    pub trials: u32,
    /// Number of faults and fetches of each kind in a trial.
    pub faults: u64,
    /// Number of pages read in order in a trial.
    pub pages: usize,
    /// CPU of the thread that serves the faults of the lower limit; if `None`, the thread may run on any CPU of the
    /// measuring thread.
    pub pager_cpu: Option<usize>,
    /// Agent through which faults are measured, besides the faults that this process serves itself.
    pub agent: Option<Agent>,
}

/// Number of batches of copies and reads of local memory in a trial.
const LOCAL_BATCHES: u64 = 200;
/// Number of pages that a trial writes in order to time their write-back.
const WRITTEN_PAGES: usize = 1024;

/// Number of `progress` calls in each trial.
pub const STEPS: u64 = 9;

pub struct FaultResults {
    /// Latencies of faults, and of the operations that are their lower limits.
    pub samples: Vec<Samples>,
    /// Rates of bulk access to mapped memory, and of bursts for comparison.
    pub rates: Vec<Throughput>,
}

/// Names of the latencies in the order of the report.
const TIMES: [&str; 8] = [
    "uffd_floor4k",
    "uffd_inline_floor4k",
    "fetch4k",
    "fault4k",
    "fault4k_inline",
    "spin20us",
    "memcpy4k",
    "dram64",
];
/// Names of the latencies near the clock's resolution, which are taken over many operations at once.
const FINE: [&str; 2] = ["memcpy4k", "dram64"];
/// Names of the rates in the order of the report.
const RATES: [&str; 9] = [
    "burst_read",
    "mapped_read",
    "inline_read",
    "mapped_random",
    "mapped_random_plain",
    "inline_random",
    "inline_random_plain",
    "write_back_line",
    "write_back_page",
];

/// Samples and rates of all trials so far, by name. `bounce` is the latency between the cores in the present
/// trial.
struct Collector {
    samples: Vec<Samples>,
    rates: Vec<(&'static str, Vec<ThroughputTrial>)>,
    bounce: Option<f64>,
}

impl Collector {
    fn new() -> Collector {
        let samples = |name| if FINE.contains(&name) { Samples::fine(name) } else { Samples::new(name) };
        Collector {
            samples: TIMES.into_iter().map(samples).collect(),
            rates: RATES.into_iter().map(|name| (name, Vec::new())).collect(),
            bounce: None,
        }
    }

    /// Passes the samples called `name` to `measure`, which must end the trial of these samples.
    fn time<R>(
        &mut self,
        name: &str,
        measure: impl FnOnce(&mut Samples) -> Result<R, MeasureError>,
    ) -> Result<R, MeasureError> {
        measure(self.samples.iter_mut().find(|s| s.name() == name).expect("it is in TIMES"))
    }

    fn rate(&mut self, name: &str, operations: u64, bytes: u64, took: Duration) {
        let (_, trials) = self.rates.iter_mut().find(|(known, _)| *known == name).expect("it is in RATES");
        trials.push(rate(operations, bytes, took, self.bounce));
    }

    fn pages(&mut self, name: &str, (pages, took): (u64, Duration)) {
        self.rate(name, pages, pages * PAGE_BYTES as u64, took);
    }

    fn finish(self) -> FaultResults {
        let rates = self.rates.into_iter();
        let rates = rates.filter_map(|(name, trials)| Throughput::from_trials(name, trials)).collect();
        FaultResults { samples: self.samples, rates }
    }
}

/// Measures faults and their lower limits over the port of `target`, and returns `target`. Calls `progress`
/// for each of `trials * STEPS` steps.
pub fn measure(
    mut target: MeasuredRegion,
    plan: &FaultPlan,
    progress: &mut dyn FnMut(&str),
) -> Result<(MeasuredRegion, FaultResults), MeasureError> {
    let mut results = Collector::new();
    let mut floors = FaultFloors::new(plan.pager_cpu)?;
    let mut local = Local::new();
    target.mark()?;
    if let Some(agent) = &plan.agent {
        agent.mark(&target)?;
    }
    for trial in 0..plan.trials as usize {
        target.check()?;
        results.bounce = target.bounce();
        let glance = target.glance();
        progress("bare fetches");
        if target.echo {
            results.time("fetch4k", |samples| {
                in_batches(&glance, plan.faults, samples, |some, samples| target.fetch_trial(some, samples))
            })?;
        }
        // Makes the memory node's worker leave its echo loop; faults need its normal service.
        target.settle()?;
        progress("faults served locally");
        results.time("uffd_floor4k", |samples| {
            in_batches(&glance, plan.faults, samples, |some, samples| floors.served(some, samples))
        })?;
        results.time("uffd_inline_floor4k", |samples| {
            in_batches(&glance, plan.faults, samples, |some, samples| floors.inline(some, samples))
        })?;
        progress("faults through the agent");
        if let Some(agent) = &plan.agent {
            results.time("fault4k", |samples| agent.faults(&target, plan.faults, trial, samples))?;
        }
        progress("faults in place");
        target =
            results.time("fault4k_inline", |samples| target.inline_faults(plan.faults, trial, samples))?;
        target.check()?;
        results.time("spin20us", |samples| {
            Local::spins(plan.faults, samples);
            samples.end_trial(None);
            Ok(())
        })?;
        target = bulk(target, plan, trial, &mut results, progress)?;
        progress("local memory");
        results.time("memcpy4k", |samples| {
            local.copies(LOCAL_BATCHES, samples);
            samples.end_trial(None);
            Ok(())
        })?;
        results.time("dram64", |samples| {
            local.reads(LOCAL_BATCHES, samples);
            samples.end_trial(None);
            Ok(())
        })?;
    }
    Ok((target, results.finish()))
}

/// Makes one trial of bulk access to mapped memory: reads in order and at random, and write-back.
fn bulk(
    mut target: MeasuredRegion,
    plan: &FaultPlan,
    trial: usize,
    results: &mut Collector,
    progress: &mut dyn FnMut(&str),
) -> Result<MeasuredRegion, MeasureError> {
    progress("bursts");
    let burst = target.burst_reads(plan.pages, trial)?;
    results.pages("burst_read", burst);

    progress("reading in order");
    let quarter = target.whole_region() / 4;
    let options = InlineOptions { local: quarter, ..InlineOptions::default() };
    if let Some(agent) = &plan.agent {
        let read = agent.read_through(&target, plan.pages)?;
        results.pages("mapped_read", read);
    }
    let whole = target.whole_region();
    let read;
    (target, read, _) = target.inline(whole, options, |words| read_through(words, plan.pages))?;
    results.pages("inline_read", read);

    progress("reading at random");
    let count = plan.faults as usize;
    // Access is measured with and without prefetcher; which of the two comes first changes from trial to trial, so that
    // neither profits from the order.
    for prefetch in [trial.is_multiple_of(2), !trial.is_multiple_of(2)] {
        let plain = if prefetch { "" } else { "_plain" };
        if let Some(agent) = &plan.agent {
            let read = agent.read_at_random(&target, count, trial, prefetch)?;
            results.pages(&format!("mapped_random{plain}"), read);
        }
        let options = InlineOptions { prefetch, ..options };
        let read;
        (target, read, _) = target.inline(whole, options, |words| read_at_random(words, count, trial))?;
        results.pages(&format!("inline_random{plain}"), read);
    }

    progress("writing back");
    // Write-back skips a line that is equal to the memory node's copy, so each trial writes other values.
    let value = 2 * trial as u64;
    let (none, line, page);
    // Fetching the pages sends frames too. A mapping that is only read shows how many bytes to subtract.
    (target, none) = target.inline_write_back(WRITTEN_PAGES, 0, 0)?;
    (target, line) = target.inline_write_back(WRITTEN_PAGES, 1, value + 1)?;
    (target, page) = target.inline_write_back(WRITTEN_PAGES, PAGE_LINES, value + 2)?;
    for (name, SentTraffic { bytes, took }) in [("write_back_line", line), ("write_back_page", page)] {
        results.rate(name, WRITTEN_PAGES as u64, bytes.saturating_sub(none.bytes), took);
    }
    Ok(target)
}

impl MeasuredRegion {
    /// Reads lines until the memory node's worker has left its echo loop, which would slow the first measured
    /// reads.
    fn settle(&mut self) -> Result<(), MeasureError> {
        for _ in 0..16 {
            self.port.read(self.hpa)?;
        }
        Ok(())
    }

    /// Reads at least `pages` pages by bursts with a full window, to compare with sequential reads of mapped
    /// pages. Returns the number of pages and the time.
    fn burst_reads(&mut self, pages: usize, seed: usize) -> Result<(u64, Duration), MeasureError> {
        const CALL_PAGES: usize = 1024;
        let pages = pages.min((self.whole_region() / PAGE_BYTES as u64) as usize);
        let mut buffer = vec![0_u8; CALL_PAGES.min(pages) * PAGE_BYTES];
        let calls = pages.div_ceil(CALL_PAGES) as u64;
        let mut addresses = Random::new(seed as u64);
        let room = self.bytes / buffer.len() as u64;
        let start = Instant::now();
        for _ in 0..calls {
            let at = self.hpa + addresses.below(room) * buffer.len() as u64;
            self.port.read_bytes(at, &mut buffer)?;
        }
        Ok((calls * (buffer.len() / PAGE_BYTES) as u64, start.elapsed()))
    }
}

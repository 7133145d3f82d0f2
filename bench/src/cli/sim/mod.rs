//! `cxloe-bench sim`: simulated runs, each repeatable from its seed, and their findings.

mod by_name;
mod overrides;
mod summary;

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use self::by_name::by_name;
use self::overrides::OverrideArgs;
use self::summary::Summary;
use super::Failure;
use super::common::{ProgressUnit, bar, put};
use cxloe_daemon::to_stderr;
use cxloe_lab::Interrupt;
use cxloe_sim::{Campaign, CampaignResults, Scenario, Trace};

/// Run the whole system over a simulated network, and check every result
///
/// The released code of the manager, of mn-server's service and mappings, and of cn-agent's engine and attachments runs
/// in virtual time over networks that lose, duplicate, reorder and damage frames and messages, between nodes that are
/// paused, restarted and killed. Every fault is derived from the seed, to the last frame. Every read is checked: it has
/// to return the last write; every operation has to end; at the end the memory has to hold the last writes, and the
/// manager and the nodes have to agree about all mappings. A seed that fails is printed with the command that repeats
/// it with every event, frame by frame.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Scenario of the runs: kinds of nodes, load and faults
    #[arg(long, value_name = "NAME", value_parser = by_name::<Scenario>(), default_value_t = Scenario::Mixed)]
    scenario: Scenario,

    /// Run this seed only
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "start"])]
    seed: Option<u64>,

    /// Number of seeds to run
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,

    /// Seed of the first run; later runs count up from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    start: u64,

    /// Threads; each runs seeds of its own [default: one for each core]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// Continue after a seed has failed
    #[arg(long)]
    keep_going: bool,

    /// Print every event: frames with their numbers and fates, operations, faults
    #[arg(long, requires = "seed", help_heading = "Output")]
    trace: bool,

    /// Print only this number of last lines of the trace
    #[arg(long, value_name = "LINES", requires = "seed", conflicts_with = "trace", help_heading = "Output")]
    trace_last: Option<usize>,

    /// Write the results as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    json: Option<PathBuf>,

    #[command(flatten)]
    overrides: OverrideArgs,
}

const EXAMPLES: &str = "\
Examples:
  A thousand runs, of everything that can go wrong:
    cxloe-bench sim

  Other ones, on other days:
    cxloe-bench sim --seeds 100000 --start $(date +%s)

  What a loss of 1 % does to latency, 4 streams, no cache:
    cxloe-bench sim --scenario calm --loss 1% --streams 4 --cache 0

  Eight compute nodes at 100 Gbit/s and a memory node that takes in 10 frames a microsecond:
    cxloe-bench sim --scenario congested --cns 8 --service-rate 10

  What happened in one run, frame by frame, or its end only:
    cxloe-bench sim --seed 7 --scenario restarts --trace
    cxloe-bench sim --seed 7 --scenario restarts --trace-last 50

  Regions made, grown, disabled and destroyed under load, and the manager killed at any point:
    cxloe-bench sim --scenario managers --seeds 10000

  See the checks fail: memory nodes that lose a write now and then:
    cxloe-bench sim --scenario calm --plant loses-writes

Exit codes: 0 every check held, 1 a seed failed, 2 wrong usage, 130 ended by Ctrl-C.";

/// Maximum number of failed seeds that are listed one by one.
const NAMED_MAX: usize = 10;

pub fn run(args: &Args, interrupt: Interrupt) -> Result<(), Failure> {
    let campaign = Campaign {
        scenario: args.scenario,
        overrides: args.overrides.clone().into(),
        start: args.seed.unwrap_or(args.start),
        seeds: if args.seed.is_some() { 1 } else { args.seeds },
        jobs: args.jobs.map_or_else(cores, NonZeroUsize::get),
        keep_going: args.keep_going,
    };
    let goes_on = || interrupt.check().is_ok();
    let outcome = match (args.trace, args.trace_last) {
        (false, None) => with_progress(&campaign, &interrupt),
        (true, _) => campaign.run_traced(
            &Trace::to(|line| {
                // A closed pipe (`| head`) is no error.
                let _ = writeln!(std::io::stdout(), "{line}");
            }),
            &goes_on,
        ),
        (false, Some(lines)) => {
            let trace = Trace::keeping(lines);
            let outcome = campaign.run_traced(&trace, &goes_on);
            let _ = write!(std::io::stdout(), "{}", trace.tail());
            outcome
        }
    };
    let summary = Summary::new(&campaign, &outcome);
    let _ = write!(std::io::stdout(), "{summary}");
    put("results:", &args.json, || Ok(serde_json::to_vec_pretty(&summary)?))?;
    for failing in summary.failing.iter().take(NAMED_MAX) {
        to_stderr!("\nseed {}: {}\n  reproduce: {}", failing.seed, failing.what, failing.reproduce);
    }
    if !summary.failing.is_empty() {
        return Err(format!("{} of {} seeds failed", summary.failing.len(), summary.seeds).into());
    }
    Ok(interrupt.check()?)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

fn with_progress(campaign: &Campaign, interrupt: &Interrupt) -> CampaignResults {
    let progress = bar(campaign.seeds, ProgressUnit::Steps);
    progress.set_message("seeds");
    let outcome = campaign.run(|done| {
        progress.set_position(done.seeds);
        progress.set_message(format!("seeds, {:.1} M operations", done.operations as f64 / 1e6));
        interrupt.check().is_ok()
    });
    progress.finish_and_clear();
    outcome
}

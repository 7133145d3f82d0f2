//! `cxloe-bench fault`: page faults and their lower limits, on an existing link or in a lab (see `pair`).
//!
//! The bench has a link of its own for frames without sessions and for the faults that it serves itself; faults through
//! the agent use a second link of the same kind.

use super::Failure;
use super::common::{OutputArgs, ProgressUnit, RegionArgs, Session, bar, report, step};
use super::pair::{LabOptions, OptionalLink, Setup, in_lab, on_link, usable};
use cxloe_lab::Interrupt;
use cxloe_measure::fault::{Agent, FaultPlan, FaultResults, STEPS, measure};
use cxloe_measure::floor_fault::FAULTS_MAX;
use cxloe_measure::report::{Report, Samples, Statistic};

/// Time page faults and their parts, alternately
///
/// fault4k is the first touch of a page mapped through an agent, fault4k_inline of one whose fault the
/// touching thread serves itself. Their floors: uffd_floor4k is a userfaultfd fault served from local memory
/// by another thread, uffd_inline_floor4k one served by the thread that makes it (SIGBUS mode), fetch4k the
/// frames of a page over the bare link; beside them spin20us, 20 us in which a thread only reads the clock
/// (its p99 is the machine's own), memcpy4k, a page copied, and dram64, a random line of local memory. In
/// bulk: mapped_read and inline_read go through a mapped region in order, *_random at random (*_plain: with
/// the prefetcher off), and write_back_* write back pages with one modified line, or with all lines modified.
///
/// Without --interface it runs in a lab of its own, in namespaces of this machine.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    link: OptionalLink,
    #[command(flatten)]
    region: RegionArgs,

    /// Trials; each measures floors and faults alternately
    #[arg(long, value_name = "N", default_value_t = 16)]
    trials: u32,

    /// Faults of each kind in a trial
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=FAULTS_MAX))]
    operations: u64,

    /// Pages read in order in a trial
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u64).range(1..))]
    pages: u64,

    /// CPU of the thread that serves the floor's faults [default: where the measuring thread runs]
    #[arg(long, value_name = "CPU")]
    pager_cpu: Option<usize>,

    /// Socket of a running agent to measure faults through [default: none; a lab has its own]
    #[arg(long, value_name = "PATH", requires = "agent_region", requires = "interface")]
    agent: Option<std::path::PathBuf>,

    /// The region of that agent to map, whose content is lost
    #[arg(long, value_name = "NAME", requires = "agent")]
    agent_region: Option<String>,

    /// MTU of the cables in a lab of its own
    #[arg(long, value_name = "BYTES", default_value_t = 1500, conflicts_with = "interface")]
    mtu: u32,

    #[command(flatten)]
    output: OutputArgs,
}

impl Args {
    /// True if the command makes a lab, for which this process must be able to create namespaces.
    pub fn makes_lab(&self) -> bool {
        self.link.0.is_none()
    }
}

pub fn run(args: &Args, interrupt: Interrupt) -> Result<(), Failure> {
    let Some(link) = &args.link.0 else {
        let options = LabOptions { name: "fault", mtu: args.mtu, region: &args.region, agent: true };
        return in_lab(&options, &interrupt, |place| at(args, place));
    };
    let agent = args.agent.clone().zip(args.agent_region.clone());
    let agent = agent.map(|(socket, region)| Agent { socket, region, processes: Vec::new() });
    on_link(link, &args.region, agent, interrupt, |place| at(args, place))
}

fn at(args: &Args, place: Setup) -> Result<(), Failure> {
    let (session, results) = timed(args, place.session, usable(place.agent))?;
    let bounce = session.target.bounce();
    let report = report(&session.link, &session.frames, place.interfaces, place.wait, bounce);
    finish(args, session, report, &results)
}

fn timed(args: &Args, session: Session, agent: Option<Agent>) -> Result<(Session, FaultResults), Failure> {
    let progress = bar(u64::from(args.trials) * STEPS, ProgressUnit::Steps);
    let plan = FaultPlan {
        trials: args.trials,
        faults: args.operations,
        pages: usize::try_from(args.pages)?,
        pager_cpu: args.pager_cpu,
        agent,
    };
    let (target, again) = session.into_parts();
    let (target, results) = measure(target, &plan, &mut |what| step(&progress, what))?;
    progress.finish_and_clear();
    Ok((again(target), results))
}

fn finish(args: &Args, session: Session, mut report: Report, results: &FaultResults) -> Result<(), Failure> {
    results.samples.iter().for_each(|samples| report.add(samples));
    results.rates.iter().for_each(|rate| report.add_throughput(rate.clone()));
    add_ratios(&mut report)?;
    session.close()?;
    let samples: Vec<&Samples> = results.samples.iter().collect();
    args.output.write(&report, &samples)
}

/// Adds the ratios of faults and of bulk transfers to their lower limits, where both were measured.
fn add_ratios(report: &mut Report) -> Result<(), Failure> {
    if report.result("fetch4k").is_some() {
        for (fault, floor) in [("fault4k", "uffd_floor4k"), ("fault4k_inline", "uffd_inline_floor4k")] {
            if report.result(fault).is_some() {
                report.add_ratio(&format!("{fault}/({floor}+fetch4k)"), Statistic::P50, Some(1.25))?;
            }
        }
    }
    // Target: a remote fault served by the faulting thread is no slower than a local one served by another thread.
    report.add_ratio("fault4k_inline/uffd_floor4k", Statistic::P50, Some(1.0))?;
    for (above, below, target) in [
        ("mapped_read", "burst_read", 0.7),
        ("inline_read", "burst_read", 0.7),
        ("mapped_random", "mapped_random_plain", 0.97),
        ("inline_random", "inline_random_plain", 0.97),
    ] {
        if report.rate(above).is_some() {
            report.add_ratio(&format!("{above}/{below}"), Statistic::BytesPerS, Some(target))?;
        }
    }
    report.add_ratio("write_back_line/write_back_page", Statistic::BytesPerOp, Some(0.05))?;
    Ok(())
}

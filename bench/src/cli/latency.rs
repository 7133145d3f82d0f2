//! `cxloe-bench latency`: single line operations and cache hits.

use super::Failure;
use super::common::{LinkArgs, OutputArgs, RegionArgs, Session, Unit, bar, report};
use crate::measure::latency::LatencyPlan;
use crate::report::{Report, Samples, Statistic};
use cxloe_lab::Interrupt;

/// Time single line operations beside a bare echo, and line cache hits
///
/// read64, write64 and mixed64 are one uncached operation at a time on random lines; echo64 is a bare echo of the
/// same frame sizes on the same link, measured by turns with them.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    link: LinkArgs,
    #[command(flatten)]
    region: RegionArgs,

    /// Trials; each measures the limit and the operations by turns
    #[arg(long, value_name = "N", default_value_t = 10)]
    trials: u32,

    /// Operations of each kind in a trial
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    operations: u64,

    #[command(flatten)]
    output: OutputArgs,
}

pub fn run(args: &Args, interrupt: Interrupt) -> Result<(), Failure> {
    let mut session = Session::open(&args.link, &args.region, interrupt)?;
    let steps = if session.target.echo { 4 } else { 3 };
    let progress = bar(u64::from(args.trials) * steps, Unit::Steps);
    let plan = LatencyPlan { trials: args.trials, operations: args.operations };
    let results = session.target.latency(plan, &mut |what| {
        progress.set_message(what.to_owned());
        progress.inc(1);
    })?;
    let (reads, writes) = session.target.hits(args.trials, 100)?;
    progress.finish_and_clear();
    let mut report = report(&session.link, vec![session.link.interface.clone()], args.link.wait, None);
    let all = [&results.echo64, &results.read64, &results.write64, &results.mixed64, &reads, &writes];
    all.iter().for_each(|samples| report.add(samples));
    if session.target.echo {
        add_ratios(&mut report)?;
    }
    session.close()?;
    let all: Vec<&Samples> = all.into_iter().collect();
    args.output.write(&report, &all)
}

/// The ratios of single operations to the bare echo, with what is aimed at.
pub fn add_ratios(report: &mut Report) -> Result<(), Failure> {
    for name in ["read64/echo64", "write64/echo64", "mixed64/echo64"] {
        report.add_ratio(name, Statistic::P50, Some(1.2))?;
        report.add_ratio(name, Statistic::P99, Some(1.5))?;
    }
    Ok(())
}

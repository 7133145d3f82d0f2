//! `cxloe-bench bandwidth`: throughput of single lines and of bursts.

use std::time::Duration;

use super::Failure;
use super::common::{LinkArgs, OutputArgs, ProgressUnit, RegionArgs, Session, bar, report, step};
use cxloe_lab::Interrupt;
use cxloe_measure::report::{Report, Statistic};
use cxloe_measure::streams::StreamPlan;

/// Measure streams of lines and bursts beside a pipelined bare echo
///
/// stream64 is single lines with a full window, burst_read and burst_write whole pages in as few frames as the MTU
/// allows; echo_pipelined is a bare echo with as many frames of the same sizes in flight.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    link: LinkArgs,
    #[command(flatten)]
    region: RegionArgs,

    /// Trials; each measures limits and streams alternately
    #[arg(long, value_name = "N", default_value_t = 5)]
    trials: u32,

    /// Length of each measurement of a trial, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500)]
    each_ms: u64,

    /// Requests in flight; beyond 200 a veth loses frames
    #[arg(long, value_name = "N", default_value_t = 128)]
    depth: usize,

    #[command(flatten)]
    output: OutputArgs,
}

pub fn run(args: &Args, interrupt: Interrupt) -> Result<(), Failure> {
    let mut session = Session::open(&args.link, &args.region, interrupt)?;
    let progress = bar(u64::from(args.trials) * 7, ProgressUnit::Steps);
    let plan =
        StreamPlan { trials: args.trials, each: Duration::from_millis(args.each_ms), depth: args.depth };
    let streams = session.target.streams(plan, &mut |what| step(&progress, what))?;
    progress.finish_and_clear();
    let interfaces = vec![session.link.interface.clone()];
    let mut report = report(&session.link, &session.frames, interfaces, args.link.wait, None);
    streams.into_iter().for_each(|s| report.add_throughput(s));
    if session.target.echo {
        add_ratios(&mut report)?;
    }
    session.close()?;
    args.output.write(&report, &[])
}

/// Adds the ratios of line and burst throughput to the pipelined echo with the same frame sizes, with their targets.
pub fn add_ratios(report: &mut Report) -> Result<(), Failure> {
    report.add_ratio("stream64/echo_pipelined", Statistic::OpsPerS, Some(0.8))?;
    for burst in ["burst_read", "burst_write"] {
        let label = format!("{burst}/echo_pipelined");
        let expression = format!("{burst}/echo_pipelined_{burst}");
        report.add_ratio_as(&label, &expression, Statistic::BytesPerS, Some(0.85))?;
    }
    Ok(())
}

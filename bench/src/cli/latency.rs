//! `cxloe-bench latency`: single line operations and cache hits.

use std::path::PathBuf;

use cxloe_client::client::{Client, regions};

use super::Failure;
use super::common::{LinkArgs, OutputArgs, ProgressUnit, RegionArgs, Session, bar, report, step};
use cxloe_lab::Interrupt;
use cxloe_measure::MeasureError;
use cxloe_measure::agent_port::{AgentPort, AgentResults};
use cxloe_measure::latency::LatencyPlan;
use cxloe_measure::report::{Report, Samples, Statistic};

/// Time single line operations beside a bare echo, and line cache hits
///
/// read64, write64 and mixed64 are one uncached operation at a time on random lines; echo64 is a bare echo of the
/// same frame sizes on the same link, measured in alternation with them.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    link: LinkArgs,
    #[command(flatten)]
    region: RegionArgs,

    /// Trials; each measures the limit and the operations alternately
    #[arg(long, value_name = "N", default_value_t = 10)]
    trials: u32,

    /// Operations of each kind in a trial
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    operations: u64,

    /// Also measure a region through the running agent with this socket
    #[arg(long, value_name = "PATH", requires = "agent_region", help_heading = "Memory")]
    agent: Option<PathBuf>,

    /// The agent's region to measure, whose lines are overwritten
    #[arg(long, value_name = "NAME", requires = "agent", help_heading = "Memory")]
    agent_region: Option<String>,

    #[command(flatten)]
    output: OutputArgs,
}

/// Port of the agent whose region is to be measured; `None` if the options name no agent.
fn agent(args: &Args) -> Result<Option<AgentPort>, Failure> {
    let (Some(socket), Some(name)) = (&args.agent, &args.agent_region) else { return Ok(None) };
    let found = regions(socket)?.into_iter().find(|region| region.region == *name);
    let region = found.ok_or_else(|| MeasureError::NotAttached(name.clone()))?;
    // The part of a region beyond the agent's address window cannot be accessed by address.
    let bytes = region.size.saturating_sub(region.beyond_window);
    Ok(Some(AgentPort { client: Client::connect(socket)?, hpa: region.hpa, bytes }))
}

pub fn run(args: &Args, interrupt: Interrupt) -> Result<(), Failure> {
    let agent = agent(args)?;
    let mut session = Session::open(&args.link, &args.region, interrupt)?;
    let steps = if session.target.echo { 4 } else { 3 } + if agent.is_some() { 4 } else { 0 };
    let progress = bar(u64::from(args.trials) * steps, ProgressUnit::Steps);
    let plan = LatencyPlan { trials: args.trials, operations: args.operations };
    let mut step = |what: &str| step(&progress, what);
    let results = session.target.latency(plan, &mut step)?;
    let through = agent.map(|mut agent| agent.latency(&mut session.target, plan, &mut step)).transpose()?;
    let (reads, writes) = session.target.hits(args.trials, 100)?;
    progress.finish_and_clear();
    let interfaces = vec![session.link.interface.clone()];
    let mut report = report(&session.link, &session.frames, interfaces, args.link.wait, None);
    let mut all = vec![results.echo64, results.read64, results.write64, results.mixed64, reads, writes];
    all.extend(through.map(AgentResults::all).into_iter().flatten());
    all.iter().for_each(|samples| report.add(samples));
    if session.target.echo {
        add_ratios(&mut report)?;
    }
    if args.agent.is_some() {
        add_agent_ratios(&mut report)?;
    }
    session.close()?;
    let all: Vec<&Samples> = all.iter().collect();
    args.output.write(&report, &all)
}

/// Adds the ratios of single operations to the round trip without a session, with their targets.
pub fn add_ratios(report: &mut Report) -> Result<(), Failure> {
    for name in ["read64/echo64", "write64/echo64", "mixed64/echo64"] {
        report.add_ratio(name, Statistic::P50, Some(1.2))?;
        report.add_ratio(name, Statistic::P99, Some(1.5))?;
    }
    Ok(())
}

/// Adds the ratios of operations through the agent to those of the port in this process.
pub fn add_agent_ratios(report: &mut Report) -> Result<(), Failure> {
    for name in ["agent_read64/read64", "agent_write64/write64", "agent_read4k/read4k"] {
        report.add_ratio(name, Statistic::P50, None)?;
    }
    Ok(())
}

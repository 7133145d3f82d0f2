//! `cn-agent list` and `cn-agent counters`. With `--json`, an object with one array for each kind of object is printed;
//! with `--cxl`, an array as the CXL tools print it.

use clap::Args;
use cxloe_client::client;
use cxloe_client::message::{AgentCounters, AttachedRegion};
use cxloe_daemon::command_line::{Failure, output};
use cxloe_daemon::to_stderr;
use serde::Serialize;
use serde_json::Value;

use super::SocketArgs;
use super::failure::of_agent;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cn-agent list                regions, their addresses, decoders and memory nodes
  cn-agent list -L             logical devices bound to this node
  cn-agent list -RLu           both, for people")]
pub struct ListArgs {
    /// Regions; the default
    #[arg(short = 'R', long)]
    regions: bool,
    /// Logical devices bound to this compute node
    #[arg(short = 'L', long)]
    logical_devices: bool,
    #[command(flatten)]
    how: ShowArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
With several workers, the counters are sums, and `workers` has those of each worker.

Examples:
  cn-agent counters -u
  cn-agent counters --worker 1 --json | jq .cpu_time_ns")]
pub struct CountersArgs {
    /// Counters of this worker only, from 0
    #[arg(long, value_name = "N")]
    worker: Option<usize>,
    #[command(flatten)]
    how: ShowArgs,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// Human-readable sizes, addresses and times
    #[arg(short = 'u', long)]
    human: bool,
}

/// Lists attached regions, logical devices, or both.
///
/// # Errors
/// When the agent cannot be asked, or standard output is closed.
pub fn list(args: &ListArgs) -> Result<(), Failure> {
    let path = args.how.socket.path();
    let node = client::node(&path).map_err(of_agent)?;
    let mut kinds = Vec::new();
    if args.regions || !args.logical_devices {
        let regions = client::regions(&path).map_err(of_agent)?;
        kinds.push(("regions", region_values(regions)?));
    }
    if args.logical_devices {
        kinds.push(("logical_devices", values(node.devices)?));
    }
    for (kind, _) in kinds.iter().filter(|(_, found)| found.is_empty()) {
        to_stderr!("Warning: no {} found", kind.replace('_', " "));
    }
    if node.held {
        to_stderr!(
            "Warning: this compute node is suspended; nothing is attached until the manager releases it \
             (gmm release)"
        );
    }
    output::print_kinds(kinds, args.how.human)
}

fn values(items: Vec<impl Serialize>) -> Result<Vec<Value>, Failure> {
    items.into_iter().map(output::value).collect()
}

/// Returns regions as JSON. If any of them has another worker than the first, each names its worker.
fn region_values(regions: Vec<AttachedRegion>) -> Result<Vec<Value>, Failure> {
    let workers: Vec<usize> = regions.iter().map(|region| region.worker).collect();
    let mut values = values(regions)?;
    if workers.iter().any(|worker| *worker > 0) {
        for (value, worker) in values.iter_mut().zip(workers) {
            value["worker"] = worker.into();
        }
    }
    Ok(values)
}

/// Prints the counters of the running agent, or those of one of its workers.
///
/// # Errors
/// When the agent cannot be asked or has no such worker, or standard output is closed.
pub fn counters(args: &CountersArgs) -> Result<(), Failure> {
    let counters = client::counters_by_worker(&args.how.socket.path()).map_err(of_agent)?;
    let shown = match args.worker {
        None => output::value(counters)?,
        Some(worker) => worker_value(counters, worker)?,
    };
    output::print(shown, args.how.human)
}

/// Returns the counters of one worker as JSON. The sums of an agent with one worker are those of its worker 0.
fn worker_value(counters: AgentCounters, worker: usize) -> Result<Value, Failure> {
    let AgentCounters { all, workers } = counters;
    if workers.is_empty() && worker == 0 {
        return output::value(all);
    }
    let count = workers.len().max(1);
    match workers.into_iter().find(|of| of.worker == worker) {
        Some(of_worker) => output::value(of_worker),
        None if count == 1 => Err(Failure::usage(format!("the agent has no worker {worker}, only worker 0"))),
        None => Err(Failure::usage(format!(
            "the agent has no worker {worker}; its workers are 0 to {}",
            count - 1
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::target::tests::attached;
    use super::*;
    use cxloe_client::message::{Counters, WorkerCounters};
    use cxloe_daemon::command_line::Exit;

    #[test]
    fn regions_name_their_workers_if_there_are_several() {
        let region = |worker| AttachedRegion { worker, ..attached("scratch") };
        let named = |regions| -> Vec<Option<u64>> {
            region_values(regions).unwrap().iter().map(|value| value["worker"].as_u64()).collect()
        };
        assert_eq!(named(vec![region(0), region(0)]), [None::<u64>; 2]);
        assert_eq!(named(vec![region(0), region(2)]), [Some(0), Some(2)]);
    }

    #[test]
    fn counters_are_those_of_the_worker_that_was_named() {
        let counters = |clients| Counters { clients, ..Counters::default() };
        let of =
            |worker| WorkerCounters { worker, counters: counters(worker + 5), ..WorkerCounters::default() };
        let one = || AgentCounters { all: counters(9), workers: Vec::new() };
        let two = || AgentCounters { all: counters(11), workers: vec![of(0), of(1)] };
        assert_eq!(worker_value(one(), 0).unwrap()["clients"], 9);
        let second = worker_value(two(), 1).unwrap();
        assert_eq!((&second["worker"], &second["clients"]), (&1.into(), &6.into()));
        let refused = |counters, worker| {
            let failure = worker_value(counters, worker).unwrap_err();
            (failure.exit, failure.message)
        };
        assert_eq!(refused(one(), 1), (Exit::Usage, "the agent has no worker 1, only worker 0".into()));
        let text = "the agent has no worker 2; its workers are 0 to 1";
        assert_eq!(refused(two(), 2), (Exit::Usage, text.into()));
    }
}

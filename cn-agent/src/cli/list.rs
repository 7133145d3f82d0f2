//! `cn-agent list` and `cn-agent counters`. With `--json`, an object with one array for each kind of object is printed;
//! with `--cxl`, an array as the CXL tools print it.

use clap::Args;
use cxloe_client::client;
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
        kinds.push(("regions", values(regions)?));
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

/// Prints all counters of the running agent.
///
/// # Errors
/// When the agent cannot be asked, or standard output is closed.
pub fn counters(args: &ShowArgs) -> Result<(), Failure> {
    let counters = client::counters(&args.socket.path()).map_err(of_agent)?;
    output::print(output::value(counters)?, args.human)
}

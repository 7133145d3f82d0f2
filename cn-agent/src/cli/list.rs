//! `cn-agent list` and `cn-agent counters`: what a running agent knows.

use clap::Args;
use cxloe_cn::client;
use cxloe_gmm::command_line::{Failure, output};

use super::SocketArgs;
use super::failure::of_agent;

/// Arguments of both.
#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// Sizes, addresses and times for people
    #[arg(short = 'u', long)]
    human: bool,
}

/// Lists attached regions.
///
/// # Errors
/// When the agent cannot be asked, or standard output is closed.
pub fn regions(args: &ListArgs) -> Result<(), Failure> {
    let regions = client::regions(&args.socket.path()).map_err(of_agent)?;
    if regions.is_empty() {
        eprintln!("Warning: no regions found");
    }
    output::print(output::value(regions)?, args.human)
}

/// Shows counters.
///
/// # Errors
/// When the agent cannot be asked, or standard output is closed.
pub fn counters(args: &ListArgs) -> Result<(), Failure> {
    let counters = client::counters(&args.socket.path()).map_err(of_agent)?;
    output::print(output::value(counters)?, args.human)
}

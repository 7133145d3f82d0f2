//! `cn-agent list` and `cn-agent counters`: what a running agent knows.

use clap::Args;
use cxloe_cn::client;
use serde::Serialize;
use serde_json::Value;

use super::SocketArgs;
use super::failure::Failure;
use super::output;

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
    let regions = client::regions(&args.socket.path())?;
    if regions.is_empty() {
        eprintln!("Warning: no regions found");
    }
    output::print(value(regions)?, args.human)
}

/// Shows counters.
///
/// # Errors
/// When the agent cannot be asked, or standard output is closed.
pub fn counters(args: &ListArgs) -> Result<(), Failure> {
    output::print(value(client::counters(&args.socket.path())?)?, args.human)
}

/// As JSON.
///
/// # Errors
/// Never, for what an agent answers.
pub fn value(item: impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(item).map_err(|error| Failure::failed(format!("cannot show the answer: {error}")))
}

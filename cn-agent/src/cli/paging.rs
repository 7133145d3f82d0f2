//! `cn-agent paging`: regions mapped by programs, and their paging counters.

use clap::Args;
use cxloe_client::client;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_daemon::to_stderr;

use super::SocketArgs;
use super::failure::of_agent;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cn-agent paging              each mapped region: limit, resident bytes, processes, counters
  cn-agent paging -u           the same, sizes for people")]
pub struct PagingArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// Human-readable sizes
    #[arg(short = 'u', long)]
    human: bool,
}

/// Prints the mapped regions with their counters.
///
/// # Errors
/// When the agent cannot be asked, or standard output is closed.
pub fn paging(args: &PagingArgs) -> Result<(), Failure> {
    let views = client::paging(&args.socket.path(), None).map_err(of_agent)?;
    if views.is_empty() && !output::json_asked() {
        to_stderr!("Warning: no mapped regions found");
    }
    output::print(output::value(views)?, args.human)
}

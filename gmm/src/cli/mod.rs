//! The command line: what can be asked, in the manner of the CXL tools, and what becomes of it.

mod list;
mod monitor;
mod regions;
mod serve;
mod status;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use cxloe_gmm::Client;
use cxloe_gmm::client::URL_DEFAULT;
use cxloe_gmm::command_line::{Failure, finish};

const AFTER_HELP: &str = "\
Examples:
  gmm serve --store /var/lib/cxloe/gmm.redb          run the manager on this machine
  gmm list -M -u                                     memory nodes, sizes for people
  gmm create-region -s 1G --owner cn0 scratch        1 GiB for the compute node cn0
  gmm list -R                                        regions as JSON
  gmm destroy-region scratch                         give the memory back, zeroed
  gmm monitor                                        follow what happens

Exit codes:
  0  done                        3  manager unreachable
  1  failed                      4  no such region or node
  2  wrong arguments             5  refused: no space, in use, wrong state

Environment:
  CXLOE_MANAGER   URL of the manager, as --manager
  CXLOE_LOG       what goes to the log, as in `info`, `debug`, `cxloe_gmm=trace`";

/// The global memory manager of CXL over Ethernet
#[derive(Debug, Parser)]
#[command(name = "gmm", version, after_help = AFTER_HELP, max_term_width = 110)]
pub struct Args {
    /// The manager to ask: http://HOST:PORT or unix:/path/to/socket
    #[arg(long, global = true, env = "CXLOE_MANAGER", default_value = URL_DEFAULT, value_name = "URL")]
    manager: String,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the manager
    Serve(serve::ServeArgs),
    /// List memory nodes, compute nodes, regions and events
    List(list::ListArgs),
    /// Create a region for a compute node
    CreateRegion(regions::CreateArgs),
    /// Destroy a region: unmap it, zero its memory, give it back
    DestroyRegion(regions::DestroyArgs),
    /// Map a region again, empty, whose content a memory node has lost
    ResetRegion(regions::ResetArgs),
    /// Follow events, one JSON object a line
    Monitor(monitor::MonitorArgs),
    /// Show whether the manager is well
    Status(status::StatusArgs),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  gmm completions bash > /etc/bash_completion.d/gmm")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Parses the arguments and does what they say.
pub fn run() -> ExitCode {
    finish("gmm", dispatch(Args::parse()))
}

fn dispatch(args: Args) -> Result<(), Failure> {
    let command = match args.command {
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Args::command(), "gmm", &mut std::io::stdout());
            return Ok(());
        }
        Command::Serve(serve) => return serve::run(serve),
        command => command,
    };
    let client = Client::new(&args.manager).map_err(Failure::usage)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
    runtime.block_on(async {
        match command {
            Command::List(list) => list::run(&client, list).await,
            Command::CreateRegion(create) => regions::create(&client, create).await,
            Command::DestroyRegion(destroy) => regions::destroy(&client, destroy).await,
            Command::ResetRegion(reset) => regions::reset(&client, reset).await,
            Command::Monitor(monitor) => monitor::run(&client, monitor).await,
            Command::Status(status) => status::run(&client, status).await,
            Command::Serve(_) | Command::Completions { .. } => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }
}

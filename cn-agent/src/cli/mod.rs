//! The command line: what can be asked, in the manner of the CXL tools, and what becomes of it.

mod failure;
mod lines;
mod list;
mod run;
mod sessions;
mod target;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args as ClapArgs, CommandFactory, Parser, Subcommand};
use cxloe_cn::config::RunArgs;
use cxloe_cn::local::default_socket;
use cxloe_gmm::command_line::{Failure, ManArgs, finish};

const AFTER_HELP: &str = "\
Examples:
  cn-agent run -i enp3s0f0 --manager http://10.0.0.1:7440   run the agent on this machine
  cn-agent list -u                                          regions, sizes for people
  cn-agent list -L                                          logical devices bound to this node
  cn-agent read scratch+0x1000 --lines 2                    two lines of a region
  cn-agent write scratch --text hello                       at its beginning
  cn-agent sessions                                         windows, round trips, losses, pace
  cn-agent flush                                            until memory nodes have it

Exit codes:
  0  done                        3  agent or memory node unreachable
  1  failed                      4  no such region or address
  2  wrong arguments             5  refused, or the region's data is lost

Environment:
  CXLOE_AGENT   the agent's socket, as --socket";

/// The compute node of CXL over Ethernet: gives this machine memory that lies in memory nodes
#[derive(Debug, Parser)]
#[command(name = "cn-agent", version, after_help = AFTER_HELP, max_term_width = 110)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent
    Run(Box<RunArgs>),
    /// List attached regions and where they are, and logical devices bound to this node
    List(list::ListArgs),
    /// Show the sessions with memory nodes
    Sessions(sessions::SessionsArgs),
    /// Show what the agent has counted
    Counters(list::ShowArgs),
    /// Read lines of remote memory
    Read(lines::ReadArgs),
    /// Write lines of remote memory
    Write(lines::WriteArgs),
    /// Write back everything the agent's cache has modified, and wait until memory nodes have it
    Flush(SocketArgs),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  cn-agent completions bash > /etc/bash_completion.d/cn-agent")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands
    #[command(after_help = "Example:\n  cn-agent man --dir /usr/local/share/man/man1")]
    Man(ManArgs),
}

/// Which agent to ask.
#[derive(Debug, ClapArgs)]
struct SocketArgs {
    /// The agent's socket [default: /run/cxloe/cn-agent.sock as root, else below $XDG_RUNTIME_DIR]
    #[arg(long, env = "CXLOE_AGENT", value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl SocketArgs {
    fn path(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(default_socket)
    }
}

/// Parses the arguments and does what they say.
pub fn run() -> ExitCode {
    finish("cn-agent", dispatch(Args::parse().command))
}

fn dispatch(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::List(args) => list::list(&args),
        Command::Sessions(args) => sessions::run(&args),
        Command::Counters(args) => list::counters(&args),
        Command::Read(args) => lines::read(&args),
        Command::Write(args) => lines::write(&args),
        Command::Flush(args) => lines::flush(&args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Args::command(), "cn-agent", &mut std::io::stdout());
            Ok(())
        }
        Command::Man(man) => man.write(Args::command()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }
}

//! The command line: subcommands in the manner of the CXL tools, and their dispatch.

mod cxl;
mod doctor;
mod exec;
mod export;
mod failure;
mod image;
mod join;
mod key;
mod lines;
mod list;
mod names;
mod nbd;
mod paging;
mod paging_args;
mod retry_deadline;
mod run;
mod sessions;
mod target;
mod top;
mod vm;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args as ClapArgs, CommandFactory, Parser, Subcommand};
use cxloe_client::defaults::default_socket;
use cxloe_cn::config::RunArgs;
use cxloe_daemon::command_line::{Failure, ManArgs, completion, finish, output};

const AFTER_HELP: &str = "\
Examples:
  cn-agent run --config /etc/cxloe/cn-agent.toml            run the agent on this machine, once it has joined
  cn-agent list -u                                          regions, sizes for people
  cn-agent list -L                                          logical devices bound to this node
  cn-agent read scratch+0x1000 --lines 2                    two lines of a region
  cn-agent write scratch --text hello                       at its beginning
  cn-agent cxl list                                         CXL memory of this machine, and what it can serve
  cn-agent sessions                                         windows, round trips, losses, pace
  cn-agent top                                              what it is doing, live
  cn-agent exec --size 4G --local 1G -- sort huge.txt       a program whose memory is remote
  cn-agent doctor                                           check this machine
  cn-agent flush                                            until memory nodes have it
  cn-agent export scratch | zstd > scratch.zst              a backup of a region
  cn-agent nbd --region scratch --socket /run/scratch.nbd   a region as a block device

Exit codes:
  0  done                        3  agent or memory node unreachable
  1  failed                      4  no such region or address
  2  wrong arguments             5  refused, or the region's data is lost

Environment:
  CXLOE_AGENT   the agent's socket, as --socket; for `run`, if its configuration file has none";

/// The compute node of CXL over Ethernet: gives this machine memory that lies in memory nodes
#[derive(Debug, Parser)]
#[command(name = "cn-agent", version, after_help = AFTER_HELP, max_term_width = 110)]
pub struct Args {
    #[command(flatten)]
    form: output::FormArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent
    Run(Box<RunArgs>),
    /// Join this machine to a fabric as a compute node, and start its agent
    Join(Box<join::JoinArgs>),
    /// Check whether this machine is ready for an agent, and show what to change
    Doctor(Box<doctor::DoctorArgs>),
    /// List attached regions with their addresses, and logical devices bound to this node
    List(list::ListArgs),
    /// Show real CXL memory of this machine
    Cxl(cxl::CxlArgs),
    /// Show the sessions with memory nodes
    Sessions(sessions::SessionsArgs),
    /// Show the agent's counters
    Counters(list::CountersArgs),
    /// Run a program whose heap and large mappings are remote memory
    Exec(Box<exec::ExecArgs>),
    /// Change how much of a running program's remote memory may be resident
    SetLocal(exec::SetLocalArgs),
    /// Show the regions that programs have mapped, with the counters of paging
    Paging(paging::PagingArgs),
    /// Show live what the agent is doing: regions, hit rates, fault times, retransmissions, rate and phase
    Top(top::TopArgs),
    /// Read lines of remote memory
    Read(lines::ReadArgs),
    /// Write lines of remote memory
    Write(lines::WriteArgs),
    /// Write back everything the agent's cache has modified, and wait until memory nodes have it
    Flush(SocketArgs),
    /// Write a region's content to a file or a pipe, with checksums
    Export(export::ExportArgs),
    /// Replace a region's content by an exported one
    Import(export::ImportArgs),
    /// Serve a region as a block device: an NBD export on a Unix socket
    Nbd(nbd::NbdArgs),
    /// Run a virtual machine whose memory is remote, in whole or in part
    Vm(Box<vm::VmArgs>),
    /// Serve the memory of a virtual machine whose monitor hands over a userfaultfd, as Firecracker does
    ServeUffd(Box<vm::ServeUffdArgs>),
    /// Print the public half of this node's key
    Key(key::KeyArgs),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  cn-agent completions bash > /etc/bash_completion.d/cn-agent")]
    Completions {
        /// Shell to print the script for
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands
    #[command(after_help = "Example:\n  cn-agent man --dir /usr/local/share/man/man1")]
    Man(ManArgs),
}

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

/// Runs the command that the arguments name, or completes the arguments for a shell.
pub fn run() -> ExitCode {
    if let Some(words) = completion::asked() {
        names::print(&words);
        return ExitCode::SUCCESS;
    }
    let Args { form, command } = Args::parse();
    form.choose();
    match command {
        Command::Doctor(args) => doctor::run(*args),
        command => finish("cn-agent", dispatch(command)),
    }
}

fn dispatch(command: Command) -> Result<(), Failure> {
    match command {
        // Not reached: `run` handles `doctor` itself, because its exit codes differ from those of the other
        // commands.
        Command::Doctor(_) => Ok(()),
        Command::Run(args) => run::run(&args),
        Command::Join(args) => join::run(*args),
        Command::List(args) => list::list(&args),
        Command::Cxl(args) => cxl::run(&args),
        Command::Sessions(args) => sessions::run(&args),
        Command::Counters(args) => list::counters(&args),
        Command::Paging(args) => paging::paging(&args),
        Command::Top(args) => top::run(&args),
        Command::Key(args) => key::run(&args),
        Command::Read(args) => lines::read(&args),
        Command::Write(args) => lines::write(&args),
        Command::Flush(args) => lines::flush(&args),
        Command::Export(args) => export::export(&args),
        Command::Import(args) => export::import(&args),
        Command::Exec(args) => exec::exec(*args),
        Command::SetLocal(args) => exec::set_local(&args),
        Command::Nbd(args) => nbd::run(&args),
        Command::Vm(args) => vm::vm(*args),
        Command::ServeUffd(args) => vm::serve_uffd(&args),
        Command::Completions { shell } => completion::script(shell, Args::command(), true),
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

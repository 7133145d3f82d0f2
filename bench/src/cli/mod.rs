//! The command line of `cxloe-bench`: one file per subcommand.

mod agent;
mod bandwidth;
mod bare_dpdk;
mod chaos;
mod common;
mod compare;
mod compare_retransmission;
mod daemons;
mod echo;
mod fabric;
mod fault;
mod figures;
mod keys;
mod lab;
mod latency;
mod moves;
mod nic_report;
mod outages;
mod pair;
mod paper;
mod pattern;
mod programs;
mod quickstart;
mod quickstart_dpdk;
mod quickstart_link;
mod quickstart_place;
mod report;
mod scale;
mod shared_memory;
mod sim;
mod survival;
mod trace;
mod verify;
mod work;

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};
use cxloe_daemon::command_line::{ManArgs, completion, output};
use cxloe_daemon::to_stderr;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use cxloe_lab::Interrupt;

/// Measures memory of other servers over Ethernet, and what the link itself can do
#[derive(Parser)]
#[command(name = "cxloe-bench", version, max_term_width = 110, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  Everything on this machine, in namespaces of its own:
    cxloe-bench quickstart

  Between two machines (a manager on 10.0.0.1; on the other one:
  mn-server join https://10.0.0.1:7440 --token \"$TOKEN\" -i enp3s0f0 --pool-size 16G --wait busy --echo):
    cxloe-bench latency   -i enp3s0f0 --manager https://10.0.0.1:7440 --json latency.json
    cxloe-bench bandwidth -i enp3s0f0 --manager https://10.0.0.1:7440 --size 4G --html bandwidth.html
    cxloe-bench verify    -i enp3s0f0 --manager https://10.0.0.1:7440 --size 4G

  The bare link, without any memory node:
    cxloe-bench echo -i enp3s0f0 --serve                       # there
    cxloe-bench echo -i enp3s0f0 --peer 02:00:00:00:00:02      # here

  Thousands of runs over a simulated network that loses frames and memory nodes that restart:
    cxloe-bench sim --seeds 10000

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 ended by Ctrl-C.";

#[derive(Subcommand)]
enum Command {
    /// Set up two namespaces with a manager, a memory node and an agent, measure, verify, and clean up
    Quickstart(quickstart::Args),
    /// Measure the bare link: frames out, frames back, no protocol
    Echo(echo::Args),
    /// Report on a network card: settings, what works, times to another server, commands that tune it
    NicReport(Box<nic_report::Args>),
    /// Time single line operations beside a bare echo, and line cache hits
    Latency(latency::Args),
    /// Time page faults and their parts, alternately
    Fault(fault::Args),
    /// Measure access patterns: load-latency, pointer chase, GUPS, STREAM, mixes, hot and cold pages
    Pattern(Box<pattern::Args>),
    /// Measure streams of lines and bursts beside a pipelined bare echo
    Bandwidth(bandwidth::Args),
    /// Measure how throughput grows with queues, or what workers cost
    Scale(scale::Args),
    /// Write a pattern over a whole region and compare every byte read back
    Verify(verify::Args),
    /// Repeat the paper's evaluation and lay it beside the paper's own values
    Paper(Box<paper::Args>),
    /// Draw the paper's congestion figures (Fig. 11 and 12) from a simulated link
    Figures(figures::Args),
    /// Measure sessions between keys: connecting in a flood of forged handshakes, changes of keys, and revocation
    Keys(keys::Args),
    /// Measure how long operations wait when a memory node's process or interface is away, and check every line
    Outages(outages::Args),
    /// Kill a daemon at random every few seconds under a load on a mirrored region, and check every line
    Chaos(chaos::Args),
    /// Move a virtual machine between two compute nodes, without copying its memory, and time its stops
    Move(moves::Args),
    /// Measure mirrored regions, kills, new copies, drains, sealed regions, snapshots and clones, and check every line
    Survival(survival::Args),
    /// Run engines and services over a simulated network, and check everything they do
    Sim(Box<sim::Args>),
    /// Measure the manager with thousands of nodes and a hundred thousand regions
    Fabric(fabric::Args),
    /// Measure other remote-memory systems beside this one: sockets, Redis, UCX, RDMA, …
    Compare(compare::Args),
    /// Convert recorded traces into those that `compare --trace` replays
    Trace(trace::Args),
    /// Run programs with part of their memory remote, or swapped, and compare them with local memory
    Programs(Box<programs::Args>),
    /// Measure the standard report: cycles, tails under load, faults under eviction, programs
    Report(Box<report::Args>),
    /// Compare selective retransmission with Go-Back-N over a simulated link that loses frames
    CompareRetransmission(compare_retransmission::Args),
    /// Make a lab of real daemons on this machine, use it, and end it
    Lab(lab::Args),
    /// Run one of the project's own programs of `programs`
    #[command(hide = true)]
    Work(work::Args),
    /// Answer bare frames of `quickstart --link dpdk`
    #[command(hide = true)]
    DpdkEcho(bare_dpdk::Args),
    /// Print a completion script for a shell
    Completions {
        /// bash, elvish, fish, powershell or zsh
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands
    #[command(after_help = "Example:\n  cxloe-bench man --dir /usr/local/share/man/man1")]
    Man(ManArgs),
}

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Maximum time from Ctrl-C until a measurement has noticed it and cleaned up.
const GRACE: Duration = Duration::from_secs(10);

/// Runs the program. Must be called while the process has one thread.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let command = match cli.command {
        // These are no measurements. `lab` has its own rights, log and signal handling; the others need none.
        Command::Lab(args) => return lab::run(args),
        Command::Work(args) => return ended(work::run(&args)),
        Command::DpdkEcho(args) => return ended(bare_dpdk::run(&args)),
        Command::Trace(args) => return ended(trace::run(&args)),
        command => command,
    };
    let makes_lab = makes_lab(&command);
    // The reason is determined before this process enters namespaces, which it cannot leave again.
    let no_lab = match &command {
        Command::Quickstart(args) if args.may_use_udp() => cxloe_lab::may_make_labs().err(),
        _ => None,
    };
    let makes_lab = makes_lab && no_lab.is_none();
    let standing = match makes_lab.then(cxloe_lab::become_private_user_namespace).transpose() {
        Ok(standing) => standing,
        Err(e) => {
            to_stderr!("cxloe-bench: {e}");
            return ExitCode::FAILURE;
        }
    };
    let filter = std::env::var("CXLOE_LOG").ok().and_then(|filter| filter.parse::<Targets>().ok());
    let lines = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(cxloe_daemon::log::coloured())
        // A log line that cannot be written is dropped: a measurement does not fail because of its log.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    tracing_subscriber::registry().with(filter).with(lines).init();
    let interrupt = match Interrupt::install(GRACE) {
        Ok(interrupt) => interrupt,
        Err(e) => {
            to_stderr!("cxloe-bench: {e}");
            return ExitCode::FAILURE;
        }
    };
    let signal = interrupt.clone();
    let result = match command {
        Command::Quickstart(args) if args.is_without_network() => quickstart_dpdk::run(&args, &interrupt),
        Command::Quickstart(args) => {
            let site = match (no_lab, standing) {
                (Some(reason), _) => quickstart::Site::Loopback(reason),
                (None, standing) => {
                    quickstart::Site::Lab(standing.expect("it makes a lab, so its rights were looked at"))
                }
            };
            quickstart::run(&args, &site, interrupt)
        }
        Command::Echo(args) => echo::run(&args, interrupt),
        Command::NicReport(args) => nic_report::run(&args, interrupt),
        Command::Latency(args) => latency::run(&args, interrupt),
        Command::Fault(args) => fault::run(&args, interrupt),
        Command::Pattern(args) => pattern::run(&args, interrupt),
        Command::Bandwidth(args) => bandwidth::run(&args, interrupt),
        Command::Scale(args) => scale::run(&args, interrupt),
        Command::Verify(args) => verify::run(&args, interrupt),
        Command::Paper(args) => paper::run(&args, interrupt),
        Command::Figures(args) => figures::run(&args),
        Command::Keys(args) => keys::run(&args, &interrupt),
        Command::Outages(args) => outages::run(&args, &interrupt),
        Command::Chaos(args) => chaos::run(&args, &interrupt),
        Command::Move(args) => moves::run(&args, &interrupt),
        Command::Survival(args) => survival::run(&args, &interrupt),
        Command::Sim(args) => sim::run(&args, interrupt),
        Command::Fabric(args) => fabric::run(&args, interrupt),
        Command::Compare(args) => compare::run(&args, standing, interrupt),
        Command::Programs(args) => programs::run(&args, standing, interrupt),
        Command::Report(args) => report::run(&args, standing, interrupt),
        Command::CompareRetransmission(args) => compare_retransmission::run(&args),
        Command::Lab(_) | Command::Work(_) | Command::DpdkEcho(_) | Command::Trace(_) => Ok(()),
        Command::Completions { shell } => {
            completion::script(shell, Cli::command(), false).map_err(|failure| failure.message.into())
        }
        Command::Man(man) => man.write(Cli::command()).map_err(|failure| failure.message.into()),
    };
    let said = || output::finish_output().map_err(|failure| failure.message.into());
    match result.and_then(|()| said()) {
        Ok(()) => ExitCode::SUCCESS,
        // A failure after a signal is reported as the signal: child processes in the same process group
        // received the signal too, and may have failed because of it.
        Err(error) => match signal.check() {
            Err(interrupted) => {
                to_stderr!("cxloe-bench: {interrupted}");
                ExitCode::from(interrupted.exit_code())
            }
            Ok(()) => {
                to_stderr!("cxloe-bench: {error}");
                ExitCode::FAILURE
            }
        },
    }
}

/// Whether the command makes a lab, for which this process needs a user namespace of its own if it is not root's.
fn makes_lab(command: &Command) -> bool {
    match command {
        Command::Report(_)
        | Command::Keys(_)
        | Command::Outages(_)
        | Command::Chaos(_)
        | Command::Move(_)
        | Command::Survival(_) => true,
        Command::Quickstart(args) => !args.is_without_network(),
        Command::Fault(args) => args.makes_lab(),
        Command::Pattern(args) => args.makes_lab(),
        Command::Scale(args) => args.makes_lab(),
        Command::Paper(args) => args.makes_lab(),
        Command::Compare(args) => args.makes_lab(),
        Command::Programs(args) => args.makes_lab(),
        _ => false,
    }
}

/// Prints the error of a command that has failed.
fn ended(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            to_stderr!("cxloe-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_in_a_lab_are_known_as_such() {
        let makes = |words: &str| makes_lab(&Cli::try_parse_from(words.split(' ')).unwrap().command);
        assert!(makes("cxloe-bench move") && makes("cxloe-bench scale --workers 1,2"));
        assert!(!makes("cxloe-bench scale --simulate 500") && !makes("cxloe-bench scale -i eth9"));
        assert!(makes("cxloe-bench quickstart") && makes("cxloe-bench quickstart --link xdp"));
        assert!(!makes("cxloe-bench quickstart --link dpdk"));
    }
}

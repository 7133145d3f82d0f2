//! The command line: runs a memory node, or executes a command for a running one.

mod counters;
mod doctor;
mod join;
mod key;
mod sessions;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args as ClapArgs, CommandFactory, Parser, Subcommand};
use cxloe_daemon::command_line::{Exit, Failure, ManArgs, completion, finish, output};
use cxloe_mn::admin::client::{AskError, ask};
use cxloe_mn::admin::{FRESH, NodeStatus, WorkerStatus, default_socket};
use cxloe_mn::config::{Cli as RunArgs, EXAMPLES};
use cxloe_mn::keeper::process::{self, KeeperArgs};
use serde_json::Value;

const AFTER_HELP: &str = "\
Without a command, the options are those of `run`.

Join this machine to a fabric:
    mn-server join https://gmm.lab:7440 --token cx1.… -i enp3s0f0 --pool-size 16G

Inspect a running node:
    mn-server sessions                      its compute nodes, and the state of each
    mn-server counters --json | jq .        the counters of its workers
    mn-server doctor                        check this machine

Exit codes:
  0  done                        2  wrong arguments
  1  failed                      3  no memory node there, or it does not answer

Environment:
  CXLOE_MN   the node's socket, as --socket; for `run`, if its configuration file has none";

/// The command line of `mn-server`.
#[derive(Parser, Debug)]
#[command(
    name = "mn-server",
    version,
    about = "Memory node of CXL over Ethernet: lends this machine's memory to compute nodes",
    after_help = format!("{EXAMPLES}\n\n{AFTER_HELP}"),
    max_term_width = 110,
    args_conflicts_with_subcommands = true
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the memory node; the same as no command
    Run(Box<RunArgs>),
    /// Join this machine to a fabric as a memory node, and start it
    Join(Box<join::JoinArgs>),
    /// Check this machine: is it ready for a memory node, and what is to be changed?
    Doctor(Box<doctor::DoctorArgs>),
    /// Show the sessions with compute nodes
    Sessions(ShowArgs),
    /// Show the counters of the workers
    Counters(ShowArgs),
    /// Print the public half of this node's key
    Key(key::KeyArgs),
    /// Keep a pool's memory for the next process of a node; `run` starts it
    #[command(hide = true)]
    KeepPool(KeeperArgs),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  mn-server completions bash > /etc/bash_completion.d/mn-server")]
    Completions {
        /// Shell that the script is for
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands
    #[command(after_help = "Example:\n  mn-server man --dir /usr/local/share/man/man1")]
    Man(ManArgs),
}

/// Options of commands that show a node.
#[derive(ClapArgs, Debug)]
struct ShowArgs {
    /// The node's socket [default: /run/cxloe/mn-server.sock as root, else below $XDG_RUNTIME_DIR]
    #[arg(long, env = "CXLOE_MN", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// JSON for programs: times in nanoseconds, bytes as they are
    #[arg(long)]
    json: bool,
}

/// Task of this process, from its command line.
pub enum Task {
    Run(Box<RunArgs>),
    /// A command was executed; the process ends with this exit code.
    Done(ExitCode),
}

/// Parses the arguments and executes the command, unless it is `run`.
pub fn parse() -> Task {
    let Args { command, run } = Args::parse();
    let shown = match command {
        None => return Task::Run(Box::new(run)),
        Some(Command::Run(run)) => return Task::Run(run),
        Some(Command::Join(args)) => match join::run(*args) {
            Ok(Some(run)) => return Task::Run(Box::new(run)),
            Ok(None) => Ok(()),
            Err(failure) => Err(failure),
        },
        Some(Command::Doctor(args)) => return Task::Done(doctor::run(*args)),
        Some(Command::Sessions(args)) => show(&args, sessions::json, sessions::text),
        Some(Command::Counters(args)) => show(&args, counters::json, counters::text),
        Some(Command::Key(args)) => key::run(&args),
        Some(Command::KeepPool(args)) => {
            process::run(&args).map_err(|error| Failure::new(Exit::Failed, error.to_string()))
        }
        Some(Command::Completions { shell }) => completion::script(shell, Args::command(), false),
        Some(Command::Man(man)) => man.write(Args::command()),
    };
    Task::Done(finish("mn-server", shown))
}

fn show(
    args: &ShowArgs,
    json: fn(&NodeStatus) -> Result<Value, Failure>,
    text: fn(&NodeStatus) -> String,
) -> Result<(), Failure> {
    let status = ask(&args.socket.clone().unwrap_or_else(default_socket)).map_err(query_failure)?;
    if args.json {
        return output::print(json(&status)?, false);
    }
    let shown = format!("{} on {}\n{}{}", status.name, status.interface, text(&status), stale(&status));
    output::line(shown.trim_end())
}

fn query_failure(error: AskError) -> Failure {
    let exit = match error {
        AskError::Version { .. } => Exit::Failed,
        _ => Exit::Unreachable,
    };
    Failure::new(exit, error)
}

/// Lines of text, one for each worker whose report is old.
fn stale(status: &NodeStatus) -> String {
    let line = |worker: &WorkerStatus| match worker.age_ns.map(Duration::from_nanos) {
        None => format!("worker {} has not reported yet: its figures are missing\n", worker.worker),
        Some(age) if age > FRESH => {
            format!(
                "worker {} has reported {age:.1?} ago and not since: its log may show why\n",
                worker.worker
            )
        }
        Some(_) => String::new(),
    };
    status.workers.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from(["mn-server"].iter().chain(words))
    }

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn without_a_command_it_runs() {
        let plain = parsed(&["-i", "eth9", "--static-map", "f"]).unwrap();
        assert!(plain.command.is_none());
        let Some(Command::Run(named)) = parsed(&["run", "-i", "eth9", "--static-map", "f"]).unwrap().command
        else {
            panic!("another command")
        };
        assert_eq!(plain.run.settings, named.settings);
        assert!(
            parsed(&["-i", "eth9", "sessions"]).is_err(),
            "options of a node say nothing about a question"
        );
    }

    #[test]
    fn figures_that_are_not_of_now_are_named() {
        let worker = |worker, age: Option<Duration>| WorkerStatus {
            worker,
            age_ns: age.map(|age| age.as_nanos() as u64),
            report: Default::default(),
        };
        let old = FRESH + Duration::from_secs(1);
        let shown = stale(&NodeStatus {
            version: 1,
            name: "mn1".into(),
            interface: "mn0".into(),
            window: 256,
            link_down: None,
            link_reopened: 0,
            workers: vec![worker(0, Some(FRESH)), worker(1, Some(old)), worker(2, None)],
        });
        assert_eq!(shown.lines().count(), 2, "{shown}");
        assert!(
            shown.contains("worker 1 has reported 3.0s ago") && shown.contains("worker 2 has not"),
            "{shown}"
        );
    }

    #[test]
    fn the_help_names_commands_options_and_examples() {
        let help = Args::command().render_long_help().to_string();
        for word in
            ["sessions", "counters", "completions", "--pool-size", "--socket", "mn.toml", "Exit codes"]
        {
            assert!(help.contains(word), "{word} is missing in\n{help}");
        }
        assert!(help.starts_with("Memory node of CXL over Ethernet"), "{help}");
    }
}

//! The `cn-agent` command: runs the agent of a compute node, and queries a running one. Each subcommand is a file of
//! [`cli`]; results go to standard output as JSON, all else to standard error; the exit code reports the outcome.

// Warns about `println!` and the like, which panic when standard output or error is closed. The project's own macros do
// not.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod cli;

fn main() -> std::process::ExitCode {
    cli::run()
}

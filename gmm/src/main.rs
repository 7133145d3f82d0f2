//! The `gmm` command: serves a manager, and asks one. Arguments are parsed into [`cli::Args`]; each subcommand is a file
//! of [`cli`]; results go to standard output as JSON, all else to standard error; the exit code says how it ended.

// These end the process when nobody can be told.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod cli;

fn main() -> std::process::ExitCode {
    cli::run()
}

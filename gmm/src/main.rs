//! The `gmm` command: serves a manager, and sends requests to one. Arguments are parsed into [`cli::Args`]; each
//! subcommand is a file of [`cli`]. Results are written to standard output, messages to standard error; the exit code
//! identifies the kind of failure.

// `print!` and `eprint!` panic when the stream is closed, for example by a pipe that ended.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod cli;

fn main() -> std::process::ExitCode {
    cli::run()
}

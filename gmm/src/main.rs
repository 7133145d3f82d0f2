//! The `gmm` command: serves a manager, and sends requests to one. Arguments are parsed into [`cli::Args`]; each
//! subcommand is a file of [`cli`]. Results are written to standard output, messages to standard error; the exit code
//! identifies the kind of failure.

// These macros panic when the stream is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod cli;

fn main() -> std::process::ExitCode {
    cli::run()
}

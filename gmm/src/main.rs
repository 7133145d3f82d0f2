//! The `gmm` command: serves a manager, and asks one. Arguments are parsed into [`cli::Args`]; each subcommand is a file
//! of [`cli`]; results go to standard output as JSON, all else to standard error; the exit code says how it ended.

mod cli;

fn main() -> std::process::ExitCode {
    cli::run()
}

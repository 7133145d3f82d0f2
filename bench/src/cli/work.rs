//! `cxloe-bench work`: the project's own programs that `programs` measures, each run as a process of its own.

use cxloe_daemon::{to_stderr, to_stdout};

use cxloe_compare::programs::children::children;
use cxloe_compare::programs::own::{Worked, chase, graph, touch};

use super::Failure;

/// Do the work of one of the programs that `programs` measures
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Program to run
    #[arg(value_enum)]
    what: WorkKind,

    /// Bytes of memory that the program uses
    #[arg(long, value_name = "N", default_value_t = 64 << 20, value_parser = clap::value_parser!(u64).range(1..))]
    bytes: u64,

    /// Number of loads in the pointer chase
    #[arg(long, value_name = "N", default_value_t = 300_000)]
    steps: u64,

    /// Number of child processes that run at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    children: usize,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum WorkKind {
    /// A pointer chase
    Chase,
    /// A walk through a graph
    Graph,
    /// A first touch of fresh memory
    Touch,
    /// Children of one parent, which write a tenth of its memory and read all of it
    Children,
}

/// Runs the program, and prints its result and its running time.
pub fn run(args: &Args) -> Result<(), Failure> {
    let bytes = usize::try_from(args.bytes).unwrap_or(usize::MAX);
    let Worked { operations, time, answer } = match args.what {
        WorkKind::Chase => chase(bytes, args.steps),
        WorkKind::Graph => graph(bytes),
        WorkKind::Touch => touch(bytes),
        WorkKind::Children => children(bytes, args.children)?,
    };
    to_stdout!("{operations} operations, answer {answer:#x}");
    // The time goes to standard error, since standard output is compared between runs.
    to_stderr!("worked {operations} {}", time.as_nanos());
    Ok(())
}

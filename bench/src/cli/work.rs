//! `cxloe-bench work`: the programs of our own that `programs` measures, each a process as any other.

use cxloe_daemon::{to_stderr, to_stdout};

use crate::programs::own::{Worked, chase, graph, touch};

/// Do the work of one of the programs that `programs` measures
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Which work
    #[arg(value_enum)]
    what: What,

    /// Bytes of memory
    #[arg(long, value_name = "N", default_value_t = 64 << 20, value_parser = clap::value_parser!(u64).range(1..))]
    bytes: u64,

    /// Loads of a chase
    #[arg(long, value_name = "N", default_value_t = 300_000)]
    steps: u64,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum What {
    /// A pointer chase
    Chase,
    /// A walk through a graph
    Graph,
    /// A first touch of fresh memory
    Touch,
}

/// Works, and says what it comes to and how long it took.
pub fn run(args: &Args) {
    let bytes = usize::try_from(args.bytes).unwrap_or(usize::MAX);
    let Worked { operations, time, answer } = match args.what {
        What::Chase => chase(bytes, args.steps),
        What::Graph => graph(bytes),
        What::Touch => touch(bytes),
    };
    to_stdout!("{operations} operations, answer {answer:#x}");
    to_stderr!("worked {operations} {}", time.as_nanos());
}

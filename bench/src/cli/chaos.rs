//! `cxloe-bench chaos`: kills daemons at random, and checks that no acknowledged write is lost.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use cxloe_daemon::{Span, to_stderr, to_stdout};
use cxloe_fabric::model::{ByteSize, human_bytes};
use cxloe_lab::Interrupt;
use serde_json::json;

use super::Failure;
use super::common::{in_folder, write_json};
use crate::chaos::{self, ChaosOptions};
use cxloe_measure::machine::Machine;

/// Kill a daemon at random every few seconds under a load on a mirrored region, and check every line
#[derive(ClapArgs, Clone, Debug)]
#[command(after_help = "\
A manager, memory nodes and a compute node run in namespaces of their own. Every few seconds one of them is
killed (SIGKILL) and started again; a memory node at times without its content, if the other copy is in sync.
Meanwhile lines are written, read back and compared: a write that was answered has to be read from then on.
Exit code 1 if a line was wrong, a daemon did not start again, or the copies did not come into sync.

Examples:
  cxloe-bench chaos
  cxloe-bench chaos --duration 1h --every 5s --json chaos.json
  cxloe-bench chaos --seed 7 --duration 30s --every 1s")]
pub struct Args {
    /// Time during which daemons are killed
    #[arg(long, value_name = "TIME", default_value = "1m")]
    duration: Span,

    /// Time from one kill to the next
    #[arg(long, value_name = "TIME", default_value = "5s")]
    every: Span,

    /// Seed of the choices of victims, moments and lines [default: the time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Number of memory nodes, 2 to 16
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=16))]
    memory_nodes: u8,

    /// Size of the region, a multiple of 2 MiB
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    size: ByteSize,

    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<(), Failure> {
    if args.size.0 == 0 || !args.size.0.is_multiple_of(2 << 20) {
        return Err(format!("--size {} is not a multiple of 2MiB", args.size).into());
    }
    if args.every.0 < Duration::from_millis(100) {
        return Err("--every is 100ms at least: a daemon has to be started in between".into());
    }
    let options = ChaosOptions {
        duration: args.duration.0,
        every: args.every.0,
        seed: args.seed.unwrap_or_else(|| rand::random_range(0..1 << 32)),
        memory_nodes: usize::from(args.memory_nodes),
        bytes: args.size.0,
    };
    to_stderr!("seed {}; region of {}", options.seed, human_bytes(options.bytes));
    let done = in_folder("cxloe-chaos-", interrupt, |folder| {
        chaos::run(&options, folder, interrupt, &|line| to_stderr!("{line}"))
    })?;
    to_stdout!("{:<14} {:>6} {:>26}", "killed", "times", "longest ms (median max)");
    for (kind, (times, median, max)) in chaos::by_kind(&done.kills) {
        to_stdout!("{kind:<14} {times:>6} {median:>15.1} {max:>10.1}");
    }
    let load = &done.load;
    to_stdout!(
        "{} lines written, {} read and compared, {} wrong; {} batches failed, {} connections",
        load.written,
        load.read,
        load.wrong,
        load.failed,
        load.connected
    );
    to_stdout!(
        "{} legs became stale, {} were filled; in sync {:.1} s after the last kill",
        done.legs_stale,
        done.legs_filled,
        done.whole_after_s
    );
    write_json(&args.json, &json!({ "machine": Machine::describe(), "chaos": done }))
}

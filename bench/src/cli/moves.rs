//! `cxloe-bench move`: virtual machines that move between compute nodes.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use cxloe_daemon::{to_stderr, to_stdout};
use cxloe_fabric::model::{ByteSize, human_bytes};
use cxloe_lab::Interrupt;
use serde_json::json;

use super::Failure;
use super::common::{in_folder, write_json};
use crate::moves::{self, Move, MoveOptions};
use cxloe_measure::machine::Machine;

/// Move a virtual machine between two compute nodes, without copying its memory, and time its stops
#[derive(ClapArgs, Clone, Debug)]
#[command(after_help = "\
A manager, a memory node and two compute nodes run in namespaces of their own. A guest without an operating
system (QEMU, without KVM) writes all of its memory once, then goes through its working set without a pause, and
checks each page; of every other page it writes. It is moved back and forth.

Exit code 1 if a page was wrong or a move failed. It needs qemu-system-x86_64 and a C compiler.

Examples:
  cxloe-bench move
  cxloe-bench move --memory 4GiB --moves 50 --json move.json")]
pub struct Args {
    /// Memory of the machine, all of it remote; a multiple of 2 MiB
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    memory: ByteSize,

    /// Bytes of the machine's memory that may be resident
    #[arg(long, value_name = "SIZE", default_value = "112MiB")]
    local: ByteSize,

    /// Bytes of the guest's working set
    #[arg(long, value_name = "SIZE", default_value = "96MiB")]
    working: ByteSize,

    /// Number of moves
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    moves: u32,

    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<(), Failure> {
    let (memory, local, working) = (args.memory.0, args.local.0, args.working.0);
    if memory < 64 << 20 || !memory.is_multiple_of(2 << 20) {
        return Err(format!("--memory {} is not a multiple of 2MiB of at least 64MiB", args.memory).into());
    }
    if working < 1 << 20 || !working.is_multiple_of(4096) {
        return Err(format!("--working {} is not whole pages of at least 1MiB", args.working).into());
    }
    let options = MoveOptions { memory, local, working, moves: args.moves };
    to_stderr!(
        "machine of {}, {} resident, working set of {}",
        human_bytes(memory),
        human_bytes(local),
        human_bytes(working)
    );
    let done = in_folder("cxloe-move-", interrupt, |folder| {
        moves::run(&options, folder, interrupt, &|line| to_stderr!("{line}"))
    })?;
    to_stdout!("{:<34} {:>10} {:>10} {:>10}", "", "minimum", "median", "maximum");
    let row = |name: &str, of: fn(&Move) -> f64| {
        let mut values: Vec<f64> = done.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        let (least, middle, most) = (values[0], values[values.len() / 2], values[values.len() - 1]);
        to_stdout!("{name:<34} {least:>10.1} {middle:>10.1} {most:>10.1}");
    };
    row("guest stopped (ms)", |of| of.stopped_ms);
    row("between two passes (ms)", |of| of.gap_ms);
    row("whole command (ms)", |of| of.command_ms);
    row("passes/s before", |of| of.before);
    row("passes/s, first 100 ms", |of| of.first_100ms);
    row("passes/s, first second", |of| of.first_second);
    row("resident pages", |of| of.resident_pages as f64);
    row("QEMU's state (KiB)", |of| of.state_bytes as f64 / 1024.0);
    let machine = Machine::describe();
    write_json(
        &args.json,
        &json!({ "machine": machine, "memory": memory, "local": local, "working": working, "moves": done }),
    )
}

//! `cxloe-bench echo`: round trips of frames over the link, without sessions.

use std::time::Duration;

use cxloe_daemon::to_stdout;
use cxloe_link::{echo::serve, open};
use cxloe_wire::frame::Mac;

use super::Failure;
use super::common::{LinkArgs, OutputArgs, ProgressUnit, bar, report};
use cxloe_lab::Interrupt;
use cxloe_measure::echo::{EchoPlan, EchoResults, echo};
use cxloe_measure::machine;

/// Measure the bare link: frames out, frames back, no protocol
///
/// One end answers (--serve, or a memory node started with --echo-for and this interface's address); the other one measures single exchanges of
/// a line read's frame sizes (echo64) and a full window of them (echo_pipelined).
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    link: LinkArgs,

    /// Answer until Ctrl-C
    #[arg(long, conflicts_with = "peer")]
    serve: bool,

    /// MAC address of the interface that answers
    #[arg(long, value_name = "MAC", required_unless_present = "serve")]
    peer: Option<Mac>,

    /// Number of trials
    #[arg(long, value_name = "N", default_value_t = 10)]
    trials: u32,

    /// Single exchanges in a trial
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    operations: u64,

    /// Frames in flight when pipelined; beyond 200 a veth loses frames
    #[arg(long, value_name = "N", default_value_t = 128)]
    depth: u64,

    #[command(flatten)]
    output: OutputArgs,
}

pub fn run(args: &Args, interrupt: Interrupt) -> Result<(), Failure> {
    if let Some(cpu) = args.link.cpu {
        machine::pin(cpu)?;
    }
    let mut link = open(&args.link.config())?;
    let info = link.info().clone();
    if args.serve {
        to_stdout!("answering echoes on {} ({}, {}); Ctrl-C ends", info.interface, info.mac, info.backend);
        loop {
            serve(&mut *link, Duration::from_millis(200))?;
            interrupt.check()?;
        }
    }
    let Some(peer) = args.peer else { return Err("--peer is missing".into()) };
    let progress = bar(u64::from(args.trials), ProgressUnit::Steps);
    let plan = EchoPlan { trials: args.trials, operations: args.operations, depth: args.depth };
    let at = (peer, args.link.ethertype);
    let EchoResults { echo64, pipelined } = echo(&mut *link, at, plan, &interrupt, &mut || progress.inc(1))?;
    progress.finish_and_clear();
    let mut report = report(&info, "", vec![info.interface.clone()], args.link.wait, None);
    report.add(&echo64);
    if let Some(pipelined) = pipelined {
        report.add_throughput(pipelined);
    }
    args.output.write(&report, &[&echo64])
}

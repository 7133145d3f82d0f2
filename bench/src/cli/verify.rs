//! `cxloe-bench verify`: writes every byte of a region and reads it back.

use cxloe_daemon::to_stdout;
use cxloe_link::LinkCounters;

use super::Failure;
use super::common::{LinkArgs, ProgressUnit, RegionArgs, Session, bar};
use cxloe_lab::Interrupt;

/// Write a pattern over a whole region and compare every byte read back
///
/// Overwrites the region. With --faults it shows that a lossy link loses no byte.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    link: LinkArgs,
    #[command(flatten)]
    region: RegionArgs,

    /// Seed of the pattern [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Number of passes over the region
    #[arg(long, value_name = "N", default_value_t = 1)]
    passes: u64,

    /// Number of requests in flight
    #[arg(long, value_name = "N", default_value_t = 128)]
    depth: usize,

    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, interrupt: Interrupt) -> Result<(), Failure> {
    let mut session = Session::open(&args.link, &args.region, interrupt)?;
    session.target.port.set_depth(args.depth);
    let seed = args.seed.unwrap_or_else(rand::random);
    let progress = bar(session.target.bytes * 2 * args.passes, ProgressUnit::Bytes);
    for pass in 0..args.passes {
        let base = pass * session.target.bytes * 2;
        session.target.verify(seed.wrapping_add(pass), &mut |done| progress.set_position(base + done))?;
    }
    progress.finish_and_clear();
    let bytes = session.target.bytes * args.passes;
    let sessions = session.target.port.engine().sessions();
    let link: LinkCounters = session.target.port.link().counters();
    if args.json {
        let outcome = serde_json::json!({
            "verified_bytes": bytes, "wrong_bytes": 0, "seed": seed, "frames": session.frames, "sessions": sessions,
            "link": link,
        });
        to_stdout!("{outcome:#}");
    } else {
        let resent: u64 = sessions.iter().map(|s| s.counters.retransmitted).sum();
        to_stdout!(
            "{bytes} bytes written and read back, every one right (seed {seed}, {} frames out, {} in, {resent} sent again, frames {})",
            link.tx_frames,
            link.rx_frames,
            session.frames
        );
    }
    session.close()
}

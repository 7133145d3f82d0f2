//! `cxloe-bench outages`: waiting times of operations while a memory node's process or interface is away.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use cxloe_daemon::to_stdout;
use cxloe_lab::Interrupt;
use cxloe_link::Backend;
use cxloe_link::wait::WaitStyle;
use serde_json::json;

use super::Failure;
use super::common::{shown, write_json};
use crate::keys::site::Site;
use crate::outages::{Measured, Outage, outage};
use cxloe_measure::machine::Machine;

/// Measure how long operations wait when a memory node's process or interface is away, and check every line
#[derive(ClapArgs, Clone, Debug)]
#[command(after_help = "\
A node writes and reads lines over a cable in namespaces of its own, while the memory node at the other end is
killed, replaced, or loses its interface. The longest operation is shown beside the time for which nothing could
answer. Exit code 1 if an operation failed, or a line was not as last written.

Example:
  cxloe-bench outages --rounds 5 --json outages.json")]
pub struct Args {
    /// The outages to measure [default: all]
    #[arg(long, value_name = "OUTAGE", value_delimiter = ',')]
    only: Vec<Outage>,

    /// Number of turns of each outage
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,

    /// Milliseconds for which an interface is away
    #[arg(long, value_name = "MS", default_value_t = 500)]
    away_ms: u64,

    /// Link of both ends
    #[arg(long, value_name = Backend::VALUES, default_value = "packet")]
    link: Backend,

    /// busy (spin), adaptive or adaptive:TIME (spin that long, then sleep) or sleep
    #[arg(long, value_name = "STYLE", default_value = "adaptive")]
    wait: WaitStyle,

    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<(), Failure> {
    let kinds = if args.only.is_empty() { Outage::value_variants().to_vec() } else { args.only.clone() };
    let state = tempfile::Builder::new().prefix("cxloe-outages-").tempdir()?;
    let mut site = Site::new(state.path(), args.link, args.wait)?;
    let mut all = Vec::new();
    to_stdout!(
        "{:<10} {:>10} {:>22} {:>22} {:>12} {:>8} {:>8}",
        "outage",
        "away ms",
        "longest ms (median max)",
        "beyond ms (median max)",
        "operations",
        "failed",
        "wrong"
    );
    for kind in kinds {
        let mut of = Vec::new();
        let name = kind.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let away = Duration::from_millis(args.away_ms);
        for turn in 1..=args.rounds.max(1) {
            let what = format!("{name}: turn {turn} of {}", args.rounds.max(1));
            of.push(shown(what, || outage(&mut site, kind, away, interrupt))?);
        }
        let (away, _) = spread(of.iter().map(|one| one.away_ms));
        let (longest, longest_max) = spread(of.iter().map(|one| one.longest_ms));
        let (beyond, beyond_max) = spread(of.iter().map(Measured::beyond_ms));
        let sum = |of_one: fn(&Measured) -> u64| of.iter().map(of_one).sum::<u64>();
        to_stdout!(
            "{name:<10} {away:>10.1} {longest:>12.1} {longest_max:>9.1} {beyond:>12.1} {beyond_max:>9.1} {:>12} {:>8} {:>8}",
            sum(|one| one.operations),
            sum(|one| one.failed),
            sum(|one| one.wrong)
        );
        all.extend(of);
    }
    let (failed, wrong) =
        (all.iter().map(|one| one.failed).sum::<u64>(), all.iter().map(|one| one.wrong).sum::<u64>());
    let (link, wait) = (args.link.to_string(), args.wait.to_string());
    let machine = Machine::describe();
    write_json(&args.json, &json!({ "machine": machine, "link": link, "wait": wait, "outages": all }))?;
    match (failed, wrong) {
        (0, 0) => Ok(()),
        _ => Err(format!("{failed} operations failed, {wrong} lines were not as last written").into()),
    }
}

/// Median and maximum of the values.
fn spread(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    (values.get(values.len() / 2).copied().unwrap_or_default(), values.last().copied().unwrap_or_default())
}

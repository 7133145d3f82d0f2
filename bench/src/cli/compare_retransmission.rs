//! `cxloe-bench compare-retransmission`: selective retransmission against Go-Back-N, simulated.

use comfy_table::CellAlignment;
use cxloe_daemon::to_stdout;
use serde::Serialize;

use super::Failure;
use cxloe_measure::report::table::{Table, new_table};
use cxloe_measure::report::units;
use cxloe_paper::retransmission::{Outcome, Scheme, Setting, run as simulate};

/// Compare selective retransmission with Go-Back-N over a simulated link that loses frames
///
/// Bursts of 23 lines, written and read alternately, 128 under way, over 100 Gbit/s with 2 us each way, in virtual
/// time: the same settings give the same figures everywhere. Needs neither privileges nor a network.
#[derive(clap::Args)]
pub struct Args {
    /// Frames lost in each direction, in percent; several values separated by commas
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [0.0, 0.1, 1.0, 5.0])]
    loss: Vec<f64>,

    /// Bursts of each run
    #[arg(long, value_name = "N", default_value_t = 40_960)]
    operations: u64,

    /// Seed of the losses
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print the outcomes as JSON
    #[arg(long)]
    json: bool,
}

/// Results of both schemes at one loss rate.
#[derive(Serialize)]
struct Compared {
    loss_percent: f64,
    selective: Outcome,
    go_back_n: Outcome,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let mut all = Vec::new();
    for &loss_percent in &args.loss {
        let run = |scheme| {
            simulate(&Setting { scheme, loss_percent, operations: args.operations, seed: args.seed })
        };
        let (selective, go_back_n) = (run(Scheme::Selective)?, run(Scheme::GoBackN)?);
        all.push(Compared { loss_percent, selective, go_back_n });
    }
    if args.json {
        to_stdout!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        to_stdout!("{}", table(&all));
    }
    Ok(())
}

fn table(all: &[Compared]) -> Table {
    let mut table = new_table([
        "loss",
        "scheme",
        "lost",
        "requests again",
        "answers again",
        "probes",
        "time-outs",
        "goodput",
        "of loss-free",
    ]);
    let free = all.iter().find(|c| c.loss_percent == 0.0).map(|c| c.selective.goodput());
    for c in all {
        for (name, o) in [("selective", &c.selective), ("Go-Back-N", &c.go_back_n)] {
            table.add_row([
                format!("{} %", c.loss_percent),
                name.to_owned(),
                units::count(o.lost),
                units::count(o.requests_again),
                units::count(o.answers_again),
                units::count(o.probes),
                units::count(o.timeouts),
                units::bytes(o.goodput()),
                free.map_or_else(String::new, |free| format!("{:.0} %", 100.0 * o.goodput() / free)),
            ]);
        }
    }
    if let Some(scheme) = table.column_mut(1) {
        scheme.set_cell_alignment(CellAlignment::Left);
    }
    table
}

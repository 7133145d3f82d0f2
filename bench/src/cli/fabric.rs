//! `cxloe-bench fabric`: times and memory of a manager of a thousand memory nodes and a hundred thousand regions.

use std::path::PathBuf;

use cxloe_daemon::to_stdout;
use serde::Serialize;

use super::Failure;
use super::common::{ProgressUnit, bar, write_json};
use cxloe_fabric::model::human_bytes;

use crate::fabric::{FabricFiles, Live, Populated, Size, Times, measure, populate};
use cxloe_lab::{Interrupt, program};
use cxloe_measure::machine::Machine;
use cxloe_measure::report::table::{Table, new_table};
use cxloe_measure::report::units;

/// Measure the manager with thousands of nodes and a hundred thousand regions
///
/// Fills a store with a fabric of the size given, by the manager's own state machine; starts a real `gmm serve` over it,
/// connects every memory node over HTTP (they confirm at once: no memory is behind them), and creates regions one by one
/// and by many clients. Before that, the same with one memory node and no regions: an idle fabric.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Number of memory nodes
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1024))]
    memory_nodes: u32,

    /// Number of compute nodes
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    compute_nodes: u32,

    /// Number of regions
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    regions: u32,

    /// Regions created and destroyed one by one; ten times as many are created by --clients at once
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    creates: u32,

    /// Number of clients that create regions at the same time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,

    /// Folder for the stores, on the disk to be measured [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  cxloe-bench fabric
  cxloe-bench fabric --memory-nodes 100 --compute-nodes 500 --regions 5000
  cxloe-bench fabric --dir /var/lib --json fabric.json";

#[derive(Serialize)]
struct Findings {
    machine: Machine,
    size: Size,
    idle: Live,
    populated: Populated,
    live: Live,
}

pub fn run(args: &Args, interrupt: Interrupt) -> Result<(), Failure> {
    let folder = match &args.dir {
        Some(dir) => tempfile::Builder::new().prefix("cxloe-fabric").tempdir_in(dir),
        None => tempfile::tempdir(),
    }?;
    let place = |store: &str| -> Result<FabricFiles, Failure> {
        Ok(FabricFiles { store: folder.path().join(store), gmm: program("gmm")? })
    };
    let size =
        Size { memory_nodes: args.memory_nodes, compute_nodes: args.compute_nodes, regions: args.regions };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let interrupt = &interrupt;
    let serve = |place: FabricFiles, size| {
        runtime.block_on(async {
            tokio::select! {
                live = measure(&place, size, args.creates, args.clients) => live.map_err(Failure::from),
                interrupted = ended(interrupt) => Err(interrupted),
            }
        })
    };
    let small = Size { memory_nodes: 1, compute_nodes: 1, regions: 0 };
    let idle = serve(place("idle.redb")?, small)?;
    let full = place("full.redb")?;
    let progress = bar(u64::from(size.regions), ProgressUnit::Steps);
    progress.set_message("filling the store");
    let populated = populate(&full.store, size, |made| {
        progress.set_position(made);
        interrupt.check()
    })?;
    progress.finish_and_clear();
    let live = serve(full, size)?;

    let findings = Findings { machine: Machine::describe(), size, idle, populated, live };
    to_stdout!("{}", table(&findings));
    write_json(&args.json, &findings)
}

/// Completes when Ctrl-C is pressed.
async fn ended(interrupt: &Interrupt) -> Failure {
    loop {
        if let Err(interrupted) = interrupt.check() {
            return interrupted.into();
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

fn table(findings: &Findings) -> Table {
    let Findings { size, idle, populated, live, .. } = findings;
    let title = format!(
        "{} memory nodes, {} compute nodes, {} regions",
        units::count(u64::from(size.memory_nodes)),
        units::count(u64::from(size.compute_nodes)),
        units::count(u64::from(size.regions))
    );
    let mut table = new_table([title.as_str(), "p50", "p99", "longest"]);
    let mut times = |what: &str, times: &Times| {
        let text = |us: f64| if us < 1000.0 { format!("{us:.1} us") } else { format!("{:.2} ms", us / 1e3) };
        table.add_row([what.to_owned(), text(times.p50_us), text(times.p99_us), text(times.max_us)]);
    };
    times("region create, idle fabric, HTTP to durable and mapped", &idle.create);
    times("region destroy, idle fabric", &idle.destroy);
    times("allocation, state machine alone", &populated.allocation);
    times("commit of up to 256 commands", &populated.commit);
    times("region create, full fabric", &live.create);
    times("region destroy, full fabric", &live.destroy);
    let mut single = |what: String, value: String| {
        table.add_row([what, value]);
    };
    single(
        format!("region creates a minute, {} clients, full fabric", live.clients),
        format!("{:.0}", live.creates_per_minute),
    );
    single(
        "regions a minute, state machine and store".to_owned(),
        format!("{:.0}", populated.regions_per_minute),
    );
    single("restart of the manager, full".to_owned(), format!("{:.2} s", live.restart_ms / 1e3));
    single("memory of the manager, full".to_owned(), human_bytes(live.memory_bytes));
    single("store, full".to_owned(), human_bytes(populated.store_bytes));
    table
}

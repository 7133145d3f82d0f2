//! `cxloe-bench survival`: what it costs that memory survives, moves and is shared, beside its goals.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use cxloe_daemon::{Span, to_stderr, to_stdout};
use cxloe_fabric::model::ByteSize;
use cxloe_lab::Interrupt;
use cxloe_link::Backend;
use cxloe_link::wait::WaitStyle;
use serde::Serialize;

use super::Failure;
use super::common::{in_folder, raw_link, write};
use crate::survival::{self, HEAD, SurvivalOptions, SurvivalResults, SurvivalSection};
use cxloe_measure::machine::Machine;

/// Unit of the sizes of regions.
const SIZE_UNIT: u64 = 2 << 20;

/// Measure mirrored regions, kills, new copies, drains, sealed regions, snapshots and clones, and check every line
#[derive(ClapArgs, Clone, Debug)]
#[command(after_help = "\
A manager, three memory nodes and compute nodes run in namespaces of their own; lines and pages go through an
agent without a line cache. What is compared is measured by turns. Every line that is read is compared with what
was written.

Beside a figure stands its goal, and whether it is reached. A missed goal is no failure: exit code 1 if an
operation failed where none may, a line was wrong, or an order was not carried out.

All nodes share the processors of this machine: compare quotients, not times. Page faults are left out if this
user may not map regions.

Examples:
  cxloe-bench survival
  cxloe-bench survival --only mirror,clones --rounds 5 --output survival
  cxloe-bench survival --only kill,writer --size 1GiB --away 1s --json survival.json")]
pub struct Args {
    /// The sections to measure [default: all]
    #[arg(long, value_name = "SECTION", value_delimiter = ',')]
    only: Vec<SurvivalSection>,

    /// Number of rounds of each section
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,

    /// Operations on lines in a turn, and most touches of pages
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    operations: u64,

    /// Size of the regions, except those that are cloned; a multiple of 2 MiB
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    size: ByteSize,

    /// Sizes of the regions that are cloned; multiples of 2 MiB
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "64MiB,1GiB")]
    clone_sizes: Vec<ByteSize>,

    /// Time for which a killed memory node is away
    #[arg(long, value_name = "TIME", default_value = "1s")]
    away: Span,

    /// Number of compute nodes that read a sealed region, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    readers: u8,

    /// Link of all nodes
    #[arg(long, value_name = Backend::RAW_VALUES, default_value = "packet", value_parser = raw_link)]
    link: Backend,

    /// busy (spin), adaptive or adaptive:TIME (spin that long, then sleep) or sleep
    #[arg(long, value_name = "STYLE", default_value = "adaptive")]
    wait: WaitStyle,

    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Folder of survival.json and of survival.txt, the table
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// Results, in the layout of `--json`.
#[derive(Serialize)]
struct Results {
    machine: Machine,
    /// True if the program was built without optimisation, which makes its times meaningless.
    debug_build: bool,
    link: String,
    wait: String,
    rounds: u32,
    operations: u64,
    size: u64,
    clone_sizes: Vec<u64>,
    away_ms: u64,
    readers: u8,
    #[serde(flatten)]
    survival: SurvivalResults,
}

/// Checks a size that the option `name` gives.
fn checked(name: &str, size: ByteSize) -> Result<u64, Failure> {
    match size.0 > 0 && size.0.is_multiple_of(SIZE_UNIT) {
        true => Ok(size.0),
        false => Err(format!("{name} {size} is not a multiple of 2MiB").into()),
    }
}

impl Args {
    fn options(&self) -> Result<SurvivalOptions, Failure> {
        let sizes = self.clone_sizes.iter().map(|size| checked("--clone-sizes", *size));
        Ok(SurvivalOptions {
            sections: match self.only.is_empty() {
                true => SurvivalSection::value_variants().to_vec(),
                false => self.only.clone(),
            },
            rounds: self.rounds,
            operations: self.operations,
            bytes: checked("--size", self.size)?,
            clone_bytes: sizes.collect::<Result<_, _>>()?,
            away: self.away.0,
            readers: usize::from(self.readers),
            link: self.link,
            wait: self.wait,
        })
    }

    fn results(&self, options: SurvivalOptions, survival: SurvivalResults) -> Results {
        Results {
            machine: Machine::describe(),
            debug_build: cfg!(debug_assertions),
            link: options.link.to_string(),
            wait: options.wait.to_string(),
            rounds: options.rounds,
            operations: options.operations,
            size: options.bytes,
            clone_sizes: options.clone_bytes,
            away_ms: options.away.as_millis() as u64,
            readers: self.readers,
            survival,
        }
    }
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<(), Failure> {
    let options = args.options()?;
    if let Some(output) = &args.output {
        std::fs::create_dir_all(output)
            .map_err(|e| format!("cannot create {}: {e}; give another with --output", output.display()))?;
    }
    if cfg!(debug_assertions) {
        to_stderr!("This program was built without optimisation: its times are longer than they have to be.");
    }
    let done = in_folder("cxloe-survival-", interrupt, |folder| {
        survival::run(&options, folder, interrupt, &|line| to_stderr!("{line}"))
    })?;
    let table = table(&done);
    to_stdout!("{table}");
    let failed = done.lines.failed;
    let results = serde_json::to_string_pretty(&args.results(options, done))?;
    if let Some(path) = &args.json {
        write(path, results.as_bytes())?;
    }
    if let Some(output) = &args.output {
        write(&output.join("survival.json"), results.as_bytes())?;
        write(&output.join("survival.txt"), format!("{table}\n").as_bytes())?;
    }
    match failed {
        0 => Ok(()),
        _ => Err(format!("{failed} operations failed where none may").into()),
    }
}

/// The figures as text, with the counts of lines below.
fn table(done: &SurvivalResults) -> String {
    let lines = &done.lines;
    let counts = format!(
        "{} operations, {} lines read and compared, {} wrong; {} operations failed",
        lines.operations, lines.checked, lines.wrong, lines.failed
    );
    let rows = done.figures.iter().map(|figure| figure.row());
    [HEAD.to_owned()].into_iter().chain(rows).chain([counts]).collect::<Vec<_>>().join("\n")
}

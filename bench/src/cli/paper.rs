//! `cxloe-bench paper`: the measurements of the paper's evaluation, repeated on this system, as a page and as data.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::ValueEnum;
use cxloe_daemon::to_stdout;
use cxloe_link::Backend;
use cxloe_link::wait::WaitStyle;

use super::Failure;
use super::common::{INSECURE, ProgressUnit, RegionArgs, Session, bar, raw_link, report, step, style, write};
use super::pair::OptionalLink;
use cxloe_lab::Interrupt;
use cxloe_measure::machine::Machine;
use cxloe_measure::report::{Link, Report};
use cxloe_paper::{Evaluation, EvaluationPart, Grid, Plan, Section};

/// Repeat the paper's evaluation (Fig. 7 to 12, Table II to IV) and lay it beside the paper's own values
///
/// Without --interface, both ends run in a lab of their own: two namespaces of this machine, joined by virtual cables, with
/// a memory node's worker in one thread and a line port in another. Fig. 7 measures this system over AF_XDP and packet
/// rings beside bare echoes, UDP and TCP sockets; Fig. 8 to 10 time 10 000 writes and 10 000 reads by parts a to f of their
/// path; Table II times each case of the line cache; Fig. 11 and 12 are simulated; Table III counts CPU time and memory;
/// Table IV compares features.
///
/// With --interface, Fig. 7 and Tables II and III are measured over that link, to a memory node that runs there.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Parts of the evaluation to run, separated by commas [default: all]
    #[arg(long, value_name = "PART", value_enum, value_delimiter = ',')]
    only: Vec<EvaluationPart>,

    /// Run a tenth of every measurement: to see the layout of the output, not for its figures
    #[arg(long)]
    quick: bool,

    /// Folder of paper.html, paper.json and the CSV files
    #[arg(long, value_name = "DIR", default_value = "target/paper")]
    output: PathBuf,

    /// Link of the nodes in the lab [default: auto; Fig. 7 then measures AF_PACKET and AF_XDP]
    #[arg(long, value_name = Backend::RAW_VALUES, value_parser = raw_link, conflicts_with = "interface")]
    lab_link: Option<Backend>,

    /// MTU of the lab's cables
    #[arg(long, value_name = "BYTES", default_value_t = 1500, conflicts_with = "interface")]
    mtu: u32,

    #[command(flatten)]
    link: OptionalLink,
    #[command(flatten)]
    region: RegionArgs,
}

const EXAMPLES: &str = "\
Examples:
  cxloe-bench paper                             # everything; target/paper/paper.html
  cxloe-bench paper --quick --output /tmp/p     # in half a minute
  cxloe-bench paper --only fig8,table2
  cxloe-bench paper --only fig7 -i enp3s0f0 --manager https://10.0.0.1:7440";

impl Args {
    /// True if the command makes a lab, for which this process must be able to create namespaces.
    pub fn makes_lab(&self) -> bool {
        self.link.0.is_none()
    }

    fn plan(&self) -> Plan {
        let parts: BTreeSet<EvaluationPart> = match self.only.is_empty() {
            true => EvaluationPart::value_variants().iter().copied().collect(),
            false => self.only.iter().copied().collect(),
        };
        Plan {
            parts,
            quick: self.quick,
            link: self.lab_link.unwrap_or_default(),
            bytes: self.region.size.0.next_multiple_of(2 << 20),
            mtu: self.mtu,
        }
    }
}

pub fn run(args: &Args, interrupt: Interrupt) -> Result<(), Failure> {
    let plan = args.plan();
    std::fs::create_dir_all(&args.output).map_err(|e| {
        format!("cannot make the folder {}: {e}; give another with --output", args.output.display())
    })?;
    let progress = bar(plan.steps(), ProgressUnit::Steps);
    let mut step = |what: &str| step(&progress, what);
    let (found, mut report) = match &args.link.0 {
        Some(link) => {
            if plan.parts == BTreeSet::from([EvaluationPart::Fig8]) {
                return Err("fig8 to fig10 need one clock for both ends; leave --interface out".into());
            }
            let mut session = Session::open(link, &args.region, interrupt)?;
            let found = cxloe_paper::measure_over(&plan, &mut session.target, link.wait, &mut step)?;
            let report =
                report(&session.link, &session.frames, vec![session.link.interface.clone()], link.wait, None);
            session.close()?;
            (found, report)
        }
        None => {
            let (found, measured) = cxloe_paper::measure(&plan, &interrupt, &mut step)?;
            let report = match measured {
                // Report about the measured link, with unsealed frames as in the paper.
                Some((link, wait, bounce)) => {
                    report(&link, INSECURE, vec!["cn0".into(), "mn0".into()], wait, bounce)
                }
                None => simulated(),
            };
            (found, report)
        }
    };
    progress.finish_and_clear();
    found.samples().into_iter().for_each(|samples| report.add(samples));
    let sections = cxloe_paper::sections(&found, &report)?;
    print(&sections);
    save(args, &found, &report, &sections)
}

/// Empty report for simulated parts, which have no link.
fn simulated() -> Report {
    Report::new(
        Machine::describe(),
        Link {
            backend: "sim".into(),
            interfaces: vec!["no interface".into()],
            mtu: 1500,
            wait: style(WaitStyle::default()),
            frames: String::new(),
        },
    )
}

fn print(sections: &[Section]) {
    for section in sections {
        to_stdout!("{}", section.title);
        // Tables of single requests and of points of curves are written to files only.
        let brief = |grid: &&Grid| {
            grid.rows.len() <= 20 && grid.columns.first().is_some_and(|(name, _)| name != "request")
        };
        for grid in section.grids.iter().filter(brief) {
            to_stdout!("{}\n{}", grid.caption, grid.text());
        }
        section.findings.iter().for_each(|finding| to_stdout!("{finding}"));
        to_stdout!("Comparable: {}", section.comparable);
        to_stdout!("Not comparable: {}\n", section.not_comparable);
    }
}

fn save(args: &Args, found: &Evaluation, report: &Report, sections: &[Section]) -> Result<(), Failure> {
    let page = args.output.join("paper.html");
    let data = args.output.join("paper.json");
    write(&page, cxloe_paper::page(found, report, sections).as_bytes())?;
    write(&data, found.json(report).as_bytes())?;
    for grid in sections.iter().flat_map(|section| &section.grids) {
        write(&args.output.join(format!("{}.csv", grid.file)), grid.csv().as_bytes())?;
    }
    to_stdout!("page:   {}", page.display());
    to_stdout!("data:   {}", data.display());
    to_stdout!("tables: {}", args.output.join("*.csv").display());
    Ok(())
}

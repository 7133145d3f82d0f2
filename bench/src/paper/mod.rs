//! The paper's evaluation from this system: Fig. 7 to 12, Table II to IV, each beside the paper's own values.
//!
//! ```text
//!   Ends (lab, worker, port) --> fig7, breakdown (path, parts), table2, table3 --.
//!   figures (simulation)     --> fig11, fig12 ------------------------------------+--> Evaluation --> Report (JSON)
//!   values.json (the paper)  -----------------------------------------------------'              `-> Section --> page, CSV, terminal
//! ```
//!
//! [`measure`] carries out what a [`Plan`] asks for. Every time goes into a [`Report`] of the usual schema; what else was
//! found is in [`Evaluation`]. [`sections()`] lays both out beside [`values()`].

mod breakdown;
mod ends;
mod error;
mod fig7;
mod heap;
mod page;
mod parts;
mod path;
mod pictures;
mod section;
mod sections;
mod sockets;
mod table2;
mod table3;
mod values;

use std::collections::BTreeSet;
use std::time::Duration;

use clap::ValueEnum;
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, LinkInfo};
use serde::Serialize;

pub use breakdown::{Breakdown, Breakdowns, Point};
pub use ends::{Ends, Served};
pub use error::PaperError;
pub use fig7::{Amount, Fig7};
pub use page::page;
pub use parts::{PARTS, Parts, Seen, Sent, evenly, join};
pub use path::{Operation, Path};
pub use section::{Cell, Grid, Picture, Section};
pub use sections::sections;
pub use table2::Table2;
pub use table3::{Cpu, Memory, Table3};
pub use values::{Values, values};

use crate::figures::{Fig11, Fig12, Model};
use crate::measure::Target;
use crate::report::{Report, Samples};
use cxloe_lab::Interrupt;

/// A part of the evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// 64 bytes: this system, sockets and the bare link
    Fig7,
    /// Latency by parts a to f, for writes and reads (Fig. 8, 9 and 10)
    #[value(aliases = ["fig9", "fig10"])]
    Fig8,
    /// The cases of the line cache
    Table2,
    /// Stable rates over thresholds, simulated
    Fig11,
    /// Stable rates over initial rates, simulated
    Fig12,
    /// What it costs: CPU time and memory
    Table3,
    /// Features beside those of other systems
    Table4,
}

impl Part {
    /// Whether both ends have to be in this process, so that a memory node elsewhere is of no use.
    fn needs_both_ends(self) -> bool {
        self == Part::Fig8
    }

    /// Whether frames are sent for it.
    fn needs_a_link(self) -> bool {
        matches!(self, Part::Fig7 | Part::Fig8 | Part::Table2 | Part::Table3)
    }
}

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which parts.
    pub parts: BTreeSet<Part>,
    /// A tenth of everything.
    pub quick: bool,
    /// The link; auto takes the fastest for all of it, and packet rings beside it in Fig. 7.
    pub link: Backend,
    /// Bytes of the region.
    pub bytes: u64,
    /// MTU of the lab's cables.
    pub mtu: u32,
}

/// What was found, besides times.
#[derive(Debug, Default, Serialize)]
pub struct Evaluation {
    /// Whether a tenth of everything was measured.
    pub quick: bool,
    /// Whether this program was built without optimisation, so that its times say little.
    pub debug_build: bool,
    /// Parts that were left out, and why.
    pub left_out: Vec<String>,
    /// Fig. 7.
    pub fig7: Option<Fig7>,
    /// Fig. 8 to 10.
    pub fig8: Option<Breakdowns>,
    /// Table II.
    pub table2: Option<Table2>,
    /// Fig. 11.
    pub fig11: Option<Fig11>,
    /// Fig. 12.
    pub fig12: Option<Fig12>,
    /// Table III.
    pub table3: Option<Table3>,
    /// Whether Table IV is wanted: all of it is known beforehand but its latencies.
    pub table4: bool,
}

impl Plan {
    fn of(&self, full: u64) -> u64 {
        if self.quick { full / 10 } else { full }
    }

    /// How much of Fig. 7 is measured.
    fn amount(&self) -> Amount {
        let rounds = if self.quick { 2 } else { 8 };
        Amount { rounds, operations: self.of(10_000), sleeping: self.of(2_000) }
    }

    fn rounds(&self) -> u32 {
        if self.quick { 2 } else { 10 }
    }

    /// How long each way of working is watched for Table III.
    fn each(&self) -> Duration {
        Duration::from_millis(self.of(600).max(100))
    }

    /// Operations of each kind for Fig. 8 to 10: in a full run as many as in the paper.
    fn operations(&self) -> usize {
        self.of(values().fig9.operations as u64) as usize
    }

    /// The links of Fig. 7.
    fn backends(&self) -> Vec<Backend> {
        match self.link {
            any if any.is_auto() => vec![Backend::Xdp, Backend::Packet],
            one => vec![one],
        }
    }

    /// Steps that `progress` hears of, about.
    pub fn steps(&self) -> u64 {
        let of = |part: &Part| match part {
            Part::Fig7 => fig7::steps(&self.backends(), self.amount().rounds),
            Part::Fig8 => Breakdowns::STEPS,
            Part::Table2 => u64::from(self.rounds()),
            Part::Table3 => Table3::STEPS,
            _ => 1,
        };
        self.parts.iter().map(of).sum()
    }

    fn wants(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    /// An evaluation in which nothing has been measured, and what is simulated or known.
    fn begin(&self, progress: &mut dyn FnMut(&str)) -> Evaluation {
        let model = Model::default();
        let mut simulate = |part, what: &str| {
            let wanted = self.wants(part);
            if wanted {
                progress(what);
            }
            wanted
        };
        let fig11 = simulate(Part::Fig11, "Fig. 11, simulated").then(|| Fig11::simulate(&model));
        let fig12 = simulate(Part::Fig12, "Fig. 12, simulated").then(|| Fig12::simulate(&model));
        Evaluation {
            quick: self.quick,
            debug_build: cfg!(debug_assertions) && self.parts.iter().any(|part| part.needs_a_link()),
            fig11,
            fig12,
            table4: self.wants(Part::Table4),
            ..Evaluation::default()
        }
    }
}

/// The link that was measured: `None` if the plan needed none.
pub type Measured = (Evaluation, Option<(LinkInfo, WaitStyle, Option<f64>)>);

/// Carries out `plan` in a lab of its own. `progress` hears of each step.
pub fn measure(
    plan: &Plan,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured, PaperError> {
    let mut found = plan.begin(progress);
    interrupt.check()?;
    if !plan.parts.iter().any(|part| part.needs_a_link()) {
        return Ok((found, None));
    }
    progress("setting up");
    let ends = Ends::new(plan.bytes, plan.mtu, interrupt.clone())?;
    let bounce = ends.bounce();
    // What auto means here, for all parts alike.
    let info = ends.link_info(plan.link)?;
    let backend: Backend = info.backend.parse().unwrap_or(plan.link);
    if plan.wants(Part::Fig7) {
        found.fig7 = Some(Fig7::measure(&ends, &plan.backends(), plan.amount(), progress)?);
    }
    if plan.wants(Part::Fig8) {
        found.fig8 = Some(Breakdowns::measure(&ends, backend, plan.operations(), progress)?);
    }
    if plan.wants(Part::Table2) {
        let _served = ends.serve(backend, ends.wait())?;
        ends.pin()?;
        let (mut target, _) = ends.target(backend, ends.wait())?;
        found.table2 = Some(Table2::measure(&mut target, plan.rounds(), progress)?);
        target.port.close()?;
    }
    if plan.wants(Part::Table3) {
        found.table3 = Some(Table3::measure(&ends, backend, plan.each(), progress)?);
    }
    Ok((found, Some((info, ends.wait(), bounce))))
}

/// Carries out what of `plan` can be with a memory node that is there.
pub fn measure_over(
    plan: &Plan,
    target: &mut Target,
    wait: WaitStyle,
    progress: &mut dyn FnMut(&str),
) -> Result<Evaluation, PaperError> {
    let mut found = plan.begin(progress);
    for part in plan.parts.iter().filter(|part| part.needs_both_ends()) {
        let name = part.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        found.left_out.push(format!(
            "{name}: one clock has to see both ends; leave --interface out, and it is measured in a lab of its own"
        ));
    }
    if plan.wants(Part::Fig7) {
        found.fig7 = Some(Fig7::over_link(target, plan.amount(), progress)?);
    }
    if plan.wants(Part::Table2) {
        found.table2 = Some(Table2::measure(target, plan.rounds(), progress)?);
    }
    if plan.wants(Part::Table3) {
        progress("CPU time and memory");
        found.table3 = Some(Table3::over_link(target, wait, plan.each())?);
    }
    Ok(found)
}

impl Evaluation {
    /// All times that were measured.
    pub fn samples(&self) -> Vec<&Samples> {
        let mut all: Vec<&Samples> = Vec::new();
        all.extend(self.fig7.iter().flat_map(|fig| &fig.samples));
        for one in self.fig8.iter().flat_map(|fig| &fig.each) {
            all.extend(&one.plain);
            all.extend(&one.samples);
        }
        all.extend(self.table2.iter().flat_map(|table| &table.samples));
        all
    }

    /// As JSON: the report's own fields, and `paper` with everything else: `here`, what was found, and `values`, the
    /// paper's own. Whoever reads reports passes over the latter.
    pub fn json(&self, report: &Report) -> String {
        #[derive(Serialize)]
        struct Whole<'a> {
            #[serde(flatten)]
            report: &'a Report,
            paper: Paper<'a>,
        }
        #[derive(Serialize)]
        struct Paper<'a> {
            here: &'a Evaluation,
            values: &'static Values,
        }
        crate::report::json_text(&Whole { report, paper: Paper { here: self, values: values() } })
    }
}

//! # cxloe-paper: the evaluation of the paper "CXL over Ethernet", repeated with this system
//!
//! Fig. 7 to 12 and Table II to IV, each beside the values that the paper states.
//!
//! ```text
//!   Testbed (lab, worker, port) --> fig7, breakdown (path, parts), table2, table3 --.
//!   figures (simulation)     --> fig11, fig12 ------------------------------------+--> Evaluation --> Report (JSON)
//!   values.json (the paper)  -----------------------------------------------------'              `-> Section --> page, CSV, terminal
//! ```
//!
//! [`measure`] carries out a [`Plan`]. Every latency becomes part of a [`Report`] of the usual schema; all
//! other results are in [`Evaluation`]. [`sections()`] shows both beside the paper's [`values()`].

// `print!` panics when standard output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod breakdown;
mod error;
mod fig7;
pub mod figures;
mod heap;
mod latency_parts;
mod page;
mod path;
mod pictures;
pub mod retransmission;
mod section;
mod sections;
mod sockets;
mod table2;
mod table3;
mod testbed;
mod values;

use std::collections::BTreeSet;
use std::time::Duration;

use clap::ValueEnum;
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, LinkInfo};
use serde::Serialize;

pub use breakdown::{Breakdown, Breakdowns, Point};
pub use error::PaperError;
pub use fig7::{Amount, Fig7};
pub use latency_parts::{LatencyParts, NodeTimestamps, PARTS, RequesterTimestamps, join};
pub use page::page;
pub use path::{Operation, Path};
pub use section::{Cell, Grid, Picture, Section};
pub use sections::sections;
pub use table2::Table2;
pub use table3::{Cpu, Memory, Table3};
pub use testbed::{RunningMemoryNode, Testbed};
pub use values::{Values, values};

use crate::figures::{Fig11, Fig12, Model};
use cxloe_lab::Interrupt;
use cxloe_measure::MeasuredRegion;
use cxloe_measure::report::{Report, Samples};

/// Figures and tables of the paper; those that are measured together are one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EvaluationPart {
    /// Latency of 64 bytes: this system, sockets and the bare link
    Fig7,
    /// Latency by parts a to f, for writes and reads (Fig. 8, 9 and 10)
    #[value(aliases = ["fig9", "fig10"])]
    Fig8,
    /// The cases of the line cache
    Table2,
    /// Stable rates against thresholds, simulated
    Fig11,
    /// Stable rate against initial rate, simulated
    Fig12,
    /// Costs: CPU time and memory
    Table3,
    /// Features beside those of other systems
    Table4,
}

impl EvaluationPart {
    /// Returns true if both ends must be in this process, so that an external memory node cannot be used.
    fn needs_both_ends(self) -> bool {
        self == EvaluationPart::Fig8
    }

    /// Returns true if the part sends frames over a link.
    fn needs_a_link(self) -> bool {
        matches!(
            self,
            EvaluationPart::Fig7 | EvaluationPart::Fig8 | EvaluationPart::Table2 | EvaluationPart::Table3
        )
    }
}

#[derive(Clone, Debug)]
pub struct Plan {
    /// Figures and tables to measure.
    pub parts: BTreeSet<EvaluationPart>,
    /// True to measure a tenth of the operations.
    pub quick: bool,
    /// Kind of link. `auto` selects the fastest for all parts; Fig. 7 is then measured over packet rings as
    /// well.
    pub link: Backend,
    pub bytes: u64,
    /// MTU of the lab's cables, in bytes.
    pub mtu: u32,
}

/// Results of the evaluation other than latencies. A figure or table is `None` if it was not requested.
#[derive(Debug, Default, Serialize)]
pub struct Evaluation {
    /// True if a tenth of the operations was measured.
    pub quick: bool,
    /// True if this program was built without optimisation, which makes its times meaningless.
    pub debug_build: bool,
    /// Parts that could not be measured, each with the reason.
    pub left_out: Vec<String>,
    pub fig7: Option<Fig7>,
    pub fig8: Option<Breakdowns>,
    pub table2: Option<Table2>,
    pub fig11: Option<Fig11>,
    pub fig12: Option<Fig12>,
    pub table3: Option<Table3>,
    /// True if Table IV is requested; its only measured values are latencies.
    pub table4: bool,
}

impl Plan {
    fn of(&self, full: u64) -> u64 {
        if self.quick { full / 10 } else { full }
    }

    fn amount(&self) -> Amount {
        let rounds = if self.quick { 2 } else { 8 };
        Amount { rounds, operations: self.of(10_000), sleeping: self.of(2_000) }
    }

    fn rounds(&self) -> u32 {
        if self.quick { 2 } else { 10 }
    }

    /// Returns the duration of the measurement of each wait style in Table III.
    fn each(&self) -> Duration {
        Duration::from_millis(self.of(600).max(100))
    }

    /// Returns the number of operations of each kind for Fig. 8 to 10; a full run has as many as the paper.
    fn operations(&self) -> usize {
        self.of(values().fig9.operations as u64) as usize
    }

    /// Returns the kinds of links over which Fig. 7 is measured.
    fn backends(&self) -> Vec<Backend> {
        match self.link {
            any if any.is_auto() => vec![Backend::Xdp, Backend::Packet],
            one => vec![one],
        }
    }

    /// Returns the approximate number of `progress` calls of the plan.
    pub fn steps(&self) -> u64 {
        let of = |part: &EvaluationPart| match part {
            EvaluationPart::Fig7 => fig7::steps(&self.backends(), self.amount().rounds),
            EvaluationPart::Fig8 => Breakdowns::STEPS,
            EvaluationPart::Table2 => u64::from(self.rounds()),
            EvaluationPart::Table3 => Table3::STEPS,
            _ => 1,
        };
        self.parts.iter().map(of).sum()
    }

    fn includes(&self, part: EvaluationPart) -> bool {
        self.parts.contains(&part)
    }

    /// Begins an evaluation, with the simulated and constant parts of the plan only.
    fn begin(&self, progress: &mut dyn FnMut(&str)) -> Evaluation {
        let model = Model::default();
        let mut simulate = |part, what: &str| {
            let wanted = self.includes(part);
            if wanted {
                progress(what);
            }
            wanted
        };
        let fig11 = simulate(EvaluationPart::Fig11, "Fig. 11, simulated").then(|| Fig11::simulate(&model));
        let fig12 = simulate(EvaluationPart::Fig12, "Fig. 12, simulated").then(|| Fig12::simulate(&model));
        Evaluation {
            quick: self.quick,
            debug_build: cfg!(debug_assertions) && self.parts.iter().any(|part| part.needs_a_link()),
            fig11,
            fig12,
            table4: self.includes(EvaluationPart::Table4),
            ..Evaluation::default()
        }
    }
}

/// Evaluation, with the measured link, its wait style, and the cache-line round trip between the cores in
/// nanoseconds; `None` if the plan needed no link.
pub type Measured = (Evaluation, Option<(LinkInfo, WaitStyle, Option<f64>)>);

/// Carries out `plan` in a lab made for it. Calls `progress` for each step.
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
    let ends = Testbed::new(plan.bytes, plan.mtu, interrupt.clone())?;
    let bounce = ends.bounce();
    // `auto` is resolved once, so that all parts use the same kind of link.
    let info = ends.link_info(plan.link)?;
    let backend: Backend = info.backend.parse().unwrap_or(plan.link);
    if plan.includes(EvaluationPart::Fig7) {
        found.fig7 = Some(Fig7::measure(&ends, &plan.backends(), plan.amount(), progress)?);
    }
    if plan.includes(EvaluationPart::Fig8) {
        found.fig8 = Some(Breakdowns::measure(&ends, backend, plan.operations(), progress)?);
    }
    if plan.includes(EvaluationPart::Table2) {
        let _served = ends.serve(backend, ends.wait())?;
        ends.pin()?;
        let (mut target, _) = ends.target(backend, ends.wait())?;
        found.table2 = Some(Table2::measure(&mut target, plan.rounds(), progress)?);
        target.port.close()?;
    }
    if plan.includes(EvaluationPart::Table3) {
        found.table3 = Some(Table3::measure(&ends, backend, plan.each(), progress)?);
    }
    Ok((found, Some((info, ends.wait(), bounce))))
}

/// Measures those parts of `plan` that are possible over a link to a memory node that runs already.
pub fn measure_over(
    plan: &Plan,
    target: &mut MeasuredRegion,
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
    if plan.includes(EvaluationPart::Fig7) {
        found.fig7 = Some(Fig7::over_link(target, plan.amount(), progress)?);
    }
    if plan.includes(EvaluationPart::Table2) {
        found.table2 = Some(Table2::measure(target, plan.rounds(), progress)?);
    }
    if plan.includes(EvaluationPart::Table3) {
        progress("CPU time and memory");
        found.table3 = Some(Table3::over_link(target, wait, plan.each())?);
    }
    Ok(found)
}

impl Evaluation {
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

    /// Formats the report as JSON with an additional field `paper`, which has the other results (`here`) and
    /// the paper's values (`values`). Programs that read reports ignore `paper`.
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
        cxloe_measure::report::json_text(&Whole { report, paper: Paper { here: self, values: values() } })
    }
}

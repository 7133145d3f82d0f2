//! # cxloe-paper: the paper's evaluation from this system
//!
//! Fig. 7 to 12, Table II to IV, each beside the paper's own values.
//!
//! ```text
//!   Testbed (lab, worker, port) --> fig7, breakdown (path, parts), table2, table3 --.
//!   figures (simulation)     --> fig11, fig12 ------------------------------------+--> Evaluation --> Report (JSON)
//!   values.json (the paper)  -----------------------------------------------------'              `-> Section --> page, CSV, terminal
//! ```
//!
//! [`measure`] carries out a [`Plan`]. Every time goes into a [`Report`] of the usual schema; all other results are in
//! [`Evaluation`]. [`sections()`] lays both out beside [`values()`].

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

/// A part of the evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EvaluationPart {
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
    /// Costs: CPU time and memory
    Table3,
    /// Features beside those of other systems
    Table4,
}

impl EvaluationPart {
    /// True if both ends must be in this process, so that the part cannot be measured with an external memory node.
    fn needs_both_ends(self) -> bool {
        self == EvaluationPart::Fig8
    }

    /// True if the part sends frames over a link.
    fn needs_a_link(self) -> bool {
        matches!(
            self,
            EvaluationPart::Fig7 | EvaluationPart::Fig8 | EvaluationPart::Table2 | EvaluationPart::Table3
        )
    }
}

/// Parts of the evaluation to measure, and their parameters.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Figures and tables to measure.
    pub parts: BTreeSet<EvaluationPart>,
    /// True to measure a tenth of the operations.
    pub quick: bool,
    /// Kind of link. `auto` selects the fastest for all parts, and for Fig. 7 also packet rings.
    pub link: Backend,
    /// Size of the region in bytes.
    pub bytes: u64,
    /// MTU of the lab's cables, in bytes.
    pub mtu: u32,
}

/// Results of the evaluation that are no times.
#[derive(Debug, Default, Serialize)]
pub struct Evaluation {
    /// True if a tenth of the operations was measured.
    pub quick: bool,
    /// True if this program was built without optimisation, which makes its times meaningless.
    pub debug_build: bool,
    /// Parts that were left out, each with the reason.
    pub left_out: Vec<String>,
    /// Results for Fig. 7: latency of 64 bytes.
    pub fig7: Option<Fig7>,
    /// Results for Fig. 8 to 10: latency by parts of the path.
    pub fig8: Option<Breakdowns>,
    /// Results for Table II: cases of the line cache.
    pub table2: Option<Table2>,
    /// Results for Fig. 11: rates by threshold.
    pub fig11: Option<Fig11>,
    /// Results for Fig. 12: rates by initial rate.
    pub fig12: Option<Fig12>,
    /// Results for Table III: CPU time and memory.
    pub table3: Option<Table3>,
    /// True if Table IV is requested; all of it is constant except latencies.
    pub table4: bool,
}

impl Plan {
    fn of(&self, full: u64) -> u64 {
        if self.quick { full / 10 } else { full }
    }

    /// Numbers of operations for Fig. 7.
    fn amount(&self) -> Amount {
        let rounds = if self.quick { 2 } else { 8 };
        Amount { rounds, operations: self.of(10_000), sleeping: self.of(2_000) }
    }

    fn rounds(&self) -> u32 {
        if self.quick { 2 } else { 10 }
    }

    /// Duration of the measurement of each wait style in Table III.
    fn each(&self) -> Duration {
        Duration::from_millis(self.of(600).max(100))
    }

    /// Number of operations of each kind for Fig. 8 to 10; in a full run as many as in the paper.
    fn operations(&self) -> usize {
        self.of(values().fig9.operations as u64) as usize
    }

    /// Kinds of links on which Fig. 7 is measured.
    fn backends(&self) -> Vec<Backend> {
        match self.link {
            any if any.is_auto() => vec![Backend::Xdp, Backend::Packet],
            one => vec![one],
        }
    }

    /// Approximate number of `progress` calls of the plan.
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

    /// Evaluation with the simulated and constant parts of the plan only.
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

/// Evaluation with the measured link, its wait style and the round trip between cores; `None` if the plan needed no
/// link.
pub type Measured = (Evaluation, Option<(LinkInfo, WaitStyle, Option<f64>)>);

/// Carries out `plan` in a lab of its own. Calls `progress` for each step.
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
    // `auto` is resolved once, so that all parts use the same link.
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

/// Measures those parts of `plan` that are possible with an existing memory node.
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
    /// Samples of all measured times.
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

    /// JSON text: the report's fields, and `paper` with the other results (`here`) and the paper's values (`values`).
    /// Readers of reports ignore `paper`.
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

//! Results of programs as table, CSV, JSON, and a page with a picture for each program.

use maud::{Markup, PreEscaped, html};

use super::figures::Figure;
use super::{Absent, MemoryBacking, Program};
use cxloe_measure::report::html::{legend, row, table};
use cxloe_measure::report::table::new_table;
use cxloe_measure::report::{AxisUnit, Curve, Plot, Report, ReportError, Scale, csv, units};

/// Results of all programs, in the form from which table, CSV, JSON and page are made.
pub struct ProgramsTable {
    /// Report with the machine and the link of the run.
    pub report: Report,
    /// Programs that were measured, in order.
    pub programs: Vec<Program>,
    /// Ways of holding memory that were measured, other than local.
    pub ways: Vec<MemoryBacking>,
    /// Results by program, limit and way.
    pub figures: Vec<Figure>,
    /// Programs and ways that were not measured, with reasons.
    pub absent: Vec<Absent>,
    /// Maximum duration of a run, in seconds.
    pub limit_s: f64,
}

/// Text of a size in MiB, rounded to the accuracy of the figures.
fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Legend of the table.
const READING: &str = "seconds of work, the median of trials; in brackets how many times those in local memory, and the least and most of several \
     trials";

impl ProgramsTable {
    /// Limits of a program's resident memory, as requested, in order.
    fn residents(&self, program: &Program) -> Vec<&str> {
        let mut found: Vec<&str> = Vec::new();
        for figure in
            self.figures.iter().filter(|f| f.program == program.name && f.way != MemoryBacking::Local)
        {
            if !found.contains(&figure.resident.as_str()) {
                found.push(&figure.resident);
            }
        }
        found
    }

    fn figure(&self, program: &Program, way: MemoryBacking, resident: Option<&str>) -> Option<&Figure> {
        self.figures.iter().find(|figure| {
            figure.program == program.name
                && figure.way == way
                && resident.is_none_or(|resident| figure.resident == resident)
        })
    }

    /// Text of a figure; empty if it was not measured.
    fn cell(&self, figure: Option<&Figure>) -> String {
        let Some(figure) = figure else { return String::new() };
        let Some(seconds) = figure.seconds else {
            let why = figure.missed.as_deref().unwrap_or_default();
            return match why {
                _ if why.contains("takes more than") => format!("> {:.0} s", self.limit_s),
                _ if why.starts_with("the kernel ended it") => "killed".into(),
                _ => "failed".into(),
            };
        };
        let mut text = units::time(seconds * 1e9);
        if let Some(slowdown) = figure.slowdown.filter(|_| figure.way != MemoryBacking::Local) {
            let spread = figure.slowdown_spread.map(|[least, most]| format!("; {least:.1}-{most:.1}"));
            text.push_str(&format!(" ({slowdown:.1}{})", spread.unwrap_or_default()));
        }
        if let Some(each) = figure.operation_ns {
            text.push_str(&format!(", {} each", units::time(each)));
        }
        text
    }

    /// Rows of the table, one for each program and limit, with cells in the order of the headings.
    fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for program in &self.programs {
            let local = self.figure(program, MemoryBacking::Local, None);
            for resident in self.residents(program) {
                let any = |way: &MemoryBacking| self.figure(program, *way, Some(resident));
                let bytes = self.ways.iter().find_map(any).map(|f| mib(f.local_bytes));
                let mut row = vec![program.name.to_owned()];
                row.push(format!("{resident} ({})", bytes.unwrap_or_default()));
                row.push(self.cell(local));
                row.extend(self.ways.iter().map(|way| self.cell(any(way))));
                rows.push(row);
            }
        }
        rows
    }

    fn heads(&self) -> Vec<&'static str> {
        ["program", "resident", MemoryBacking::Local.name()]
            .into_iter()
            .chain(self.ways.iter().map(|way| way.name()))
            .collect()
    }

    /// Names of programs and ways, with their descriptions.
    fn meanings(&self) -> Vec<(&'static str, String)> {
        let takes = |program: &Program| {
            let footprint =
                self.figure(program, MemoryBacking::Local, None).map_or(0, |figure| figure.footprint_bytes);
            (program.name, format!("{}; takes {}", program.what, mib(footprint)))
        };
        let ways = [MemoryBacking::Local].into_iter().chain(self.ways.iter().copied());
        self.programs.iter().map(takes).chain(ways.map(|way| (way.name(), way.what().to_owned()))).collect()
    }

    /// Table and descriptions as text for a terminal.
    pub fn text(&self) -> String {
        let mut table = new_table(self.heads());
        for row in self.rows() {
            table.add_row(row);
        }
        let mut text = format!("{}\n{table}\n{READING}\n\n", self.report.headline());
        for (name, what) in self.meanings() {
            text.push_str(&format!("  {name:<11} {what}\n"));
        }
        if !self.absent.is_empty() {
            text.push_str("\nleft out\n");
            self.absent.iter().for_each(|one| text.push_str(&format!("  {}: {}\n", one.name, one.reason)));
        }
        let missed = self.figures.iter().filter_map(|figure| Some((figure, figure.missed.as_ref()?)));
        for (figure, why) in missed {
            text.push_str(&format!(
                "  {} {}, {} resident: {why}\n",
                figure.program, figure.way, figure.resident
            ));
        }
        text
    }

    /// Figures as CSV, one line for each; missing values are empty.
    pub fn csv(&self) -> String {
        let heads = "program way resident local_bytes footprint_bytes seconds whole_seconds operation_ns slowdown \
                     slowdown_least slowdown_most faults fetched prefetched evicted written_back trials missed";
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.4}"));
        let row = |figure: &Figure| {
            let mut cells = vec![figure.program.clone(), figure.way.to_string(), figure.resident.clone()];
            cells.extend([figure.local_bytes, figure.footprint_bytes].map(|bytes| bytes.to_string()));
            cells.extend(
                [figure.seconds, figure.whole_seconds, figure.operation_ns, figure.slowdown].map(number),
            );
            let [least, most] = figure.slowdown_spread.map_or([None; 2], |spread| spread.map(Some));
            cells.extend([least, most].map(number));
            let paging =
                figure.paging.map(|p| [p.faults, p.fetched, p.prefetched, p.evicted, p.written_back]);
            cells
                .extend(paging.map_or_else(|| vec![String::new(); 5], |p| p.map(|n| n.to_string()).to_vec()));
            cells.extend([figure.trials.to_string(), figure.missed.clone().unwrap_or_default()]);
            cells
        };
        let heads = heads.split_whitespace().map(str::to_owned).collect();
        csv::text(std::iter::once(heads).chain(self.figures.iter().map(row)))
    }

    /// JSON text of a report like that of any measurement, with the additional field `programs`.
    pub fn json(&self) -> String {
        let mut value = serde_json::to_value(&self.report).expect("a report has plain values only");
        value["programs"] = self.value();
        cxloe_measure::report::json_text(&value)
    }

    /// JSON value of the field `programs` in a report.
    pub fn value(&self) -> serde_json::Value {
        let meanings: serde_json::Map<_, _> =
            self.meanings().into_iter().map(|(name, what)| (name.to_owned(), what.into())).collect();
        serde_json::json!({
            "limit_s": self.limit_s,
            "what": meanings,
            "figures": self.figures,
            "absent": self.absent,
        })
    }

    /// Plot of a program's slowdown against the limit of resident memory, with a curve for each way of
    /// holding memory.
    fn plot(&self, program: &Program) -> Plot {
        let curve = |way: &MemoryBacking| {
            let figures = self.figures.iter().filter(|f| f.program == program.name && f.way == *way);
            let point = |figure: &Figure| {
                Some((figure.local_bytes as f64 / figure.footprint_bytes.max(1) as f64, figure.slowdown?))
            };
            let mut points: Vec<_> = figures.filter_map(point).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Curve { name: way.name().into(), points }
        };
        Plot {
            pattern: program.name.into(),
            title: program.name.into(),
            x: Scale { label: "resident".into(), unit: AxisUnit::Share, logarithmic: false },
            y: Scale {
                label: "times the seconds in local memory".into(),
                unit: AxisUnit::Times,
                logarithmic: true,
            },
            curves: self.ways.iter().map(curve).collect(),
        }
    }

    /// HTML section of a page: table, pictures, and what was left out.
    ///
    /// # Errors
    /// Returns [`ReportError::Picture`] when a picture cannot be drawn.
    pub fn section(&self) -> Result<Markup, ReportError> {
        let what = |name: &str, what: &str| html! { tr { td { (name) } td class="what" { (what) } } };
        Ok(html! {
            h2 { "Programs" }
            p { (READING) "." }
            (table(&self.heads(), self.rows().iter().map(row)))
            (legend(&self.ways.iter().map(|way| way.name()).collect::<Vec<_>>()))
            div class="cards" {
                @for program in &self.programs {
                    figure {
                        h3 { (program.name) }
                        (PreEscaped(self.plot(program).picture()?))
                        p class="quiet" { (program.what) }
                    }
                }
            }
            (table(&["", "what it is"], self.meanings().iter().map(|(name, meaning)| what(name, meaning))))
            @if !self.absent.is_empty() {
                h3 { "Left out" }
                (table(&["", "why"], self.absent.iter().map(|one| what(&one.name, &one.reason))))
            }
        })
    }

    /// HTML page of all programs.
    ///
    /// # Errors
    /// Returns [`ReportError::Picture`] when a picture cannot be drawn.
    pub fn html(&self) -> Result<String, ReportError> {
        self.report.html_with(&self.section()?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::Paging;
    use super::super::programs;
    use super::*;
    use cxloe_measure::machine::Machine;
    use cxloe_measure::report::Link;

    fn figure(way: MemoryBacking, resident: &str, seconds: Option<f64>) -> Figure {
        Figure {
            program: "zstd-12".into(),
            way,
            resident: resident.into(),
            local_bytes: 32 << 20,
            footprint_bytes: 64 << 20,
            seconds,
            whole_seconds: seconds,
            operation_ns: None,
            slowdown: seconds.map(|seconds| seconds / 4.0),
            slowdown_spread: seconds.map(|seconds| [seconds / 5.0, seconds / 2.0]),
            seconds_spread: None,
            paging: (way == MemoryBacking::Exec).then(|| Paging { faults: 77, ..Paging::default() }),
            swapped_in: None,
            trials: usize::from(seconds.is_some()),
            missed: seconds.is_none().then(|| "it takes more than 60 s".into()),
        }
    }

    fn filled() -> ProgramsTable {
        let (wait, frames) = ("adaptive".into(), String::new());
        let link = Link { backend: "veth".into(), interfaces: vec![], mtu: 1500, wait, frames };
        ProgramsTable {
            report: Report::new(Machine::describe(), link),
            programs: programs().into_iter().filter(|program| program.name == "zstd-12").collect(),
            ways: vec![MemoryBacking::Exec, MemoryBacking::SwapFile],
            figures: vec![
                figure(MemoryBacking::Local, "100%", Some(4.0)),
                figure(MemoryBacking::Exec, "100%", Some(4.4)),
                figure(MemoryBacking::Exec, "50%", Some(20.0)),
                figure(MemoryBacking::SwapFile, "50%", None),
            ],
            absent: vec![Absent { name: "swap-nbd".into(), reason: "no <driver>".into() }],
            limit_s: 60.0,
        }
    }

    #[test]
    fn a_row_has_all_ways_beside_each_other() {
        let rows = filled().rows();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0][2..], ["4.00 s", "4.40 s (1.1; 0.9-2.2)", ""]);
        assert_eq!(rows[1][1..], ["50% (32 MiB)", "4.00 s", "20.0 s (5.0; 4.0-10.0)", "> 60 s"]);
        let text = filled().text();
        assert!(text.contains("swap-nbd: no <driver>") && text.contains("takes 64 MiB"), "{text}");
    }

    #[test]
    fn every_form_has_every_figure() {
        let report: Report = serde_json::from_str(&filled().json()).unwrap();
        assert_eq!(report, filled().report, "it is a report with more");
        let value: serde_json::Value = serde_json::from_str(&filled().json()).unwrap();
        assert_eq!(value["programs"]["figures"][2]["slowdown"], 5.0);
        assert_eq!(value["programs"]["figures"][2]["paging"]["faults"], 77);
        assert!(value["programs"]["figures"][3].get("seconds").is_none());
        let csv = filled().csv();
        assert_eq!(csv.lines().count(), 5);
        assert!(
            csv.lines().nth(3).unwrap().starts_with("zstd-12,exec,50%,33554432,67108864,20.0000,"),
            "{csv}"
        );
        let page = filled().html().unwrap();
        assert!(page.contains("no &lt;driver&gt;") && page.contains("20.0 s (5.0; 4.0-10.0)"), "{page}");
        assert_eq!(page.matches("<circle").count(), 2, "two runs under exec, none that ended with swap");
    }
}

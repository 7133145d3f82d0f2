//! Costs of operations in processor cycles, at both ends of the link, as a part of reports.

use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use super::Report;
use super::html::{row, table};
use super::units;

pub(super) const HEADS: [&str; 6] =
    ["cost", "at the", "cycles each", "cycles a byte", "time each", "cycles are"];

/// Cost of one kind of operation at one end of the link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Name of the operations, which is also that of their rate.
    pub name: String,
    pub end: String,
    /// Processor cycles per operation. A spinning end also spends cycles while idle.
    pub cycles_per_operation: f64,
    /// Processor cycles per byte of line data.
    pub cycles_per_byte: f64,
    /// CPU time per operation, in nanoseconds.
    pub ns_per_operation: f64,
    /// Source of the cycles: counted by the processor, or CPU time multiplied by the frequency.
    pub source: String,
}

impl Cost {
    /// Formats the cells of the table row for this cost, in the order of [`HEADS`].
    pub(super) fn cells(&self) -> [String; 6] {
        [
            self.name.clone(),
            self.end.clone(),
            format!("{:.0}", self.cycles_per_operation),
            format!("{:.2}", self.cycles_per_byte),
            units::time(self.ns_per_operation),
            self.source.clone(),
        ]
    }
}

impl Report {
    /// Returns the HTML section with the report's costs.
    pub(super) fn cost_section(&self) -> Markup {
        html! {
            h2 { "Cycles" }
            p {
                "What a line or a frame of a burst costs at each end with the window full. An end that spins spends a whole \
                 core, so this is also what a core can do."
            }
            (table(&HEADS, self.costs.iter().map(|cost| row(cost.cells()))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::report;
    use super::*;

    #[test]
    fn costs_are_in_every_form() {
        let mut report = report();
        report.costs.push(Cost {
            name: "stream64".into(),
            end: "memory node".into(),
            cycles_per_operation: 812.4,
            cycles_per_byte: 12.69,
            ns_per_operation: 300.0,
            source: "time on a core x 2.70 GHz".into(),
        });
        for text in [report.tables(), report.html().unwrap()] {
            for words in ["812", "12.69", "300 ns", "2.70 GHz"] {
                assert!(text.contains(words), "no {words} in {text}");
            }
        }
        let read: Report = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(read.costs, report.costs);
    }
}

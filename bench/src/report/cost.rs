//! What operations cost in processor cycles, at both ends.

use serde::{Deserialize, Serialize};

use super::Report;
use super::html::{escape, table};
use super::units;

/// Names of the columns.
pub(super) const HEADS: [&str; 6] =
    ["cost", "at the", "cycles each", "cycles a byte", "time each", "cycles are"];

/// What one operation costs at one end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The operations: those of the rate of this name.
    pub name: String,
    /// `compute node` or `memory node`.
    pub end: String,
    /// Processor cycles of each operation. An end that spins spends them whether it has something to do or not.
    pub cycles_per_operation: f64,
    /// Processor cycles for each byte of payload.
    pub cycles_per_byte: f64,
    /// Nanoseconds on a core for each operation.
    pub ns_per_operation: f64,
    /// Where cycles are from: counted by the processor, or the time on a core times its frequency.
    pub source: String,
}

impl Cost {
    /// A row of a table.
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
    /// The part of the page about costs.
    pub(super) fn cost_section(&self) -> String {
        let rows = self.costs.iter().map(|cost| {
            let cells = cost.cells().map(|cell| format!("<td>{}</td>", escape(&cell)));
            format!("<tr>{}</tr>\n", cells.concat())
        });
        "<h2>Cycles</h2>\n<p>What a line or a frame of a burst costs at each end with the window full. An end that spins \
         spends a whole core, so this is also what a core can do.</p>\n"
            .to_owned()
            + &table(&HEADS, rows)
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

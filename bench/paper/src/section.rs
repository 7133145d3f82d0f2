//! Sections of the evaluation for display: tables whose cells have units, pictures, and text.
//!
//! `sections.rs` makes sections from the results and the paper's values. They are shown on the page, in the
//! terminal and in CSV files.

use comfy_table::ContentArrangement;

use cxloe_measure::report::table::new_table;
use cxloe_measure::report::{csv, units};

const TERMINAL: u16 = 140;

/// Value in a table; the variant determines the unit.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Text, which has no unit.
    Text(String),
    Ns(f64),
    Bytes(f64),
    PerSecond(f64),
    /// Share in percent, not as a fraction.
    Percent(f64),
    /// A number without a unit, or with the unit of its column.
    Number(f64),
    /// A whole number without a unit.
    Count(u64),
    Empty,
}

impl Cell {
    pub fn text(words: impl Into<String>) -> Cell {
        Cell::Text(words.into())
    }

    /// Formats the value for reading: three significant digits and a unit.
    pub fn shown(&self) -> String {
        match self {
            Cell::Text(words) => words.clone(),
            Cell::Ns(ns) => units::time(*ns),
            Cell::Bytes(bytes) => units::bytes(*bytes).trim_end_matches("/s").into(),
            Cell::PerSecond(rate) => units::operations(*rate),
            Cell::Percent(percent) => format!("{percent:.1} %"),
            Cell::Number(number) => format!("{number:.2}"),
            Cell::Count(count) => units::count(*count),
            Cell::Empty => String::new(),
        }
    }

    /// Formats the value for CSV, without its unit, which is in the column's name.
    fn csv(&self) -> String {
        match self {
            Cell::Text(words) => words.clone(),
            Cell::Ns(value)
            | Cell::Bytes(value)
            | Cell::PerSecond(value)
            | Cell::Percent(value)
            | Cell::Number(value) => {
                format!("{}", (value * 1e3).round() / 1e3)
            }
            Cell::Count(count) => count.to_string(),
            Cell::Empty => String::new(),
        }
    }
}

/// Table with a heading for each column, and a name for the CSV file that includes the unit.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Name of the table's CSV file, without extension.
    pub file: String,
    pub caption: String,
    /// Heading and CSV name of each column.
    pub columns: Vec<(String, String)>,
    pub rows: Vec<Vec<Cell>>,
}

impl Grid {
    /// Makes a table without rows; each column is given by its heading and its CSV name.
    pub fn new(file: &str, caption: &str, columns: &[(&str, &str)]) -> Grid {
        let columns = columns.iter().map(|(head, csv)| ((*head).into(), (*csv).into())).collect();
        Grid { file: file.into(), caption: caption.into(), columns, rows: Vec::new() }
    }

    /// Formats the table as comma-separated values.
    pub fn csv(&self) -> String {
        let heads = self.columns.iter().map(|(_, name)| name.clone()).collect();
        let rows = self.rows.iter().map(|row| row.iter().map(Cell::csv).collect());
        csv::text(std::iter::once::<Vec<String>>(heads).chain(rows))
    }

    /// Formats the table for a terminal; long cells are wrapped.
    pub fn text(&self) -> String {
        let mut table = new_table(self.columns.iter().map(|(head, _)| head.clone()));
        for row in &self.rows {
            table.add_row(row.iter().map(Cell::shown));
        }
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(TERMINAL);
        table.to_string()
    }
}

#[derive(Clone, Debug)]
pub struct Picture {
    pub title: String,
    pub svg: String,
    /// Indices of the colours used, each with its meaning.
    pub legend: Vec<(usize, String)>,
}

#[derive(Clone, Debug)]
pub struct Section {
    /// Identifier of the section in links and options.
    pub id: &'static str,
    pub title: String,
    /// Figure or table of the paper from which the values are taken.
    pub source: String,
    /// Findings, in whole sentences.
    pub findings: Vec<String>,
    pub pictures: Vec<Picture>,
    /// Tables, below the pictures.
    pub grids: Vec<Grid>,
    /// Text on the results that can be compared with the paper.
    pub comparable: &'static str,
    /// Text on the results that cannot be compared with the paper.
    pub not_comparable: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_shown_with_units_and_written_without() {
        let mut grid = Grid::new("x", "", &[("what", "what"), ("time", "time_ns"), ("memory", "bytes")]);
        grid.rows.push(vec![Cell::text("a, \"b\""), Cell::Ns(1970.0), Cell::Bytes(2048.0)]);
        grid.rows.push(vec![Cell::text("c"), Cell::Empty, Cell::Bytes(80.25)]);
        assert_eq!(grid.csv(), "what,time_ns,bytes\n\"a, \"\"b\"\"\",1970,2048\nc,,80.25\n");
        let text = grid.text();
        assert!(text.contains("1.97 µs") && text.contains("2.00 KiB") && text.contains("80.2 B"), "{text}");
    }
}

//! A section of the evaluation as it is shown: tables whose cells know their units, pictures, and words.
//!
//! Sections are made from what was measured and from the paper's values (`sections.rs`); the page, the terminal and the
//! CSV files are three ways of showing them.

use comfy_table::ContentArrangement;

use crate::report::table::new_table;
use crate::report::{csv, units};

/// Columns of a terminal that tables are fitted into.
const TERMINAL: u16 = 140;

/// One value of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A time in nanoseconds.
    Ns(f64),
    /// An amount of memory in bytes.
    Bytes(f64),
    /// Operations per second.
    PerSecond(f64),
    /// Percent.
    Percent(f64),
    /// A number without a unit, or with that of its column.
    Number(f64),
    /// How many.
    Count(u64),
    /// Nothing there.
    Empty,
}

impl Cell {
    /// Words.
    pub fn text(words: impl Into<String>) -> Cell {
        Cell::Text(words.into())
    }

    /// For people: three digits and a unit.
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

    /// For programs: the number alone.
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

/// A table. Each column has a heading, and a name in the CSV file with the unit of its numbers.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Name of the CSV file, without its ending.
    pub file: String,
    /// What the table is about.
    pub caption: String,
    /// Heading and CSV name of each column.
    pub columns: Vec<(String, String)>,
    /// A cell for each column in each row.
    pub rows: Vec<Vec<Cell>>,
}

impl Grid {
    /// An empty table.
    pub fn new(file: &str, caption: &str, columns: &[(&str, &str)]) -> Grid {
        let columns = columns.iter().map(|(head, csv)| ((*head).into(), (*csv).into())).collect();
        Grid { file: file.into(), caption: caption.into(), columns, rows: Vec::new() }
    }

    /// As comma-separated values.
    pub fn csv(&self) -> String {
        let heads = self.columns.iter().map(|(_, name)| name.clone()).collect();
        let rows = self.rows.iter().map(|row| row.iter().map(Cell::csv).collect());
        csv::text(std::iter::once::<Vec<String>>(heads).chain(rows))
    }

    /// For a terminal; long words are broken into lines.
    pub fn text(&self) -> String {
        let mut table = new_table(self.columns.iter().map(|(head, _)| head.clone()));
        for row in &self.rows {
            table.add_row(row.iter().map(Cell::shown));
        }
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(TERMINAL);
        table.to_string()
    }
}

/// A picture with what it shows.
#[derive(Clone, Debug)]
pub struct Picture {
    /// Its heading.
    pub title: String,
    /// The picture itself.
    pub svg: String,
    /// Colours, by their index, and what they stand for.
    pub legend: Vec<(usize, String)>,
}

/// A section.
#[derive(Clone, Debug)]
pub struct Section {
    /// Its name in addresses and options.
    pub id: &'static str,
    /// Its heading.
    pub title: String,
    /// Where the paper's values are from.
    pub source: String,
    /// What came out, in sentences.
    pub findings: Vec<String>,
    /// The pictures.
    pub pictures: Vec<Picture>,
    /// The tables.
    pub grids: Vec<Grid>,
    /// What may be held against the paper.
    pub comparable: &'static str,
    /// What may not.
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

//! Tables with frames on a terminal, and as plain columns anywhere else.

use std::fmt;
use std::io::IsTerminal;
use std::ops::{Deref, DerefMut};

use comfy_table::{CellAlignment, ContentArrangement, presets};

const GAP: u16 = 2;

/// Table, printed with frames if standard output is a terminal.
#[derive(Clone, Debug)]
pub struct Table(comfy_table::Table);

impl Table {
    /// Table without a header: each row has the name of a field and its value.
    pub(crate) fn of_fields() -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        Self(table)
    }

    /// Columns without frames, each row in one line.
    fn plain(&self) -> String {
        let mut table = self.0.clone();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        for column in table.column_iter_mut() {
            column.set_padding((0, GAP));
        }
        table.trim_fmt()
    }
}

impl Deref for Table {
    type Target = comfy_table::Table;

    fn deref(&self) -> &comfy_table::Table {
        &self.0
    }
}

impl DerefMut for Table {
    fn deref_mut(&mut self) -> &mut comfy_table::Table {
        &mut self.0
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::io::stdout().is_terminal() {
            true => self.0.fmt(f),
            false => f.write_str(&self.plain()),
        }
    }
}

/// Empty table: the first column is aligned left, the others right, for numbers.
pub fn new_table(header: impl IntoIterator<Item = impl ToString>) -> Table {
    let mut table = comfy_table::Table::new();
    let header: Vec<String> = header.into_iter().map(|cell| cell.to_string()).collect();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    Table(table)
}

/// Text of a cell that breaks a count down by cause: only causes that occurred, or `0` if none did.
pub fn breakdown(causes: &[(&str, u64)]) -> String {
    let named = causes.iter().filter(|(_, n)| *n > 0).map(|(cause, n)| format!("{cause} {n}"));
    let named: Vec<String> = named.collect();
    if named.is_empty() { "0".into() } else { named.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_on_the_left_and_numbers_on_the_right() {
        let mut table = new_table(["counter", "worker 0"]);
        table.add_row(["TLB hits", "12"]);
        let shown = table.0.to_string();
        assert!(shown.contains("│ TLB hits ┆       12 │"), "{shown}");
        assert_eq!(table.plain(), "counter   worker 0\nTLB hits        12");
    }

    #[test]
    fn plain_rows_are_lines_however_long_they_are() {
        let mut table = new_table(["name", "about"]);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(20);
        table.add_row(["long", &"word ".repeat(30)]);
        table.add_row(["short", ""]);
        let shown = table.plain();
        assert_eq!(shown.lines().count(), 3, "{shown}");
        assert!(shown.lines().all(|line| line.trim_end() == line), "{shown:?}");
        let mut fields = Table::of_fields();
        fields.add_row(["memory node", "mn0"]);
        assert_eq!(fields.plain(), "memory node  mn0");
    }

    #[test]
    fn causes_that_there_are_not_are_left_out() {
        assert_eq!(breakdown(&[("length", 0), ("trailer", 2), ("full", 1)]), "trailer 2, full 1");
        assert_eq!(breakdown(&[("length", 0)]), "0");
    }
}

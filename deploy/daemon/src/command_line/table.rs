//! Tables on a terminal, for results with more figures than a line has room for.

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

/// An empty table: names on the left, numbers on the right.
pub fn new_table(header: impl IntoIterator<Item = impl ToString>) -> Table {
    let mut table = Table::new();
    let header: Vec<String> = header.into_iter().map(|cell| cell.to_string()).collect();
    table.load_style(UTF8_FULL_CONDENSED).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A cell for a count that is made of several, by cause: those that there are, or `0`.
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
        let shown = table.to_string();
        assert!(shown.contains("│ TLB hits ┆       12 │"), "{shown}");
    }

    #[test]
    fn causes_that_there_are_not_are_left_out() {
        assert_eq!(breakdown(&[("length", 0), ("trailer", 2), ("full", 1)]), "trailer 2, full 1");
        assert_eq!(breakdown(&[("length", 0)]), "0");
    }
}

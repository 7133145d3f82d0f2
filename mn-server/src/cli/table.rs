//! Tables on a terminal: names on the left, numbers on the right.

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

/// An empty table.
pub fn new_table(header: impl IntoIterator<Item = impl Into<String>>) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_header(header.into_iter().map(Into::into).collect::<Vec<String>>());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

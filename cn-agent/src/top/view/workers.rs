//! Workers of an agent that has several: a table with a row for each, and a column in the tables of regions and sessions.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::Widget;

use super::Alignment::Right;
use super::{Column, table};
use crate::top::figures::{Figures, WorkerFigures};
use crate::top::units::{percent, short};

/// Position of the worker's column among those of regions, and among those of sessions.
pub(super) const OF_REGION: usize = 9;
pub(super) const OF_SESSION: usize = 1;

const COLUMNS: [Column; 10] = [
    Column("worker", 6, Right),
    Column("CPU", 4, Right),
    Column("awake", 6, Right),
    Column("lines/s", 8, Right),
    Column("faults/s", 8, Right),
    Column("in/s", 8, Right),
    Column("out/s", 8, Right),
    Column("regions", 7, Right),
    Column("ports", 5, Right),
    Column("flight", 6, Right),
];

/// Draws a row for each worker, with its frames in and out; nothing if the agent has one worker.
pub(super) fn draw_workers(figures: &Figures, area: Rect, buffer: &mut Buffer) {
    if figures.workers.is_empty() {
        return;
    }
    let row = |worker: &WorkerFigures| {
        let cells = vec![
            worker.worker.to_string(),
            numbered(worker.cpu),
            percent(worker.awake),
            short(worker.lines_per_s),
            short(worker.faults_per_s),
            short(worker.rx_frames_per_s),
            short(worker.tx_frames_per_s),
            worker.regions.to_string(),
            worker.ports.to_string(),
            worker.in_flight.to_string(),
        ];
        (cells, Style::new())
    };
    let rows = figures.workers.iter().map(row);
    Widget::render(table(&COLUMNS, rows, " workers ", area.width), area, buffer);
}

/// Formats the number of a CPU or a worker; `-` for `None`.
pub(super) fn numbered(number: Option<impl ToString>) -> String {
    number.map_or_else(|| "-".into(), |number| number.to_string())
}

/// Inserts the column of the worker at `position`, if the agent has several workers.
pub(super) fn with_worker(columns: &[Column], position: usize, figures: &Figures) -> Vec<Column> {
    let mut columns = columns.to_vec();
    if !figures.workers.is_empty() {
        columns.insert(position, Column("worker", 6, Right));
    }
    columns
}

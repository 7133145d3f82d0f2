//! The screen: a pure function of figures and the user's choices.
//!
//! ```text
//!   title        the agent, and the age of its figures; or the reason why there are none newer
//!   summary      lines, pages, link: rates and hit rates; a histogram of fault times
//!   workers      a row for each, if there are several: CPU, lines, faults, frames
//!   regions      sorted, scrolled
//!   sessions     round trips, retransmissions, phase and rate
//!   keys
//! ```

mod workers;

use std::cmp::Ordering;
use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Row, StatefulWidget, Table, TableState, Widget};

use super::figures::{Faults, Figures, RegionFigures, SessionFigures};
use super::units::{bits, bytes, percent, phase, short, time};
use Alignment::{Left, Right};
use cxloe_cn_core::fault_times::BOUNDS_NS;
use workers::{OF_REGION, OF_SESSION, draw_workers, numbered, with_worker};

/// Order of regions and sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Highest rate first: faults of regions, requests of sessions.
    #[default]
    Rate,
    /// By name or address.
    Name,
    /// Largest first: bytes of regions, requests in flight of sessions.
    Size,
    /// Most trouble first: misses of regions, retransmissions of sessions.
    Trouble,
}

impl Sort {
    /// Returns the order after this one, which the user chooses by a key.
    pub fn next(self) -> Sort {
        match self {
            Sort::Rate => Sort::Name,
            Sort::Name => Sort::Size,
            Sort::Size => Sort::Trouble,
            Sort::Trouble => Sort::Rate,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Sort::Rate => "rate",
            Sort::Name => "name",
            Sort::Size => "size",
            Sort::Trouble => "trouble",
        }
    }
}

/// Choices of the user, and state that is not in the figures.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Order of the rows of both tables.
    pub sort: Sort,
    pub reverse: bool,
    /// Whether the screen keeps the present figures.
    pub paused: bool,
    /// Whether the help on keys is shown.
    pub help: bool,
    /// Number of regions that are scrolled out at the top.
    pub scroll: usize,
    pub interval: Duration,
    /// Path of the agent's socket, for the title.
    pub socket: String,
    /// Reason why the figures are out of date, and their age; `None` if they are up to date.
    pub trouble: Option<(String, Duration)>,
}

const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().fg(Color::DarkGray);
const BAD: Style = Style::new().fg(Color::Red);
const ODD: Style = Style::new().fg(Color::Yellow);

/// Help on keys, for the screen and for `--help`.
pub const KEYS: &str = "\
q, Esc, Ctrl-C   end
s                sort by rate, name, size, trouble
r                reverse the order
space            pause, go on
+ -              ask more often, less often
up, down, j, k   scroll regions
h, ?             this help";

/// Draws the screen into `area`; without figures, only the state in `view`.
pub fn draw(figures: Option<&Figures>, view: &View, area: Rect, buffer: &mut Buffer) {
    let sessions = figures.map_or(0, |figures| figures.sessions.len()) as u16;
    let workers = figures.map_or(0, |figures| figures.workers.len()) as u16;
    // Workers and sessions are few: they get the rows they need, up to a part of the screen; regions get the rest.
    let wanted = (sessions + 2).min((area.height / parts_of_sessions(workers)).max(4));
    let wanted_by_workers = if workers > 0 { (workers + 2).min((area.height / 4).max(4)) } else { 0 };
    let said = figures.map(|figures| summarised(figures, area.width)).unwrap_or_default();
    // On a low screen, regions and sessions take precedence over the end of the summary.
    let summary = (said.len() as u16 + 1).clamp(5, (area.height / 3).max(5));
    let [title, summary, workers, regions, sessions, keys] = Layout::vertical([
        Constraint::Length(1 + u16::from(view.trouble.is_some())),
        Constraint::Length(summary),
        Constraint::Length(wanted_by_workers),
        Constraint::Min(3),
        Constraint::Length(wanted),
        Constraint::Length(1),
    ])
    .areas(area);
    Paragraph::new(heading(figures, view)).render(title, buffer);
    if let Some(figures) = figures {
        Paragraph::new(said).render(summary, buffer);
        draw_workers(figures, workers, buffer);
        draw_regions(figures, view, regions, buffer);
        draw_sessions(figures, view, sessions, buffer);
    }
    Paragraph::new(key_line(view)).style(DIM).render(keys, buffer);
    if view.help {
        explain(area, buffer);
    }
}

/// Divisor of the screen's height for the rows of sessions. With several workers there are more sessions, and workers need
/// rows as well.
fn parts_of_sessions(workers: u16) -> u16 {
    if workers > 0 { 5 } else { 3 }
}

fn heading(figures: Option<&Figures>, view: &View) -> Vec<Line<'static>> {
    let mut line = vec![Span::styled("cn-agent top", HEAD)];
    if let Some(f) = figures {
        let seconds = f.unix_ms / 1000 % 86_400;
        let clock = format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60);
        let name = if f.name.is_empty() { &f.cn } else { &f.name };
        line.push(format!("  {name}  {clock}").into());
        if f.held {
            line.push(Span::styled("  suspended", BAD));
        }
    } else {
        line.push(format!("  {}", view.socket).into());
    }
    if view.paused {
        line.push(Span::styled("  paused", ODD));
    }
    // Last in the title, because a narrow screen cuts off the end.
    if let Some(f) = figures {
        line.push(format!("  link {}  manager {}", f.backend, f.manager).into());
    }
    let mut lines = vec![Line::from(line)];
    if let Some((reason, age)) = &view.trouble {
        let old = match figures {
            Some(_) => format!("these figures are {} old, ", time(Some(Duration::from_secs(age.as_secs())))),
            None => String::new(),
        };
        lines.push(Line::styled(format!("{old}trying again: {reason}"), BAD));
    }
    lines
}

/// Width of the summary's labels in columns.
const LABEL: usize = 6;

/// Puts phrases behind a label, on as many lines as needed.
fn flow(label: &'static str, phrases: Vec<Span<'static>>, width: u16) -> Vec<Line<'static>> {
    let mut lines = vec![Line::from(Span::styled(format!("{label:<LABEL$}"), HEAD))];
    for phrase in phrases.into_iter().filter(|phrase| phrase.width() > 0) {
        let used = lines.last().map_or(0, Line::width);
        match lines.last_mut() {
            Some(line) if used <= LABEL => line.push_span(phrase),
            Some(line) if used + 2 + phrase.width() <= usize::from(width) => {
                line.push_span("  ");
                line.push_span(phrase);
            }
            _ => lines.push(Line::from(vec![Span::raw(" ".repeat(LABEL)), phrase])),
        }
    }
    lines
}

fn summarised(f: &Figures, width: u16) -> Vec<Line<'static>> {
    let alarm = |value: f64, text: String| Span::styled(text, if value > 0.0 { BAD } else { Style::new() });
    let (p, t) = (&f.faults, &f.traffic);
    let ns = |ns: Option<u64>| time(ns.map(Duration::from_nanos));
    let lines = vec![
        format!("reads {}/s hit {}", short(f.reads_per_s), percent(f.read_hits)).into(),
        format!("writes {}/s hit {}", short(f.writes_per_s), percent(f.write_hits)).into(),
        format!("bursts {}/s in, {}/s out", short(f.burst_reads_per_s), short(f.burst_writes_per_s)).into(),
        alarm(f.failures_per_s, format!("failed {}/s", short(f.failures_per_s))),
    ];
    let pages = vec![
        format!("faults {}/s hit {}", short(p.per_s), percent(p.hits)).into(),
        format!("p50 {} p99 {}", ns(p.p50_ns), ns(p.p99_ns)).into(),
        format!("ahead {}/s used {}", short(p.ahead_per_s), percent(p.ahead_hits)).into(),
        format!("evicted {}/s", short(p.evicted_per_s)).into(),
        format!("written back {}/s", short(p.written_back_per_s)).into(),
        format!("waits for room {}/s", short(p.room_waits_per_s)).into(),
        Span::styled(picture(p), Style::new().fg(Color::Cyan)),
    ];
    let link = vec![
        format!("in {} {} frames/s", bits(t.rx_bytes_per_s), short(t.rx_frames_per_s)).into(),
        format!("out {} {} frames/s", bits(t.tx_bytes_per_s), short(t.tx_frames_per_s)).into(),
        alarm(t.rx_dropped_per_s, format!("dropped {}/s", short(t.rx_dropped_per_s))),
        format!("in flight {}", f.in_flight).into(),
        format!("ports {}", f.ports).into(),
        Span::styled(if f.stranded > 0 { format!("stranded {}", f.stranded) } else { String::new() }, BAD),
    ];
    [("lines", lines), ("pages", pages), ("link", link)]
        .into_iter()
        .flat_map(|(label, phrases)| flow(label, phrases, width))
        .collect()
}

/// Histogram of the fault durations, as one bar for each bucket from the first to the last.
fn picture(faults: &Faults) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let counts = &faults.times.counts;
    let Some(most) = counts.iter().max().copied().filter(|most| *most > 0) else {
        return String::new();
    };
    let bar = |count: &u64| match *count {
        0 => ' ',
        // Rounded up, so that even a single fault is visible.
        count => BARS[((count * BARS.len() as u64).div_ceil(most) as usize).clamp(1, BARS.len()) - 1],
    };
    let bound = |ns: u64| time(Some(Duration::from_nanos(ns))).replace(".0", "");
    let bars: String = counts.iter().map(bar).collect();
    format!("{}|{bars}|{}", bound(BOUNDS_NS[0]), bound(BOUNDS_NS[BOUNDS_NS.len() - 1]))
}

/// Sorts `rows` by `key` in descending order, or by `name`.
fn sorted<'r, T>(
    rows: &'r [T],
    view: &View,
    name: impl Fn(&T) -> &str,
    key: impl Fn(&T) -> f64,
) -> Vec<&'r T> {
    let mut all: Vec<&T> = rows.iter().collect();
    all.sort_by(|a, b| {
        let by_key = if view.sort == Sort::Name { Ordering::Equal } else { key(b).total_cmp(&key(a)) };
        let order = by_key.then_with(|| name(a).cmp(name(b)));
        if view.reverse { order.reverse() } else { order }
    });
    all
}

/// A column of a table: head, width and alignment. Numbers are aligned right.
#[derive(Clone, Copy)]
struct Column(&'static str, usize, Alignment);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Alignment {
    Left,
    Right,
}

impl Column {
    fn cell(&self, text: &str) -> String {
        let width = self.1;
        if self.2 == Right { format!("{text:>width$}") } else { text.to_owned() }
    }
}

/// Builds a table of the first columns, as many as fit `width`.
fn table(
    columns: &[Column],
    rows: impl Iterator<Item = (Vec<String>, Style)>,
    title: &'static str,
    width: u16,
) -> Table<'static> {
    let mut room = usize::from(width);
    let fits = |column: &&Column| {
        let fits = room >= column.1;
        room = room.saturating_sub(column.1 + 1);
        fits
    };
    // The first column is always shown, cut if it is too wide.
    let count = columns.iter().take_while(fits).count().max(1);
    let columns = &columns[..count];
    let row = |(cells, style): (Vec<String>, Style)| {
        Row::new(columns.iter().zip(cells).map(|(column, text)| column.cell(&text)).collect::<Vec<_>>())
            .style(style)
    };
    let rows: Vec<Row> = rows.map(row).collect();
    let head = Row::new(columns.iter().map(|column| column.cell(column.0)).collect::<Vec<_>>()).style(HEAD);
    Table::new(rows, columns.iter().map(|column| Constraint::Length(column.1 as u16)))
        .header(head)
        .block(Block::new().borders(Borders::TOP).title(title).border_style(DIM))
        .column_spacing(1)
}

const REGION_COLUMNS: [Column; 10] = [
    Column("region", 18, Left),
    Column("size", 8, Right),
    Column("state", 12, Left),
    Column("faults/s", 8, Right),
    Column("hit", 6, Right),
    Column("resident", 8, Right),
    Column("limit", 8, Right),
    Column("procs", 5, Right),
    Column("MNs", 4, Right),
    Column("served by", 20, Left),
];

fn draw_regions(figures: &Figures, view: &View, area: Rect, buffer: &mut Buffer) {
    let trouble = |region: &RegionFigures| {
        // Added as 10^12, which exceeds any rate, so that regions in a state other than `active` come first.
        let unwell = f64::from(u8::from(region.state != "active"));
        unwell * 1e12 + region.faults_per_s * (1.0 - region.fault_hits.unwrap_or(1.0))
    };
    let key = |region: &RegionFigures| match view.sort {
        Sort::Rate | Sort::Name => region.faults_per_s,
        Sort::Size => region.size as f64,
        Sort::Trouble => trouble(region),
    };
    let row = |region: &RegionFigures| {
        let mapped = |value: Option<u64>| value.map_or_else(|| "-".into(), bytes);
        let style = match region.state.as_str() {
            "active" => Style::new(),
            "lost" => BAD,
            _ => ODD,
        };
        let mut cells = vec![
            region.region.clone(),
            bytes(region.size),
            // Shows the last part of the state: the obstacle to the region's use if there is one.
            region.state.rsplit(", ").next().unwrap_or_default().to_owned(),
            short(region.faults_per_s),
            percent(region.fault_hits),
            mapped(region.resident),
            mapped(region.limit),
            region.processes.to_string(),
            region.memory_nodes.to_string(),
            region.served_by.clone(),
        ];
        if let Some(worker) = region.worker {
            cells.insert(OF_REGION, worker.to_string());
        }
        (cells, style)
    };
    let most = figures.regions.len().saturating_sub(usize::from(area.height.saturating_sub(2)));
    let mut state = TableState::new().with_offset(view.scroll.min(most));
    let title = if figures.regions.is_empty() { " regions: none attached " } else { " regions " };
    let rows = sorted(&figures.regions, view, |region| &region.region, key).into_iter().map(row);
    let columns = with_worker(&REGION_COLUMNS, OF_REGION, figures);
    let table = table(&columns, rows, title, area.width);
    StatefulWidget::render(table, area, buffer, &mut state);
}

const SESSION_COLUMNS: [Column; 12] = [
    Column("memory node", 17, Left),
    Column("state", 10, Left),
    Column("RTT", 8, Right),
    Column("req/s", 7, Right),
    Column("resent/s", 8, Right),
    Column("phase", 12, Left),
    Column("rate", 10, Right),
    Column("flight", 6, Right),
    Column("resent", 6, Right),
    Column("drop/s", 6, Right),
    Column("pauses/s", 8, Right),
    Column("", 22, Left),
];

fn draw_sessions(figures: &Figures, view: &View, area: Rect, buffer: &mut Buffer) {
    let key = |session: &SessionFigures| match view.sort {
        Sort::Rate | Sort::Name => session.requests_per_s,
        Sort::Size => session.in_flight as f64,
        Sort::Trouble => session.resent_per_s + f64::from(u8::from(session.state != "open")) * 1e12,
    };
    let row = |session: &SessionFigures| {
        let rtt = (session.rtt_ns > 0).then(|| Duration::from_nanos(session.rtt_ns));
        let style = match session.state.as_str() {
            "open" if session.resent_per_s == 0.0 => Style::new(),
            "open" => ODD,
            _ => BAD,
        };
        let refused = session.refusal.as_ref().map(|_| "refused: see sessions".to_owned());
        let mut cells = vec![
            session.label.clone(),
            session.state.clone(),
            time(rtt),
            short(session.requests_per_s),
            short(session.resent_per_s),
            session.phase.map_or("-", phase).to_owned(),
            session.rate.map_or_else(|| "-".into(), |rate| bits(rate as f64 / 8.0)),
            session.in_flight.to_string(),
            short(session.resent as f64),
            short(session.dropped_per_s),
            short(session.pauses_per_s),
            refused.unwrap_or_else(|| session.integrity.clone()),
        ];
        if !figures.workers.is_empty() {
            cells.insert(OF_SESSION, numbered(session.worker));
        }
        (cells, style)
    };
    let title = if figures.sessions.is_empty() { " sessions: none " } else { " sessions " };
    let rows = sorted(&figures.sessions, view, |session| &session.label, key).into_iter().map(row);
    let columns = with_worker(&SESSION_COLUMNS, OF_SESSION, figures);
    Widget::render(table(&columns, rows, title, area.width), area, buffer);
}

fn key_line(view: &View) -> String {
    let order = if view.reverse { ", reversed" } else { "" };
    format!(
        "q end  ? help  s sort ({}{order})  r reverse  space {}  +- every {}  j k scroll",
        view.sort.word(),
        if view.paused { "go on" } else { "pause" },
        time(Some(view.interval)).replace(".0s", "s").replace(".0ms", "ms")
    )
}

fn explain(area: Rect, buffer: &mut Buffer) {
    let (width, height) = (56.min(area.width), (KEYS.lines().count() as u16 + 2).min(area.height));
    let place =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    Clear.render(place, buffer);
    let block = Block::bordered().title(" keys ");
    Paragraph::new(KEYS).block(block).render(place, buffer);
}

/// Returns the screen's content as unframed text of `width` columns, with as many lines as needed.
pub fn text(figures: &Figures, view: &View, width: u16) -> String {
    // Bounded, because the height of a buffer has 16 bits.
    let counts = [figures.workers.len(), figures.regions.len(), figures.sessions.len()];
    let [workers, regions, sessions] = counts.map(|count| count.min(4096) as u16);
    let height = 24 + 4 * workers + regions + parts_of_sessions(workers) * sessions;
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    draw(Some(figures), view, buffer.area, &mut buffer);
    let mut lines: Vec<String> = (0..height - 1)
        .map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>())
        .map(|line| line.trim_end_matches([' ', '─']).to_owned())
        .collect();
    lines.dedup_by(|a, b| a.is_empty() && b.is_empty());
    lines.join("\n").trim_end().to_owned()
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;

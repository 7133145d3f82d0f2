//! A comparison as tables, CSV, JSON and HTML page.

use maud::html;
use serde::Serialize;

use super::absent_figure::AbsentFigure;
use super::pattern::Pattern;
use super::peer::Facts;
use super::run::Figure;
use cxloe_measure::report::html::{row, table};
use cxloe_measure::report::table::new_table;
use cxloe_measure::report::{Report, ReportError, csv, units};

/// Results of all peers, in the form from which tables, CSV, JSON and page are made.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Report with machine, link, times and rates.
    pub report: Report,
    /// Patterns that were to be measured, in order: a row of the table each.
    pub patterns: Vec<Pattern>,
    /// Figures of all peers, in the order of peers and patterns.
    pub figures: Vec<Figure>,
    /// Figures that measured peers do not have, with the reasons.
    pub absent_figures: Vec<AbsentFigure>,
    /// Name and facts of each peer, in order.
    pub peers: Vec<(&'static str, Facts)>,
    /// Name of the peer to which ratios refer.
    pub baseline: Option<String>,
    /// Peers that were not measured, with the reasons.
    pub absent: Vec<Absent>,
}

/// Peer that was not measured.
#[derive(Debug, Clone, Serialize)]
pub struct Absent {
    pub peer: String,
    /// Reason: what the peer lacks, or how it failed.
    pub reason: String,
    /// Command that installs the missing packages, if that is the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub install: Option<String>,
}

/// Legend above the tables.
const READING: &str = "times: p50 (p99) of single round trips, of a load at the rate offered, from the moment at which a read was due; \
                       in brackets how many times the baseline's";

impl Comparison {
    /// Tables as text for a terminal.
    pub fn tables(&self) -> String {
        let mut parts = vec![self.report.headline()];
        if !self.figures.is_empty() {
            let mut figures = new_table(["access"].into_iter().chain(self.names()));
            for pattern in &self.patterns {
                let mut row = vec![pattern.name().to_owned()];
                row.extend(self.names().map(|peer| self.cell(peer, *pattern)));
                figures.add_row(row);
            }
            parts.push(figures.to_string());
            parts.push(format!("{READING}{}", self.baseline_text()));
            parts.extend(self.notes().into_iter().map(|(note, reason)| format!("{note} {reason}")));
            let mut meanings = String::from("\nwhat each figure means\n");
            for (peer, facts) in &self.peers {
                meanings.push_str(&format!("  {peer}: {}\n", facts.what));
                for (label, text) in labelled(facts) {
                    meanings.push_str(&format!("      {label:<9}{text}\n"));
                }
            }
            parts.push(meanings);
        }
        if !self.absent.is_empty() {
            let mut absent = String::from("not measured\n");
            for one in &self.absent {
                let install = one.install.as_ref().map_or(String::new(), |how| format!("; {how}"));
                absent.push_str(&format!("  {}: {}{install}\n", one.peer, one.reason));
            }
            parts.push(absent);
        }
        parts.join("\n")
    }

    /// The same as [`tables`](Self::tables) in Markdown.
    pub fn markdown(&self) -> String {
        let names: Vec<&str> = self.names().collect();
        let mut text = format!(
            "{}\n\n| access | {} |\n|---{}|\n",
            self.report.headline(),
            names.join(" | "),
            "|---:".repeat(names.len())
        );
        for pattern in &self.patterns {
            let cells: Vec<String> = names.iter().map(|peer| self.cell(peer, *pattern)).collect();
            text.push_str(&format!("| {pattern} | {} |\n", cells.join(" | ")));
        }
        text.push_str(&format!("\n{READING}{}.\n\n", self.baseline_text()));
        for (note, reason) in self.notes() {
            text.push_str(&format!("* {note} {reason}.\n"));
        }
        for (peer, facts) in &self.peers {
            text.push_str(&format!("* **{peer}**: {}.", facts.what));
            for (label, fact) in labelled(facts) {
                text.push_str(&format!(" {label}: {fact}."));
            }
            text.push('\n');
        }
        if !self.absent.is_empty() {
            text.push_str("\nNot measured:\n\n");
        }
        for one in &self.absent {
            let install = one.install.as_ref().map_or(String::new(), |how| format!("; `{how}`"));
            text.push_str(&format!("* **{}**: {}{install}\n", one.peer, one.reason));
        }
        text
    }

    /// Names of the peers, a column of the table each.
    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.peers.iter().map(|(peer, _)| *peer)
    }

    /// Reasons why figures are absent, each once, with the notes that stand in their cells.
    fn notes(&self) -> Vec<(String, &str)> {
        let mut reasons: Vec<&str> = Vec::new();
        for absent in &self.absent_figures {
            if !reasons.contains(&absent.reason.as_str()) {
                reasons.push(&absent.reason);
            }
        }
        (1..).zip(reasons).map(|(number, reason): (u32, _)| (format!("({number})"), reason)).collect()
    }

    /// Text of a cell without a figure.
    fn absent_cell(&self, peer: &str, pattern: Pattern) -> String {
        let is_it = |absent: &&AbsentFigure| absent.peer == peer && absent.pattern == pattern.name();
        let Some(absent) = self.absent_figures.iter().find(is_it) else { return "-".into() };
        let note = self.notes().into_iter().find(|(_, reason)| *reason == absent.reason);
        note.map_or_else(|| "-".into(), |(note, _)| format!("- {note}"))
    }

    fn baseline_text(&self) -> String {
        self.baseline.as_ref().map_or_else(String::new, |name| format!(", which is {name}"))
    }

    pub(crate) fn figure(&self, peer: &str, pattern: Pattern) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.peer == peer && figure.pattern == pattern.name())
    }

    /// Figure of a pattern of a peer as text, with its ratio to the baseline.
    pub(crate) fn cell(&self, peer: &str, pattern: Pattern) -> String {
        let Some(figure) = self.figure(peer, pattern) else { return self.absent_cell(peer, pattern) };
        let mut text = value(figure, pattern);
        if let Some(ratio) = figure.ratio.filter(|_| self.baseline.as_deref() != Some(peer)) {
            text.push_str(&format!(" [{ratio:.2}]"));
        }
        text
    }

    /// CSV, one line for each pattern of each peer. Figures that a peer's tool does not print are empty.
    pub fn csv(&self) -> String {
        let heads =
            "peer pattern p50_ns p99_ns mean_ns ops_per_s bytes_per_s offered_per_s ratio count trials";
        let number = |value: Option<f64>, decimals: usize| {
            value.map_or_else(String::new, |value| format!("{value:.decimals$}"))
        };
        let row = |figure: &Figure| {
            let mut cells = vec![figure.peer.to_string(), figure.pattern.to_string()];
            let times = [figure.p50_ns, figure.p99_ns, figure.mean_ns];
            let rates = [figure.ops_per_s, figure.bytes_per_s, figure.offered_per_s];
            cells.extend(times.into_iter().chain(rates).map(|value| number(value, 0)));
            cells.extend([number(figure.ratio, 4), figure.count.to_string(), figure.trials.to_string()]);
            cells
        };
        let heads = heads.split(' ').map(str::to_owned).collect();
        csv::text(std::iter::once(heads).chain(self.figures.iter().map(row)))
    }

    /// JSON text of a report like that of any measurement, with the additional field `comparison`.
    pub fn json(&self) -> String {
        let mut value = serde_json::to_value(&self.report).expect("a report has plain values only");
        let peers: Vec<_> = self.peers.iter().map(|(name, facts)| Described::new(name, facts)).collect();
        value["comparison"] = serde_json::json!({
            "baseline": self.baseline,
            "peers": peers,
            "patterns": self.patterns.iter().map(|pattern| pattern.name()).collect::<Vec<_>>(),
            "figures": self.figures,
            "absent_figures": self.absent_figures,
            "absent": self.absent,
        });
        serde_json::to_string_pretty(&value).expect("it has string keys") + "\n"
    }

    /// HTML page: the comparison, and below it histograms and bars as on any measurement's page.
    pub fn html(&self) -> Result<String, ReportError> {
        let head: Vec<&str> = ["access"].into_iter().chain(self.names()).collect();
        let cells = |pattern: Pattern| {
            let figures = self.names().map(move |peer| self.cell(peer, pattern));
            row([pattern.name().to_owned()].into_iter().chain(figures))
        };
        let absent =
            |one: &Absent| row([&one.peer, &one.reason, one.install.as_ref().unwrap_or(&String::new())]);
        self.report.html_with(&html! {
            h2 { "Side by side" }
            p {
                "Times are p50 (p99) of single round trips; those of a load are at the rate offered, from the moment at \
                 which a read was due. In brackets: how many times the baseline's" (self.baseline_text())
                ", from the trials in which both ran."
            }
            (table(&head, self.patterns.iter().map(|pattern| cells(*pattern))))
            @for (note, reason) in self.notes() { p class="quiet" { (note) " " (reason) } }
            h2 { "What each figure means" }
            @for (peer, facts) in &self.peers {
                h3 { (peer) }
                p {
                    (facts.what) "."
                    @for (label, text) in labelled(facts) { br; span class="quiet" { (label) ":" } " " (text) }
                }
            }
            @if !self.absent.is_empty() {
                h2 { "Not measured" }
                (table(&["peer", "why", "install"], self.absent.iter().map(absent)))
            }
        })
    }
}

/// Text of a figure without its ratio to the baseline.
pub(crate) fn value(figure: &Figure, pattern: Pattern) -> String {
    let mut text = match (figure.p50_ns, figure.mean_ns) {
        (Some(p50), _) => {
            let tail = figure.p99_ns.map_or_else(String::new, |p99| format!(" ({})", units::time(p99)));
            units::time(p50) + &tail
        }
        (None, Some(mean)) => format!("{} mean", units::time(mean)),
        _ if pattern.counts_operations() => figure.ops_per_s.map(units::operations).unwrap_or_default(),
        _ => figure.bytes_per_s.map(units::bytes).unwrap_or_default(),
    };
    if let Some(offered) = figure.offered_per_s {
        text.push_str(&format!(" at {}", units::operations(offered)));
    }
    text
}

/// Facts of a peer, each after its label.
fn labelled(facts: &Facts) -> [(&'static str, &'static str); 4] {
    [
        ("waits", facts.waits),
        ("copies", facts.copies),
        ("verified", facts.verified),
        ("figures", facts.figures),
    ]
}

#[derive(Serialize)]
struct Described {
    name: &'static str,
    what: &'static str,
    waits: &'static str,
    copies: &'static str,
    verified: &'static str,
    figures: &'static str,
}

impl Described {
    fn new(name: &'static str, facts: &Facts) -> Described {
        let Facts { what, waits, copies, verified, figures } = *facts;
        Described { name, what, waits, copies, verified, figures }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use cxloe_measure::machine::Machine;
    use cxloe_measure::report::Link;

    /// Figure with a median of a microsecond.
    pub fn figure(peer: &str, pattern: Pattern) -> Figure {
        Figure {
            peer: peer.into(),
            pattern: pattern.name(),
            p50_ns: Some(1000.0),
            p99_ns: Some(2000.0),
            mean_ns: Some(1000.0),
            ops_per_s: None,
            bytes_per_s: None,
            offered_per_s: None,
            ratio: Some(1.0),
            count: 10,
            trials: 1,
        }
    }

    pub fn comparison() -> Comparison {
        let facts = Facts { what: "a <peer>", waits: "w", copies: "c", verified: "v", figures: "f" };
        let (wait, frames) = ("busy".into(), String::new());
        let link = Link { backend: "veth".into(), interfaces: vec![], mtu: 1500, wait, frames };
        let (own, other) = (figure("cxloe-packet", Pattern::Read64), figure("mean-only", Pattern::Read64));
        let absent = |peer: &str, pattern: Pattern, reason: &str| AbsentFigure {
            peer: peer.into(),
            pattern: pattern.name(),
            reason: reason.into(),
        };
        Comparison {
            report: Report::new(Machine::describe(), link),
            patterns: vec![Pattern::Read64, Pattern::Seq64, Pattern::Write64],
            figures: vec![
                own,
                Figure { p50_ns: None, p99_ns: None, mean_ns: Some(2500.0), ratio: Some(2.5), ..other },
            ],
            absent_figures: vec![
                absent("cxloe-packet", Pattern::Write64, "not today"),
                absent("mean-only", Pattern::Seq64, "no order"),
                absent("mean-only", Pattern::Write64, "not today"),
            ],
            peers: vec![("cxloe-packet", facts), ("mean-only", facts)],
            baseline: Some("cxloe-packet".into()),
            absent: vec![Absent {
                peer: "redis".into(),
                reason: "redis-server is not installed".into(),
                install: Some("apt-get install redis-server".into()),
            }],
        }
    }

    /// The same with a load and streams of the first peer.
    fn with_rates() -> Comparison {
        let mut comparison = comparison();
        let bare = |pattern| Figure { ratio: None, ..figure("cxloe-packet", pattern) };
        let rate = |pattern| Figure {
            p50_ns: None,
            p99_ns: None,
            mean_ns: None,
            ops_per_s: Some(2e6),
            bytes_per_s: Some(1024.0 * 1024.0),
            ..bare(pattern)
        };
        comparison.patterns.extend([Pattern::Load90, Pattern::SeqStream64, Pattern::Stream4k]);
        comparison.figures.extend([
            Figure { offered_per_s: Some(9e5), ops_per_s: Some(8.9e5), ..bare(Pattern::Load90) },
            rate(Pattern::SeqStream64),
            rate(Pattern::Stream4k),
        ]);
        comparison
    }

    #[test]
    fn a_mean_is_called_one_and_what_is_missing_is_empty() {
        let text = comparison().tables();
        assert!(text.contains("1.00 µs (2.00 µs)"), "{text}");
        assert!(text.contains("2.50 µs mean [2.50]"), "{text}");
        assert!(
            text.contains("redis: redis-server is not installed; apt-get install redis-server"),
            "{text}"
        );
        let csv = comparison().csv();
        assert_eq!(csv.lines().nth(1), Some("cxloe-packet,read64,1000,2000,1000,,,,1.0000,10,1"));
        assert_eq!(csv.lines().nth(2), Some("mean-only,read64,,,2500,,,,2.5000,10,1"));
    }

    #[test]
    fn an_absent_figure_has_a_note_and_each_reason_is_named_once() {
        let comparison = comparison();
        assert_eq!(comparison.cell("cxloe-packet", Pattern::Write64), "- (1)");
        assert_eq!(comparison.cell("mean-only", Pattern::Write64), "- (1)");
        assert_eq!(comparison.cell("mean-only", Pattern::Seq64), "- (2)");
        assert_eq!(comparison.cell("cxloe-packet", Pattern::Seq64), "-", "nobody gave a reason");
        for text in [comparison.tables(), comparison.markdown(), comparison.html().unwrap()] {
            assert!(text.contains("(1) not today") && text.contains("(2) no order"), "{text}");
            assert_eq!(text.matches("not today").count(), 1, "{text}");
        }
        let value: serde_json::Value = serde_json::from_str(&comparison.json()).unwrap();
        assert_eq!(value["comparison"]["absent_figures"][1]["pattern"], "seq64");
        assert_eq!(value["comparison"]["absent_figures"][1]["reason"], "no order");
    }

    #[test]
    fn loads_have_the_rate_offered_and_streams_their_unit() {
        let comparison = with_rates();
        assert_eq!(comparison.cell("cxloe-packet", Pattern::Load90), "1.00 µs (2.00 µs) at 900 k/s");
        assert_eq!(comparison.cell("cxloe-packet", Pattern::SeqStream64), "2.00 M/s");
        assert_eq!(comparison.cell("cxloe-packet", Pattern::Stream4k), "1.00 MiB/s");
        let csv = comparison.csv();
        assert_eq!(csv.lines().nth(3), Some("cxloe-packet,load90,1000,2000,1000,890000,,900000,,10,1"));
        let value: serde_json::Value = serde_json::from_str(&comparison.json()).unwrap();
        assert_eq!(value["comparison"]["figures"][2]["offered_per_s"], 9e5);
        assert_eq!(value["comparison"]["patterns"][3], "load90");
    }

    #[test]
    fn markdown_has_every_cell_and_who_is_missing() {
        let text = comparison().markdown();
        let row = "| read64 | 1.00 µs (2.00 µs) | 2.50 µs mean [2.50] |";
        assert!(text.lines().any(|line| line == row), "{text}");
        assert!(text.lines().any(|line| line == "| access | cxloe-packet | mean-only |"), "{text}");
        let dashes = text.lines().find(|line| line.starts_with("|---")).unwrap();
        assert_eq!(dashes.matches('|').count(), row.matches('|').count(), "{text}");
        let missing = "* **redis**: redis-server is not installed; `apt-get install redis-server`";
        assert!(text.contains(missing) && text.contains("verified: v."), "{text}");
    }

    #[test]
    fn the_json_is_a_report_with_more() {
        let report: Report = serde_json::from_str(&comparison().json()).unwrap();
        assert_eq!(report, comparison().report);
        let value: serde_json::Value = serde_json::from_str(&comparison().json()).unwrap();
        assert_eq!(value["comparison"]["figures"][1]["mean_ns"], 2500.0);
        assert!(value["comparison"]["figures"][1].get("p50_ns").is_none());
        assert_eq!(value["comparison"]["peers"][0]["verified"], "v");
    }

    #[test]
    fn every_pattern_of_the_plan_has_a_row() {
        let comparison = with_rates();
        let page = comparison.html().unwrap();
        for pattern in &comparison.patterns {
            assert!(page.contains(&format!("<td>{pattern}</td>")), "{pattern}: {page}");
            assert!(comparison.markdown().contains(&format!("\n| {pattern} | ")), "{pattern}");
        }
        assert!(!page.contains("<td>trace</td>"), "no trace was replayed");
    }

    #[test]
    fn the_page_shows_it_and_escapes() {
        let page = comparison().html().unwrap();
        assert!(page.contains("2.50 µs mean [2.50]") && page.contains("a &lt;peer&gt;"), "{page}");
        assert!(page.contains("apt-get install redis-server"));
    }
}

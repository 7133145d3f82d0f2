//! A comparison as tables, CSV, JSON and HTML page.

use maud::html;
use serde::Serialize;

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
    /// Figures of all peers, in the order of peers and patterns.
    pub figures: Vec<Figure>,
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
const READING: &str = "times: p50 (p99) of single round trips; in brackets how many times the baseline's";

impl Comparison {
    /// Tables as text for a terminal.
    pub fn tables(&self) -> String {
        let mut parts = vec![self.report.headline()];
        if !self.figures.is_empty() {
            let patterns = self.patterns();
            let names = patterns.iter().map(|pattern| pattern.name());
            let mut figures = new_table(["peer"].into_iter().chain(names));
            for (peer, _) in &self.peers {
                let mut row = vec![(*peer).to_owned()];
                row.extend(patterns.iter().map(|pattern| self.cell(peer, *pattern)));
                figures.add_row(row);
            }
            parts.push(figures.to_string());
            parts.push(format!("{READING}{}", self.baseline_text()));
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
        let patterns = self.patterns();
        let names: Vec<&str> = patterns.iter().map(|pattern| pattern.name()).collect();
        let mut text = format!(
            "{}\n\n| system | {} |\n|---{}|\n",
            self.report.headline(),
            names.join(" | "),
            "|---:".repeat(names.len())
        );
        for (peer, _) in &self.peers {
            let cells: Vec<String> = patterns.iter().map(|pattern| self.cell(peer, *pattern)).collect();
            text.push_str(&format!("| {peer} | {} |\n", cells.join(" | ")));
        }
        text.push_str(&format!("\n{READING}{}.\n\n", self.baseline_text()));
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

    /// Patterns that have a column: a trace has one only if it was replayed.
    pub(crate) fn patterns(&self) -> Vec<Pattern> {
        let is_replayed = self.figures.iter().any(|figure| figure.pattern == Pattern::Trace.name());
        Pattern::ALL.into_iter().filter(|pattern| is_replayed || *pattern != Pattern::Trace).collect()
    }

    fn baseline_text(&self) -> String {
        self.baseline.as_ref().map_or_else(String::new, |name| format!(", which is {name}"))
    }

    pub(crate) fn figure(&self, peer: &str, pattern: Pattern) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.peer == peer && figure.pattern == pattern.name())
    }

    /// Figure of a pattern of a peer as text, with its ratio to the baseline.
    pub(crate) fn cell(&self, peer: &str, pattern: Pattern) -> String {
        let Some(figure) = self.figure(peer, pattern) else { return "-".into() };
        let mut text = match (figure.p50_ns, figure.mean_ns, pattern) {
            (Some(p50), ..) => {
                let tail = figure.p99_ns.map_or_else(String::new, |p99| format!(" ({})", units::time(p99)));
                units::time(p50) + &tail
            }
            (None, Some(mean), _) => format!("{} mean", units::time(mean)),
            (None, None, Pattern::Stream64) => figure.ops_per_s.map(units::operations).unwrap_or_default(),
            _ => figure.bytes_per_s.map(units::bytes).unwrap_or_default(),
        };
        if let Some(ratio) = figure.ratio.filter(|_| self.baseline.as_deref() != Some(peer)) {
            text.push_str(&format!(" [{ratio:.2}]"));
        }
        text
    }

    /// CSV, one line for each pattern of each peer. Figures that a peer's tool does not print are empty.
    pub fn csv(&self) -> String {
        let heads = "peer pattern p50_ns p99_ns mean_ns ops_per_s bytes_per_s ratio count trials";
        let number = |value: Option<f64>, decimals: usize| {
            value.map_or_else(String::new, |value| format!("{value:.decimals$}"))
        };
        let row = |figure: &Figure| {
            let mut cells = vec![figure.peer.to_string(), figure.pattern.to_string()];
            let figures =
                [figure.p50_ns, figure.p99_ns, figure.mean_ns, figure.ops_per_s, figure.bytes_per_s];
            cells.extend(figures.map(|value| number(value, 0)));
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
            "figures": self.figures,
            "absent": self.absent,
        });
        serde_json::to_string_pretty(&value).expect("it has string keys") + "\n"
    }

    /// HTML page: the comparison, and below it histograms and bars as on any measurement's page.
    pub fn html(&self) -> Result<String, ReportError> {
        let patterns = self.patterns();
        let names = patterns.iter().map(|pattern| pattern.name());
        let head: Vec<&str> = ["peer"].into_iter().chain(names).collect();
        let cells = |peer: &str| {
            let figures = patterns.iter().map(|pattern| self.cell(peer, *pattern));
            row([peer.to_owned()].into_iter().chain(figures))
        };
        let absent =
            |one: &Absent| row([&one.peer, &one.reason, one.install.as_ref().unwrap_or(&String::new())]);
        self.report.html_with(&html! {
            h2 { "Side by side" }
            p {
                "Times are p50 (p99) of single round trips. In brackets: how many times the baseline's"
                (self.baseline_text()) ", from the trials in which both ran."
            }
            (table(&head, self.peers.iter().map(|(peer, _)| cells(peer))))
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

    pub fn comparison() -> Comparison {
        let facts = Facts { what: "a <peer>", waits: "w", copies: "c", verified: "v", figures: "f" };
        let (wait, frames) = ("busy".into(), String::new());
        let link = Link { backend: "veth".into(), interfaces: vec![], mtu: 1500, wait, frames };
        let time = |peer: &str, p50, mean| Figure {
            peer: peer.into(),
            pattern: "read64",
            p50_ns: p50,
            p99_ns: p50.map(|time: f64| 2.0 * time),
            mean_ns: Some(mean),
            ops_per_s: None,
            bytes_per_s: None,
            ratio: Some(mean / 1000.0),
            count: 10,
            trials: 1,
        };
        Comparison {
            report: Report::new(Machine::describe(), link),
            figures: vec![time("cxloe-packet", Some(1000.0), 1000.0), time("mean-only", None, 2500.0)],
            peers: vec![("cxloe-packet", facts), ("mean-only", facts)],
            baseline: Some("cxloe-packet".into()),
            absent: vec![Absent {
                peer: "redis".into(),
                reason: "redis-server is not installed".into(),
                install: Some("apt-get install redis-server".into()),
            }],
        }
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
        assert_eq!(csv.lines().nth(1), Some("cxloe-packet,read64,1000,2000,1000,,,1.0000,10,1"));
        assert_eq!(csv.lines().nth(2), Some("mean-only,read64,,,2500,,,2.5000,10,1"));
    }

    #[test]
    fn markdown_has_every_cell_and_who_is_missing() {
        let text = comparison().markdown();
        let row = "| mean-only | 2.50 µs mean [2.50] | - | - | - | - | - |";
        assert!(text.lines().any(|line| line == row), "{text}");
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
    fn a_trace_has_a_column_if_it_was_replayed() {
        let mut comparison = comparison();
        assert_eq!(comparison.patterns(), Pattern::ALL[..6]);
        let replayed = Figure { pattern: "trace", ..comparison.figures[0].clone() };
        comparison.figures.push(replayed);
        assert_eq!(comparison.patterns(), Pattern::ALL);
        let page = comparison.html().unwrap();
        assert!(page.contains("<th>trace</th>"), "{page}");
        assert_eq!(comparison.csv().lines().nth(3), Some("cxloe-packet,trace,1000,2000,1000,,,1.0000,10,1"));
    }

    #[test]
    fn the_page_shows_it_and_escapes() {
        let page = comparison().html().unwrap();
        assert!(page.contains("2.50 µs mean [2.50]") && page.contains("a &lt;peer&gt;"), "{page}");
        assert!(page.contains("apt-get install redis-server"));
    }
}

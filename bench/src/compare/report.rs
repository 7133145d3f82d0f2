//! A comparison in the forms people and programs read: tables, CSV, JSON, a page.

use serde::Serialize;

use super::pattern::Pattern;
use super::peer::Facts;
use super::run::Figure;
use crate::report::html::{escape, table};
use crate::report::table::new_table;
use crate::report::{Report, ReportError, csv, units};

/// All there is to say.
pub struct Comparison {
    /// Machine, link, times and rates.
    pub report: Report,
    /// Side by side.
    pub figures: Vec<Figure>,
    /// What the peers are, in their order.
    pub peers: Vec<(&'static str, Facts)>,
    /// Whose figures the ratios are to.
    pub baseline: Option<String>,
    /// What was not measured, and why.
    pub absent: Vec<Absent>,
}

/// A peer without figures.
#[derive(Debug, Clone, Serialize)]
pub struct Absent {
    /// The peer.
    pub peer: String,
    /// Why: what is missing, or how it failed.
    pub reason: String,
    /// What installs what is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub install: Option<String>,
}

/// The line above tables: how to read them.
const READING: &str = "times: p50 (p99) of single round trips; in brackets how many times the baseline's";

impl Comparison {
    /// As text for a terminal.
    pub fn tables(&self) -> String {
        let mut parts = vec![self.report.headline()];
        if !self.figures.is_empty() {
            let mut figures = new_table(["peer"].into_iter().chain(Pattern::ALL.map(Pattern::name)));
            for (peer, _) in &self.peers {
                let mut row = vec![(*peer).to_owned()];
                row.extend(Pattern::ALL.map(|pattern| self.cell(peer, pattern)));
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

    fn baseline_text(&self) -> String {
        self.baseline.as_ref().map_or_else(String::new, |name| format!(", which is {name}"))
    }

    fn figure(&self, peer: &str, pattern: Pattern) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.peer == peer && figure.pattern == pattern.name())
    }

    fn cell(&self, peer: &str, pattern: Pattern) -> String {
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

    /// As CSV, one line for each pattern of each peer. What a peer's tool does not tell is empty.
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

    /// As JSON: a report as any measurement's, and `comparison` beside its results.
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

    /// As a page: the comparison, and below it histograms and bars as on any measurement's page.
    pub fn html(&self) -> Result<String, ReportError> {
        let mut part = format!(
            "<h2>Side by side</h2>\n<p>Times are p50 (p99) of single round trips. In brackets: how many times the \
             baseline's{}, from the trials in which both ran.</p>\n",
            escape(&self.baseline_text())
        );
        let mut head = vec!["peer"];
        head.extend(Pattern::ALL.map(Pattern::name));
        part += &table(
            &head,
            self.peers.iter().map(|(peer, _)| {
                let cells =
                    Pattern::ALL.map(|pattern| format!("<td>{}</td>", escape(&self.cell(peer, pattern))));
                format!("<tr><td>{}</td>{}</tr>\n", escape(peer), cells.concat())
            }),
        );
        part.push_str("<h2>What each figure means</h2>\n");
        for (peer, facts) in &self.peers {
            part += &format!("<h3>{}</h3>\n<p>{}.", escape(peer), escape(facts.what));
            for (label, text) in labelled(facts) {
                part += &format!("<br><span class=\"quiet\">{label}:</span> {}", escape(text));
            }
            part.push_str("</p>\n");
        }
        if !self.absent.is_empty() {
            part.push_str("<h2>Not measured</h2>\n");
            part += &table(
                &["peer", "why", "install"],
                self.absent.iter().map(|one| {
                    let install = one.install.as_deref().unwrap_or_default();
                    let cells =
                        [&one.peer, &one.reason, install].map(|text| format!("<td>{}</td>", escape(text)));
                    format!("<tr>{}</tr>\n", cells.concat())
                }),
            );
        }
        self.report.html_with(&part)
    }
}

/// The facts of a peer, with words in front.
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
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::Link;

    fn comparison() -> Comparison {
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
    fn the_json_is_a_report_with_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("compare.json");
        std::fs::write(&path, comparison().json()).unwrap();
        assert_eq!(Report::read_json(&path).unwrap(), comparison().report);
        let value: serde_json::Value = serde_json::from_str(&comparison().json()).unwrap();
        assert_eq!(value["comparison"]["figures"][1]["mean_ns"], 2500.0);
        assert!(value["comparison"]["figures"][1].get("p50_ns").is_none());
        assert_eq!(value["comparison"]["peers"][0]["verified"], "v");
    }

    #[test]
    fn the_page_shows_it_and_escapes() {
        let page = comparison().html().unwrap();
        assert!(page.contains("2.50 µs mean [2.50]") && page.contains("a &lt;peer&gt;"), "{page}");
        assert!(page.contains("apt-get install redis-server"));
    }
}

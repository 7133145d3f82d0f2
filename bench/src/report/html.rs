//! A report as one HTML page: no script, no font, no file beside it.
//!
//! Everything that comes from outside (names, the processor's model) is escaped; pictures escape their own text.

use super::chart::{self, GRID, INK, SERIES};
use super::labels::{AGENT_AND_PORT, label};
use super::ratio::NEAR_MAX_NS;
use super::{Ratio, Report, ReportError, units};

/// What replaces ink, grid and series on a dark screen.
const DARK_INK: &str = "#e6e9ec";
const DARK_GRID: &str = "#3a4149";
const DARK_SERIES: [&str; 14] = [
    "#4aa8e8", "#ff8a3c", "#2fc79b", "#e79ac6", "#e0b83a", "#8fd0f7", "#b48cf2", "#a9a9a9", "#ff6f9f",
    "#7ccf80", "#c29a8b", "#3fc6d4", "#8c9bff", "#d6d45a",
];

pub(crate) const STYLE: &str = "
:root { color-scheme: light dark; --ink: #22262b; --grid: #d5dae0; --paper: #fff; --card: #f6f7f9; --quiet: #5c6670;
  --good: #00704f; --bad: #b03a00; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 0; font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
p { max-width: 45rem; } .quiet { color: var(--quiet); font-size: .9rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; font-family: ui-monospace, monospace; }
.what { text-align: left; white-space: normal; min-width: 14rem; }
th { font-weight: 600; color: var(--quiet); font-size: .85rem; }
.cards { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); }
figure { margin: 0; padding: .8rem; background: var(--card); border-radius: .5rem; }
figure p { margin: .2rem 0 0; } figure.wide { max-width: 52rem; }
svg { display: block; width: 100%; height: auto; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; padding: 0; margin: .5rem 0 0; list-style: none; font-size: .9rem; }
.legend svg { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: 1rem 0; } a { color: inherit; }
nav a { padding: .2rem 0; } summary { cursor: pointer; margin: 1rem 0 .3rem; color: var(--quiet); }
.good { color: var(--good); } .bad { color: var(--bad); }
";

impl Report {
    /// The whole page.
    ///
    /// # Errors
    /// [`ReportError::Picture`] when a picture cannot be drawn.
    pub fn html(&self) -> Result<String, ReportError> {
        self.html_with("")
    }

    /// The whole page with a part of its own before all others.
    ///
    /// # Errors
    /// [`ReportError::Picture`] when a picture cannot be drawn.
    pub(crate) fn html_with(&self, first: &str) -> Result<String, ReportError> {
        let mut page = String::new();
        page.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
        page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
        page.push_str(&format!("<title>CXLoE over {}</title>\n", escape(&self.link.backend)));
        page.push_str(&format!("<style>{STYLE}{}</style>\n</head>\n<body>\n", colours()));
        page.push_str("<h1>CXL over Ethernet: measurements</h1>\n");
        page.push_str(&format!("<p class=\"quiet\">{}</p>\n", escape(&self.headline())));
        if let Some(hypervisor) = &self.machine.hypervisor {
            page.push_str(&format!("<p class=\"quiet\">Virtual machine: {}</p>\n", escape(hypervisor)));
        }
        page.push_str(first);
        if !self.ratios.is_empty() {
            page.push_str(&self.ratio_section());
        }
        if !self.costs.is_empty() {
            page.push_str(&self.cost_section());
        }
        if !self.conditions.is_empty() {
            page.push_str(&self.pattern_sections()?);
        } else {
            if !self.results.is_empty() {
                page.push_str(&self.time_section()?);
            }
            if !self.throughput.is_empty() {
                page.push_str(&self.rate_section()?);
            }
        }
        page.push_str("</body>\n</html>\n");
        Ok(page)
    }

    fn ratio_section(&self) -> String {
        let rows = self.ratios.iter().map(|ratio: &Ratio| {
            let class = match ratio.reached() {
                Some(true) => " class=\"good\"",
                Some(false) => " class=\"bad\"",
                None => "",
            };
            let (name, of) = (escape(&ratio.name), ratio.statistic.name());
            let (over, target, trials) = (ratio.over_text(), ratio.target_text(), ratio.trials_text());
            format!(
                "<tr><td>{name}</td><td>{of}</td><td>{:.2}</td><td>{over}</td><td{class}>{target}</td><td>{trials}</td></tr>\n",
                ratio.value
            )
        });
        let near = units::time(NEAR_MAX_NS);
        format!(
            "<h2>Against the limits</h2>\n<p>Each figure over a limit measured in turns with it, on the same link. Times \
             should come close to 1 from above, rates from below. A ratio is the median over trials during which the \
             cores were equally far apart, where that changed: <q>8 near</q> are eight trials in which a cache line went \
             from one core to the other and back fast, <q>far</q> are those in which it took at least {near} and clearly \
             longer than in the near ones.</p>\n"
        ) + &table(&["ratio", "of", "value", "over the limit", "target", "trials"], rows)
    }

    fn time_section(&self) -> Result<String, ReportError> {
        let rows = self.results.iter().map(|r| {
            let times =
                [r.min, r.p50, r.p90, r.p99, r.p999, r.max].map(|t| format!("<td>{}</td>", units::time(t)));
            format!(
                "<tr><td>{}</td><td>{}</td>{}<td class=\"what\">{}</td></tr>\n",
                escape(&r.name),
                units::count(r.count),
                times.concat(),
                label(&r.name)
            )
        });
        let header = ["measurement", "samples", "min", "p50", "p90", "p99", "p99.9", "max", "what it is"];
        let mut part = "<h2>Times</h2>\n".to_owned() + &table(&header, rows);
        if self.result("read64").is_some() && self.result("agent_read64").is_some() {
            part.push_str(&format!("<p>{AGENT_AND_PORT}</p>\n"));
        }
        part.push_str(
            "<h2>By percentile</h2>\n<p>How long the slowest tenth, hundredth, thousandth takes at least: each step \
             to the right leaves a tenth of the samples. Flat lines are steady. Along the bottom: the share of the \
             samples that took no longer; along the side: the time.</p>\n",
        );
        part.push_str(&format!("<figure class=\"wide\">\n{}", chart::percentiles(&self.results)?));
        part.push_str("<ul class=\"legend\">\n");
        for (index, result) in self.results.iter().enumerate() {
            let (swatch, name) = (hex(chart::series(index)), escape(&result.name));
            part.push_str(&format!(
                    "<li><svg viewBox=\"0 0 8 8\"><rect width=\"8\" height=\"8\" fill=\"{swatch}\"/></svg>{name}</li>\n"
                ));
        }
        part.push_str(
            "</ul>\n</figure>\n<h2>Histograms</h2>\n<p>Along the side, the share of the samples; along the bottom, the \
             time they took, logarithmically. \
             Each picture ends a little behind its 99.9th percentile.</p>\n\
             <div class=\"cards\">\n",
        );
        for (index, result) in self.results.iter().enumerate() {
            let [p50, p99, max] = [result.p50, result.p99, result.max].map(units::time);
            let [samples, beyond] = [result.count, chart::beyond(result)].map(units::count);
            let (name, picture) = (escape(&result.name), chart::histogram(result, index)?);
            let caption =
                format!("p50 {p50}, p99 {p99}, max {max}; {samples} samples, {beyond} beyond the picture");
            part.push_str(&format!(
                "<figure>\n<h3>{name}</h3>\n{picture}<p>{}</p>\n<p class=\"quiet\">{caption}</p>\n</figure>\n",
                label(&result.name)
            ));
        }
        part.push_str("</div>\n");
        Ok(part)
    }

    fn rate_section(&self) -> Result<String, ReportError> {
        let operations: Vec<_> = self.throughput.iter().map(|t| (t.name.as_str(), t.ops_per_s)).collect();
        let payload: Vec<_> = self.throughput.iter().map(|t| (t.name.as_str(), t.bytes_per_s)).collect();
        let mut part = "<h2>Rates</h2>\n<div class=\"cards\">\n".to_owned();
        for (title, picture) in [
            ("operations per second", chart::bars("operations", &operations, units::operations)?),
            ("payload per second", chart::bars("payload", &payload, units::bytes)?),
        ] {
            part.push_str(&format!("<figure>\n<h3>{title}</h3>\n{picture}</figure>\n"));
        }
        part.push_str("</div>\n");
        let rows = self.throughput.iter().map(|rate| {
            let (operations, payload) = (units::operations(rate.ops_per_s), units::bytes(rate.bytes_per_s));
            let (name, what) = (escape(&rate.name), label(&rate.name));
            format!("<tr><td>{name}</td><td>{operations}</td><td>{payload}</td><td class=\"what\">{what}</td></tr>\n")
        });
        part.push_str(&table(&["measurement", "operations", "payload", "what it is"], rows));
        Ok(part)
    }
}

/// A table with these column names; rows are whole `<tr>` elements.
pub(crate) fn table(header: &[&str], rows: impl Iterator<Item = String>) -> String {
    let header: String = header.iter().map(|cell| format!("<th>{cell}</th>")).collect();
    let rows: String = rows.collect();
    format!(
        "<div class=\"scroll\"><table>\n<thead><tr>{header}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}

/// Which colour is whose, of results in this order.
pub(crate) fn legend(names: &[&str]) -> String {
    let entries = names.iter().enumerate().map(|(index, name)| {
        format!(
            "<li><svg viewBox=\"0 0 8 8\"><rect width=\"8\" height=\"8\" fill=\"{}\"/></svg>{}</li>\n",
            hex(chart::series(index)),
            escape(name)
        )
    });
    format!("<ul class=\"legend\">\n{}</ul>\n", entries.collect::<String>())
}

/// Rules that give the pictures' colours on a dark screen.
pub(crate) fn colours() -> String {
    let mut rules =
        "@media (prefers-color-scheme: dark) {\n:root { --ink: #e6e9ec; --grid: #3a4149; --paper: #15181b; \
                     --card: #1e2226; --quiet: #a3adb7; --good: #4fd1a5; --bad: #ff9b6b; }\n"
            .to_owned();
    let pairs = SERIES.into_iter().zip(DARK_SERIES).chain([(INK, DARK_INK), (GRID, DARK_GRID)]);
    for (light, dark) in pairs {
        let light = hex(light);
        rules.push_str(&format!(
            "[fill=\"{light}\"] {{ fill: {dark}; }} [stroke=\"{light}\"] {{ stroke: {dark}; }}\n"
        ));
    }
    rules + "}\n"
}

pub(crate) fn hex(colour: plotters::style::RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
}

/// Text as it has to be written in a page.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::Statistic;
    use super::super::fixture::{latency, rate, report};

    #[test]
    fn the_page_has_a_picture_per_result() {
        let mut report = report();
        let names = ["echo64", "read64", "hit_read64"];
        report.results = names.map(|name| latency(name, &[(None, 2000)])).to_vec();
        report.throughput = vec![rate("stream64", &[(None, 1e6)])];
        report.add_ratio("read64/echo64", Statistic::P50, Some(1.2)).unwrap();
        let page = report.html().unwrap();
        for name in names {
            assert_eq!(page.matches(&format!("<h3>{name}</h3>\n<svg")).count(), 1, "{name}");
        }
        for words in ["a line read by the line port", "a line read that the port", "limit: a bare frame"] {
            assert!(page.contains(words), "{words}");
        }
        assert!(!page.contains("agent_read64"));
        // One per result, the percentiles, two of rates.
        assert_eq!(page.matches("<svg width").count(), names.len() + 3);
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(page.contains("<td class=\"good\">≤ 1.20 reached</td>"));
    }

    #[test]
    fn agent_and_port_side_by_side_are_explained() {
        let mut report = report();
        report.results = ["read64", "agent_read64"].map(|name| latency(name, &[(None, 2000)])).to_vec();
        assert!(report.html().unwrap().contains("The agent is another process"));
    }

    #[test]
    fn what_comes_from_outside_is_escaped() {
        let bad = "<script>alert('&\"')</script>";
        let mut report = report();
        report.machine.hypervisor = Some(bad.into());
        report.link.backend = bad.into();
        report.link.interfaces = vec![bad.into()];
        report.results = vec![latency(bad, &[(None, 10)])];
        report.throughput = vec![rate(bad, &[(None, 10.0)])];
        let page = report.html().unwrap();
        assert!(!page.contains("<script"));
        assert!(page.contains("Test &lt;CPU&gt; &amp; Co"));
        assert!(page.contains("<h3>&lt;script&gt;alert(&#39;&amp;&quot;&#39;)&lt;/script&gt;</h3>"));
    }

    #[test]
    fn the_page_stands_alone() {
        let page = report().html().unwrap();
        for reference in ["src=", "href=", "url(", "@import", "<script", "<link"] {
            assert!(!page.contains(reference), "{reference}");
        }
    }
}

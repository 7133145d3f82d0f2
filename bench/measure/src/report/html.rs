//! Reports as HTML: one page that needs no scripts, fonts or other files.
//!
//! maud escapes all text. [`PreEscaped`] markup is either written in this module, or a picture, in which
//! plotters has escaped the text.

use maud::{DOCTYPE, Markup, PreEscaped, Render, html};

use super::chart::{self, GRID, INK, SERIES};
use super::labels::{AGENT_AND_PORT, label};
use super::ratio::NEAR_MAX_NS;
use super::{Latency, Ratio, Report, ReportError, Throughput, units};

/// Replacement for [`INK`] on a dark screen; [`GRID`] and each of [`SERIES`] have one too.
const DARK_INK: &str = "#e6e9ec";
const DARK_GRID: &str = "#3a4149";
const DARK_SERIES: [&str; 14] = [
    "#4aa8e8", "#ff8a3c", "#2fc79b", "#e79ac6", "#e0b83a", "#8fd0f7", "#b48cf2", "#a9a9a9", "#ff6f9f",
    "#7ccf80", "#c29a8b", "#3fc6d4", "#8c9bff", "#d6d45a",
];

const STYLE: &str = "
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
    /// Formats the whole report as a page.
    ///
    /// # Errors
    /// Returns [`ReportError::Picture`] when a picture cannot be drawn.
    pub fn html(&self) -> Result<String, ReportError> {
        self.html_with(&html! {})
    }

    /// Formats the whole report as a page, with the section `first` before all others.
    ///
    /// # Errors
    /// Returns [`ReportError::Picture`] when a picture cannot be drawn.
    pub fn html_with(&self, first: &Markup) -> Result<String, ReportError> {
        let title = format!("CXLoE over {}", self.link.backend);
        let page = page(
            &title,
            "",
            &html! {
                h1 { "CXL over Ethernet: measurements" }
                p class="quiet" { (self.headline()) }
                @if let Some(hypervisor) = &self.machine.hypervisor {
                    p class="quiet" { "Virtual machine: " (hypervisor) }
                }
                (first)
                @if !self.goals.is_empty() { (self.goal_section()) }
                @if !self.ratios.is_empty() { (self.ratio_section()) }
                @if !self.costs.is_empty() { (self.cost_section()) }
                @if !self.conditions.is_empty() {
                    (self.pattern_sections()?)
                } @else {
                    @if !self.results.is_empty() { (self.time_section()?) }
                    @if !self.throughput.is_empty() { (self.rate_section()?) }
                }
            },
        );
        Ok(page)
    }

    fn ratio_section(&self) -> Markup {
        let row = |ratio: &Ratio| {
            let class = ratio.reached().map(|reached| if reached { "good" } else { "bad" });
            html! { tr {
                td { (ratio.name) }
                td { (ratio.statistic.name()) }
                td { (format!("{:.2}", ratio.value)) }
                td { (ratio.over_text()) }
                td class=[class] { (ratio.target_text()) }
                td { (ratio.trials_text()) }
            } }
        };
        let near = units::time(NEAR_MAX_NS);
        html! {
            h2 { "Against the limits" }
            p {
                "Each figure over a limit measured in turns with it, on the same link. Times should come close to 1 from \
                 above, rates from below. A ratio is the median over trials during which the cores were equally far \
                 apart, where that changed: " q { "8 near" } " are eight trials in which a cache line went from one core \
                 to the other and back fast, " q { "far" } " are those in which it took at least " (near) " and clearly \
                 longer than in the near ones."
            }
            (table(&["ratio", "of", "value", "over the limit", "target", "trials"], self.ratios.iter().map(row)))
        }
    }

    fn time_section(&self) -> Result<Markup, ReportError> {
        let row = |r: &Latency| {
            html! { tr {
                td { (r.name) }
                td { (units::count(r.count)) }
                @for time in [r.min, r.p50, r.p90, r.p99, r.p999, r.max] { td { (units::time(time)) } }
                td class="what" { (label(&r.name)) }
            } }
        };
        let header = ["measurement", "samples", "min", "p50", "p90", "p99", "p99.9", "max", "what it is"];
        let names: Vec<&str> = self.results.iter().map(|result| result.name.as_str()).collect();
        Ok(html! {
            h2 { "Times" }
            (table(&header, self.results.iter().map(row)))
            @if self.result("read64").is_some() && self.result("agent_read64").is_some() {
                p { (PreEscaped(AGENT_AND_PORT)) }
            }
            h2 { "By percentile" }
            p {
                "How long the slowest tenth, hundredth, thousandth takes at least: each step to the right leaves a tenth of \
                 the samples. Flat lines are steady. Along the bottom: the share of the samples that took no longer; \
                 along the side: the time."
            }
            figure class="wide" { (PreEscaped(chart::percentiles(&self.results)?)) (legend(&names)) }
            h2 { "Histograms" }
            p {
                "Along the side, the share of the samples; along the bottom, the time they took, logarithmically. Each \
                 picture ends a little behind its 99.9th percentile."
            }
            div class="cards" {
                @for (index, result) in self.results.iter().enumerate() {
                    @let [p50, p99, max] = [result.p50, result.p99, result.max].map(units::time);
                    @let [samples, beyond] = [result.count, chart::beyond(result)].map(units::count);
                    figure {
                        h3 { (result.name) }
                        (PreEscaped(chart::histogram(result, index)?))
                        p { (label(&result.name)) }
                        p class="quiet" {
                            "p50 " (p50) ", p99 " (p99) ", max " (max) "; " (samples) " samples, " (beyond)
                            " beyond the picture"
                        }
                    }
                }
            }
        })
    }

    fn rate_section(&self) -> Result<Markup, ReportError> {
        let operations: Vec<_> = self.throughput.iter().map(|t| (t.name.as_str(), t.ops_per_s)).collect();
        let payload: Vec<_> = self.throughput.iter().map(|t| (t.name.as_str(), t.bytes_per_s)).collect();
        let row = |rate: &Throughput| {
            html! { tr {
                td { (rate.name) }
                td { (units::operations(rate.ops_per_s)) }
                td { (units::bytes(rate.bytes_per_s)) }
                td class="what" { (label(&rate.name)) }
            } }
        };
        Ok(html! {
            h2 { "Rates" }
            div class="cards" {
                (figure("operations per second", chart::bars("operations", &operations, units::operations)?))
                (figure("payload per second", chart::bars("payload", &payload, units::bytes)?))
            }
            (table(&["measurement", "operations", "payload", "what it is"], self.throughput.iter().map(row)))
        })
    }
}

/// Returns a page with this content; the rules of `style` follow the common style sheet and may override it.
pub fn page(title: &str, style: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(style)) (PreEscaped(colours())) }
            }
            body { (body) }
        }
    };
    page.into_string()
}

/// Returns an SVG picture with a title above.
pub fn figure(title: &str, picture: String) -> Markup {
    html! { figure { h3 { (title) } (PreEscaped(picture)) } }
}

/// Returns a table with these headings; each of `rows` is a whole `<tr>` element.
pub fn table(header: &[&str], rows: impl Iterator<Item = Markup>) -> Markup {
    html! {
        div class="scroll" { table {
            thead { tr { @for cell in header { th { (cell) } } } }
            tbody { @for row in rows { (row) } }
        } }
    }
}

pub fn row(cells: impl IntoIterator<Item = impl Render>) -> Markup {
    html! { tr { @for cell in cells { td { (cell) } } } }
}

/// Returns a legend of these results; the first has the first colour of [`chart::series`], and so on.
pub fn legend(names: &[&str]) -> Markup {
    html! { ul class="legend" {
        @for (index, name) in names.iter().enumerate() { (entry(index, name)) }
    } }
}

/// Returns an entry of a legend: the colour of series `index` and the result's name.
pub fn entry(index: usize, name: &str) -> Markup {
    html! { li {
        svg viewBox="0 0 8 8" { rect width="8" height="8" fill=(hex(chart::series(index))) {} }
        (name)
    } }
}

/// Returns CSS rules that replace the colours of pictures by others on a dark screen.
fn colours() -> String {
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

fn hex(colour: plotters::style::RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
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
            assert_eq!(page.matches(&format!("<h3>{name}</h3><svg")).count(), 1, "{name}");
        }
        for words in ["a line read by the line port", "a line read that the port", "limit: a bare frame"] {
            assert!(page.contains(words), "{words}");
        }
        assert!(!page.contains("agent_read64"));
        // The page has a histogram for each result, the percentiles, and two pictures of rates.
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
        assert!(page.contains("<h3>&lt;script&gt;alert('&amp;&quot;')&lt;/script&gt;</h3>"));
    }

    #[test]
    fn the_page_stands_alone() {
        let page = report().html().unwrap();
        for reference in ["src=", "href=", "url(", "@import", "<script", "<link"] {
            assert!(!page.contains(reference), "{reference}");
        }
    }
}

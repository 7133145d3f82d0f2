//! Sections of the HTML page about access patterns, each with a description, pictures and a table.

use maud::{Markup, PreEscaped, html};

use super::html::{figure, legend, row, table};
use super::{Conditions, Latency, Report, ReportError, Throughput, chart, curves, units};

/// Returns heading and description, in HTML, of the section about a pattern.
fn about(pattern: &str) -> (&'static str, &'static str) {
    match pattern {
        "load-latency" => (
            "Latency against load",
            "Random accesses are wanted at a fixed rate, whatever becomes of those before, and each is timed from the \
             moment it was wanted: waiting behind others counts. To the right more is done; where a curve turns \
             upwards the system is saturated. <code>load_closed</code> is the most a closed loop reaches, in which \
             the next access is wanted when one is done.",
        ),
        "chase" => (
            "Pointer chase",
            "Every line holds the number of the next, along one cycle over all lines in an order nobody foresees, so \
             each read has to wait for the one before: the latency of a dependent load. Left in the picture is what was \
             resident, to the right what had to be fetched.",
        ),
        "gups" => (
            "Random updates (GUPS)",
            "Words of a table are xored with a pseudo-random sequence, each at a place that the sequence says \
             (RandomAccess of the HPC Challenge). Afterwards the same updates undo themselves, and every word has to \
             be what it was at first. An update counts 16 bytes.",
        ),
        "stream" => (
            "STREAM",
            "Four kernels over three arrays of floating-point numbers: copy c = a, scale b = 3c, add c = a + b, \
             triad a = b + 3c. The bars are medians over the iterations; the best rate in STREAM's sense belongs to \
             the shortest time, min. Times are those of one iteration over the whole arrays.",
        ),
        "mix" => (
            "Reads and writes",
            "Sequential and random lines, read and written in the proportions that Intel's Memory Latency Checker \
             uses, as many under way as there may be. Over the port a write sends its line and reads nothing before; of \
             mapped memory it is a store, which may have to wait for its page.",
        ),
        "hot-cold" => (
            "Hot and cold pages",
            "Some pages, spread over the working set, get most of the accesses, one at a time. Where the hot pages fit \
             into what is resident, the mean time drops.",
        ),
        _ => ("Other measurements", ""),
    }
}

/// Latency and rate of a measurement, with its conditions.
struct Measured<'r> {
    conditions: &'r Conditions,
    times: Option<&'r Latency>,
    rate: Option<&'r Throughput>,
}

impl Measured<'_> {
    /// Returns the way of access and the resident share, for headings.
    fn memory(&self) -> String {
        format!("over {}, {} resident", self.conditions.over, percent(self.conditions.resident))
    }

    /// Returns the label that distinguishes this measurement from others of the same pattern over the same
    /// memory.
    fn label(&self) -> String {
        let c = self.conditions;
        let parts = [&c.kernel, &c.order, &c.mix].map(|part| part.as_deref());
        let label = parts.into_iter().flatten().collect::<Vec<_>>().join(" ");
        if label.is_empty() { format!("{} {}", c.over, percent(c.resident)) } else { label }
    }

    fn cells(&self) -> [String; HEADER.len()] {
        let c = self.conditions;
        let time = |of: fn(&Latency) -> f64| self.times.map_or_else(String::new, |t| units::time(of(t)));
        let rate = |of: fn(&Throughput) -> String| self.rate.map_or_else(String::new, of);
        [
            c.name.clone(),
            c.offered_per_s.map_or_else(String::new, units::operations),
            rate(|r| units::operations(r.ops_per_s)),
            rate(|r| units::bytes(r.bytes_per_s)),
            time(|t| t.min),
            time(|t| t.mean),
            time(|t| t.p50),
            time(|t| t.p99),
            time(|t| t.p999),
            time(|t| t.max),
            units::count(c.checked),
            units::count(c.wrong),
        ]
    }
}

fn percent(share: f64) -> String {
    units::brief(&format!("{:.2} %", 100.0 * share))
}

const HEADER: [&str; 12] = [
    "measurement",
    "offered",
    "done",
    "payload",
    "min",
    "mean",
    "p50",
    "p99",
    "p99.9",
    "max",
    "compared",
    "wrong",
];

impl Report {
    /// Returns HTML with a line on the number of checks, and with a section for each pattern.
    pub(super) fn pattern_sections(&self) -> Result<Markup, ReportError> {
        let checked = units::count(self.conditions.iter().map(|c| c.checked).sum());
        let wrong: u64 = self.conditions.iter().map(|c| c.wrong).sum();
        let mut patterns: Vec<&str> = self.conditions.iter().map(|c| c.pattern.as_str()).collect();
        patterns.dedup();
        Ok(html! {
            @if wrong == 0 {
                p class="good" { (checked) " values compared with what had been written, none wrong." }
            } @else {
                p class="bad" {
                    (units::count(wrong)) " of " (checked) " values compared with what had been written are wrong."
                }
            }
            nav { @for pattern in &patterns { a href={ "#" (pattern) } { (about(pattern).0) } " " } }
            @for pattern in patterns { (self.pattern_section(pattern)?) }
        })
    }

    fn pattern_section(&self, pattern: &str) -> Result<Markup, ReportError> {
        let of_pattern = self.conditions.iter().filter(|c| c.pattern == pattern);
        let measured: Vec<Measured<'_>> = of_pattern
            .map(|conditions| Measured {
                conditions,
                times: self.result(&conditions.name),
                rate: self.rate(&conditions.name),
            })
            .collect();
        let (title, words) = about(pattern);
        Ok(html! {
            section id=(pattern) {
                h2 { (title) }
                p { (PreEscaped(words)) }
                div class="cards" {
                    @for plot in self.plots.iter().filter(|plot| plot.pattern == pattern) {
                        @let names: Vec<&str> = plot.curves.iter().map(|curve| curve.name.as_str()).collect();
                        figure { h3 { (plot.title) } (PreEscaped(curves::curves(plot)?)) (legend(&names)) }
                    }
                    @for (title, picture) in pictures(pattern, &measured)? { (figure(&title, picture)) }
                }
                details open { summary { "All figures" } (figures(&measured)) }
            }
        })
    }
}

/// Draws the pictures of a pattern other than its plots, each with its title.
fn pictures(pattern: &str, measured: &[Measured<'_>]) -> Result<Vec<(String, String)>, ReportError> {
    let mut pictures = Vec::new();
    match pattern {
        "chase" => {
            let timed = measured.iter().filter_map(|m| Some((m, m.times?)));
            for (index, (chase, times)) in timed.enumerate() {
                pictures.push((chase.memory(), chart::histogram(times, index)?));
            }
        }
        "gups" => pictures.push(("updates per second".to_owned(), bars(measured, false)?)),
        "stream" | "mix" => {
            // The final pass that checks all lines is omitted from the pictures: it belongs to no kernel and no mix,
            // and its rate is of no interest.
            let shown =
                measured.iter().filter(|m| m.conditions.kernel.is_some() || m.conditions.mix.is_some());
            let mut shown: Vec<&Measured<'_>> = shown.collect();
            while let Some(memory) = shown.first().map(|m| m.memory()) {
                let same;
                (same, shown) = shown.into_iter().partition(|m| m.memory() == memory);
                pictures.push((format!("payload {memory}"), bars(same, true)?));
            }
        }
        _ => {}
    }
    Ok(pictures)
}

/// Returns the table of all figures; columns without a figure are omitted.
fn figures(measured: &[Measured<'_>]) -> Markup {
    let rows: Vec<_> = measured.iter().map(Measured::cells).collect();
    let columns: Vec<usize> =
        (0..HEADER.len()).filter(|column| rows.iter().any(|row| !row[*column].is_empty())).collect();
    let header: Vec<&str> = columns.iter().map(|column| HEADER[*column]).collect();
    table(&header, rows.iter().map(|cells| row(columns.iter().map(|column| &cells[*column]))))
}

fn bars<'m>(
    measured: impl IntoIterator<Item = &'m Measured<'m>>,
    payload: bool,
) -> Result<String, ReportError> {
    let rows: Vec<(String, f64)> = measured
        .into_iter()
        .filter_map(|m| {
            let rate = m.rate?;
            Some((m.label(), if payload { rate.bytes_per_s } else { rate.ops_per_s }))
        })
        .collect();
    let rows: Vec<(&str, f64)> = rows.iter().map(|(label, value)| (label.as_str(), *value)).collect();
    chart::bars("rates", &rows, if payload { units::bytes } else { units::operations })
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{latency, rate, report};
    use super::super::plot::{AxisUnit, Curve, Plot, Scale};
    use super::*;

    fn conditions(name: &str, pattern: &str) -> Conditions {
        Conditions {
            name: name.into(),
            pattern: pattern.into(),
            over: "port".into(),
            checked: 100,
            ..Conditions::default()
        }
    }

    fn full() -> Report {
        let mut report = report();
        report.results =
            vec![latency("chase_port_r0", &[(None, 500)]), latency("load_1_port_r0", &[(None, 9)])];
        report.throughput = ["stream_copy_port_r0", "gups_port_r0", "load_1_port_r0", "mix_check_port_r0"]
            .map(|name| rate(name, &[(None, 1e6)]))
            .to_vec();
        let mut stream = conditions("stream_copy_port_r0", "stream");
        stream.kernel = Some("copy".into());
        report.conditions = vec![
            conditions("load_1_port_r0", "load-latency"),
            conditions("chase_port_r0", "chase"),
            conditions("gups_port_r0", "gups"),
            stream,
            conditions("mix_check_port_r0", "mix"),
        ];
        let scale = |unit| Scale { label: "axis".into(), unit, logarithmic: false };
        report.plots = vec![Plot {
            pattern: "load-latency".into(),
            title: "over <port>".into(),
            x: scale(AxisUnit::OpsPerS),
            y: scale(AxisUnit::Ns),
            curves: vec![Curve { name: "p50".into(), points: vec![(1.0, 2.0)] }],
        }];
        report
    }

    #[test]
    fn each_pattern_has_its_section_its_picture_and_its_rows() {
        let page = full().html().unwrap();
        for pattern in ["load-latency", "chase", "gups", "stream", "mix"] {
            assert_eq!(page.matches(&format!("<section id=\"{pattern}\">")).count(), 1, "{pattern}");
        }
        // The page has a curve, a histogram, and two pictures of bars; the pass that checks all lines has no
        // picture.
        assert_eq!(page.matches("<svg width").count(), 4, "{page}");
        assert!(page.contains("<h3>over &lt;port&gt;</h3>"));
        assert!(page.contains("<td>gups_port_r0</td>"));
        assert!(!page.contains("<th>offered</th>"), "a column of nothing");
        assert!(page.contains("class=\"good\">500 values compared"), "{page}");
    }

    #[test]
    fn wrong_data_is_said_first() {
        let mut report = full();
        report.conditions[2].wrong = 3;
        assert!(report.html().unwrap().contains("class=\"bad\">3 of 500 values"));
    }
}

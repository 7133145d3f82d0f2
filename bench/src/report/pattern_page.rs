//! The part of the page about access patterns: a section each, with what the pattern is, its pictures, and a table.

use super::html::{escape, legend, table};
use super::{Conditions, Latency, Report, ReportError, Throughput, chart, curves, units};

/// Heading of a pattern's section, and what there is to know about it.
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

/// A measurement with its conditions.
struct Measured<'r> {
    conditions: &'r Conditions,
    times: Option<&'r Latency>,
    rate: Option<&'r Throughput>,
}

impl Measured<'_> {
    /// Which of the memories it was about.
    fn memory(&self) -> String {
        format!("over {}, {} resident", self.conditions.over, percent(self.conditions.resident))
    }

    /// What tells it from others of its pattern and memory.
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
            escape(&c.name),
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
    /// A section for each pattern, after a line about what was checked.
    pub(super) fn pattern_sections(&self) -> Result<String, ReportError> {
        let checked: u64 = self.conditions.iter().map(|c| c.checked).sum();
        let wrong: u64 = self.conditions.iter().map(|c| c.wrong).sum();
        let verdict = match wrong {
            0 => format!(
                "<p class=\"good\">{} values compared with what had been written, none wrong.</p>\n",
                units::count(checked)
            ),
            _ => format!(
                "<p class=\"bad\">{} of {} values compared with what had been written are wrong.</p>\n",
                units::count(wrong),
                units::count(checked)
            ),
        };
        let mut patterns: Vec<&str> = self.conditions.iter().map(|c| c.pattern.as_str()).collect();
        patterns.dedup();
        let links = patterns.iter().map(|p| format!("<a href=\"#{0}\">{1}</a>", escape(p), about(p).0));
        let mut part = format!("{verdict}<nav>{}</nav>\n", links.collect::<Vec<_>>().join(" "));
        for pattern in patterns {
            part.push_str(&self.pattern_section(pattern)?);
        }
        Ok(part)
    }

    fn pattern_section(&self, pattern: &str) -> Result<String, ReportError> {
        let of_pattern = self.conditions.iter().filter(|c| c.pattern == pattern);
        let measured: Vec<Measured<'_>> = of_pattern
            .map(|conditions| Measured {
                conditions,
                times: self.result(&conditions.name),
                rate: self.rate(&conditions.name),
            })
            .collect();
        let (title, words) = about(pattern);
        let mut part = format!("<section id=\"{}\">\n<h2>{title}</h2>\n<p>{words}</p>\n", escape(pattern));
        part.push_str("<div class=\"cards\">\n");
        for plot in self.plots.iter().filter(|plot| plot.pattern == pattern) {
            let names: Vec<&str> = plot.curves.iter().map(|curve| curve.name.as_str()).collect();
            part.push_str(&figure(&plot.title, &(curves::curves(plot)? + &legend(&names))));
        }
        match pattern {
            "chase" => {
                let timed = measured.iter().filter_map(|m| Some((m, m.times?)));
                for (index, (chase, times)) in timed.enumerate() {
                    part.push_str(&figure(&chase.memory(), &chart::histogram(times, index)?));
                }
            }
            "gups" => part.push_str(&figure("updates per second", &bars(&measured, false)?)),
            "stream" | "mix" => {
                // Only what has a kernel or a mix: not the pass that checks everything.
                let shown =
                    measured.iter().filter(|m| m.conditions.kernel.is_some() || m.conditions.mix.is_some());
                let mut shown: Vec<&Measured<'_>> = shown.collect();
                while let Some(memory) = shown.first().map(|m| m.memory()) {
                    let same;
                    (same, shown) = shown.into_iter().partition(|m| m.memory() == memory);
                    part.push_str(&figure(&format!("payload {memory}"), &bars(same, true)?));
                }
            }
            _ => {}
        }
        part.push_str("</div>\n<details open>\n<summary>All figures</summary>\n");
        part.push_str(&figures(&measured));
        part.push_str("</details>\n</section>\n");
        Ok(part)
    }
}

/// The table of all figures, without columns that have none.
fn figures(measured: &[Measured<'_>]) -> String {
    let rows: Vec<_> = measured.iter().map(Measured::cells).collect();
    let columns: Vec<usize> =
        (0..HEADER.len()).filter(|column| rows.iter().any(|row| !row[*column].is_empty())).collect();
    let header: Vec<&str> = columns.iter().map(|column| HEADER[*column]).collect();
    let row = |row: &[String; HEADER.len()]| {
        let cells: String = columns.iter().map(|column| format!("<td>{}</td>", row[*column])).collect();
        format!("<tr>{cells}</tr>\n")
    };
    table(&header, rows.iter().map(row))
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

fn figure(title: &str, content: &str) -> String {
    format!("<figure>\n<h3>{}</h3>\n{content}</figure>\n", escape(title))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{latency, rate, report};
    use super::super::plot::{Curve, Plot, Scale, Unit};
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
            x: scale(Unit::OpsPerS),
            y: scale(Unit::Ns),
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
        // Curve, histogram, two of bars: what only checks has none.
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

//! Documentation of metrics, generated from their tables.

use std::fmt::Write;

use super::{Definition, MetricKind};

/// Markdown table of `metrics`: name, type, labels, meaning.
pub fn document<'a>(metrics: impl IntoIterator<Item = &'a Definition>) -> String {
    let mut text = String::from("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
    for Definition { name, kind, labels, help } in metrics {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        // Writing into a string does not fail.
        let _ =
            writeln!(text, "| `{name}` | {kind} | {} | {} |", labels.join(", "), help.replace('|', "\\|"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_a_row() {
        let cups = Definition {
            name: "tea_cups",
            kind: MetricKind::Gauge,
            labels: &["colour", "size"],
            help: "a|b.",
        };
        let rows = document([&cups]);
        assert_eq!(rows.lines().last(), Some("| `tea_cups` | gauge | `colour`, `size` | a\\|b. |"));
    }
}

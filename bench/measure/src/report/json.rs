//! Reports as JSON files, with one line for each result, so that line-based tools can compare two files.

use std::fmt::Write;

use serde_json::Value;

use super::Report;

/// Maximum length in bytes of a JSON value that stays on one line.
const LINE: usize = 240;

impl Report {
    pub fn to_json(&self) -> String {
        json_text(self)
    }
}

/// Formats a report, or a structure that contains one, as JSON with a line for each result.
pub fn json_text(of: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(of).expect("a report has string keys and plain values only");
    let mut text = String::new();
    lay_out(&value, 0, &mut text);
    text.push('\n');
    text
}

/// Appends `value` to `text`. A long object or array of objects takes a line for each part; an array of
/// numbers is never broken.
fn lay_out(value: &Value, indent: usize, text: &mut String) {
    let brief = value.to_string();
    let has_objects = |items: &[Value]| items.iter().any(Value::is_object);
    let parts: Vec<(String, &Value)> = match value {
        Value::Object(fields) if brief.len() > LINE => {
            fields.iter().map(|(name, v)| (format!("{}: ", Value::from(name.as_str())), v)).collect()
        }
        Value::Array(items) if brief.len() > LINE && has_objects(items) => {
            items.iter().map(|item| (String::new(), item)).collect()
        }
        _ => return text.push_str(&brief),
    };
    let (open, close) = if value.is_object() { ('{', '}') } else { ('[', ']') };
    text.push(open);
    for (index, (label, part)) in parts.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let _ = write!(text, "{comma}\n{:1$}{label}", "", indent + 1);
        lay_out(part, indent + 1, text);
    }
    let _ = write!(text, "\n{:1$}{close}", "", indent);
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{latency, rate, report};
    use super::super::{Report, Statistic};
    use super::*;

    fn full() -> Report {
        let mut report = report();
        report.results =
            vec![latency("read64", &[(Some(125.0), 1500)]), latency("echo64", &[(Some(125.0), 1200)])];
        report.throughput = vec![rate("burst_read", &[(None, 8e5), (None, 9e5)])];
        report.add_ratio("read64/echo64", Statistic::P50, None).unwrap();
        report
    }

    #[test]
    fn the_layout_is_the_same_json() {
        let report = full();
        let laid_out: Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(laid_out, serde_json::to_value(&report).unwrap());
        assert_eq!(serde_json::from_value::<Report>(laid_out).unwrap(), report);
        assert!(report.to_json().lines().count() > 10, "it is broken into lines");
    }

    #[test]
    fn field_names_are_those_of_the_schema() {
        let mut report = full();
        report.results.iter_mut().for_each(|r| (r.trials, r.distribution) = (vec![], vec![]));
        report.throughput.iter_mut().for_each(|t| t.trials = vec![]);
        report.ratios.iter_mut().for_each(|r| (r.trials, r.over) = (None, None));
        let read = r#"{"name":"read64","unit":"ns","count":10,"min":1500.0,"mean":1500.0,"p50":1500.0,"p90":1500.0,
            "p99":1500.0,"p999":1500.0,"max":1500.0}"#;
        let echo = r#"{"name":"echo64","unit":"ns","count":10,"min":1200.0,"mean":1200.0,"p50":1200.0,"p90":1200.0,
            "p99":1200.0,"p999":1200.0,"max":1200.0}"#;
        let expected = format!(
            r#"{{"schema":1,
            "machine":{{"cpu":"Test <CPU> & Co","cores":2,"kernel":"6.1.0","bounce_ns":125.5}},
            "link":{{"backend":"xdp","interfaces":["cn0","mn0"],"mtu":1500,"wait":"busy"}},
            "results":[{read},{echo}],
            "throughput":[{{"name":"burst_read","ops_per_s":850000.0,"bytes_per_s":54400000.0}}],
            "ratios":[{{"name":"read64/echo64","statistic":"p50","value":{}}}]}}"#,
            1.25
        );
        let expected: Value = serde_json::from_str(&expected).unwrap();
        assert_eq!(serde_json::to_value(&report).unwrap(), expected);
        let other = [Statistic::P99, Statistic::OpsPerS, Statistic::BytesPerS];
        let names = other.map(|s| (serde_json::to_value(s).unwrap(), s.name()));
        assert!(names.iter().all(|(json, name)| json == name), "{names:?}");
    }
}

//! Two archives side by side: the ratio of each figure, and the conditions in which the two runs differ.
//!
//! Figures of two machines differ by the machine first. So each figure also has its ratio to the baseline of its own
//! run, which says more about the programs.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;

use super::record::{FORM, RunRecord};
use super::{Archive, ArchiveError};
use crate::pattern::Pattern;
use cxloe_measure::report::table::new_table;
use cxloe_measure::report::units;

/// Comparison of an older run with a newer one.
#[derive(Debug, Clone, PartialEq)]
pub struct ArchivesBeside {
    /// Figures that both runs have, in the order of the newer one.
    pub figures: Vec<FigureBeside>,
    /// Systems that only one of the runs has measured: name, and true if it is the newer one.
    pub alone: Vec<(String, bool)>,
    /// Conditions that differ: name, value of the older and of the newer run.
    pub differences: Vec<(String, Option<String>, Option<String>)>,
}

/// Figure of two runs.
#[derive(Debug, Clone, PartialEq)]
pub struct FigureBeside {
    pub peer: String,
    pub pattern: String,
    /// Values as text.
    pub old: String,
    pub new: String,
    /// New value by old: below 1 is faster for a time, above 1 for a rate.
    pub ratio: f64,
    /// Ratios to the baselines of their own runs.
    pub to_baseline: (Option<f64>, Option<f64>),
}

/// Figure as an archive's JSON has it.
#[derive(Debug, Clone, Deserialize)]
struct ReadFigure {
    peer: String,
    pattern: String,
    p50_ns: Option<f64>,
    mean_ns: Option<f64>,
    ops_per_s: Option<f64>,
    bytes_per_s: Option<f64>,
    ratio: Option<f64>,
}

/// Archive whose figures and conditions have been parsed.
#[derive(Debug)]
pub struct ReadRun {
    /// Table in Markdown.
    pub table: String,
    pub record: RunRecord,
    figures: Vec<ReadFigure>,
}

impl ReadRun {
    /// Parses an archive; `path` is its place for messages.
    ///
    /// # Errors
    /// Returns [`ArchiveError::Foreign`] if a file is missing or has another form.
    pub fn of(archive: &Archive, path: &Path) -> Result<ReadRun, ArchiveError> {
        let foreign = |why: String| ArchiveError::Foreign { path: path.into(), why };
        let text = |name: &str| archive.text(name).ok_or_else(|| foreign(format!("it has no {name}")));
        let unread =
            |name: &str, error: serde_json::Error| foreign(format!("its {name} cannot be read: {error}"));
        let record: serde_json::Value =
            serde_json::from_str(text("run.json")?).map_err(|error| unread("run.json", error))?;
        // The form is checked first: another one may lack fields.
        if record["form"] != FORM {
            let why = format!("its form is {}, and this program reads form {FORM}", record["form"]);
            return Err(foreign(why));
        }
        let record = serde_json::from_value(record).map_err(|error| unread("run.json", error))?;
        let report: serde_json::Value =
            serde_json::from_str(text("report.json")?).map_err(|error| unread("report.json", error))?;
        let figures = serde_json::from_value(report["comparison"]["figures"].clone())
            .map_err(|error| unread("report.json", error))?;
        Ok(ReadRun { table: text("table.md")?.to_owned(), record, figures })
    }

    fn systems(&self) -> BTreeSet<&str> {
        self.figures.iter().map(|figure| figure.peer.as_str()).collect()
    }
}

impl ArchivesBeside {
    pub fn of(old: &ReadRun, new: &ReadRun) -> ArchivesBeside {
        let pair = |new: &ReadFigure| {
            let is_same = |old: &&ReadFigure| old.peer == new.peer && old.pattern == new.pattern;
            beside(old.figures.iter().find(is_same)?, new)
        };
        let (before, after) = (old.systems(), new.systems());
        let gone = before.difference(&after).map(|name| ((*name).to_owned(), false));
        let added = after.difference(&before).map(|name| ((*name).to_owned(), true));
        let (was, is) = (old.record.conditions(), new.record.conditions());
        let names: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
        let differs = |name: &&String| was.get(*name) != is.get(*name);
        let differences = names.into_iter().filter(differs);
        ArchivesBeside {
            figures: new.figures.iter().filter_map(pair).collect(),
            alone: gone.chain(added).collect(),
            differences: differences
                .map(|name| (name.clone(), was.get(name).cloned(), is.get(name).cloned()))
                .collect(),
        }
    }

    /// Tables for a terminal.
    pub fn text(&self) -> String {
        let mut table = new_table(["system", "access", "old", "new", "new / old", "to the baseline"]);
        for one in &self.figures {
            let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
            let (old, new) = (ratio(one.to_baseline.0), ratio(one.to_baseline.1));
            let to_baseline = format!("{old} -> {new}");
            let shown =
                [&one.peer, &one.pattern, &one.old, &one.new, &format!("{:.3}", one.ratio), &to_baseline];
            table.add_row(shown);
        }
        let mut text = format!("{table}\nnew / old: below 1 is faster for times, above 1 for rates\n");
        for (name, is_new) in &self.alone {
            text.push_str(&format!("only in the {} run: {name}\n", if *is_new { "new" } else { "old" }));
        }
        if self.differences.is_empty() {
            return text + "\nThe conditions of both runs are the same.\n";
        }
        text.push_str("\nWhat differs between the runs:\n");
        for (name, old, new) in &self.differences {
            let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
            text.push_str(&format!("  {name}\n    old: {}\n    new: {}\n", shown(old), shown(new)));
        }
        text
    }
}

/// Two figures by that value which both have: the median, else the mean, else the rate. `None` if they share none, or
/// nothing can be divided by the old one.
fn beside(old: &ReadFigure, new: &ReadFigure) -> Option<FigureBeside> {
    let both = |value: fn(&ReadFigure) -> Option<f64>| value(old).zip(value(new));
    let times = both(|figure| figure.p50_ns).or(both(|figure| figure.mean_ns));
    let (operations, bytes) = (both(|figure| figure.ops_per_s), both(|figure| figure.bytes_per_s));
    let pattern = Pattern::ALL.into_iter().find(|pattern| pattern.name() == new.pattern);
    let counts_operations = pattern.is_some_and(Pattern::counts_operations);
    // A load has times and a rate too, which is a share of its own system's.
    let values = times.or(if counts_operations { operations } else { bytes })?;
    let show: fn(f64) -> String = match times {
        Some(_) => units::time,
        None if counts_operations => units::operations,
        None => units::bytes,
    };
    (values.0 > 0.0).then(|| FigureBeside {
        peer: new.peer.clone(),
        pattern: new.pattern.clone(),
        old: show(values.0),
        new: show(values.1),
        ratio: values.1 / values.0,
        to_baseline: (old.ratio, new.ratio),
    })
}

#[cfg(test)]
mod tests {
    use super::super::contents::tests::archive;
    use super::*;

    fn read(archive: &Archive) -> ReadRun {
        ReadRun::of(archive, Path::new("x.tar.gz")).unwrap()
    }

    fn changed(name: &str, from: &str, to: &str) -> Archive {
        let mut archive = archive();
        let text = archive.text(name).unwrap();
        assert!(text.contains(from), "{from} in {text}");
        let text = text.replace(from, to);
        archive.add(name, text);
        archive
    }

    #[test]
    fn a_run_beside_itself_is_the_same() {
        let beside = ArchivesBeside::of(&read(&archive()), &read(&archive()));
        assert_eq!(beside.figures.len(), 2);
        assert!(beside.figures.iter().all(|figure| (figure.ratio - 1.0).abs() < 1e-9), "{beside:?}");
        assert!(beside.alone.is_empty() && beside.differences.is_empty(), "{beside:?}");
        assert!(beside.text().contains("the same"), "{}", beside.text());
    }

    #[test]
    fn figures_are_divided_and_differences_named() {
        let mut new = read(&changed("run.json", "6.1.0", "6.6.1"));
        new.figures[0].p50_ns = Some(800.0);
        new.figures[0].ratio = Some(0.8);
        let beside = ArchivesBeside::of(&read(&archive()), &new);
        let figure = &beside.figures[0];
        assert_eq!((figure.old.as_str(), figure.new.as_str()), ("1.00 µs", "800 ns"));
        assert!((figure.ratio - 0.8).abs() < 1e-9 && figure.to_baseline == (Some(1.0), Some(0.8)));
        let (old, new) = (Some("6.1.0".to_owned()), Some("6.6.1".to_owned()));
        assert_eq!(beside.differences, [("kernel".to_owned(), old, new)]);
        let text = beside.text();
        assert!(
            text.contains("0.800") && text.contains("1.00 -> 0.80") && text.contains("new: 6.6.1"),
            "{text}"
        );
    }

    #[test]
    fn a_system_of_one_run_is_named() {
        let mut old = read(&archive());
        old.figures[1].peer = "pigeon".into();
        let beside = ArchivesBeside::of(&old, &read(&archive()));
        assert_eq!(beside.alone, [("pigeon".to_owned(), false), ("mean-only".to_owned(), true)]);
        assert!(beside.text().contains("only in the old run: pigeon"), "{}", beside.text());
    }

    #[test]
    fn rates_are_compared_with_rates() {
        let rate = |ops_per_s, bytes_per_s, pattern: &str| ReadFigure {
            peer: "x".into(),
            pattern: pattern.into(),
            p50_ns: None,
            mean_ns: None,
            ops_per_s: Some(ops_per_s),
            bytes_per_s: Some(bytes_per_s),
            ratio: None,
        };
        let stream = beside(&rate(1e6, 64e6, "stream64"), &rate(2e6, 128e6, "stream64")).unwrap();
        assert_eq!((stream.old.as_str(), stream.ratio), ("1.00 M/s", 2.0));
        let bulk = beside(&rate(1.0, 1024.0, "bulk_read"), &rate(1.0, 512.0, "bulk_read")).unwrap();
        assert_eq!((bulk.new.as_str(), bulk.ratio), ("512 B/s", 0.5));
        assert_eq!(beside(&rate(0.0, 0.0, "bulk_read"), &rate(1.0, 1.0, "bulk_read")), None);
    }

    #[test]
    fn loads_are_compared_by_their_times() {
        let load = |p50_ns, ops_per_s| ReadFigure {
            peer: "x".into(),
            pattern: "load75".into(),
            p50_ns: Some(p50_ns),
            mean_ns: None,
            ops_per_s: Some(ops_per_s),
            bytes_per_s: None,
            ratio: None,
        };
        let found = beside(&load(2_000.0, 1e5), &load(1_000.0, 3e5)).unwrap();
        assert_eq!((found.old.as_str(), found.new.as_str(), found.ratio), ("2.00 µs", "1.00 µs", 0.5));
    }

    #[test]
    fn another_form_is_refused() {
        let newer = changed("run.json", "\"form\": 1", "\"form\": 2");
        let error = ReadRun::of(&newer, Path::new("x.tar.gz")).unwrap_err().to_string();
        assert!(error.contains("form is 2") && error.contains("x.tar.gz"), "{error}");
        let error = ReadRun::of(&Archive::default(), Path::new("x")).unwrap_err().to_string();
        assert!(error.contains("no run.json"), "{error}");
    }
}

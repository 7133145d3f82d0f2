//! Results of the run of all patterns: complete, consistent, and equal in every format.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use cxloe_measure::report::{AxisUnit, Conditions};
use cxloe_system::Failed;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use serde_json::Value;

use super::run::{Everything, ITERATIONS, WORKING_SET, everything, ways};
use cxloe_system::{Outcome, ensure};

const LINES: u64 = WORKING_SET / 64;

/// Names of results that the run must have, except those of load-latency, whose rates the run determines.
fn expected() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for way in ways() {
        let (usual, sweep): (&str, &[&str]) = match *way {
            "port" => ("0", &["10", "25", "50"]),
            "local" => ("100", &["100"]),
            _ => ("50", &["10", "25", "50"]),
        };
        let mut add = |what: &str, resident: &str| names.insert(format!("{what}_{way}_r{resident}"));
        for what in ["load_closed", "chase", "gups", "mix_check"] {
            add(what, usual);
        }
        for kernel in ["copy", "scale", "add", "triad"] {
            add(&format!("stream_{kernel}"), usual);
        }
        for order in ["sequential", "random"] {
            for mix in ["reads", "2to1", "writes"] {
                add(&format!("mix_{order}_{mix}"), usual);
            }
        }
        for resident in sweep {
            add("hotcold_h5", resident);
            add("hotcold_h25", resident);
            add("hotcold_check", resident);
        }
    }
    names
}

pub fn all_are_there() -> Outcome {
    let run = everything()?;
    let all = &run.report.conditions;
    let found: BTreeSet<String> =
        all.iter().filter(|c| c.offered_per_s.is_none()).map(|c| c.name.clone()).collect();
    let expected = expected();
    ensure(
        found == expected,
        format!("missing or too many: {:?}", found.symmetric_difference(&expected).collect::<Vec<_>>()),
    )?;
    let names: BTreeSet<&str> = all.iter().map(|c| c.name.as_str()).collect();
    ensure(names.len() == all.len(), "a name stands twice")?;
    for way in ways() {
        let steps = all.iter().filter(|c| c.over == *way && c.offered_per_s.is_some()).count();
        ensure(steps == 3, format!("{steps} rates offered over {way}"))?;
    }
    for conditions in all {
        agrees(run, conditions).map_err(|why| {
            Failed::from(format!(
                "{}: {} in {conditions:?}",
                conditions.name,
                why.message().unwrap_or_default()
            ))
        })?;
    }
    ensure(run.output_text.contains("every one right"), format!("it said: {}", run.output_text))
}

/// Checks that the counts of one measurement agree with each other, and that its data was correct.
fn agrees(run: &Everything, c: &Conditions) -> Outcome {
    let (times, rate) = (run.report.result(&c.name), run.report.rate(&c.name));
    let rate = rate.ok_or("no rate")?;
    ensure(c.wrong == 0, "wrong data")?;
    ensure(c.operations > 0 && rate.ops_per_s > 0.0, "nothing was done")?;
    let bytes = match (c.pattern.as_str(), c.kernel.as_deref()) {
        ("gups", _) | ("stream", Some("copy" | "scale")) => 16.0,
        ("stream", _) => 24.0,
        _ => 64.0,
    };
    let found = rate.bytes_per_s / rate.ops_per_s;
    ensure((found - bytes).abs() < 1e-6 * bytes, format!("{found} bytes each"))?;
    ensure(c.resident_bytes <= WORKING_SET, "more resident than there is")?;
    if matches!(c.over.as_str(), "mapped" | "inline") {
        let pages = (c.resident * WORKING_SET as f64 / 4096.0).floor() as u64;
        ensure(c.resident_bytes == pages * 4096, "another share is resident")?;
    }
    if let Some(times) = times {
        let order = [times.min, times.p50, times.p90, times.p99, times.p999, times.max];
        ensure(order.is_sorted() && times.max > 0.0, format!("{order:?}"))?;
    }
    let count = times.map(|t| t.count);
    match (c.pattern.as_str(), c.mix.as_deref()) {
        // In a load of reads and writes (a mix), each read is compared, and the proportion of reads is exact.
        (_, Some(mix)) => {
            ensure(count == Some(c.operations + c.not_begun.unwrap_or(0)), format!("{count:?} times"))?;
            let reads = match mix {
                "reads" => c.operations as f64,
                "3:1" => c.operations as f64 * 0.75,
                "2:1" => c.operations as f64 * 2.0 / 3.0,
                "writes" => 0.0,
                other => return Err(format!("a mix of {other}").into()),
            };
            ensure(
                (c.checked as f64 - reads).abs() < 1.0,
                format!("{} of {} were reads", c.checked, c.operations),
            )
        }
        ("mix" | "hot-cold", None) => {
            ensure(c.checked == LINES && c.operations == LINES, "not all was checked")
        }
        ("chase", _) => {
            ensure(count == Some(c.operations) && c.checked > c.operations, format!("{count:?} times"))
        }
        ("gups", _) => {
            ensure(c.checked == WORKING_SET / 8 && c.operations.is_multiple_of(1024), "not the whole table")
        }
        ("stream", _) => {
            let elements = LINES / 3 * 8;
            ensure(count == Some(ITERATIONS) && rate.trials.len() as u64 == ITERATIONS, "other iterations")?;
            ensure(c.operations == ITERATIONS * elements && c.checked == 3 * elements, "other elements")
        }
        (other, _) => Err(format!("a pattern {other}").into()),
    }
}

pub fn forms_agree() -> Outcome {
    let run = everything()?;
    let json: Value = serde_json::from_str(&run.text("json")?)?;
    let keys: Vec<&str> = json.as_object().ok_or("no object")?.keys().map(String::as_str).collect();
    let expected = ["schema", "machine", "link", "results", "throughput", "ratios", "conditions", "plots"];
    ensure(keys == expected && json["schema"] == 1, format!("{keys:?}"))?;
    let has = |item: &Value, fields: &[&str]| fields.iter().all(|field| !item[*field].is_null());
    for (list, fields) in [
        ("results", &["name", "unit", "count", "min", "mean", "p50", "p90", "p99", "p999", "max"][..]),
        ("throughput", &["name", "ops_per_s", "bytes_per_s", "trials"]),
        (
            "conditions",
            &["name", "pattern", "over", "working_set", "resident", "checked", "wrong", "operations"],
        ),
        ("plots", &["pattern", "title", "x", "y", "curves"]),
    ] {
        let items = json[list].as_array().ok_or(list)?;
        ensure(!items.is_empty(), format!("no {list}"))?;
        let lacking = items.iter().find(|item| !has(item, fields));
        ensure(lacking.is_none(), format!("{list} lack fields: {lacking:?}"))?;
    }

    let csv = run.text("csv")?;
    let mut rows = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = rows.next().ok_or("an empty table")?;
    let rows: BTreeMap<&str, Vec<&str>> = rows.map(|row| (row[0], row)).collect();
    ensure(rows.len() == run.report.conditions.len(), format!("{} rows", rows.len()))?;
    let cell = |name: &str, column: &str| -> Result<f64, Failed> {
        let at = head.iter().position(|c| *c == column).ok_or(format!("no column {column}"))?;
        let row = rows.get(name).ok_or(format!("no row {name}"))?;
        ensure(row.len() == head.len(), format!("{row:?}"))?;
        Ok(row[at].parse().map_err(|e| format!("{column} of {name}: {e}"))?)
    };
    // Numbers in JSON are equal except for the rounding of their last bit.
    let same = |a: f64, b: f64| (a - b).abs() <= 1e-12 * b.abs();
    for conditions in &run.report.conditions {
        ensure(cell(&conditions.name, "checked")? == conditions.checked as f64, &conditions.name)?;
    }
    for times in &run.report.results {
        ensure(same(cell(&times.name, "p99_ns")?, times.p99), &times.name)?;
    }
    for rate in &run.report.throughput {
        ensure(same(cell(&rate.name, "ops_per_s")?, rate.ops_per_s), &rate.name)?;
    }

    let log = fs::read(run.path("hdr"))?;
    let mut tags = BTreeSet::new();
    for entry in IntervalLogIterator::new(&log) {
        if let LogEntry::Interval(interval) = entry.map_err(|e| format!("{e:?}"))? {
            tags.extend(interval.tag().map(|tag| tag.as_str().to_owned()));
        }
    }
    let timed: BTreeSet<String> = run.report.results.iter().map(|times| times.name.clone()).collect();
    ensure(
        tags == timed,
        format!("histograms of {:?}", tags.symmetric_difference(&timed).collect::<Vec<_>>()),
    )
}

pub fn curves_agree() -> Outcome {
    let run = everything()?;
    let plots =
        |pattern: &str| run.report.plots.iter().filter(|plot| plot.pattern == pattern).collect::<Vec<_>>();
    let (load, sweep) = (plots("load-latency"), plots("hot-cold"));
    ensure(load.len() == ways().len() && sweep.len() == ways().len(), "a picture for each way")?;
    for (way, plot) in ways().iter().zip(&load) {
        ensure((plot.x.unit, plot.y.unit) == (AxisUnit::OpsPerS, AxisUnit::Ns), format!("{plot:?}"))?;
        let offered = run.report.conditions.iter().filter(|c| c.over == *way && c.offered_per_s.is_some());
        let names: Vec<&str> = offered.map(|c| c.name.as_str()).collect();
        for (curve, quantile) in plot.curves.iter().zip(["p50", "p99", "p99.9"]) {
            ensure(curve.name == quantile && curve.points.len() == names.len(), format!("{way}: {curve:?}"))?;
        }
        for (name, point) in names.iter().zip(&plot.curves[1].points) {
            let of_rate = run.report.rate(name).map(|rate| rate.ops_per_s);
            let of_time = run.report.result(name).map(|times| times.p99);
            ensure((of_rate, of_time) == (Some(point.0), Some(point.1)), format!("{name}: {point:?}"))?;
        }
    }
    for (way, plot) in ways().iter().zip(&sweep) {
        let shares = if *way == "local" { 1 } else { 3 };
        ensure(plot.curves.len() == shares, format!("{way}: {:?}", plot.curves))?;
        for curve in &plot.curves {
            let hot: Vec<f64> = curve.points.iter().map(|point| point.0).collect();
            ensure(hot == [0.05, 0.25], format!("{way}: {curve:?}"))?;
        }
    }
    Ok(())
}

//! Patterns of a comparison from the command line: with two peers over real frames, each pattern has its figure in table,
//! JSON and CSV; those that a peer cannot make have a reason.

use std::fs;
use std::process::Output;

use cxloe_compare::Pattern;
use cxloe_measure::report::Report;
use cxloe_system::command::answered;
use cxloe_system::{Outcome, ensure};
use serde_json::Value;

use super::{RATES, TIMES, bench, output_text};

/// Checks that each pattern except traces and those in `made` has a reason why `peer` has no figure, and that the output
/// names it.
pub fn absent_ones_are_explained(json: &Value, peer: &str, made: &[&str], output: &str) -> Outcome {
    let absent = json["comparison"]["absent_figures"].as_array().ok_or("no list of absent figures")?;
    for pattern in Pattern::ALL.map(Pattern::name).into_iter().filter(|name| *name != "trace") {
        let found = absent.iter().find(|one| one["peer"] == peer && one["pattern"] == pattern);
        ensure(found.is_none() == made.contains(&pattern), format!("{peer}, {pattern}: {found:?}"))?;
        let Some(found) = found else { continue };
        let reason = found["reason"].as_str().unwrap_or_default();
        let is_told =
            !reason.is_empty() && !reason.contains("has not measured it") && output.contains(reason);
        ensure(is_told, format!("{found}: {output}"))?;
    }
    Ok(())
}

/// Two peers make every pattern except the trace; the table has a row for each.
pub fn measured() -> Outcome {
    let folder = tempfile::tempdir()?;
    let options = ["--quick", "--trials", "1", "--each", "20ms", "--only", "cxloe-packet,tcp-spin"];
    let files = ["--json", "x.json", "--csv", "x.csv"];
    let output = bench(folder.path(), &[&options[..], &files].concat())?.output()?;
    let said = output_text(&output);
    ensure(output.status.success(), format!("{}: {said}", output.status))?;

    let path = folder.path().join("x.json");
    let report = serde_json::from_slice::<Report>(&fs::read(&path)?)?;
    let json: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
    let all = [TIMES, RATES].concat();
    ensure(all.len() == Pattern::ALL.len() - 1, "a pattern that this test does not know")?;
    let patterns = json["comparison"]["patterns"].as_array().ok_or("no patterns")?;
    ensure(patterns.len() == all.len(), json["comparison"]["patterns"].to_string())?;
    let figures = json["comparison"]["figures"].as_array().ok_or("no figures")?;
    let csv = fs::read_to_string(folder.path().join("x.csv"))?;
    for peer in ["cxloe-packet", "tcp-spin"] {
        absent_ones_are_explained(&json, peer, &all, &said)?;
        for pattern in &all {
            let figure = figures.iter().find(|f| f["peer"] == peer && f["pattern"] == *pattern);
            let figure = figure.ok_or_else(|| format!("no {pattern} of {peer}"))?;
            let is_above_zero = |name: &str| figure[name].as_f64().unwrap_or(0.0) > 0.0;
            let name = format!("{peer}.{pattern}");
            if TIMES.contains(pattern) {
                ensure(is_above_zero("p50_ns") && is_above_zero("p99_ns"), figure.to_string())?;
                ensure(report.result(&name).is_some(), name.clone())?;
            } else {
                ensure(is_above_zero("bytes_per_s") && report.rate(&name).is_some(), figure.to_string())?;
            }
            let is_load = pattern.starts_with("load");
            ensure(is_above_zero("offered_per_s") == is_load, figure.to_string())?;
            ensure(!is_load || is_above_zero("ops_per_s"), figure.to_string())?;
            ensure(csv.contains(&format!("{peer},{pattern},")), csv.clone())?;
        }
    }
    for pattern in &all {
        let row = said.lines().find(|line| line.split_whitespace().next() == Some(*pattern));
        let row = row.ok_or_else(|| format!("no row {pattern} in {said}"))?;
        // A load shows the rate at which it was offered.
        ensure(!pattern.starts_with("load") || row.matches(" at ").count() == 2, row)?;
    }
    ensure(said.lines().any(|line| line.starts_with("access") && line.contains("tcp-spin")), said)
}

/// `--patterns` takes names, groups and sizes; what does not fit into the memory is explained; other words are refused.
pub fn chosen() -> Outcome {
    let folder = tempfile::tempdir()?;
    let run = |more: &[&str]| -> Outcome<Output> {
        let options = ["--trials", "1", "--each", "20ms", "--size", "64K", "--only", "tcp-block"];
        Ok(bench(folder.path(), &[&options[..], more].concat())?.output()?)
    };
    let output = run(&["--patterns", "seq,load50,1m", "--csv", "x.csv", "--json", "x.json"])?;
    let said = output_text(&output);
    ensure(output.status.success() && said.contains("- (1)"), said.clone())?;
    let csv = fs::read_to_string(folder.path().join("x.csv"))?;
    let names: Vec<&str> = csv.lines().skip(1).filter_map(|row| row.split(',').nth(1)).collect();
    ensure(names == ["seq64", "seq4k", "load50"], csv)?;
    let json: Value = serde_json::from_str(&fs::read_to_string(folder.path().join("x.json"))?)?;
    let absent = json["comparison"]["absent_figures"].as_array().ok_or("no absent figures")?;
    let too_large: Vec<&str> = absent.iter().filter_map(|one| one["pattern"].as_str()).collect();
    ensure(too_large == ["read1m", "seq1m", "stream1m", "seq_stream1m"], format!("{absent:?}"))?;
    ensure(said.contains("(1) the memory is smaller than 1 MiB: --size"), said)?;

    answered(&run(&["--patterns", "seq,trot"])?, 1, &["no pattern is called `trot`", "seq_stream1m"])?;
    answered(&run(&["--patterns", "trace"])?, 1, &["name it with --trace FILE"])
}

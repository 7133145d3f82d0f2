//! Replay of a recorded trace with this system and over TCP, and conversion of a trace, from the command line.

use std::fs::{self, File};
use std::process::{Command, Output, Stdio};

use cxloe_lab::program;
use cxloe_measure::report::Report;
use cxloe_system::{Outcome, ensure};
use serde_json::Value;

use super::{bench, output_text};

const ACCESSES: u64 = 400;

/// Accesses to some fifty pages far apart: within a line, over several lines, and across pages.
fn recorded() -> String {
    let line = |n: u64| {
        let kind = if n.is_multiple_of(3) { 'w' } else { 'r' };
        let page = 0x7fff_0000_0000 + n * 7 % 40 * 0x10_0000;
        format!("{kind} {:#x} {}\n", page + n * 52 % 4096, 1 + n * 37 % 300)
    };
    format!("# of no program\n{}", (0..ACCESSES).map(line).collect::<String>())
}

/// Every access is timed and checked with both peers, and all forms of the report have the figures.
pub fn replayed() -> Outcome {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("x.trace"), recorded())?;
    let options = ["--quick", "--trials", "1", "--each", "20ms", "--only", "cxloe-packet,tcp-spin"];
    let files = ["--trace", "x.trace", "--json", "x.json", "--csv", "x.csv", "--html", "x.html"];
    let output = bench(folder.path(), &[&options[..], &files].concat())?.output()?;
    let said = output_text(&output);
    ensure(output.status.success(), format!("{}: {said}", output.status))?;
    ensure(said.contains(&format!("trace: {ACCESSES} accesses")), said.clone())?;
    ensure(said.lines().any(|line| line.split_whitespace().next() == Some("trace")), said)?;

    let path = folder.path().join("x.json");
    let report = serde_json::from_slice::<Report>(&std::fs::read(&path)?)?;
    let json: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
    let figures = json["comparison"]["figures"].as_array().ok_or("no figures")?;
    let csv = fs::read_to_string(folder.path().join("x.csv"))?;
    let page = fs::read_to_string(folder.path().join("x.html"))?;
    ensure(page.contains("<td>trace</td>"), "a page without a row for the trace")?;
    for peer in ["cxloe-packet", "tcp-spin"] {
        let figure = figures.iter().find(|f| f["peer"] == peer && f["pattern"] == "trace");
        let figure = figure.ok_or_else(|| format!("no trace of {peer}"))?;
        ensure(figure["count"] == ACCESSES, figure.to_string())?;
        for name in ["p50_ns", "p99_ns", "mean_ns", "ratio"] {
            ensure(figure[name].as_f64().unwrap_or(0.0) > 0.0, figure.to_string())?;
        }
        let name = format!("{peer}.trace");
        ensure(report.result(&name).is_some_and(|times| times.count == ACCESSES), name.clone())?;
        ensure(page.contains(&name) && csv.contains(&format!("{peer},trace,")), name)?;
    }
    Ok(())
}

/// A trace that needs more memory is refused with the size that it needs, and replayed if it may be folded; a wrong
/// line is named.
pub fn refused_or_folded() -> Outcome {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("x.trace"), recorded())?;
    let options = ["--trials", "1", "--each", "20ms", "--size", "64K", "--only", "tcp-block"];
    let run = |more: &[&str]| -> Outcome<Output> {
        Ok(bench(folder.path(), &[&options[..], more].concat())?.output()?)
    };
    let refused = run(&["--trace", "x.trace"])?;
    let said = output_text(&refused);
    let is_refused = refused.status.code() == Some(1) && said.contains("pages") && said.contains("--size ");
    ensure(is_refused && said.contains("--trace-fold"), said)?;

    let folded = run(&["--trace", "x.trace", "--trace-fold", "--csv", "x.csv"])?;
    ensure(folded.status.success(), output_text(&folded))?;
    let csv = fs::read_to_string(folder.path().join("x.csv"))?;
    let row = csv.lines().find(|row| row.starts_with("tcp-block,trace,"));
    ensure(row.is_some_and(|row| row.ends_with(&format!(",{ACCESSES},1"))), csv)?;

    fs::write(folder.path().join("wrong.trace"), "r 0 64\nread 64 64\n")?;
    let wrong = run(&["--trace", "wrong.trace"])?;
    let said = output_text(&wrong);
    ensure(wrong.status.code() == Some(1) && said.contains("wrong.trace: line 2: `read`"), said)
}

/// Standard input and output, and files; what is converted can be replayed.
pub fn converted() -> Outcome {
    let folder = tempfile::tempdir()?;
    let log = "==7== Lackey\nI  0401ab70,3\n L 1ffeffe7e,8\n S be80199c,4\n M 0025747c,1\n";
    fs::write(folder.path().join("x.log"), log)?;
    let convert = |from: &str, input: &str, output: &str| -> Outcome<Command> {
        let mut command = Command::new(program("cxloe-bench")?);
        command.args(["trace", "convert", "--from", from, input, output]).current_dir(folder.path());
        Ok(command)
    };
    let input = File::open(folder.path().join("x.log"))?;
    let output = convert("lackey", "-", "-")?.stdin(input).output()?;
    let expected = "r 0x1ffeffe7e 8\nw 0xbe80199c 4\nr 0x25747c 1\nw 0x25747c 1\n";
    ensure(output.status.success() && output.stdout == expected.as_bytes(), output_text(&output))?;

    let row = "128166372010810581,mds,0,Write,2654453760,4096,54086\n";
    fs::write(folder.path().join("x.csv"), row)?;
    let output = convert("msr", "x.csv", "x.trace")?.stdin(Stdio::null()).output()?;
    ensure(output.status.success(), output_text(&output))?;
    ensure(fs::read_to_string(folder.path().join("x.trace"))? == "w 0x9e37c000 4096\n", "another trace")?;

    let wrong = convert("msr", "x.log", "y.trace")?.stdin(Stdio::null()).output()?;
    let said = output_text(&wrong);
    ensure(wrong.status.code() == Some(1) && said.contains("x.log: line 1: 1 fields"), said)?;
    let same = convert("lackey", "x.log", "./x.log")?.stdin(Stdio::null()).output()?;
    ensure(same.status.code() == Some(1), output_text(&same))?;
    ensure(fs::read_to_string(folder.path().join("x.log"))? == log, "the input was overwritten")
}

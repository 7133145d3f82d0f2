//! `cxloe-bench survival` from its command line: the real program with tiny regions. Every section has its figures, no
//! operation fails, and no line is wrong. The tests assert no speed.

use std::fs;
use std::process::{Command, Stdio};

use cxloe_lab::{LabPrivilege, program};
use cxloe_system::command::{answered, failed_with, output, output_text};
use cxloe_system::{Failed, Outcome, Test, ensure, tests};
use serde_json::Value;

/// Figures that each section has on any machine, and with any rights.
const FIGURES: [(&str, &[&str]); 7] = [
    (
        "mirror",
        &["read64, plain", "read64, mirrored / plain", "write64, mirrored", "write64, mirrored / plain"],
    ),
    ("kill", &["longest read", "longest write", "pages written meanwhile", "resync", "failed operations"]),
    ("writer", &["both copies the same again", "bytes sent for it"]),
    (
        "fill",
        &[
            "bursts written",
            "copied under load / bursts",
            "copied without load",
            "read p99 during it / before",
        ],
    ),
    ("drain", &["copied under load", "copied without load", "longest write", "failed operations"]),
    ("sealed", &["copies in memory", "read by one compute node", "read by all / by one"]),
    (
        "clones",
        &[
            "4MiB: snapshot made",
            "4MiB: snapshot attached",
            "4MiB: longest write beside it",
            "4MiB: clone made",
            "4MiB: clone attached",
            "4MiB: clone copied",
            "4MiB: write64, before",
            "4MiB: write64, after",
            "4MiB: a write to every page, with / before",
            "2MiB: clone made",
        ],
    ),
];

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![every_goal_has_its_figures, wrong_options_are_named]
}

fn every_goal_has_its_figures() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (tmp, results) = (folder.path().join("tmp"), folder.path().join("results"));
    fs::create_dir(&tmp)?;
    let mut command = Command::new(program("cxloe-bench")?);
    command.args(["survival", "--rounds", "2", "--size", "8MiB", "--clone-sizes", "4MiB,2MiB"]);
    command.args(["--operations", "200", "--away", "200ms", "--readers", "2", "--output"]).arg(&results);
    let ended = output(command.env("TMPDIR", &tmp).stdin(Stdio::null()))?;
    answered(&ended, 0, &["drain: round 2 of 2", " 0 wrong; 0 operations failed"])?;
    ensure(fs::read_dir(&tmp)?.count() == 0, "files are left behind")?;
    let table = fs::read_to_string(results.join("survival.txt"))?;
    ensure(output_text(&ended).contains(table.trim_end()), "another table in the file")?;
    let json: Value = serde_json::from_slice(&fs::read(results.join("survival.json"))?)?;
    for (section, names) in FIGURES {
        for name in names {
            has_values(&json, section, name)?;
        }
    }
    ensure(json["lines"]["checked"].as_u64() > Some(0), json["lines"].to_string())?;
    let copies = figure(&json, "sealed", "copies in memory")?;
    ensure(copies["median"] == 1.0 && copies["reached"] == true, copies.to_string())
}

fn figure<'j>(json: &'j Value, section: &str, name: &str) -> Result<&'j Value, Failed> {
    let all = json["figures"].as_array().ok_or("no figures")?;
    let found = all.iter().find(|figure| figure["section"] == section && figure["name"] == name);
    found.ok_or_else(|| format!("no figure {section}, {name} in {json}").into())
}

/// Checks that a figure has finite values that are not negative.
fn has_values(json: &Value, section: &str, name: &str) -> Outcome {
    let figure = figure(json, section, name)?;
    let values = figure["values"].as_array().ok_or("no values")?;
    let is_right = |value: &Value| value.as_f64().is_some_and(|value| value >= 0.0);
    ensure(!values.is_empty() && values.iter().all(is_right), figure.to_string())
}

fn wrong_options_are_named() -> Outcome {
    for (arguments, code, words) in [
        (&["survival", "--size", "3MiB"][..], 1, "--size 3MiB is not a multiple of 2MiB"),
        (&["survival", "--clone-sizes", "64MiB,1K"], 1, "--clone-sizes"),
        (&["survival", "--readers", "0"], 2, "1..=16"),
        (&["survival", "--only", "mirrors"], 2, "writer"),
        (&["survival", "--link", "udp"], 2, "raw link"),
    ] {
        failed_with(&output(Command::new(program("cxloe-bench")?).args(arguments))?, code, &[words])?;
    }
    Ok(())
}

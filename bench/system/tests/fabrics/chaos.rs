//! `cxloe-bench chaos` from its command line: real daemons of a fabric are killed at random, and no write that was
//! answered is lost.

use std::fs;
use std::process::Command;

use cxloe_lab::{LabPrivilege, program};
use cxloe_system::command::{answered, failed_with, output, output_text};
use cxloe_system::{Outcome, Test, ensure, tests};

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![daemons_killed_at_random_lose_no_write, wrong_options_are_named]
}

fn daemons_killed_at_random_lose_no_write() -> Outcome {
    let folder = tempfile::tempdir()?;
    let json = folder.path().join("chaos.json");
    let mut command = Command::new(program("cxloe-bench")?);
    command.args(["chaos", "--duration", "20s", "--every", "1500ms", "--size", "8MiB"]);
    let ended = output(command.arg("--json").arg(&json))?;
    answered(&ended, 0, &["lines written", " 0 wrong"])?;
    let results: serde_json::Value = serde_json::from_slice(&fs::read(&json)?)?;
    let chaos = &results["chaos"];
    let kills = chaos["kills"].as_array().map_or(0, Vec::len);
    ensure(kills >= 5, format!("{kills} kills: {}", output_text(&ended)))?;
    ensure(chaos["load"]["wrong"] == 0 && chaos["load"]["read"].as_u64() > Some(0), chaos["load"].to_string())
}

fn wrong_options_are_named() -> Outcome {
    for (arguments, code, words) in [
        (&["chaos", "--size", "3MiB"][..], 1, "2MiB"),
        (&["chaos", "--every", "1ms"], 1, "100ms"),
        (&["chaos", "--memory-nodes", "1"], 2, "2..=16"),
    ] {
        failed_with(&output(Command::new(program("cxloe-bench")?).args(arguments))?, code, &[words])?;
    }
    Ok(())
}

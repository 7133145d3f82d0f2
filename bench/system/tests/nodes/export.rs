//! `cn-agent export` and `cn-agent import`: a region's content over a pipe and in a file, and exports that are damaged,
//! truncated, foreign or too large.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cxloe_lab::{LabPrivilege, program};
use cxloe_system::command::{failed_with, output, succeeded};
use cxloe_system::pair::{CN, LINES, Pair, REGION};
use cxloe_system::{Outcome, Test, ensure, tests, text};

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![
        a_region_is_copied_over_a_pipe,
        a_file_that_is_not_whole_is_refused,
        a_damaged_pipe_names_the_part_written
    ]
}

/// A fabric with the region `scratch`, which has content, and the regions `copy` and `small`.
fn fabric() -> Outcome<Pair> {
    let rig = Pair::with_region("anon", &[])?;
    rig.written(3)?;
    rig.create_region("copy")?;
    rig.gmm(&["create-region", "-s", "2M", "--owner", CN, "small"])?;
    // Writes content that a later import has to replace by zeros or by other content.
    for place in ["copy", "copy+0x3ffc0"] {
        succeeded(rig.cli(&["write", place, "--text", "before", "--flush"])?)?;
    }
    Ok(rig)
}

/// Runs a line of the shell, in which `cn-agent` is that of this build.
fn shell(rig: &Pair, line: &str) -> Outcome<Output> {
    let mut command = Command::new("sh");
    let agent = program("cn-agent")?;
    let folder = agent.parent().ok_or("no folder")?;
    let path = format!("{}:{}", text(folder), std::env::var("PATH").unwrap_or_default());
    command.args(["-c", line]).env("PATH", path).env("CXLOE_AGENT", rig.socket());
    output(&mut command)
}

fn content(rig: &Pair, region: &str) -> Outcome<Vec<u8>> {
    let lines = (REGION / 64).to_string();
    let read = rig.cli(&["read", region, "--lines", &lines, "--raw"])?;
    ensure(read.status.success() && read.stdout.len() as u64 == REGION, "the region is read")?;
    Ok(read.stdout)
}

fn a_region_is_copied_over_a_pipe() -> Outcome {
    let rig = fabric()?;
    let packs = Command::new("zstd").arg("--version").output().is_ok();
    let between = if packs { "zstd -q | zstd -q -d" } else { "cat" };
    let copied = shell(&rig, &format!("cn-agent export scratch | {between} | cn-agent import copy"))?;
    let said = String::from_utf8_lossy(&copied.stderr).into_owned();
    succeeded(copied)?;
    ensure(said.contains("region copy: imported 4MiB of region scratch"), said)?;
    ensure(content(&rig, "copy")? == content(&rig, "scratch")?, "the copy differs")?;
    // Zeros take no room: the export has little more than what was written.
    let exported = rig.cli(&["export", "scratch"])?;
    let (size, written) = (exported.stdout.len() as u64, LINES * 64);
    ensure(size >= written && size < written + 4096, format!("{size} bytes for {written}"))
}

/// Exports the region `scratch` into a file; returns the file's path.
fn exported(rig: &Pair) -> Outcome<PathBuf> {
    let file = rig.path("scratch.cxloe");
    succeeded(rig.cli(&["export", "scratch", "--file", text(&file)])?)?;
    Ok(file)
}

fn import(rig: &Pair, region: &str, file: &Path) -> Outcome<Output> {
    rig.cli(&["import", region, "--file", text(file)])
}

fn a_file_that_is_not_whole_is_refused() -> Outcome {
    let rig = fabric()?;
    let file = exported(&rig)?;
    ensure(fs::metadata(&file)?.permissions().mode() & 0o77 == 0, "others may read the file")?;
    let (whole, before) = (fs::read(&file)?, content(&rig, "copy")?);
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    let cases: [(&[u8], &str); 3] = [
        (&damaged, "is damaged at byte"),
        (&whole[..whole.len() - 1], "is truncated: it ends after"),
        (b"something else", "is not an exported region"),
    ];
    let bad = rig.path("bad.cxloe");
    for (bytes, says) in cases {
        fs::write(&bad, bytes)?;
        failed_with(&import(&rig, "copy", &bad)?, 1, &["bad.cxloe", says])?;
    }
    ensure(content(&rig, "copy")? == before, "a refused file has changed the region")?;
    failed_with(&import(&rig, "small", &file)?, 5, &["region small has 2MiB", "region scratch has 4MiB"])?;
    failed_with(&import(&rig, "other", &file)?, 4, &["no region other is attached"])?;
    succeeded(import(&rig, "copy", &file)?)?;
    ensure(content(&rig, "copy")? == content(&rig, "scratch")?, "the copy differs")?;
    let none = rig.path("none.cxloe");
    failed_with(&rig.cli(&["export", "other", "--file", text(&none)])?, 4, &["no region other"])?;
    ensure(!none.exists(), "a failed export has left a file")
}

fn a_damaged_pipe_names_the_part_written() -> Outcome {
    let rig = fabric()?;
    let file = exported(&rig)?;
    let bytes = fs::read(&file)?;
    // The last byte of the file is cut off, which truncates the record at the end of the content.
    let line = format!("head -c {} {} | cn-agent import copy", bytes.len() - 1, text(&file));
    let says = ["standard input is truncated", "region copy has been overwritten up to offset 131072"];
    failed_with(&shell(&rig, &line)?, 1, &says)
}

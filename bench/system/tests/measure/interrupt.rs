//! Ctrl-C at a terminal: the signal reaches the measurement and its daemons at once, as all are in one process group.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use cxloe_lab::{LabPrivilege, program};
use cxloe_system::{Outcome, Test, ensure, eventually, tests};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

pub fn tests(_: LabPrivilege) -> Vec<Test> {
    tests![
        fabric_ends_with_130,
        keys_end_with_130,
        survival_ends_with_130,
        a_comparison_ends_without_half_an_archive,
    ]
}

/// Starts the measurement, and sends SIGINT to its process group when `begun` returns true for the number of its
/// temporary files and for its output. The exit code has to be 130, and no temporary file may be left.
fn interrupted(arguments: &[&str], begun: fn(entries: usize, output: &str) -> bool) -> Outcome {
    let folder = tempfile::tempdir()?;
    let (tmp, log) = (folder.path().join("tmp"), folder.path().join("log"));
    fs::create_dir(&tmp)?;
    let output = fs::File::create(&log)?;
    let mut command = Command::new(program("cxloe-bench")?);
    command.args(arguments).env("TMPDIR", &tmp).stdin(Stdio::null());
    command.stdout(output.try_clone()?).stderr(output).process_group(0);
    let mut child = command.spawn()?;
    let has_begun = eventually("it has begun", || {
        let entries = fs::read_dir(&tmp).into_iter().flatten().flatten();
        let files = entries.flat_map(|entry| fs::read_dir(entry.path()).into_iter().flatten()).count();
        begun(files, &fs::read_to_string(&log).ok()?).then_some(())
    });
    killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT)?;
    let status = child.wait()?;
    let said = fs::read_to_string(&log)?;
    has_begun?;
    ensure(status.code() == Some(130), format!("{status} (signal {:?}): {said}", status.signal()))?;
    ensure(said.contains("stopped by signal 2"), said)?;
    let left = fs::read_dir(&tmp)?.count();
    ensure(left == 0, format!("{left} folders are left behind"))
}

fn fabric_ends_with_130() -> Outcome {
    let arguments =
        ["fabric", "--memory-nodes", "4", "--compute-nodes", "4", "--regions", "0", "--creates", "1000000"];
    // The measurement has begun when its folder has three files: the manager's store, port and log.
    interrupted(&arguments, |files, _| files >= 3)
}

fn keys_end_with_130() -> Outcome {
    let arguments = ["keys", "--hellos", "0", "--rekey-ms", "0", "--touch-s", "600"];
    interrupted(&arguments, |files, output| files >= 3 && output.contains("touches of pages"))
}

fn survival_ends_with_130() -> Outcome {
    let arguments = ["survival", "--only", "mirror", "--rounds", "100000", "--size", "4MiB"];
    interrupted(&arguments, |files, output| files >= 3 && output.contains("mirror: round 2"))
}

fn a_comparison_ends_without_half_an_archive() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("x.tar.gz");
    let path = path.to_str().ok_or("paths of tests are plain text")?;
    let arguments =
        ["compare", "--only", "tcp-block", "--trials", "100000", "--size", "64K", "--archive", path];
    // The folder of the first trial is there.
    interrupted(&arguments, |files, _| files >= 1)?;
    let left: Vec<_> = fs::read_dir(folder.path())?.flatten().map(|entry| entry.file_name()).collect();
    ensure(left.is_empty(), format!("left behind: {left:?}"))
}

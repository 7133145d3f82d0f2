//! Runs of the program: one of all patterns, shared by several tests, and small ones for special cases.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cxloe_lab::LabPrivilege;
use cxloe_measure::report::Report;
use cxloe_system::Failed;
use cxloe_system::copies::as_nobody;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use cxloe_system::{self, Outcome, ensure, eventually};

/// Time limit on a whole run, on a busy machine, in a build without optimisation.
const RUN_LIMIT: Duration = Duration::from_secs(240);
/// Bytes of the working set in the run of all patterns.
pub const WORKING_SET: u64 = 2 << 20;
/// Iterations of STREAM in the run of all patterns.
pub const ITERATIONS: u64 = 2;

/// The run of all patterns, with its report and files.
pub struct Everything {
    folder: tempfile::TempDir,
    /// Report of the run, parsed from its JSON file.
    pub report: Report,
    pub output_text: String,
}

impl Everything {
    /// Path of a file that the run has written: `json`, `csv`, `html` or `hdr`.
    pub fn path(&self, kind: &str) -> PathBuf {
        self.folder.path().join(kind)
    }

    pub fn text(&self, kind: &str) -> Result<String, Failed> {
        Ok(fs::read_to_string(self.path(kind))?)
    }
}

/// Rights of this test program; set by `main`.
pub static STANDING: OnceLock<LabPrivilege> = OnceLock::new();

/// Ways to access memory that can be measured here: only root is certain to be allowed to serve kernel faults.
pub fn ways() -> &'static [&'static str] {
    match STANDING.get() {
        Some(LabPrivilege::Root) => &["port", "mapped", "inline", "local"],
        _ => &["port", "inline", "local"],
    }
}

/// Runs all patterns at the first call; returns the run's results.
pub fn everything() -> Result<&'static Everything, Failed> {
    static RUN: OnceLock<Result<Everything, String>> = OnceLock::new();
    let run =
        RUN.get_or_init(|| measure().map_err(|failed| failed.message().unwrap_or("it failed").to_owned()));
    run.as_ref().map_err(|message| message.clone().into())
}

fn measure() -> Result<Everything, Failed> {
    let folder = tempfile::tempdir()?;
    let mut command = Command::new(cxloe_lab::program("cxloe-bench")?);
    command.args(["pattern", "all", "--size", "2M", "--time", "10ms", "--over", &ways().join(",")]);
    command.args([
        "--iterations",
        &ITERATIONS.to_string(),
        "--mixes",
        "reads,2:1,writes",
        "--traffic",
        "3:1",
    ]);
    command.args(["--hot", "5%,25%", "--rates", "2k,10k,1M"]);
    for kind in ["json", "csv", "html", "hdr"] {
        command.arg(format!("--{kind}")).arg(folder.path().join(kind));
    }
    let (status, output_text) = to_the_end(command, folder.path())?;
    ensure(status.success(), format!("{status}; it said: {output_text}"))?;
    let report = serde_json::from_slice::<Report>(&std::fs::read(folder.path().join("json"))?)?;
    Ok(Everything { folder, report, output_text })
}

/// Starts a command whose files and temporary files are in `folder`; its output goes to `log` there.
fn start(mut command: Command, folder: &Path) -> Result<Child, Failed> {
    let out = fs::File::create(folder.join("log"))?;
    let temporary = folder.join("tmp");
    fs::create_dir_all(&temporary)?;
    fs::set_permissions(&temporary, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    command.env("TMPDIR", temporary).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
    Ok(command.spawn()?)
}

fn end(child: &mut Child) -> Result<ExitStatus, Failed> {
    let deadline = Instant::now() + RUN_LIMIT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err("it does not end".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn to_the_end(command: Command, folder: &Path) -> Result<(ExitStatus, String), Failed> {
    let status = end(&mut start(command, folder)?);
    let output_text = fs::read_to_string(folder.join("log"))?;
    let status =
        status.map_err(|error| format!("{}; it said: {output_text}", error.message().unwrap_or_default()))?;
    let left: Vec<_> = fs::read_dir(folder.join("tmp"))?.flatten().map(|entry| entry.path()).collect();
    ensure(left.is_empty(), format!("left behind: {left:?}"))?;
    Ok((status, output_text))
}

pub fn wrong_usage() -> Outcome {
    let folder = tempfile::tempdir()?;
    let cases: [(&[&str], i32, &str); 8] = [
        (&[], 2, "PATTERN"),
        (&["sideways"], 2, "load-latency"),
        (&["chase", "--resident", "50"], 2, "write it in percent"),
        (&["mix", "--mixes", "3-1"], 2, "for example 3:1"),
        (&["load-latency", "--rates", "1G"], 2, "for example 150k"),
        (&["chase", "--agent", "/x", "--agent-region", "y"], 2, "--interface"),
        (
            &["chase", "--over", "port", "--size", "4M", "--working-set", "8M"],
            1,
            "make it larger with --size",
        ),
        (&["chase", "--over", "port", "--size", "4M", "--working-set", "64K"], 1, "at least 1048576 bytes"),
    ];
    for (arguments, code, words) in cases {
        let mut command = Command::new(cxloe_lab::program("cxloe-bench")?);
        command.arg("pattern").args(arguments);
        let (status, output_text) = to_the_end(command, folder.path())?;
        ensure(status.code() == Some(code), format!("{arguments:?}: {status}; it said: {output_text}"))?;
        ensure(output_text.contains(words), format!("{arguments:?}: no `{words}` in: {output_text}"))?;
    }
    Ok(())
}

/// The default rates rise from low ones to more than can be sustained.
pub fn steps_of_load() -> Outcome {
    let folder = tempfile::tempdir()?;
    let json = folder.path().join("json");
    let mut command = Command::new(cxloe_lab::program("cxloe-bench")?);
    command.args(["pattern", "load-latency", "--over", "local", "--size", "2M", "--time", "5ms"]);
    command.args(["--arrivals", "even", "--json"]).arg(&json);
    let (status, output_text) = to_the_end(command, folder.path())?;
    ensure(status.success(), format!("{status}; it said: {output_text}"))?;
    let report = serde_json::from_slice::<Report>(&std::fs::read(&json)?)?;
    let offered: Vec<f64> = report.conditions.iter().filter_map(|c| c.offered_per_s).collect();
    ensure(offered.len() == 13 && offered.is_sorted_by(|a, b| a < b), format!("{offered:?}"))?;
    let most = report.rate("load_closed_local_r100").ok_or("no closed loop")?.ops_per_s;
    ensure((offered[0] - 0.05 * most).abs() <= 1.0, format!("{offered:?} of {most}"))
}

pub fn interrupted() -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut command = Command::new(cxloe_lab::program("cxloe-bench")?);
    command.args(["pattern", "chase", "--over", "port,inline", "--size", "4M", "--time", "1h"]);
    let mut child = start(command, folder.path())?;
    let pid = Pid::from_raw(child.id().cast_signed());
    // The program measures after it has started the memory node, whose log exists from that moment.
    let measures = eventually("the memory node is up", || {
        let labs = fs::read_dir(folder.path().join("tmp")).into_iter().flatten().flatten();
        let mut logs = labs.map(|lab| lab.path().join("mn1/mn-server.log"));
        logs.any(|log| log.exists())
    });
    // The test cannot detect the start of the measurement itself, so it waits for a fixed time.
    std::thread::sleep(Duration::from_millis(500));
    kill(pid, Signal::SIGINT)?;
    let status = end(&mut child)?;
    measures?;
    let output_text = fs::read_to_string(folder.path().join("log"))?;
    ensure(status.code() == Some(130), format!("{status}; it said: {output_text}"))?;
    let left: Vec<_> = fs::read_dir(folder.path().join("tmp"))?.flatten().map(|entry| entry.path()).collect();
    ensure(left.is_empty(), format!("left behind: {left:?}"))
}

pub fn ordinary_user() -> Outcome {
    let folder = tempfile::tempdir()?;
    let programs = tempfile::tempdir()?;
    let program = cxloe_lab::program("cxloe-bench")?;
    let mut command = as_nobody(programs.path(), &program, &["gmm", "mn-server", "cn-agent"])?;
    // Without the option `--over`, mapped memory is measured if this user has the necessary rights.
    command.args(["pattern", "chase", "gups", "--size", "4M", "--time", "15ms"]);
    let (status, output_text) = to_the_end(command, folder.path())?;
    ensure(status.success(), format!("{status}; it said: {output_text}"))?;
    for words in ["chase_port_r0", "gups_port_r0", "every one right"] {
        ensure(output_text.contains(words), format!("no `{words}` in: {output_text}"))?;
    }
    let is_left_out = output_text.contains("left out");
    ensure(
        is_left_out != output_text.contains("chase_mapped_r50"),
        format!("neither measured nor left out: {output_text}"),
    )?;
    // If a way that cannot be measured is named explicitly, the program fails.
    if is_left_out {
        let mut command = as_nobody(programs.path(), &program, &[])?;
        command.args(["pattern", "chase", "--over", "mapped", "--size", "4M", "--time", "15ms"]);
        let (status, output_text) = to_the_end(command, folder.path())?;
        ensure(status.code() == Some(1), format!("{status}; it said: {output_text}"))?;
        ensure(output_text.contains("cxloe-bench: "), output_text)?;
    }
    Ok(())
}

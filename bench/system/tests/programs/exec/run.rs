//! Runs of a program under `cn-agent exec`, and their results.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use cxloe_client::client;
use cxloe_client::message::PagingView;
use cxloe_lab::{Process, program};

use cxloe_system::pair::{Outcome, Pair, ensure, eventually};

pub const PAGE: u64 = 4096;
/// Time limit on a program's run.
pub const RUN_MAX: Duration = Duration::from_secs(120);
pub const MIB: u64 = 1 << 20;

/// Starts all three daemons, with room for several programs.
pub fn rig() -> Outcome<Pair> {
    let mut rig = Pair::bare()?;
    rig.pool_size = "256MiB";
    rig.start_gmm()?;
    rig.start_mn("anon")?;
    rig.start_agent(&["--wait", "sleep"])?;
    Ok(rig)
}

/// A program that runs with remote memory.
pub struct Running {
    pub process: Process,
    out: PathBuf,
    err: PathBuf,
}

/// Status, output and paging counters of an ended program.
pub struct Ended {
    pub status: ExitStatus,
    pub out: Vec<u8>,
    /// Standard error without the figures at its end.
    pub err: String,
    pub view: Option<PagingView>,
}

/// Sizes in MiB: the remote memory, and the resident limit.
#[derive(Clone, Copy)]
pub struct Sizes(pub u64, pub u64);

/// Starts `command` with remote memory of these sizes, and with further options of `cn-agent exec`.
pub fn start(rig: &Pair, sizes: Sizes, more: &[&str], command: &[&str]) -> Outcome<Running> {
    start_prepared(rig, sizes, more, command, |_| ())
}

/// Like [`start`]; `prepare` may change the command of `cn-agent exec`, or put another in its place, before it is run.
pub fn start_prepared(
    rig: &Pair,
    sizes: Sizes,
    more: &[&str],
    command: &[&str],
    prepare: impl FnOnce(&mut Command),
) -> Outcome<Running> {
    let [size, local] = [sizes.0, sizes.1].map(|mib| (mib * MIB).to_string());
    let mut exec = Command::new(program("cn-agent")?);
    exec.args(["exec", "--size", &size, "--local", &local, "--stats=json"])
        .args(more)
        .arg("--")
        .args(command);
    prepare(&mut exec);
    exec.env("CXLOE_AGENT", rig.socket()).current_dir(rig.dir.path());
    // The number of files in the folder makes the names of the two output files unique.
    let number = std::fs::read_dir(rig.dir.path())?.count();
    let (out, err) = (rig.path(&format!("{number}.out")), rig.path(&format!("{number}.err")));
    exec.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?);
    Ok(Running { process: rig.lab.spawn("cn", exec)?, out, err })
}

impl Running {
    /// Standard output of the program so far.
    pub fn out(&self) -> Vec<u8> {
        std::fs::read(&self.out).unwrap_or_default()
    }

    /// Standard error of the program so far.
    pub fn err(&self) -> String {
        std::fs::read_to_string(&self.err).unwrap_or_default()
    }

    /// Waits until the program has printed `words`.
    pub fn output_text(&self, words: &str) -> Outcome {
        eventually(words, || String::from_utf8_lossy(&self.out()).contains(words).then_some(())).map_err(
            |error| {
                let out = String::from_utf8_lossy(&self.out()).into_owned();
                format!("{error:?}; it said: {out}{}", self.err()).into()
            },
        )
    }

    /// Waits for the program's end; returns its results.
    pub fn wait(mut self) -> Outcome<Ended> {
        let waited = self.process.wait(RUN_MAX);
        let status = waited.map_err(|error| format!("{error}; it said: {}", self.err()))?;
        let output_text = self.err();
        // The figures of `cn-agent exec` are the last JSON object in standard error, and start at the beginning of a
        // line.
        let figures = output_text
            .rfind("\n{\n")
            .map(|at| at + 1)
            .or_else(|| output_text.starts_with("{\n").then_some(0));
        let view = figures.and_then(|at| serde_json::from_str(&output_text[at..]).ok());
        let err = output_text[..figures.filter(|_| view.is_some()).unwrap_or(output_text.len())].to_string();
        Ok(Ended { status, out: self.out(), err, view })
    }
}

impl Ended {
    /// Checks that the program has ended with status 0.
    pub fn well(self) -> Outcome<Ended> {
        ensure(self.status.success(), format!("{}: {}", self.status, self.err))?;
        Ok(self)
    }

    /// Checks that at least half of the program's working set was evicted and fetched again.
    pub fn paged(self, working_set: u64) -> Outcome<Ended> {
        let view = self.view.as_ref().ok_or_else(|| format!("no figures; it said: {}", self.err))?;
        let half = working_set / PAGE / 2;
        let counters = &view.counters;
        // Fetched pages are pages that were evicted before, because memory nodes have no other pages of this program.
        let fetched = counters.fetched + counters.prefetch_hits;
        let paged = counters.evicted.min(fetched) >= half;
        ensure(paged, format!("less than {half} pages evicted and fetched again: {counters:#?}"))?;
        ensure(counters.lost == 0 && counters.write_back_failures == 0, format!("{counters:#?}"))?;
        Ok(self)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
}

/// Checks that no region and no mapping of any program is left.
pub fn nothing_is_left(rig: &Pair) -> Outcome {
    eventually("no space is left", || client::paging(&rig.socket(), None).ok()?.is_empty().then_some(()))?;
    eventually("no region is left", || {
        let regions = rig.gmm(&["list", "-R"]).ok()?;
        (!regions.contains("exec-")).then_some(())
    })
}

/// Compiles one of the C programs in this folder; returns the path of the executable.
pub fn compiled(rig: &Pair, name: &str, options: &[&str]) -> Outcome<PathBuf> {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/exec/c").join(format!("{name}.c"));
    let program = rig.path(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-pthread", "-o"]);
    let output = compiler.arg(&program).arg(source).args(options).output()?;
    ensure(output.status.success(), String::from_utf8_lossy(&output.stderr))?;
    Ok(program)
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are plain text")
}

//! Independent C programs, run in alternation with this project's measurements of the same limits: a limit measured
//! only by the project's own code could share its defects.
//!
//! ```text
//!   probe                compared with
//!   rawlat    -> echo64, and read64              60 bytes out, 89 back, packet sockets
//!   xdplat    -> echo64, and read64              the same over AF_XDP (needs libxdp and libbpf)
//!   fetch     -> fetch4k, and read4k             60 bytes out, a page back
//!   uffdfloor -> uffd_floor4k, its inline form   a page fault served from local memory
//! ```
//!
//! The C programs use a cable of their own and another EtherType, so that no program of this project sees their frames.
//! Each prints a line per figure: name, number of samples, median and 99th percentile in nanoseconds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use cxloe_lab::{Interrupt, Interrupted, Lab, LabError, Process};
use serde::{Deserialize, Serialize};

use cxloe_compare::stage::find;
use cxloe_measure::machine::median;

/// Sources contained in this executable, with their headers.
const OWN: [(&str, &str); 5] = [
    ("probe.h", include_str!("../../probe/probe.h")),
    ("rawlat.c", include_str!("../../probe/rawlat.c")),
    ("fetch.c", include_str!("../../probe/fetch.c")),
    ("uffdfloor.c", include_str!("../../probe/uffdfloor.c")),
    ("xdplat.c", include_str!("../../probe/xdplat.c")),
];
/// Maximum duration of one turn of a program.
const LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(2);

/// Failure of a probe (a C program).
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Error of the network, or of a process in it.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    /// A program failed.
    #[error("the probe {name} ended with {status}: {said}")]
    Failed {
        name: String,
        status: String,
        /// Last lines of the probe's output.
        said: String,
    },
    /// Interrupted by Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeKind {
    /// Two processes: a client at the near end, a server at the far end.
    Echo,
    /// One process.
    Alone,
}

const KNOWN: [(&str, ProbeKind, &[&str]); 4] = [
    ("rawlat", ProbeKind::Echo, &[]),
    ("fetch", ProbeKind::Echo, &[]),
    ("uffdfloor", ProbeKind::Alone, &["-pthread"]),
    ("xdplat", ProbeKind::Echo, &["-lxdp", "-lbpf"]),
];

/// Probe that was not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unused {
    /// Name of the probe, as in the report.
    pub name: String,
    pub reason: String,
}

/// Environment of the probes: a cable of their own, and a core for each end.
pub struct ProbeSetup<'a> {
    /// Network that contains the cable.
    pub lab: &'a Lab,
    /// Namespace and interface of the client.
    pub near: (&'a str, &'a str),
    /// Namespace, interface and address of the server.
    pub far: (&'a str, &'a str, &'a str),
    /// CPU numbers of client and server.
    pub cores: (usize, usize),
    /// Flag that Ctrl-C sets.
    pub interrupt: &'a Interrupt,
}

/// Compiled probes, and the figures they have printed.
pub struct Probes {
    folder: PathBuf,
    ready: Vec<(&'static str, ProbeKind)>,
    /// Probes that were not used, with reasons.
    pub unused: Vec<Unused>,
    figures: Vec<(String, Vec<Figure>)>,
}

/// Figure of one output line, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figure {
    p50: f64,
    p99: f64,
}

/// Figure of a probe, compared with one of this project.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeComparison {
    /// Name of the probe's figure.
    pub probe: String,
    /// Median over turns, in nanoseconds.
    pub p50_ns: f64,
    /// 99th percentile in nanoseconds, the median over turns.
    pub p99_ns: f64,
    /// Name of this project's measurement.
    pub ours: String,
    /// Median of this project's measurement, in nanoseconds.
    pub ours_p50_ns: f64,
    /// Ratio of this project's median to the probe's.
    pub ratio: f64,
}

/// Names of the probes' figures, each with this project's measurements to compare.
const BESIDE: [(&str, &[&str]); 5] = [
    ("echo64", &["echo64", "read64"]),
    ("xdp_echo64", &["echo64", "read64"]),
    ("fetch4k", &["fetch4k", "read4k"]),
    ("uffd_floor4k", &["uffd_floor4k", "fault4k"]),
    ("uffd_inline_floor4k", &["uffd_inline_floor4k", "fault4k_inline"]),
];

impl Probes {
    /// Compiles the programs in the folder `source`, or those contained in this executable, into `folder`.
    ///
    /// # Errors
    /// Returns [`ProbeError::File`]; programs that cannot be compiled are left out.
    pub fn compile(source: Option<&Path>, folder: &Path) -> Result<Probes, ProbeError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| ProbeError::File { path, source }
        };
        fs::create_dir_all(folder).map_err(at(folder))?;
        let source = match source {
            Some(source) => fs::canonicalize(source).map_err(at(source))?,
            None => {
                for (name, text) in OWN {
                    let path = folder.join(name);
                    fs::write(&path, text).map_err(at(&path))?;
                }
                folder.to_owned()
            }
        };
        let mut probes =
            Probes { folder: folder.into(), ready: Vec::new(), unused: Vec::new(), figures: Vec::new() };
        for (name, kind, libraries) in KNOWN {
            match compiled(&source.join(name).with_extension("c"), &folder.join(name), libraries) {
                Ok(()) => probes.ready.push((name, kind)),
                Err(reason) => probes.unused.push(Unused { name: name.into(), reason }),
            }
        }
        Ok(probes)
    }

    /// Number of probes in use.
    pub fn count(&self) -> usize {
        self.ready.len()
    }

    /// Runs one turn of each probe with `count` iterations. A probe that fails is left out from then on.
    ///
    /// # Errors
    /// Returns an error on Ctrl-C.
    pub fn turn(&mut self, ground: &ProbeSetup<'_>, count: u64) -> Result<(), ProbeError> {
        let mut failed = Vec::new();
        for &(name, kind) in &self.ready {
            match self.run(ground, name, kind, count) {
                Ok(said) => {
                    for (figure, value) in said.lines().filter_map(read) {
                        match self.figures.iter_mut().find(|(known, _)| *known == figure) {
                            Some((_, values)) => values.push(value),
                            None => self.figures.push((figure, vec![value])),
                        }
                    }
                }
                Err(ProbeError::Interrupted(interrupted)) => return Err(interrupted.into()),
                Err(error) => failed.push(Unused { name: name.into(), reason: error.to_string() }),
            }
        }
        self.ready.retain(|(name, _)| failed.iter().all(|one| one.name != *name));
        self.unused.extend(failed);
        Ok(())
    }

    fn run(
        &self,
        ground: &ProbeSetup<'_>,
        name: &str,
        kind: ProbeKind,
        count: u64,
    ) -> Result<String, ProbeError> {
        let (near_cpu, far_cpu) = (ground.cores.0.to_string(), ground.cores.1.to_string());
        let start = |namespace: &str, log: &str, words: &[&str]| -> Result<(Process, PathBuf), ProbeError> {
            let log = self.folder.join(format!("{name}.{log}"));
            let mut command = Command::new(self.folder.join(name));
            command.args(words);
            Process::log_to(&mut command, &log)?;
            Ok((ground.lab.spawn(namespace, command)?, log))
        };
        let text = |log: &Path| fs::read_to_string(log).unwrap_or_default();
        let count = count.to_string();
        let server = match kind {
            ProbeKind::Alone => None,
            ProbeKind::Echo => {
                let (mut server, log) = start(ground.far.0, "far", &["serve", ground.far.1, &far_cpu])?;
                let until = Instant::now() + LIMIT;
                while !text(&log).contains("serving") {
                    ground.interrupt.check()?;
                    if let Some(status) = server.try_wait()? {
                        let (name, said) = (name.into(), tail(&text(&log)));
                        return Err(ProbeError::Failed { name, status: status.to_string(), said });
                    }
                    if Instant::now() > until {
                        let (name, said) = (name.into(), tail(&text(&log)));
                        return Err(ProbeError::Failed { name, status: "no word".into(), said });
                    }
                    thread::sleep(POLL);
                }
                Some(server)
            }
        };
        let (mut asking, log) = match kind {
            ProbeKind::Echo => {
                start(ground.near.0, "near", &["ask", ground.near.1, &near_cpu, ground.far.2, &count])?
            }
            ProbeKind::Alone => start(ground.near.0, "near", &["ask", &near_cpu, &far_cpu, &count])?,
        };
        let until = Instant::now() + LIMIT;
        let status = loop {
            ground.interrupt.check()?;
            if let Some(status) = asking.try_wait()? {
                break status.success().then_some(()).ok_or(status.to_string());
            }
            if Instant::now() > until {
                break Err(format!("no end within {LIMIT:?}"));
            }
            thread::sleep(POLL);
        };
        drop(server);
        let said = text(&log);
        match status {
            Ok(()) => Ok(said),
            Err(status) => Err(ProbeError::Failed { name: name.into(), status, said: tail(&said) }),
        }
    }

    /// Comparisons of the probes' figures with this project's; `ours` gives the median of a measurement in nanoseconds.
    pub fn beside(&self, ours: impl Fn(&str) -> Option<f64>) -> Vec<ProbeComparison> {
        let over = |name: &str, of: fn(&Figure) -> f64| {
            let (_, values) = self.figures.iter().find(|(known, _)| known == name)?;
            median(&values.iter().map(of).collect::<Vec<_>>())
        };
        let mut all = Vec::new();
        for (probe, names) in BESIDE {
            let (Some(p50_ns), Some(p99_ns)) = (over(probe, |f| f.p50), over(probe, |f| f.p99)) else {
                continue;
            };
            for name in names {
                if let Some(ours_p50_ns) = ours(name) {
                    let (probe, ours, ratio) = (probe.into(), (*name).into(), ours_p50_ns / p50_ns);
                    all.push(ProbeComparison { probe, p50_ns, p99_ns, ours, ours_p50_ns, ratio });
                }
            }
        }
        all
    }
}

/// Parses an output line of a probe; `None` if the line is no figure.
fn read(line: &str) -> Option<(String, Figure)> {
    let mut words = line.split_whitespace();
    let (name, count, p50, p99) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let _: u64 = count.parse().ok()?;
    let figure = Figure { p50: p50.parse().ok()?, p99: p99.parse().ok()? };
    (words.next().is_none() && figure.p50 > 0.0).then(|| (name.to_owned(), figure))
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" | ")
}

/// Compiles a program; returns the reason of a failure.
fn compiled(source: &Path, program: &Path, libraries: &[&str]) -> Result<(), String> {
    let Some(compiler) = find("cc") else {
        return Err("there is no C compiler: apt-get install gcc libc6-dev".into());
    };
    if !source.exists() {
        return Err(format!("there is no {}", source.display()));
    }
    let mut command = Command::new(compiler);
    command.args(["-std=gnu11", "-O2", "-o"]).arg(program).arg(source).args(libraries);
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("xdp/xsk.h") || said.contains("-lxdp") || said.contains("-lbpf") {
        return Err("it needs libxdp and libbpf: apt-get install libxdp-dev libbpf-dev".into());
    }
    Err(format!("it does not compile: {}", said.lines().next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_programs_are_read_and_others_passed_over() {
        assert_eq!(
            read("echo64 1998 3735 6089"),
            Some(("echo64".into(), Figure { p50: 3735.0, p99: 6089.0 }))
        );
        for other in
            ["", "serving", "libbpf: elf: skipping section", "echo64 x 1 2", "echo64 1 2 3 4", "a 1 0 0"]
        {
            assert_eq!(read(other), None, "{other}");
        }
    }

    #[test]
    fn ours_stand_beside_the_median_of_turns() {
        let figure = |p50| Figure { p50, p99: 2.0 * p50 };
        let figures = vec![("echo64".to_owned(), vec![figure(2_000.0), figure(9_000.0), figure(3_000.0)])];
        let probes = Probes { folder: PathBuf::new(), ready: vec![], unused: vec![], figures };
        let beside = probes.beside(|name| (name == "read64").then_some(6_000.0));
        assert_eq!(beside.len(), 1);
        assert_eq!((beside[0].p50_ns, beside[0].p99_ns, beside[0].ratio), (3_000.0, 6_000.0, 2.0));
    }

    #[test]
    fn own_programs_compile_and_others_report_the_missing_compiler() {
        let folder = tempfile::tempdir().unwrap();
        let probes = Probes::compile(None, folder.path()).unwrap();
        assert_eq!(probes.count() + probes.unused.len(), KNOWN.len());
        if find("cc").is_some() {
            assert!(probes.unused.iter().all(|one| one.name == "xdplat"), "{:?}", probes.unused);
        }
        let empty = tempfile::tempdir().unwrap();
        let none = Probes::compile(Some(empty.path()), folder.path()).unwrap();
        assert_eq!((none.count(), none.unused.len()), (0, KNOWN.len()));
        fs::write(empty.path().join("rawlat.c"), "int main(void) { return x; }").unwrap();
        let wrong = Probes::compile(Some(empty.path()), folder.path()).unwrap();
        assert_eq!(wrong.count(), 0);
    }
}

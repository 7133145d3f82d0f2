//! Environment of program runs: on this machine without a limit, in a control group with limited memory, or with an
//! agent; and the result of a run.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_client::message::PagingView;
use cxloe_lab::{Host, Interrupt, Lab, Process};
use nix::sys::signal::Signal;

use super::MemoryBacking;
use super::error::{ProgramsError, tail};
use super::figures::Paging;
use super::group::Group;
use super::program::Job;
use super::redis;
use super::swap::{self, Swap};
use crate::stage::find;

const POLL: Duration = Duration::from_millis(1);
/// Interval between two samples of a program's memory use.
const LOOK: Duration = Duration::from_millis(10);
/// Maximum time for a program to end, which includes the return of its region by `cn-agent exec`.
const GRACE: Duration = Duration::from_secs(10);
/// Bytes that a control group may have resident beyond the program's limit: code, page tables, stacks and files, which
/// `cn-agent exec` does not count either.
const UNCOUNTED: u64 = 8 << 20;
/// Bytes of remote memory, or of swap, beyond what the program needs.
const SPARE: u64 = 64 << 20;
/// Bytes of an extent, the unit in which pools are divided: sizes of regions are multiples of it.
const EXTENT: u64 = 2 << 20;

/// Memory node, agent and manager in two namespaces, which serve remote memory.
pub struct Remote {
    /// Network of the namespaces.
    pub lab: Lab,
    /// Name of the agent's namespace.
    pub namespace: &'static str,
    /// Path of the program `cn-agent`.
    pub program: PathBuf,
    /// Path of the agent's socket.
    pub socket: PathBuf,
    /// Name of the agent's region for swap, if there is one.
    pub swap_region: Option<String>,
}

/// Environment of program runs.
pub struct Stage {
    /// Namespaces in which this process was started; must be recorded before this process enters any other.
    pub host: Host,
    /// Path of the folder for outputs and sockets.
    pub folder: PathBuf,
    /// Path of the folder for swap files.
    pub swap_folder: PathBuf,
    /// Core to which programs are pinned; `None` if there is no second core for the memory node.
    pub core: Option<usize>,
    /// Flag that Ctrl-C sets.
    pub interrupt: Interrupt,
}

/// Limits of memory and time of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Way of holding the program's memory.
    pub way: MemoryBacking,
    /// Bytes of the program's memory that may be resident.
    pub local: u64,
    /// Memory that the program needs, in bytes.
    pub footprint: u64,
    /// Maximum duration of the run.
    pub limit: Duration,
}

/// Result of a run that completed.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// Time from the start of the process to its end.
    pub whole: Duration,
    /// Number of operations that the program reports, and their time.
    pub worked: Option<(u64, Duration)>,
    /// Output of the program.
    pub out: Vec<u8>,
    /// Maximum of the sampled private memory, in bytes; 0 if it was not sampled.
    pub most: u64,
    /// Counters of paging that the agent reports.
    pub paging: Option<Paging>,
    /// Pages that the machine swapped in during the run; `None` for ways of holding memory that do not swap.
    pub swapped_in: Option<u64>,
}

/// Reason why a run has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Missed {
    /// The run exceeded its time.
    Late,
    /// The kernel's OOM killer ended the program: the limit of its control group was too low.
    Killed,
    /// The program failed, for this reason.
    Failed(String),
}

/// Bytes of remote memory for a program that needs `footprint` bytes and whose children need `beside` bytes
/// more.
pub(super) fn region_bytes(footprint: u64, beside: u64) -> u64 {
    (footprint + footprint / 2 + beside + SPARE).next_multiple_of(EXTENT)
}

/// Process, control group and swap of a run, to be dropped in this order.
struct Limits {
    process: Process,
    _group: Option<Group>,
    _swap: Option<Swap>,
    _device: Option<Device>,
}

impl Stage {
    /// Runs `job` until it ends or exceeds its time. `remote` is required if the run uses remote memory.
    pub(super) fn run(
        &self,
        job: &Job,
        remote: Option<&Remote>,
        may: Allowance,
    ) -> Result<Result<Run, Missed>, ProgramsError> {
        self.interrupt.check()?;
        let (out, err) = (self.folder.join("out"), self.folder.join("err"));
        if let Some(load) = &job.load {
            let _ = fs::remove_file(&load.socket);
        }
        let swaps = !matches!(may.way, MemoryBacking::Local | MemoryBacking::Exec);
        let swapped_before = swaps.then(swapped_in).flatten();
        let started = Instant::now();
        let deadline = started + may.limit;
        let (mut limits, started) = match self.start(job, remote, may, (&out, &err)) {
            Ok(limits) => (limits, Instant::now()),
            Err(error @ ProgramsError::Command { .. }) => return Ok(Err(Missed::Failed(error.to_string()))),
            Err(error) => return Err(error),
        };
        let loaded = match &job.load {
            None => None,
            Some(load) => match self.loaded(load, &mut limits.process, deadline) {
                Ok(loaded) => Some((loaded.requests, loaded.time)),
                Err(error) => {
                    self.interrupt.check()?;
                    let _ = limits.process.terminate(GRACE);
                    return Ok(Err(match error.kind() {
                        io::ErrorKind::TimedOut => Missed::Late,
                        _ => Missed::Failed(format!("{error}; {}", tail(&text(&err)))),
                    }));
                }
            },
        };
        let mut most = 0;
        let mut look = Instant::now();
        // A server's memory is sampled while it runs; then the server is shut down.
        if let Some(load) = &job.load {
            most = private_bytes(limits.process.id());
            redis::end(&load.socket);
        }
        // A run with a server has its result when the load has ended, so the server's shutdown has a time limit of its
        // own instead of the run's deadline.
        let deadline = if loaded.is_some() { Instant::now() + GRACE * 3 } else { deadline };
        let status = loop {
            self.interrupt.check()?;
            if let Some(status) = limits.process.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                let _ = limits.process.terminate(GRACE);
                return Ok(Err(Missed::Late));
            }
            // The sampling interval is shorter at the start of a run, so that short programs are sampled as well.
            if may.way == MemoryBacking::Local && look.elapsed() > LOOK.min(started.elapsed() / 16) {
                most = most.max(private_bytes(limits.process.id()));
                look = Instant::now();
            }
            thread::sleep(POLL);
        };
        let whole = started.elapsed();
        // The counter of swapped-in pages is read before the swap area is switched off, because switching it off swaps
        // all pages in.
        let swapped_in = swapped_before.and_then(|before| Some(swapped_in()?.saturating_sub(before)));
        drop(limits);
        let said = text(&err);
        if status.signal() == Some(Signal::SIGKILL as i32) && swaps {
            return Ok(Err(Missed::Killed));
        }
        if !status.success() {
            return Ok(Err(Missed::Failed(format!("{status}: {}", tail(&said)))));
        }
        let worked = loaded.or_else(|| worked(&said));
        // The output of a server contains times, so it is not compared.
        if job.load.is_some() {
            return Ok(Ok(Run { whole, worked, out: Vec::new(), most, paging: paging(&said), swapped_in }));
        }
        let out = fs::read(&out).map_err(ProgramsError::io("reading what a program printed"))?;
        Ok(Ok(Run { whole, worked, out, most, paging: paging(&said), swapped_in }))
    }

    fn start(
        &self,
        job: &Job,
        remote: Option<&Remote>,
        may: Allowance,
        (out, err): (&Path, &Path),
    ) -> Result<Limits, ProgramsError> {
        let failed = || ProgramsError::io("making files for what a program prints");
        let streams = |command: &mut Command| -> Result<(), ProgramsError> {
            let (out, err) = (File::create(out).map_err(failed())?, File::create(err).map_err(failed())?);
            command.current_dir(&self.folder).stdin(Stdio::null()).stdout(out).stderr(err);
            Ok(())
        };
        let swap_bytes = may.footprint + job.beside + SPARE;
        let (swap, device) = match may.way {
            MemoryBacking::Local | MemoryBacking::Exec => (None, None),
            MemoryBacking::SwapFile => (Some(Swap::file(&self.swap_folder, swap_bytes)?), None),
            MemoryBacking::SwapZram => (Some(Swap::zram(swap_bytes)?), None),
            MemoryBacking::SwapNbd => {
                let device = Device::connect(self, remote.expect("a region to swap to has an agent"))?;
                (Some(Swap::device(device.path.clone())?), Some(device))
            }
        };
        if may.way == MemoryBacking::Exec {
            let remote = remote.expect("remote memory has an agent");
            let size = region_bytes(may.footprint, job.beside);
            let local = if may.local >= may.footprint { size } else { may.local };
            let mut command = self.kept(remote.program.as_os_str());
            command.args([
                "exec",
                "--size",
                &size.to_string(),
                "--local",
                &local.to_string(),
                "--stats=json",
            ]);
            command.arg("--").args(&job.command).env("CXLOE_AGENT", &remote.socket);
            streams(&mut command)?;
            let process = remote.lab.spawn(remote.namespace, command)?;
            return Ok(Limits { process, _group: None, _swap: None, _device: None });
        }
        let group = swap.as_ref().map(|_| Group::limited(may.local + UNCOUNTED)).transpose()?;
        let mut command = match &group {
            None => self.kept(job.command[0].as_ref()),
            Some(group) => {
                let mut command = self.kept("sh".as_ref());
                command
                    .args(["-c", "echo 0 >\"$0\" && exec \"$@\""])
                    .arg(group.members())
                    .arg(&job.command[0]);
                command
            }
        };
        command.args(&job.command[1..]);
        streams(&mut command)?;
        let process = self.host.spawn(command)?;
        Ok(Limits { process, _group: group, _swap: swap, _device: device })
    }

    /// Command that is pinned to the programs' core.
    fn kept(&self, program: &OsStr) -> Command {
        match self.core {
            None => Command::new(program),
            Some(core) => {
                let mut command = Command::new("taskset");
                command.args(["--cpu-list", &core.to_string()]).arg(program);
                command
            }
        }
    }

    fn loaded(
        &self,
        load: &redis::Load,
        server: &mut Process,
        deadline: Instant,
    ) -> io::Result<redis::Loaded> {
        let check = || self.interrupt.check().map_err(|_| io::ErrorKind::Interrupted.into());
        while !redis::answers(&load.socket) {
            check()?;
            if let Some(status) = server.try_wait().map_err(io::Error::other)? {
                return Err(io::Error::other(format!("the server ended with {status}")));
            }
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(POLL * 10);
        }
        load.put(deadline, check)
    }
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Private memory of a process that is resident, in bytes.
fn private_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")).and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Pages that the machine has swapped in since boot.
fn swapped_in() -> Option<u64> {
    let all = fs::read_to_string("/proc/vmstat").ok()?;
    all.lines().find_map(|line| line.strip_prefix("pswpin "))?.trim().parse().ok()
}

/// Parses the line `worked OPERATIONS NANOSECONDS` that this project's programs print.
fn worked(said: &str) -> Option<(u64, Duration)> {
    let line = said.lines().find_map(|line| line.strip_prefix("worked "))?;
    let (operations, ns) = line.split_once(' ')?;
    Some((operations.parse().ok()?, Duration::from_nanos(ns.parse().ok()?)))
}

/// Parses the counters that `cn-agent exec --stats=json` prints at the end.
fn paging(said: &str) -> Option<Paging> {
    let at = said.rfind("\n{\n").map(|at| at + 1).or_else(|| said.starts_with("{\n").then_some(0))?;
    let view: PagingView = serde_json::from_str(&said[at..]).ok()?;
    Some(Paging::of(&view.counters))
}

/// Region as a block device of the kernel; disconnected on drop.
struct Device {
    path: PathBuf,
    _server: Process,
}

impl Device {
    fn connect(stage: &Stage, remote: &Remote) -> Result<Device, ProgramsError> {
        let region = remote.swap_region.as_deref().expect("there is a region to swap to");
        let socket = stage.folder.join("nbd.sock");
        let _ = fs::remove_file(&socket);
        let mut server = Command::new(&remote.program);
        server.args(["nbd", "--region", region, "--socket"]).arg(&socket).arg("--agent").arg(&remote.socket);
        Process::log_to(&mut server, &stage.folder.join("nbd.log"))?;
        let mut server = remote.lab.spawn(remote.namespace, server)?;
        let until = Instant::now() + GRACE;
        while !socket.exists() {
            stage.interrupt.check()?;
            if server.try_wait()?.is_some() || Instant::now() > until {
                let said = tail(&text(&stage.folder.join("nbd.log")));
                let (command, status) = ("cn-agent nbd".into(), "no socket".into());
                return Err(ProgramsError::Command { command, status, said });
            }
            thread::sleep(POLL);
        }
        let path = free_device().ok_or_else(|| {
            let said = "every /dev/nbd is in use".to_owned();
            ProgramsError::Command { command: "nbd-client".into(), status: "no device".into(), said }
        })?;
        let mut client = Command::new(nbd_client());
        client.args(["-unix"]).arg(&socket).arg(&path).args(["-b", "4096", "-N", region]);
        swap::run(&mut client)?;
        Ok(Device { path, _server: server })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = swap::run(Command::new(nbd_client()).arg("-d").arg(&self.path));
    }
}

fn nbd_client() -> PathBuf {
    find("nbd-client").unwrap_or_else(|| "nbd-client".into())
}

/// Path of the first NBD device that is not connected.
fn free_device() -> Option<PathBuf> {
    let is_free = |number: &u32| {
        let folder = format!("/sys/block/nbd{number}");
        Path::new(&folder).exists() && !Path::new(&format!("{folder}/pid")).exists()
    };
    (0..64).find(is_free).map(|number| PathBuf::from(format!("/dev/nbd{number}")))
}

impl Remote {
    /// Checks that `cn-agent exec` can run a program, by running a trivial one.
    ///
    /// # Errors
    /// Returns [`ProgramsError::Command`] with the agent's message.
    pub fn check(&self, folder: &Path) -> Result<(), ProgramsError> {
        let log = folder.join("exec.log");
        let mut command = Command::new(&self.program);
        command
            .args(["exec", "--size", "16M", "--local", "4M", "--", "true"])
            .env("CXLOE_AGENT", &self.socket);
        Process::log_to(&mut command, &log)?;
        let mut process = self.lab.spawn(self.namespace, command)?;
        match process.wait(GRACE * 2) {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                let (command, status) = ("cn-agent exec".into(), status.to_string());
                Err(ProgramsError::Command { command, status, said: tail(&text(&log)) })
            }
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_and_agents_say_is_read() {
        let said = "a warning\nworked 300000 1500000\n";
        assert_eq!(worked(said), Some((300_000, Duration::from_micros(1500))));
        assert_eq!(worked("worked hard\n"), None);
        assert_eq!(paging(said), None);
    }

    #[test]
    fn this_process_has_private_memory() {
        let held = std::hint::black_box(vec![1_u8; 8 << 20]);
        assert!(private_bytes(std::process::id()) >= held.len() as u64);
        assert_eq!(private_bytes(0), 0);
    }

    #[test]
    fn a_region_has_whole_extents_and_room() {
        for footprint in [1, 100 << 20, 123_456_789] {
            let bytes = region_bytes(footprint, 0);
            assert!(bytes.is_multiple_of(EXTENT) && bytes > footprint + footprint / 2, "{bytes}");
        }
    }

    fn stage(folder: &Path) -> Stage {
        let host = Host::default();
        Stage {
            host,
            folder: folder.into(),
            swap_folder: folder.into(),
            core: None,
            interrupt: Interrupt::never(),
        }
    }

    fn run(script: &str, limit: Duration) -> Result<Run, Missed> {
        let folder = tempfile::tempdir().unwrap();
        let command = ["sh", "-c", script].map(String::from).to_vec();
        let may = Allowance { way: MemoryBacking::Local, local: 0, footprint: 0, limit };
        stage(folder.path()).run(&Job { command, load: None, beside: 0 }, None, may).unwrap()
    }

    #[test]
    fn a_run_brings_what_it_printed_or_why_it_did_not_end() {
        let well = run("echo 42; echo worked 5 1000 >&2", Duration::from_secs(60)).unwrap();
        assert_eq!((&well.out[..], well.worked), (&b"42\n"[..], Some((5, Duration::from_micros(1)))));
        let failed = run("echo no memory >&2; exit 3", Duration::from_secs(60)).unwrap_err();
        assert!(matches!(&failed, Missed::Failed(why) if why.contains("no memory")), "{failed:?}");
        assert_eq!(run("sleep 600", Duration::from_millis(50)).unwrap_err(), Missed::Late);
    }
}

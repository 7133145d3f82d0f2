//! The daemons of a lab that a measurement makes for itself: starting them, waiting for them, showing their logs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cxloe_daemon::to_stderr;
use cxloe_lab::{Host, Interrupt, Lab, LabError, Process};

use super::Failure;

/// Where the manager of such a lab is.
pub(super) const MANAGER: &str = "http://10.77.0.1:7440";

/// How long a daemon may take to come up.
pub(super) const READY: Duration = Duration::from_secs(20);

/// Where daemons are started.
pub(super) trait Ground {
    /// Starts a program, in the namespace of this name if there are any.
    fn spawn(&self, namespace: &str, command: Command) -> Result<Process, LabError>;
}

impl Ground for Lab {
    fn spawn(&self, namespace: &str, command: Command) -> Result<Process, LabError> {
        Lab::spawn(self, namespace, command)
    }
}

impl Ground for Host {
    fn spawn(&self, _: &str, command: Command) -> Result<Process, LabError> {
        Host::spawn(self, command)
    }
}

/// Starts one of our programs, which lies beside this one; its output goes to a log in `state`. What follows the program's
/// name tells its log from those of others.
pub(super) fn start(
    ground: &dyn Ground,
    namespace: &str,
    state: &Path,
    program: &str,
    arguments: impl FnOnce(&mut Command),
) -> Result<Process, Failure> {
    let file = program.split_whitespace().next().unwrap_or(program);
    let beside = std::env::current_exe()?.with_file_name(file);
    if !beside.exists() {
        return Err(format!("{} is missing; build it with `cargo build --release`", beside.display()).into());
    }
    let mut command = Command::new(beside);
    arguments(&mut command);
    Process::log_to(&mut command, &log(state, program))?;
    Ok(ground.spawn(namespace, command)?)
}

fn log(state: &Path, program: &str) -> PathBuf {
    state.join(format!("{}.log", program.replace(' ', "-")))
}

/// Gives a node the key in `key`, made if there is none, unless frames are not to be sealed.
pub(super) fn protect(command: &mut Command, insecure: bool, key: &Path) {
    match insecure {
        true => command.arg("--insecure"),
        false => command.arg("--node-key").arg(key),
    };
}

/// Waits until the memory node has registered with the manager at `url`.
pub(super) fn wait_for_nodes(url: &str, interrupt: &Interrupt) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = cxloe_fabric::Client::new(url)?;
    let started = Instant::now();
    loop {
        interrupt.check()?;
        let found = runtime.block_on(client.memory_nodes());
        if found.as_ref().is_ok_and(|nodes| !nodes.is_empty()) {
            return Ok(());
        }
        if started.elapsed() > READY {
            return Err(match found {
                Ok(_) => "mn-server has not registered with the manager".into(),
                Err(e) => format!("the manager has not come up: {e}").into(),
            });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// After a failure: the last words of each daemon.
pub(super) fn show_logs(state: &Path) {
    for program in ["gmm", "mn-server", "cn-agent", "cn-agent nbd"] {
        let Ok(log) = std::fs::read_to_string(log(state, program)) else { continue };
        let lines: Vec<&str> = log.lines().collect();
        to_stderr!("--- the last lines of {program}'s log");
        for line in &lines[lines.len().saturating_sub(12)..] {
            to_stderr!("{line}");
        }
    }
}

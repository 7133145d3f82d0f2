//! The daemons of a lab that a measurement makes: starts them, waits until they serve, prints their logs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cxloe_daemon::to_stderr;
use cxloe_lab::{Host, Interrupt, Lab, LabError, Process};

use super::Failure;
use crate::eventually::eventually;

/// URL of the lab's manager.
pub(super) const MANAGER: &str = "http://10.77.0.1:7440";

/// Limit on the time from a daemon's start until it serves.
pub(super) const READY: Duration = Duration::from_secs(20);

/// Place in which daemons are started: this machine itself, or network namespaces on it.
pub(super) trait DaemonHost {
    /// Starts a program, in the namespace of this name if the host has namespaces.
    fn spawn(&self, namespace: &str, command: Command) -> Result<Process, LabError>;
}

impl DaemonHost for Lab {
    fn spawn(&self, namespace: &str, command: Command) -> Result<Process, LabError> {
        Lab::spawn(self, namespace, command)
    }
}

impl DaemonHost for Host {
    fn spawn(&self, _: &str, command: Command) -> Result<Process, LabError> {
        Host::spawn(self, command)
    }
}

/// Starts a program of this project from the folder of this executable; its output goes to a log in `state`. The suffix
/// after the program's name distinguishes the logs of several instances.
pub(super) fn start(
    ground: &dyn DaemonHost,
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

/// Path of the log of a program that [`start`] has started.
pub(super) fn log(state: &Path, program: &str) -> PathBuf {
    state.join(format!("{}.log", program.replace(' ', "-")))
}

/// Adds `--insecure` or the key file `key` to a node's options; the node creates the file if it is missing.
pub(super) fn protect(command: &mut Command, insecure: bool, key: &Path) {
    match insecure {
        true => command.arg("--insecure"),
        false => command.arg("--node-key").arg(key),
    };
}

/// Waits until a memory node has registered with the manager at `url`.
pub(super) fn wait_for_nodes(url: &str, interrupt: &Interrupt) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = cxloe_fabric::Client::new(url)?;
    eventually("mn-server registers with the manager", READY, interrupt, || {
        runtime.block_on(client.memory_nodes()).is_ok_and(|nodes| !nodes.is_empty())
    })
}

/// Prints the last lines of each daemon's log after a failure.
pub(super) fn show_logs(state: &Path) {
    for program in ["gmm", "mn-server", "cn-agent", "cn-agent nbd", "cxloe-bench dpdk-echo"] {
        let Ok(log) = std::fs::read_to_string(log(state, program)) else { continue };
        let lines: Vec<&str> = log.lines().collect();
        to_stderr!("--- the last lines of {program}'s log");
        for line in &lines[lines.len().saturating_sub(12)..] {
            to_stderr!("{line}");
        }
    }
}

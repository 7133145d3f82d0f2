//! What can go wrong while a lab is made or used; each message says what was tried, on what, and what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A lab could not be made, entered or used.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The kernel or its policy does not let an ordinary user have a user namespace.
    #[error("making a private user namespace failed at {step}: {source}; {advice}")]
    UserNamespace {
        /// The system call or file that failed.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
        /// What to change, with the setting that forbids it when one was found.
        advice: String,
    },
    /// The `ip` program is not installed.
    #[error(
        "the program `ip` was not found in PATH, /usr/sbin or /sbin; install it with: apt-get install iproute2"
    )]
    IpMissing,
    /// `ip` could not be run, or reported a failure.
    #[error("`ip {arguments}` failed in namespace {namespace}: {message}")]
    Ip {
        /// The namespace it ran in.
        namespace: String,
        /// Its arguments.
        arguments: String,
        /// What it wrote to standard error.
        message: String,
    },
    /// A namespace could not be made or entered.
    #[error(
        "{step} for network namespace {namespace} failed: {source}; labs need root (CAP_SYS_ADMIN) or a user namespace"
    )]
    Namespace {
        /// What was tried.
        step: &'static str,
        /// The namespace.
        namespace: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program could not be started inside a namespace.
    #[error(
        "starting {program} in namespace {namespace} failed: {source}; check that the program exists and may run"
    )]
    Spawn {
        /// The program.
        program: String,
        /// The namespace.
        namespace: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program of this workspace is not there.
    #[error("no program {program} to start: {reason}; build it with `cargo build --workspace`")]
    Program {
        /// The program.
        program: String,
        /// Why it is not there.
        reason: String,
    },
    /// A running program could not be waited for or signalled.
    #[error("{action} {program} (process {pid}) failed: {source}")]
    Process {
        /// What was tried.
        action: &'static str,
        /// The program.
        program: String,
        /// Its process id.
        pid: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program did not end, or not stand still, within the time allowed.
    #[error("{program} (process {pid}) did not end within {limit:?}; read its log, or allow more time")]
    StillRunning {
        /// The program.
        program: String,
        /// Its process id.
        pid: u32,
        /// How long it was waited for.
        limit: Duration,
    },
    /// A log file could not be opened.
    #[error("opening the log file {} failed: {source}; choose a folder that can be written", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Signal handlers could not be installed.
    #[error("installing handlers for SIGINT, SIGTERM and SIGHUP failed: {source}")]
    Signals {
        /// What the kernel said.
        source: io::Error,
    },
    /// A name that the lab does not have.
    #[error("the lab has no namespace {namespace}; add it with Builder::namespace")]
    UnknownNamespace {
        /// The name asked for.
        namespace: String,
    },
    /// A name that the lab does not have.
    #[error(
        "the lab has no interface {interface}; add it with Builder::veth, macvlan or bridge, before it is used"
    )]
    UnknownInterface {
        /// The name asked for.
        interface: String,
    },
    /// The same name twice in one lab.
    #[error("the name {name} is used twice in the lab; namespaces and interfaces need names of their own")]
    DuplicateName {
        /// The name.
        name: String,
    },
}

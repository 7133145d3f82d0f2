//! Errors of making and using a lab; each message contains the operation, its object, and the remedy.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A lab could not be made, entered or used.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The kernel or its policy denies an ordinary user a user namespace.
    #[error("making a private user namespace failed at {step}: {source}; {advice}")]
    UserNamespace {
        /// System call or file whose use failed.
        step: &'static str,
        /// Error that the kernel returned.
        source: io::Error,
        /// Remedy, which names the setting that forbids user namespaces if one was found.
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
        /// Namespace in which `ip` ran.
        namespace: String,
        /// Arguments of `ip`, joined by blanks.
        arguments: String,
        /// Standard error output of `ip`.
        message: String,
    },
    /// A namespace could not be made or entered.
    #[error(
        "{step} for network namespace {namespace} failed: {source}; labs need root (CAP_SYS_ADMIN) or a user namespace"
    )]
    Namespace {
        /// Operation on the namespace that failed.
        step: &'static str,
        /// Name of the namespace in its lab.
        namespace: String,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// A program could not be started inside a namespace.
    #[error(
        "starting {program} in namespace {namespace} failed: {source}; check that the program exists and may run"
    )]
    Spawn {
        /// Program as given by the caller.
        program: String,
        /// Namespace in which the program was to run.
        namespace: String,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// A program of this workspace is missing.
    #[error("no program {program} to start: {reason}; build it with `cargo build --workspace`")]
    Program {
        /// Program of this workspace that was requested.
        program: String,
        /// Reason for which the program is missing.
        reason: String,
    },
    /// A running program could not be waited for or signalled.
    #[error("{action} {program} (process {pid}) failed: {source}")]
    Process {
        /// Operation on the program that failed.
        action: &'static str,
        /// Program that the operation was applied to.
        program: String,
        /// Process id of the program.
        pid: u32,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// A program did not end, or did not stop, within the time limit.
    #[error("{program} (process {pid}) did not end within {limit:?}; read its log, or allow more time")]
    StillRunning {
        /// Program that still runs.
        program: String,
        /// Process id of the program.
        pid: u32,
        /// Time after which the wait ended.
        limit: Duration,
    },
    /// A log file could not be opened.
    #[error("opening the log file {} failed: {source}; choose a folder that can be written", path.display())]
    Log {
        /// Path at which the log was to be made.
        path: PathBuf,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// Signal handlers could not be installed.
    #[error("installing handlers for SIGINT, SIGTERM and SIGHUP failed: {source}")]
    Signals {
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// The lab has no namespace of this name.
    #[error("the lab has no namespace {namespace}; add it with Builder::namespace")]
    UnknownNamespace {
        /// Requested name of a namespace.
        namespace: String,
    },
    /// The lab has no interface of this name.
    #[error(
        "the lab has no interface {interface}; add it with Builder::veth, macvlan or bridge, before it is used"
    )]
    UnknownInterface {
        /// Requested name of an interface.
        interface: String,
    },
    /// A name is used twice in one lab.
    #[error("the name {name} is used twice in the lab; namespaces and interfaces need names of their own")]
    DuplicateName {
        /// Name of two namespaces or two interfaces.
        name: String,
    },
}

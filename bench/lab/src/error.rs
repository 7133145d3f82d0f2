//! Errors of making and using a lab; each message contains the operation, its object, and the remedy.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Reason why a lab could not be made, entered or used.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The kernel or a security policy denies an ordinary user a user namespace.
    #[error("making a private user namespace failed at {step}: {source}; {advice}")]
    UserNamespace {
        /// System call or file that failed.
        step: &'static str,
        source: io::Error,
        /// Remedy; contains the setting that forbids user namespaces if one was found.
        advice: String,
    },
    #[error(
        "the program `ip` was not found in PATH, /usr/sbin or /sbin; install it with: apt-get install iproute2"
    )]
    IpMissing,
    /// `ip` could not be run, or ended with a failure.
    #[error("`ip {arguments}` failed in namespace {namespace}: {message}")]
    Ip {
        namespace: String,
        arguments: String,
        /// Error output of `ip`, or its exit status if it wrote nothing.
        message: String,
    },
    #[error(
        "{step} for network namespace {namespace} failed: {source}; labs need root (CAP_SYS_ADMIN) or a user namespace"
    )]
    Namespace { step: &'static str, namespace: String, source: io::Error },
    #[error(
        "starting {program} in namespace {namespace} failed: {source}; check that the program exists and may run"
    )]
    Spawn { program: String, namespace: String, source: io::Error },
    /// A program that this workspace builds is missing.
    #[error("no program {program} to start: {reason}; build it with `cargo build --workspace`")]
    Program { program: String, reason: String },
    #[error("{action} {program} (process {pid}) failed: {source}")]
    Process {
        /// Failed operation as a participle, such as `signalling`.
        action: &'static str,
        program: String,
        pid: u32,
        source: io::Error,
    },
    #[error("{program} (process {pid}) did not end within {limit:?}; read its log, or allow more time")]
    StillRunning { program: String, pid: u32, limit: Duration },
    #[error("opening the log file {} failed: {source}; choose a folder that can be written", path.display())]
    Log { path: PathBuf, source: io::Error },
    #[error("installing handlers for SIGINT, SIGTERM and SIGHUP failed: {source}")]
    Signals { source: io::Error },
    #[error("the lab has no namespace {namespace}; add it with Builder::namespace")]
    UnknownNamespace { namespace: String },
    #[error(
        "the lab has no interface {interface}; add it with Builder::veth, macvlan or bridge, before it is used"
    )]
    UnknownInterface { interface: String },
    #[error("the name {name} is used twice in the lab; namespaces and interfaces need names of their own")]
    DuplicateName { name: String },
}

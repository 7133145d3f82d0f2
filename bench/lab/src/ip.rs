//! Runs the `ip` program of iproute2 inside a namespace.
//!
//! A lab is set up once per run, so the cost of a process per command is irrelevant, and administrators are familiar
//! with `ip`'s error messages.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::{LabError, Namespace};

/// Runs `ip` with `arguments` inside `namespace`; its error output becomes the message of the error.
pub(crate) fn run(namespace: &Namespace, arguments: &[&str]) -> Result<(), LabError> {
    let program = program()?;
    let failed = |message: String| LabError::Ip {
        namespace: namespace.name().into(),
        arguments: arguments.join(" "),
        message,
    };
    let output = namespace
        .enter_network(|| Command::new(program).args(arguments).stdin(Stdio::null()).output())?
        .map_err(|e| failed(e.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    // `ip` may fail without an error message; its exit status is then the only information about the failure.
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(if said.trim().is_empty() { output.status.to_string() } else { said.trim().into() }))
}

/// Finds `ip` in PATH and in the sbin folders, which the PATH of an ordinary user often lacks.
fn program() -> Result<&'static PathBuf, LabError> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM
        .get_or_init(|| {
            let path = env::var_os("PATH").unwrap_or_default();
            env::split_paths(&path)
                .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
                .map(|folder| folder.join("ip"))
                .find(|candidate| candidate.is_file())
        })
        .as_ref()
        .ok_or(LabError::IpMissing)
}

//! Daemons that a measurement starts in its lab: the manager, memory nodes, agents.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cxloe_lab::{Lab, Process};

use super::Failure;

/// Where the manager of the lab listens.
pub const MANAGER: &str = "http://10.77.0.1:7440";
/// How long a daemon may take to come up.
pub const READY: Duration = Duration::from_secs(20);

/// Starts one of our programs, which lies beside this one; its output goes to a log in `state`.
pub fn start(
    lab: &Lab,
    namespace: &str,
    state: &Path,
    program: &str,
    arguments: impl FnOnce(&mut Command),
) -> Result<Process, Failure> {
    let beside = std::env::current_exe()?.with_file_name(program);
    if !beside.exists() {
        return Err(format!("{} is missing; build it with `cargo build --release`", beside.display()).into());
    }
    let mut command = Command::new(beside);
    arguments(&mut command);
    Process::log_to(&mut command, &state.join(format!("{program}.log")))?;
    Ok(lab.spawn(namespace, command)?)
}

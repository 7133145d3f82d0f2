//! Virtual machines for tests: `deploy/vm/guest/guest` boots them, with the programs of this workspace inside.

use std::path::PathBuf;
use std::process::{Command, Output};

use cxloe_lab::program;

use crate::command::{output, output_text};
use crate::outcome::{Outcome, ensure};
use crate::source;

/// Boots a guest with these options and runs `command` inside; returns the output of the script that boots the guest.
/// The script limits the time.
///
/// # Errors
/// Returns an error when the script cannot be started.
pub fn guest(options: &[&str], command: &str) -> Outcome<Output> {
    let mut guest = Command::new(source("deploy/vm/guest/guest"));
    guest.args(options).arg("--").arg(command);
    output(&mut guest)
}

/// Like [`guest`], with the shell functions of `fabric.sh` available to `command`, and the programs that they use in
/// `$programs`. The shell ends at the first error and prints the daemons' logs.
///
/// # Errors
/// Returns the errors of [`guest`], and an error when programs are missing.
pub fn guest_with_fabric(options: &[&str], command: &str) -> Outcome<Output> {
    let library = source("bench/system/tests/machines/guest/fabric.sh");
    let preamble = format!(
        "set -e; programs={}; . {}; trap 'tail -n 30 $FABRIC/*.log' ERR\n",
        programs()?.display(),
        library.display()
    );
    guest(options, &(preamble + command))
}

/// Folder of this workspace's programs, built first where needed.
fn programs() -> Outcome<PathBuf> {
    let agent = program("cn-agent")?;
    Ok(agent.parent().ok_or("a program lies in a folder")?.to_path_buf())
}

/// Text that a guest has printed, if its command ended with this status.
///
/// # Errors
/// Returns an error when the command ended with another status.
pub fn ended(output: Output, status: i32) -> Outcome<String> {
    ensure(output.status.code() == Some(status), format!("not {status}: {}", output_text(&output)))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

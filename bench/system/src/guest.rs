//! Guests for tests: `deploy/vm/guest/guest`, with the programs of this workspace at hand in it.

use std::path::PathBuf;
use std::process::{Command, Output};

use cxloe_lab::program;

use crate::command::{output, said};
use crate::outcome::{Outcome, ensure};
use crate::source;

/// Boots a guest with these options, runs `command` in it, and tells how that ended. The script bounds the time.
///
/// # Errors
/// When the script cannot be started.
pub fn guest(options: &[&str], command: &str) -> Outcome<Output> {
    let mut guest = Command::new(source("deploy/vm/guest/guest"));
    guest.args(options).arg("--").arg(command);
    output(&mut guest)
}

/// The same with `fabric.sh` in it, its programs in `$programs`, and a shell that ends at the first error and shows the
/// logs then.
///
/// # Errors
/// As [`guest`], or when there are no programs.
pub fn guest_with_fabric(options: &[&str], command: &str) -> Outcome<Output> {
    let library = source("bench/system/tests/machines/guest/fabric.sh");
    let preamble = format!(
        "set -e; programs={}; . {}; trap 'tail -n 30 $FABRIC/*.log' ERR\n",
        programs()?.display(),
        library.display()
    );
    guest(options, &(preamble + command))
}

/// Where the programs are, brought up to date.
fn programs() -> Outcome<PathBuf> {
    let agent = program("cn-agent")?;
    Ok(agent.parent().ok_or("a program lies in a folder")?.to_path_buf())
}

/// What a guest said, if its command ended with this status.
///
/// # Errors
/// When it ended otherwise.
pub fn ended(output: Output, status: i32) -> Outcome<String> {
    ensure(output.status.code() == Some(status), format!("not {status}: {}", said(&output)))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

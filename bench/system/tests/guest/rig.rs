//! Guests for tests: `deploy/vm/guest/guest`, with the programs of this workspace at hand in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cxloe_lab::program;
use libtest_mimic::Failed;

pub type Outcome<T = ()> = Result<T, Failed>;

pub fn ensure(holds: bool, otherwise: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(otherwise.into().into()) }
}

/// Boots a guest with these options, runs `command` in it, and tells how that ended. The script bounds the time.
pub fn guest(options: &[&str], command: &str) -> Outcome<Output> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/vm/guest/guest");
    let mut guest = Command::new(script);
    guest.args(options).arg("--").arg(command);
    Ok(guest.output()?)
}

/// The same with `fabric.sh` in it, its programs in `$programs`, and a shell that ends at the first error and shows the
/// logs then.
pub fn guest_with_fabric(options: &[&str], command: &str) -> Outcome<Output> {
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest/fabric.sh");
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
pub fn ended(output: Output, status: i32) -> Outcome<String> {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure(
        output.status.code() == Some(status),
        format!("{}, not {status}:\n{said}{errors}", output.status),
    )?;
    Ok(said)
}

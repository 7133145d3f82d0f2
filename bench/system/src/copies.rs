//! Copies of the test program: in another role, without rights, or as the user `nobody`.
//!
//! A test that needs a process to be killed, or one with other rights, starts a copy of its program with [`ROLE`] set,
//! which plays a [`Role`] instead of running tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use cxloe_lab::program;

use crate::outcome::Outcome;

/// Environment variable by which a test program tells its copy what to be.
pub const ROLE: &str = "CXLOE_TEST_ROLE";
/// The user `nobody` on Linux.
pub const NOBODY: u32 = 65534;

/// What a copy of the program can be instead of a run of tests: a name, and what it does.
pub type Role = (&'static str, fn() -> ExitCode);

/// What this process does in the role it was started in; `None` when it runs tests.
pub(crate) fn play(roles: &[Role]) -> Option<ExitCode> {
    let name = std::env::var(ROLE).ok()?;
    Some(roles.iter().find(|(known, _)| *known == name).map_or(ExitCode::from(2), |(_, play)| play()))
}

/// A copy of this program in another role, to be started in a lab.
///
/// # Errors
/// When the program has no path any more.
pub fn copy_as(role: &str) -> Outcome<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ROLE, role);
    Ok(command)
}

/// The same without any capability, as a process of an ordinary user on the machine itself would be.
///
/// # Errors
/// When the program has no path any more.
pub fn copy_without_rights_as(role: &str) -> Outcome<Command> {
    let mut command = without_rights(&std::env::current_exe()?);
    command.env(ROLE, role);
    Ok(command)
}

/// A program without any capability.
pub fn without_rights(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(program);
    command
}

/// A command that runs as `nobody`, from copies in `folder` of `program` and of the `others` it starts.
///
/// # Errors
/// When one of them cannot be copied.
pub fn as_nobody(folder: &Path, own: &Path, others: &[&str]) -> Outcome<Command> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    let copy = |from: &Path| -> Outcome<PathBuf> {
        let to = folder.join(from.file_name().ok_or("a program without a name")?);
        fs::copy(from, &to)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
        Ok(to)
    };
    for name in others {
        copy(&program(name)?)?;
    }
    let mut command = Command::new(copy(own)?);
    // Without Cargo at hand, the programs are those that lie beside.
    command.uid(NOBODY).gid(NOBODY).current_dir("/").env_remove("CARGO").env_remove("HOME");
    Ok(command)
}

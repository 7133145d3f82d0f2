//! Copies of the test program: with another function, without capabilities, or as the user `nobody`.
//!
//! A test that needs a process to kill, or a process with other rights, starts a copy of its own program with [`ROLE`]
//! set, which runs a [`Role`] instead of tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use cxloe_lab::program;

use crate::outcome::Outcome;

/// Environment variable with the name of the role that a copy of a test program runs.
pub const ROLE: &str = "CXLOE_TEST_ROLE";
/// User id of the user `nobody` on Linux.
pub const NOBODY: u32 = 65534;

/// Function that a copy of the test program runs instead of tests, after the name by which it is selected.
pub type Role = (&'static str, fn() -> ExitCode);

/// Runs the role named in the environment; `None` if this process is to run tests.
pub(crate) fn play(roles: &[Role]) -> Option<ExitCode> {
    let name = std::env::var(ROLE).ok()?;
    Some(roles.iter().find(|(known, _)| *known == name).map_or(ExitCode::from(2), |(_, play)| play()))
}

/// Command of a copy of this program in another role, to be started in a lab.
///
/// # Errors
/// Returns an error when the program's path is unknown.
pub fn copy_as(role: &str) -> Outcome<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ROLE, role);
    Ok(command)
}

/// Like [`copy_as`], without any capability, as a process of an ordinary user on the machine.
///
/// # Errors
/// Returns an error when the program's path is unknown.
pub fn copy_without_rights_as(role: &str) -> Outcome<Command> {
    let mut command = without_rights(&std::env::current_exe()?);
    command.env(ROLE, role);
    Ok(command)
}

/// Command that runs a program without any capability.
pub fn without_rights(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(program);
    command
}

/// A command that runs a copy of the program `own` as `nobody`; `folder` gets that copy and copies of the programs
/// `others` that it starts.
///
/// # Errors
/// Returns an error when a program cannot be copied.
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
    // Without Cargo's variables in the environment, the copy searches its own folder for programs.
    command.uid(NOBODY).gid(NOBODY).current_dir("/").env_remove("CARGO").env_remove("HOME");
    Ok(command)
}

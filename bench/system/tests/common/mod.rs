//! What the tests of the whole system share: how a test program runs (as root, and again as an ordinary user),
//! bounded waiting, copies of the program in other roles, and the places of the other programs.
//!
//! A test program calls [`run`] from `main`. As root it runs every test, then itself once more as the user
//! `nobody`; as an ordinary user it first moves into a user namespace of its own. Tests that need a process to be
//! killed, or one without rights, start a copy of the program with [`ROLE`] set, which plays a [`Role`] instead.

#![allow(dead_code, reason = "each test program uses its own part")]

pub mod node;
pub mod raw;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_lab::{Builder, Lab, Standing, become_private_user_namespace};
use libtest_mimic::{Arguments, Failed, Trial};

/// Environment variable by which a test program tells its copy what to be.
const ROLE: &str = "CXLOE_TEST_ROLE";
/// Bound of every wait for something that should happen soon.
pub const LIMIT: Duration = Duration::from_secs(20);
/// The user `nobody` on Linux.
const NOBODY: u32 = 65534;

pub type Outcome = Result<(), Failed>;

/// What a copy of the program can be instead of a run of tests.
pub type Role = (&'static str, fn() -> ExitCode);

/// Runs the tests that `tests` lists for the rights there are, or plays a role. `others` names the programs that
/// the tests start.
pub fn run(tests: fn(Standing) -> Vec<Trial>, roles: &[Role], others: &'static [&'static str]) -> ExitCode {
    if let Ok(name) = std::env::var(ROLE) {
        return match roles.iter().find(|(known, _)| *known == name) {
            Some((_, play)) => play(),
            None => ExitCode::from(2),
        };
    }
    let standing = match become_private_user_namespace() {
        Ok(standing) => standing,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(3);
        }
    };
    let mut trials = tests(standing);
    if standing == Standing::Root {
        let expected = tests(Standing::UserNamespace).len();
        trials.push(Trial::test("ordinary_user_passes_too", move || ordinary_user_passes(expected, others)));
    }
    let mut arguments = Arguments::from_args();
    // Threads that spin on both ends of a link: one test at a time.
    arguments.test_threads.get_or_insert(1);
    cxloe_lab::verdict(libtest_mimic::run(&arguments, trials).exit_code())
}

/// A copy of this program in another role, to be started in a lab.
pub fn copy_as(role: &str) -> Result<Command, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ROLE, role);
    Ok(command)
}

/// The same without any capability, as a process of an ordinary user on the machine itself would be.
pub fn copy_without_rights_as(role: &str) -> Result<Command, Failed> {
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

pub fn ensure(holds: bool, otherwise: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(otherwise.into().into()) }
}

/// Waits until `holds`, at most [`LIMIT`].
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Outcome {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        ensure(Instant::now() < deadline, format!("did not happen: {what}"))?;
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Two namespaces joined by one cable: cn with cn0, mn with mn0.
pub fn pair() -> Builder {
    Lab::builder().namespace("cn").namespace("mn").veth("cn", "cn0", "mn", "mn0")
}

/// Runs `ip` in a namespace of the lab; what it prints.
pub fn ip(lab: &Lab, namespace: &str, arguments: &[&str]) -> Result<String, Failed> {
    let output = lab.enter(namespace, || Command::new("ip").args(arguments).output())??;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.success(), format!("ip {}: {said}", arguments.join(" ")))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A command that runs as `nobody`, from copies in `folder` of `program` and of the `others` it starts.
pub fn as_nobody(folder: &Path, program: &Path, others: &[&str]) -> Result<Command, Failed> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    let copy = |from: &Path| -> Result<PathBuf, Failed> {
        let to = folder.join(from.file_name().ok_or("a program without a name")?);
        fs::copy(from, &to)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
        Ok(to)
    };
    for name in others {
        copy(&cxloe_lab::program(name)?)?;
    }
    let mut command = Command::new(copy(program)?);
    // Without Cargo at hand, the programs are those that lie beside.
    command.uid(NOBODY).gid(NOBODY).current_dir("/").env_remove("CARGO").env_remove("HOME");
    Ok(command)
}

fn ordinary_user_passes(tests: usize, others: &[&str]) -> Outcome {
    let folder = tempfile::tempdir()?;
    let output = as_nobody(folder.path(), &std::env::current_exe()?, others)?.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure(output.status.success(), format!("{text}{}", String::from_utf8_lossy(&output.stderr)))?;
    ensure(text.contains(&format!("{tests} passed")), text)
}

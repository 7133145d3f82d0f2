//! Callers of the manager's Unix socket: with the rights of the packaged unit, the kernel has to report the
//! caller's own user id, so that `admin_group` and the names in events are right. In a user namespace that
//! hides ids, the manager has to report that.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cxloe_lab::{Lab, Process, program};

use super::is_root;
use super::rights::{DAEMON, GROUP, PERSON, restricted};
use super::unit::{UNITS, Unit};
use cxloe_system::command::{failed_with, output_text};
use cxloe_system::pair::{Outcome, ensure, eventually, saying};

/// Group of the manager's administrators; the id has no name.
const ADMINS: &str = "65532";
/// Words that the manager logs if it does not see the user ids of its callers.
const HIDDEN: &str = "does not map all ids";

/// A manager on a socket in a folder that every user may enter.
struct Manager {
    dir: tempfile::TempDir,
    _gmm: Process,
}

impl Manager {
    /// Starts `gmm` as user and group `owner`, and waits until it answers. `started` makes the command from the path of
    /// `gmm`.
    fn start(
        lab: &Lab,
        owner: Option<(&str, &str)>,
        started: impl FnOnce(&Path) -> Outcome<Command>,
    ) -> Outcome<Manager> {
        let dir = tempfile::tempdir()?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        let state = dir.path().join("state");
        fs::create_dir(&state)?;
        fs::set_permissions(&state, fs::Permissions::from_mode(0o755))?;
        if let Some((user, group)) = owner {
            chown(&state, Some(user.parse()?), Some(group.parse()?))?;
        }
        let copy = dir.path().join("gmm");
        fs::copy(program("gmm")?, &copy)?;
        let mut command = started(&copy)?;
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin-group", ADMINS, "--store"]);
        command.arg(state.join("gmm.redb")).arg("--socket").arg(state.join("gmm.sock"));
        Process::log_to(&mut command, &dir.path().join("gmm.log"))?;
        let manager = Manager { _gmm: lab.spawn("mn", command)?, dir };
        let answers = || manager.gmm(None, &["whoami"]).ok().filter(|output| output.status.success());
        eventually("the manager answers", answers)
            .map_err(|_| fs::read_to_string(manager.log()).unwrap_or_default())?;
        Ok(manager)
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("gmm.log")
    }

    /// Runs a command of `gmm` at the manager's socket, as this user, or with another user id and group id.
    fn gmm(&self, user: Option<(&str, &str)>, arguments: &[&str]) -> Outcome<Output> {
        let gmm = self.dir.path().join("gmm");
        let mut command = match user {
            Some((uid, gid)) => {
                let mut other = Command::new("setpriv");
                other.args(["--reuid", uid, "--regid", gid, "--clear-groups", "--"]).arg(gmm);
                other
            }
            None => Command::new(gmm),
        };
        let socket = self.dir.path().join("state/gmm.sock");
        command.arg("--manager").arg(format!("unix:{}", socket.display())).args(arguments);
        Ok(command.current_dir("/").output()?)
    }
}

/// No unit sets `PrivateUsers=`, which hides user ids. Manager and agent get a program's user id from the kernel, and
/// decide by it what the program may use.
pub fn no_unit_hides_the_ids_of_users() -> Outcome {
    for (name, ..) in UNITS {
        let unit = Unit::read(name)?;
        let hides: Vec<&str> = unit.values("PrivateUsers").filter(|value| *value != "no").collect();
        ensure(
            hides.is_empty(),
            format!("{name}: PrivateUsers={hides:?} turns all ids but root's into 65534"),
        )?;
    }
    Ok(())
}

pub fn members_of_the_admin_group_are_administrators() -> Outcome {
    let lab = Lab::builder().namespace("mn").build()?;
    if is_root() {
        let manager = Manager::start(&lab, Some((DAEMON, GROUP)), |gmm| restricted("gmm", "", gmm))?;
        let create = ["token", "create", "--role", "mn"];
        let made = manager.gmm(Some((PERSON, ADMINS)), &create)?;
        ensure(made.status.success(), output_text(&made))?;
        failed_with(&manager.gmm(Some((PERSON, PERSON)), &create)?, 5, &[&format!("uid {PERSON}")])?;
        ensure(saying(&manager.log(), HIDDEN).is_none(), fs::read_to_string(manager.log())?)?;
    }
    // The manager has to notice a user namespace with one id, as for a service with `PrivateUsers=` or in a
    // rootless container.
    let manager = Manager::start(&lab, None, |gmm| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-current-user", "--"]).arg(gmm);
        Ok(command)
    })?;
    saying(&manager.log(), HIDDEN).ok_or_else(|| fs::read_to_string(manager.log()).unwrap_or_default())?;
    Ok(())
}

//! The keeper, a process that holds a lab's namespaces, and access to those namespaces.

#![expect(unsafe_code, reason = "the keeper gets a session of its own between fork and exec")]

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::wait;
use nix::unistd::{Pid, geteuid, setsid};

use super::settings::{LabSettings, MANAGER_ADDRESS, SWITCH, address_of};
use super::{NamedError, NamedLab};
use crate::Lab;

/// Folder in which `ip` looks up namespaces by name.
const NAMES: &str = "/run/netns";
/// Interval at which a keeper without children checks for orphaned processes to reap.
const IDLE: Duration = Duration::from_millis(500);

/// Returns the process id of the keeper in the caller's PID namespace; `None` when no lab is up.
pub(super) fn keeper_pid(folder: &Path) -> Option<u32> {
    let pid: u32 = fs::read_to_string(folder.join("keeper")).ok()?.trim().parse().ok()?;
    // Another program may have the same process id by now. A keeper is recognised by its arguments, which contain the
    // lab's folder.
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let own = folder.as_os_str().as_encoded_bytes();
    arguments.split(|byte| *byte == 0).any(|argument| argument == own).then_some(pid)
}

/// Returns true if the keeper has made the whole network.
pub(super) fn is_ready(folder: &Path) -> bool {
    folder.join("ready").exists()
}

/// Returns a command that enters the lab's namespaces and then executes the words appended to it; `None` if
/// no lab is up.
pub(super) fn inside(folder: &Path) -> Option<Command> {
    let pid = keeper_pid(folder)?;
    let mut command = Command::new("nsenter");
    command.args(["--target", &pid.to_string()]);
    // Without root, the lab's other namespaces can only be entered from the user namespace that owns them.
    if !geteuid().is_root() {
        command.args(["--user", "--preserve-credentials"]);
    }
    command.args(["--mount", "--net", &format!("--pid=/proc/{pid}/ns/pid_for_children"), "--"]);
    Some(command)
}

/// Kills the keeper; the kernel then ends all processes in the PID namespace that the keeper began.
pub(super) fn end(pid: u32) {
    // `kill` fails if the keeper has already ended, and then there is nothing to do.
    let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
}

impl NamedLab {
    /// Starts the keeper: this program again, in new namespaces, with the arguments `keep` and the lab's
    /// folder.
    pub(super) fn start_keeper(&self, keep: &[&str]) -> Result<Child, NamedError> {
        let failed =
            |error: std::io::Error| NamedError::failed(format!("starting the lab's keeper: {error}"));
        let log = fs::File::create(self.folder.join("keeper.log")).map_err(failed)?;
        let mut keeper = Command::new("unshare");
        if !geteuid().is_root() {
            keeper.args(["--user", "--map-root-user"]);
        }
        keeper.args(["--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child=KILL", "--"]);
        keeper.arg(std::env::current_exe().map_err(failed)?).args(keep).arg(&self.folder);
        keeper.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
        // SAFETY: the closure makes one system call between fork and exec, and does not allocate memory.
        unsafe {
            keeper.pre_exec(|| setsid().map(drop).map_err(std::io::Error::from));
        }
        let child = keeper.spawn().map_err(failed)?;
        fs::write(self.folder.join("keeper"), child.id().to_string()).map_err(failed)?;
        Ok(child)
    }
}

/// Runs the keeper: makes the network of the lab in `folder`, then keeps it and reaps orphaned processes until it is
/// killed.
///
/// # Errors
/// Fails when the network cannot be made.
pub fn keep(folder: &Path) -> Result<(), NamedError> {
    let settings = LabSettings::load(folder, "cxloe-bench lab")?;
    let _lab = network(&settings)?;
    fs::write(folder.join("ready"), "").map_err(|error| NamedError::failed(error.to_string()))?;
    // The keeper is process 1 of its PID namespace, so it inherits each process whose parent has ended.
    loop {
        if wait() == Err(Errno::ECHILD) {
            thread::sleep(IDLE);
        }
    }
}

/// Makes the star network with its IP addresses, and names its namespaces for `ip netns exec`.
fn network(settings: &LabSettings) -> Result<Lab, NamedError> {
    let mut star = Lab::star(settings.memory_nodes, settings.compute_nodes).mtu(settings.mtu);
    star = star.address("br0", &format!("{MANAGER_ADDRESS}/16"));
    for node in settings.nodes() {
        star = star.address(&node, &format!("{}/16", address_of(&node)));
    }
    let lab = star.build()?;
    // A namespace gets a name by a mount in this folder. The keeper first mounts its own tmpfs over the folder, which
    // hides the names from the rest of the machine.
    let failed = |step: &str, error: String| NamedError::failed(format!("{step} {NAMES}: {error}"));
    let tmpfs = |place: &str| {
        mount(Some("lab"), place, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))
            .map_err(|error| failed("mounting", error.to_string()))
    };
    if !Path::new(NAMES).is_dir() {
        tmpfs("/run")?;
    }
    fs::create_dir_all(NAMES).map_err(|error| failed("making", error.to_string()))?;
    tmpfs(NAMES)?;
    for node in std::iter::once(SWITCH.to_owned()).chain(settings.nodes()) {
        lab.namespace(&node)?.give_name(&PathBuf::from(NAMES).join(&node))?;
    }
    Ok(lab)
}

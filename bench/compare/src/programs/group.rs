//! Process group with a memory limit: a control group of the memory controller, version 1 or 2.
//!
//! The control group's folder is removed on drop, by which time its processes must have ended.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::error::ProgramsError;

/// Prefix of the groups' names, followed by the id of this process.
const NAME: &str = "cxloe-programs-";
/// Number of attempts to remove a folder that is still in use, and the pause between them.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// Folder in which control groups are made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Root {
    folder: PathBuf,
    /// Name of the file that sets the limit.
    limit: &'static str,
}

/// Control group with a limit.
#[derive(Debug)]
pub(super) struct Group {
    folder: PathBuf,
    limit: &'static str,
}

/// Folder of the memory controller if `line`, a line of `/proc/self/mountinfo`, describes its mount; `None`
/// for other mounts.
fn root_of(line: &str, controllers: impl Fn(&Path) -> String) -> Option<Root> {
    let (mount, kind) = line.split_once(" - ")?;
    let folder = PathBuf::from(mount.split(' ').nth(4)?);
    let mut kind = kind.split(' ');
    match kind.next()? {
        "cgroup" => {
            kind.nth(1)?.split(',').any(|option| option == "memory").then_some("memory.limit_in_bytes")
        }
        "cgroup2" => {
            controllers(&folder).split_whitespace().any(|one| one == "memory").then_some("memory.max")
        }
        _ => None,
    }
    .map(|limit| Root { folder, limit })
}

fn root() -> Option<Root> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // Only controllers that a control group has enabled for its child groups can limit a new group.
    let controllers =
        |folder: &Path| fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap_or_default();
    mounts.lines().find_map(|line| root_of(line, controllers))
}

impl Group {
    /// Reason why no group can be made; `None` if one can.
    pub fn hindrance() -> Option<String> {
        let Some(root) = root() else {
            return Some("no control group can limit memory here: mount the memory controller".into());
        };
        let tried = root.folder.join(format!("{NAME}{}-try", std::process::id()));
        let made = fs::create_dir(&tried).and_then(|()| fs::remove_dir(&tried));
        made.err().map(|error| format!("no control group can be made in {}: {error}", root.folder.display()))
    }

    /// Makes a group whose processes may together have `bytes` bytes resident.
    pub fn limited(bytes: u64) -> Result<Group, ProgramsError> {
        let no = || ProgramsError::io("limiting memory")(ErrorKind::NotFound.into());
        let Root { folder, limit } = root().ok_or_else(no)?;
        forget_old(&folder);
        let group = Group { folder: folder.join(format!("{NAME}{}", std::process::id())), limit };
        let failed = |what: &str| ProgramsError::io(format!("{what} {}", group.folder.display()));
        match fs::create_dir(&group.folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed("making")(error)),
            _ => {}
        }
        let file = group.folder.join(group.limit);
        fs::write(&file, bytes.to_string()).map_err(failed("limiting"))?;
        Ok(group)
    }

    /// Path of the file to which a process's id is written to put the process into the group.
    pub fn members(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == ErrorKind::ResourceBusy => thread::sleep(PAUSE),
                _ => return,
            }
        }
    }
}

/// Removes groups left behind by processes that have ended.
fn forget_old(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner =
            name.to_str().and_then(|name| name.strip_prefix(NAME)).and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_controller_is_found_in_both_versions() {
        let none = |_: &Path| String::new();
        let one = "35 24 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
        let found = root_of(one, none).unwrap();
        assert_eq!(
            (found.folder.to_str(), found.limit),
            (Some("/sys/fs/cgroup/memory"), "memory.limit_in_bytes")
        );
        assert_eq!(root_of("36 24 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct", none), None);
        let two = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(root_of(two, none), None);
        let found = root_of(two, |_| "cpu memory pids".into()).unwrap();
        assert_eq!((found.folder.to_str(), found.limit), (Some("/sys/fs/cgroup"), "memory.max"));
        assert_eq!(root_of("1 2 0:1 / / rw - ext4 /dev/vda rw", none), None);
    }
}

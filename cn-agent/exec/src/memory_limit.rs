//! Limits on a program's memory on this machine: the limit of its control group, which includes resident
//! remote memory, and the kernel's commit limit if the kernel does not overcommit.

use std::fs;
use std::path::{Path, PathBuf};

/// 1/`OWN_PART` of a group's limit is reserved for memory that is never remote: the program's stacks and
/// files, and the kernel's page tables.
const OWN_PART: u64 = 8;
const OWN_MIN: u64 = 32 << 20;
/// Smallest value that means "no limit": cgroup v1 shows the largest number of pages, in bytes.
const ENDLESS: u64 = 1 << 60;

/// The lowest limit of a control group that this process is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    pub bytes: u64,
    pub file: PathBuf,
}

impl GroupLimit {
    /// Finds the limit of this process; `None` if it has none, or it cannot be found.
    pub fn of_this_process() -> Option<GroupLimit> {
        let read = |name| fs::read_to_string(format!("/proc/self/{name}")).ok();
        let (mounts, groups) = (read("mountinfo")?, read("cgroup")?);
        let folders = mounts.lines().filter_map(|mount| Hierarchy::of(mount)?.folders(&groups));
        let files = folders.flat_map(|(folders, names)| {
            folders.into_iter().flat_map(move |folder| names.iter().map(move |name| folder.join(name)))
        });
        let limits = files.filter_map(|file| {
            let bytes = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
            (bytes < ENDLESS).then_some(GroupLimit { bytes, file })
        });
        limits.min_by_key(|limit| limit.bytes)
    }

    /// Bytes of remote memory, at most `asked`, that may be resident in this group.
    pub fn resident(&self, asked: u64) -> u64 {
        let own = (self.bytes / OWN_PART).max(OWN_MIN).min(self.bytes / 2);
        asked.min(self.bytes - own)
    }
}

/// A hierarchy of control groups that limits memory.
struct Hierarchy<'a> {
    /// Control group that is the root of this mount, as a path from the hierarchy's root.
    root: &'a str,
    mounted_at: &'a Path,
    /// Whether this is cgroup version 2, in which all controllers share one hierarchy.
    unified: bool,
}

impl<'a> Hierarchy<'a> {
    /// The hierarchy in a line of `/proc/PID/mountinfo` (proc(5)).
    fn of(mount: &'a str) -> Option<Hierarchy<'a>> {
        let (place, kind) = mount.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, at) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let unified = match (kind.next()?, kind.nth(1)) {
            ("cgroup2", _) => true,
            ("cgroup", Some(options)) if options.split(',').any(|option| option == "memory") => false,
            _ => return None,
        };
        Some(Hierarchy { root, mounted_at: Path::new(at), unified })
    }

    /// Folders of the group in `groups` (the text of `/proc/PID/cgroup`) and of its parent groups, and the
    /// names of the files in them that hold limits.
    fn folders(&self, groups: &str) -> Option<(Vec<PathBuf>, &'static [&'static str])> {
        let mut groups = groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let is_its = |controllers: &str| match self.unified {
            true => controllers.is_empty(),
            false => controllers.split(',').any(|controller| controller == "memory"),
        };
        let (_, group) = groups.find(|(controllers, _)| is_its(controllers))?;
        let within = Path::new(group).strip_prefix(self.root).ok()?;
        let folders = within.ancestors().map(|part| self.mounted_at.join(part)).collect();
        let names: &[&str] =
            if self.unified { &["memory.max", "memory.high"] } else { &["memory.limit_in_bytes"] };
        Some((folders, names))
    }
}

/// Bytes that may still be committed, where the kernel does not overcommit (`vm.overcommit_memory=2`); `None`
/// elsewhere.
pub fn committable() -> Option<u64> {
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").ok()?;
    if mode.trim() != "2" {
        return None;
    }
    uncommitted(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn uncommitted(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.parse().ok()
    };
    Some(kib("CommitLimit")?.saturating_sub(kib("Committed_AS")?).saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_both_versions_are_found() {
        let groups = "4:memory:/a/b\n1:cpu,cpuacct:/c\n0::/user.slice/x.scope\n";
        let folders = |mount: &str| Some(Hierarchy::of(mount)?.folders(groups)?.0);
        let paths = |paths: &[&str]| Some(paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(
            folders("35 24 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"),
            paths(&["/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory/"])
        );
        assert_eq!(
            folders("30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate"),
            paths(&["/sys/fs/cgroup/user.slice/x.scope", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup/"])
        );
        // In a container, the group itself is mounted as the root.
        assert_eq!(
            folders("35 24 0:30 /a/b /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory"),
            paths(&["/sys/fs/cgroup/memory/"])
        );
        assert_eq!(folders("36 24 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct"), None);
        assert_eq!(folders("22 1 8:1 / / rw - ext4 /dev/sda1 rw"), None);
    }

    #[test]
    fn a_part_of_the_limit_is_left_for_other_memory() {
        let resident = |bytes: u64, asked| GroupLimit { bytes, file: PathBuf::new() }.resident(asked);
        assert_eq!(resident(1 << 30, 64 << 20), 64 << 20);
        assert_eq!(resident(1 << 30, 1 << 30), (1 << 30) - (128 << 20));
        assert_eq!(resident(64 << 20, 64 << 20), 32 << 20);
        assert_eq!(resident(16 << 20, 64 << 20), 8 << 20);
    }

    #[test]
    fn what_may_be_committed_is_the_rest() {
        let meminfo = "MemTotal:  100 kB\nCommitLimit:      1000 kB\nCommitted_AS:   400 kB\n";
        assert_eq!(uncommitted(meminfo), Some(600 << 10));
        assert_eq!(uncommitted("CommitLimit: 1 kB\nCommitted_AS: 2 kB"), Some(0));
        assert_eq!(uncommitted(""), None);
    }
}

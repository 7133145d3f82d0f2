//! Programs that are not installed, and ways of holding memory (remote, swapped) that this machine does not support,
//! with the reasons.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::MemoryBacking;
use super::group::Group;
use crate::stage::find;
use cxloe_lab::LabPrivilege;

/// Program or way of holding memory that is not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Absent {
    /// Name of the program, or of the way of holding memory.
    pub name: String,
    /// Reason, and advice to the user.
    pub reason: String,
}

/// Returns the ways of holding memory in `asked` that this machine does not support, with the reasons; `folder` is the
/// folder for swap files.
pub fn absent_ways(
    asked: &[MemoryBacking],
    standing: LabPrivilege,
    folder: &Path,
) -> Vec<(MemoryBacking, Absent)> {
    let absent = |way: &MemoryBacking| {
        let reason = hindrance(*way, standing, folder)?;
        Some((*way, Absent { name: way.name().into(), reason }))
    };
    asked.iter().filter_map(absent).collect()
}

/// Reason why a swap file cannot be in `folder`, such as a file system in memory; `None` if it can.
fn unfit(folder: &Path) -> Option<String> {
    let words =
        |why: String| Some(format!("{}: {why}; name a folder on a disk with --swap-dir", folder.display()));
    if let Err(error) = fs::create_dir_all(folder) {
        return words(error.to_string());
    }
    match nix::sys::statfs::statfs(folder) {
        Err(error) => words(error.to_string()),
        Ok(system) if system.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC => {
            words("a file system in memory takes no swap".into())
        }
        Ok(system) if system.filesystem_type() == nix::sys::statfs::OVERLAYFS_SUPER_MAGIC => {
            words("an overlay file system takes no swap".into())
        }
        Ok(_) => None,
    }
}

/// Reason why this machine does not support a way of holding memory; `None` if it does. `folder` is the folder for swap
/// files.
fn hindrance(way: MemoryBacking, standing: LabPrivilege, folder: &Path) -> Option<String> {
    let root =
        || (standing != LabPrivilege::Root).then(|| "it takes root: run the same with sudo".to_owned());
    let swaps = || {
        let missing = ["mkswap", "swapon", "swapoff"].into_iter().find(|tool| find(tool).is_none());
        let missing =
            missing.map(|tool| format!("{tool} is not installed: apt-get install util-linux mount"));
        root().or(missing).or_else(Group::hindrance)
    };
    match way {
        MemoryBacking::Local => None,
        MemoryBacking::Exec => root(),
        MemoryBacking::SwapFile => swaps().or_else(|| unfit(folder)),
        MemoryBacking::SwapZram => swaps().or_else(|| {
            let absent = !Path::new("/sys/class/zram-control/hot_add").exists();
            absent.then(|| "the kernel has no zram here: modprobe zram".to_owned())
        }),
        MemoryBacking::SwapNbd => swaps().or_else(|| {
            if !Path::new("/sys/block/nbd0").exists() {
                return Some("the kernel has no NBD driver here: modprobe nbd".into());
            }
            let none = find("nbd-client").is_none();
            none.then(|| "nbd-client is not installed: apt-get install nbd-client".into())
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backings_are_named_and_an_ordinary_user_gets_the_reason() {
        for way in MemoryBacking::LIMITED {
            assert_eq!(way.name().parse::<MemoryBacking>(), Ok(way));
            assert_eq!(serde_json::to_value(way).unwrap(), way.name());
        }
        assert!("local".parse::<MemoryBacking>().is_err(), "it is always measured");
        let absent = absent_ways(&MemoryBacking::LIMITED, LabPrivilege::UserNamespace, Path::new("/"));
        assert_eq!(absent.len(), MemoryBacking::LIMITED.len());
        assert!(absent.iter().all(|(_, one)| one.reason.contains("sudo")), "{absent:?}");
    }

    #[test]
    fn memory_takes_no_file_of_swap() {
        if Path::new("/dev/shm").exists() {
            assert!(unfit(Path::new("/dev/shm")).unwrap().contains("--swap-dir"));
        }
    }
}

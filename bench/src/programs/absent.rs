//! What is not measured, and why: programs that are not installed, ways that this machine has not.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::Way;
use super::group::Group;
use crate::compare::stage::find;
use cxloe_lab::Standing;

/// What was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Absent {
    /// A program or a way.
    pub name: String,
    /// Why not, and what to do about it.
    pub reason: String,
}

/// The ways of `asked` that cannot be had, and why. Files of swap would be in `folder`.
pub fn absent_ways(asked: &[Way], standing: Standing, folder: &Path) -> Vec<(Way, Absent)> {
    let absent = |way: &Way| {
        let reason = hindrance(*way, standing, folder)?;
        Some((*way, Absent { name: way.name().into(), reason }))
    };
    asked.iter().filter_map(absent).collect()
}

/// Why a file in `folder` cannot be swapped to: a file system in memory would only pretend to.
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

/// Why a way cannot be had here, if it cannot; files of swap would be in `folder`.
fn hindrance(way: Way, standing: Standing, folder: &Path) -> Option<String> {
    let root = || (standing != Standing::Root).then(|| "it takes root: run the same with sudo".to_owned());
    let swaps = || {
        let missing = ["mkswap", "swapon", "swapoff"].into_iter().find(|tool| find(tool).is_none());
        let missing =
            missing.map(|tool| format!("{tool} is not installed: apt-get install util-linux mount"));
        root().or(missing).or_else(Group::hindrance)
    };
    match way {
        Way::Local => None,
        Way::Exec => root(),
        Way::SwapFile => swaps().or_else(|| unfit(folder)),
        Way::SwapZram => swaps().or_else(|| {
            let absent = !Path::new("/sys/class/zram-control/hot_add").exists();
            absent.then(|| "the kernel has no zram here: modprobe zram".to_owned())
        }),
        Way::SwapNbd => swaps().or_else(|| {
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
    fn ways_are_named_and_an_ordinary_user_hears_why_not() {
        for way in Way::LIMITED {
            assert_eq!(way.name().parse::<Way>(), Ok(way));
            assert_eq!(serde_json::to_value(way).unwrap(), way.name());
        }
        assert!("local".parse::<Way>().is_err(), "it is always measured");
        let absent = absent_ways(&Way::LIMITED, Standing::UserNamespace, Path::new("/"));
        assert_eq!(absent.len(), Way::LIMITED.len());
        assert!(absent.iter().all(|(_, one)| one.reason.contains("sudo")), "{absent:?}");
    }

    #[test]
    fn memory_takes_no_file_of_swap() {
        if Path::new("/dev/shm").exists() {
            assert!(unfit(Path::new("/dev/shm")).unwrap().contains("--swap-dir"));
        }
    }
}

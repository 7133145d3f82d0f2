//! The ways in which a program gets more memory than may be resident, and which of them this machine has.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::Serialize;

use super::group::Group;
use super::table::Absent;
use crate::compare::stage::find;
use cxloe_lab::Standing;

/// Where a program's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// All of it in this machine.
    Local,
    /// Remote, under `cn-agent exec`.
    Exec,
    /// Swapped to a region that `cn-agent nbd` serves as a block device.
    SwapNbd,
    /// Swapped to compressed memory of this machine.
    SwapZram,
    /// Swapped to a file.
    SwapFile,
}

impl Way {
    /// Those that limit what is resident, in the order of reports.
    pub const LIMITED: [Way; 4] = [Way::Exec, Way::SwapNbd, Way::SwapZram, Way::SwapFile];

    /// Its name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Way::Local => "local",
            Way::Exec => "exec",
            Way::SwapNbd => "swap-nbd",
            Way::SwapZram => "swap-zram",
            Way::SwapFile => "swap-file",
        }
    }

    /// What it is.
    pub fn what(self) -> &'static str {
        match self {
            Way::Local => "memory of this machine, no limit",
            Way::Exec => "remote memory under cn-agent exec, from a memory node over a veth pair",
            Way::SwapNbd => "swap on a region of the same memory node, as a block device of cn-agent nbd",
            Way::SwapZram => {
                "swap to compressed memory of this machine (zram), which comes on top of what may be resident"
            }
            Way::SwapFile => "swap to a file on this machine's disk",
        }
    }

    /// Why it cannot be had here, if it cannot; files of swap would be in `folder`.
    fn hindrance(self, standing: Standing, folder: &Path) -> Option<String> {
        let root =
            || (standing != Standing::Root).then(|| "it takes root: run the same with sudo".to_owned());
        let swaps = || {
            let missing = ["mkswap", "swapon", "swapoff"].into_iter().find(|tool| find(tool).is_none());
            let missing =
                missing.map(|tool| format!("{tool} is not installed: apt-get install util-linux mount"));
            root().or(missing).or_else(Group::hindrance)
        };
        match self {
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
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Way, String> {
        let names = || Way::LIMITED.map(Way::name).join(", ");
        let found = Way::LIMITED.into_iter().find(|way| way.name() == text);
        found.ok_or_else(|| format!("there is no way called `{text}`; there are {}", names()))
    }
}

/// The ways of `asked` that cannot be had, and why. Files of swap would be in `folder`.
pub fn absent_ways(asked: &[Way], standing: Standing, folder: &Path) -> Vec<(Way, Absent)> {
    let absent = |way: &Way| {
        let reason = way.hindrance(standing, folder)?;
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

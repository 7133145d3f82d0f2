//! Folders that a daemon writes to, and files that only their owner may read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};

use crate::doctor::{Check, Group, size};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Folder {
    exists: bool,
    /// True if files can be created in the folder or, if it does not exist, the folder itself in its nearest existing
    /// parent.
    writable: bool,
    free: u64,
}

fn read_folder(path: &Path) -> Folder {
    let there = path.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
    let room = statvfs(there).map_or(0, |fs| fs.blocks_available() * fs.fragment_size());
    Folder {
        exists: path.is_dir(),
        writable: access(there, AccessFlags::W_OK | AccessFlags::X_OK).is_ok(),
        free: room,
    }
}

/// Judges the folder at `path` for the files that `name` describes: it has to be writable, with `needed`
/// bytes free. `flag` is the option that selects another folder.
pub fn folder_for_files(name: &str, path: &Path, needed: u64, flag: &str) -> Check {
    judge_folder(name, path, read_folder(path), needed, flag)
}

fn judge_folder(name: &str, path: &Path, folder: Folder, needed: u64, flag: &str) -> Check {
    let group = Group::Memory;
    let shown = path.display();
    if !folder.writable {
        let advice = format!(
            "start it as the user it runs as, or let that user write there: chown USER {shown}; or choose another place with {flag}"
        );
        let found = if folder.exists { "is not writable" } else { "is not there and cannot be made" };
        return Check::fail(group, name, format!("{shown} {found} by this user"), advice);
    }
    let found =
        format!("{shown}, {} free{}", size(folder.free), if folder.exists { "" } else { ", to be made" });
    if folder.free < needed {
        let advice =
            format!("{} are needed: make room there, or choose another place with {flag}", size(needed));
        return Check::fail(group, name, found, advice);
    }
    Check::ok(group, name, found)
}

/// Judges a file that only its owner may read, such as a file with a key.
pub fn secret(name: &str, path: &Path) -> Check {
    let about = fs::File::open(path).and_then(|file| file.metadata()).map(|about| about.permissions().mode());
    judge_secret(name, path, about)
}

fn judge_secret(name: &str, path: &Path, mode: std::io::Result<u32>) -> Check {
    let (group, shown) = (Group::Configuration, path.display());
    match mode {
        Err(error) => {
            let advice = format!(
                "give it to the user of the daemon, and to nobody else: chown cxloe {shown}; chmod 600 {shown}"
            );
            Check::fail(group, name, format!("{shown}: {error}"), advice)
        }
        Ok(mode) if mode & 0o077 != 0 => Check::fail(
            group,
            name,
            format!("others than its owner may open {shown} (mode {:o})", mode & 0o777),
            format!(
                "who reads it can forge frames: chmod 600 {shown}; write a new key if somebody may have read it"
            ),
        ),
        Ok(mode) => Check::ok(group, name, format!("{shown}, mode {:o}", mode & 0o777)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn a_folder_has_to_be_writable_and_large_enough() {
        let path = Path::new("/srv/pool");
        let folder = Folder { exists: true, writable: true, free: 10 << 30 };
        let level = |folder, needed| judge_folder("pool", path, folder, needed, "--pool").level;
        assert_eq!((level(folder, 10 << 30), level(folder, (10 << 30) + 1)), (Level::Ok, Level::Fail));
        assert_eq!(level(Folder { exists: false, ..folder }, 0), Level::Ok);
        let closed = judge_folder("pool", path, Folder { writable: false, ..folder }, 0, "--pool");
        assert_eq!(closed.level, Level::Fail);
        assert!(closed.advice.unwrap().contains("--pool"));
    }

    #[test]
    fn folders_are_looked_at_where_they_are_or_would_be() {
        let dir = tempfile::tempdir().unwrap();
        let here = read_folder(dir.path());
        assert!(here.exists && here.writable && here.free > 0);
        let deep = read_folder(&dir.path().join("a/b"));
        assert!(!deep.exists && deep.writable);
        assert!(!read_folder(Path::new("/proc/no/such")).exists);
    }

    #[test]
    fn a_key_is_for_its_owner() {
        let path = Path::new("/etc/cxloe/key");
        let level = |mode| judge_secret("key", path, Ok(mode)).level;
        assert_eq!(
            (level(0o100_640), level(0o100_600), level(0o100_644)),
            (Level::Fail, Level::Ok, Level::Fail)
        );
        let missing = secret("key", Path::new("/nonexistent/key"));
        assert_eq!(missing.level, Level::Fail);
        assert!(missing.found.contains("/nonexistent/key"), "{}", missing.found);
    }
}

//! Reading `/proc`, `/sys` and `/dev` below one root, so that a folder can describe another machine to a test.

use std::fs;
use std::path::{Path, PathBuf};

/// Machine whose files are read below one root.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

impl Default for Host {
    fn default() -> Host {
        Host::at("/")
    }
}

impl Host {
    /// Machine described by the files in `root/proc`, `root/sys` and `root/dev`.
    pub fn at(root: impl Into<PathBuf>) -> Host {
        Host { root: root.into() }
    }

    /// True for the running machine, false for a description in a folder.
    pub(crate) fn is_real(&self) -> bool {
        self.root == Path::new("/")
    }

    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// Text of a file, without white space at both ends; `None` if the file cannot be read.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_owned())
    }

    /// Number in a file; `None` if the file cannot be read or holds no number.
    pub fn number<T: std::str::FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Sorted names of the entries of a folder; empty if the folder cannot be read.
    pub fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Last part of the target of a symbolic link, as the name of a driver; `None` if there is no such link.
    pub fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// A list of CPUs, as in `0-3,8`; empty if the file cannot be read.
    pub fn cpus(&self, path: impl AsRef<Path>) -> Vec<usize> {
        self.text(path).map(|text| cpu_list(&text)).unwrap_or_default()
    }
}

/// Numbers of a list in the kernel's form; other text is skipped.
fn cpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
pub(crate) fn described(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let host = Host::at(root.path());
    (root, host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel() {
        assert_eq!(cpu_list("0-2,7"), [0, 1, 2, 7]);
        assert_eq!(cpu_list("5"), [5]);
        assert!(cpu_list("").is_empty());
    }

    #[test]
    fn what_is_not_there_is_none() {
        let (_root, host) = described(&[("sys/a/mtu", "1500\n"), ("sys/a/b", "x")]);
        assert_eq!((host.number("sys/a/mtu"), host.number::<u32>("sys/a/b")), (Some(1500_u32), None));
        assert_eq!(host.names("sys/a"), ["b", "mtu"]);
        assert!(host.names("sys/none").is_empty() && host.text("sys/none").is_none());
        assert!(host.link_name("sys/a/mtu").is_none() && host.link_name("sys/none").is_none());
        assert!(!host.is_real() && Host::default().is_real());
    }
}

//! Data from the kernel about this machine: its boot, memory, huge pages and devices. All are read below one root
//! directory, so that tests can describe another machine.

use std::fs;
use std::path::{Path, PathBuf};

/// A machine, as `/proc` and `/sys` below one root describe it.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Host { root: PathBuf::from("/") }
    }
}

impl Host {
    /// Makes a machine whose `proc` and `sys` are in `root`.
    pub fn at(root: impl Into<PathBuf>) -> Host {
        Host { root: root.into() }
    }

    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.read(path)?.trim().parse().ok()
    }

    /// Random id of this boot, from the kernel; 0 if unknown. The content of a pool that was not closed is valid only
    /// in the boot in which the pool was opened.
    pub fn boot_id(&self) -> u128 {
        let text = self.read("proc/sys/kernel/random/boot_id").unwrap_or_default();
        u128::from_str_radix(&text.trim().replace('-', ""), 16).unwrap_or(0)
    }

    /// Bytes that can be allocated without swapping: the least of `MemAvailable` and the limits of this process's
    /// control groups; `None` if unknown.
    pub fn available_memory(&self) -> Option<u64> {
        let meminfo = self.read("proc/meminfo")?;
        let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(self.cgroup_left().map_or(kib << 10, |left| left.min(kib << 10)))
    }

    /// Memory left by the limits of this process's control group (version 2) and its ancestors, in bytes.
    fn cgroup_left(&self) -> Option<u64> {
        let groups = self.read("proc/self/cgroup")?;
        let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        Path::new("sys/fs/cgroup")
            .join(group)
            .ancestors()
            .take_while(|dir| dir.starts_with("sys/fs/cgroup"))
            .filter_map(|dir| {
                let limit = self.number(dir.join("memory.max"))?;
                Some(limit.saturating_sub(self.number(dir.join("memory.current"))?))
            })
            .min()
    }

    fn huge_pages_dir(&self, page_bytes: u64) -> PathBuf {
        self.root.join(format!("sys/kernel/mm/hugepages/hugepages-{}kB", page_bytes >> 10))
    }

    /// Numbers of huge pages of this size: free, and reserved in all. Zeros if the kernel has no pages of that size.
    pub fn huge_pages(&self, page_bytes: u64) -> (u64, u64) {
        let dir = self.huge_pages_dir(page_bytes);
        (
            self.number(dir.join("free_hugepages")).unwrap_or(0),
            self.number(dir.join("nr_hugepages")).unwrap_or(0),
        )
    }

    /// Path of the file that sets the number of reserved huge pages of this size.
    pub fn huge_pages_knob(&self, page_bytes: u64) -> PathBuf {
        self.huge_pages_dir(page_bytes).join("nr_hugepages")
    }

    /// Size in bytes of the device-DAX node `name` (for example `dax0.0`).
    pub fn dax_bytes(&self, name: &str) -> Option<u64> {
        self.number(Path::new("sys/bus/dax/devices").join(name).join("size"))
    }

    /// Whether NUMA node `node` exists, and, for messages, the kernel's list of online nodes.
    pub fn numa_node(&self, node: u32) -> (bool, String) {
        let nodes = self.root.join("sys/devices/system/node");
        let online = fs::read_to_string(nodes.join("online")).unwrap_or_else(|_| "none".into());
        (nodes.join(format!("node{node}")).is_dir(), online.trim().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let host = Host::at(root.path());
        (root, host)
    }

    #[test]
    fn this_machine_has_a_boot_and_memory() {
        let host = Host::default();
        assert_ne!(host.boot_id(), 0);
        assert!(host.available_memory().unwrap() > 1 << 20);
    }

    #[test]
    fn control_groups_limit_memory() {
        let (_root, host) = machine(&[
            ("proc/meminfo", "MemTotal:  8388608 kB\nMemAvailable:  4194304 kB\n"),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/a/memory.current", "73741824\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.current", "1\n"),
        ]);
        assert_eq!(host.available_memory(), Some(1_000_000_000));
        let (_root, host) = machine(&[("proc/meminfo", "MemAvailable:  4194304 kB\n")]);
        assert_eq!(host.available_memory(), Some(4 << 30));
    }

    #[test]
    fn devices_and_huge_pages() {
        let (_root, host) = machine(&[
            ("sys/bus/dax/devices/dax0.0/size", "17179869184\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "3\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "10\n"),
        ]);
        assert_eq!(host.dax_bytes("dax0.0"), Some(16 << 30));
        assert_eq!(host.dax_bytes("dax1.0"), None);
        assert_eq!(host.huge_pages(2 << 20), (3, 10));
        assert_eq!(host.huge_pages(1 << 30), (0, 0));
        assert_eq!(host.boot_id(), 0);
        assert!(!host.numa_node(0).0);
    }
}

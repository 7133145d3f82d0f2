//! Settings of a lab, and names of its nodes.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::NamedError;
use crate::{compute_node_mac, memory_node_mac};

/// Maximum number of memory nodes, and of compute nodes, in a lab.
pub const NAMED_NODES_MAX: usize = crate::STAR_NODES_MAX;
/// Name of the namespace with the bridge and all its ports; the manager runs there too.
pub(super) const SWITCH: &str = "switch";
/// IP address of the manager inside the lab's network.
pub(super) const MANAGER_ADDRESS: &str = "10.77.0.1";
const FILE: &str = "settings.json";

/// Settings of a lab, kept as JSON in the lab's folder for later commands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabSettings {
    /// Number of memory nodes, called `mn0`, `mn1`, ….
    pub memory_nodes: usize,
    /// Number of compute nodes, called `cn0`, `cn1`, ….
    pub compute_nodes: usize,
    /// Memory that each memory node lends, written as `mn-server` accepts sizes.
    pub pool: String,
    /// True if pools are files, whose content outlives the processes of memory nodes.
    pub kept: bool,
    /// Size of a region for each compute node, written as `gmm` accepts sizes; `0` for no region.
    pub region: String,
    /// MTU of all interfaces, in bytes.
    pub mtu: u32,
    /// Kind of link that the daemons use, as the option `--link` names it.
    pub link: String,
    /// Wait style of idle daemons, as the option `--wait` names it.
    pub wait: String,
    /// Folder with the programs `gmm`, `mn-server` and `cn-agent`; empty to search the usual places.
    pub programs: PathBuf,
}

impl LabSettings {
    /// Returns the names of the nodes in order: `mn0`, `mn1`, …, `cn0`, `cn1`, ….
    pub(super) fn nodes(&self) -> Vec<String> {
        let kinds = [("mn", self.memory_nodes), ("cn", self.compute_nodes)];
        kinds.into_iter().flat_map(|(kind, count)| (0..count).map(move |i| format!("{kind}{i}"))).collect()
    }

    /// Returns the names of all daemons in the order of their start: the manager first, then the nodes.
    pub(super) fn daemons(&self) -> Vec<String> {
        std::iter::once("gmm".to_owned()).chain(self.nodes()).collect()
    }

    /// Reads the settings from a lab's folder. `typed` is the beginning of a command on this lab as users type it; the
    /// error message suggests such a command.
    pub(super) fn load(folder: &Path, typed: &str) -> Result<LabSettings, NamedError> {
        let path = folder.join(FILE);
        let failed = |why: String| {
            NamedError::failed(format!("{}: {why}; make it anew: {typed} down", path.display()))
        };
        let text = fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| failed(error.to_string()))
    }

    pub(super) fn store(&self, folder: &Path) -> Result<(), NamedError> {
        let path = folder.join(FILE);
        let text =
            serde_json::to_string_pretty(self).map_err(|error| NamedError::failed(error.to_string()))?;
        fs::write(&path, text).map_err(|error| NamedError::failed(format!("{}: {error}", path.display())))
    }
}

/// Splits a node's name into the kind, `mn` or `cn`, and the number.
fn parts(node: &str) -> Option<(&str, usize)> {
    let (kind, number) = node.split_at_checked(2)?;
    Some((kind, number.parse().ok()?))
}

/// Returns the MAC address of a node's interface; `-` for the manager, which has no interface of its own.
pub(super) fn mac_of(node: &str) -> String {
    match parts(node) {
        Some(("mn", index)) => memory_node_mac(index),
        Some(("cn", index)) => compute_node_mac(index),
        _ => "-".into(),
    }
}

/// Returns the IP address of a node in the lab's network; any name but `mnN` or `cnN` stands for the manager.
pub(super) fn address_of(node: &str) -> String {
    match parts(node) {
        Some(("mn", index)) => format!("10.77.2.{}", index + 1),
        Some(("cn", index)) => format!("10.77.1.{}", index + 1),
        _ => MANAGER_ADDRESS.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_names_and_addresses() {
        let settings = LabSettings {
            memory_nodes: 2,
            compute_nodes: 1,
            pool: "64M".into(),
            kept: false,
            region: "0".into(),
            mtu: 1500,
            link: "packet".into(),
            wait: "sleep".into(),
            programs: PathBuf::new(),
        };
        assert_eq!(settings.daemons(), ["gmm", "mn0", "mn1", "cn0"]);
        assert_eq!(
            [mac_of("mn1"), mac_of("cn0"), mac_of("gmm")],
            ["02:00:00:00:02:01", "02:00:00:00:01:00", "-"]
        );
        assert_eq!(
            [address_of("mn1"), address_of("cn0"), address_of("switch")],
            ["10.77.2.2", "10.77.1.1", "10.77.0.1"]
        );
        let folder = tempfile::tempdir().expect("a temporary folder");
        settings.store(folder.path()).expect("it can be written");
        assert_eq!(LabSettings::load(folder.path(), "lab").expect("it can be read"), settings);
    }
}

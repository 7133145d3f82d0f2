//! Settings of a lab, and names of its nodes.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::NamedError;
use crate::{compute_node_mac, memory_node_mac};

/// Largest number of nodes of each kind.
pub const NAMED_NODES_MAX: usize = crate::STAR_NODES_MAX;
/// Name of the node with the bridge and all its ports, on which the manager runs.
pub(super) const SWITCH: &str = "switch";
/// IP address of the manager, in the lab's network.
pub(super) const MANAGER_ADDRESS: &str = "10.77.0.1";
const FILE: &str = "settings.json";

/// Settings of a lab, kept in its folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabSettings {
    /// Number of memory nodes, called `mn0`, `mn1`, ….
    pub memory_nodes: usize,
    /// Number of compute nodes, called `cn0`, `cn1`, ….
    pub compute_nodes: usize,
    /// Memory that each memory node lends, as `mn-server` reads sizes.
    pub pool: String,
    /// Set if pools are files, which outlive the processes of memory nodes.
    pub kept: bool,
    /// Size of a region for each compute node, as `gmm` reads sizes; `0` for no region.
    pub region: String,
    /// MTU of all interfaces, in bytes.
    pub mtu: u32,
    /// Link that the daemons use, as their option names it.
    pub link: String,
    /// Wait style of idle daemons, as their option names it.
    pub wait: String,
    /// Folder with the programs `gmm`, `mn-server` and `cn-agent`; empty to search the usual places.
    pub programs: PathBuf,
}

impl LabSettings {
    /// The nodes, in order: `mn0`, `mn1`, …, `cn0`, `cn1`, ….
    pub(super) fn nodes(&self) -> Vec<String> {
        let kinds = [("mn", self.memory_nodes), ("cn", self.compute_nodes)];
        kinds.into_iter().flat_map(|(kind, count)| (0..count).map(move |i| format!("{kind}{i}"))).collect()
    }

    /// Names of all daemons: the manager and all nodes.
    pub(super) fn daemons(&self) -> Vec<String> {
        std::iter::once("gmm".to_owned()).chain(self.nodes()).collect()
    }

    /// Reads the settings in a lab's folder; `typed` is the start of commands on this lab, for messages.
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

/// Kind of a node, `mn` or `cn`, and its number.
fn parts(node: &str) -> Option<(&str, usize)> {
    let (kind, number) = node.split_at_checked(2)?;
    Some((kind, number.parse().ok()?))
}

/// MAC address of a node's interface; `-` without an interface.
pub(super) fn mac_of(node: &str) -> String {
    match parts(node) {
        Some(("mn", index)) => memory_node_mac(index),
        Some(("cn", index)) => compute_node_mac(index),
        _ => "-".into(),
    }
}

/// IP address of a node, in the lab's network.
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

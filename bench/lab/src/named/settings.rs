//! What a lab is made of, and what its nodes are called.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::NamedError;
use crate::{compute_node_mac, memory_node_mac};

/// Most nodes of each kind.
pub const NAMED_NODES_MAX: usize = crate::STAR_NODES_MAX;
/// The node with the bridge and all ports, where the manager runs.
pub(super) const SWITCH: &str = "switch";
/// The manager's address.
pub(super) const MANAGER_ADDRESS: &str = "10.77.0.1";
/// The file in the lab's folder.
const FILE: &str = "settings.json";

/// What a lab is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Memory nodes: `mn0`, `mn1`, ….
    pub memory_nodes: usize,
    /// Compute nodes: `cn0`, `cn1`, ….
    pub compute_nodes: usize,
    /// Memory that each memory node lends, as its option has it.
    pub pool: String,
    /// Whether pools are files, which outlive their memory node.
    pub kept: bool,
    /// The size of a region for each compute node, as `gmm` has it; `0` for none.
    pub region: String,
    /// MTU of all interfaces, in bytes.
    pub mtu: u32,
    /// How daemons exchange frames.
    pub link: String,
    /// What idle daemons do.
    pub wait: String,
    /// Where `gmm`, `mn-server` and `cn-agent` are; empty for the usual places.
    pub programs: PathBuf,
}

impl Settings {
    /// The nodes, in order: `mn0`, `mn1`, …, `cn0`, `cn1`, ….
    pub(super) fn nodes(&self) -> Vec<String> {
        let kinds = [("mn", self.memory_nodes), ("cn", self.compute_nodes)];
        kinds.into_iter().flat_map(|(kind, count)| (0..count).map(move |i| format!("{kind}{i}"))).collect()
    }

    /// What has a daemon: the manager and all nodes.
    pub(super) fn daemons(&self) -> Vec<String> {
        std::iter::once("gmm".to_owned()).chain(self.nodes()).collect()
    }

    pub(super) fn load(folder: &Path) -> Result<Settings, NamedError> {
        let path = folder.join(FILE);
        let failed =
            |why: String| NamedError::failed(format!("{}: {why}; make it anew: lab down", path.display()));
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

/// The kind and the number of a node.
fn parts(node: &str) -> Option<(&str, usize)> {
    let (kind, number) = node.split_at_checked(2)?;
    Some((kind, number.parse().ok()?))
}

/// The MAC address of a node's interface; `-` where there is none.
pub(super) fn mac_of(node: &str) -> String {
    match parts(node) {
        Some(("mn", index)) => memory_node_mac(index),
        Some(("cn", index)) => compute_node_mac(index),
        _ => "-".into(),
    }
}

/// The IP address of a node.
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
        let settings = Settings {
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
        assert_eq!(Settings::load(folder.path()).expect("it can be read"), settings);
    }
}

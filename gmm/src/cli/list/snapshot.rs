//! What the manager says of its nodes, regions and logical devices: asked once for each noun that the kinds to be listed
//! need, and then looked at from all sides.

use std::collections::BTreeMap;

use cxloe_daemon::command_line::Failure;
use cxloe_fabric::Client;
use cxloe_fabric::api::{LogicalDeviceStatus, MemoryNodeStatus, Owner, RegionStatus};
use cxloe_fabric::model::{CnId, ComputeNode, Name};

use super::Kind;

/// The fabric, as far as it was asked for.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Memory nodes by name.
    pub memory_nodes: Vec<MemoryNodeStatus>,
    /// Compute nodes by CN id.
    pub compute_nodes: BTreeMap<CnId, ComputeNode>,
    /// Regions by name.
    pub regions: Vec<RegionStatus>,
    /// Logical devices by memory node and LD-ID.
    pub devices: Vec<LogicalDeviceStatus>,
}

impl Snapshot {
    /// Asks for what `kinds` need, and for what it takes to know which compute nodes are meant if that is `filtered`.
    ///
    /// # Errors
    /// When the manager cannot be asked.
    pub async fn take(client: &Client, kinds: &[Kind], filtered: bool) -> Result<Self, Failure> {
        let any = |of: &[Kind]| kinds.iter().any(|kind| of.contains(kind));
        let mut snapshot = Self::default();
        if any(&[Kind::MemoryNodes, Kind::Ports]) {
            snapshot.memory_nodes = client.memory_nodes().await?;
        }
        let named = any(&[Kind::ComputeNodes, Kind::Regions, Kind::Bindings, Kind::Ports]);
        if named || filtered {
            let nodes = client.compute_nodes().await?;
            snapshot.compute_nodes = nodes.into_iter().map(|node| (node.cn_id, node)).collect();
        }
        if any(&[Kind::MemoryNodes, Kind::ComputeNodes, Kind::Regions, Kind::Decoders]) {
            snapshot.regions = client.region_statuses().await?;
        }
        if any(&[Kind::MemoryNodes, Kind::ComputeNodes, Kind::LogicalDevices, Kind::Bindings, Kind::Ports]) {
            snapshot.devices = client.logical_devices().await?;
        }
        Ok(snapshot)
    }

    /// The compute node that is meant; `None` when nobody is.
    pub fn find(&self, owner: &Owner) -> Option<CnId> {
        match owner {
            Owner::CnId(id) => Some(*id),
            Owner::Name(name) => self
                .compute_nodes
                .values()
                .find(|node| node.name.as_ref() == Some(name))
                .map(|node| node.cn_id),
        }
    }

    /// The name of a compute node, if it has one.
    pub fn name_of(&self, cn: CnId) -> Option<&Name> {
        self.compute_nodes.get(&cn).and_then(|node| node.name.as_ref())
    }

    /// Its name, or its id.
    pub fn called(&self, cn: CnId) -> String {
        self.name_of(cn).map_or_else(|| cn.to_string(), Name::to_string)
    }
}

//! The manager's nodes, regions and logical devices. Each is requested once, and only if the listed kinds need it.

use std::collections::BTreeMap;

use cxloe_daemon::command_line::Failure;
use cxloe_fabric::Client;
use cxloe_fabric::api::{LogicalDeviceStatus, MemoryNodeStatus, Owner, RegionStatus};
use cxloe_fabric::model::{CnId, ComputeNode, Name};

use super::ObjectKind;

/// Records that the listed kinds need; tables that they do not need are empty.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Memory nodes, ordered by name.
    pub memory_nodes: Vec<MemoryNodeStatus>,
    pub compute_nodes: BTreeMap<CnId, ComputeNode>,
    /// Regions, ordered by name.
    pub regions: Vec<RegionStatus>,
    /// Logical devices, ordered by memory node and LD-ID.
    pub devices: Vec<LogicalDeviceStatus>,
}

impl Snapshot {
    /// Requests the records that `kinds` need, and the compute nodes if `filtered`, to resolve names in filters.
    ///
    /// # Errors
    /// If the manager does not answer.
    pub async fn take(client: &Client, kinds: &[ObjectKind], filtered: bool) -> Result<Self, Failure> {
        let any = |of: &[ObjectKind]| kinds.iter().any(|kind| of.contains(kind));
        let mut snapshot = Self::default();
        if any(&[ObjectKind::MemoryNodes, ObjectKind::Ports]) {
            snapshot.memory_nodes = client.memory_nodes().await?;
        }
        let named =
            any(&[ObjectKind::ComputeNodes, ObjectKind::Regions, ObjectKind::Bindings, ObjectKind::Ports]);
        if named || filtered {
            let nodes = client.compute_nodes().await?;
            snapshot.compute_nodes = nodes.into_iter().map(|node| (node.cn_id, node)).collect();
        }
        if any(&[
            ObjectKind::MemoryNodes,
            ObjectKind::ComputeNodes,
            ObjectKind::Regions,
            ObjectKind::Decoders,
        ]) {
            snapshot.regions = client.region_statuses().await?;
        }
        if any(&[
            ObjectKind::MemoryNodes,
            ObjectKind::ComputeNodes,
            ObjectKind::LogicalDevices,
            ObjectKind::Bindings,
            ObjectKind::Ports,
        ]) {
            snapshot.devices = client.logical_devices().await?;
        }
        Ok(snapshot)
    }

    /// The CN id that `owner` contains, or that of the compute node with this name; `None` if the snapshot has no
    /// compute node with the name.
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

    pub fn name_of(&self, cn: CnId) -> Option<&Name> {
        self.compute_nodes.get(&cn).and_then(|node| node.name.as_ref())
    }

    /// The name of a compute node, or its CN id if it has no name.
    pub fn called(&self, cn: CnId) -> String {
        self.name_of(cn).map_or_else(|| cn.to_string(), Name::to_string)
    }
}

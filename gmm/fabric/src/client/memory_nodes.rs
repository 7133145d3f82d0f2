//! Calls about memory nodes: registration, sync, draining, capacity of logical devices.

use reqwest::Method;

use super::{Client, ClientError};
use crate::api::{
    LogicalDeviceStatus, MemoryNodeRegistered, MemoryNodeStatus, MemoryNodeSync, MemoryNodeSynced,
    RegisterMemoryNode, Session, SetLdAllocations,
};
use crate::model::Name;

impl Client {
    /// Registers a memory node, or registers it again after a restart.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `name_in_use` while another daemon under this name is running, `stale_manager`
    /// if the manager's store does not contain `seen`, `bad_request` if a value is out of range.
    pub async fn register_memory_node(
        &self,
        node: &RegisterMemoryNode,
    ) -> Result<MemoryNodeRegistered, ClientError> {
        let asked = format!("register memory node {}", node.name);
        self.call(Method::POST, "/v1/memory-nodes", &asked, Some(node), 0).await
    }

    /// Sends the regular message of a memory node, with results of commands, and waits up to `sync.wait_ms`
    /// for new commands.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_registered` if another registration has replaced this one or the manager
    /// has no such node: the node must register again.
    pub async fn sync_memory_node(
        &self,
        name: &Name,
        sync: &MemoryNodeSync,
    ) -> Result<MemoryNodeSynced, ClientError> {
        let asked = format!("sync memory node {name}");
        self.call(Method::POST, &format!("/v1/memory-nodes/{name}/sync"), &asked, Some(sync), sync.wait_ms)
            .await
    }

    /// Lists every registered memory node, ordered by name.
    pub async fn memory_nodes(&self) -> Result<Vec<MemoryNodeStatus>, ClientError> {
        self.get("/v1/memory-nodes", "list memory nodes").await
    }

    /// Removes the record of a memory node that will not return; with `force` even if regions lie on it, which are
    /// destroyed.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, or with `wrong_state` while it is running or regions lie on it.
    pub async fn forget_memory_node(&self, name: &Name, force: bool) -> Result<(), ClientError> {
        let path = format!("/v1/memory-nodes/{name}?force={force}");
        let asked = format!("forget memory node {name}");
        self.exchange(Method::DELETE, &path, &asked, None::<&()>, 0).await.map(drop)
    }

    /// Begins to move all parts of regions from a memory node to others (`true`), or stops the moves.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`.
    pub async fn drain_memory_node(&self, name: &Name, draining: bool) -> Result<(), ClientError> {
        let order = if draining { "drain" } else { "stop-drain" };
        let path = format!("/v1/memory-nodes/{name}/{order}");
        let asked = format!("{order} memory node {name}");
        self.exchange(Method::POST, &path, &asked, None::<&()>, 0).await.map(drop)
    }

    /// Reserves capacity for logical devices of a memory node. Returns all logical devices of that node.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, with `bad_request` (LD-IDs, multiples of 256 MiB, more than is
    /// free), or with `wrong_state` if the node is allocated as a whole.
    pub async fn set_ld_allocations(
        &self,
        name: &Name,
        allocations: &SetLdAllocations,
    ) -> Result<Vec<LogicalDeviceStatus>, ClientError> {
        let asked = format!("set capacity of memory node {name} aside");
        let path = format!("/v1/memory-nodes/{name}/logical-devices");
        self.call(Method::PUT, &path, &asked, Some(allocations), 0).await
    }

    /// Lists the sessions between compute nodes and memory nodes, from the memory nodes' latest reports.
    pub async fn sessions(&self) -> Result<Vec<Session>, ClientError> {
        self.get("/v1/sessions", "list sessions").await
    }
}

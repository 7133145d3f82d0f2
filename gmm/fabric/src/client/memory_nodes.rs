//! Calls about memory nodes.

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
    /// Any [`ClientError`]; refused with `name_in_use` while another daemon under this name is there, `stale_manager`
    /// when the manager has not come as far as `seen`, `bad_request` when a value is out of range.
    pub async fn register_memory_node(
        &self,
        node: &RegisterMemoryNode,
    ) -> Result<MemoryNodeRegistered, ClientError> {
        let asked = format!("register memory node {}", node.name);
        self.call(Method::POST, "/v1/memory-nodes", &asked, Some(node), 0).await
    }

    /// Reports results, proves that the memory node lives, and waits up to `sync.wait_ms` for commands.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_registered` when another registration took over or the manager does not
    /// know the node: register again.
    pub async fn sync_memory_node(
        &self,
        name: &Name,
        sync: &MemoryNodeSync,
    ) -> Result<MemoryNodeSynced, ClientError> {
        let asked = format!("sync memory node {name}");
        self.call(Method::POST, &format!("/v1/memory-nodes/{name}/sync"), &asked, Some(sync), sync.wait_ms)
            .await
    }

    /// Every memory node the manager knows, by name.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn memory_nodes(&self) -> Result<Vec<MemoryNodeStatus>, ClientError> {
        self.get("/v1/memory-nodes", "list memory nodes").await
    }

    /// Forgets a memory node that is gone for good; with `force` although regions lie on it, which are destroyed.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, or with `wrong_state` while it is there or regions lie on it.
    pub async fn forget_memory_node(&self, name: &Name, force: bool) -> Result<(), ClientError> {
        let path = format!("/v1/memory-nodes/{name}?force={force}");
        let asked = format!("forget memory node {name}");
        self.exchange(Method::DELETE, &path, &asked, None::<&()>, 0).await.map(drop)
    }

    /// Sets capacity aside for logical devices of a memory node. Returns all of that node.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, with `bad_request` (LD-IDs, multiples of 256 MiB, more than is
    /// free), or with `wrong_state` when the node is given away whole.
    pub async fn set_ld_allocations(
        &self,
        name: &Name,
        allocations: &SetLdAllocations,
    ) -> Result<Vec<LogicalDeviceStatus>, ClientError> {
        let asked = format!("set capacity of memory node {name} aside");
        let path = format!("/v1/memory-nodes/{name}/logical-devices");
        self.call(Method::PUT, &path, &asked, Some(allocations), 0).await
    }

    /// The sessions of compute nodes with memory nodes, as the latter reported them last.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn sessions(&self) -> Result<Vec<Session>, ClientError> {
        self.get("/v1/sessions", "list sessions").await
    }
}

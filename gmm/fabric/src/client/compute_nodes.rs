//! Calls about compute nodes: registration, sync, quota, reset.

use reqwest::Method;

use super::{Client, ClientError};
use crate::api::{
    ComputeNodeRegistered, ComputeNodeSync, ComputeNodeSynced, Owner, RegisterComputeNode, SetQuota,
};
use crate::model::{ByteSize, CnId, ComputeNode};

impl Client {
    /// Registers a compute node, or registers it again after a restart.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `name_in_use` while another agent with this CN id is running or another
    /// compute node has the name.
    pub async fn register_compute_node(
        &self,
        node: &RegisterComputeNode,
    ) -> Result<ComputeNodeRegistered, ClientError> {
        let asked = format!("register compute node {} ({})", node.name, node.cn_id);
        self.call(Method::POST, "/v1/compute-nodes", &asked, Some(node), 0).await
    }

    /// Sends the regular message of a compute node, with released regions, and waits up to `sync.wait_ms` for
    /// a change to its regions.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_registered` if another registration has replaced this one or the manager
    /// has no such node: the node must register again.
    pub async fn sync_compute_node(
        &self,
        cn: CnId,
        sync: &ComputeNodeSync,
    ) -> Result<ComputeNodeSynced, ClientError> {
        let asked = format!("sync compute node {cn}");
        self.call(Method::POST, &format!("/v1/compute-nodes/{cn}/sync"), &asked, Some(sync), sync.wait_ms)
            .await
    }

    /// Lists every recorded compute node, ordered by CN id.
    pub async fn compute_nodes(&self) -> Result<Vec<ComputeNode>, ClientError> {
        self.get("/v1/compute-nodes", "list compute nodes").await
    }

    /// Removes the record of a compute node that will not return.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, or with `wrong_state` while it is running or has regions or
    /// bindings.
    pub async fn forget_compute_node(&self, cn: &Owner) -> Result<(), ClientError> {
        let asked = format!("forget compute node {cn}");
        let path = format!("/v1/compute-nodes/{cn}");
        self.exchange(Method::DELETE, &path, &asked, None::<&()>, 0).await.map(drop)
    }

    /// Limits the total bytes of all regions of a compute node; `None`: no limit. Existing regions stay.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found` for an unknown name.
    pub async fn set_quota(&self, cn: &Owner, bytes: Option<u64>) -> Result<ComputeNode, ClientError> {
        let quota = SetQuota { bytes: bytes.map(ByteSize) };
        let path = format!("/v1/compute-nodes/{cn}/quota");
        self.call(Method::PUT, &path, &format!("set the quota of compute node {cn}"), Some(&quota), 0).await
    }

    /// Holds a compute node in reset: it attaches nothing until it is released.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`.
    pub async fn hold(&self, cn: &Owner) -> Result<ComputeNode, ClientError> {
        let path = format!("/v1/compute-nodes/{cn}/hold");
        self.call(Method::POST, &path, &format!("hold compute node {cn} in reset"), None::<&()>, 0).await
    }

    /// Releases a compute node from reset: it attaches its regions.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`.
    pub async fn release(&self, cn: &Owner) -> Result<ComputeNode, ClientError> {
        let path = format!("/v1/compute-nodes/{cn}/release");
        self.call(Method::POST, &path, &format!("release compute node {cn}"), None::<&()>, 0).await
    }
}

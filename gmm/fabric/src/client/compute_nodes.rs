//! Calls about compute nodes.

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
    /// Any [`ClientError`]; refused with `name_in_use` while another agent with this CN id is there or another compute
    /// node has the name.
    pub async fn register_compute_node(
        &self,
        node: &RegisterComputeNode,
    ) -> Result<ComputeNodeRegistered, ClientError> {
        let asked = format!("register compute node {} ({})", node.name, node.cn_id);
        self.call(Method::POST, "/v1/compute-nodes", &asked, Some(node), 0).await
    }

    /// Proves that the compute node lives, tells what it has let go of, and waits up to `sync.wait_ms` for a change to
    /// what it has.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_registered` when another registration took over or the manager does not
    /// know the node: register again.
    pub async fn sync_compute_node(
        &self,
        cn: CnId,
        sync: &ComputeNodeSync,
    ) -> Result<ComputeNodeSynced, ClientError> {
        let asked = format!("sync compute node {cn}");
        self.call(Method::POST, &format!("/v1/compute-nodes/{cn}/sync"), &asked, Some(sync), sync.wait_ms)
            .await
    }

    /// Every compute node the manager knows, by CN id.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn compute_nodes(&self) -> Result<Vec<ComputeNode>, ClientError> {
        self.get("/v1/compute-nodes", "list compute nodes").await
    }

    /// Forgets a compute node that is gone for good.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, or with `wrong_state` while it is there or has something.
    pub async fn forget_compute_node(&self, cn: &Owner) -> Result<(), ClientError> {
        let asked = format!("forget compute node {cn}");
        let path = format!("/v1/compute-nodes/{cn}");
        self.exchange(Method::DELETE, &path, &asked, None::<&()>, 0).await.map(drop)
    }

    /// Limits the bytes of all regions of a compute node together; `None`: no limit. What it has already stays.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found` for a name that nobody has.
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

    /// Releases a compute node that is held in reset.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`.
    pub async fn release(&self, cn: &Owner) -> Result<ComputeNode, ClientError> {
        let path = format!("/v1/compute-nodes/{cn}/release");
        self.call(Method::POST, &path, &format!("release compute node {cn}"), None::<&()>, 0).await
    }
}

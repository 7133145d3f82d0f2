//! Calls about nodes that do not accept the manager, and about memory that belongs to no region.

use reqwest::Method;

use super::{Client, ClientError};
use crate::api::{AdoptFabric, NotFollowed, Orphans, RefusedNode, ReleaseOrphans, ReportOrphans};
use crate::model::Name;

impl Client {
    /// Lists the nodes that do not accept this manager, because its store lacks changes that they have seen.
    pub async fn refused_nodes(&self) -> Result<Vec<RefusedNode>, ClientError> {
        self.get("/v1/refused", "list refused nodes").await
    }

    /// Reports that a node does not accept this manager, and the memory that the node holds.
    pub async fn not_followed(&self, said: &NotFollowed) -> Result<(), ClientError> {
        let asked = format!("record that {} does not follow", said.node);
        self.exchange(Method::POST, "/v1/refused", &asked, Some(said), 0).await.map(drop)
    }

    /// Gives up histories that refused nodes have seen and this manager's store lacks. Those nodes then accept this
    /// manager.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found` if the request names no history, or one that no refused node has
    /// seen.
    pub async fn adopt_fabric(&self, adopt: &AdoptFabric) -> Result<(), ClientError> {
        self.exchange(Method::POST, "/v1/adopt", "adopt the fabric", Some(adopt), 0).await.map(drop)
    }

    /// Reports memory that a memory node holds although it belongs to no region.
    pub async fn report_orphans(&self, node: &Name, report: &ReportOrphans) -> Result<(), ClientError> {
        let (path, asked) = (format!("/v1/memory-nodes/{node}/orphans"), format!("report orphans of {node}"));
        self.exchange(Method::POST, &path, &asked, Some(report), 0).await.map(drop)
    }

    /// Has a memory node zero and free the memory that belongs to no region. Returns the part that is not yet zeroed
    /// when the wait ends.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`.
    pub async fn release_orphans(
        &self,
        node: &Name,
        release: ReleaseOrphans,
    ) -> Result<Orphans, ClientError> {
        let path = format!("/v1/memory-nodes/{node}/release-orphans?wait_ms={}", release.wait_ms);
        let asked = format!("release the orphans of memory node {node}");
        self.call(Method::POST, &path, &asked, None::<&()>, release.wait_ms).await
    }
}

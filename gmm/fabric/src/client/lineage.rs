//! Calls about nodes that do not follow the manager, and about memory that no region has.

use reqwest::Method;

use super::{Client, ClientError};
use crate::api::{
    AdoptFabric, NotFollowed, Orphans, RefusedNode, ReleaseOrphans, ReportOrphans, RestoreStore,
    RestoredStore,
};
use crate::model::Name;

impl Client {
    /// The nodes that do not follow this manager, since its store lacks what they have seen.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn refused_nodes(&self) -> Result<Vec<RefusedNode>, ClientError> {
        self.get("/v1/refused", "list refused nodes").await
    }

    /// Says that a node does not follow this manager, and what it holds.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn not_followed(&self, said: &NotFollowed) -> Result<(), ClientError> {
        let asked = format!("hear that {} does not follow", said.node);
        self.exchange(Method::POST, "/v1/refused", &asked, Some(said), 0).await.map(drop)
    }

    /// Gives up what refused nodes have seen and this manager's store does not have.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found` when no node is refused that has seen that.
    pub async fn adopt_fabric(&self, adopt: &AdoptFabric) -> Result<(), ClientError> {
        self.exchange(Method::POST, "/v1/adopt", "adopt the fabric", Some(adopt), 0).await.map(drop)
    }

    /// All that the manager's store has, as one file.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn backup(&self) -> Result<Vec<u8>, ClientError> {
        let taken = self.exchange(Method::GET, "/v1/backup", "back the store up", None::<&()>, 0).await?;
        Ok(taken.1)
    }

    /// Has a backup take the place of all that the manager's store has.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `bad_request` when it is none, or another fabric's.
    pub async fn restore(&self, restore: &RestoreStore) -> Result<RestoredStore, ClientError> {
        self.call(Method::POST, "/v1/restore", "restore a backup", Some(restore), 0).await
    }

    /// Reports memory that a memory node holds although no region has it.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn report_orphans(&self, node: &Name, report: &ReportOrphans) -> Result<(), ClientError> {
        let (path, asked) = (format!("/v1/memory-nodes/{node}/orphans"), format!("report orphans of {node}"));
        self.exchange(Method::POST, &path, &asked, Some(report), 0).await.map(drop)
    }

    /// Has a memory node zero the memory that no region has, and give it back. Returns what is left after the time to wait.
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

//! Examination of each configured member of etcd, with the manager's credentials, for `gmm doctor`. Nothing
//! is written.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;

use super::EtcdError;
use super::gateway::Gateway;
use super::wire::bytes;
use crate::store::EtcdPlace;

/// Time-out of one request to etcd.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Findings about one configured member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdMember {
    /// The address, `HOST:PORT`.
    pub host: String,
    /// Number of the cluster to which the member belongs; none if the member does not report it.
    pub cluster: Option<u64>,
    /// True if the cluster's database is full.
    pub full: bool,
    /// Reason why this manager cannot read its keys through this member; none if it can.
    pub failed: Option<EtcdError>,
}

/// Reads the leader's key from each member that `place` names, which requires a quorum and the rights of this
/// manager.
///
/// # Errors
/// [`EtcdError`] if no client or runtime can be made.
pub fn examine(place: &EtcdPlace) -> Result<Vec<EtcdMember>, EtcdError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| EtcdError::of_this_machine(&error))?;
    let question = &json!({"key": bytes(&place.key("leader")), "keys_only": true});
    let asked = place.hosts().iter().map(|host| async move {
        let gateway = Gateway::new(&place.with_host(host))?;
        let status = gateway.status(TIMEOUT).await;
        let failed = gateway.range(question, TIMEOUT).await.err();
        let (cluster, full) = status.unwrap_or_default();
        Ok::<_, EtcdError>(EtcdMember { host: host.clone(), cluster, full, failed })
    });
    runtime.block_on(join_all(asked)).into_iter().collect()
}

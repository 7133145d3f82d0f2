//! Routes of compute nodes: agents register and wait for changes; users list compute nodes, set quotas, and hold
//! compute nodes in reset. Also the detection of a connection that breaks during a long poll, for nodes of both kinds.

use axum::Json;
use axum::extract::State;
use axum::response::NoContent;

use super::extract::{Body, ComputeNodePath, Path};
use super::guard::{RequestCaller, Routes, routes};
use super::wait::poll;
use crate::server::core::Core;
use crate::server::error::ApiError;
use crate::server::topics::Topic;
use cxloe_fabric::api::{
    ComputeNodeRegistered, ComputeNodeSync, ComputeNodeSynced, ErrorCode, Owner, RegisterComputeNode,
    SetQuota,
};
use cxloe_fabric::model::ComputeNode;
use cxloe_gmm_core::manager::liveness::NodeKey;
use cxloe_gmm_core::manager::{Command, Manager, ManagerError};
use cxloe_gmm_core::rights::Caller;

pub fn routes() -> Routes {
    routes! {
        get "/v1/compute-nodes" Look list: "listComputeNodes", "Every compute node, by CN id";
        post "/v1/compute-nodes" ComputeNode register: "registerComputeNode", "A compute node registers";
        delete "/v1/compute-nodes/{compute_node}" Administer forget: "forgetComputeNode",
            "Forget a compute node that is gone for good and has nothing";
        post "/v1/compute-nodes/{compute_node}/sync" ComputeNode sync: "syncComputeNode",
            "A compute node waits for changes to what it has";
        put "/v1/compute-nodes/{compute_node}/quota" Administer set_quota: "setQuota",
            "Limit the regions of a compute node";
        post "/v1/compute-nodes/{compute_node}/hold" Administer hold: "holdComputeNode",
            "Hold a compute node in reset: it attaches nothing";
        post "/v1/compute-nodes/{compute_node}/release" Administer release: "releaseComputeNode",
            "Release a compute node held in reset";
    }
}

async fn list(State(core): State<Core>) -> Result<Json<Vec<ComputeNode>>, ApiError> {
    Ok(Json(core.view(|manager| manager.state().compute_nodes.values().cloned().collect()).await?))
}

async fn register(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Body(register): Body<RegisterComputeNode>,
) -> Result<Json<ComputeNodeRegistered>, ApiError> {
    let (cn, seen) = (register.cn_id, register.seen);
    let view = move |manager: &Manager, _: &_| manager.compute_node_registered(cn, seen);
    let registered = core.apply(&caller, Command::RegisterComputeNode(register), view).await?;
    registered.map(Json).ok_or_else(registration_replaced)
}

async fn sync(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(ComputeNodePath { compute_node }): Path<ComputeNodePath>,
    Body(sync): Body<ComputeNodeSync>,
) -> Result<Json<ComputeNodeSynced>, ApiError> {
    let cn = match compute_node {
        Owner::CnId(cn) => cn,
        name => core.view(move |manager| manager.known_compute_node(&name)).await??.cn_id,
    };
    let ComputeNodeSync { registration, after_event, wait_ms, .. } = sync;
    let view = move |manager: &Manager, _: &_| (manager.heartbeat_ms(), manager.knows_its_regions(cn));
    let (heartbeat_ms, knows) = core.apply(&caller, Command::SyncComputeNode(cn, sync), view).await?;
    // A request may be waiting until the owner's agent has received a region, which is not a stored change.
    if knows {
        core.touch(&Topic::ComputeNode(cn));
    }
    let mut hang_up = HangUp::new(&core, NodeKey::Compute(cn), registration);
    let due = move |manager: &Manager| {
        let node = manager.state().compute_nodes.get(&cn);
        let superseded = node.is_none_or(|node| node.registration != registration);
        (superseded || manager.regions_changed(cn, after_event)).then_some(())
    };
    poll(&core, Topic::ComputeNode(cn), wait_ms.min(heartbeat_ms), due).await?;
    let current = core
        .view(move |manager| {
            let node = manager.state().compute_nodes.get(&cn)?;
            (node.registration == registration).then(|| manager.compute_node_synced(cn, after_event))
        })
        .await?;
    hang_up.completed();
    current.map(Json).ok_or_else(superseded)
}

async fn forget(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(ComputeNodePath { compute_node }): Path<ComputeNodePath>,
) -> Result<NoContent, ApiError> {
    core.apply(&caller, Command::ForgetComputeNode(compute_node), |_, _| ()).await?;
    Ok(NoContent)
}

async fn set_quota(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(ComputeNodePath { compute_node }): Path<ComputeNodePath>,
    Body(SetQuota { bytes }): Body<SetQuota>,
) -> Result<Json<ComputeNode>, ApiError> {
    let bytes = bytes.map(|bytes| bytes.0);
    changed(&core, &caller, compute_node.clone(), Command::SetQuota(compute_node, bytes)).await
}

async fn hold(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(ComputeNodePath { compute_node }): Path<ComputeNodePath>,
) -> Result<Json<ComputeNode>, ApiError> {
    changed(&core, &caller, compute_node.clone(), Command::Hold(compute_node, true)).await
}

async fn release(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(ComputeNodePath { compute_node }): Path<ComputeNodePath>,
) -> Result<Json<ComputeNode>, ApiError> {
    changed(&core, &caller, compute_node.clone(), Command::Hold(compute_node, false)).await
}

/// Carries out a command on a compute node, and returns the compute node's record after it.
async fn changed(
    core: &Core,
    caller: &Caller,
    node: Owner,
    command: Command,
) -> Result<Json<ComputeNode>, ApiError> {
    let view = move |manager: &Manager, _: &_| manager.known_compute_node(&node);
    let node: Result<ComputeNode, ManagerError> = core.apply(caller, command, view).await?;
    Ok(Json(node?))
}

/// The error for a node whose registration was replaced by another registration before the answer.
pub fn registration_replaced() -> ApiError {
    ApiError::new(ErrorCode::NotRegistered, "the registration is gone", "register again")
}

/// The error for a node whose registration was replaced by another registration during a long poll.
pub fn superseded() -> ApiError {
    let error = "another registration under this identity took over while this sync waited";
    ApiError::new(
        ErrorCode::NotRegistered,
        error,
        "register again, unless another daemon has taken this one's place",
    )
}

/// Guard of a long poll: if it is dropped before [`completed`](Self::completed), the poll was aborted, and
/// the guard reports to the manager that the node's connection broke.
pub struct HangUp {
    core: Core,
    command: Option<Command>,
}

impl HangUp {
    /// Watches the long poll of `node` under this registration.
    pub fn new(core: &Core, node: NodeKey, registration: u64) -> Self {
        Self { core: core.clone(), command: Some(Command::HungUp(node, registration)) }
    }

    /// Marks the long poll as answered: the drop then reports nothing.
    pub fn completed(&mut self) {
        self.command = None;
    }
}

impl Drop for HangUp {
    fn drop(&mut self) {
        if let Some(command) = self.command.take() {
            self.core.post(command);
        }
    }
}

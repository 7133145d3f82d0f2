//! Compute nodes: their agents register and wait for changes here; people list them, limit them, and hold them in reset.
//! Also what a waiting node's connection tells when it breaks, for nodes of both kinds.

use axum::Json;
use axum::extract::State;

use super::extract::{Body, ComputeNodePath, Path};
use super::guard::{By, Routes, get, post, put};
use super::wait::poll;
use crate::manager::liveness::NodeKey;
use crate::manager::{Command, Manager, ManagerError};
use crate::rights::{Caller, Right};
use crate::server::core::Core;
use crate::server::error::ApiError;
use crate::server::topics::Topic;
use cxloe_fabric::api::{
    ComputeNodeRegistered, ComputeNodeSync, ComputeNodeSynced, ErrorCode, Owner, RegisterComputeNode,
    SetQuota,
};
use cxloe_fabric::model::ComputeNode;

pub fn routes() -> Routes {
    Routes::new()
        .route(
            "/v1/compute-nodes",
            get(Right::Look, list, |op| op.id("listComputeNodes").summary("Every compute node, by CN id")),
        )
        .route(
            "/v1/compute-nodes",
            post(Right::ComputeNode, register, |op| {
                op.id("registerComputeNode").summary("A compute node says that it is there")
            }),
        )
        .route(
            "/v1/compute-nodes/{compute_node}/sync",
            post(Right::ComputeNode, sync, |op| {
                op.id("syncComputeNode").summary("A compute node waits for changes to what it has")
            }),
        )
        .route(
            "/v1/compute-nodes/{compute_node}/quota",
            put(Right::Administer, set_quota, |op| {
                op.id("setQuota").summary("Limit the regions of a compute node")
            }),
        )
        .route(
            "/v1/compute-nodes/{compute_node}/hold",
            post(Right::Administer, hold, |op| {
                op.id("holdComputeNode").summary("Hold a compute node in reset: it attaches nothing")
            }),
        )
        .route(
            "/v1/compute-nodes/{compute_node}/release",
            post(Right::Administer, release, |op| {
                op.id("releaseComputeNode").summary("Release a compute node held in reset")
            }),
        )
}

async fn list(State(core): State<Core>) -> Result<Json<Vec<ComputeNode>>, ApiError> {
    Ok(Json(core.look(|manager| manager.state().compute_nodes.values().cloned().collect()).await?))
}

async fn register(
    State(core): State<Core>,
    By(caller): By,
    Body(register): Body<RegisterComputeNode>,
) -> Result<Json<ComputeNodeRegistered>, ApiError> {
    let (cn, seen) = (register.cn_id, register.seen);
    let view = move |manager: &Manager, _: &_| manager.compute_node_registered(cn, seen);
    let registered = core.apply(&caller, Command::RegisterComputeNode(register), view).await?;
    registered.map(Json).ok_or_else(gone)
}

async fn sync(
    State(core): State<Core>,
    By(caller): By,
    Path(ComputeNodePath { compute_node }): Path<ComputeNodePath>,
    Body(sync): Body<ComputeNodeSync>,
) -> Result<Json<ComputeNodeSynced>, ApiError> {
    let cn = match compute_node {
        Owner::CnId(cn) => cn,
        name => core.look(move |manager| manager.known_compute_node(&name)).await??.cn_id,
    };
    let ComputeNodeSync { registration, after_event, wait_ms, .. } = sync;
    let heartbeat_ms =
        core.apply(&caller, Command::SyncComputeNode(cn, sync), |manager, _| manager.heartbeat_ms()).await?;
    let mut hang_up = HangUp::new(&core, NodeKey::Compute(cn), registration);
    let due = move |manager: &Manager| {
        let node = manager.state().compute_nodes.get(&cn);
        let superseded = node.is_none_or(|node| node.registration != registration);
        (superseded || manager.regions_changed(cn, after_event)).then_some(())
    };
    poll(&core, Topic::ComputeNode(cn), wait_ms.min(heartbeat_ms), due).await?;
    let current = core
        .look(move |manager| {
            let node = manager.state().compute_nodes.get(&cn)?;
            (node.registration == registration).then(|| manager.compute_node_synced(cn, after_event))
        })
        .await?;
    hang_up.completed();
    current.map(Json).ok_or_else(superseded)
}

async fn set_quota(
    State(core): State<Core>,
    By(caller): By,
    Path(ComputeNodePath { compute_node }): Path<ComputeNodePath>,
    Body(SetQuota { bytes }): Body<SetQuota>,
) -> Result<Json<ComputeNode>, ApiError> {
    let bytes = bytes.map(|bytes| bytes.0);
    changed(&core, &caller, compute_node.clone(), Command::SetQuota(compute_node, bytes)).await
}

async fn hold(
    State(core): State<Core>,
    By(caller): By,
    Path(ComputeNodePath { compute_node }): Path<ComputeNodePath>,
) -> Result<Json<ComputeNode>, ApiError> {
    changed(&core, &caller, compute_node.clone(), Command::Hold(compute_node, true)).await
}

async fn release(
    State(core): State<Core>,
    By(caller): By,
    Path(ComputeNodePath { compute_node }): Path<ComputeNodePath>,
) -> Result<Json<ComputeNode>, ApiError> {
    changed(&core, &caller, compute_node.clone(), Command::Hold(compute_node, false)).await
}

/// Carries out a command about a compute node and shows the node as it is then.
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

/// A node's registration was replaced between its being made and its being answered.
pub fn gone() -> ApiError {
    ApiError::new(ErrorCode::NotRegistered, "the registration is gone", "register again")
}

/// A node's registration was replaced while its sync waited.
pub fn superseded() -> ApiError {
    let error = "another registration under this identity took over while this sync waited";
    ApiError::new(
        ErrorCode::NotRegistered,
        error,
        "register again, unless another daemon has taken this one's place",
    )
}

/// Tells the manager when a node's connection breaks while its sync waits: the request is dropped then.
pub struct HangUp {
    core: Core,
    command: Option<Command>,
}

impl HangUp {
    /// For the sync of `node` under this registration.
    pub fn new(core: &Core, node: NodeKey, registration: u64) -> Self {
        Self { core: core.clone(), command: Some(Command::HungUp(node, registration)) }
    }

    /// The sync is answered.
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

//! Routes of memory nodes: daemons register and wait for commands; users list memory nodes, reserve capacity
//! on them, and forget those that will not return.

use axum::Json;
use axum::extract::State;
use axum::response::NoContent;

use super::answer::Settled;
use super::compute_nodes::{HangUp, registration_replaced, superseded};
use super::extract::{Body, Named, Path, Query};
use super::guard::{RequestCaller, Routes, routes};
use super::wait::poll;
use crate::server::core::Core;
use crate::server::error::ApiError;
use crate::server::topics::Topic;
use cxloe_fabric::api::{
    ForgetMemoryNode, LogicalDeviceStatus, MemoryNodeRegistered, MemoryNodeStatus, MemoryNodeSync,
    MemoryNodeSynced, Orphans, RegisterMemoryNode, ReleaseOrphans, ReportOrphans, SetLdAllocations,
};
use cxloe_gmm_core::manager::liveness::NodeKey;
use cxloe_gmm_core::manager::{Command, Manager};

pub fn routes() -> Routes {
    routes! {
        get "/v1/memory-nodes" Look list: "listMemoryNodes", "Every memory node, by name";
        post "/v1/memory-nodes" MemoryNode register: "registerMemoryNode", "A memory node registers";
        delete "/v1/memory-nodes/{name}" Administer forget: "forgetMemoryNode",
            "Forget a memory node that is gone for good";
        post "/v1/memory-nodes/{name}/sync" MemoryNode sync: "syncMemoryNode",
            "A memory node gives results and waits for commands";
        post "/v1/memory-nodes/{name}/orphans" MemoryNode report_orphans: "reportOrphans",
            "A memory node reports the orphaned memory it holds";
        post "/v1/memory-nodes/{name}/release-orphans" Administer release_orphans: "releaseOrphans",
            "Have a memory node zero what it holds that no region has";
        post "/v1/memory-nodes/{name}/drain" Administer drain: "drainMemoryNode",
            "Move all parts of regions from a memory node to others";
        post "/v1/memory-nodes/{name}/stop-drain" Administer stop_drain: "stopDrainMemoryNode",
            "Stop moving parts of regions from a memory node";
        put "/v1/memory-nodes/{name}/logical-devices" Administer set_ld_allocations: "setLdAllocations",
            "Set capacity aside for logical devices";
    }
}

async fn list(State(core): State<Core>) -> Result<Json<Vec<MemoryNodeStatus>>, ApiError> {
    Ok(Json(core.view(Manager::memory_node_statuses).await?))
}

async fn register(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Body(register): Body<RegisterMemoryNode>,
) -> Result<Json<MemoryNodeRegistered>, ApiError> {
    let (name, seen) = (register.name.clone(), register.seen);
    let view = move |manager: &Manager, _: &_| manager.memory_node_registered(&name, seen);
    let registered = core.apply(&caller, Command::RegisterMemoryNode(register), view).await?;
    registered.map(Json).ok_or_else(registration_replaced)
}

async fn sync(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Body(sync): Body<MemoryNodeSync>,
) -> Result<Json<MemoryNodeSynced>, ApiError> {
    let registration = sync.registration;
    let wait_ms = sync.wait_ms;
    let node = name.clone();
    let view = move |manager: &Manager, _: &_| {
        (manager.heartbeat_ms(), manager.udp_peers(&node), manager.cn_keys(&node), manager.fills_on(&node))
    };
    let (heartbeat_ms, udp_peers, cn_keys, fills) =
        core.apply(&caller, Command::SyncMemoryNode(name.clone(), sync), view).await?;
    let mut hang_up = HangUp::new(&core, NodeKey::Memory(name.clone()), registration);
    let watched = name.clone();
    let due = move |manager: &Manager| {
        let node = manager.state().memory_nodes.get(&watched);
        let superseded = node.is_none_or(|node| node.registration != registration);
        let commanded = manager.state().commands_of(&watched).next().is_some();
        // The revocation of a key ends the long poll, so that the memory node refuses the key at once.
        let is_current = manager.udp_peers(&watched) == udp_peers
            && manager.cn_keys(&watched) == cn_keys
            && manager.fills_on(&watched) == fills;
        (superseded || commanded || !is_current).then_some(())
    };
    poll(&core, Topic::MemoryNode(name.clone()), wait_ms.min(heartbeat_ms), due).await?;
    let current = core
        .view(move |manager| {
            let node = manager.state().memory_nodes.get(&name)?;
            (node.registration == registration).then(|| manager.memory_node_synced(&name))
        })
        .await?;
    hang_up.completed();
    current.map(Json).ok_or_else(superseded)
}

async fn forget(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Query(ForgetMemoryNode { force }): Query<ForgetMemoryNode>,
) -> Result<NoContent, ApiError> {
    core.apply(&caller, Command::ForgetMemoryNode { name, force }, |_, _| ()).await?;
    Ok(NoContent)
}

async fn drain(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
) -> Result<NoContent, ApiError> {
    core.apply(&caller, Command::DrainMemoryNode(name, true), |_, _| ()).await?;
    Ok(NoContent)
}

async fn stop_drain(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
) -> Result<NoContent, ApiError> {
    core.apply(&caller, Command::DrainMemoryNode(name, false), |_, _| ()).await?;
    Ok(NoContent)
}

async fn report_orphans(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Body(report): Body<ReportOrphans>,
) -> Result<NoContent, ApiError> {
    core.apply(&caller, Command::ReportOrphans(name, report), |_, _| ()).await?;
    Ok(NoContent)
}

async fn release_orphans(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Query(ReleaseOrphans { wait_ms }): Query<ReleaseOrphans>,
) -> Result<Settled<Orphans, 200>, ApiError> {
    core.apply(&caller, Command::ReleaseOrphans(name.clone()), |_, _| ()).await?;
    let node = name.clone();
    let registration_replaced = move |manager: &Manager| manager.orphans_on(&node).is_empty().then_some(());
    poll(&core, Topic::Orphans(name.clone()), wait_ms, registration_replaced).await?;
    let left = move |manager: &Manager| {
        let orphans = manager.orphans_on(&name).to_vec();
        Orphans { memory_node: name, orphans }
    };
    let left = core.view(left).await?;
    Ok(if left.orphans.is_empty() { Settled::Done(left) } else { Settled::Pending(left) })
}

async fn set_ld_allocations(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Body(SetLdAllocations { first, reserved }): Body<SetLdAllocations>,
) -> Result<Json<Vec<LogicalDeviceStatus>>, ApiError> {
    let node = name.clone();
    let view = move |manager: &Manager, _: &_| {
        let devices = manager.state().logical_devices_of(&node);
        devices.map(|ld| manager.device_status(ld)).collect()
    };
    Ok(Json(core.apply(&caller, Command::SetLdAllocations(name, first, reserved), view).await?))
}

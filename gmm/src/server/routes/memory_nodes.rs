//! Memory nodes: they register and wait for commands here; people list them, slice them, and forget those that are gone.

use axum::Json;
use axum::extract::State;
use axum::response::NoContent;

use super::answer::Settled;
use super::compute_nodes::{HangUp, gone, superseded};
use super::extract::{Body, Named, Path, Query};
use super::guard::{By, Routes, delete, get, post, put};
use super::wait::poll;
use crate::manager::liveness::NodeKey;
use crate::manager::{Command, Manager};
use crate::rights::Right;
use crate::server::core::Core;
use crate::server::error::ApiError;
use crate::server::topics::Topic;
use cxloe_fabric::api::{
    ForgetMemoryNode, LogicalDeviceStatus, MemoryNodeRegistered, MemoryNodeStatus, MemoryNodeSync,
    MemoryNodeSynced, Orphans, RegisterMemoryNode, ReleaseOrphans, ReportOrphans, SetLdAllocations,
};

pub fn routes() -> Routes {
    Routes::new()
        .route(
            "/v1/memory-nodes",
            get(Right::Look, list, |op| op.id("listMemoryNodes").summary("Every memory node, by name")),
        )
        .route(
            "/v1/memory-nodes",
            post(Right::MemoryNode, register, |op| {
                op.id("registerMemoryNode").summary("A memory node says that it is there")
            }),
        )
        .route(
            "/v1/memory-nodes/{name}",
            delete(Right::Administer, forget, |op| {
                op.id("forgetMemoryNode").summary("Forget a memory node that is gone for good")
            }),
        )
        .route(
            "/v1/memory-nodes/{name}/sync",
            post(Right::MemoryNode, sync, |op| {
                op.id("syncMemoryNode").summary("A memory node gives results and waits for commands")
            }),
        )
        .route(
            "/v1/memory-nodes/{name}/orphans",
            post(Right::MemoryNode, report_orphans, |op| {
                op.id("reportOrphans").summary("A memory node says what it holds that no region has")
            }),
        )
        .route(
            "/v1/memory-nodes/{name}/release-orphans",
            post(Right::Administer, release_orphans, |op| {
                op.id("releaseOrphans").summary("Have a memory node zero what it holds that no region has")
            }),
        )
        .route(
            "/v1/memory-nodes/{name}/logical-devices",
            put(Right::Administer, set_ld_allocations, |op| {
                op.id("setLdAllocations").summary("Set capacity aside for logical devices")
            }),
        )
}

async fn list(State(core): State<Core>) -> Result<Json<Vec<MemoryNodeStatus>>, ApiError> {
    Ok(Json(core.look(Manager::memory_node_statuses).await?))
}

async fn register(
    State(core): State<Core>,
    By(caller): By,
    Body(register): Body<RegisterMemoryNode>,
) -> Result<Json<MemoryNodeRegistered>, ApiError> {
    let (name, seen) = (register.name.clone(), register.seen);
    let view = move |manager: &Manager, _: &_| manager.memory_node_registered(&name, seen);
    let registered = core.apply(&caller, Command::RegisterMemoryNode(register), view).await?;
    registered.map(Json).ok_or_else(gone)
}

async fn sync(
    State(core): State<Core>,
    By(caller): By,
    Path(Named { name }): Path<Named>,
    Body(sync): Body<MemoryNodeSync>,
) -> Result<Json<MemoryNodeSynced>, ApiError> {
    let registration = sync.registration;
    let wait_ms = sync.wait_ms;
    let node = name.clone();
    let view = move |manager: &Manager, _: &_| {
        (manager.heartbeat_ms(), manager.udp_peers(&node), manager.cn_keys(&node))
    };
    let (heartbeat_ms, udp_peers, cn_keys) =
        core.apply(&caller, Command::SyncMemoryNode(name.clone(), sync), view).await?;
    let mut hang_up = HangUp::new(&core, NodeKey::Memory(name.clone()), registration);
    let watched = name.clone();
    let due = move |manager: &Manager| {
        let node = manager.state().memory_nodes.get(&watched);
        let superseded = node.is_none_or(|node| node.registration != registration);
        let commanded = manager.state().commands_of(&watched).next().is_some();
        // A key that was taken back is not to be admitted for as long as a sync waits.
        let told = manager.udp_peers(&watched) == udp_peers && manager.cn_keys(&watched) == cn_keys;
        (superseded || commanded || !told).then_some(())
    };
    poll(&core, Topic::MemoryNode(name.clone()), wait_ms.min(heartbeat_ms), due).await?;
    let current = core
        .look(move |manager| {
            let node = manager.state().memory_nodes.get(&name)?;
            (node.registration == registration).then(|| manager.memory_node_synced(&name))
        })
        .await?;
    hang_up.completed();
    current.map(Json).ok_or_else(superseded)
}

async fn forget(
    State(core): State<Core>,
    By(caller): By,
    Path(Named { name }): Path<Named>,
    Query(ForgetMemoryNode { force }): Query<ForgetMemoryNode>,
) -> Result<NoContent, ApiError> {
    core.apply(&caller, Command::ForgetMemoryNode { name, force }, |_, _| ()).await?;
    Ok(NoContent)
}

async fn report_orphans(
    State(core): State<Core>,
    By(caller): By,
    Path(Named { name }): Path<Named>,
    Body(report): Body<ReportOrphans>,
) -> Result<NoContent, ApiError> {
    core.apply(&caller, Command::ReportOrphans(name, report), |_, _| ()).await?;
    Ok(NoContent)
}

async fn release_orphans(
    State(core): State<Core>,
    By(caller): By,
    Path(Named { name }): Path<Named>,
    Query(ReleaseOrphans { wait_ms }): Query<ReleaseOrphans>,
) -> Result<Settled<Orphans, 200>, ApiError> {
    core.apply(&caller, Command::ReleaseOrphans(name.clone()), |_, _| ()).await?;
    let node = name.clone();
    let gone = move |manager: &Manager| manager.orphans_on(&node).is_empty().then_some(());
    poll(&core, Topic::Orphans(name.clone()), wait_ms, gone).await?;
    let left = move |manager: &Manager| {
        let orphans = manager.orphans_on(&name).to_vec();
        Orphans { memory_node: name, orphans }
    };
    let left = core.look(left).await?;
    Ok(if left.orphans.is_empty() { Settled::Done(left) } else { Settled::Pending(left) })
}

async fn set_ld_allocations(
    State(core): State<Core>,
    By(caller): By,
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

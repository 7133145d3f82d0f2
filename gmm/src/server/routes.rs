//! The REST interface: each route turns a request into a command for the core, or a look at its state, and the result into
//! JSON. Long polls look, wait until something was stored, and look again, until their time is over.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream::{self, Stream};
use tokio::time::Instant;

use super::core::Core;
use super::error::ApiError;
use crate::api::{
    ComputeNodeRegistered, ComputeNodeSync, ComputeNodeSynced, CreateRegion, DestroyRegion, ErrorCode,
    Events, EventsQuery, ManagerHealth, MemoryNodeRegistered, MemoryNodeStatus, MemoryNodeSync,
    MemoryNodeSynced, RegisterComputeNode, RegisterMemoryNode, ResetRegion,
};
use crate::manager::liveness::NodeKey;
use crate::manager::{Command, EVENTS_PER_ANSWER_MAX, Manager};
use crate::model::{CnId, ComputeNode, Name, Region, RegionState};

/// Largest body taken, in bytes: the results and counters of a memory node with many commands.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Longest wait of a long poll and of creating or destroying, in milliseconds.
pub const WAIT_MS_MAX: u64 = 60_000;
/// How long a request may take beyond the longest wait.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(WAIT_MS_MAX + 10_000);

/// JSON body whose rejection is an [`ApiError`].
#[derive(FromRequest)]
#[from_request(via(Json), rejection(ApiError))]
struct Body<T>(T);

/// Query whose rejection is an [`ApiError`].
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Query), rejection(ApiError))]
struct Query<T>(T);

/// Path parameter whose rejection is an [`ApiError`].
#[derive(FromRequestParts)]
#[from_request(via(axum::extract::Path), rejection(ApiError))]
struct Path<T>(T);

/// Every route, over a running core.
pub fn router(core: Core) -> Router {
    Router::new()
        .route("/v1/memory-nodes", get(memory_nodes).post(register_memory_node))
        .route("/v1/memory-nodes/{name}/sync", post(sync_memory_node))
        .route("/v1/compute-nodes", get(compute_nodes).post(register_compute_node))
        .route("/v1/compute-nodes/{cn_id}/sync", post(sync_compute_node))
        .route("/v1/regions", get(regions).post(create_region))
        .route("/v1/regions/{name}", get(region).delete(destroy_region))
        .route("/v1/regions/{name}/reset", post(reset_region))
        .route("/v1/events", get(events))
        .route("/v1/events/stream", get(event_stream))
        .route("/v1/health", get(health))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn(bounded))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(core)
}

/// Bounds the time a request may take, its body's arrival included.
async fn bounded(request: Request, next: Next) -> Response {
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            ApiError::new(ErrorCode::Timeout, "the request did not end in time", "ask again").into_response()
        }
    }
}

async fn no_such_path(request: Request) -> ApiError {
    let error = format!("there is no {}", request.uri().path());
    ApiError::new(
        ErrorCode::NotFound,
        error,
        "paths start with /v1/: memory-nodes, compute-nodes, regions, events, health",
    )
}

async fn no_such_method(request: Request) -> ApiError {
    let error = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError::new(ErrorCode::MethodNotAllowed, error, "use the method the interface describes")
}

/// Looks until `seen` returns something or `wait_ms` are over; then returns what `otherwise` sees.
async fn poll<T: Send + 'static>(
    core: &Core,
    wait_ms: u64,
    seen: impl Fn(&Manager) -> Option<T> + Clone + Send + 'static,
) -> Result<Option<T>, ApiError> {
    let deadline = Instant::now() + Duration::from_millis(wait_ms.min(WAIT_MS_MAX));
    let mut changes = core.changes();
    loop {
        changes.mark_unchanged();
        if let Some(found) = core.look(seen.clone()).await? {
            return Ok(Some(found));
        }
        match tokio::time::timeout_at(deadline, changes.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return Ok(None),
        }
    }
}

async fn register_memory_node(
    State(core): State<Core>,
    Body(register): Body<RegisterMemoryNode>,
) -> Result<Json<MemoryNodeRegistered>, ApiError> {
    let name = register.name.clone();
    let view = move |manager: &Manager, _: &_| manager.memory_node_registered(&name);
    let registered = core.apply(Command::RegisterMemoryNode(register), view).await?;
    registered.map(Json).ok_or_else(gone)
}

async fn sync_memory_node(
    State(core): State<Core>,
    Path(name): Path<Name>,
    Body(sync): Body<MemoryNodeSync>,
) -> Result<Json<MemoryNodeSynced>, ApiError> {
    let registration = sync.registration;
    let wait_ms = sync.wait_ms;
    let heartbeat_ms =
        core.apply(Command::SyncMemoryNode(name.clone(), sync), |manager, _| manager.heartbeat_ms()).await?;
    let mut hang_up = HangUp::new(&core, NodeKey::Memory(name.clone()), registration);
    let watched = name.clone();
    let due = move |manager: &Manager| {
        let node = manager.state().memory_nodes.get(&watched);
        let superseded = node.is_none_or(|node| node.registration != registration);
        (superseded || manager.state().commands_of(&watched).next().is_some()).then_some(())
    };
    poll(&core, wait_ms.min(heartbeat_ms), due).await?;
    let current = core
        .look(move |manager| {
            let node = manager.state().memory_nodes.get(&name)?;
            (node.registration == registration).then(|| manager.memory_node_synced(&name))
        })
        .await?;
    hang_up.completed();
    current.map(Json).ok_or_else(superseded)
}

async fn memory_nodes(State(core): State<Core>) -> Result<Json<Vec<MemoryNodeStatus>>, ApiError> {
    Ok(Json(core.look(Manager::memory_node_statuses).await?))
}

async fn register_compute_node(
    State(core): State<Core>,
    Body(register): Body<RegisterComputeNode>,
) -> Result<Json<ComputeNodeRegistered>, ApiError> {
    let cn = register.cn_id;
    let view = move |manager: &Manager, _: &_| manager.compute_node_registered(cn);
    let registered = core.apply(Command::RegisterComputeNode(register), view).await?;
    registered.map(Json).ok_or_else(gone)
}

async fn sync_compute_node(
    State(core): State<Core>,
    Path(cn): Path<CnId>,
    Body(sync): Body<ComputeNodeSync>,
) -> Result<Json<ComputeNodeSynced>, ApiError> {
    let ComputeNodeSync { registration, after_event, wait_ms } = sync;
    let heartbeat_ms =
        core.apply(Command::SyncComputeNode(cn, registration), |manager, _| manager.heartbeat_ms()).await?;
    let mut hang_up = HangUp::new(&core, NodeKey::Compute(cn), registration);
    let due = move |manager: &Manager| {
        let node = manager.state().compute_nodes.get(&cn);
        let superseded = node.is_none_or(|node| node.registration != registration);
        (superseded || manager.regions_changed(cn, after_event)).then_some(())
    };
    poll(&core, wait_ms.min(heartbeat_ms), due).await?;
    let current = core
        .look(move |manager| {
            let node = manager.state().compute_nodes.get(&cn)?;
            (node.registration == registration).then(|| manager.compute_node_synced(cn, after_event))
        })
        .await?;
    hang_up.completed();
    current.map(Json).ok_or_else(superseded)
}

async fn compute_nodes(State(core): State<Core>) -> Result<Json<Vec<ComputeNode>>, ApiError> {
    Ok(Json(core.look(|manager| manager.state().compute_nodes.values().cloned().collect()).await?))
}

async fn create_region(
    State(core): State<Core>,
    Body(create): Body<CreateRegion>,
) -> Result<(StatusCode, Json<Region>), ApiError> {
    let (name, wait_ms) = (create.name.clone(), create.wait_ms);
    let created =
        core.apply(Command::CreateRegion(create), |manager, _| manager.state().meta.last_event).await?;
    settled(&core, name, created, wait_ms, StatusCode::CREATED).await
}

async fn reset_region(
    State(core): State<Core>,
    Path(name): Path<Name>,
    Query(reset): Query<ResetRegion>,
) -> Result<(StatusCode, Json<Region>), ApiError> {
    let command = Command::ResetRegion(name.clone());
    let asked = core.apply(command, |manager, _| manager.state().meta.last_event).await?;
    settled(&core, name, asked, reset.wait_ms, StatusCode::OK).await
}

/// Waits until the memory nodes of a region have mapped it, or one refused.
async fn settled(
    core: &Core,
    name: Name,
    asked: u64,
    wait_ms: u64,
    done: StatusCode,
) -> Result<(StatusCode, Json<Region>), ApiError> {
    let watched = name.clone();
    let left_creating = move |manager: &Manager| match manager.region(&watched) {
        Ok(region) if region.state == RegionState::Creating => None,
        Ok(region) if matches!(region.state, RegionState::Active | RegionState::Degraded) => {
            Some(Ok(region.clone()))
        }
        _ => Some(Err(manager.reason_after(&watched, asked).map(str::to_owned))),
    };
    match poll(core, wait_ms, left_creating).await? {
        Some(Ok(region)) => Ok((done, Json(region))),
        Some(Err(reason)) => {
            let code = if reason.is_some() { ErrorCode::NodeRefused } else { ErrorCode::WrongState };
            let reason = reason.unwrap_or_else(|| "it was destroyed meanwhile".to_owned());
            Err(ApiError::new(
                code,
                format!("region {name} did not come about: {reason}"),
                "see `gmm monitor` and the log of the memory node",
            ))
        }
        None => match core.look(move |manager| manager.region(&name).cloned()).await? {
            Ok(region) => Ok((StatusCode::ACCEPTED, Json(region))),
            Err(error) => Err(super::core::CoreError::from(error).into()),
        },
    }
}

async fn destroy_region(
    State(core): State<Core>,
    Path(name): Path<Name>,
    Query(destroy): Query<DestroyRegion>,
) -> Result<Response, ApiError> {
    let command = Command::DestroyRegion { name: name.clone(), force: destroy.force };
    let created_ms = {
        let name = name.clone();
        core.apply(command, move |manager, _| manager.region(&name).ok().map(|region| region.created_ms))
            .await?
    };
    let gone = {
        let name = name.clone();
        move |manager: &Manager| {
            let same = manager.region(&name).is_ok_and(|region| Some(region.created_ms) == created_ms);
            (!same).then_some(())
        }
    };
    if poll(&core, destroy.wait_ms, gone).await?.is_some() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    match core.look(move |manager| manager.region(&name).cloned()).await? {
        Ok(region) => Ok((StatusCode::ACCEPTED, Json(region)).into_response()),
        Err(_) => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

async fn regions(State(core): State<Core>) -> Result<Json<Vec<Region>>, ApiError> {
    Ok(Json(core.look(|manager| manager.state().regions.values().cloned().collect()).await?))
}

async fn region(State(core): State<Core>, Path(name): Path<Name>) -> Result<Json<Region>, ApiError> {
    let region = core.look(move |manager| manager.region(&name).cloned()).await?;
    Ok(Json(region.map_err(super::core::CoreError::from)?))
}

async fn events(
    State(core): State<Core>,
    Query(query): Query<EventsQuery>,
) -> Result<Json<Events>, ApiError> {
    let EventsQuery { after, limit, wait_ms } = query;
    let limit = limit.unwrap_or(EVENTS_PER_ANSWER_MAX);
    let newer = move |manager: &Manager| {
        (manager.state().meta.last_event > after).then(|| manager.events_after(after, limit))
    };
    match poll(&core, wait_ms, newer).await? {
        Some(events) => Ok(Json(events)),
        None => Ok(Json(core.look(move |manager| manager.events_after(after, limit)).await?)),
    }
}

async fn event_stream(
    State(core): State<Core>,
    Query(query): Query<EventsQuery>,
) -> Sse<impl Stream<Item = Result<SseEvent, Infallible>>> {
    let start = (core, query.after, std::collections::VecDeque::new());
    let stream = stream::unfold(start, |(core, mut after, mut ready)| async move {
        loop {
            if let Some(event) = ready.pop_front() {
                return Some((Ok(event), (core, after, ready)));
            }
            let newer = move |manager: &Manager| {
                (manager.state().meta.last_event > after)
                    .then(|| manager.events_after(after, EVENTS_PER_ANSWER_MAX))
            };
            for event in
                poll(&core, WAIT_MS_MAX, newer).await.ok()?.map(|page| page.events).unwrap_or_default()
            {
                after = event.seq;
                ready.extend(SseEvent::default().id(event.seq.to_string()).json_data(event).ok());
            }
        }
    });
    Sse::new(stream).keep_alive(KeepAlive::default())
}

async fn health(State(core): State<Core>) -> Result<Json<ManagerHealth>, ApiError> {
    let view = |manager: &Manager| ManagerHealth {
        status: "ok".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        watermark: manager.watermark(),
        memory_nodes: manager.memory_node_count(),
        compute_nodes: manager.compute_node_count(),
        regions: manager.state().regions.len() as u64,
    };
    Ok(Json(core.look(view).await?))
}

fn gone() -> ApiError {
    ApiError::new(ErrorCode::NotRegistered, "the registration is gone", "register again")
}

fn superseded() -> ApiError {
    let error = "another registration under this identity took over while this sync waited";
    ApiError::new(
        ErrorCode::NotRegistered,
        error,
        "register again, unless another daemon has taken this one's place",
    )
}

/// Tells the manager when a node's connection breaks while its sync waits: the request is dropped then.
struct HangUp {
    core: Core,
    command: Option<Command>,
}

impl HangUp {
    fn new(core: &Core, node: NodeKey, registration: u64) -> Self {
        Self { core: core.clone(), command: Some(Command::HungUp(node, registration)) }
    }

    fn completed(&mut self) {
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

//! Routes of regions: creation, growth, disabling, enabling, reset, destruction. A request waits for memory nodes or
//! the owner for as long as the request states; afterwards, the operation continues without it.

use axum::Json;
use axum::extract::State;

use super::answer::{Removed, Settled};
use super::extract::{Body, Named, Path, Query};
use super::guard::{RequestCaller, Routes, routes};
use super::wait::poll;
use crate::server::core::Core;
use crate::server::error::ApiError;
use crate::server::topics::Topic;
use cxloe_fabric::api::{
    CloneRegion, CreateRegion, DestroyRegion, DisableRegion, ErrorCode, GrowRegion, LabelRegion, LegsFilled,
    LegsStale, ListRegions, MoveRegion, ProtectRegion, RegionStatus, RelocateRegion, ResetRegion, SealRegion,
    ShareRegion, ShowRegion,
};
use cxloe_fabric::model::{LegState, Name, Region, RegionState};
use cxloe_gmm_core::manager::{Command, Manager};
use cxloe_gmm_core::rights::Caller;

pub fn routes() -> Routes {
    routes! {
        get "/v1/regions" Look list: "listRegions", "Every region, or those with certain labels, by name";
        post "/v1/regions" Regions create: "createRegion", "Make a region for a compute node";
        get "/v1/regions/{name}" Look show: "showRegion", "One region";
        delete "/v1/regions/{name}" Regions destroy: "destroyRegion",
            "Take a region down: unmap it and zero its memory";
        post "/v1/regions/{name}/grow" Regions grow: "growRegion", "Make a region larger while it is used";
        post "/v1/regions/{name}/protect" Regions protect: "protectRegion",
            "Change the number of copies of a region while it is used";
        post "/v1/regions/{name}/labels" Regions label: "labelRegion", "Change the labels of a region";
        post "/v1/regions/{name}/move" Regions move_region: "moveRegion",
            "Give a region to another compute node with its content, or stop that";
        post "/v1/regions/{name}/seal" Regions seal: "sealRegion",
            "Make a region read-only for good";
        post "/v1/regions/{name}/share" Regions share: "shareRegion",
            "Let a further compute node read a sealed region, or stop that";
        post "/v1/regions/{name}/clone" Regions clone: "cloneRegion",
            "Make a region that begins with the content of this one";
        post "/v1/regions/{name}/relocate" Administer relocate: "relocateRegion",
            "Move the parts of a region on one memory node to another while it is used, or stop that";
        post "/v1/regions/{name}/legs/stale" ComputeNode legs_stale: "legsStale",
            "The owner's agent declares stale a region's legs on one memory node";
        post "/v1/regions/{name}/legs/filled" ComputeNode legs_filled: "legsFilled",
            "The owner's agent reports that it has filled a stale leg";
        post "/v1/regions/{name}/disable" Regions disable: "disableRegion",
            "Have the owner of a region release it; its content is kept";
        post "/v1/regions/{name}/enable" Regions enable: "enableRegion", "Let the owner have a disabled region again";
        post "/v1/regions/{name}/reset" Regions reset: "resetRegion", "Map a lost region again, empty";
    }
}

/// Progress of a region towards the state that a request asks for.
enum RegionProgress {
    Done,
    Pending,
    Failed,
}

/// Text of a request's failure, and the error code if the event log has a reason.
#[derive(Clone, Copy)]
struct FailureText(&'static str, ErrorCode);

async fn list(
    State(core): State<Core>,
    Query(ListRegions { labels }): Query<ListRegions>,
) -> Result<Json<Vec<RegionStatus>>, ApiError> {
    let mut found = core.view(Manager::region_statuses).await?;
    found.retain(|status| labels.as_ref().is_none_or(|labels| labels.selects(&status.region.labels)));
    Ok(Json(found))
}

async fn show(
    State(core): State<Core>,
    Path(Named { name }): Path<Named>,
    Query(ShowRegion { owner_wait_ms }): Query<ShowRegion>,
) -> Result<Json<RegionStatus>, ApiError> {
    let status = move |manager: &Manager| manager.region(&name).map(|region| manager.region_status(region));
    let now = core.view(status.clone()).await??;
    let owner = now.region.owner;
    if owner_wait_ms == 0 || now.owner_knows {
        return Ok(Json(now));
    }
    let seen = status.clone();
    let received = move |manager: &Manager| {
        let waits = |found: &RegionStatus| !found.owner_knows && manager.is_agent_running(owner);
        Some(seen(manager)).filter(|found| !found.as_ref().is_ok_and(waits))
    };
    match poll(&core, Topic::ComputeNode(owner), owner_wait_ms, received).await? {
        Some(found) => Ok(Json(found?)),
        None => Ok(Json(core.view(status).await??)),
    }
}

async fn create(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Body(create): Body<CreateRegion>,
) -> Result<Settled<Region, 201>, ApiError> {
    let wait_ms = create.wait_ms;
    let asked = FailureText("did not come about", ErrorCode::NodeRefused);
    let command = Command::CreateRegion(create);
    let created = core.apply(&caller, command, |manager, outcome| {
        outcome.created_region().map(|name| (name.clone(), manager.state().meta.last_event))
    });
    let (name, since) = created.await?.ok_or_else(|| {
        ApiError::new(ErrorCode::WrongState, "no region was created".to_owned(), "see the log of the manager")
    })?;
    settle(&core, name, since, wait_ms, asked, mapped).await
}

async fn reset(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Query(ResetRegion { wait_ms }): Query<ResetRegion>,
) -> Result<Settled<Region, 200>, ApiError> {
    let asked = FailureText("was not reset", ErrorCode::NodeRefused);
    follow(&core, &caller, Command::ResetRegion(name.clone()), name, wait_ms, asked, mapped).await
}

async fn grow(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Body(grow): Body<GrowRegion>,
) -> Result<Settled<Region, 200>, ApiError> {
    let (size, wait_ms) = (grow.size.0, grow.wait_ms);
    let progress = move |region: &Region| {
        // If a leg (a part on one memory node) is unmapped without having been committed, its memory node has refused
        // to map it.
        let refused =
            region.legs.iter().any(|leg| leg.state == LegState::Unmapping && !region.is_committed(leg));
        match region.state {
            RegionState::Draining => RegionProgress::Failed,
            _ if region.size >= size => RegionProgress::Done,
            _ if refused || region.growing() == 0 => RegionProgress::Failed,
            _ => RegionProgress::Pending,
        }
    };
    let asked = FailureText("did not grow", ErrorCode::NodeRefused);
    follow(&core, &caller, Command::GrowRegion(name.clone(), grow), name, wait_ms, asked, progress).await
}

async fn protect(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Body(protect): Body<ProtectRegion>,
) -> Result<Settled<Region, 200>, ApiError> {
    let (wanted, wait_ms) = (protect.protect, protect.wait_ms);
    let progress = move |region: &Region| match region.state {
        RegionState::Draining | RegionState::Lost => RegionProgress::Failed,
        _ if region.protect != wanted => RegionProgress::Failed,
        RegionState::Active => RegionProgress::Done,
        _ => RegionProgress::Pending,
    };
    let asked = FailureText("did not change its protection", ErrorCode::WrongState);
    follow(&core, &caller, Command::ProtectRegion(name.clone(), protect), name, wait_ms, asked, progress)
        .await
}

async fn move_region(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Body(order): Body<MoveRegion>,
) -> Result<Settled<Region, 200>, ApiError> {
    let (to, wait_ms) = (order.to.clone(), order.wait_ms);
    let to = match to {
        Some(to) => Some(core.view(move |manager| manager.known_compute_node(&to)).await??.cn_id),
        None => None,
    };
    let progress = move |region: &Region| match region.state {
        _ if to.is_none() => RegionProgress::Done,
        RegionState::Draining => RegionProgress::Failed,
        RegionState::Creating if to == Some(region.owner) => RegionProgress::Pending,
        _ if to == Some(region.owner) => RegionProgress::Done,
        _ if region.release.is_some_and(|release| release.to == to) => RegionProgress::Pending,
        _ => RegionProgress::Failed,
    };
    let asked = FailureText("did not move", ErrorCode::WrongState);
    follow(&core, &caller, Command::MoveRegion(name.clone(), order), name, wait_ms, asked, progress).await
}

async fn seal(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Body(order): Body<SealRegion>,
) -> Result<Settled<Region, 200>, ApiError> {
    let progress = |region: &Region| match region.state {
        RegionState::Draining => RegionProgress::Failed,
        RegionState::Creating if region.sealed => RegionProgress::Pending,
        _ if region.sealed => RegionProgress::Done,
        _ if region.release.is_some_and(|release| release.seal) => RegionProgress::Pending,
        _ => RegionProgress::Failed,
    };
    let asked = FailureText("was not sealed", ErrorCode::WrongState);
    follow(&core, &caller, Command::SealRegion(name.clone(), order), name, order.wait_ms, asked, progress)
        .await
}

async fn share(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Body(order): Body<ShareRegion>,
) -> Result<Settled<Region, 200>, ApiError> {
    let with = order.with.clone();
    let cn = core.view(move |manager| manager.known_compute_node(&with)).await??.cn_id;
    let (end, wait_ms) = (order.end, order.wait_ms);
    let progress = move |region: &Region| {
        let reader = region.readers.iter().find(|reader| reader.cn == cn);
        match reader {
            None if end => RegionProgress::Done,
            None => RegionProgress::Failed,
            Some(reader) if end == reader.ends => match !end && reader.is_ready() {
                true => RegionProgress::Done,
                false => RegionProgress::Pending,
            },
            Some(_) => RegionProgress::Failed,
        }
    };
    let asked = FailureText("was not shared", ErrorCode::NodeRefused);
    follow(&core, &caller, Command::ShareRegion(name.clone(), order), name, wait_ms, asked, progress).await
}

async fn clone(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Body(order): Body<CloneRegion>,
) -> Result<Settled<Region, 201>, ApiError> {
    let (new, wait_ms) = (order.name.clone(), order.wait_ms);
    let asked = FailureText("did not come about", ErrorCode::NodeRefused);
    follow(&core, &caller, Command::CloneRegion(name, order), new, wait_ms, asked, mapped).await
}

async fn relocate(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Body(relocate): Body<RelocateRegion>,
) -> Result<Settled<Region, 200>, ApiError> {
    let (from, to, wait_ms) = (relocate.from.clone(), relocate.to.clone(), relocate.wait_ms);
    let progress = move |region: &Region| {
        let mut here = region
            .legs
            .iter()
            .filter(|leg| leg.memory_node == from && leg.state != LegState::Unmapping)
            .peekable();
        match region.state {
            _ if to.is_none() || here.peek().is_none() => RegionProgress::Done,
            RegionState::Draining | RegionState::Lost => RegionProgress::Failed,
            // Another order has replaced the order of this request.
            _ if here.any(|leg| leg.moves_to != to) => RegionProgress::Failed,
            _ => RegionProgress::Pending,
        }
    };
    let asked = FailureText("did not move", ErrorCode::WrongState);
    follow(&core, &caller, Command::RelocateRegion(name.clone(), relocate), name, wait_ms, asked, progress)
        .await
}

async fn label(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Body(order): Body<LabelRegion>,
) -> Result<Json<Region>, ApiError> {
    let command = Command::LabelRegion(name.clone(), order);
    Ok(Json(core.apply(&caller, command, move |manager, _| manager.region(&name).cloned()).await??))
}

async fn legs_stale(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Body(stale): Body<LegsStale>,
) -> Result<Json<Region>, ApiError> {
    let command = Command::LegsStale(name.clone(), stale);
    Ok(Json(core.apply(&caller, command, move |manager, _| manager.region(&name).cloned()).await??))
}

async fn legs_filled(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Body(filled): Body<LegsFilled>,
) -> Result<Json<Region>, ApiError> {
    let command = Command::LegsFilled(name.clone(), filled);
    Ok(Json(core.apply(&caller, command, move |manager, _| manager.region(&name).cloned()).await??))
}

async fn disable(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Query(DisableRegion { wait_ms }): Query<DisableRegion>,
) -> Result<Settled<Region, 200>, ApiError> {
    let progress = |region: &Region| match region.state {
        RegionState::Disabled => RegionProgress::Done,
        RegionState::Releasing => RegionProgress::Pending,
        _ => RegionProgress::Failed,
    };
    let asked = FailureText("was not disabled", ErrorCode::WrongState);
    follow(&core, &caller, Command::DisableRegion(name.clone()), name, wait_ms, asked, progress).await
}

async fn enable(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
) -> Result<Json<Region>, ApiError> {
    let command = Command::EnableRegion(name.clone());
    Ok(Json(core.apply(&caller, command, move |manager, _| manager.region(&name).cloned()).await??))
}

async fn destroy(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Path(Named { name }): Path<Named>,
    Query(DestroyRegion { force, wait_ms, created_ms }): Query<DestroyRegion>,
) -> Result<Removed<RegionStatus>, ApiError> {
    let command = Command::DestroyRegion { name: name.clone(), force, created_ms };
    let created_ms = {
        let name = name.clone();
        core.apply(&caller, command, move |manager, _| {
            manager.region(&name).ok().map(|region| region.created_ms)
        })
        .await?
    };
    // A region with another creation time is a later one of the same name.
    let current = move |manager: &Manager| {
        let region = manager.region(&name).ok().filter(|region| Some(region.created_ms) == created_ms);
        region.map(|region| (Topic::Region(name.clone()), manager.region_status(region)))
    };
    let Some((topic, _)) = core.view(current.clone()).await? else { return Ok(Removed::Done) };
    let seen = current.clone();
    let gone = move |manager: &Manager| seen(manager).is_none().then_some(());
    if poll(&core, topic, wait_ms, gone).await?.is_some() {
        return Ok(Removed::Done);
    }
    let left = core.view(current).await?;
    Ok(left.map_or(Removed::Done, |(_, region)| Removed::Pending(region)))
}

/// Progress of the mapping of a region on memory nodes, from the region's state.
fn mapped(region: &Region) -> RegionProgress {
    match region.state {
        RegionState::Creating => RegionProgress::Pending,
        RegionState::Draining | RegionState::Lost => RegionProgress::Failed,
        _ => RegionProgress::Done,
    }
}

/// Carries out a command on a region, and waits for the state that the command leads to.
async fn follow<const DONE: u16>(
    core: &Core,
    caller: &Caller,
    command: Command,
    name: Name,
    wait_ms: u64,
    asked: FailureText,
    progress: impl Fn(&Region) -> RegionProgress + Clone + Send + 'static,
) -> Result<Settled<Region, DONE>, ApiError> {
    let since = core.apply(caller, command, |manager, _| manager.state().meta.last_event).await?;
    settle(core, name, since, wait_ms, asked, progress).await
}

/// Waits until a region's progress is no longer pending. If it failed, the events after `since` give the
/// reason.
async fn settle<const DONE: u16>(
    core: &Core,
    name: Name,
    since: u64,
    wait_ms: u64,
    FailureText(what, code): FailureText,
    progress: impl Fn(&Region) -> RegionProgress + Clone + Send + 'static,
) -> Result<Settled<Region, DONE>, ApiError> {
    let watched = name.clone();
    let seen = move |manager: &Manager| {
        let region = manager.region(&watched).ok();
        match region.map(|region| (progress(region), region)) {
            Some((RegionProgress::Pending, _)) => None,
            Some((RegionProgress::Done, region)) => Some(Ok(region.clone())),
            Some((RegionProgress::Failed, _)) | None => {
                Some(Err(manager.reason_after(&watched, since).map(str::to_owned)))
            }
        }
    };
    match poll(core, Topic::Region(name.clone()), wait_ms, seen).await? {
        Some(Ok(region)) => Ok(Settled::Done(region)),
        Some(Err(reason)) => Err(failed(format!("region {name} {what}"), code, reason)),
        None => Ok(Settled::Pending(core.view(move |manager| manager.region(&name).cloned()).await??)),
    }
}

/// The error for an operation that will not complete, with the reason from the event log if there is one.
pub fn failed(what: String, code: ErrorCode, reason: Option<String>) -> ApiError {
    let code = if reason.is_some() { code } else { ErrorCode::WrongState };
    let reason = reason.unwrap_or_else(|| "it was taken down meanwhile".to_owned());
    ApiError::new(code, format!("{what}: {reason}"), "see `gmm list -E` and the log of the memory node")
}

//! Regions: made, grown, disabled, enabled, reset, taken down. What takes memory nodes or an owner to come about is waited
//! for as long as the request says, and goes on without it after that.

use axum::Json;
use axum::extract::State;

use super::answer::{Gone, Settled};
use super::extract::{Body, Named, Path, Query};
use super::guard::{By, Routes, delete, get, post};
use super::wait::poll;
use crate::manager::{Command, Manager};
use crate::rights::{Caller, Right};
use crate::server::core::Core;
use crate::server::error::ApiError;
use crate::server::topics::Topic;
use cxloe_fabric::api::{
    CreateRegion, DestroyRegion, DisableRegion, ErrorCode, GrowRegion, RegionStatus, ResetRegion,
};
use cxloe_fabric::model::{LegState, Name, Region, RegionState};

pub fn routes() -> Routes {
    Routes::new()
        .route(
            "/v1/regions",
            get(Right::Look, list, |op| op.id("listRegions").summary("Every region, by name")),
        )
        .route(
            "/v1/regions",
            post(Right::Regions, create, |op| {
                op.id("createRegion").summary("Make a region for a compute node")
            }),
        )
        .route("/v1/regions/{name}", get(Right::Look, show, |op| op.id("showRegion").summary("One region")))
        .route(
            "/v1/regions/{name}",
            delete(Right::Regions, destroy, |op| {
                op.id("destroyRegion").summary("Take a region down: unmap it and zero its memory")
            }),
        )
        .route(
            "/v1/regions/{name}/grow",
            post(Right::Regions, grow, |op| {
                op.id("growRegion").summary("Make a region larger while it is used")
            }),
        )
        .route(
            "/v1/regions/{name}/disable",
            post(Right::Regions, disable, |op| {
                op.id("disableRegion").summary("Have the owner of a region let go of it; its content is kept")
            }),
        )
        .route(
            "/v1/regions/{name}/enable",
            post(Right::Regions, enable, |op| {
                op.id("enableRegion").summary("Let the owner have a disabled region again")
            }),
        )
        .route(
            "/v1/regions/{name}/reset",
            post(Right::Regions, reset, |op| op.id("resetRegion").summary("Map a lost region again, empty")),
        )
}

/// How far a region is from what was asked of it.
enum Standing {
    Done,
    Pending,
    Failed,
}

/// What was asked of a region, for when it fails: what did not happen, and the code if a reason is on record.
#[derive(Clone, Copy)]
struct Asked(&'static str, ErrorCode);

async fn list(State(core): State<Core>) -> Result<Json<Vec<RegionStatus>>, ApiError> {
    Ok(Json(core.look(Manager::region_statuses).await?))
}

async fn show(
    State(core): State<Core>,
    Path(Named { name }): Path<Named>,
) -> Result<Json<RegionStatus>, ApiError> {
    Ok(Json(
        core.look(move |manager| manager.region(&name).map(|region| manager.region_status(region))).await??,
    ))
}

async fn create(
    State(core): State<Core>,
    By(caller): By,
    Body(create): Body<CreateRegion>,
) -> Result<Settled<Region, 201>, ApiError> {
    let (name, wait_ms) = (create.name.clone(), create.wait_ms);
    let asked = Asked("did not come about", ErrorCode::NodeRefused);
    follow(&core, &caller, Command::CreateRegion(create), name, wait_ms, asked, mapped).await
}

async fn reset(
    State(core): State<Core>,
    By(caller): By,
    Path(Named { name }): Path<Named>,
    Query(ResetRegion { wait_ms }): Query<ResetRegion>,
) -> Result<Settled<Region, 200>, ApiError> {
    let asked = Asked("was not reset", ErrorCode::NodeRefused);
    follow(&core, &caller, Command::ResetRegion(name.clone()), name, wait_ms, asked, mapped).await
}

async fn grow(
    State(core): State<Core>,
    By(caller): By,
    Path(Named { name }): Path<Named>,
    Body(grow): Body<GrowRegion>,
) -> Result<Settled<Region, 200>, ApiError> {
    let (size, wait_ms) = (grow.size.0, grow.wait_ms);
    let standing = move |region: &Region| {
        let refused = region.legs.iter().any(|leg| leg.state == LegState::Unmapping);
        match region.state {
            RegionState::Draining => Standing::Failed,
            _ if region.size >= size => Standing::Done,
            _ if refused || region.growing() == 0 => Standing::Failed,
            _ => Standing::Pending,
        }
    };
    let asked = Asked("did not grow", ErrorCode::NodeRefused);
    follow(&core, &caller, Command::GrowRegion(name.clone(), grow), name, wait_ms, asked, standing).await
}

async fn disable(
    State(core): State<Core>,
    By(caller): By,
    Path(Named { name }): Path<Named>,
    Query(DisableRegion { wait_ms }): Query<DisableRegion>,
) -> Result<Settled<Region, 200>, ApiError> {
    let standing = |region: &Region| match region.state {
        RegionState::Disabled => Standing::Done,
        RegionState::Releasing => Standing::Pending,
        _ => Standing::Failed,
    };
    let asked = Asked("was not disabled", ErrorCode::WrongState);
    follow(&core, &caller, Command::DisableRegion(name.clone()), name, wait_ms, asked, standing).await
}

async fn enable(
    State(core): State<Core>,
    By(caller): By,
    Path(Named { name }): Path<Named>,
) -> Result<Json<Region>, ApiError> {
    let command = Command::EnableRegion(name.clone());
    Ok(Json(core.apply(&caller, command, move |manager, _| manager.region(&name).cloned()).await??))
}

async fn destroy(
    State(core): State<Core>,
    By(caller): By,
    Path(Named { name }): Path<Named>,
    Query(DestroyRegion { force, wait_ms, created_ms }): Query<DestroyRegion>,
) -> Result<Gone<RegionStatus>, ApiError> {
    let command = Command::DestroyRegion { name: name.clone(), force, created_ms };
    let created_ms = {
        let name = name.clone();
        core.apply(&caller, command, move |manager, _| {
            manager.region(&name).ok().map(|region| region.created_ms)
        })
        .await?
    };
    let current = move |manager: &Manager| {
        let region = manager.region(&name).ok().filter(|region| Some(region.created_ms) == created_ms);
        region.map(|region| (Topic::Region(name.clone()), manager.region_status(region)))
    };
    let Some((topic, _)) = core.look(current.clone()).await? else { return Ok(Gone::Done) };
    let seen = current.clone();
    let gone = move |manager: &Manager| seen(manager).is_none().then_some(());
    if poll(&core, topic, wait_ms, gone).await?.is_some() {
        return Ok(Gone::Done);
    }
    let left = core.look(current).await?;
    Ok(left.map_or(Gone::Done, |(_, region)| Gone::Pending(region)))
}

/// Whether its memory nodes have mapped a region.
fn mapped(region: &Region) -> Standing {
    match region.state {
        RegionState::Creating => Standing::Pending,
        RegionState::Draining | RegionState::Lost => Standing::Failed,
        _ => Standing::Done,
    }
}

/// Carries out a command about a region and waits until the region stands where that was to bring it.
async fn follow<const DONE: u16>(
    core: &Core,
    caller: &Caller,
    command: Command,
    name: Name,
    wait_ms: u64,
    Asked(what, code): Asked,
    standing: impl Fn(&Region) -> Standing + Clone + Send + 'static,
) -> Result<Settled<Region, DONE>, ApiError> {
    let asked = core.apply(caller, command, |manager, _| manager.state().meta.last_event).await?;
    let watched = name.clone();
    let seen = move |manager: &Manager| {
        let region = manager.region(&watched).ok();
        match region.map(|region| (standing(region), region)) {
            Some((Standing::Pending, _)) => None,
            Some((Standing::Done, region)) => Some(Ok(region.clone())),
            Some((Standing::Failed, _)) | None => {
                Some(Err(manager.reason_after(&watched, asked).map(str::to_owned)))
            }
        }
    };
    match poll(core, Topic::Region(name.clone()), wait_ms, seen).await? {
        Some(Ok(region)) => Ok(Settled::Done(region)),
        Some(Err(reason)) => Err(failed(format!("region {name} {what}"), code, reason)),
        None => Ok(Settled::Pending(core.look(move |manager| manager.region(&name).cloned()).await??)),
    }
}

/// What was waited for will not come about; the event log may say why.
pub fn failed(what: String, code: ErrorCode, reason: Option<String>) -> ApiError {
    let code = if reason.is_some() { code } else { ErrorCode::WrongState };
    let reason = reason.unwrap_or_else(|| "it was taken down meanwhile".to_owned());
    ApiError::new(code, format!("{what}: {reason}"), "see `gmm list -E` and the log of the memory node")
}

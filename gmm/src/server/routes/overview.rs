//! The fabric at a glance, and a searched part of its regions: what the web view shows.

use axum::extract::State;
use axum::{Extension, Json};

use super::Leader;
use super::extract::Query;
use super::guard::{Routes, get};
use crate::rights::Right;
use crate::server::core::Core;
use crate::server::error::ApiError;
use cxloe_fabric::api::{Overview, RegionsPage, RegionsQuery};

pub fn routes() -> Routes {
    Routes::new()
        .route(
            "/v1/overview",
            get(Right::Look, show, |op| {
                op.id("showOverview").summary("The fabric at a glance: nodes, who has how much, traffic")
            }),
        )
        .route(
            "/v1/overview/regions",
            get(Right::Look, regions, |op| {
                op.id("searchRegions").summary("Regions that fit a search: how many, and the first of them")
            }),
        )
}

async fn show(
    State(core): State<Core>,
    Extension(Leader(leader)): Extension<Leader>,
) -> Result<Json<Overview>, ApiError> {
    Ok(Json(core.turn(move |manager, now_ms, _| manager.overview(&leader, now_ms)).await?))
}

async fn regions(
    State(core): State<Core>,
    Query(query): Query<RegionsQuery>,
) -> Result<Json<RegionsPage>, ApiError> {
    Ok(Json(core.look(move |manager| manager.regions_page(&query)).await?))
}
